"""Claims on runs of several seeds: each comparison as a difference paired by seed, with its interval.

A claim is a set of contrasts, sums of cells with signs, that must all be above zero: "A above B" is A - B,
"within 3 points" both 3 - (A - B) and 3 + (A - B), a trend the difference of each pair of neighbours. A contrast
is computed seed by seed, so that what a seed brings to all of its cells cancels.

A claim holds if every contrast is above zero, by a one-sided t test at 5 % each: all must be shown, so no
correction is due. It fails if one is below zero, at 5 % divided by their number. Otherwise the seeds cannot tell.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Literal

import numpy as np
from scipy import special

from fedrepro.papers.claims import Claim, Key, combinations, needed_cells
from fedrepro.papers.gap import LEVEL, quantile

Seeds = Mapping[tuple[int, str], float]  # results of a cell by seed and precision
Status = Literal["holds", "fails", "cannot tell", "not run", "partly run", "to be seen"]


STEP = 0.01  # points: an accuracy on 10,000 test images, the most that there are, is a whole number of these


@dataclass(frozen=True)
class Contrast:
    """One difference over the seeds that all of its cells have, in one precision.

    label: the combination of the claim ("Step, ResNet-44").
    seeds: how many.
    mean: over seeds, in points; it must be above zero.
    low, high: its 90 % interval; NaN for one seed. The spread over seeds counts as at least that of rounding.
    share: of seeds in which it is above zero, ties counted half; an estimate of the probability that it is.
    share_low, share_high: its 90 % interval (Jeffreys).
    least: the smallest difference that the paper could have seen, see `telescope`; NaN where it prints no spreads.
    cells: those that are compared; of "A above B" first A, then B.
    common: the seeds, each with its precision.
    """

    label: str
    seeds: int
    mean: float
    low: float
    high: float
    share: float
    share_low: float
    share_high: float
    least: float = math.nan
    cells: tuple[Key, ...] = ()
    common: tuple[tuple[int, str], ...] = ()

    @property
    def too_small(self) -> bool:
        """Whether it is smaller than what the paper could have seen (small telescopes, Simonsohn 2015)."""
        return bool(self.high < self.least)


@dataclass(frozen=True)
class Finding:
    """What became of a claim on runs; `detail` says how many contrasts hold, and the one nearest to failing."""

    status: Status
    detail: str
    contrasts: tuple[Contrast, ...] = ()


def find(
    claim: Claim, runs: Mapping[Key, Seeds], spreads: Mapping[Key, tuple[float, int]] | None = None
) -> Finding:
    """Hold a claim against runs.

    Args:
        claim: the claim.
        runs: results by seed and precision of each cell, in percent.
        spreads: of the paper's numbers: standard deviation and number of runs.

    Returns:
        "not run" without any of its cells; "partly run" where some comparisons are not known, for want of a cell
        or of a common seed, and none that is known fails.
    """
    if claim.kind == "figure":
        return Finding("to be seen", claim.needs)
    needed = needed_cells(claim)
    missing = [key for key in needed if not runs.get(key)]
    if len(missing) == len(needed):
        return Finding("not run", f"{len(needed)} cells missing; first {', '.join(missing[0])}")
    every = [(label, *one) for label, keys in combinations(claim) for one in _signs(claim, keys)]
    found = [_contrast(label, signs, constant, runs, spreads or {}) for label, signs, constant in every]
    contrasts = tuple(one for one in found if one is not None)
    if not contrasts:
        lack = f"{len(missing)} of {len(needed)} cells missing; first {', '.join(missing[0])}" if missing else ""
        return Finding("partly run", lack or "its cells have no seed in common")
    status: Status = "cannot tell"
    if any(_below(one, len(every)) for one in contrasts):
        status = "fails"
    elif len(contrasts) < len(every):
        status = "partly run"
    elif all(one.low > 0 for one in contrasts):
        status = "holds"
    numbers = [one for one in contrasts if not math.isnan(one.mean)] or contrasts  # the others are only bounds
    worst = min(numbers, key=lambda one: one.low if one.seeds > 1 else one.mean)
    above = sum(one.mean > 0 for one in contrasts)
    known = f"{len(contrasts)} of {len(every)} known: " if len(contrasts) < len(every) else ""
    return Finding(status, f"{known}{above} of {len(contrasts)} above zero; least {told(worst)}", contrasts)


def told(contrast: Contrast) -> str:
    """Return a contrast in words: "Step, ConvNet: +2.1 [+0.9, +3.3] over 3 seeds, P(above) 1.00 [0.56, 1.00]"."""
    name = f"{contrast.label}: " if contrast.label else ""
    if contrast.seeds == 1:
        return f"{name}{contrast.mean:+.2f} on one seed"
    above = f"P(above) {contrast.share:.2f} [{contrast.share_low:.2f}, {contrast.share_high:.2f}]"
    shown = f"{contrast.mean:+.2f} [{contrast.low:+.2f}, {contrast.high:+.2f}] over {contrast.seeds} seeds"
    small = "; smaller than the paper could have seen" if contrast.too_small else ""
    return f"{name}{shown}, {above}{small}"


@lru_cache
def telescope(runs: int) -> float:
    """Return the effect, in standard deviations, that a t test of two groups of runs sees in a third of cases.

    Simonsohn (2015), "Small telescopes": an effect significantly smaller than that is one that the paper could not
    have seen. The test is two-sided at 5 %; what it sees on the wrong side, below 1 %, is left out.
    """
    dof = 2 * runs - 2
    shift = special.nctdtrinc(dof, 2 / 3, quantile(1 - LEVEL / 2, dof))
    return float(shift) / math.sqrt(runs / 2)


def _signs(claim: Claim, keys: Sequence[Key]) -> list[tuple[dict[Key, float], float]]:
    """Return a combination's contrasts: the sign of each cell, and what is added."""
    if claim.kind == "at_most":
        return [({keys[0]: -1.0}, claim.margin)]
    if claim.kind in ("greater", "within"):
        difference = {keys[0]: 1.0, keys[1]: -1.0}
        if claim.kind == "greater":
            return [(difference, -claim.margin)]
        return [({key: side * sign for key, sign in difference.items()}, claim.margin) for side in (-1, 1)]
    steps: list[dict[Key, float]] = [{key: 1.0} for key in keys]
    if claim.kind == "gain_trend":
        steps = [{left: 1.0, right: -1.0} for left, right in zip(keys[::2], keys[1::2], strict=True)]
    sign = -1.0 if claim.direction == "down" else 1.0
    return [(_sum(after, before, sign), 0.0) for before, after in pairwise(steps)]


def _sum(after: Mapping[Key, float], before: Mapping[Key, float], sign: float) -> dict[Key, float]:
    return {key: sign * (after.get(key, 0.0) - before.get(key, 0.0)) for key in dict.fromkeys((*after, *before))}


def _contrast(
    label: str,
    signs: Mapping[Key, float],
    constant: float,
    runs: Mapping[Key, Seeds],
    spreads: Mapping[Key, tuple[float, int]],
) -> Contrast | None:
    """Return a contrast over the seeds that its cells share; None if they share none."""
    common = sorted(set.intersection(*(set(runs.get(key, ())) for key in signs)))
    if not common:
        return None
    values = np.array([sum(sign * runs[key][seed] for key, sign in signs.items()) + constant for seed in common])
    values = values.round(9)  # 70.3 - 70.2 - 0.1 is 0
    number, low, high = len(values), math.nan, math.nan
    if number > 1:
        least = STEP * math.sqrt(sum(sign**2 for sign in signs.values()) / 12)  # as equal seeds are no certainty
        half = max(float(values.std(ddof=1)), least) / math.sqrt(number) * float(quantile(1 - LEVEL, number - 1))
        low, high = float(values.mean()) - half, float(values.mean()) + half
    above = float((values > 0).sum() + (values == 0).sum() / 2)
    below = number - above
    share_low, share_high = (float(special.betaincinv(above + 0.5, below + 0.5, q)) for q in (LEVEL, 1 - LEVEL))
    seen = (
        _least([spreads[key] for key in signs if key in spreads]) if len(signs) == 2 and not constant else math.nan
    )
    mean, share = float(values.mean()), above / number
    if math.isnan(mean):  # a bound among them
        share = share_low = share_high = math.nan
    cells = tuple(signs)
    return Contrast(label, number, mean, low, high, share, share_low, share_high, seen, cells, tuple(common))


def _least(spreads: Sequence[tuple[float, int]]) -> float:
    """Return the smallest difference of two of the paper's cells that it could have seen, in points."""
    if len(spreads) < 2 or min(runs for _, runs in spreads) < 2:
        return math.nan
    return telescope(min(runs for _, runs in spreads)) * math.sqrt(sum(std**2 for std, _ in spreads) / 2)


def _below(contrast: Contrast, tests: int) -> bool:
    """Say whether a contrast is below zero, as one of several that are looked at."""
    if contrast.seeds < 2:
        return False
    error = (contrast.high - contrast.mean) / float(quantile(1 - LEVEL, contrast.seeds - 1))
    return contrast.mean + error * float(quantile(1 - LEVEL / tests, contrast.seeds - 1)) < 0
