"""Legend keys that say how something is drawn whatever its shape is."""

from typing import Any

from matplotlib.artist import Artist
from matplotlib.legend import Legend
from matplotlib.legend_handler import HandlerLine2D
from matplotlib.lines import Line2D

SHAPES = ("^", "s", "D")


class Key(Line2D):
    """A legend's handle for a source, such as the paper: its colour and filling, on several shapes.

    A single shape would be read as that of one method.
    """


class _Handler(HandlerLine2D):
    def create_artists(self, legend: Legend, orig_handle: Artist, *place: Any) -> list[Artist]:
        """Return small marks side by side, filled as the handle's."""
        assert isinstance(orig_handle, Key)
        xdescent, ydescent, width, height, _, transform = place
        marks: list[Artist] = []
        for number, shape in enumerate(SHAPES):
            at = width * number / (len(SHAPES) - 1) - xdescent
            mark = Line2D([at], [height / 2 - ydescent])
            mark.update_from(orig_handle)
            mark.set(marker=shape, markersize=min(4.5, orig_handle.get_markersize()), linestyle="none")
            mark.set_transform(transform)
            marks.append(mark)
        return marks


Legend.update_default_handler_map({Key: _Handler()})
