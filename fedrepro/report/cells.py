"""A comparison's cells as texts and marks, in the paper's layout: its number, ours, the gap, the verdict."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from typing import Any

import pandas as pd

from fedrepro.core.digits import plain, signed
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
# What became of a claim, where the word alone does not say it.
CLAIMS = {
    "cannot tell": "the seeds are too few",
    "partly run": "some of the cells that it compares are not recorded, or not planned, at that scale",
    "not run": "none of the cells that it compares is recorded at that scale",
    "number lost": "a number that it needs is lost in the paper's text",
    "to be seen": "the paper shows a picture and prints no numbers",
    "censored": "runs did not reach their target",
}
OTHER = Mark("·", "open")
ALONE = {"not run", "number lost", "paper contradicts itself", "suspicious"}  # said of cells without ours


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
    spread = f" ± {plain(std, places[1])}" if math.isfinite(std) else ""
    return f"{plain(mean, places[0])}{spread}"


def of_paper(cell: Cell, places: Mapping[str, tuple[int, int]]) -> str:
    """Return the paper's number as it prints it, "" where there is none; one that was repaired says so."""
    text = number(cell["paper_mean"], cell["paper_std"], _places(cell, places))
    how = f" ({cell['status']})" if cell["status"] in RESTORED else ""
    return f"{text}{_unit(cell)}{how}" if text else ""


def ours(cell: Cell, places: Mapping[str, tuple[int, int]], name: str) -> str:
    """Return our number at a scale, with its seeds; "censored" where runs reached no target, "" without any.

    Accuracies of smaller scales have two decimals: they are of few images, and stand beside their differences.

    Args:
        cell: a line of a comparison.
        places: see `printed`.
        name: "recorded", "short" or "smoke".
    """
    seeds = cell.get(f"{name}_seeds", 0)
    if not seeds:
        return ""
    least = 1 if name == "recorded" or _unit(cell) else 2
    mean, spread = (max(least, printed) for printed in _places(cell, places))
    text = number(cell[f"{name}_mean"], cell.get(f"{name}_std", math.nan), (mean, spread)) or "censored"
    return f"{text} ({int(seeds)})"


def gap(cell: Cell) -> str:
    """Return ours minus the paper's, its interval and E_n, where known: "−1.2 [−2.0, −0.4], Eₙ −1.1"."""
    if not math.isfinite(cell["gap_points"]):
        return ""
    low, high = cell.get("gap_low", math.nan), cell.get("gap_high", math.nan)
    around = f" [{signed(low)}, {signed(high)}]" if math.isfinite(low) and math.isfinite(high) else ""
    en = cell.get("e_n", math.nan)
    return f"{signed(cell['gap_points'])}{around}" + (f", Eₙ {signed(en)}" if math.isfinite(en) else "")


def judged(cell: Cell, places: Mapping[str, tuple[int, int]]) -> str:
    """Return a cell's text: the paper's number, ours, and in a second line the verdict and the gap."""
    left, right = of_paper(cell, places), ours(cell, places, "recorded")
    word = str(cell["verdict"])
    if word == "not run":
        return left
    mark = MARKS.get(word, OTHER)
    said = f"{mark.sign} {word}{_more(cell)}".strip()
    line = "; ".join(part for part in (said, gap(cell)) if part)
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


# What stands beside a number of the paper's that is not simply printed there.
RESTORED = {
    "repaired": "damaged in the paper's text, restored as its card tells",
    "inferred": "not printed here, taken from where the paper prints the same run",
}


def legend(comparison: pd.DataFrame) -> str:
    """Return what the signs and words in a comparison's cells mean."""
    words, statuses = set(comparison["verdict"]), set(comparison["status"])
    found = [word for word in MARKS if word in words]
    judged = (
        "paper | ours at paper scale (seeds), mean ± standard deviation; below: verdict, ours minus the paper's "
        "with its 90 % interval, and Eₙ, that over the uncertainty of both (beyond ±1 they differ)"
    )
    signs = [f"{MARKS[word].sign} {word}" for word in found if MARKS[word].sign]
    grey = ["grey: the paper's number, not run"] if "not run" in found else []
    how = [f"({status}): {meaning}" for status, meaning in RESTORED.items() if status in statuses]
    return "; ".join([*([judged] if words - ALONE else []), *signs, *grey, *how])
