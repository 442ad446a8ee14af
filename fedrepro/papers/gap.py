"""The gap between the mean of our runs and a number that a paper prints, and how well it is known.

    d = our mean - the paper's
    u^2 = s^2 / n + s_p^2 / n_p + h^2 / 12      s, s_p: standard deviations over seeds; h: the printing step
    1 / nu = sum of w_j / nu_j                  w_j: share of a spread in s^2 / n + s_p^2 / n_p

The paper's number is rounded: h / sqrt(12) is the standard deviation of what rounding takes away. Whether d lies
inside a margin is asked by two one-sided t tests, at 5 % each (Schuirmann 1987): its 90 % interval must lie
inside. Whether d differs from zero is asked by a t test at 5 %.

The degrees of freedom are Welch's with the shares not squared, so never more than Welch's. With Welch's own, 6 %
of the words are wrong at two seeds; with these fewer than 5 % everywhere (`fedrepro.papers.judged`).
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy import special

LEVEL = 0.05  # of every test
POWER = 0.8  # with which further seeds are planned
MOST = 100  # seeds that a plan may ask for
OWN, PAPERS = "these seeds", "the paper's runs"  # whose a spread is, where it is not borrowed
BORROWED = 4.0  # degrees of freedom that a spread of other cells has at most: as many as five runs give


@dataclass(frozen=True)
class Spread:
    """A standard deviation over seeds, its degrees of freedom, and whose it is."""

    std: float
    dof: float
    whose: str

    @property
    def variance(self) -> float:
        """Its square."""
        return self.std**2


@dataclass(frozen=True)
class Number:
    """A mean over runs: its value, how many they are, their spread, and the step in which it is printed."""

    mean: float
    runs: int
    spread: Spread
    step: float = 0.0

    @property
    def variance(self) -> float:
        """Of the mean."""
        return self.spread.variance / self.runs + self.step**2 / 12

    @property
    def expanded(self) -> float:
        """Half the width of its 95 % interval, U."""
        return math.sqrt(self.variance) * float(quantile(1 - LEVEL / 2, self.spread.dof))


@dataclass(frozen=True)
class Gap:
    """Ours minus the paper's: points, their standard error and its degrees of freedom, and E_n.

    en: the gap as a share of the 95 % uncertainties of both numbers, d / sqrt(U^2 + U_p^2) (ISO 13528); they agree
    where it is at most 1 in size.
    """

    points: float
    error: float
    dof: float
    en: float

    @property
    def half(self) -> float:
        """Half the width of the 90 % interval."""
        return self.error * float(quantile(1 - LEVEL, self.dof))


def spread_of(values: Sequence[float]) -> Spread | None:
    """Return the sample standard deviation of our runs, or None for fewer than two."""
    if len(values) < 2:
        return None
    return Spread(float(np.std(values, ddof=1)), len(values) - 1.0, OWN)


def pooled(groups: Iterable[Sequence[float]], kind: str = "") -> Spread | None:
    """Return the spread within groups of runs, each of several seeds; None if there are none.

    `kind` says in the name of the spread what the groups have in common, such as " of the same method".

    sqrt(sum of squared deviations from the groups' means / sum of (n - 1)). Cells differ in their spread, so it
    stands for that of another one with at most `BORROWED` degrees of freedom.
    """
    several = [np.asarray(group, dtype=float) for group in groups if len(group) > 1]
    dof = sum(len(group) - 1 for group in several)
    if not dof:
        return None
    squares = sum(float(((group - group.mean()) ** 2).sum()) for group in several)
    whose = f"our seeds of {len(several)} other cell{'s' if len(several) > 1 else ''}{kind}"
    return Spread(math.sqrt(squares / dof), min(float(dof), BORROWED), whose)


def measure(ours: Number, papers: Number) -> Gap:
    """Return the gap; a spread that stands for both sides is one estimate and counts as one."""
    shares: dict[Spread, float] = {}
    for number in (ours, papers):
        shares[number.spread] = shares.get(number.spread, 0.0) + 1 / number.runs
    variance = ours.variance + papers.variance
    points, wide = ours.mean - papers.mean, math.hypot(ours.expanded, papers.expanded)
    en = points / wide if wide else math.copysign(math.inf, points) if points else 0.0
    terms = [share * spread.variance for spread, share in shares.items()]
    return Gap(points, math.sqrt(variance), float(degrees(terms, [spread.dof for spread in shares])), en)


def degrees(terms: Sequence[Any], dofs: Sequence[float]) -> Any:
    """Return the degrees of freedom of a sum of variances, the fewest where all are zero; also for arrays."""
    total = sum(terms)
    below = sum(term / dof for term, dof in zip(terms, dofs))
    return np.where(total > 0, total / np.where(total > 0, below, 1.0), min(dofs))


def quantile(share: float, dof: Any) -> Any:
    """Return the quantile of Student's t distribution; the degrees of freedom may be an array, or infinite."""
    return special.stdtrit(dof, share)


def inside(points: Any, error: Any, dof: Any, margin: Any) -> Any:
    """Say whether gaps lie inside their margins: both one-sided t tests say so. For numbers or arrays."""
    return np.abs(points) + error * quantile(1 - LEVEL, dof) < margin


def different(points: Any, error: Any, dof: Any) -> Any:
    """Say whether gaps differ from zero, by a two-sided t test. For numbers or arrays."""
    return np.abs(points) > error * quantile(1 - LEVEL / 2, dof)


def power(error: float, dof: float, margin: float) -> float:
    """Return how often a gap that is truly zero is found inside the margin."""
    if not error:
        return 1.0
    reach = margin / error - float(quantile(1 - LEVEL, dof))
    return max(0.0, 2 * float(special.stdtr(dof, reach)) - 1)


def power_apart(error: float, dof: float, points: float) -> float:
    """Return how often a gap that is truly `points` is found different from zero, and with its own sign."""
    if not error:
        return float(points != 0)
    return 1 - float(special.nctdtr(dof, abs(points) / error, quantile(1 - LEVEL / 2, dof)))


def more_seeds(ours: Number, papers: Number, margin: float) -> int | None:
    """Return how many more seeds could tell in 80 % of cases.

    A gap that was seen inside the margin is planned as one of zero, to be found inside; one that was seen outside
    as one of that size, to be found different from zero. Our spread is taken to stay as it is.

    Returns:
        At least 1; None if a hundred seeds are not enough, as where the paper's own number is known too badly.
    """
    seen = ours.mean - papers.mean
    for total in range(ours.runs + 1, MOST + 1):  # from two on the spread is that of these seeds
        spread = Spread(ours.spread.std, total - 1.0, OWN)
        theirs = replace(papers, spread=spread) if papers.spread.whose == OWN else papers
        planned = measure(Number(papers.mean, total, spread), theirs)
        found = (
            power(planned.error, planned.dof, margin)
            if abs(seen) <= margin
            else power_apart(planned.error, planned.dof, seen)
        )
        if found >= POWER:
            return total - ours.runs
    return None
