"""Papers as data: their settings, items, reported numbers and claims.

Each paper is a folder here. `settings.toml` holds every value with where the paper states it or why it is
assumed; `items.toml` says which runs an item (a table or figure) needs; `reported.csv` holds the paper's
numbers and `claims.toml` the sentences it draws from them.
"""

import itertools
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import pandas as pd

from fedrepro.setting import Setting, nearest

FOLDER = Path(__file__).parent
SCALES = ("smoke", "short", "paper")


@dataclass(frozen=True)
class Item:
    """A table or figure: its axes, how a cell is named, and which settings belong to the cells.

    limits: for a scale, the values that it keeps of an axis; axes without a limit keep all.
    batch: whether runs of the store stand behind it; a toy figure computes everything in its notebook.
    """

    paper: str
    name: str
    title: str
    source: str
    claim: str
    costs: Mapping[str, str]
    row: str
    column: str
    grids: tuple[Mapping[str, tuple[str, ...]], ...]
    limits: Mapping[str, Mapping[str, tuple[str, ...]]]
    rules: tuple[Mapping[str, Any], ...]
    seeds: Mapping[str, int]
    batch: bool

    @property
    def key(self) -> str:
        """The name by which it is asked for, such as "fedbe/table1_methods"."""
        return f"{self.paper}/{self.name}"


@dataclass(frozen=True)
class Cell:
    """One cell of an item at one scale: its labels, its row and column, and its setting."""

    item: str
    labels: Mapping[str, str]
    row: str
    column: str
    setting: Setting


@dataclass(frozen=True)
class Paper:
    """One paper's data."""

    name: str
    title: str
    settings: pd.DataFrame
    rules: tuple[Mapping[str, Any], ...]
    items: Mapping[str, Item]
    reported: pd.DataFrame

    def cells(self, item: str, scale: str, *, only: tuple[str, ...] = ()) -> list[Cell]:
        """List the cells of an item at a scale, in order of priority.

        Args:
            item: an item's short name.
            scale: "smoke", "short" or "paper".
            only: labels, such as "ConvNet" and "Step": an axis that has some of them keeps no others.

        Raises:
            ValueError: for an unknown item, scale or label, with the nearest real one.
        """
        if scale not in SCALES:
            raise ValueError(f"unknown scale {scale!r}{nearest(scale, SCALES)}")
        if item not in self.items:
            raise ValueError(f"unknown item {item!r} of {self.name}{nearest(item, list(self.items))}")
        entry = self.items[item]
        known = {v for grid in entry.grids for values in grid.values() for v in values}
        for label in only:
            if label not in known:
                raise ValueError(f"{entry.key} has no {label!r}{nearest(label, sorted(known))}")
        chosen: dict[str, set[str]] = {}
        for grid in entry.grids:
            for axis, values in grid.items():
                chosen.setdefault(axis, set()).update(set(values) & set(only))
        cells = []
        for grid in entry.grids:
            axes = dict(grid)
            for axis, values in grid.items():
                allowed = entry.limits.get(scale, {}).get(axis, values)
                axes[axis] = tuple(v for v in values if v in allowed and (not chosen[axis] or v in chosen[axis]))
            for values in itertools.product(*axes.values()):
                cells.append(self._cell(entry, dict(zip(axes, values)), scale))
        left = set(only) - {label for cell in cells for label in cell.labels.values()}
        if left:
            raise ValueError(f"{entry.key} has no cell with {', '.join(sorted(left))} at scale {scale}")
        return cells

    def sources(self, item: str) -> pd.DataFrame:
        """Tell of every value of an item at paper scale what it is and where it comes from.

        A rule that says `stated` or `assumed` speaks for the values that it sets: for all of the item if it
        applies to every cell, else for the cells with its labels, which are then named.

        Returns:
            Columns name, value (all that occur), kind ("stated" or "assumed") and source.
        """
        cells = self.cells(item, "paper")
        found = {line["name"]: [line["kind"], line["source"]] for line in self.settings.to_dict("records")}
        for rule in (*self.rules, *self.items[item].rules):
            kind = next((kind for kind in ("stated", "assumed") if kind in rule), "")
            matched = sum(_applies(rule, dict(cell.labels) | {"scale": "paper"}) for cell in cells)
            for name in rule["set"] if kind and matched else ():
                if matched == len(cells):
                    found[name] = [kind, rule[kind]]
                else:
                    labels = ", ".join(rule["when"].values())
                    found[name][1] += f"; for {labels} {kind}: {rule[kind]}"
        values = [cell.setting.asdict() for cell in cells]
        used = {name: list(dict.fromkeys(one[name] for one in values)) for name in found}
        rows = [(name, used[name], *source) for name, source in found.items()]
        return pd.DataFrame(rows, columns=["name", "value", "kind", "source"])

    def _cell(self, item: Item, labels: dict[str, str], scale: str) -> Cell:
        values = dict(zip(self.settings["name"], self.settings["value"]))
        facts = labels | {"scale": scale}
        for rule in (*self.rules, *item.rules):
            if _applies(rule, facts):
                values |= rule["set"]
        return Cell(
            item.key,
            labels,
            item.row.format(**labels),
            item.column.format(**labels),
            Setting.of(values),
        )


def _applies(rule: Mapping[str, Any], facts: Mapping[str, str]) -> bool:
    return all(facts.get(axis) == wanted for axis, wanted in rule.get("when", {}).items())


def names() -> list[str]:
    """List the papers that there are."""
    return sorted(path.parent.name for path in FOLDER.glob("*/settings.toml"))


@lru_cache
def load(name: str) -> Paper:
    """Read one paper.

    Raises:
        ValueError: for an unknown paper, or a value that is neither stated nor assumed.
    """
    if name not in names():
        raise ValueError(f"unknown paper {name!r}{nearest(name, names())}")
    folder = FOLDER / name
    settings = tomllib.loads((folder / "settings.toml").read_text(encoding="utf-8"))
    items = tomllib.loads((folder / "items.toml").read_text(encoding="utf-8"))
    rows = []
    for key, entry in settings["values"].items():
        if ("stated" in entry) == ("assumed" in entry):
            raise ValueError(f"{name}: {key} must be either stated or assumed")
        kind = "stated" if "stated" in entry else "assumed"
        rows.append({"name": key, "value": entry["value"], "kind": kind, "source": entry[kind]})
    return Paper(
        name,
        settings["title"],
        pd.DataFrame(rows, columns=["name", "value", "kind", "source"]),
        tuple(settings.get("rule", [])),
        {key: _item(name, key, entry) for key, entry in items["items"].items()},
        pd.read_csv(folder / "reported.csv", dtype={"row": str, "column": str, "note": str}),
    )


def _item(paper: str, name: str, entry: Mapping[str, Any]) -> Item:
    grids = tuple({axis: tuple(values) for axis, values in grid.items()} for grid in entry.get("grids", []))
    return Item(
        paper,
        name,
        entry["title"],
        entry["source"],
        entry["claim"],
        entry["costs"],
        entry.get("row", ""),
        entry.get("column", ""),
        grids,
        {
            scale: {axis: tuple(values) for axis, values in entry.get(scale, {}).items()}
            for scale in ("smoke", "short")
        },
        tuple(entry.get("rule", [])),
        entry["seeds"],
        entry.get("batch", True),
    )


def find(target: str) -> list[Item]:
    """Return the items that a name asks for: "fedbe" all of a paper, "fedbe/table1_methods" one.

    Raises:
        ValueError: for an unknown paper or item, with the nearest real name.
    """
    paper, _, item = target.partition("/")
    if paper not in names():
        every = [entry.key for name in names() for entry in load(name).items.values()]
        raise ValueError(f"unknown item {target!r}{nearest(target, names() + every)}")
    found = load(paper).items
    if not item:
        return list(found.values())
    if item not in found:
        raise ValueError(f"unknown item {target!r}{nearest(target, [entry.key for entry in found.values()])}")
    return [found[item]]
