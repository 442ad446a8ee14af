"""What the figures read from their data frames: columns, orders, sources."""

import re
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd
from scipy import special


def require(frame: pd.DataFrame, columns: Sequence[str], what: str) -> pd.DataFrame:
    """Return a copy of the frame; raise a ValueError that names missing columns, or if there is no row."""
    missing = [column for column in columns if column not in frame.columns]
    if missing:
        raise ValueError(
            f"{what} needs the columns {', '.join(columns)}; missing: {', '.join(missing)} "
            f"(got {', '.join(map(str, frame.columns)) or 'none'})"
        )
    if frame.empty:
        raise ValueError(f"{what} needs at least one row, got an empty frame")
    return frame.copy()


def ordered(values: Iterable[Any], first: Iterable[Any] = ()) -> list[Any]:
    """Return the distinct values: those in `first` in that order, then the others as they come."""
    seen = list(dict.fromkeys(values))
    known = list(first)
    return [value for value in known if value in seen] + [value for value in seen if value not in known]


def by_cell(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the frame with partition, method and network made from row and column, if it has those."""
    columns = set(frame.columns)
    if {"partition", "method", "network"} <= columns or not {"row", "column"} <= columns:
        return frame
    parts = frame["row"].str.partition("/")
    bare = (parts[1] == "") | (frame["row"] == "FedBE w/o SWA")  # no partition, though a slash
    method = parts[2].mask(parts[0] == "Centralized", "Centralized")  # else the optimiser's name
    return frame.assign(
        partition=parts[0].mask(bare, ""), method=method.mask(bare, frame["row"]), network=frame["column"]
    )


def interval(values: Sequence[float] | np.ndarray, level: float = 0.9) -> float:
    """Return half the width of Student's interval for a mean: t((1 + level) / 2, n - 1) s / sqrt(n).

    Args:
        values: one per seed, n of them; s is their sample standard deviation.
        level: of confidence.

    Returns:
        NaN from fewer than two values, or from equal ones, which tell no spread.
    """
    found = np.asarray(values, dtype=float)
    if len(found) < 2 or np.ptp(found) == 0:
        return float("nan")
    return float(special.stdtrit(len(found) - 1, (1 + level) / 2) * found.std(ddof=1) / np.sqrt(len(found)))


def without_noise(points: pd.DataFrame) -> pd.DataFrame:
    """Return points without those of smoke runs, if something larger of ours is among them."""
    scales = points["source"].map(scale_of)
    larger = scales.isin(["short", "paper"]).any()
    return points[scales != "smoke"] if larger else points


def scale_of(source: str) -> str:
    """Return the scale in a source's brackets, "this run (smoke)" -> "smoke"; "" for the paper's numbers."""
    if source == "paper":
        return ""
    found = re.search(r"\((smoke|short|paper)\)$", source)
    if not found:
        raise ValueError(
            f"source must be 'paper' or end with its scale, such as 'this run (smoke)', got {source!r}"
        )
    return found.group(1)
