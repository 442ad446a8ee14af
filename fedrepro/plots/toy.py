"""Pictures of FedBE's two-dimensional toy: models between the clients (Figure 1), confidence (Figure 8)."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure
from matplotlib.patches import Polygon
from matplotlib.tri import Triangulation

from fedrepro.core.digits import fixed
from fedrepro.plots.frames import ordered, require
from fedrepro.plots.looks import INK, QUIET, SIX
from fedrepro.plots.style import Picture, drawn, heading, note

CORNERS = np.array([[0.0, 0.0], [1.0, 0.0], [0.5, np.sqrt(0.75)]])
MARKERS = "o^sDvP"
CLASSES = ("#264653", "#2a9d8f", "#b8b42d", *SIX[3:])  # apart from the colours of methods


@drawn
def simplex(
    points: np.ndarray,
    accuracy: np.ndarray,
    *,
    corners: Sequence[str] = ("client 1", "client 2", "client 3"),
    best: int,
    average: int,
    data: tuple[np.ndarray, np.ndarray, np.ndarray] | None = None,
    title: str = "",
    scale: str = "paper",
    remark: str = "",
) -> Picture:
    """Draw FedBE's Figure 1: each client's data, and the test accuracy of models between the clients.

    A model is w = gamma_1 w_1 + gamma_2 w_2 + gamma_3 w_3, drawn at that mixture of the triangle's corners.

    Args:
        points: gamma [O, 3], each row non-negative with sum 1.
        accuracy: [O] test accuracy of each mixture, percent.
        corners: the three clients' names: lower left, lower right, top.
        best: row of the best sample (star).
        average: row of FedAvg's average (circle).
        data: features [N, 2], labels [N] and client [N] (0, 1, 2) of the training data, drawn at the left.
        title: above the figure.
        scale: smoke, short or paper.
        remark: a small line under the figure, such as on how many seeds it looks like this.

    Raises:
        ValueError: shapes do not fit, a row is not a mixture, or best/average is not a row.
    """
    points, accuracy = np.asarray(points, dtype=float), np.asarray(accuracy, dtype=float)
    if points.ndim != 2 or points.shape[1] != 3 or len(points) < 3 or accuracy.shape != points.shape[:1]:
        raise ValueError(f"points must be [O >= 3, 3] and accuracy [O], got {points.shape} and {accuracy.shape}")
    if (points < -1e-6).any() or (np.abs(points.sum(axis=1) - 1) > 1e-4).any():
        raise ValueError(f"each row of points must be non-negative with sum 1, got {points[:3].tolist()} ...")
    if np.linalg.matrix_rank(points - points[0], tol=1e-6) < 2:
        raise ValueError("points must not lie on one line: the triangle between them is drawn")
    for what, index in (("best", best), ("average", average)):
        if not 0 <= index < len(points):
            raise ValueError(f"{what} must be a row of points, 0 to {len(points) - 1}, got {index}")
    if len(corners) != 3:
        raise ValueError(f"corners must name three clients, got {len(corners)}")
    figure = Picture(figsize=(7.2 if data is not None else 4.0, 3.7))
    note(figure, [scale], *([remark] if remark else []))
    heading(figure, title)
    if data is None:
        _triangle(figure, points, accuracy, corners, best, average)
        return figure
    left, right = np.ravel(figure.subfigures(1, 2, width_ratios=(1.0, 1.15), wspace=0.03, squeeze=False))
    _clients(left.subplots(2, 2, sharex=True, sharey=True), *data, corners)
    _triangle(right, points, accuracy, corners, best, average)
    return figure


def _clients(
    grid: np.ndarray, features: np.ndarray, labels: np.ndarray, client: np.ndarray, names: Sequence[str]
) -> None:
    """Draw the three clients' data and all of it together, a colour and a marker per class."""
    classes = sorted(np.unique(labels).tolist())
    for place, axes in enumerate(grid.flat):
        for kind, label in enumerate(classes):
            rows = (labels == label) & ((client == place) | (place == 3))
            axes.scatter(
                *features[rows].T, s=9 if place < 3 else 5, marker=MARKERS[kind % 6], color=CLASSES[kind % 6],
                alpha=0.8, linewidth=0.2, edgecolor="white", label=f"class {label + 1}", rasterized=True,
            )  # fmt: skip
        axes.set_title(
            names[place] if place < 3 else "all together",
            fontsize=8,
            fontweight="normal",
            loc="center",
            pad=3,
        )
        axes.set(xticks=[], yticks=[], aspect="equal")
        axes.spines[:].set_visible(True)
        axes.spines[:].set_color("#cfd2d6")
    handles, texts = grid.flat[3].get_legend_handles_labels()
    grid.flat[0].get_figure().legend(
        handles, texts, loc="outside lower center", ncols=3, markerscale=2, handletextpad=0.2
    )


def _triangle(
    figure: Figure | SubFigure,
    points: np.ndarray,
    accuracy: np.ndarray,
    corners: Sequence[str],
    best: int,
    average: int,
) -> None:
    """Draw the heat map over the 2-simplex with FedAvg, the best sample and the clients marked."""
    axes = figure.subplots()
    place = points @ CORNERS
    distinct = np.unique(place.round(9), axis=0, return_index=True)[1]
    triangles = Triangulation(*place[distinct].T)
    colours = axes.tripcolor(triangles, accuracy[distinct], shading="gouraud", cmap="viridis", rasterized=True)
    axes.add_patch(Polygon(CORNERS, closed=True, fill=False, edgecolor=INK, linewidth=1.0, joinstyle="round"))
    if len(points) <= 2000:
        axes.plot(
            *place.T,
            linestyle="none",
            marker=".",
            markersize=1.6,
            rasterized=True,
            color="white",
            alpha=0.55,
            markeredgewidth=0,
        )
    for corner, (name, (x, y)) in enumerate(zip(corners, CORNERS)):
        alone = np.flatnonzero(points[:, corner] > 1 - 1e-6)
        text = f"{name}\n{fixed(accuracy[alone[0]], 1)} %" if len(alone) else name
        axes.annotate(
            text,
            (x, y),
            (0, 5 if y else -5),
            textcoords="offset points",
            ha="center",
            va="bottom" if y else "top",
        )
    edge: dict[str, Any] = {
        "markeredgecolor": "black",
        "markeredgewidth": 1.0,
        "linestyle": "none",
        "clip_on": False,
        "zorder": 5,
    }
    axes.plot(
        *place[average],
        "o",
        markersize=8,
        markerfacecolor="white",
        label=f"FedAvg {fixed(accuracy[average], 1)} %",
        **edge,
    )
    axes.plot(
        *place[best],
        "*",
        markersize=13,
        markerfacecolor=SIX[2],
        label=f"best point {fixed(accuracy[best], 1)} %",
        **edge,
    )
    axes.set(aspect="equal", xlim=(-0.08, 1.08), ylim=(-0.02, 0.9))
    axes.axis("off")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.13), ncols=2, handletextpad=0.3)
    bar = figure.colorbar(colours, cax=axes.inset_axes((1.06, 0.08, 0.045, 0.8)))
    bar.set_label("test accuracy (%)")
    bar.outline.set_visible(False)


@drawn
def confidence(histograms: pd.DataFrame, *, title: str = "", scale: str = "paper") -> Picture:
    """Draw FedBE's Figure 8: correct and incorrect test examples over the confidence of the prediction.

    Args:
        histograms: columns group ("Clients", "Samples": the columns of panels), low, high (edges of the bin
            of the largest probability), correct, incorrect (numbers of test examples, or their means over models);
            with a column member the bars are means over a group's members, with a column data there is a row of
            panels for each.
        title: above the figure.
        scale: smoke, short or paper.

    Raises:
        ValueError: a column is missing, or a bin's edges are not 0 <= low < high <= 1.
    """
    frame = require(histograms, ("group", "low", "high", "correct", "incorrect"), "confidence")
    if not ((frame["low"] >= 0) & (frame["low"] < frame["high"]) & (frame["high"] <= 1 + 1e-9)).all():
        raise ValueError("bins must have 0 <= low < high <= 1")
    for column, value in (("member", 0), ("data", "")):
        frame[column] = frame[column] if column in frame.columns else value
    rows, columns = ordered(frame["data"]), ordered(frame["group"], ("Clients", "Samples"))
    figure = Picture(figsize=(min(7.2, 0.8 + 3.2 * len(columns)), 0.9 + 2.1 * len(rows)))
    grid = figure.subplots(len(rows), len(columns), sharex="row", sharey="row", squeeze=False)
    sure = _common_edge(frame)
    apart = [] if np.isfinite(sure) else ["confident mistakes are not told: the bins share no edge from 0.8 on"]
    note(figure, [scale], *apart)
    heading(figure, title)
    counted = frame[["correct", "incorrect"]].to_numpy(dtype=float)
    means = frame["member"].nunique() > 1 or not np.allclose(counted, counted.round(), atol=1e-3)
    for axes, (row, column) in zip(grid.flat, [(row, column) for row in rows for column in columns]):
        panel = frame[(frame["data"] == row) & (frame["group"] == column)]
        if not panel.empty:
            _bars(axes, panel, ": ".join(str(part) for part in (row, column) if part), sure)
        axes.label_outer(remove_inner_ticks=False)
        axes.tick_params(labelbottom=True)  # rows have axes of their own
    for axes in grid[-1]:
        axes.set_xlabel("confidence (largest probability)")
    for axes in grid[:, 0]:
        axes.set_ylabel("test examples\n(mean over models)" if means else "test examples")
    handles, texts = grid[0, 0].get_legend_handles_labels()
    figure.legend(handles, texts, loc="outside lower right", ncols=2)
    return figure


def _common_edge(frame: pd.DataFrame, least: float = 0.8) -> float:
    """Return the lowest edge from 0.8 on at which bins of all panels begin; NaN if there is none."""
    panels = [set(part["low"].round(4)) for _, part in frame.groupby(["data", "group"])]
    return min((edge for edge in set.intersection(*panels) if edge >= least - 1e-4), default=float("nan"))


def _bars(axes: Axes, panel: pd.DataFrame, title: str, edge: float) -> None:
    """Draw one panel: two bars per bin, the mean over members, and how many mistakes lie from an edge on."""
    members = panel["member"].nunique()
    mean = panel.groupby(["low", "high"])[["correct", "incorrect"]].sum().div(members).reset_index()
    width = mean["high"] - mean["low"]
    middle = mean["low"] + width / 2
    for side, column, colour, hatch in ((-1, "correct", SIX[0], ""), (1, "incorrect", SIX[1], "////")):
        axes.bar(
            middle + side * 0.22 * width, mean[column], width=0.42 * width, color=colour, hatch=hatch,
            edgecolor="white", linewidth=0.4, label=column,
        )  # fmt: skip
    total, wrong = mean[["correct", "incorrect"]].to_numpy().sum(), mean["incorrect"].sum()
    sure = mean.loc[mean["low"] >= edge - 1e-4, "incorrect"].sum()
    said = f"{100 * (1 - wrong / total):.1f} % correct" if total else "no examples"
    if np.isfinite(edge):
        said += f"\n{sure:.0f} of {wrong:.0f} mistakes at confidence ≥ {edge:.2g}"
    axes.set_title(f"{title} (mean of {members} models)" if members > 1 else title, pad=27)
    axes.annotate(
        said, (0, 1), (0, 4), xycoords="axes fraction", textcoords="offset points", va="bottom", fontsize=7.5,
        color=QUIET, linespacing=1.3,
    )  # fmt: skip
    axes.grid(visible=False, axis="x")
    axes.set_xlim(mean["low"].min(), mean["high"].max())
