"""The judge judged: how often each word is wrong, by simulation."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from fedrepro.papers.gap import BORROWED, degrees, different, inside
from fedrepro.papers.judge import JUDGED, Word

SEEDS, SPREADS = (1, 2, 3, 5, 10), (0.1, 0.25, 0.5, 1.0)
GAPS = (0.0, 0.5, 1.0, 2.0)  # true ones in a simulation, in margins


def rates(
    seeds: int, *, printed: bool, spread: float, gaps: Sequence[float] = GAPS, draws: int = 20_000, start: int = 0
) -> dict[float, dict[Word, float]]:
    """Return how often each word falls where the true gap is known, by simulation.

    A cell with a margin of 1; the paper prints the mean of five runs with a step of 0.1; seeds of both sides
    scatter normally and alike. Without a printed spread the pooled one of five other cells of three seeds each
    stands for it.

    Args:
        seeds: ours.
        printed: whether the paper prints its spread.
        spread: the true standard deviation over seeds, in margins.
        gaps: true differences, in margins.
        draws: simulated cells.
        start: seed of the simulation.

    Returns:
        For each gap the shares of the four words of `JUDGED`.
    """
    rng = np.random.default_rng(start)
    truth = rng.uniform(0.0, 0.1, (draws, 1))  # where in a printing step it lies
    theirs = rng.normal(0.0, spread, (draws, 5)) + truth
    values = rng.normal(0.0, spread, (draws, seeds)) + truth
    others = np.sqrt(rng.chisquare(10, draws) / 10) * spread  # pooled over five cells of three seeds
    papers = np.round(theirs.std(1, ddof=1), 2) if printed else others
    terms, dofs = [papers**2 * (1 + 1 / 5)], [BORROWED]  # of one seed: one estimate for both
    if seeds > 1:
        terms, dofs = [values.var(1, ddof=1) / seeds, papers**2 / 5], [seeds - 1.0, BORROWED]
    error, dof = np.sqrt(sum(terms) + 0.1**2 / 12), degrees(terms, dofs)
    found: dict[float, dict[Word, float]] = {}
    for gap in gaps:
        points = values.mean(1) + gap - np.round(theirs.mean(1), 1)
        near, apart = inside(points, error, dof, 1.0), different(points, error, dof)
        shares = (near & ~apart, near & apart, ~near & apart, ~near & ~apart)
        found[gap] = {word: float(share.mean()) for word, share in zip(JUDGED, shares)}
    return found


def rates_table(spread: float = 0.25, seeds: Sequence[int] = SEEDS) -> pd.DataFrame:
    """Return the rates for reading, in percent, where the paper prints its spread.

    Returns:
        A line for each true gap and number of seeds: columns "true gap", "seeds" and the words of `JUDGED`.
    """
    found = {number: rates(number, printed=True, spread=spread) for number in seeds}
    names = {0.0: "none", 0.5: "half a margin", 1.0: "a margin", 2.0: "two margins"}
    lines = [
        {"true gap": names[gap], "seeds": number}
        | {word: f"{100 * share:.1f}" for word, share in found[number][gap].items()}
        for gap in GAPS
        for number in seeds
    ]
    return pd.DataFrame(lines)


def worst() -> tuple[float, float]:
    """Return the largest rate of false words over all simulations, in percent.

    Returns:
        Of "reproduced", with a difference or without, where the true gap is a margin or two; and of "off" where
        there is none.
    """
    every = [
        rates(number, printed=printed, spread=spread)
        for number in SEEDS
        for printed in (True, False)
        for spread in SPREADS
    ]
    passed = max(sum(found[gap][word] for word in JUDGED[:2]) for found in every for gap in (1.0, 2.0))
    return 100 * passed, 100 * max(found[0.0]["off"] for found in every)
