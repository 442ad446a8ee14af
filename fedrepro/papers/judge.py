"""Judging one cell: a paper's number beside those of runs."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np

from fedrepro.papers.metrics import TOLERANCE, metric
from fedrepro.papers.paper import SCALES

Word = Literal[
    "reproduced",
    "off",
    "censored",
    "not judged",
    "not run",
    "paper contradicts itself",
    "number lost",
    "not reported",
]
WORDS: tuple[Word, ...] = get_args(Word)
STANDARD_ERRORS = 3.0  # a gap up to here is chance, where a spread is known; else the metric says what is near
# Of a paper's number; where several sources print it, the earlier word stands.
STATUSES = ("contradiction", "suspicious", "ok", "repaired", "inferred", "lost")


@dataclass(frozen=True)
class Verdict:
    """What is said of a cell; gaps are ours minus the paper's, in the metric's unit, NaN where there is none."""

    word: Word
    gap_points: float
    gap_se: float


def standard_errors(paper_mean: float, paper_std: float, paper_runs: float, our_values: Sequence[float]) -> float:
    """Return how many standard errors our mean lies above the paper's.

    (our mean - paper mean) / sqrt(paper_std^2 / paper_runs + our_std^2 / our_runs)

    Args:
        paper_mean: in percent; NaN if unknown.
        paper_std: over the paper's runs, in points, >= 0; NaN if unknown.
        paper_runs: number of the paper's runs; a spread over an unknown number counts as unknown.
        our_values: one number per seed, in percent. The sample standard deviation is theirs; one alone
            takes the paper's. Where the paper gives no spread, its number counts as one run with our spread.

    Returns:
        The gap, negative where we are below; NaN when no spread is known or all values are the same.

    Raises:
        ValueError: for a negative spread, or a number of ours that is not finite.
    """
    ours = np.asarray(our_values, dtype=float)
    if paper_std < 0:
        raise ValueError(f"paper_std must be at least 0, got {paper_std}")
    if not np.isfinite(ours).all():
        raise ValueError(f"our values must be finite, got {list(our_values)}")
    if not len(ours) or not math.isfinite(paper_mean):
        return math.nan
    known = math.isfinite(paper_std) and paper_runs >= 1
    own = float(ours.std(ddof=1)) if len(ours) > 1 else paper_std if known else math.nan
    error = math.sqrt((paper_std**2 / paper_runs if known else own**2) + own**2 / len(ours))
    return float(ours.mean() - paper_mean) / error if error > TOLERANCE else math.nan


def judge(
    cell: Mapping[str, Any], our_values: Sequence[float], *, scale: str, censored: Sequence[bool] = ()
) -> Verdict:
    """Judge one cell.

    Args:
        cell: the paper's mean, std, runs (as for `standard_errors`), status, one of `STATUSES`, and metric, one of
            `METRICS`; an accuracy if left out.
        our_values: one number per seed, in the metric's unit.
        scale: at which they were made; numbers of a smaller scale than "paper" are not looked at.
        censored: for each number whether it is only a lower bound, since its run did not reach the target; none
            is if left out.

    Returns:
        "number lost", "paper contradicts itself", "not judged" and "not run" say why nothing is judged.
        "reproduced" is a gap of at most 3 standard errors, or one that the metric calls near where no spread is
        known; "off" is more. With a lower bound among our numbers there is no mean and no gap: "censored". It is
        "off" if all are bounds and lie above the paper's mean by more than what is near and 3 of its deviations.

    Raises:
        ValueError: for an unknown status, metric or scale, or an unknown number whose status is not "lost".
    """
    mean, status, kind = cell["mean"], cell["status"], metric(cell.get("metric", "test_acc_pct"))
    if status not in STATUSES:
        raise ValueError(f"status must be one of {STATUSES}, got {status!r}")
    if scale not in SCALES:
        raise ValueError(f"scale must be one of {SCALES}, got {scale!r}")
    if status != "lost" and not math.isfinite(mean):
        raise ValueError(f"a number of status {status!r} must be known, got {mean}")
    ours = our_values if scale == "paper" else ()
    measured = ours if kind.judged and not any(censored) else ()
    points = float(np.mean(measured)) - mean if len(measured) else math.nan
    errors = standard_errors(mean, cell["std"], cell["runs"], measured)
    if status == "lost":
        return Verdict("number lost", math.nan, math.nan)
    if status in ("contradiction", "suspicious"):
        return Verdict("paper contradicts itself", points, errors)
    if not len(ours):
        return Verdict("not run", math.nan, math.nan)
    if not kind.judged:
        return Verdict("not judged", math.nan, math.nan)
    if any(censored):
        spread = STANDARD_ERRORS * cell["std"] if math.isfinite(cell["std"]) else 0.0
        far = all(censored) and min(ours) - mean > max(kind.margin(mean), spread) + TOLERANCE
        return Verdict("off" if far else "censored", math.nan, math.nan)
    known = math.isfinite(errors)
    near = abs(errors) <= STANDARD_ERRORS + TOLERANCE if known else kind.near(points, mean)
    return Verdict("reproduced" if near else "off", points, errors)
