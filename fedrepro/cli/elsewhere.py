"""Recorded runs that other items have as well: a run has one result wherever it stands.

The same run, made on two machines, ends a little differently. Where an item is recorded, other items whose records
hold another result of the same run take over the new one.
"""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from fedrepro import papers
from fedrepro.papers import Cell
from fedrepro.runs import record

DIGITS = 1e-4  # of results in records
Found = tuple[Cell, str, dict[str, Any]]  # cell, its run's key and record


def elsewhere(folder: Path, found: Mapping[str, Iterable[Found]], scale: str) -> Iterator[tuple[str, list[Found]]]:
    """Yield further items with those of their cells of which another result of a run just recorded is known.

    Args:
        folder: of the records.
        found: what was recorded, by item.
        scale: of all of it.

    Raises:
        ValueError: for damaged records of another item.
    """
    runs = {key: made for part in found.values() for _, key, made in part}
    for name in dict.fromkeys(item.partition("/")[0] for item in found):
        paper = papers.load(name)
        for item in paper.items.values():
            known = record.read(folder, item.key, scale)
            known = known[known["key"].isin(list(runs))]
            if item.key in found or known.empty:
                continue
            cells = {(cell.row, cell.column): cell for cell in paper.cells(item.name, scale)}
            lines = zip(known["row"], known["column"], known["key"], known["result"].astype(float))
            stale = [
                (cells[row, column], key, runs[key])
                for row, column, key, result in lines
                if (row, column) in cells and _differs(cells[row, column], key, runs[key], result)
            ]
            if stale:
                yield item.key, stale


def _differs(cell: Cell, key: str, made: dict[str, Any], result: float) -> bool:
    """Say whether a run gives a cell another number than the one that is recorded, to the digits of the record."""
    return abs(float(record.run_row(cell, "", key, made)["result"]) - result) > DIGITS
