"""How a paper's cells are judged: from where on a gap matters, and which cells say nothing.

`judging.toml` in the paper's folder says it, before the runs:

    [<item>]
    effect = ["<claim>", ...]    half of the difference that the claim rests on, in the paper's own numbers
    margins = [{ row = ..., column = ..., points = ..., reason = ... }]    by hand; without row or column for all
    tuned = "<why>"              the setting was chosen by the paper's number, which then says nothing

What is not there has the margin of its metric: one point for accuracies (`fedrepro.papers.metrics`). No margin is
below the step in which the paper prints.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedrepro.core.names import nearest
from fedrepro.papers.claims import Claim, Key, combinations
from fedrepro.papers.metrics import metric

KEYS = ("effect", "margins", "tuned")


@dataclass(frozen=True)
class Margin:
    """Up to where a gap does not matter, in the metric's unit, and why."""

    points: float
    reason: str


def checked(
    table: Mapping[str, Any], claims: Sequence[Claim], printed: Iterable[Key] | None = None
) -> Mapping[str, Any]:
    """Return the content of a judging.toml if all of its names are known.

    Args:
        table: the content.
        claims: the paper's.
        printed: the cells that the paper prints, (item, row, column); rows and columns are not looked at without.

    Raises:
        ValueError: for an unknown item, key, row, column or claim, with the nearest real one, a claim that puts no
            cell above another, or a margin that is no positive number of points with a reason.
    """
    places = None if printed is None else list(printed)
    for item, entry in table.items():
        if places is not None and item not in (known := {place[0] for place in places}):
            raise ValueError(f"the paper prints no number of {item!r}{nearest(item, sorted(known))}")
        if not isinstance(entry, Mapping):
            raise ValueError(f"{item} must be a table, got {entry!r}")
        for key in entry:
            if key not in KEYS:
                raise ValueError(f"unknown key {key!r} of {item}{nearest(key, KEYS)}")
        # Half of a difference is a margin where the sentence rests on it: not where it says that it is small.
        ids = [claim.id for claim in claims if claim.kind == "greater"]
        for name in entry.get("effect", []):
            if name not in ids:
                raise ValueError(f"{item}: no claim puts one cell above another as {name!r}{nearest(name, ids)}")
        for one in entry.get("margins", []):
            points, reason = one.get("points"), one.get("reason")
            wrong = set(one) - {"row", "column", "points", "reason"} or not str(reason or "").strip()
            if (
                wrong
                or isinstance(points, bool)
                or not isinstance(points, int | float)
                or not 0 < points < math.inf
            ):
                raise ValueError(f"{item}: a margin needs points above 0 and a reason, got {one!r}")
            for number, axis in enumerate(("row", "column"), 1):
                names = {place[number] for place in places or () if place[0] == item}
                if places is not None and axis in one and one[axis] not in names:
                    told = nearest(str(one[axis]), sorted(names))
                    raise ValueError(f"{item}: a margin for the {axis} {one[axis]!r}, which is not printed{told}")
    return table


def margin(
    cell: Key,
    kind: str,
    step: float,
    *,
    judging: Mapping[str, Any],
    claims: Sequence[Claim],
    printed: Mapping[Key, float],
) -> Margin:
    """Return up to where a gap of a cell does not matter.

    Args:
        cell: (item, row, column).
        kind: its metric.
        step: in which the paper prints it.
        judging: what `checked` returned.
        claims: the paper's.
        printed: the paper's means.
    """
    entry = judging.get(cell[0], {})
    for one in entry.get("margins", []):
        if one.get("row", cell[1]) == cell[1] and one.get("column", cell[2]) == cell[2]:
            return Margin(max(float(one["points"]), step), one["reason"])
    named = [claim for name in entry.get("effect", []) for claim in claims if claim.id == name]
    for beside in (False, True):
        for claim in named:
            if effect := _effect(cell, claim, printed, beside=beside):
                return _at_least(step, effect / 2, f"half of the {effect:.4g} points that “{claim.id}” rests on")
    own = metric(kind)
    reason = "no claim says more" if own.points else f"{100 * own.share:g} % of the number: no claim says more"
    return _at_least(step, own.margin(printed.get(cell, 0.0)), reason)


def _at_least(step: float, points: float, reason: str) -> Margin:
    return Margin(points, reason) if points >= step else Margin(step, f"the printing step; less by {reason}")


def _effect(cell: Key, claim: Claim, printed: Mapping[Key, float], *, beside: bool) -> float:
    """Return the smallest difference that a claim sees at a cell, or beside it in its column; 0 if none."""
    pairs = [keys for _, keys in combinations(claim)]
    if beside:
        pairs = [keys for keys in pairs if keys[0][::2] == cell[::2] and _group(keys[0][1]) == _group(cell[1])]
    else:
        pairs = [keys for keys in pairs if cell in keys]
    found = [abs(printed.get(left, math.nan) - printed.get(right, math.nan)) for left, right in pairs]
    return float(round(min((gap for gap in found if gap > 0), default=0.0), 6))


def _group(row: str) -> str:
    """Return what rows of one part of a table have in common: "Step" of "Step/FedBE"."""
    head, slash, _ = row.partition("/")
    return head if slash else ""
