"""What a paper is: its values, items and rules, and the cells that follow from them at a scale."""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import pandas as pd

import fedrepro.federation.assemble
import fedrepro.methods.catalogue  # noqa: F401  (both for what they and theirs declare: the settings)
from fedrepro.core.names import nearest
from fedrepro.core.setting import Setting
from fedrepro.papers import reported
from fedrepro.papers.claims import Claim, Key
from fedrepro.papers.reading import LAST, Reading
from fedrepro.papers.said import Said, joined

SCALES = ("smoke", "short", "paper")
KINDS = ("stated", "assumed")

# What is set, read, and stated or assumed `when` the labels and the scale are those: keys when, set, read, stated
# or assumed. The labels of an item that only map to values are rules, too; see `fedrepro.papers.rules`.
Rule = Mapping[str, Any]


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
class Assumption:
    """A choice that is no setting, since the library makes it always the same way, and that the paper leaves open.

    name, value, reason: what it is about, what is done here, and why or what the paper does say.
    where: settings of the cells that it is about; all cells where there are none.
    """

    name: str
    value: str
    reason: str
    where: Mapping[str, Any] = field(default_factory=dict)

    def about(self, setting: Setting) -> bool:
        """Say whether a run of this setting rests on it."""
        return all(getattr(setting, name) in _any_of(wanted) for name, wanted in self.where.items())


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
    read: what the readings of its cells have in common, as for `Reading.of`.
    batch: whether runs of the store stand behind it; a toy figure computes everything in its notebook.
    not_built: rows that the paper prints and that have no cell here, each with the reason.
    baselines: for rows that change one thing, the row with which each is to be compared, in the same column.
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
    rules: tuple[Rule, ...]
    seeds: Mapping[str, int]
    batch: bool
    read: Mapping[str, Any] = field(default_factory=dict)
    not_built: Mapping[str, str] = field(default_factory=dict)
    baselines: Mapping[str, str] = field(default_factory=dict)

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
    """One cell of an item at one scale: its labels, row and column, its setting, and how its number is read."""

    item: str
    labels: Mapping[str, str]
    row: str
    column: str
    setting: Setting
    reading: Reading = LAST


@dataclass(frozen=True)
class Paper:
    """One paper's data.

    judging: how its cells are judged, see `fedrepro.papers.judging`.
    not_built: the reason for each item that the paper prints and that is not here.
    assumptions: what was assumed beside the values of settings.
    """

    name: str
    title: str
    settings: pd.DataFrame
    rules: tuple[Rule, ...]
    presets: Mapping[str, Preset]
    items: Mapping[str, Item]
    reported: pd.DataFrame
    not_built: Mapping[str, str] = field(default_factory=dict)
    assumptions: tuple[Assumption, ...] = ()
    claims: tuple[Claim, ...] = ()
    judging: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def printed(self) -> Mapping[Key, Mapping[str, Any]]:
        """Every cell (item, row, column) that the paper prints; see `fedrepro.papers.reported.printed`."""
        return reported.printed(self.reported)

    @cached_property
    def settings_by_cell(self) -> Mapping[Key, Setting]:
        """Setting of every cell (item, row, column) at paper scale, as it is today."""
        every = ((item, cell) for item in self.items for cell in self.cells(item, "paper"))
        return {(item, cell.row, cell.column): cell.setting for item, cell in every}

    @cached_property
    def keys(self) -> Mapping[Key, str]:
        """Key of each of `settings_by_cell`."""
        return {place: setting.key for place, setting in self.settings_by_cell.items()}

    @cached_property
    def twins(self) -> Mapping[Key, tuple[Key, ...]]:
        """For each cell (item, row, column) all that show the same number of the same runs at paper scale.

        In the order of the items: the first is the one by which all are judged.
        """
        found: dict[tuple[str, Reading], dict[Key, None]] = {}
        for item, entry in self.items.items():
            for cell in self.cells(item, "paper") if entry.batch else ():
                found.setdefault((cell.setting.key, cell.reading), {})[item, cell.row, cell.column] = None
        return {cell: tuple(group) for group in found.values() for cell in group}

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
        applies to every cell, else for the cells with its labels, which are then named. Of several rules that set
        one value the first that is stated speaks. What was assumed beside settings follows, with its text as its
        value.

        Returns:
            Columns name, value (all that occur), kind ("stated", "assumed", or both where that differs from cell
            to cell) and source.
        """
        cells = self.cells(item, "paper")
        found = {line["name"]: [line["kind"], line["source"]] for line in self.settings.to_dict("records")}
        for_some: dict[str, dict[str, Said]] = {}  # name -> value -> what is said of it
        for rule in self._rules(self.items[item]):
            kind = next((kind for kind in KINDS if kind in rule), "")
            matched = sum(_applies(rule, dict(cell.labels) | {"scale": "paper"}) for cell in cells)
            for name in rule.get("set", {}) if kind and matched else ():
                if matched == len(cells):
                    found[name] = [kind, rule[kind]]
                    for_some.pop(name, None)
                else:
                    said = for_some.setdefault(name, {}).setdefault(
                        repr(rule["set"][name]), Said(kind, rule[kind])
                    )
                    said.add(kind, rule[kind], _labels(rule))
        for name, every in for_some.items():
            kinds, sources = found.get(name, ["", ""])
            for one in joined(every.values()):
                kinds = kinds if one.kind in kinds else ", ".join(filter(None, (kinds, one.kind)))
                sources = "; ".join(filter(None, (sources, str(one))))
            found[name] = [kinds, sources]
        values = [cell.setting.asdict() for cell in cells]
        used = {name: list(dict.fromkeys(one[name] for one in values)) for name in found}
        rows = [(name, used[name], *source) for name, source in found.items()]
        beside = (one for one in self.assumptions if any(one.about(cell.setting) for cell in cells))
        rows += [(one.name, [one.value], "assumed", one.reason) for one in beside]
        return pd.DataFrame(rows, columns=["name", "value", "kind", "source"])

    def _rules(self, item: Item) -> list[Rule]:
        """Return the rules in the order in which they apply: those about a scale after all others."""
        return sorted((*self.rules, *item.rules), key=lambda rule: "scale" in rule.get("when", {}))

    def _cell(self, item: Item, labels: dict[str, str], scale: str) -> Cell:
        values = dict(zip(self.settings["name"], self.settings["value"]))
        facts, read = labels | {"scale": scale}, dict(item.read)
        for rule in self._rules(item):
            if _applies(rule, facts):
                values |= rule.get("set", {})
                read |= rule.get("read", {})
        row, column = item.row.format(**labels), item.column.format(**labels)
        return Cell(item.key, labels, row, column, Setting.of(values), Reading.of(read))


def any_of(wanted: str | Iterable[str]) -> tuple[str, ...]:
    """Return the labels that a rule names on an axis: one, or any of a list."""
    return (wanted,) if isinstance(wanted, str) else tuple(wanted)


def _any_of(wanted: Any) -> Sequence[Any]:
    return wanted if isinstance(wanted, list) else [wanted]


def _applies(rule: Rule, facts: Mapping[str, str]) -> bool:
    return all(facts.get(axis) in any_of(wanted) for axis, wanted in rule.get("when", {}).items())


def _labels(rule: Rule) -> str:
    about = (any_of(wanted) for axis, wanted in rule["when"].items() if axis != "scale")
    return ", ".join(label for labels in about for label in labels)
