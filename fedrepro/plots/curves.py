"""Pictures of runs: accuracy over rounds, the spread over seeds."""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator
from scipy import stats

from fedrepro.plots.frames import by_cell, ordered, require
from fedrepro.plots.style import INK, LOOKS, PAPER, End, Look, Picture, drawn, heading, ink, label_ends, look, note


@drawn
def rounds(frame: pd.DataFrame, *, title: str = "", scale: str, looks: Mapping[str, Look] = LOOKS) -> Picture:
    """Draw accuracy over rounds: a line for the mean over seeds, a band from the lowest to the highest seed.

    Args:
        frame: columns method, seed, round, accuracy (percent); with a column partition a row of panels for
            each, with a column network a column of panels for each; instead of method, partition and network,
            row ("Step/FedBE") and column (the network) will do.
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
    methods = ordered(frame["method"], looks)
    rows, columns = ordered(frame["partition"], ("Step", "Dirichlet")), ordered(frame["network"])
    direct = len(methods) <= 5 and len(columns) <= 2
    width = 4.9 if len(columns) == 1 else min(7.2, 3.6 * len(columns))
    figure = Picture(figsize=(width, 0.7 + (2.4 if len(rows) == 1 else 1.9) * len(rows)))
    grid = figure.subplots(len(rows), len(columns), sharex=True, sharey=True, squeeze=False)
    counts = frame.groupby(["partition", "network", "method"])["seed"].nunique()
    number = " to ".join(dict.fromkeys([str(counts.min()), str(counts.max())]))
    means = "one seed" if number == "1" else f"line: mean of {number} seeds; band: lowest to highest seed"
    note(figure, [scale], means)
    heading(figure, title)
    last = frame["round"].max()
    ends: list[list[End]] = []
    for axes, (row, column) in zip(grid.flat, [(row, column) for row in rows for column in columns]):
        panel = frame[(frame["partition"] == row) & (frame["network"] == column)]
        axes.set_title(", ".join(str(part) for part in (row, column) if part))
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
) -> Picture:
    """Draw the spread over seeds: each seed's accuracy, the mean with its 95 % interval, the paper's value.

    The interval is Student's: mean ± t(0.975, n - 1) s / sqrt(n), n seeds, sample standard deviation s; there is
    none from fewer than three.

    Args:
        frame: columns name, seed, accuracy (percent).
        paper: name -> the paper's value; names without a row are left out.
        title: above the figure.
        scale: smoke, short or paper.
        label: of the axis.
        origin: where an upright line is drawn, such as 0 for differences.

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
        colour, marker, _ = LOOKS.get(name, Look(INK, "s", "-"))
        values = frame.loc[frame["name"] == name, "accuracy"].to_numpy()
        aside = 0.12 * (np.arange(len(values)) * 0.618 % 1 - 0.5)  # the same scatter for the same seeds
        axes.scatter(values, place + aside, s=16, color=colour, alpha=0.55, linewidth=0, zorder=2)
        half = 0.0
        if len(values) > 2:  # from two, Student's interval is thirteen times their standard error
            half = float(stats.t.ppf(0.975, len(values) - 1) * values.std(ddof=1) / np.sqrt(len(values)))
        axes.errorbar(
            values.mean(), place + 0.24, xerr=half, fmt=marker, color=ink(colour), markersize=5.5, zorder=3
        )
        sign = "+" if origin is not None else "-"  # differences show that they are more
        said = f"{values.mean():{sign}.1f}".replace("-", "−") + (f" ± {half:.1f}" if half else "")
        axes.text(1.02, place + 0.24, said, transform=axes.get_yaxis_transform(), va="center", color=ink(colour))
        if name in (paper or {}):
            value = (paper or {})[name]
            axes.vlines(value, place - 0.2, place + 0.36, color=INK, linewidth=1.6, zorder=4)
            axes.annotate(
                f"paper {value:.1f}", (value, place - 0.2), (0, 1.5), textcoords="offset points",
                ha="center", va="bottom", fontsize=7, annotation_clip=False,
            )  # fmt: skip
    if origin is not None:
        axes.axvline(origin, color=PAPER, linewidth=1.2, zorder=1)
    axes.set(xlabel=label, ylim=(len(names) - 0.5, -0.55))
    axes.set_yticks(range(len(names)), names)
    axes.tick_params(axis="y", length=0, labelsize=8, labelcolor=INK)
    axes.grid(visible=False, axis="y")
    axes.margins(x=0.12)
    handles = [
        Line2D([], [], linestyle="none", marker="o", color=PAPER, markersize=4, label=f"one seed (of {number})")
    ]
    if counts.max() > 1:
        shown = "mean ± 95 % interval" if counts.max() > 2 else "mean"
        handles.append(Line2D([], [], marker="o", color=INK, markersize=5, label=shown))
    figure.legend(handles=handles, loc="outside lower right", ncols=2)
    return figure
