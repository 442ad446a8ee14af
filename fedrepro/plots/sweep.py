"""Pictures of one value varied: accuracy against a number of samples, of epochs, of layers, a learning rate."""

from collections.abc import Mapping
from typing import Literal

import pandas as pd
from matplotlib.axes import Axes

from fedrepro.plots.frames import ordered, require, scale_of
from fedrepro.plots.style import LOOKS, PAPER, Look, Picture, drawn, heading, ink, note, widen
from fedrepro.plots.tables import FILLS, method_handle, source_handles


def _look(name: str, looks: Mapping[str, Look]) -> Look:
    """Return the look of a line's name; that of a variant, "FedBE, no weight decay", is its method's.

    Raises:
        ValueError: the name starts with no method's name.
    """
    known = [method for method in looks if name == method or name.startswith(f"{method}, ")]
    if not known:
        raise ValueError(f"a line must be named after a method ({', '.join(looks)}), got {name!r}")
    return looks[max(known, key=len)]


@drawn
def sweep(
    points: pd.DataFrame,
    *,
    x: str,
    line: str,
    label: str,
    panel: str = "",
    log: bool = False,
    references: Mapping[str, float] | None = None,
    title: str = "",
    looks: Mapping[str, Look] = LOOKS,
) -> Picture:
    """Draw accuracy against one value, a line per method, the paper's numbers as open grey marks behind.

    Where methods come in two variants ("FedAvg, no decay"), the last-named variant of each is dashed and
    its markers are open. Our lines stand a little beside each other, so that none hides another with its numbers.

    Args:
        points: columns mean, std (percent; std may be empty), runs, source as in `methods`, and those of x, line
            and panel.
        x: column of the varied value, numbers or their text.
        line: column of the lines' names, each a method's name, maybe with ", a variant".
        label: of the x axis.
        panel: column of which each value has a panel; none when empty.
        log: whether the axis is logarithmic.
        references: label -> accuracy in percent, lines across all panels.
        title: above the figure.
        looks: the look of each method.

    Raises:
        ValueError: a column is missing, a source names no scale, a name has no look, or x is not positive where
            the axis is logarithmic.
    """
    wanted = (x, line, *([panel] if panel else []), "mean", "std", "runs", "source")
    points = require(
        require(points, wanted, "sweep").dropna(subset=["mean"]), wanted, "sweep, without empty means,"
    )
    points[x] = points[x].astype(float)
    if log and (points[x] <= 0).any():
        raise ValueError(f"{x} must be positive on a logarithmic axis, got {points[x].min():g}")
    names = ordered(points[line])
    sources = ordered(points["source"], ("paper",))
    panels = ordered(points[panel]) if panel else [""]
    figure = Picture(figsize=(5.4 if len(panels) == 1 else min(7.2, 3.4 * len(panels)), 3.4))
    grid = figure.subplots(1, len(panels), sharey=True, squeeze=False)
    note(figure, [scale_of(source) for source in sources])
    heading(figure, title)
    dashes = _dashed(names, looks)
    values = sorted(points[x].unique())
    for axes, value in zip(grid.flat, panels):
        here = points[points[panel] == value] if panel else points
        for place, name in enumerate(names):
            for source in sources:
                group = here[(here[line] == name) & (here["source"] == source)].sort_values(x)
                if len(group):
                    where = group[x] if source == "paper" else _aside(group[x], place, len(names), values, log)
                    _line(axes, where, group, _look(name, looks), dashes[name], source)
        for text, height in (references or {}).items():
            axes.axhline(height, color=PAPER, linestyle=(0, (4, 2)), linewidth=1.0, zorder=1)
            axes.annotate(
                text, (1, height), (-2, 2), xycoords=axes.get_yaxis_transform(), textcoords="offset points",
                ha="right", fontsize=7, color=ink(PAPER),
            )  # fmt: skip
        axes.set(title=str(value), xlabel=label)
        if log:
            axes.set_xscale("log")
        axes.set_xticks(values, [f"{v:g}" for v in values])
        axes.set_xticks([], minor=True)
        axes.grid(visible=False, axis="x")
        axes.margins(x=0.08)
    widen(grid[0, 0])  # of all panels: they share the axis
    grid[0, 0].set_ylabel("test accuracy (%)")
    handles = []
    for name in names:
        face = {"markerfacecolor": "white"} if dashes[name] == "--" else {}
        handles.append(method_handle(name, _look(name, looks), sources, linestyle=dashes[name], **face))
    handles += source_handles(sources, points, "\n")
    figure.legend(handles=handles, loc="outside right upper", labelspacing=0.7, handlelength=2.6)
    return figure


def _dashed(names: list[str], looks: Mapping[str, Look]) -> dict[str, Literal["-", "--"]]:
    """Return each line's style: of two lines of one method the later one is dashed."""
    seen: list[Look] = []
    styles: dict[str, Literal["-", "--"]] = {}
    for name in names:
        found = _look(name, looks)
        styles[name] = "--" if found in seen else "-"
        seen.append(found)
    return styles


def _aside(x: pd.Series, place: int, count: int, values: list[float], log: bool) -> pd.Series:
    """Move a line's points sideways by up to a hundredth of the axis."""
    share = 0.01 * (2 * place - count + 1) / max(1, count - 1)
    if log:
        return x * (values[-1] / values[0]) ** share
    return x + share * (values[-1] - values[0])


def _line(axes: Axes, x: pd.Series, group: pd.DataFrame, found: Look, style: str, source: str) -> None:
    paper = source == "paper"
    colour = PAPER if paper else found.colour
    axes.errorbar(
        x,
        group["mean"],
        yerr=group["std"].fillna(0.0),
        fmt=found.marker,
        linestyle=style,
        color=colour,
        linewidth=1.0 if paper else 1.4,
        markerfacecolor="none" if paper else "white" if style == "--" else colour,
        markerfacecoloralt="white",
        fillstyle=FILLS[scale_of(source)],
        markersize=8.5 if paper else 5.5,
        markeredgewidth=1.0,
        elinewidth=1.0,
        zorder=2 if paper else 3,
    )
