"""Pictures of the two-dimensional toy for readers who change it: what models predict, and what a change does."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.colors import ListedColormap, to_rgb

from fedrepro.core.digits import fixed
from fedrepro.plots.frames import ordered, require
from fedrepro.plots.looks import INK, PAPER, SIX
from fedrepro.plots.style import Picture, drawn, heading
from fedrepro.plots.toy import CLASSES, MARKERS

KINDS = {  # of models in `mixtures`: name, colour, marker, size
    "grid": ("convex combinations", PAPER, ".", 9),
    "sample": ("samples of the posterior", SIX[1], "D", 26),
    "client": ("clients", SIX[0], "s", 40),
    "FedAvg": ("FedAvg", "white", "o", 60),
}


@drawn
def plane(
    regions: Mapping[str, np.ndarray],
    points: Mapping[str, tuple[np.ndarray, np.ndarray]],
    *,
    edge: float,
    title: str = "",
) -> Picture:
    """Draw what models predict all over the plane, a panel each, with points on top.

    Args:
        regions: name -> predicted class [side, side] on the square from -edge to edge, bottom row first.
        points: name -> features [N, 2] and labels [N] of the points in that panel; panels may go without.
        edge: half the side of the square.
        title: above the figure.

    Raises:
        ValueError: there is no panel, or a panel of points is not one of regions.
    """
    if not regions:
        raise ValueError("plane needs at least one panel, got none")
    if unknown := set(points) - set(regions):
        raise ValueError(f"points for panels that are not there: {', '.join(sorted(unknown))}")
    classes = 1 + max(
        [int(found.max()) for found in regions.values()]
        + [int(labels.max()) for _, labels in points.values() if len(labels)]
    )
    colours = [CLASSES[kind % len(CLASSES)] for kind in range(classes)]
    pale = ListedColormap([tuple(0.35 * part + 0.65 for part in to_rgb(colour)) for colour in colours])
    columns = min(3, len(regions))
    rows = -(-len(regions) // columns)
    figure = Picture(figsize=(0.5 + 2.1 * max(columns, 2), 0.7 + 2.2 * rows))
    grid = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    heading(figure, title)
    for axes in grid.flat[len(regions) :]:
        axes.set_axis_off()
    handles = {}
    for axes, (name, found) in zip(grid.flat, regions.items()):
        axes.imshow(
            found, origin="lower", extent=(-edge, edge, -edge, edge), cmap=pale, vmin=-0.5, vmax=classes - 0.5,
            interpolation="nearest",
        )  # fmt: skip
        features, labels = points.get(name, (np.zeros((0, 2)), np.zeros(0, dtype=int)))
        for kind in range(classes):
            handles[f"class {kind + 1}"] = axes.scatter(
                *features[labels == kind].T, s=9, marker=MARKERS[kind % len(MARKERS)], color=colours[kind],
                linewidth=0.2, edgecolor="white", rasterized=True,
            )  # fmt: skip
        axes.set_title(name, fontsize=8, fontweight="normal", loc="center", pad=3)
        axes.set(xticks=[], yticks=[], aspect="equal")
        axes.grid(visible=False)
    figure.legend(
        list(handles.values()), list(handles), loc="outside lower center", ncols=min(classes, 6), markerscale=1.6
    )
    return figure


@drawn
def mixtures(frame: pd.DataFrame, *, title: str = "") -> Picture:
    """Draw the accuracy of mixtures of the clients over their distance from FedAvg, for any number of clients.

    Args:
        frame: columns kind (a name of `KINDS`), distance (half the sum of |gamma_i - p_i|), accuracy (percent).
        title: above the figure.

    Raises:
        ValueError: a column is missing, or a kind is unknown.
    """
    frame = require(frame, ("kind", "distance", "accuracy"), "mixtures")
    if unknown := set(frame["kind"]) - set(KINDS):
        raise ValueError(f"kind must be one of {', '.join(KINDS)}, got {', '.join(sorted(map(str, unknown)))}")
    figure = Picture(figsize=(6.2, 3.2))
    axes = figure.subplots()
    heading(figure, title)
    for kind, (name, colour, marker, size) in KINDS.items():
        part = frame[frame["kind"] == kind]
        line: dict[str, Any] = {} if kind == "grid" else {"edgecolor": INK, "linewidth": 0.8}
        axes.scatter(
            part["distance"], part["accuracy"], s=size, color=colour, marker=marker, label=name,
            zorder=2 + list(KINDS).index(kind), clip_on=False, **line,
        )  # fmt: skip
    distance, accuracy = frame[["distance", "accuracy"]].to_numpy()[int(frame["accuracy"].argmax())]
    label = f"best, {fixed(accuracy, 1)} %"
    axes.scatter(
        distance, accuracy, s=110, marker="*", color=SIX[2], edgecolor=INK, linewidth=0.8,
        label=label, zorder=9, clip_on=False,
    )  # fmt: skip
    axes.set(xlabel="distance from FedAvg's weights", ylabel="test accuracy (%)")
    axes.set_xlim(left=-0.02)
    figure.legend(loc="outside right upper", labelspacing=0.7)
    return figure


@drawn
def varied(frame: pd.DataFrame, labels: Mapping[str, str], *, title: str = "") -> Picture:
    """Draw accuracy over the values of a setting: the mean over seeds, and a band from the lowest to the highest.

    Values stand at equal distances, in their order.

    Args:
        frame: columns varied (the setting), value, seed, name (a line each), accuracy (percent).
        labels: setting -> text below its panel; the panels' order.
        title: above the figure.

    Raises:
        ValueError: a column is missing, or a setting has no label.
    """
    frame = require(frame, ("varied", "value", "seed", "name", "accuracy"), "varied")
    if unknown := set(frame["varied"]) - set(labels):
        raise ValueError(f"no label for {', '.join(sorted(unknown))}")
    panels, names = ordered(frame["varied"], tuple(labels)), ordered(frame["name"])
    figure = Picture(figsize=(5.6 if len(panels) == 1 else 7.2, 2.9))
    grid = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    heading(figure, title)
    for axes, panel in zip(grid, panels):
        here = frame[frame["varied"] == panel]
        values = sorted(here["value"].unique())
        for number, name in enumerate(names):
            found = here[here["name"] == name].groupby("value")["accuracy"].agg(["mean", "min", "max"])
            place = [values.index(value) for value in found.index]
            colour = SIX[number % len(SIX)]
            axes.fill_between(place, found["min"], found["max"], color=colour, alpha=0.14, linewidth=0)
            axes.plot(place, found["mean"], color=colour, marker="oDs^vP"[number % 6], label=name, linewidth=1.4)
        axes.set_xticks(range(len(values)), [f"{value:g}" for value in values])
        axes.set_xlabel(labels[panel])
        axes.grid(visible=False, axis="x")
    grid[0].set_ylabel("test accuracy (%)")
    handles, texts = grid[0].get_legend_handles_labels()
    figure.legend(handles, texts, loc="outside right upper", labelspacing=0.7)
    return figure
