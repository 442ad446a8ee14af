"""A comparison's cells as texts and marks, in the paper's layout: its number, ours, the gap, the verdict."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from typing import Any

import pandas as pd

from fedrepro.papers.metrics import METRICS
from fedrepro.report.verdict import decimals

Cell = Mapping[Any, Any]  # a line of a comparison


@dataclass(frozen=True)
class Mark:
    """How a verdict looks: a sign before its word, and a tone, the class that gives a cell its colour."""

    sign: str
    tone: str


# Blue, orange and yellow stay apart under the common colour-vision deficiencies; sign and word say the same.
MARKS: Mapping[str, Mark] = {
    "reproduced": Mark("✓", "good"),
    "reproduced, with a difference": Mark("≈", "near"),
    "off": Mark("✗", "bad"),
    "cannot tell": Mark("?", "open"),
    "tuned": Mark("~", "open"),
    "censored": Mark("≥", "open"),
    "not judged": Mark("·", "open"),
    "not run": Mark("", "unrun"),
    "paper contradicts itself": Mark("!", "odd"),
    "suspicious": Mark("!", "odd"),
    "number lost": Mark("∅", "odd"),
    "not reported": Mark("+", "open"),
}
OTHER = Mark("·", "open")


def names_of(row: str) -> tuple[str, str]:
    """Return a row's group and its name in it: "Step/FedBE" -> ("Step", "FedBE"); "FedBE w/o SWA" has no group."""
    group, slash, name = row.partition("/")
    return (group, name) if slash and not group.endswith("w") else ("", row)


def printed(cells: pd.DataFrame) -> dict[str, tuple[int, int]]:
    """Return for each metric with how many decimals the paper prints its numbers and their spreads."""
    groups = cells.groupby(cells["metric"].fillna(""))
    return {str(name): (decimals(part["paper_mean"]), decimals(part["paper_std"])) for name, part in groups}


def _unit(cell: Cell) -> str:
    found = METRICS.get(str(cell["metric"]))
    return f" {found.unit}" if found and found.unit != "%" else ""


def _places(cell: Cell, places: Mapping[str, tuple[int, int]]) -> tuple[int, int]:
    metric = cell["metric"]
    return places.get("" if pd.isna(metric) else str(metric), (1, 1))


def number(mean: float, std: float, places: tuple[int, int]) -> str:
    """Return "74.5 ± 0.5", or "" where the mean is not known."""
    if not math.isfinite(mean):
        return ""
    spread = f" ± {std:.{places[1]}f}" if math.isfinite(std) else ""
    return f"{mean:.{places[0]}f}{spread}".replace("-", "−")


def of_paper(cell: Cell, places: Mapping[str, tuple[int, int]]) -> str:
    """Return the paper's number as it prints it, "" where there is none; one that was repaired says so."""
    text = number(cell["paper_mean"], cell["paper_std"], _places(cell, places))
    how = f" ({cell['status']})" if cell["status"] in ("repaired", "inferred") else ""
    return f"{text}{_unit(cell)}{how}" if text else ""


def ours(cell: Cell, places: Mapping[str, tuple[int, int]], name: str) -> str:
    """Return our number at a scale, with its seeds; "censored" where runs reached no target, "" without any.

    Args:
        cell: a line of a comparison.
        places: see `printed`.
        name: "recorded", "short" or "smoke".
    """
    seeds = cell.get(f"{name}_seeds", 0)
    if not seeds:
        return ""
    least = _places(cell, places)
    std = cell.get(f"{name}_std", math.nan)
    text = number(cell[f"{name}_mean"], std, (max(1, least[0]), max(1, least[1]))) or "censored"
    return f"{text} ({int(seeds)})"


def gap(cell: Cell) -> str:
    """Return ours minus the paper's, its interval and E_n, where known: "−1.2 [−2.0, −0.4], E_n −1.1"."""
    if not math.isfinite(cell["gap_points"]):
        return ""
    low, high = cell.get("gap_low", math.nan), cell.get("gap_high", math.nan)
    around = f" [{signed(low)}, {signed(high)}]" if math.isfinite(low) and math.isfinite(high) else ""
    en = cell.get("e_n", math.nan)
    return f"{signed(cell['gap_points'])}{around}" + (f", E_n {signed(en)}" if math.isfinite(en) else "")


def signed(value: float) -> str:
    """Return a number with its sign and one decimal."""
    return f"{round(value, 1) + 0.0:+.1f}".replace("-", "−")  # adding 0 turns -0.0 into 0.0


def judged(cell: Cell, places: Mapping[str, tuple[int, int]]) -> str:
    """Return a cell's text: the paper's number, ours, and in a second line the verdict and the gap."""
    left, right = of_paper(cell, places), ours(cell, places, "recorded")
    word = str(cell["verdict"])
    if word == "not run":
        return left
    mark = MARKS.get(word, OTHER)
    line = " ".join(part for part in (mark.sign, word + _more(cell), gap(cell)) if part)
    both = f"{left or '–'} | {right}" if right else left
    return "\n".join(part for part in (both, line) if part)


def _more(cell: Cell) -> str:
    """Return how many more seeds could tell, behind "cannot tell"."""
    more = cell.get("more_seeds", math.nan)
    if cell["verdict"] != "cannot tell" or math.isnan(more):
        return ""
    if math.isinf(more):
        return ": no number of seeds could"
    return f": {more:.0f} more seed{'s' if more > 1 else ''}"


def smaller(cell: Cell, places: Mapping[str, tuple[int, int]], scale: str) -> str:
    """Return the text of a cell of a smaller scale: our number alone, as it cannot be held against the paper's."""
    return ours(cell, places, scale)


def grid(cells: pd.DataFrame, show: Callable[[Cell], str]) -> pd.DataFrame:
    """Lay a comparison's cells out, rows by columns, as the paper orders them; "" where there is none."""
    texts = {(cell["row"], cell["column"]): show(cell) for cell in cells.to_dict("records")}
    rows = list(dict.fromkeys(cells["row"]))
    columns = _merged([list(part["column"]) for _, part in cells.groupby("row", sort=False)])
    named = [names_of(str(row)) for row in rows]
    groups = list(dict.fromkeys(group for group, _ in named))
    order = sorted(range(len(rows)), key=lambda place: groups.index(named[place][0]))
    grouped = groups != [""] and len(groups) > 0
    index: pd.Index = pd.Index([rows[place] for place in order])
    if grouped:
        index = pd.MultiIndex.from_tuples([named[place] for place in order])
    lines = [[texts.get((rows[place], column), "") for column in columns] for place in order]
    return pd.DataFrame(lines, index=index, columns=columns)


def _merged(orders: Sequence[Sequence[str]]) -> list[str]:
    """Return names in an order that keeps all of some orders, if there is one; else as they come."""
    seen = list(dict.fromkeys(name for order in orders for name in order))
    before: dict[str, set[str]] = {name: set() for name in seen}
    for order in orders:
        for first, second in pairwise(order):
            before[second].add(first)
    try:
        return list(TopologicalSorter(before).static_order())
    except CycleError:
        return seen


def legend(words: Iterable[str]) -> str:
    """Return what the signs of some verdicts mean."""
    found = [word for word in MARKS if word in set(words)]
    signs = [f"{MARKS[word].sign} {word}" for word in found if MARKS[word].sign]
    grey = ["grey: the paper's number, not run"] if "not run" in found else []
    cell = "paper | ours at paper scale (seeds), mean ± standard deviation; below: verdict, ours minus the paper's"
    return "; ".join([cell, *signs, *grey])
