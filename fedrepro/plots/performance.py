"""Pictures of speed: what was measured, as bars, and over sizes of the work as lines."""

import pandas as pd
from matplotlib.ticker import MaxNLocator, StrMethodFormatter

from fedrepro.plots.frames import ordered, require
from fedrepro.plots.looks import INK, PAPER, SIX
from fedrepro.plots.style import Picture, drawn, heading, note


@drawn
def bars(frame: pd.DataFrame, *, title: str = "", unit: str, remark: str = "") -> Picture:
    """Draw measurements as horizontal bars, the largest first, a panel for each group.

    Args:
        frame: columns label, value; with a column group a panel for each, with columns min and max a line from
            the smallest repeat to the largest, with a column ours (bool) those bars in colour.
        title: above the figure.
        unit: of the values, below the axis.
        remark: a small line under the figure, such as the device.

    Raises:
        ValueError: a column is missing, or no value is there.
    """
    frame = require(frame, ("label", "value"), "bars").dropna(subset=["value"])
    frame = require(frame, ("label", "value"), "bars, without empty values,")
    for column, default in (("group", ""), ("ours", True), ("min", float("nan")), ("max", float("nan"))):
        frame[column] = frame[column] if column in frame.columns else default
    groups = ordered(frame["group"])
    most = int(frame.groupby("group").size().max())
    figure = Picture(figsize=(3.9 if len(groups) == 1 else 7.2, 1.2 + 0.26 * most))
    axes = figure.subplots(1, len(groups), squeeze=False)[0]
    for place, group in zip(axes, groups):
        part = frame[frame["group"] == group].sort_values("value", kind="stable")
        colours = [SIX[0] if own else PAPER for own in part["ours"].astype(bool)]
        place.barh(range(len(part)), part["value"], height=0.68, color=colours)
        top = float(part[["value", "max"]].max().max())
        for row, line in enumerate(part.itertuples()):
            if pd.notna(line.min) and pd.notna(line.max):
                place.plot([line.min, line.max], [row, row], color=INK, linewidth=0.9, solid_capstyle="butt")
            end = max(float(line.value), float(line.max) if pd.notna(line.max) else 0.0)
            place.text(end + 0.015 * top, row, f"{line.value:,.4g}" if line.value < 1000 else f"{line.value:,.0f}",
                       va="center", fontsize=7.5, color=INK)  # fmt: skip
        place.set_yticks(range(len(part)), part["label"])
        place.set_xlim(0, 1.2 * top)
        place.set_xlabel(unit)
        place.xaxis.set_major_locator(MaxNLocator(4))
        place.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
        place.set_title(str(group))
        place.grid(visible=False, axis="y")
    heading(figure, title)
    note(figure, [], *([remark] if remark else []))
    return figure


@drawn
def scaling(frame: pd.DataFrame, *, title: str = "", remark: str = "") -> Picture:
    """Draw measurements over a size of the work, a panel for each kind of size, a line for each engine.

    Args:
        frame: columns panel (such as "clients"), x (the size, > 0, on an axis that doubles), line (such as the
            engine), value and unit (one for each panel); with columns min and max a whisker from the smallest
            repeat to the largest.
        title: above the figure.
        remark: a small line under the figure, such as the device.

    Raises:
        ValueError: a column is missing, no value is there, or a size is not positive.
    """
    wanted = ("panel", "x", "line", "value", "unit")
    frame = require(frame, wanted, "scaling").dropna(subset=["value"])
    frame = require(frame, wanted, "scaling, without empty values,")
    if (frame["x"] <= 0).any():
        raise ValueError(f"sizes must be positive, got {frame['x'].min():g}")
    for column in ("min", "max"):
        frame[column] = frame[column].fillna(frame["value"]) if column in frame.columns else frame["value"]
    panels, lines = ordered(frame["panel"]), ordered(frame["line"])
    columns = len(panels) if len(panels) < 4 else 2
    rows = -(-len(panels) // columns)
    figure = Picture(figsize=(min(7.2, 1.2 + 3.0 * columns), 0.6 + 2.3 * rows))
    grid = figure.subplots(rows, columns, squeeze=False)
    for place in grid.flat[len(panels) :]:
        place.set_axis_off()
    for place, panel in zip(grid.flat, panels):
        here = frame[frame["panel"] == panel]
        for number, line in enumerate(lines):
            part = here[here["line"] == line].sort_values("x")
            if len(part):
                ends = [part["value"] - part["min"], part["max"] - part["value"]]
                place.errorbar(
                    part["x"], part["value"], yerr=ends, color=SIX[number % len(SIX)], marker="os^Dv"[number % 5],
                    markersize=4.5, linewidth=1.4, elinewidth=0.9, label=line,
                )  # fmt: skip
        sizes = sorted(here["x"].unique())
        place.set_xscale("log", base=2)
        place.set_xticks(sizes, [f"{size:g}" for size in sizes])
        place.set_xticks([], minor=True)
        place.set_ylim(0, 1.12 * here["max"].max())
        place.yaxis.set_major_locator(MaxNLocator(4))
        place.yaxis.set_major_formatter(StrMethodFormatter("{x:,g}"))
        place.grid(visible=False, axis="x")
        place.set(title=str(panel), ylabel=str(here["unit"].iloc[0]))
    known = {text: handle for place in grid.flat for handle, text in zip(*place.get_legend_handles_labels())}
    figure.legend(
        handles=[known[line] for line in lines], labels=lines, loc="outside right upper", labelspacing=0.7
    )
    heading(figure, title)
    note(figure, [], *([remark] if remark else []))
    return figure
