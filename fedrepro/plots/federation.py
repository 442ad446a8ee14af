"""The picture of a federation: how many images of which class each client holds."""

from collections.abc import Sequence

import matplotlib as mpl
import numpy as np
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap, Normalize, PowerNorm

from fedrepro.plots.looks import INK, PAPER, SIX
from fedrepro.plots.style import Picture, contrast, drawn, heading, settle


@drawn
def partition(counts: np.ndarray, class_names: Sequence[str], *, title: str = "", unit: str = "images") -> Picture:
    """Draw the federation: images per client and class, with each client's total on top.

    Up to 10 clients and 10 classes the cells carry their numbers; beyond, a bubble's area is the number of
    images; beyond 34 classes a colour is.

    Args:
        counts: [S, C] images of each client (numbered from 1 in the figure) and class.
        class_names: C names, from the top down.
        title: above the figure.
        unit: what is counted.

    Raises:
        ValueError: counts is not two-dimensional, has a negative entry, or does not fit the class names.
    """
    counts = np.asarray(counts)
    if counts.ndim != 2 or counts.shape[1] != len(class_names) or 0 in counts.shape:
        raise ValueError(f"counts must be [clients, {len(class_names)} classes], got shape {counts.shape}")
    if (counts < 0).any():
        raise ValueError(f"counts must not be negative, got {counts.min()}")
    clients, classes = counts.shape
    numbered = clients <= 10 and classes <= 10
    crowded = classes > 34
    width = float(np.clip(1.7 + (0.5 if numbered else 0.3) * clients, 5.5 if crowded else 3.6, 7.2))
    height = float(np.clip(1.5 + (0.26 if numbered else 0.22) * classes, 2.4, 6.5))
    figure = Picture(figsize=(width, height))
    top, main = figure.subplots(2, 1, sharex=True, height_ratios=(0.4, height - 1.2))
    heading(figure, title)
    totals = counts.sum(axis=1)
    bars = top.bar(np.arange(clients), totals, width=0.72, color=SIX[0], linewidth=0)
    top.set(ylim=(0, 1.05 * max(1, totals.max())), ylabel=unit, yticks=[])
    top.yaxis.label.set(rotation=0, ha="right", va="center")
    if clients <= 12:
        top.bar_label(bars, [f"{total:,}" for total in totals], fontsize=7.5, padding=1)
    else:
        top.set_yticks([0, int(totals.max())], ["0", f"{totals.max():,}"])
    if numbered or crowded:
        _cells(figure, main, counts, numbered=numbered)
    else:
        _bubbles(figure, main, counts)
    every = 1 if clients <= 25 else 5 if clients <= 60 else 10
    shown = [client for client in range(1, clients + 1) if client == 1 or client % every == 0]
    main.set_xticks([client - 1 for client in shown], [str(client) for client in shown])
    step = -(-classes // 34)
    main.set_yticks(range(0, classes, step), list(class_names)[::step])
    main.set(xlim=(-0.5, clients - 0.5), ylim=(classes - 0.5, -0.5), xlabel="client", ylabel="class")
    for axes in (top, main):
        axes.tick_params(length=0)
        sns.despine(ax=axes, left=True, bottom=axes is main)
    top.tick_params(labelbottom=False)
    top.grid(visible=False)
    return figure


def _cells(figure: Picture, axes: Axes, counts: np.ndarray, *, numbered: bool) -> None:
    """Draw a heat map, with a number in each cell or a colour bar; empty cells stay white."""
    clients, classes = counts.shape
    edges = np.arange(clients + 1) - 0.5, np.arange(classes + 1) - 0.5
    # Reversed and pale at the low end, so that the many small cells of a skewed federation stay quiet.
    colours = mpl.colormaps["cividis_r"](np.linspace(0, 1, 256))
    colours += (1 - colours) * np.linspace(0.82, 0, 256)[:, None]
    mesh = axes.pcolormesh(
        *edges,
        np.ma.masked_equal(counts.T, 0),
        cmap=ListedColormap(colours),
        norm=Normalize(0, counts.max()) if numbered else PowerNorm(0.5, 0, counts.max()),
        edgecolor="white",
        linewidth=1.5 if numbered else 0.3,
    )
    axes.grid(visible=False)
    if not numbered:
        bar = figure.colorbar(mesh, ax=axes, label="images", shrink=0.6, aspect=25, pad=0.02)
        bar.outline.set_visible(False)
        return
    for (client, kind), count in np.ndenumerate(counts):
        below = contrast(tuple(mesh.to_rgba(np.array([count]))[0, :3]))
        colour = ("white" if below > 4.5 else INK) if count else PAPER
        axes.text(client, kind, f"{count:,}", ha="center", va="center", fontsize=7, color=colour)


def _bubbles(figure: Picture, axes: Axes, counts: np.ndarray) -> None:
    """Draw the cells of a large federation as bubbles, with three sizes explained beside them."""
    clients, classes = counts.shape
    settle(figure)  # the layout decides how large a cell is
    box = axes.get_window_extent()
    cell = 72 / figure.dpi * min(2 * box.width / clients, box.height / classes, 0.9 * box.height / 8)
    largest = (1.15 * max(cell, 3.5)) ** 2
    client, kind = np.nonzero(counts)
    area = largest * counts[client, kind] / max(1, counts.max())
    axes.scatter(client, kind, s=area, color=SIX[0], alpha=0.75, linewidth=0.4, edgecolor="white", clip_on=False)
    for share in (1.0, 0.25, 0.05):
        label = f"{round(share * counts.max()):,}"
        axes.scatter([], [], s=share * largest, color=SIX[0], alpha=0.75, linewidth=0, label=label)
    axes.legend(title="images", loc="center left", bbox_to_anchor=(1.01, 0.5), labelspacing=1.4, handletextpad=1.0)
