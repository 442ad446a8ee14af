"""The gap between our runs and a paper's number: every formula by hand, with t quantiles from tables."""

import math

import numpy as np
import pytest

from fedrepro.papers.gap import (
    BORROWED,
    OWN,
    PAPERS,
    Number,
    Spread,
    degrees,
    different,
    inside,
    measure,
    more_seeds,
    pooled,
    power,
    power_apart,
    spread_of,
)


class TestSpread:
    def test_of_our_seeds(self) -> None:
        assert spread_of([77.0, 83.0]) == Spread(math.sqrt(18), 1, OWN)
        assert spread_of([77.0]) is None

    def test_pooled_over_cells(self) -> None:
        # Squared deviations 2 (70 and 72) and 8 (60, 62, 64): 10 over 1 + 2 degrees of freedom.
        found = pooled([[70.0, 72.0], [50.0], [60.0, 62.0, 64.0]])
        assert found is not None
        assert found.std == pytest.approx(math.sqrt(10 / 3))
        assert (found.dof, found.whose) == (3, "our seeds of 2 other cells")
        assert pooled([[70.0], []]) is None

    def test_a_borrowed_spread_has_few_degrees_of_freedom(self) -> None:
        found = pooled([[float(n) for n in range(20)]])
        assert found is not None
        assert (found.dof, found.whose) == (BORROWED, "our seeds of 1 other cell")


class TestGap:
    def test_both_spreads(self) -> None:
        # Ours: mean 80, variance 18, two seeds; the paper's 8^2 over 4 runs: 18 / 2 + 64 / 4 = 25.
        gap = measure(Number(80.0, 2, Spread(math.sqrt(18), 1, OWN)), Number(70.0, 4, Spread(8.0, 3, PAPERS)))
        assert (gap.points, gap.error) == (10.0, pytest.approx(5.0))
        # Shares 9 / 25 and 16 / 25: 1 / (0.36 / 1 + 0.64 / 3); Welch: 1 / (0.36^2 / 1 + 0.64^2 / 3) = 3.76.
        assert gap.dof == pytest.approx(1 / (0.36 + 0.64 / 3))
        # U = 12.706 * 3, U_p = 3.182 * 4
        assert gap.en == pytest.approx(10 / math.hypot(12.706 * 3, 3.182 * 4), rel=1e-3)

    def test_the_printing_step(self) -> None:
        # 0.6^2 / 12 = 0.03, ours 0.01 / 1 + 0.0: u = 0.2
        gap = measure(Number(70.0, 1, Spread(0.1, 4, "x")), Number(70.0, 5, Spread(0.0, 4, PAPERS), step=0.6))
        assert gap.error == pytest.approx(0.2)
        assert gap.dof == 4  # rounding is known: it is no estimate

    def test_one_spread_for_both_sides_is_one_estimate(self) -> None:
        spread = Spread(2.0, 4, PAPERS)
        gap = measure(Number(71.0, 1, spread), Number(70.0, 4, spread))
        assert (gap.error, gap.dof) == (pytest.approx(math.sqrt(5.0)), pytest.approx(4))

    def test_the_interval(self) -> None:
        spread = Spread(2.0, 4, PAPERS)
        gap = measure(Number(71.0, 1, spread), Number(70.0, 4, spread))
        assert gap.half == pytest.approx(2.132 * math.sqrt(5), rel=1e-3)  # t(0.95, 4)

    def test_no_spread_at_all(self) -> None:
        gap = measure(Number(70.0, 2, Spread(0.0, 1, OWN)), Number(70.0, 5, Spread(0.0, 4, PAPERS)))
        assert (gap.points, gap.error, gap.dof, gap.en) == (0.0, 0.0, 1, 0.0)
        assert (
            measure(Number(71.0, 2, Spread(0.0, 1, OWN)), Number(70.0, 5, Spread(0.0, 4, PAPERS))).en == math.inf
        )


def test_degrees_of_arrays() -> None:
    found = degrees([np.array([1.0, 0.0, 1.0]), np.array([0.0, 0.0, 1.0])], [1.0, 4.0])
    assert found.tolist() == [1.0, 1.0, 1.6]  # 2 / (1 / 1 + 1 / 4)


@pytest.mark.parametrize(("gap", "near", "apart"), [(0.0, True, False), (1.0, True, False), (1.3, True, True)])
def test_inside_and_different(gap: float, near: bool, apart: bool) -> None:
    # At 10 degrees of freedom and u = 0.5: 1.812 * 0.5 = 0.906, 2.228 * 0.5 = 1.114; the margin is 2.3.
    for sign in (1, -1):
        assert bool(inside(sign * gap, 0.5, 10, 2.3)) == near
        assert bool(different(sign * gap, 0.5, 10)) == apart
    assert not inside(1.4, 0.5, 10, 2.3)


class TestPlan:
    def test_power_by_hand(self) -> None:
        # Infinite degrees of freedom: a margin of 1.645 + 1.2816 errors holds 2 * 0.9 - 1 of a normal variable.
        assert power(1.0, math.inf, 1.6449 + 1.2816) == pytest.approx(0.8, abs=1e-4)
        assert power(1.0, math.inf, 1.0) == 0.0
        assert power(0.0, 1.0, 0.1) == 1.0

    def test_more_seeds_reach_the_power_and_one_fewer_does_not(self) -> None:
        papers = Number(70.0, 5, Spread(0.3, 4, PAPERS), 0.1)
        ours = Number(70.2, 2, Spread(0.6, 1, OWN))
        more = more_seeds(ours, papers, 1.0)
        assert more is not None
        for seeds, enough in ((2 + more, True), (1 + more, False)):
            gap = measure(Number(70.0, seeds, Spread(0.6, seeds - 1, OWN)), papers)
            assert (power(gap.error, gap.dof, 1.0) >= 0.8) == enough

    def test_one_seed_is_planned_with_the_spread_that_two_will_have(self) -> None:
        papers = Number(70.0, 5, Spread(0.3, 4, PAPERS), 0.1)
        ours = Number(70.6, 1, papers.spread)
        more = more_seeds(ours, papers, 1.0)
        assert more is not None
        gap = measure(Number(70.0, 1 + more, Spread(0.3, more, OWN)), papers)
        assert power(gap.error, gap.dof, 1.0) >= 0.8
        two = measure(Number(70.0, 2, Spread(0.3, 1, OWN)), papers)
        assert more > 1
        assert power(two.error, two.dof, 1.0) < 0.8

    def test_where_ours_stands_for_the_papers_both_get_better(self) -> None:
        spread = Spread(0.2, 1, OWN)
        assert more_seeds(Number(70.0, 2, spread), Number(70.0, 1, spread, 0.1), 1.0) is not None

    def test_a_gap_seen_outside_is_planned_to_be_told_apart(self) -> None:
        papers = Number(70.0, 5, Spread(0.3, 4, PAPERS), 0.1)
        near, far = (more_seeds(Number(mean, 2, Spread(2.0, 1, OWN)), papers, 1.0) for mean in (70.5, 66.0))
        assert near is not None
        assert near > 20
        assert far == 3  # a gap of 4, u = 0.905 with five seeds
        gaps = (measure(Number(66.0, seeds, Spread(2.0, seeds - 1, OWN)), papers) for seeds in (4, 5))
        assert [power_apart(gap.error, gap.dof, 4.0) >= 0.8 for gap in gaps] == [False, True]

    def test_how_often_a_gap_is_told_apart(self) -> None:
        # Without a gap half of the errors of 5 % have its sign; with one, draws of t = (z + 3) / sqrt(c / 4) tell.
        assert power_apart(1.0, 4.0, 0.0) == pytest.approx(0.025)
        rng = np.random.default_rng(0)
        drawn = (rng.standard_normal(200_000) + 3.0) / np.sqrt(rng.chisquare(4, 200_000) / 4)
        assert power_apart(0.5, 4.0, -1.5) == pytest.approx((drawn > 2.776).mean(), abs=0.005)
        assert (power_apart(0.0, 4.0, 1.0), power_apart(0.0, 4.0, 0.0)) == (1.0, 0.0)

    def test_a_smaller_margin_needs_more(self) -> None:
        papers = Number(70.0, 5, Spread(0.3, 4, PAPERS), 0.1)
        needed = [more_seeds(Number(70.0, 2, Spread(0.6, 1, OWN)), papers, margin) for margin in (3.0, 1.5, 0.8)]
        assert needed == sorted(needed, key=lambda n: n or 0)
        assert needed[0] != needed[-1]

    def test_none_helps_where_the_papers_number_is_known_too_badly(self) -> None:
        assert (
            more_seeds(Number(70.0, 2, Spread(0.1, 1, OWN)), Number(70.0, 3, Spread(3.0, 2, PAPERS)), 1.0) is None
        )
