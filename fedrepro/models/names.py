"""What to say to a name that nobody knows."""

import difflib
from collections.abc import Iterable

LISTED = 40  # names up to which all are named


def nearest(word: str, known: Iterable[str]) -> str:
    """Return "; nearest match: 'x'; available: ..." for a word, of names that exist; "" where there are none."""
    known = list(known)
    if not known:
        return ""
    matcher = difflib.SequenceMatcher(b=word.lower())
    ratios = []
    for candidate in known:
        matcher.set_seq1(candidate)
        ratios.append(matcher.ratio())
    listed = ", ".join(known) if len(known) <= LISTED else f"{len(known)} names"
    return f"; nearest match: {known[ratios.index(max(ratios))]!r}; available: {listed}"
