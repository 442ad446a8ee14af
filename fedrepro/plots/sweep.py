"""Pictures of one value varied: accuracy against a number of samples, of epochs, of layers, a learning rate."""

from collections.abc import Mapping
from typing import Literal

import pandas as pd
from matplotlib.axes import Axes

from fedrepro.plots.frames import ordered, require, scale_of
from fedrepro.plots.looks import LOOKS, PAPER, Look
from fedrepro.plots.short import coloured, gain_axis, gain_points, gains, placed, split, spreads, titled
from fedrepro.plots.style import End, Picture, drawn, heading, label_ends, note, widen
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
    above: bool = True,
    title: str = "",
    looks: Mapping[str, Look] = LOOKS,
) -> Picture:
    """Draw accuracy against one value, a line per method, the paper's numbers as open grey marks behind.

    Short runs have panels of their own: what each line gains over FedAvg on the same seeds, where that is known.

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
        above: whether short runs show what lines gain over FedAvg; else their accuracies, for a picture whose
            claim is about how FedAvg itself moves.
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
    full, short = split(spreads(points))
    points = pd.concat([full, short])
    names, sources = ordered(points[line]), ordered(points["source"], ("paper",))
    found = gains(short, [x, *([panel] if panel else [])], line) if above else short.iloc[:0]
    parts = [part for part in (full, short) if len(part)]
    panels = [(value, part) for part in parts for value in (ordered(part[panel]) if panel else [""])]
    figure = Picture(figsize=(5.4 if len(panels) == 1 else 7.2, 3.4 if len(panels) < 3 else 5.8))
    note(figure, [scale_of(source) for source in sources])
    heading(figure, title)
    dashes = _dashed(names, looks)
    ends: list[tuple[Axes, list[End]]] = []
    for axes, (value, part) in zip(placed(figure, [part is full for _, part in panels]), panels):
        gained = part is short and len(found) > 0
        drawn_part = found if gained else part
        here = drawn_part[drawn_part[panel] == value] if panel else drawn_part
        values = sorted(here[x].unique())
        for place, name in enumerate(names):
            for source in sources:
                group = here[(here[line] == name) & (here["source"] == source)].sort_values(x)
                if not len(group):
                    continue
                at = group[x] if source == "paper" else _aside(group[x], place, len(names), values, log)
                if gained:
                    options = {"fillstyle": "full", "markerfacecolor": "white"} if dashes[name] == "--" else {}
                    gain_points(
                        axes, at, group, _look(name, looks), linestyle=dashes[name], linewidth=1.4, **options
                    )
                else:
                    _line(axes, at, group, _look(name, looks), dashes[name], source)
        axes.set(title=titled(value, apart=part is short and len(full) > 0), xlabel=label)
        if log:
            axes.set_xscale("log")
        axes.set_xticks(values, [f"{v:g}" for v in values])
        axes.set_xticks([], minor=True)
        axes.grid(visible=False, axis="x")
        axes.margins(x=0.08)
        of_short = part is short  # a reference stands beside what was made at its scale
        beside = {text: y for text, y in (references or {}).items() if text.endswith("(short)") == of_short}
        beside = {} if gained else beside
        for height in beside.values():
            axes.axhline(height, color=PAPER, linestyle=(0, (4, 2)), linewidth=1.0, zorder=1)
        ends.append((axes, [(_short(text), axes.get_xlim()[1], height, PAPER) for text, height in beside.items()]))
        if gained:
            gain_axis(axes)
        else:
            axes.set_ylabel("test accuracy (%)")
    for axes, _ in ends:
        widen(axes)
    handles, ours = [], coloured(full, short, found, line)
    for name in (name for name in names if name in ours | set(full[line])):
        face = {"markerfacecolor": "white"} if dashes[name] == "--" else {}
        handles.append(method_handle(name, _look(name, looks), ours, linestyle=dashes[name], **face))
    handles += source_handles(sources, points, "\n", found)
    below = bool(references)  # their names stand at the right
    how = {"labelspacing": 0.7, "handlelength": 2.6, "ncols": 3 if below else 1}
    figure.legend(handles=handles, loc="outside lower right" if below else "outside right upper", **how)
    label_ends(figure, ends, size=7)
    return figure


def _short(text: str) -> str:
    """Return a reference's name, broken where its source begins."""
    return text.replace(": ", ":\n").replace(", ", ",\n")


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
        fillstyle="full" if style == "--" else FILLS[scale_of(source)],  # that of a variant is open
        markersize=8.5 if paper else 5.5,
        markeredgewidth=1.0,
        elinewidth=1.0,
        zorder=2 if paper else 3,
    )
