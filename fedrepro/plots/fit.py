"""Titles and notes that fit: broken at words where they are wider than their room."""

import textwrap
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure


def fit(figure: Figure) -> None:
    """Break titles and notes that are wider than their room, at words; the figure grows by their further lines."""
    renderer: Any = figure._get_renderer()  # type: ignore[attr-defined]
    wide: list[tuple[Any, float]] = []
    for text in (figure._suptitle, figure._supxlabel):  # type: ignore[attr-defined]
        if text:
            box = text.get_window_extent(renderer)
            legends = [legend.get_window_extent(renderer) for legend in figure.legends]
            beside = [other.x0 for other in legends if other.y0 < box.y1 and other.y1 > box.y0]
            wide.append((text, min([figure.bbox.width, *beside]) - box.x0 - 0.1 * figure.dpi))
    for axes in figure.axes:
        own = figure.bbox.x1 - axes.bbox.x0 if axes.get_subplotspec() is None else _column(figure, axes)
        wide += [(text, own) for text in (axes.title, axes._left_title) if text.get_text()]  # type: ignore[attr-defined]
    for text, width in wide:
        words = text.get_text()
        if text.get_window_extent(renderer).width <= width:
            continue
        for letters in range(max(map(len, words.split("\n"))), 9, -1):
            text.set_text("\n".join(textwrap.fill(line, letters) for line in words.split("\n")))
            if text.get_window_extent(renderer).width <= width:
                break
        if text in (figure._suptitle, figure._supxlabel):  # type: ignore[attr-defined]
            more = text.get_text().count("\n") - words.count("\n")
            figure.set_figheight(figure.get_figheight() + more * 1.3 * text.get_fontsize() / 72)


def _column(figure: Figure, axes: Axes) -> float:
    """Return how far the title of axes may reach: to the next axes at their right, or to the figure's edge."""
    left, low, high = axes.bbox.x0, axes.bbox.y0, axes.bbox.y1
    beside = [o.bbox.x0 for o in figure.axes if o.bbox.x0 > left + 1 and o.bbox.y0 < high and o.bbox.y1 > low]
    return float(min([figure.bbox.x1, *beside]) - left - 0.1 * figure.dpi)
