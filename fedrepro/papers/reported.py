"""What a paper prints: its cells, those of several sources joined, and in which steps it prints."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pandas as pd

from fedrepro.papers.claims import Key

# Of a paper's number; where several sources print it, the earlier word stands.
STATUSES = ("contradiction", "suspicious", "ok", "repaired", "inferred", "lost")


def printed(table: pd.DataFrame) -> dict[Key, dict[str, Any]]:
    """Return every cell (item, row, column) that a paper prints, in the order of `reported.csv`.

    Args:
        table: the lines of `reported.csv`.

    Returns:
        Of each cell row, column, metric, source, mean, std, runs, status, note and step: the one in which its item
        prints such numbers. Sources that print different numbers make the status "contradiction"; the first one's
        are kept.
    """
    lines: dict[Key, list[dict[Any, Any]]] = {}
    means: dict[tuple[str, str], list[float]] = {}
    for line in table.to_dict("records"):
        item = line.pop("item")
        lines.setdefault((item, line["row"], line["column"]), []).append(line)
        means.setdefault((item, line["metric"]), []).append(line["mean"])
    steps = {group: 10.0 ** -decimals(numbers) for group, numbers in means.items()}
    own = {
        place: 10.0 ** -decimals(found["mean"])
        for place, found in table.groupby(["item", "metric", "source"], dropna=False)
    }
    cells = {cell: _joined(cell[0], found, own) for cell, found in lines.items()}
    return {cell: line | {"step": steps[cell[0], line["metric"]]} for cell, line in cells.items()}


def _joined(item: str, lines: Sequence[Mapping[Any, Any]], steps: Mapping[Any, float]) -> dict[str, Any]:
    known = {name: [line[name] for line in lines if pd.notna(line[name])] for name in lines[0]}
    notes = known["note"]
    joined = {name: values[0] if values else math.nan for name, values in known.items()}
    joined["status"] = min(known["status"], key=STATUSES.index)
    each = [steps[item, line["metric"], line["source"]] for line in lines]
    if not all(agree([line[name] for line in lines], each) for name in ("mean", "std")):
        joined["status"] = "contradiction"
        notes.append("; ".join(f"{line['source']} prints {line['mean']} ± {line['std']}" for line in lines))
    return joined | {"source": "; ".join(dict.fromkeys(known["source"])), "note": "; ".join(notes)}


def agree(numbers: Sequence[float], steps: Sequence[float]) -> bool:
    """Return whether numbers may be one number, printed in steps of its own each, such as 74.54 and 74.5."""
    known = [number for number in numbers if not math.isnan(number)]
    coarse = max(steps, default=0.0) / 2 if len(set(steps)) > 1 else 0.0
    return not known or max(known) - min(known) <= coarse + 1e-9


def decimals(numbers: Iterable[float]) -> int:
    """Return how many decimals a paper prints: as many as the most exact of its numbers needs, at most three."""
    known = (number for number in numbers if not math.isnan(number))
    return max((len(f"{number:.3f}".rstrip("0").split(".")[1]) for number in known), default=0)
