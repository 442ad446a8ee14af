"""Sentences that a paper draws from its numbers, as comparisons that a set of numbers can be held against.

A claim compares cells, each named by (item, row, column). Row and column may hold names in braces, which
`over` and `along` fill, so one claim covers a whole table: it holds when every combination holds.
"""

import math
import string
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise, product
from typing import Literal

Key = tuple[str, str, str]
Kind = Literal["greater", "within", "at_most", "trend", "gain_trend", "figure"]
Status = Literal["holds", "fails", "not run", "partly run", "to be seen"]
Axes = tuple[tuple[str, tuple[str, ...]], ...]

# Accuracies are given to 0.1 or 0.01 points: anything closer than this is floating-point noise.
TOLERANCE = 1e-9

# Keys of each kind beside those of every claim: the needed ones, the optional ones.
_KEYS: Mapping[Kind, tuple[set[str], set[str]]] = {
    "greater": ({"left", "right"}, {"over", "margin"}),
    "within": ({"left", "right", "margin"}, {"over"}),
    "at_most": ({"left", "margin"}, {"over"}),
    "trend": ({"cells", "direction"}, {"over"}),
    "gain_trend": ({"left", "right", "along"}, {"over"}),
    "figure": ({"needs"}, set()),
}


@dataclass(frozen=True)
class Cell:
    """Name of a cell, with names in braces in its row and column that are still to be filled."""

    item: str
    row: str
    column: str

    def names(self) -> set[str]:
        """Names in braces in the row and the column."""
        parts = [part for text in (self.row, self.column) for part in string.Formatter().parse(text)]
        if any(name is not None and (spec or how or not name.isidentifier()) for _, name, spec, how in parts):
            raise ValueError(f"braces may hold plain names only, got {self.row!r} and {self.column!r}")
        return {name for _, name, _, _ in parts if name is not None}

    def fill(self, values: Mapping[str, str]) -> Key:
        """Return the cell's key with every name in braces replaced by its value."""
        return self.item, self.row.format_map(values), self.column.format_map(values)


@dataclass(frozen=True)
class Claim:
    """One sentence of comparison and how to check it.

    Kind "greater": left > right + margin. "within": |left - right| <= margin. "at_most": left <= margin.
    "trend": the cells rise or fall strictly in their order. "gain_trend": left - right rises strictly along an
    axis. "figure": the paper prints no number; `needs` says what a run must show. `cells` are left and right,
    or those of the trend.
    `reading` says what the check assumes where the sentence is open. Margins are in percentage points.
    """

    id: str
    text: str
    place: str
    item: str
    kind: Kind
    cells: tuple[Cell, ...] = ()
    over: Axes = ()
    along: Axes = ()
    margin: float = 0.0
    direction: str = ""
    needs: str = ""
    reading: str = ""


@dataclass(frozen=True)
class Outcome:
    """What became of a claim on a set of numbers; `detail` names the worst combination and its numbers."""

    status: Status
    detail: str
    holding: int = 0
    combinations: int = 0


def parse_claims(text: str) -> tuple[Claim, ...]:
    """Claims of a claims.toml, in its order.

    Args:
        text: the file's content: [[claim]] tables and nothing else; none yet where it is empty.

    Raises:
        ValueError: a key, kind or name is unknown or missing, or an id is given twice; the message names
            the claim.
    """
    document = tomllib.loads(text)
    tables = document.get("claim", [])
    if set(document) - {"claim"} or not isinstance(tables, list):
        raise ValueError(f"claims must be [[claim]] tables only, got top-level keys {sorted(document)}")
    claims: dict[str, Claim] = {}
    for table in tables:
        claim = parse_claim(table)
        if claim.id in claims:
            raise ValueError(f"claim {claim.id}: an id must be given once, got it twice")
        claims[claim.id] = claim
    return tuple(claims.values())


def parse_claim(table: Mapping[str, object]) -> Claim:
    """Claim of one [[claim]] table.

    Raises:
        ValueError: a key, kind or name is unknown or missing; the message names the claim.
    """
    try:
        return _parse(table)
    except ValueError as error:
        raise ValueError(f"claim {table.get('id', 'without id')}: {error}") from error


def combinations(claim: Claim) -> tuple[tuple[str, tuple[Key, ...]], ...]:
    """Every comparison of a claim: its label ("Step, ResNet-44") and its cells in the order of the check.

    A cell beside itself compares nothing and is left out; so is the second of two mirrored pairs of "within".
    """
    found: dict[object, tuple[str, tuple[Key, ...]]] = {}
    for values in _fillings(claim.over) if claim.cells else ():
        keys = tuple(cell.fill(values | step) for step in _fillings(claim.along) for cell in claim.cells)
        same = frozenset(keys) if claim.kind == "within" else keys
        if (len(set(keys)) > 1 or claim.kind == "at_most") and same not in found:
            found[same] = ", ".join(values.values()), keys
    return tuple(found.values())


def needed_cells(claim: Claim) -> tuple[Key, ...]:
    """Every cell that the claim reads, each once, in the order of its first use."""
    return tuple(dict.fromkeys(key for _, keys in combinations(claim) for key in keys))


def check(claim: Claim, values: Mapping[Key, float]) -> Outcome:
    """Hold a claim against numbers.

    Args:
        claim: the claim.
        values: known numbers by (item, row, column), in percent; NaN and infinity count as unknown.

    Returns:
        Outcome with status "holds" or "fails" when every needed cell is known, "not run" when none
        is, "partly run" when some are, and "to be seen" for kind "figure".
    """
    if claim.kind == "figure":
        return Outcome("to be seen", claim.needs)
    status: Status
    needed, compared = needed_cells(claim), combinations(claim)
    missing = [key for key in needed if not math.isfinite(values.get(key, math.nan))]
    if missing:
        detail = f"{len(missing)} of {len(needed)} cells missing; first {', '.join(missing[0])}"
        status = "not run" if len(missing) == len(needed) else "partly run"
        return Outcome(status, detail, combinations=len(compared))
    results = []
    for label, keys in compared:
        slack, shown = _slack(claim, [float(values[key]) for key in keys])
        results.append((slack, f"{label}: {shown}" if label else shown))
    holding = sum(slack > 0 for slack, _ in results)
    worst = min(results, key=lambda result: result[0])[1]
    status = "holds" if holding == len(results) else "fails"
    return Outcome(status, f"{holding} of {len(results)}; worst {worst}", holding, len(results))


def _slack(claim: Claim, numbers: list[float]) -> tuple[float, str]:
    """Distance from failing, positive where the comparison holds, and the compared numbers as text."""
    if claim.kind == "at_most":
        return claim.margin - numbers[0] + TOLERANCE, f"{_show(numbers[0])} vs {_show(claim.margin)}"
    if claim.kind in ("greater", "within"):
        left, right = numbers
        shown = f"{_show(left)} vs {_show(right)}"
        if claim.kind == "within":
            return claim.margin - abs(left - right) + TOLERANCE, shown
        return left - right - claim.margin - TOLERANCE, shown
    if claim.kind == "gain_trend":
        numbers = [left - right for left, right in zip(numbers[::2], numbers[1::2], strict=True)]
    sign = -1.0 if claim.direction == "down" else 1.0
    shown = ", ".join(map(_show, numbers))
    smallest = min(sign * (after - before) for before, after in pairwise(numbers))
    return smallest - TOLERANCE, f"gains {shown}" if claim.kind == "gain_trend" else shown


def _show(number: float) -> str:
    return str(round(number, 2))


def _fillings(axes: Axes) -> Iterator[dict[str, str]]:
    names = [name for name, _ in axes]
    return (dict(zip(names, choice, strict=True)) for choice in product(*(values for _, values in axes)))


def _parse(table: Mapping[str, object]) -> Claim:
    kind = next((kind for kind in _KEYS if table.get("kind") == kind), None)
    if kind is None:
        raise ValueError(f"kind must be one of {sorted(_KEYS)}, got {table.get('kind')!r}")
    needed = _KEYS[kind][0] | {"id", "text", "place", "item", "kind"}
    if unknown := set(table) - needed - _KEYS[kind][1] - {"reading"}:
        raise ValueError(f"unknown key {min(unknown)!r} for kind {kind!r}")
    if absent := needed - set(table):
        raise ValueError(f"kind {kind!r} needs the key {min(absent)!r}")
    texts = {key: _text(table[key], key) for key in ("id", "text", "place", "item")}
    texts |= {key: _text(table[key], key) for key in ("direction", "needs", "reading") if key in table}
    cells = table.get("cells", [table[side] for side in ("left", "right") if side in table])
    if not isinstance(cells, list) or (kind == "trend" and len(cells) < 2):
        raise ValueError(f"cells must be a list of two or more cells, got {cells!r}")
    margin = table.get("margin", 0.0)
    if isinstance(margin, bool) or not isinstance(margin, int | float) or not math.isfinite(margin):
        raise ValueError(f"margin must be a number of points, got {margin!r}")
    if kind == "within" and margin < 0:
        raise ValueError(f"margin must not be negative for kind 'within', got {margin}")
    if kind == "trend" and texts["direction"] not in ("up", "down"):
        raise ValueError(f"direction must be 'up' or 'down', got {texts['direction']!r}")
    over, along = (_axes(table.get(key, {}), key) for key in ("over", "along"))
    if kind == "gain_trend" and (len(along) != 1 or len(along[0][1]) < 2):
        raise ValueError(f"along must be one name with two or more values, got {table['along']!r}")
    filled = tuple(_cell(cell, texts["item"]) for cell in cells)
    claim = Claim(**texts, kind=kind, cells=filled, over=over, along=along, margin=float(margin))
    used = set().union(*(cell.names() for cell in filled))
    given = [name for name, _ in over + along]
    if sorted(used) != sorted(given):
        raise ValueError(f"over and along must give the names {sorted(used)} only, got {sorted(given)}")
    if kind != "figure" and not combinations(claim):
        raise ValueError("a claim must compare different cells")
    return claim


def _text(value: object, key: str) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{key} must be a text, got {value!r}")
    return value


def _cell(value: object, item: str) -> Cell:
    if not isinstance(value, dict) or "row" not in value or set(value) - {"item", "row", "column"}:
        raise ValueError(f"a cell must have a row and may have a column and an item, got {value!r}")
    cell = {"item": item, "column": "{column}"} | value
    return Cell(**{key: _text(cell[key], key) for key in ("item", "row", "column")})


def _axes(value: object, key: str) -> Axes:
    if not isinstance(value, dict):
        raise ValueError(f"{key} must be a table of names with lists of values, got {value!r}")
    for name, values in value.items():
        if not isinstance(values, list) or not values or len({_text(v, name) for v in values}) < len(values):
            raise ValueError(f"{key}.{name} must be a list of different texts, got {values!r}")
    return tuple((name, tuple(values)) for name, values in value.items())
