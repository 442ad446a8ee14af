"""Panels of short runs: what a method gains over FedAvg on the same seeds, never under the paper's axis.

Short runs see other data for fewer rounds, so their accuracies say nothing beside the paper's; what one method has
above another on the same seeds does say something.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedrepro.plots.frames import interval, scale_of, without_noise
from fedrepro.plots.keys import Key
from fedrepro.plots.looks import INK, PAPER, Look

BASE = "FedAvg"


def split(points: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return what is drawn under the paper's axis, and the short runs; no smoke where there is more of ours."""
    points = without_noise(points)
    short = points["source"].map(scale_of) == "short"
    return points[~short], points[short]


def gains(short: pd.DataFrame, keys: Sequence[str], name: str) -> pd.DataFrame:
    """Return by how many points each line lies above FedAvg on the seeds that both have.

    Args:
        short: points with `by_seed` (seed -> accuracy).
        keys: columns in which a line and its baseline must agree, such as the network.
        name: column of the lines' names; "FedBE, no decay" is held against "FedAvg, no decay".

    Returns:
        The points of the lines that have a baseline, with `gains` (one per seed), `mean` of them and `half`, half
        the 90 % interval; no line at all if a line has no baseline, or no seed in common with it.
    """
    if "by_seed" not in short:
        return short.iloc[:0]
    known = {(*line[list(keys)], line[name]): line["by_seed"] for _, line in short.iterrows()}
    rows = []
    for _, line in short.iterrows():
        own, comma, variant = str(line[name]).partition(", ")
        if own == BASE:
            continue
        base = known.get((*line[list(keys)], f"{BASE}{comma}{variant}"), known.get((*line[list(keys)], BASE), {}))
        common = sorted(set(line["by_seed"]) & set(base), key=str)
        if not common:
            return short.iloc[:0]
        found = np.array([line["by_seed"][seed] - base[seed] for seed in common])
        rows.append({**line, "gains": found, "mean": found.mean(), "half": interval(found)})
    return pd.DataFrame(rows) if rows else short.iloc[:0]


def coloured(full: pd.DataFrame, short: pd.DataFrame, found: pd.DataFrame, name: str) -> set[str]:
    """Return the lines of which something of ours is drawn: of short runs their gains, if they have any."""
    return set(full.loc[full["source"] != "paper", name]) | set((found if len(found) else short)[name])


def placed(figure: Figure, kinds: Sequence[bool]) -> list[Axes]:
    """Return axes for panels, up to two in a row; panels of a kind share their vertical axis."""
    columns = min(2, len(kinds))
    grid = figure.add_gridspec(-(-len(kinds) // columns), columns)
    found: list[Axes] = []
    for place, kind in enumerate(kinds):
        same = found[kinds.index(kind)] if kind in kinds[:place] else None
        found.append(figure.add_subplot(grid[place // columns, place % columns], sharey=same))
    return found


def titled(panel: object, *, apart: bool) -> str:
    """Return a panel's title; that of short runs stands apart from the others'."""
    return ", ".join(str(part) for part in (panel, "short scale" if apart else "") if part)


def gain_points(axes: Axes, x: Any, found: pd.DataFrame, appearance: Look, **options: Any) -> None:
    """Draw gains: a dot per seed, the mean with its interval where there are two seeds or more."""
    for place, values in zip(x, found["gains"]):
        axes.scatter(np.full(len(values), place), values, s=9, color=appearance.colour, alpha=0.55, linewidth=0)
    axes.errorbar(
        x, found["mean"], yerr=found["half"].fillna(0.0), color=appearance.colour, markersize=5.5, capsize=0,
        elinewidth=1.0, markeredgewidth=0.8, zorder=3, markerfacecoloralt="white",
        **({"fmt": appearance.marker, "fillstyle": "left"} | options),
    )  # fmt: skip


def gain_axis(axes: Axes) -> None:
    """Say what the axis of gains is, and draw the baseline; `widen` it when all its panels are drawn."""
    axes.axhline(0.0, color=PAPER, linewidth=1.2, zorder=1)
    axes.set_ylabel(f"points above {BASE}")
    axes.grid(visible=False, axis="x")


def gain_handle(source: str, found: pd.DataFrame) -> Key:
    """Return the legend's handle for gains: it promises an interval only where one is drawn."""
    counts = found["gains"].map(len)
    number = " to ".join(dict.fromkeys([str(counts.min()), str(counts.max())]))
    seeds = "1 seed" if number == "1" else f"same {number} seeds"
    what = "mean, 90 % interval" if found["half"].notna().any() else "above FedAvg"
    handle = Key([], [], linestyle="none", label=f"{source}\n{what},\n{seeds}", color=INK)
    handle.set(markersize=5.5, fillstyle="left")
    handle.set_markerfacecoloralt("white")
    return handle


def spreads(points: pd.DataFrame) -> pd.DataFrame:
    """Return points with the standard deviation of their seeds where it is not given but they are."""
    if "by_seed" not in points:
        return points
    own = [np.std(list(seeds.values()), ddof=1) if isinstance(seeds, Mapping) and len(seeds) > 1 else np.nan
           for seeds in points["by_seed"]]  # fmt: skip
    return points.assign(std=points["std"].astype(float).fillna(pd.Series(own, index=points.index)))
