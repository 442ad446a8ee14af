"""A picture of the same models read in several ways, such as the rules that combine an ensemble's members."""

from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.lines import Line2D

from fedrepro.core.digits import fixed
from fedrepro.plots.frames import interval, ordered, require
from fedrepro.plots.looks import INK, PALE
from fedrepro.plots.style import Picture, drawn, heading, note, shades


@drawn
def ways(
    frame: pd.DataFrame, paper: Mapping[str, float] | None = None, *, title: str = "", scale: str = "paper"
) -> Picture:
    """Draw what each row's models reach when they are read in several ways, a mark per way.

    Of several seeds the mean is drawn, with its 90 % interval (`frames.interval`).

    Args:
        frame: columns name (a row), way, seed, accuracy (percent).
        paper: name -> the paper's value, an upright line across the row.
        title: above the figure.
        scale: smoke, short or paper.

    Raises:
        ValueError: a column is missing, no accuracy is there, or there are more than ten ways.
    """
    wanted = ("name", "way", "seed", "accuracy")
    frame = require(
        require(frame, wanted, "ways").dropna(subset=["accuracy"]), wanted, "ways, without empty ones,"
    )
    names, kinds = ordered(frame["name"]), ordered(frame["way"])
    looks = shades(kinds)
    figure = Picture(figsize=(7.2, 1.4 + 0.8 * len(names)))
    axes = figure.subplots()
    note(figure, [scale])
    heading(figure, title)
    for place, name in enumerate(names):
        if place % 2:
            axes.axhspan(place - 0.5, place + 0.5, color=PALE, alpha=0.45, linewidth=0, zorder=0)
        own = frame[frame["name"] == name]
        for number, way in enumerate(kinds):
            values = own.loc[own["way"] == way, "accuracy"].to_numpy()
            if not len(values):
                continue
            half = interval(values)
            axes.errorbar(
                values.mean(),
                place + 0.62 * ((number + 0.5) / len(kinds) - 0.5),
                xerr=0.0 if np.isnan(half) else half,
                fmt=looks[way].marker,
                color=looks[way].colour,
                markersize=6,
                zorder=3,
            )
        if name in (paper or {}):
            value = (paper or {})[name]
            axes.vlines(value, place - 0.36, place + 0.42, color=INK, linewidth=1.6, zorder=2)
            axes.text(value, place - 0.37, f"paper {fixed(value, 1)}", ha="center", va="bottom", fontsize=7)
    axes.set(xlabel="test accuracy (%)", ylim=(len(names) - 0.5, -0.55))
    axes.set_yticks(range(len(names)), names)
    axes.tick_params(axis="y", length=0, labelsize=8, labelcolor=INK)
    axes.grid(visible=False, axis="y")
    axes.margins(x=0.08)
    handles = [
        Line2D([], [], linestyle="none", marker=looks[way].marker, color=looks[way].colour, label=way)
        for way in kinds
    ]
    figure.legend(handles=handles, loc="outside right upper", labelspacing=0.7)
    return figure
