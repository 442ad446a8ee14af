"""The one look of every figure: the methods' colours, markers and lines, fonts, labels, notes."""

import io
import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import Any, ParamSpec

import matplotlib as mpl
import numpy as np
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.typing import ColorType
from PIL import Image

from fedrepro.plots.fit import fit
from fedrepro.plots.frames import ordered
from fedrepro.plots.looks import INK, LOOKS, PALE, PAPER, QUIET, Look

P = ParamSpec("P")


def shades(names: Sequence[str]) -> Mapping[str, Look]:
    """Return looks for further names, such as the settings of one method, besides those of the methods.

    Args:
        names: at most ten, in the order of the legend; a method's name keeps the method's look.
    """
    if len(names) > 10:
        raise ValueError(f"shades are for at most 10 names, got {len(names)}")
    colours = [sns.color_palette("colorblind", 10)[place] for place in (2, 4, 5, 9, 6, 1, 8, 3, 0, 7)]
    markers = ("s", "^", "v", "P", "X", "p", "h", "*", "o", "D")  # not FedAvg's blue circle first
    taken = {LOOKS[name].marker for name in names if name in LOOKS}
    free = [marker for marker in markers if marker not in taken]
    further = [name for name in names if name not in LOOKS]
    new = {name: Look(to_hex(c), m, "-") for name, c, m in zip(further, colours, free, strict=False)}
    return new | dict(LOOKS)


@contextmanager
def style() -> Iterator[None]:
    """Set the project's paper style for the block only: despined, light grid, no text below 7 points.

    It begins with matplotlib's own defaults, so that the reader's matplotlibrc (usetex, savefig.bbox, ...) changes
    nothing.
    """
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
        "figure.constrained_layout.w_pad": 0.06,
        "figure.dpi": 160,
        "text.hinting": "no_hinting",  # the same widths at every resolution: the layout is made once
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
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update({**sns.axes_style("whitegrid"), **sns.plotting_context("paper"), **own})
        yield


def settle(figure: Figure) -> None:
    """Work out where everything lies, without drawing it."""
    engine = figure.get_layout_engine()
    if engine is not None:
        engine.execute(figure)


def drawn(function: Callable[P, "Picture"]) -> Callable[P, Figure]:
    """Let a function draw in the project's style, then fix the layout: a second drawing changes nothing."""

    @wraps(function)
    def inside(*args: P.args, **kwargs: P.kwargs) -> Figure:
        with style():
            figure = function(*args, **kwargs)
            with warnings.catch_warnings():  # a title may be too wide for any layout until it is broken
                warnings.filterwarnings("ignore", "constrained_layout not applied")
                settle(figure)
            fit(figure)
            settle(figure)
            settle(figure)  # texts beside the axes move with the axes: the second time nothing is cut off
            figure.set_layout_engine("none")
        return figure

    return inside


class Picture(Figure):
    """A Figure that a notebook shows by itself, without pyplot and its global list of figures."""

    alt = ""

    def _repr_png_(self) -> tuple[bytes, dict[str, Any]]:
        buffer = io.BytesIO()
        with style():
            self.savefig(buffer, format="png", dpi=160, metadata={"Software": None})
        # Nothing is transparent, and a notebook without that channel is a tenth smaller.
        Image.open(buffer).convert("RGB").save(opaque := io.BytesIO(), format="png")
        width, height = (round(100 * float(inches)) for inches in self.get_size_inches())
        shown: dict[str, Any] = {"width": width, "height": height}
        return opaque.getvalue(), shown | ({"alt": self.alt} if self.alt else {})


def heading(figure: Figure, title: str) -> None:
    """Write the title above the figure, from its left edge; it is the alternative text until `save` gives one."""
    if title:
        if isinstance(figure, Picture):
            figure.alt = title
        figure.suptitle(title, x=0.1 / figure.get_size_inches()[0], ha="left")


def note(figure: Figure, scales: Iterable[str], *lines: str) -> None:
    """Write small lines under the figure; below the paper's scale, marked so that nobody overlooks them.

    Scales are those of what is drawn, "" for the paper's own numbers: if there is nothing else, that is said too.
    """
    scales = ordered(scales, ("smoke", "short"))
    for scale in scales:
        if scale not in ("", "smoke", "short", "paper"):
            raise ValueError(f"scale must be smoke, short or paper, got {scale!r}")
    below = [scale for scale in scales if scale not in ("", "paper")]
    warning = [f"not comparable with the paper: {' and '.join(below)} scale"] if below else []
    warning += ["the paper's numbers alone: nothing of ours is recorded yet"] if scales == [""] else []
    text = "\n".join([*warning, *lines])
    if text:
        left = 0.1 / figure.get_size_inches()[0]
        shown = figure.supxlabel(text, x=left, ha="left", fontsize=7.5, linespacing=1.5, color=INK)
        if warning:
            shown.set_bbox({"facecolor": "#fff4d6", "edgecolor": "#e0a800", "linewidth": 0.7, "pad": 3})


def widen(axes: Axes, points: float = 4.0) -> None:
    """Let the y axis span at least so many points, so that equal accuracies do not look apart."""
    low, high = axes.get_ylim()
    if high - low < points:
        axes.set_ylim((low + high - points) / 2, (low + high + points) / 2)


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
    """Write each text to the right of its axes, at its line's end, without overlaps; call it last."""
    settle(figure)
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
