"""Judging one cell: the mean of our runs beside a paper's number, and the word for it.

First equivalence, then difference (`fedrepro.papers.gap` has the tests):

    inside the margin, not different from zero    reproduced
    inside the margin, different from zero        reproduced, with a difference
    not inside, different from zero               off
    neither                                       cannot tell, and how many more seeds could

What is inside must be shown: few or scattered seeds never pass more easily than many. `rates` says how often each
word is wrong.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import numpy as np

from fedrepro.papers.gap import (
    OWN,
    PAPERS,
    Gap,
    Number,
    Spread,
    different,
    inside,
    measure,
    more_seeds,
    spread_of,
)
from fedrepro.papers.metrics import TOLERANCE, metric
from fedrepro.papers.paper import SCALES
from fedrepro.papers.reported import STATUSES

Word = Literal[
    "reproduced",
    "reproduced, with a difference",
    "off",
    "cannot tell",
    "tuned",
    "censored",
    "not judged",
    "not run",
    "paper contradicts itself",
    "suspicious",
    "number lost",
    "not reported",
]
WORDS: tuple[Word, ...] = get_args(Word)
JUDGED: tuple[Word, ...] = WORDS[:4]


@dataclass(frozen=True)
class Verdict:
    """What is said of a cell; numbers in the metric's unit, NaN where there are none.

    gap_points: ours minus the paper's; low, high: its 90 % interval; en: E_n, see `Gap`.
    margin: up to where a gap does not matter.
    more: how many more seeds could tell, with "cannot tell"; infinite if none could.
    prior: whose spread stands for one that is not known; "" where none had to.
    """

    word: Word
    gap_points: float = math.nan
    low: float = math.nan
    high: float = math.nan
    en: float = math.nan
    margin: float = math.nan
    more: float = math.nan
    prior: str = ""


def judge(
    cell: Mapping[str, Any],
    our_values: Sequence[float],
    *,
    scale: str,
    censored: Sequence[bool] = (),
    margin: float | None = None,
    step: float = 0.0,
    prior: Spread | None = None,
    tuned: bool = False,
) -> Verdict:
    """Judge one cell.

    Args:
        cell: the paper's mean, std (over its runs; NaN if unknown), runs, status, one of `STATUSES`, and metric,
            one of `METRICS`; an accuracy if left out. A spread over one run or an unknown number of runs counts
            as unknown.
        our_values: one number per seed, in the metric's unit.
        scale: at which they were made; numbers of a smaller scale than "paper" are not looked at.
        censored: for each number whether it is only a lower bound, since its run did not reach the target; none
            is if left out.
        margin: up to where a gap does not matter; the metric's own if None.
        step: in which the paper prints such numbers, 0.1 for 74.5.
        prior: a spread to take where none is known, from other cells. One seed of ours takes the larger of it and
            the paper's.
        tuned: whether the setting was chosen by the paper's number, which then says nothing.

    Returns:
        "number lost", "paper contradicts itself", "suspicious", "tuned", "not judged" and "not run" say why
        nothing is judged; the gap is shown all the same where there is one. With a lower bound among our numbers
        there is no mean and no gap: "censored", or "off" if all are bounds and even these lie above the margin,
        with what the paper's number leaves open.

    Raises:
        ValueError: for an unknown status, metric or scale, a negative spread, margin or step, an unknown number
            whose status is not "lost", or a number of ours that is not finite.
    """
    kind = metric(cell.get("metric", "test_acc_pct"))
    _check(cell, our_values, scale, step, margin)
    mean, status = float(cell["mean"]), cell["status"]
    allowed = max(kind.margin(mean) if margin is None else margin, step)
    ours = our_values if scale == "paper" else ()
    if status == "lost":
        return Verdict("number lost")
    if not kind.judged:
        return Verdict("not judged" if len(ours) else "not run")
    if not len(ours) and status in ("contradiction", "suspicious"):
        return Verdict(_doubt(status), margin=allowed)
    if not len(ours):
        return Verdict("not run", margin=allowed)
    if any(censored) and (tuned or status in ("contradiction", "suspicious")):
        return Verdict(
            "tuned" if status not in ("contradiction", "suspicious") else _doubt(status), margin=allowed
        )
    if any(censored):
        far = all(censored) and _beyond(min(ours) - mean, cell, _spreads(cell, (), prior)[1], allowed, step)
        return Verdict("off" if far else "censored", margin=allowed)
    own, papers = _spreads(cell, ours, prior)
    points = float(np.mean(ours)) - mean
    if own is None or papers is None:
        found = Verdict(
            "cannot tell", points, margin=allowed, more=1.0, prior="none: one seed, and no spread is known"
        )
    else:
        sides = Number(float(np.mean(ours)), len(ours), own), Number(mean, _runs(cell), papers, step)
        found = _said(measure(*sides), sides, allowed)
    if status in ("contradiction", "suspicious"):
        return replace(found, word=_doubt(status))
    return replace(found, word="tuned") if tuned else found


def _check(
    cell: Mapping[str, Any], values: Sequence[float], scale: str, step: float, margin: float | None
) -> None:
    mean, std, status = cell["mean"], cell["std"], cell["status"]
    if status not in STATUSES:
        raise ValueError(f"status must be one of {STATUSES}, got {status!r}")
    if scale not in SCALES:
        raise ValueError(f"scale must be one of {SCALES}, got {scale!r}")
    if status != "lost" and not math.isfinite(mean):
        raise ValueError(f"a number of status {status!r} must be known, got {mean}")
    if std < 0 or step < 0:
        raise ValueError(f"a spread and a step must be at least 0, got {std} and {step}")
    if margin is not None and not 0 < margin < math.inf:
        raise ValueError(f"a margin must be above 0 and finite, got {margin}")
    if not np.isfinite(np.asarray(values, dtype=float)).all():
        raise ValueError(f"our values must be finite, got {list(values)}")


def _runs(cell: Mapping[str, Any]) -> int:
    """Return over how many runs the paper's mean is; one where it does not say."""
    return int(cell["runs"]) if cell["runs"] >= 1 else 1


def _spreads(
    cell: Mapping[str, Any], values: Sequence[float], prior: Spread | None
) -> tuple[Spread | None, Spread | None]:
    """Return our spread and the paper's, borrowed where they are not known; None where none can be had."""
    own, known = spread_of(values), math.isfinite(cell["std"]) and cell["runs"] > 1
    papers = Spread(float(cell["std"]), cell["runs"] - 1.0, PAPERS) if known else None
    if own is None:  # one seed: it may scatter as the paper's runs do, or as ours elsewhere
        own = max(filter(None, (papers, prior)), key=lambda spread: spread.std, default=None)
    return own, papers or prior or own


def _said(gap: Gap, sides: tuple[Number, Number], margin: float) -> Verdict:
    """Return the word for a gap, with all that is known of it."""
    near = bool(inside(gap.points, gap.error, gap.dof, margin))
    apart = bool(different(gap.points, gap.error, gap.dof))
    word: Word = ("reproduced, with a difference" if near else "off") if apart else "reproduced"
    word = word if near or apart else "cannot tell"
    more = (more_seeds(*sides, margin) or math.inf) if word == "cannot tell" else math.nan
    usual = zip(("ours", "the paper's"), sides, (OWN, PAPERS))
    prior = "; ".join(f"{who}: {side.spread.whose}" for who, side, own in usual if side.spread.whose != own)
    low, high = gap.points - gap.half, gap.points + gap.half
    return Verdict(word, gap.points, low, high, gap.en, margin, more, prior)


def _beyond(bound: float, cell: Mapping[str, Any], papers: Spread | None, margin: float, step: float) -> bool:
    """Say whether a gap of at least `bound` lies above the margin, with what the paper's number leaves open."""
    return papers is not None and bound - Number(0.0, _runs(cell), papers, step).expanded > margin + TOLERANCE


def _doubt(status: str) -> Word:
    return "suspicious" if status == "suspicious" else "paper contradicts itself"
