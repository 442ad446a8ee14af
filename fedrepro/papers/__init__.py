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

from fedrepro.core.setting import Setting, nearest

FOLDER = Path(__file__).parent
SCALES = ("smoke", "short", "paper")


@dataclass(frozen=True)
class Preset:
    """A named difference between a paper and its released code: the settings that select the code's way.

    paper, code: what each of the two does.
    """

    name: str
    values: Mapping[str, Any]
    paper: str
    code: str


@dataclass(frozen=True)
class Grid:
    """Axes of labels whose combinations are cells, at the scales at which they are."""

    axes: Mapping[str, tuple[str, ...]]
    scales: tuple[str, ...] = SCALES


@dataclass(frozen=True)
class Gain:
    """A cell that is a difference: how many points one cell lies above another, (item, row) each, in a column."""

    row: str
    column: str
    of: tuple[str, str]
    above: tuple[str, str]


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
    row: str
    column: str
    grids: tuple[Grid, ...]
    gains: tuple[Gain, ...]
    limits: Mapping[str, Mapping[str, tuple[str, ...]]]
    rules: tuple[Mapping[str, Any], ...]
    seeds: Mapping[str, int]
    batch: bool

    @property
    def key(self) -> str:
        """The name by which it is asked for, such as "fedbe/table1_methods"."""
        return f"{self.paper}/{self.name}"

    @property
    def labels(self) -> dict[str, tuple[str, ...]]:
        """All labels that there are on each axis, in their order."""
        found: dict[str, dict[str, None]] = {}
        for grid in self.grids:
            for axis, values in grid.axes.items():
                found.setdefault(axis, {}).update(dict.fromkeys(values))
        return {axis: tuple(values) for axis, values in found.items()}


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
    presets: Mapping[str, Preset]
    items: Mapping[str, Item]
    reported: pd.DataFrame

    def preset(self, name: str) -> dict[str, Any]:
        """Return the settings of a preset, to be given to `Setting.with_`.

        They are meant for the paper's scale: where a step is counted (`swa_start`), smaller scales need less.

        Raises:
            ValueError: for an unknown preset, with the nearest real one.
        """
        if name not in self.presets:
            raise ValueError(f"unknown preset {name!r} of {self.name}{nearest(name, list(self.presets))}")
        return dict(self.presets[name].values)

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
        known = {v for values in entry.labels.values() for v in values}
        for label in only:
            if label not in known:
                raise ValueError(f"{entry.key} has no {label!r}{nearest(label, sorted(known))}")
        chosen = {axis: set(values) & set(only) for axis, values in entry.labels.items()}
        cells = []
        for grid in (grid for grid in entry.grids if scale in grid.scales):
            axes = dict(grid.axes)
            for axis, values in grid.axes.items():
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
            Columns name, value (all that occur), kind ("stated", "assumed", or both where that differs from cell
            to cell) and source.
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
                    if kind not in found[name][0]:
                        found[name][0] += f", {kind}"
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
    entries = settings.get("presets", {})
    presets = {key: _preset(key, entry, entries) for key, entry in entries.items()}
    return Paper(
        name,
        settings["title"],
        pd.DataFrame(rows, columns=["name", "value", "kind", "source"]),
        tuple(settings.get("rule", [])),
        presets,
        {key: _item(name, key, entry, presets) for key, entry in items["items"].items()},
        pd.read_csv(folder / "reported.csv", dtype={"row": str, "column": str, "note": str}),
    )


def _preset(name: str, entry: Mapping[str, Any], every: Mapping[str, Any]) -> Preset:
    """Read a preset; one that `unites` others has the values of all of them."""
    values = {key: value for other in entry.get("unites", []) for key, value in every[other]["set"].items()}
    return Preset(name, values | entry.get("set", {}), entry["paper"], entry["code"])


def _rule(rule: Mapping[str, Any], presets: Mapping[str, Preset]) -> Mapping[str, Any]:
    """Put the values of a rule's preset where its own are, which win, and say where they come from."""
    if "preset" not in rule:
        return rule
    preset = presets[rule["preset"]]
    rest = {key: value for key, value in rule.items() if key != "preset"}
    return {"assumed": f"not the paper but the code: {preset.code}", **rest} | {
        "set": {**preset.values, **rule.get("set", {})}
    }


def _grid(entry: Mapping[str, Any]) -> Grid:
    axes = {axis: tuple(values) for axis, values in entry.items() if axis != "scales"}
    return Grid(axes, tuple(entry.get("scales", SCALES)))


def _item(paper: str, name: str, entry: Mapping[str, Any], presets: Mapping[str, Preset]) -> Item:
    grids = tuple(_grid(grid) for grid in entry.get("grids", []))
    gains = tuple(
        Gain(
            gain["row"],
            gain["column"],
            (gain["of"]["item"], gain["of"]["row"]),
            (gain["above"]["item"], gain["above"]["row"]),
        )
        for gain in entry.get("gain", [])
    )
    return Item(
        paper,
        name,
        entry["title"],
        entry["source"],
        entry["claim"],
        entry.get("row", ""),
        entry.get("column", ""),
        grids,
        gains,
        {
            scale: {axis: tuple(values) for axis, values in entry.get(scale, {}).items()}
            for scale in ("smoke", "short")
        },
        tuple(_rule(rule, presets) for rule in entry.get("rule", [])),
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
