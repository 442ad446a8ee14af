"""The looks of the methods: colour, marker and line of each, the same in every figure of the project."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

LineStyle = str | tuple[int, tuple[float, ...]]

# M. A. Petroff's sequences of six and ten colours. Newer matplotlib knows them by name; here any does.
SIX = ("#5790fc", "#f89c20", "#e42536", "#964a8b", "#9c9ca1", "#7a21dd")  # blue, orange, red, mauve, grey, violet
TEN = (
    *("#3f90da", "#ffa90e", "#bd1f01", "#94a4a2", "#832db6"),
    *("#a96b59", "#e76300", "#b9ac70", "#717581", "#92dadd"),
)
INK, QUIET, PALE, PAPER = "#222222", "#5f6368", "#e7e8ea", "#8a8d93"


class Look(NamedTuple):
    """How one method is drawn, in every figure of the project."""

    colour: str
    marker: str
    line: LineStyle


# The order is the order in legends. The six methods of FedBE's tables have the six colours of `SIX`, which
# stay apart under the common colour-vision deficiencies; markers and lines differ as well, so that no figure
# relies on colour alone.
LOOKS: Mapping[str, Look] = MappingProxyType(
    {
        "FedAvg": Look(SIX[0], "o", "-"),
        "FedProx": Look(TEN[5], "<", (0, (6, 2))),
        "FedAvgM": Look(TEN[7], ">", (0, (6, 2, 1, 2))),
        "SCAFFOLD": Look("#5b8c2a", "p", (0, (1, 1))),
        "1-Ensemble": Look(SIX[5], "v", ":"),
        "v-Distillation": Look(SIX[3], "s", "--"),
        "FedDF": Look(TEN[0], "h", (0, (4, 1, 1, 1))),
        "FedBE w/o SWA": Look(SIX[1], "^", "-."),
        "FedBE": Look(SIX[2], "D", "-"),
        "FedBE + FedProx": Look("#0b7a75", "d", (0, (6, 2))),
        "FedBE + FedAvgM": Look(TEN[4], "H", (0, (6, 2, 1, 2))),
        "FedBE + SCAFFOLD": Look(TEN[1], "+", (0, (1, 1))),
        "Ground-truth labels": Look(INK, "8", (0, (3, 1, 1, 1))),
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
