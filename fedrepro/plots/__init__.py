"""Figures: plain data in, a matplotlib figure out, without pyplot and its global state.

The only package of the library that imports matplotlib and seaborn (`pip install -e '.[notebooks]'`).
"""

from fedrepro.plots.curves import rounds, seeds
from fedrepro.plots.drawing import round_drawing
from fedrepro.plots.federation import partition
from fedrepro.plots.looks import LOOKS, Look, look
from fedrepro.plots.performance import bars, scaling
from fedrepro.plots.plane import mixtures, plane, varied
from fedrepro.plots.save import save
from fedrepro.plots.style import Picture, shades, style
from fedrepro.plots.sweep import sweep
from fedrepro.plots.tables import alpha_sweep, methods
from fedrepro.plots.toy import confidence, simplex
from fedrepro.plots.ways import ways

__all__ = [
    "LOOKS",
    "Look",
    "Picture",
    "alpha_sweep",
    "bars",
    "confidence",
    "look",
    "methods",
    "mixtures",
    "partition",
    "plane",
    "round_drawing",
    "rounds",
    "save",
    "scaling",
    "seeds",
    "shades",
    "simplex",
    "style",
    "sweep",
    "varied",
    "ways",
]
