"""Pictures of tables: methods by network, the concentration of the Dirichlet posterior."""

from collections.abc import Iterable, Mapping
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from fedrepro.plots.frames import by_cell, ordered, require, scale_of
from fedrepro.plots.keys import Key
from fedrepro.plots.looks import INK, LOOKS, PALE, PAPER, Look, look
from fedrepro.plots.short import (
    coloured,
    gain_axis,
    gain_handle,
    gain_points,
    gains,
    placed,
    split,
    spreads,
    titled,
)
from fedrepro.plots.style import End, Picture, drawn, heading, label_ends, note, widen

NETWORKS = ("ConvNet", "ResNet-20", "ResNet-32", "ResNet-44", "ResNet-56")
FILLS = {"": "full", "paper": "full", "short": "left", "smoke": "bottom"}  # of a source, by its scale


def central_line(source: str) -> dict[str, Any]:
    """Return how centralised training is drawn: dashed grey for the paper's, a solid black line for ours."""
    if source == "paper":
        return {"color": PAPER, "linestyle": (0, (2, 2)), "linewidth": 1.4}
    return {"color": INK, "linestyle": "-", "linewidth": 1.4}


def described(cells: pd.DataFrame, source: str, join: str) -> str:
    """Return what a source's points show: "paper: mean ± std of 5 runs", "this run (smoke): 1 run".

    A spread is promised only where one is drawn.
    """
    own = cells[cells["source"] == source]
    runs, known = own["runs"].dropna().astype(int), own["std"].notna()
    if runs.empty:
        return f"{source}{join}runs not stated"
    count = " to ".join(dict.fromkeys([str(runs.min()), str(runs.max())]))
    if count == "1":
        return f"{source}{join}1 run"
    several = known[own["runs"].gt(1)]
    spread = "" if not several.any() else " ± std" if several.all() else " (± std where known)"
    return f"{source}{join}mean{spread} of {count} runs"


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


def method_handle(name: str, found: Look, ours: Iterable[str], **options: Any) -> Line2D:
    """Return the legend's handle for a method: in its colour if it is one of ours, else grey and open."""
    options = {"color": found.colour} | options
    if name not in set(ours):
        options |= {"color": PAPER, "markerfacecolor": "none"}
    return Line2D([], [], marker=found.marker, label=name, **options)


def source_handles(
    sources: list[str], cells: pd.DataFrame, join: str, found: pd.DataFrame | None = None
) -> list[Line2D]:
    """Return the legend's handles for the sources, drawn as `points` and `gain_points` draw them."""
    handles: list[Line2D] = []
    for source in sources:
        if found is not None and len(found) and scale_of(source) == "short":
            handles.append(gain_handle(source, found))
            continue
        paper = source == "paper"
        handle = Key([], [], linestyle="none", label=described(cells, source, join))
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
    cells = spreads(require(by_cell(cells), wanted, "methods").dropna(subset=["mean"]))
    alone = cells["partition"] == "Centralized"
    central, cells = cells[alone], require(cells[~alone], wanted, "methods, beside the centralised rows,")
    full, short = split(cells)
    cells = pd.concat([full, short])
    central = central[central["source"].map(scale_of) != "short"] if len(full) else central
    names, sources = ordered(cells["method"], looks), ordered(cells["source"], ("paper",))
    panels = ordered(full["partition"], ("Step", "Dirichlet"))
    below = ordered(short["partition"], ("Step", "Dirichlet"))
    across = len(ordered(cells["network"])) * len(names) <= 12
    rows = (bool(panels) + bool(below)) if across else len(panels) + len(below)
    columns = max(len(panels), len(below)) if across else 1
    figure = Picture(figsize=(7.2, 0.9 + 2.1 * rows))
    note(figure, [scale_of(source) for source in ordered([*cells["source"], *central["source"]])])
    heading(figure, title)
    places = [(0, place) if across else (place, 0) for place in range(len(panels))]
    lower = [(int(bool(panels)), n) if across else (len(panels) + n, 0) for n in range(len(below))]
    grid = figure.add_gridspec(rows, columns)
    first: Axes | None = None
    second: Axes | None = None
    for panel, (row, column) in zip(panels, places):
        first = axes = figure.add_subplot(grid[row, column], sharex=first, sharey=first)
        networks = _networks(axes, full, names)
        for (name, source), group in full[full["partition"] == panel].groupby(["method", "source"], sort=False):
            points(axes, _beside(group, name, names, networks), group, look(name, looks), source)
        for network, mean, source in zip(central["network"], central["mean"], central["source"]):
            if network in networks:
                place = networks.index(network)
                start = -0.44 if source == "paper" else 0.0  # ours hides no more than half of the paper's
                axes.hlines(mean, place + start, place + 0.44, **central_line(source))
        axes.set(title=panel, ylabel="test accuracy (%)" if column == 0 else "")
        axes.tick_params(labelleft=column == 0, labelbottom=across or row == len(panels) - 1)
    if first is not None:
        widen(first)  # of all panels: they share the axis
    found = gains(short, ("partition", "network"), "method")
    for panel, (row, column) in zip(below, lower):
        second = axes = figure.add_subplot(grid[row, column], sharey=second)
        networks = _networks(axes, short, names)
        source = short["source"].iloc[0]
        shown = found if len(found) else short
        for name, group in shown[shown["partition"] == panel].groupby("method", sort=False):
            x = _beside(group, str(name), names, networks)
            if len(found):
                gain_points(axes, x, group, look(str(name), looks))
            else:
                points(axes, x, group, look(str(name), looks), source)
        if len(found):
            gain_axis(axes)
        else:
            axes.set_ylabel("test accuracy (%)")
        axes.set_title(titled(panel, apart=len(full) > 0))
    if second is not None:
        widen(second)
    ours = coloured(full, short, found, "method")
    seen = ours | set(full["method"])  # a baseline of which only gains are drawn is the line at 0
    handles = [method_handle(name, look(name, looks), ours, linestyle="none") for name in names if name in seen]
    for source in ordered(central["source"], ("paper",)):
        handles.append(Line2D([], [], label=f"Centralized,\n{source}", **central_line(source)))
    handles += source_handles(sources, cells, "\n", found)
    figure.legend(handles=handles, loc="outside right upper", labelspacing=0.7)
    return figure


def _networks(axes: Axes, cells: pd.DataFrame, names: list[str]) -> list[str]:
    """Give each network a place on the axis, every second on a band; return them in their order."""
    networks = ordered(cells["network"], NETWORKS)
    for index in range(1, len(networks), 2):
        axes.axvspan(index - 0.5, index + 0.5, color=PALE, alpha=0.45, linewidth=0, zorder=0)
    axes.set(xlim=(-0.5, len(networks) - 0.5))
    axes.set_xticks(range(len(networks)), networks)
    axes.tick_params(axis="x", length=0, labelsize=8, labelcolor=INK)
    axes.grid(visible=False, axis="x")
    return networks


def _beside(group: pd.DataFrame, name: str, names: list[str], networks: list[str]) -> list[float]:
    """Return where a method's points stand: beside those of the others, in the order of the legend."""
    slot = 0.84 * ((names.index(name) + 0.5) / len(names) - 0.5)
    return [networks.index(network) + slot for network in group["network"]]


@drawn
def alpha_sweep(
    cells: pd.DataFrame, *, references: Mapping[str, Mapping[str, float]] | None = None, title: str = ""
) -> Picture:
    """Draw accuracy against the Dirichlet posterior's concentration (FedBE, Table 8), a panel per network.

    Args:
        cells: columns dirichlet_alpha, network, mean, std, runs, source, as in `methods`; instead of the
            first two, row ("alpha=0.5") and column (the network) will do.
        references: label -> {network: accuracy in percent}, dashed lines; a label that starts with a method's
            name, such as "FedAvg (paper)", has that method's colour; one that ends with "(short)" stands beside
            the short runs.
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
    full, short = split(spreads(cells))
    cells = pd.concat([full, short])
    sources = ordered(cells["source"], ("paper",))
    panels = [(network, part) for part in (full, short) for network in ordered(part["network"], NETWORKS)]
    figure = Picture(figsize=(5.8 if len(panels) == 1 else 7.2, 3.4 if len(panels) < 3 else 5.8))
    note(figure, [scale_of(source) for source in sources])
    heading(figure, title)
    labelled: list[tuple[Axes, list[End]]] = []
    for axes, (network, part) in zip(placed(figure, [part is full for _, part in panels]), panels):
        alphas = sorted(part["dirichlet_alpha"].unique())
        for source in ordered(part["source"], ("paper",)):
            group = part[(part["network"] == network) & (part["source"] == source)]
            group = group.sort_values("dirichlet_alpha")
            paper = source == "paper"
            line: dict[str, Any] = {"color": PAPER if paper else LOOKS["FedBE"].colour}
            line["linewidth"] = 1.0 if paper else 1.4
            axes.plot(group["dirichlet_alpha"], group["mean"], alpha=0.6, linestyle="--" if paper else "-", **line)
            points(axes, group["dirichlet_alpha"], group, LOOKS["FedBE"], source)
        label = titled(network, apart=part is short and len(full) > 0)
        axes.set(xscale="log", title=label, xlabel="concentration of the Dirichlet posterior")
        axes.set_xticks(alphas, [f"{alpha:g}" for alpha in alphas])
        axes.set_xticks([], minor=True)
        axes.grid(visible=False, axis="x")
        axes.margins(x=0.12)
        axes.set_ylabel("test accuracy (%)")
        ends: list[End] = []
        for text, values in (references or {}).items():
            if network in values and text.endswith("(short)") == (part is short):
                name = max((name for name in LOOKS if text.startswith(name)), key=len, default="")
                colour = LOOKS[name].colour if name else INK
                axes.axhline(values[network], color=colour, linestyle=(0, (4, 2)), linewidth=1.0, zorder=1)
                ends.append((text.replace(" (", "\n("), axes.get_xlim()[1], values[network], colour))
        labelled.append((axes, ends))
    for axes, _ in labelled:
        widen(axes)
    figure.legend(handles=source_handles(sources, cells, ": "), loc="outside lower right")
    label_ends(figure, labelled, size=7.5)
    return figure
