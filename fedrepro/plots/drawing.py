"""The drawing of a method's round, made from its stages: what each of them is, and what it hands on."""

import textwrap
from dataclasses import fields, is_dataclass
from itertools import pairwise
from typing import Any

from matplotlib.axes import Axes
from matplotlib.patches import FancyBboxPatch

from fedrepro.core.setting import Setting
from fedrepro.methods import catalogue
from fedrepro.methods.compose import Method, shown
from fedrepro.plots.looks import INK, PALE, PAPER, QUIET, SIX
from fedrepro.plots.style import Picture, drawn, heading

HANDS = {  # what a stage hands on; S clients, K global models, M teachers, N public images, C classes
    "plan": "who takes part [S]",
    "train": "clients' models [S]",
    "weigh": "shares [K, S]",
    "server": "averages [K]",
    "teach": "teachers [M]",
    "combine": "targets [N, C]",
    "distill": "next global models [K]",
}
OFF = ("Nobody", "Keep", "Replace")  # values that stand for "nothing is done here"
ACROSS, LETTERS, LINE = 4, 22, 0.125  # boxes in a row; letters and inches of a line in them
WIDE, GAP = 1.55, 0.3  # of a box and between two, inches


def described(stage: object) -> tuple[str, list[str]]:
    """Return a stage's name, and its options as lines; of a union the names of its sources."""
    if sources := getattr(stage, "sources", None):
        parts = [described(source) for source in sources]
        return " + ".join(name for name, _ in parts), [line for _, lines in parts for line in lines]
    if not is_dataclass(stage):
        return type(stage).__name__, []
    options = [(f.name, getattr(stage, f.name), f.default) for f in fields(stage)]
    lines = [f"{name} = {shown(value)}" for name, value, default in options if value != default]
    return type(stage).__name__, [part for line in lines for part in textwrap.wrap(line, LETTERS)]


@drawn
def round_drawing(of: Setting | Method, *, title: str = "") -> Picture:
    """Draw a round: a box for each stage, in the order in which they are played, with its value in this method.

    A box with a dashed edge does nothing in this method.

    Args:
        of: a setting, whose method is built, or a method.
        title: above the figure.
    """
    method = catalogue.build(of) if isinstance(of, Setting) else of
    boxes = []
    for stage, value in method.stages:
        name, lines = described(value)
        boxes.append((stage, textwrap.wrap(name, LETTERS), lines, name in OFF))
    idle = {stage for stage, _, _, off in boxes if off}
    rows = [boxes[:ACROSS], boxes[ACROSS:]]
    heights = [max((len(n) + len(o) for _, n, o, _ in row), default=0) * LINE + 0.6 for row in rows if row]
    width = ACROSS * WIDE + (ACROSS - 1) * GAP + 0.2
    height = sum(heights) + 0.4 * len(heights) + 0.1
    figure = Picture(figsize=(width, height + (0.3 if title else 0.0)))
    heading(figure, title)
    axes = figure.subplots()
    axes.set(xlim=(0, width), ylim=(-height, 0.02), aspect="equal")
    axes.axis("off")
    ends: dict[str, tuple[float, float, float]] = {}  # left, middle height, bottom of each box
    for place, (stage, names, lines, off) in enumerate(boxes):
        row, column = divmod(place, ACROSS)
        left = 0.1 + (column if row % 2 == 0 else ACROSS - 1 - column) * (WIDE + GAP)  # there and back again
        top = -0.05 - sum(heights[:row]) - 0.4 * row
        off = off or (stage == "combine" and "teach" in idle)
        _box(axes, left, top, heights[row], stage, names, lines, off=off)
        ends[stage] = left, top - heights[row] / 2, top - heights[row]
    places = list(ends.values())
    for place, (here, there) in enumerate(pairwise(places), start=1):
        if place % ACROSS == 0:
            _arrow(axes, (here[0] + WIDE / 2, here[2]), (here[0] + WIDE / 2, here[2] - 0.4))
        else:
            forth = there[0] > here[0]
            start = here[0] + (WIDE if forth else 0)
            _arrow(axes, (start, here[1]), (there[0] + (0 if forth else WIDE), here[1]))
    if len(boxes) > ACROSS:
        first, last = places[0], places[-1]
        _arrow(axes, (last[0], last[1]), (first[0] + WIDE / 2, first[2]), bent=True)
        axes.text(
            first[0] + WIDE / 2, last[1] - 0.06, "next round", ha="center", va="top", fontsize=7, color=QUIET
        )
    return figure


def _box(
    axes: Axes,
    left: float,
    top: float,
    height: float,
    stage: str,
    names: list[str],
    lines: list[str],
    *,
    off: bool,
) -> None:
    """Draw one stage: its place in the round, its value, the value's options, and what it hands on."""
    style = "round,pad=0,rounding_size=0.06"
    edge: dict[str, Any] = {"edgecolor": PAPER, "linestyle": (0, (3, 2))} if off else {"edgecolor": SIX[0]}
    face = "white" if off else PALE
    axes.add_patch(
        FancyBboxPatch((left, top - height), WIDE, height, boxstyle=style, facecolor=face, linewidth=1.1, **edge)
    )
    ink = QUIET if off else INK
    axes.text(left + 0.07, top - 0.06, stage, va="top", fontsize=7, color=QUIET)
    axes.text(left + 0.07, top - 0.19, "\n".join(names), va="top", fontsize=8, fontweight="bold", color=ink)
    below = top - 0.22 - LINE * 1.08 * len(names)
    axes.text(left + 0.07, below, "\n".join(lines), va="top", fontsize=7, color=ink, linespacing=1.25)
    axes.text(left + 0.07, top - height + 0.06, HANDS.get(stage, ""), va="bottom", fontsize=7, color=QUIET)


def _arrow(axes: Axes, start: tuple[float, float], end: tuple[float, float], *, bent: bool = False) -> None:
    bend = "angle,angleA=180,angleB=90,rad=4" if bent else "arc3"
    arrow: dict[str, Any] = {"arrowstyle": "-|>", "color": INK, "linewidth": 1.0, "shrinkA": 1, "shrinkB": 1}
    arrow["connectionstyle"] = bend
    axes.annotate("", end, start, arrowprops=arrow)
