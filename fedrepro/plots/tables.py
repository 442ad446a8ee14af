"""Pictures of tables: methods by network, the concentration of the Dirichlet posterior."""

from collections.abc import Mapping
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from fedrepro.plots.frames import by_cell, ordered, require, scale_of
from fedrepro.plots.style import (
    INK,
    LOOKS,
    PALE,
    PAPER,
    End,
    Look,
    Picture,
    drawn,
    heading,
    label_ends,
    look,
    note,
    widen,
)

NETWORKS = ("ConvNet", "ResNet-20", "ResNet-32", "ResNet-44", "ResNet-56")
FILLS = {"": "full", "paper": "full", "short": "left", "smoke": "bottom"}  # of a source, by its scale


def central_line(source: str) -> dict[str, Any]:
    """Return how centralised training is drawn: dashed grey for the paper's, a solid line for ours."""
    if source == "paper":
        return {"color": PAPER, "linestyle": (0, (2, 2)), "linewidth": 1.4}
    return {"color": LOOKS["Centralized"].colour, "linestyle": "-", "linewidth": 1.8}


def described(cells: pd.DataFrame, source: str, join: str) -> str:
    """Return what a source's points show: "paper: mean ± std of 5 runs", "this run (smoke): 1 run"."""
    runs = cells.loc[cells["source"] == source, "runs"].dropna().astype(int)
    if runs.empty:
        return f"{source}{join}runs not stated"
    count = " to ".join(dict.fromkeys([str(runs.min()), str(runs.max())]))
    return f"{source}{join}" + ("1 run" if count == "1" else f"mean ± std of {count} runs")


def points(axes: Axes, x: Any, cells: pd.DataFrame, appearance: Look, source: str) -> None:
    """Draw means with error bars: an open grey marker behind for the paper, one in colour in front for ours.

    Ours is filled at paper scale, and half filled at the smaller scales.
    """
    colour, marker, _ = appearance
    paper = source == "paper"
    axes.errorbar(
        x,
        cells["mean"],
        yerr=cells["std"].fillna(0.0),
        fmt=marker,
        color=PAPER if paper else colour,
        markerfacecolor="none" if paper else colour,
        markerfacecoloralt="white",
        fillstyle=FILLS[scale_of(source)],
        markersize=8.5 if paper else 5.5,
        markeredgewidth=1.0 if paper else 0.8,
        elinewidth=1.0,
        capsize=0,
        zorder=2 if paper else 3,
        label=source,
    )


def method_handle(name: str, found: Look, sources: list[str], **options: Any) -> Line2D:
    """Return the legend's handle for a method: in its colour, or grey and open where only the paper's is drawn."""
    options = {"color": found.colour} | options
    if sources == ["paper"]:
        options |= {"color": PAPER, "markerfacecolor": "none"}
    return Line2D([], [], marker=found.marker, label=name, **options)


def source_handles(sources: list[str], cells: pd.DataFrame, join: str) -> list[Line2D]:
    """Return the legend's handles for the sources, drawn as `points` draws them."""
    handles = []
    for source in sources:
        paper = source == "paper"
        handle = Line2D([], [], linestyle="none", marker="o", label=described(cells, source, join))
        handle.set(color=PAPER if paper else INK, markerfacecolor="none" if paper else INK)
        handle.set(markersize=8.5 if paper else 5.5, fillstyle=FILLS[scale_of(source)])
        handle.set_markerfacecoloralt("white")
        handles.append(handle)
    return handles


@drawn
def methods(cells: pd.DataFrame, *, title: str = "", looks: Mapping[str, Look] = LOOKS) -> Picture:
    """Draw a table of methods: a panel per partition, networks side by side, the paper's values behind ours.

    Args:
        cells: columns partition, method, network, mean, std (both percent; std may be empty), runs, source.
            The source is "paper" or ends with its scale: "recorded (short)", "this run (smoke)". Instead of
            the first three columns, row ("Step/FedBE") and column (the network) will do. The partition
            "Centralized" is drawn as a line in every panel: dashed for the paper's, solid for ours.
        title: above the figure.
        looks: the look of each method.

    Raises:
        ValueError: a column is missing, a source names no scale, or a method has no look.
    """
    wanted = ("partition", "method", "network", "mean", "std", "runs", "source")
    cells = require(by_cell(cells), wanted, "methods").dropna(subset=["mean"])
    scales = [scale_of(source) for source in ordered(cells["source"])]
    alone = cells["partition"] == "Centralized"
    central, cells = cells[alone], require(cells[~alone], wanted, "methods, beside the centralised rows,")
    names = ordered(cells["method"], looks)
    slots = {name: (place + 0.5) / len(names) - 0.5 for place, name in enumerate(names)}
    networks, sources = ordered(cells["network"], NETWORKS), ordered(cells["source"], ("paper",))
    panels = ordered(cells["partition"], ("Step", "Dirichlet"))
    across = len(networks) * len(names) <= 12
    shape = (1, len(panels)) if across else (len(panels), 1)
    figure = Picture(figsize=(7.2, 0.9 + 2.1 * shape[0]))
    grid = figure.subplots(*shape, sharex=True, sharey=True, squeeze=False)
    note(figure, scales)
    heading(figure, title)
    for axes, panel in zip(grid.flat, panels):
        for index in range(1, len(networks), 2):
            axes.axvspan(index - 0.5, index + 0.5, color=PALE, alpha=0.45, linewidth=0, zorder=0)
        here = cells[cells["partition"] == panel]
        for (name, source), group in here.groupby(["method", "source"], sort=False):
            x = [networks.index(network) + 0.84 * slots[name] for network in group["network"]]
            points(axes, x, group, look(name, looks), source)
        for network, mean, source in zip(central["network"], central["mean"], central["source"]):
            if network in networks:
                place = networks.index(network)
                axes.hlines(mean, place - 0.44, place + 0.44, **central_line(source))
        axes.set(title=panel, ylabel="test accuracy (%)", xlim=(-0.5, len(networks) - 0.5))
        axes.set_xticks(range(len(networks)), networks)
        axes.tick_params(axis="x", length=0, labelsize=8, labelcolor=INK)
        axes.grid(visible=False, axis="x")
        axes.label_outer()
    widen(grid[0, 0])  # of all panels: they share the axis
    handles = []
    for name in names:
        handles.append(method_handle(name, look(name, looks), sources, linestyle="none"))
    for source in ordered(central["source"], ("paper",)):
        handles.append(Line2D([], [], label=f"Centralized,\n{source}", **central_line(source)))
    handles += source_handles(sources, cells, "\n")
    figure.legend(handles=handles, loc="outside right upper", labelspacing=0.7)
    return figure


@drawn
def alpha_sweep(
    cells: pd.DataFrame, *, references: Mapping[str, Mapping[str, float]] | None = None, title: str = ""
) -> Picture:
    """Draw accuracy against the Dirichlet posterior's concentration (FedBE, Table 8), a panel per network.

    Args:
        cells: columns dirichlet_alpha, network, mean, std, runs, source, as in `methods`; instead of the
            first two, row ("alpha=0.5") and column (the network) will do.
        references: label -> {network: accuracy in percent}, dashed lines; a label that starts with a method's
            name, such as "FedAvg (paper)", has that method's colour.
        title: above the figure.

    Raises:
        ValueError: a column is missing, a source names no scale, or an alpha is not positive.
    """
    if "row" in cells.columns and "dirichlet_alpha" not in cells.columns:
        cells = require(cells, ("row", "column"), "alpha_sweep")
        cells["dirichlet_alpha"] = cells["row"].str.removeprefix("alpha=").astype(float)
        cells["network"] = cells["column"]
    wanted = ("dirichlet_alpha", "network", "mean", "std", "runs", "source")
    cells = require(cells, wanted, "alpha_sweep").dropna(subset=["mean"])
    if (cells["dirichlet_alpha"] <= 0).any():
        raise ValueError(f"dirichlet_alpha must be positive, got {cells['dirichlet_alpha'].min()}")
    networks, sources = ordered(cells["network"], NETWORKS), ordered(cells["source"], ("paper",))
    alphas = sorted(cells["dirichlet_alpha"].unique())
    scales = [scale_of(source) for source in sources]
    figure = Picture(figsize=(5.8 if len(networks) == 1 else 7.2, 3.4))
    grid = figure.subplots(1, len(networks), sharey=True, squeeze=False)
    note(figure, scales)
    heading(figure, title)
    labelled: list[tuple[Axes, list[End]]] = []
    for axes, network in zip(grid.flat, networks):
        for source in sources:
            group = cells[(cells["network"] == network) & (cells["source"] == source)]
            group = group.sort_values("dirichlet_alpha")
            paper = source == "paper"
            line = {"color": PAPER if paper else LOOKS["FedBE"].colour, "linewidth": 1.0 if paper else 1.4}
            axes.plot(group["dirichlet_alpha"], group["mean"], alpha=0.6, linestyle="--" if paper else "-", **line)
            points(axes, group["dirichlet_alpha"], group, LOOKS["FedBE"], source)
        axes.set(xscale="log", title=network, xlabel="concentration of the Dirichlet posterior")
        axes.set_xticks(alphas, [f"{alpha:g}" for alpha in alphas])
        axes.set_xticks([], minor=True)
        axes.grid(visible=False, axis="x")
        axes.margins(x=0.12)
        ends: list[End] = []
        for label, values in (references or {}).items():
            if network in values:
                name = max((name for name in LOOKS if label.startswith(name)), key=len, default="")
                colour = LOOKS[name].colour if name else INK
                axes.axhline(values[network], color=colour, linestyle=(0, (4, 2)), linewidth=1.0, zorder=1)
                ends.append((label.replace(" (", "\n("), axes.get_xlim()[1], values[network], colour))
        labelled.append((axes, ends))
    grid[0, 0].set_ylabel("test accuracy (%)")
    figure.legend(handles=source_handles(sources, cells, ": "), loc="outside lower right")
    label_ends(figure, labelled, size=7.5)
    return figure
