"""Pictures of runs: accuracy over rounds, the spread over seeds."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from fedrepro.core.digits import fixed, plain, signed
from fedrepro.plots.frames import by_cell, interval, ordered, require
from fedrepro.plots.looks import INK, LOOKS, PAPER, Look, look
from fedrepro.plots.style import End, Picture, drawn, heading, ink, label_ends, note


@drawn
def rounds(frame: pd.DataFrame, *, title: str = "", scale: str, looks: Mapping[str, Look] = LOOKS) -> Picture:
    """Draw accuracy over rounds: a line for the mean over seeds, a band from the lowest to the highest seed.

    All lines of a panel are of the same seeds: those that all its methods have. The axis counts rounds from 1, as
    the first point is what one round made.

    Args:
        frame: columns method, seed, round (counted from 0, as in records, or from 1), accuracy (percent). With a
            column partition there is a row of panels for each, with a column network a column of panels for each;
            instead of method, partition and network, row ("Step/FedBE") and column (the network) will do.
        title: above the figure.
        scale: smoke, short or paper; below paper the figure says that it is not comparable with the paper.
        looks: the look of each method.

    Raises:
        ValueError: a column is missing, no accuracy is there, or a method has no look.
    """
    wanted = ("method", "seed", "round", "accuracy")
    frame = require(by_cell(frame), wanted, "rounds").dropna(subset=["accuracy"])
    frame = require(frame, wanted, "rounds, without empty accuracies,")
    for column in ("partition", "network"):
        frame[column] = frame[column] if column in frame.columns else ""
    frame["round"] += 1 - min(1, int(frame["round"].min()))
    frame, left = paired(frame)
    methods = ordered(frame["method"], looks)
    rows, columns = ordered(frame["partition"], ("Step", "Dirichlet")), ordered(frame["network"])
    direct = len(methods) <= 5 and len(columns) <= 2
    width = 4.9 if len(columns) == 1 else min(7.2, 3.6 * len(columns))
    figure = Picture(figsize=(width, 0.7 + (2.4 if len(rows) == 1 else 1.9) * len(rows)))
    grid = figure.subplots(len(rows), len(columns), sharex=True, sharey=True, squeeze=False)
    counts = frame.groupby(["partition", "network", "method"])["seed"].nunique()
    number = " to ".join(dict.fromkeys([str(counts.min()), str(counts.max())]))
    means = "one seed" if number == "1" else f"line: mean of {number} seeds; band: lowest to highest seed"
    note(figure, [scale], f"{means}{left}")
    heading(figure, title)
    last = frame["round"].max()
    ends: list[list[End]] = []
    for axes, (row, column) in zip(grid.flat, [(row, column) for row in rows for column in columns]):
        panel = frame[(frame["partition"] == row) & (frame["network"] == column)]
        own = panel["seed"].nunique()
        seeds = f"{own} seed{'s' if own > 1 else ''}" if " to " in number else ""  # where panels differ
        axes.set_title(", ".join(str(part) for part in (row, column, seeds) if part))
        ends.append(_lines(axes, panel, methods, last, looks))
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=9, steps=[1, 2, 5, 10]))
        axes.grid(visible=False, axis="x")
        axes.label_outer()
    for axes in grid[-1]:
        axes.set_xlabel("round")
    for axes in grid[:, 0]:
        axes.set_ylabel("test accuracy (%)")
    if direct:
        label_ends(figure, zip(grid.flat, ends))
    else:
        handles = {h.get_label(): h for axes in grid.flat for h in axes.get_legend_handles_labels()[0]}
        shown = [method for method in methods if method in handles]
        figure.legend([handles[method] for method in shown], shown, loc="outside right upper", handlelength=3)
    return figure


def paired(frame: pd.DataFrame) -> tuple[pd.DataFrame, str]:
    """Keep in each panel the seeds that all its methods have; where there are none, all of them.

    Returns:
        The frame, and what was done, to be told: "" if nothing was left out.
    """
    kept, told = [], []
    for _, panel in frame.groupby(["partition", "network"], sort=False):
        own = [set(lines["seed"]) for _, lines in panel.groupby("method")]
        common = set.intersection(*own)
        if common == set.union(*own):
            kept.append(panel)
        elif common:
            kept.append(panel[panel["seed"].isin(common)])
            told.append("; seeds that only some lines have are left out")
        else:
            kept.append(panel)
            told.append("; lines of different seeds")
    return pd.concat(kept), "".join(dict.fromkeys(told))


def _lines(
    axes: Axes, panel: pd.DataFrame, methods: Sequence[str], last: float, looks: Mapping[str, Look]
) -> list[End]:
    """Draw one panel's lines and bands; return the (method, round, accuracy, colour) of each line's end."""
    ends = []
    for place, method in enumerate(methods):
        colour, marker, line = look(method, looks)
        curve = panel[panel["method"] == method].groupby("round")["accuracy"].agg(["mean", "min", "max"])
        if curve.empty:
            continue
        if len(curve) == 1 and last > curve.index[0]:  # trained once (1-Ensemble): a level, not a curve
            curve.loc[last] = curve.iloc[0]
        every = max(1, len(curve) // 8)
        where = (place * every // len(methods), every) if every > 1 else None
        axes.fill_between(curve.index, curve["min"], curve["max"], color=colour, alpha=0.16, linewidth=0)
        axes.plot(
            curve.index,
            curve["mean"],
            color=colour,
            marker=marker,
            markersize=7 if marker in "*PXph" else 5,
            linestyle=line,
            markevery=where,
            markeredgecolor="white",
            markeredgewidth=0.5,
            label=method,
            zorder=3,
        )
        ends.append((method, float(curve.index[-1]), float(curve["mean"].iloc[-1]), colour))
    return ends


@drawn
def seeds(
    frame: pd.DataFrame,
    paper: Mapping[str, float] | None = None,
    *,
    title: str = "",
    scale: str = "paper",
    label: str = "test accuracy (%)",
    origin: float | None = None,
    base: Mapping[str, str] | None = None,
) -> Picture:
    """Draw the spread over seeds: each seed's accuracy, the mean with its 90 % interval, the paper's value.

    The interval is Student's, see `frames.interval`; there is none from one seed.

    Args:
        frame: columns name, seed, accuracy (percent).
        paper: name -> the paper's value; names without a row are left out.
        title: above the figure.
        scale: smoke, short or paper.
        label: of the axis.
        origin: where an upright line is drawn, such as 0 for differences.
        base: name -> what the row is held against, said with its name.

    Raises:
        ValueError: a column is missing or no accuracy is there.
    """
    wanted = ("name", "seed", "accuracy")
    frame = require(
        require(frame, wanted, "seeds").dropna(subset=["accuracy"]), wanted, "seeds, without empty ones,"
    )
    names = ordered(frame["name"])
    counts = frame.groupby("name")["seed"].nunique()
    number = " to ".join(dict.fromkeys([str(counts.min()), str(counts.max())]))
    figure = Picture(figsize=(6.2, 1.5 + 0.5 * len(names)))
    axes = figure.subplots()
    note(figure, [scale])
    heading(figure, title)
    for place, name in enumerate(names):
        colour, marker, _ = _look(name)
        values = frame.loc[frame["name"] == name, "accuracy"].to_numpy()
        aside = 0.12 * (np.arange(len(values)) * 0.618 % 1 - 0.5)  # the same scatter for the same seeds
        if len(values) > 1:  # one alone is its own mean
            axes.scatter(values, place + aside, s=16, color=colour, alpha=0.55, linewidth=0, zorder=2)
        half = interval(values)
        axes.errorbar(
            values.mean(),
            place + 0.24,
            xerr=0.0 if np.isnan(half) else half,
            fmt=marker,
            color=ink(colour),
            markersize=5.5,
            zorder=3,
        )
        said = _said(values.mean(), half, signed if origin is not None else plain)  # differences have a sign
        axes.text(1.02, place + 0.24, said, transform=axes.get_yaxis_transform(), va="center", color=ink(colour))
        if name in (paper or {}):
            value = (paper or {})[name]
            axes.vlines(value, place - 0.2, place + 0.36, color=INK, linewidth=1.6, zorder=4)
            axes.annotate(
                f"paper {fixed(value, 1)}", (value, place - 0.2), (0, 1.5), textcoords="offset points",
                ha="center", va="bottom", fontsize=7, annotation_clip=False,
            )  # fmt: skip
    if origin is not None:
        axes.axvline(origin, color=PAPER, linewidth=1.2, zorder=1)
    axes.set(xlabel=label, ylim=(len(names) - 0.5, -0.55))
    base = base or {}
    axes.set_yticks(range(len(names)), [f"{name}\nabove {base[name]}" if name in base else name for name in names])
    axes.tick_params(axis="y", length=0, labelsize=8, labelcolor=INK)
    axes.grid(visible=False, axis="y")
    axes.margins(x=0.12)
    # The legend's marks are those of the rows; of several looks the first row's.
    colour, marker, _ = _look(names[0])
    mean: dict[str, Any] = {"marker": marker, "color": ink(colour), "markersize": 5}
    if counts.max() == 1:
        handles = [Line2D([], [], linestyle="none", label="one run", **mean)]
    else:
        seed: dict[str, Any] = {"marker": "o", "color": colour, "alpha": 0.55, "markersize": 4}
        handles = [
            Line2D([], [], linestyle="none", label=f"one seed (of {number})", **seed),
            Line2D([], [], label="mean, 90 % interval", **mean),
        ]
    figure.legend(handles=handles, loc="outside lower right", ncols=2)
    return figure


def _look(name: str) -> Look:
    return LOOKS.get(name, Look(INK, "s", "-"))


def _said(mean: float, half: float, text: Callable[[float], str]) -> str:
    """Return a mean with its interval, as text: "64.0 [59.0, 69.0]"."""
    around = "" if np.isnan(half) else f" [{text(mean - half)}, {text(mean + half)}]"
    return f"{text(mean)}{around}"
