"""What was recorded: the runs behind each cell, those of other items that show the same number among them."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fedrepro.core.metrics import unpacked
from fedrepro.papers import SCALES, Gain, Paper
from fedrepro.papers.gap import BORROWED, Spread, pooled
from fedrepro.papers.metrics import metric
from fedrepro.runs import record


def item_names(paper: Paper) -> list[str]:
    """List a paper's items: those that are built, then the others that it prints numbers of."""
    return list(dict.fromkeys([*paper.items, *paper.reported["item"]]))


def censored(table: pd.DataFrame) -> pd.Series:
    """Return for each line of a record whether its result is only a lower bound, as it reached no target."""
    if "censored" not in table:  # records of before there were targets
        return pd.Series(False, index=table.index)
    return pd.to_numeric(table["censored"]).fillna(0).ne(0)


def records(paper: Paper, item: str, scale: str, folders: Iterable[Path]) -> pd.DataFrame:
    """Read what was recorded of an item at a scale.

    Args:
        paper, item, scale: which; the item by its short name.
        folders: a run (row, column, seed) of a later folder replaces that of an earlier one.

    Returns:
        The lines of the files, sorted by row, column and seed, with `settings`: how many settings the cell
        has records of. Only runs of one of them are there: at paper scale today's, else that with the most
        seeds, then in float32, then the newest. A cell that is a gain has a line for each seed that both of its
        cells have in one precision.
    """
    folders = list(folders)
    made = _records(paper, item, scale, folders)
    gains = paper.items[item].gains if item in paper.items else ()
    tables = [made, *(_gain(gain, paper, scale, folders) for gain in gains)]
    return pd.concat(tables).sort_values(["row", "column", "seed"], ignore_index=True)


def _gain(gain: Gain, paper: Paper, scale: str, folders: Iterable[Path]) -> pd.DataFrame:
    """Return the lines of a cell that is the difference of two others, with the facts of the first's runs."""
    upper, lower = (
        table[(table["row"] == row) & (table["column"] == gain.column)].set_index("seed")
        for item, row in (gain.of, gain.above)
        for table in [_side(paper, item, scale, folders)]
    )
    same = upper["precision"] == lower["precision"].reindex(upper.index)
    upper = upper[upper.index.isin(lower.index) & same]
    lower = lower.reindex(upper.index)
    found = upper.assign(row=gain.row, result=upper["result"] - lower["result"])
    found["settings"] = np.maximum(upper["settings"], lower["settings"])
    if "censored" in found:
        found["censored"] = censored(upper) | censored(lower)
    return found.reset_index()


def _side(paper: Paper, item: str, scale: str, folders: Iterable[Path]) -> pd.DataFrame:
    """Return the records of an item that a gain is of; none where they are damaged, which is told at that item."""
    try:
        return _records(paper, item, scale, folders)
    except (ValueError, OSError):
        return pd.DataFrame(columns=[*record.RUN_COLUMNS, "settings"])


def _records(paper: Paper, item: str, scale: str, folders: Iterable[Path]) -> pd.DataFrame:
    if not (read := list(_files(paper, item, scale, folders))):
        return pd.DataFrame(columns=[*record.RUN_COLUMNS, "settings"])
    texts = dict.fromkeys(["row", "column", "setting_key", "commit", "date"], str)
    table = pd.concat(read).dropna(subset=["result"]).astype(texts | {"result": float})
    table = table.drop_duplicates(["row", "column", "setting_key", "precision", "seed"], keep="last")
    table["settings"] = table.groupby(["row", "column"])["setting_key"].transform("nunique")
    by = ["row", "column", "setting_key", "precision"]
    groups = table.groupby(by, as_index=False, dropna=False).agg(seeds=("seed", "size"), newest=("date", "max"))
    groups["full"] = groups["precision"] == record.FIRST["precision"]
    keys = paper.keys if scale == "paper" else {}
    places = zip(groups["row"], groups["column"], groups["setting_key"])
    groups["today"] = [keys.get((item, row, column)) == key for row, column, key in places]
    best = groups.sort_values(["today", "seeds", "full", "newest", "setting_key"]).drop_duplicates(
        by[:2], keep="last"
    )
    return table.merge(best[by], on=by).sort_values(["row", "column", "seed"], ignore_index=True)


def _files(paper: Paper, item: str, scale: str, folders: Iterable[Path]) -> Iterator[pd.DataFrame]:
    """Yield what the files of an item hold; at paper scale also what other items hold of the same runs.

    A run has one name in each item that shows it, and is found under all of them.
    """
    others: dict[str, dict[tuple[str, str], list[tuple[str, str]]]] = {}
    for cell, twins in paper.twins.items() if scale == "paper" else ():
        for name, row, column in twins if cell[0] == item else ():
            if name != item:
                others.setdefault(name, {}).setdefault((row, column), []).append(cell[1:])
    for folder in folders:
        for name, names in others.items():
            table = _sound(folder, f"{paper.name}/{name}", scale)
            for (row, column), own in names.items():
                key = paper.keys[name, row, column]  # of other settings the rows may mean something else
                lines = table[table["row"].eq(row) & table["column"].eq(column) & table["setting_key"].eq(key)]
                yield from (lines.assign(row=r, column=c) for r, c in own if len(lines))
        if len(table := record.read(folder, f"{paper.name}/{item}", scale)):
            yield table


def _sound(folder: Path, item: str, scale: str) -> pd.DataFrame:
    """Read another item's file, or nothing where it is damaged: that is told where its own item is shown."""
    try:
        return record.read(folder, item, scale)
    except (ValueError, OSError):
        return pd.DataFrame(columns=record.RUN_COLUMNS)


def damages(paper: Paper, folders: Iterable[Path], items: Iterable[str] | None = None) -> dict[str, str]:
    """Return for each item of a paper whose records cannot be read what is wrong; it names file and line.

    Args:
        paper: which.
        folders: as for `records`.
        items: short names of those that are looked at; all of them if not given.
    """
    found: dict[str, str] = {}
    items = item_names(paper) if items is None else list(items)
    for folder in folders:
        for item in items:
            for scale in SCALES:
                try:
                    record.read(folder, f"{paper.name}/{item}", scale)
                except (ValueError, OSError) as error:
                    found.setdefault(item, str(error))
    return found


@dataclass(frozen=True)
class Scattered:
    """The results of a setting's seeds at paper scale; its key, and its method where a cell of today has it."""

    key: str
    method: str
    values: tuple[float, ...]


def scattered(paper: Paper, folders: Iterable[Path]) -> list[Scattered]:
    """Return the results of each setting of a paper with several seeds at paper scale.

    Only percentages: those of one item and cell each, as several cells may read one run.
    """
    folders, tables = list(folders), []
    kinds = paper.reported.drop_duplicates("item", keep="first").set_index("item")["metric"]
    for item in paper.items:
        counted = paper.items[item].batch and not paper.judging.get(item, {}).get("tuned")
        if counted and metric(str(kinds.get(item, "test_acc_pct"))).unit == "%":
            tables += [_sound(folder, f"{paper.name}/{item}", "paper") for folder in folders]
    if not (tables := [table for table in tables if len(table)]):
        return []
    every = pd.concat(tables)
    every = every[~censored(every)].dropna(subset=["result"])
    every = every.drop_duplicates(["row", "column", "setting_key", "precision", "seed"], keep="last")
    groups = every.groupby(["setting_key", "precision", "row", "column"], sort=True)
    found: dict[tuple[str, str], list[float]] = {}
    for (key, precision, _, _), lines in groups:
        found.setdefault((str(key), str(precision)), list(lines["result"].astype(float)))
    methods = {paper.keys[place]: setting.method for place, setting in paper.settings_by_cell.items()}
    return [
        Scattered(key, methods.get(key, ""), tuple(values))
        for (key, _), values in found.items()
        if len(values) > 1
    ]


def prior(
    paper: Paper, home: tuple[str, str, str], number: Mapping[Any, Any], others: Sequence[Scattered]
) -> Spread | None:
    """Return the spread of other cells' accuracies for a number of the same unit; of two for a difference.

    Cells of the same method come first. All others stand in only where there are none, the paper prints no spread
    of its own, and they are many enough: a few seeds of another method say little.
    """
    own = paper.settings_by_cell.get(home)
    alike = pooled([one.values for one in others if own and one.method == own.method], " of the same method")
    printed = number["std"] >= 0 and number["runs"] > 1
    rest = None if printed else pooled(one.values for one in others)
    found = alike or (rest if rest is not None and rest.dof >= BORROWED else None)
    unit = metric(number["metric"]).unit
    if found is None or unit not in ("%", "points"):
        return None
    return found if unit == "%" else Spread(found.std * math.sqrt(2), found.dof, f"differences of {found.whose}")


def noise_floors(
    paper: Paper, item: str, scale: str, folders: Iterable[Path], used: pd.DataFrame
) -> dict[tuple[str, str], float]:
    """Return for each cell (row, column) how much of a run's accuracy is chance of its test set, in points.

    100 sqrt(sum of p_i (1 - p_i)) / N over the N test images, where p_i is how often the seeds get image i right:
    the standard deviation of an accuracy whose images are right independently. No spread over seeds is expected
    to be smaller. p_i (1 - p_i) is estimated without bias, by n / (n - 1) times that of the share of n seeds.

    Args:
        paper, item, scale, folders: as for `records`.
        used: the records of that scale that count, as `records` returns them.

    Returns:
        Cells with at least two seeds whose hits are recorded.
    """
    tables = [record.read_hits(folder, f"{paper.name}/{item}", scale) for folder in folders]
    if not (tables := [table for table in tables if len(table)]):
        return {}
    every = pd.concat(tables).drop_duplicates(record.BY, keep="last")
    every = every.merge(used[record.BY], on=record.BY)
    floors: dict[tuple[str, str], float] = {}
    for (row, column, _), lines in every.groupby(["row", "column", "images"]):
        if (seeds := lines["seed"].nunique()) > 1:
            bits = [unpacked(text, images) for text, images in zip(lines["hits"], lines["images"])]
            share = np.mean(bits, axis=0)
            variance = (share * (1 - share)).sum() * seeds / (seeds - 1)
            floors[str(row), str(column)] = float(100 * np.sqrt(variance) / len(share))
    return floors
