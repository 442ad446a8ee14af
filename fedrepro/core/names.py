"""Choosing by name, and what to say to a name that nobody knows."""

import difflib
from collections.abc import Iterable, Mapping
from itertools import takewhile
from typing import TypeVar

T = TypeVar("T")
LISTED = 40  # names up to which all are named


def pick(what: str, name: str, choices: Mapping[str, T]) -> T:
    """Return the choice of a name.

    Raises:
        ValueError: for an unknown name, with the nearest real one.
    """
    if name not in choices:
        raise ValueError(f"unknown {what} {name!r}{nearest(name, choices)}")
    return choices[name]


def nearest(name: str, names: Iterable[str]) -> str:
    """Return " (did you mean 'x'?)" for the nearest of some names, or what there is where none is near."""
    names = list(names)
    folded = {known.lower(): known for known in reversed(names)}
    if close := difflib.get_close_matches(name.lower(), folded, n=5):
        near = [known for known in map(str.lower, names) if known in close]  # in their order
        best = max(near, key=lambda known: _likeness(name.lower(), known))
        return f" (did you mean {folded[best]!r}?)"
    return f"; there are {', '.join(names) if len(names) <= LISTED else f'{len(names)} names'}" if names else ""


def _likeness(name: str, known: str) -> tuple[float, int]:
    """Return how alike two names are, and for how many letters they begin alike."""
    alike = takewhile(lambda pair: pair[0] == pair[1], zip(name, known))
    return difflib.SequenceMatcher(None, known, name).ratio(), len(list(alike))
