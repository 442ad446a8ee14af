"""The one look of every figure: the methods' colours, markers and lines, fonts, labels at line ends, notes."""

import io
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any, NamedTuple

import matplotlib as mpl
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.typing import ColorType

LineStyle = str | tuple[int, tuple[float, ...]]

SIX = [to_hex(colour) for colour in mpl.color_sequences["petroff6"]]  # blue, orange, red, mauve, grey, violet
TEN = [to_hex(colour) for colour in mpl.color_sequences["petroff10"]]
INK, QUIET, PALE, PAPER = "#222222", "#5f6368", "#e7e8ea", "#8a8d93"


class Look(NamedTuple):
    """How one method is drawn, in every figure of the project."""

    colour: str
    marker: str
    line: LineStyle


# The order is the order in legends. The six methods of FedBE's tables have the six colours of petroff6, which
# stay apart under the common colour-vision deficiencies; markers and lines differ as well, so that no figure
# relies on colour alone.
LOOKS: Mapping[str, Look] = MappingProxyType(
    {
        "FedAvg": Look(SIX[0], "o", "-"),
        "FedProx": Look(TEN[5], "<", (0, (6, 2))),
        "FedAvgM": Look(TEN[7], ">", (0, (6, 2, 1, 2))),
        "SCAFFOLD": Look(TEN[8], "p", (0, (1, 1))),
        "1-Ensemble": Look(SIX[5], "v", ":"),
        "v-Distillation": Look(SIX[3], "s", "--"),
        "FedDF": Look(TEN[0], "h", (0, (4, 1, 1, 1))),
        "FedBE w/o SWA": Look(SIX[1], "^", "-."),
        "FedBE": Look(SIX[2], "D", "-"),
        "FedSDD": Look(TEN[6], "P", (0, (8, 1.5))),
        "BKD": Look(TEN[2], "X", (0, (3, 1))),
        "Centralized": Look(SIX[4], "*", (0, (2, 2))),
    }
)


def look(method: str, looks: Mapping[str, Look] = LOOKS) -> Look:
    """Return the look of a method; an unknown name is an error, because two figures would differ."""
    if method not in looks:
        raise ValueError(
            f"method must be one of {', '.join(looks)}, got {method!r} "
            "(for another method pass looks={**LOOKS, name: Look(...)})"
        )
    return looks[method]


@contextmanager
def style() -> Iterator[None]:
    """Set the project's paper style for the block only: despined, light grid, no text below 7 points."""
    own: dict[Any, Any] = {
        "font.family": "sans-serif",
        "font.sans-serif": ["DejaVu Sans"],  # comes with matplotlib: the same bytes on every machine
        "font.size": 8,
        "text.color": INK,
        "axes.titlesize": 9,
        "axes.titleweight": "bold",
        "axes.titlelocation": "left",
        "axes.labelsize": 8,
        "axes.labelcolor": INK,
        "axes.edgecolor": PAPER,
        "axes.linewidth": 0.8,
        "axes.axisbelow": True,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "figure.titlesize": 10,
        "figure.titleweight": "bold",
        "figure.constrained_layout.use": True,
        "figure.constrained_layout.h_pad": 0.07,
        "xtick.labelsize": 7.5,
        "ytick.labelsize": 7.5,
        "xtick.color": QUIET,
        "ytick.color": QUIET,
        "legend.fontsize": 7.5,
        "legend.title_fontsize": 7.5,
        "legend.frameon": False,
        "grid.color": PALE,
        "grid.linewidth": 0.7,
        "lines.linewidth": 1.6,
        "lines.markersize": 5,
        "hatch.linewidth": 0.7,
        "svg.fonttype": "path",
        "svg.hashsalt": "fedrepro",
    }
    with mpl.rc_context({**sns.axes_style("whitegrid"), **sns.plotting_context("paper"), **own}):
        yield


class Picture(Figure):
    """A Figure that a notebook shows by itself, without pyplot and its global list of figures."""

    alt = ""

    def _repr_png_(self) -> tuple[bytes, dict[str, Any]]:
        buffer = io.BytesIO()
        with style():
            self.savefig(buffer, format="png", dpi=160, metadata={"Software": None})
        width, height = (round(100 * float(inches)) for inches in self.get_size_inches())
        shown: dict[str, Any] = {"width": width, "height": height}
        return buffer.getvalue(), shown | ({"alt": self.alt} if self.alt else {})


def require(frame: pd.DataFrame, columns: Sequence[str], what: str) -> pd.DataFrame:
    """Return a copy of the frame; raise a ValueError that names missing columns, or if there is no row."""
    missing = [column for column in columns if column not in frame.columns]
    if missing:
        raise ValueError(
            f"{what} needs the columns {', '.join(columns)}; missing: {', '.join(missing)} "
            f"(got {', '.join(map(str, frame.columns)) or 'none'})"
        )
    if frame.empty:
        raise ValueError(f"{what} needs at least one row, got an empty frame")
    return frame.copy()


def ordered(values: Iterable[Any], first: Iterable[Any] = ()) -> list[Any]:
    """Return the distinct values: those in `first` in that order, then the others as they come."""
    seen = list(dict.fromkeys(values))
    known = list(first)
    return [value for value in known if value in seen] + [value for value in seen if value not in known]


def scale_of(source: str) -> str:
    """Return the scale in a source's brackets, "this run (smoke)" -> "smoke"; "" for the paper's own numbers."""
    if source == "paper":
        return ""
    found = re.search(r"\((smoke|short|paper)\)$", source)
    if not found:
        raise ValueError(
            f"source must be 'paper' or end with its scale, such as 'this run (smoke)', got {source!r}"
        )
    return found.group(1)


def heading(figure: Figure, title: str) -> None:
    """Write the title above the figure, from its left edge."""
    if title:
        figure.suptitle(title, x=0.1 / figure.get_size_inches()[0], ha="left")


def note(figure: Figure, scales: Iterable[str], *lines: str) -> None:
    """Write small lines under the figure; for scales below the paper's, marked so that nobody overlooks them."""
    below = [scale for scale in ordered(scales, ("smoke", "short")) if scale not in ("", "paper")]
    warning = [f"not comparable with the paper: {' and '.join(below)} scale"] if below else []
    text = "\n".join([*warning, *lines])
    if text:
        left = 0.1 / figure.get_size_inches()[0]
        shown = figure.supxlabel(text, x=left, ha="left", fontsize=7.5, linespacing=1.5, color=INK)
        if below:
            shown.set_bbox({"facecolor": "#fff4d6", "edgecolor": "#e0a800", "linewidth": 0.7, "pad": 3})


def contrast(colour: ColorType) -> float:
    """Return the contrast of a colour with white, 1 to 21 (WCAG 2)."""
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(colour)]
    return 1.05 / (0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2] + 0.05)


def ink(colour: ColorType) -> str:
    """Return the colour, darkened until text in it has a contrast of at least 4.5 on white."""
    red, green, blue = to_rgb(colour)
    while contrast((red, green, blue)) < 4.5:
        red, green, blue = 0.95 * red, 0.95 * green, 0.95 * blue
    return to_hex((red, green, blue))


def spread(wanted: Sequence[float], gap: float, low: float = 0.0, high: float = 1.0) -> list[float]:
    """Return positions at least `gap` apart, in the wanted ones' order and as near to them as possible."""
    order = np.argsort(np.asarray(wanted), kind="stable")
    blocks: list[list[float]] = []  # least squares under an order: pool neighbours that would cross
    for rank, index in enumerate(order):
        blocks.append([wanted[index] - rank * gap])
        while len(blocks) > 1 and math.fsum(blocks[-2]) / len(blocks[-2]) > math.fsum(blocks[-1]) / len(
            blocks[-1]
        ):
            blocks[-2].extend(blocks.pop())
    free = [math.fsum(block) / len(block) for block in blocks for _ in block]
    top = max(low, high - (len(free) - 1) * gap)
    placed = [0.0] * len(free)
    for rank, index in enumerate(order):
        placed[index] = min(max(free[rank], low), top) + rank * gap
    return placed


End = tuple[str, float, float, str]  # text, x, y, colour


def label_ends(figure: Figure, panels: Iterable[tuple[Axes, Sequence[End]]], *, size: float = 8) -> None:
    """Write each text to the right of its axes, at its line's end, without overlaps; the data are all drawn."""
    figure.draw_without_rendering()
    for axes, ends in panels:
        axes.set_ylim(*axes.get_ylim())
        low, high = axes.get_ylim()
        heights = [(y - low) / (high - low) for _, _, y, _ in ends]
        rows = max((text.count("\n") + 1 for text, *_ in ends), default=1)
        gap = (1.1 * rows + 0.2) * size * figure.dpi / 72 / axes.get_window_extent().height
        for (text, x, y, colour), height in zip(ends, spread(heights, gap)):
            line = {"arrowstyle": "-", "color": colour, "linewidth": 0.7, "shrinkA": 1, "shrinkB": 4}
            axes.annotate(
                text,
                (x, y),
                (1.035, height),
                textcoords="axes fraction",
                va="center",
                fontsize=size,
                color=ink(colour),
                arrowprops=line,
                annotation_clip=False,
            )
