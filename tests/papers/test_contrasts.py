"""Claims on runs: contrasts paired by seed, with intervals by hand."""

import math

import pytest

from fedrepro.papers.claims import Claim, Key, parse_claim
from fedrepro.papers.contrasts import Seeds, find, telescope, told

A, B, C = ("t", "A", "x"), ("t", "B", "x"), ("t", "C", "x")


def make(**keys: object) -> Claim:
    return parse_claim({"id": "c", "text": "A sentence.", "place": "Table 1", "item": "t"} | keys)


def above(margin: float = 0.0) -> Claim:
    return make(kind="greater", left={"row": "A", "column": "x"}, right={"row": "B", "column": "x"}, margin=margin)


def seeds(*values: float, precision: str = "float32") -> Seeds:
    return {(seed, precision): value for seed, value in enumerate(values)}


class TestGreater:
    def test_paired_by_seed(self) -> None:
        # Both scatter by ten points; differences 2, 3, 4: mean 3, standard error 1 / sqrt(3), t(0.95, 2) = 2.920.
        found = find(above(), {A: seeds(72.0, 63.0, 84.0), B: seeds(70.0, 60.0, 80.0)})
        assert found.status == "holds"
        (one,) = found.contrasts
        assert (one.seeds, one.mean, one.share) == (3, 3.0, 1.0)
        assert (one.low, one.high) == (pytest.approx(3 - 1.686, abs=1e-3), pytest.approx(3 + 1.686, abs=1e-3))

    def test_the_probability_that_a_is_above_b(self) -> None:
        (one,) = find(above(), {A: seeds(72.0, 60.0, 80.0), B: seeds(70.0, 61.0, 80.0)}).contrasts
        assert one.share == pytest.approx(0.5)  # above, below, equal
        assert 0 < one.share_low < 0.5 < one.share_high < 1
        assert one.share_low == pytest.approx(1 - one.share_high)

    def test_floating_point_noise_does_not_decide(self) -> None:
        found = find(above(0.1), {A: seeds(70.3, 70.3, 70.3), B: seeds(70.2, 70.2, 70.2)})
        assert (found.status, found.contrasts[0].mean, found.contrasts[0].share) == ("cannot tell", 0.0, 0.5)

    def test_equal_seeds_are_no_certainty(self) -> None:
        # Two seeds, 0.01 apart: the step of 10,000 images, so at least 0.01 sqrt(2 / 12) / sqrt(2) times 6.314.
        (one,) = find(above(), {A: seeds(70.01, 71.01), B: seeds(70.0, 71.0)}).contrasts
        assert (one.low, one.high) == (
            pytest.approx(0.01 - 0.01823, abs=1e-5),
            pytest.approx(0.01 + 0.01823, abs=1e-5),
        )
        assert find(above(), {A: seeds(70.01, 71.01), B: seeds(70.0, 71.0)}).status == "cannot tell"
        assert find(above(), {A: seeds(70.0, 71.0), B: seeds(70.01, 71.01)}).status == "cannot tell"
        assert find(above(), {A: seeds(70.03, 71.03), B: seeds(70.0, 71.0)}).status == "holds"

    def test_unpaired_seeds_are_left_out(self) -> None:
        found = find(above(), {A: seeds(72.0, 73.0, 10.0), B: seeds(70.0, 70.0)})
        assert (found.contrasts[0].seeds, found.contrasts[0].mean) == (2, 2.5)

    def test_precisions_are_not_paired(self) -> None:
        found = find(above(), {A: seeds(72.0, precision="bfloat16"), B: seeds(70.0)})
        assert (found.status, found.detail) == ("partly run", "its cells have no seed in common")

    def test_one_seed_cannot_tell(self) -> None:
        found = find(above(), {A: seeds(79.0), B: seeds(70.0)})
        assert (found.status, found.detail) == ("cannot tell", "1 of 1 above zero; least +9.00 on one seed")

    def test_noise_cannot_tell(self) -> None:
        found = find(above(), {A: seeds(72.0, 70.0, 71.0), B: seeds(70.0, 71.0, 70.0)})
        assert found.status == "cannot tell"
        assert (
            found.detail
            == "1 of 1 above zero; least +0.67 [-1.91, +3.24] over 3 seeds, P(above) 0.67 [0.24, 0.94]"
        )

    def test_below_fails(self) -> None:
        assert find(above(), {A: seeds(70.0, 60.0, 80.0), B: seeds(72.0, 63.0, 84.0)}).status == "fails"

    def test_the_margin_counts(self) -> None:
        runs = {A: seeds(72.0, 63.0, 84.0), B: seeds(70.0, 60.0, 80.0)}
        assert find(above(1.2), runs).status == "holds"
        assert find(above(2.0), runs).status == "cannot tell"
        assert find(above(6.0), runs).status == "fails"

    def test_of_several_comparisons_all_must_hold(self) -> None:
        claim = make(kind="greater", left={"row": "A"}, right={"row": "B"}, over={"column": ["x", "y"]})
        runs = {A: seeds(72.0, 63.0, 84.0), B: seeds(70.0, 60.0, 80.0)}
        flat = {("t", "A", "y"): seeds(70.0, 60.1, 79.9), ("t", "B", "y"): seeds(70.0, 60.0, 80.0)}
        assert find(claim, runs | flat).status == "cannot tell"
        # Differences -2, -3, -4: below zero at 5 % (t = 5.2 against 2.92), and at 2.5 % for one of two (4.30).
        low = {("t", "A", "y"): seeds(68.0, 57.0, 76.0), ("t", "B", "y"): seeds(70.0, 60.0, 80.0)}
        assert find(claim, runs | low).status == "fails"
        # Differences -1, -2, -4: t = 2.65, below zero at neither.
        near = {("t", "A", "y"): seeds(69.0, 58.0, 76.0), ("t", "B", "y"): seeds(70.0, 60.0, 80.0)}
        assert find(claim, runs | near).status == "cannot tell"

    def test_what_is_known_of_a_claim_that_is_partly_run(self) -> None:
        claim = make(kind="greater", left={"row": "A"}, right={"row": "B"}, over={"column": ["x", "y"]})
        found = find(claim, {A: seeds(72.0, 63.0, 84.0), B: seeds(70.0, 60.0, 80.0)})
        assert found.status == "partly run"
        assert found.detail.startswith(
            "1 of 2 known: 1 of 1 above zero; least x: +3.00 [+1.31, +4.69] over 3 seeds"
        )
        found = find(claim, {A: seeds(67.0, 57.0, 76.0), B: seeds(70.0, 60.0, 80.0)})
        assert found.status == "fails"  # one failing comparison is enough

    def test_what_is_not_run(self) -> None:
        assert find(above(), {}).status == "not run"
        found = find(above(), {A: seeds(70.0)})
        assert (found.status, found.detail) == ("partly run", "1 of 2 cells missing; first t, B, x")


def test_within_is_shown_from_both_sides() -> None:
    claim = make(kind="within", left={"row": "A", "column": "x"}, right={"row": "B", "column": "x"}, margin=3.0)
    near = {A: seeds(70.0, 60.5, 80.0), B: seeds(70.0, 60.0, 80.5)}
    assert find(claim, near).status == "holds"
    assert len(find(claim, near).contrasts) == 2
    for values in ((80.0, 70.1, 90.0), (60.0, 50.1, 70.0)):
        assert find(claim, {A: seeds(*values), B: near[B]}).status == "fails"
    assert find(claim, {A: seeds(74.0, 60.0, 80.0), B: near[B]}).status == "cannot tell"


def test_at_most() -> None:
    claim = make(kind="at_most", left={"row": "A", "column": "x"}, margin=1.0)
    assert find(claim, {A: seeds(0.5, 0.6, 0.4)}).status == "holds"
    assert find(claim, {A: seeds(1.5, 1.6, 1.4)}).status == "fails"


def test_trends() -> None:
    cells = [{"row": row, "column": "x"} for row in "ABC"]
    claim = make(kind="trend", direction="down", cells=cells)
    runs: dict[Key, Seeds] = {A: seeds(9.0, 9.5), B: seeds(7.0, 7.6), C: seeds(5.0, 5.5)}
    found = find(claim, runs)
    assert (found.status, len(found.contrasts)) == ("holds", 2)
    assert [one.mean for one in found.contrasts] == [pytest.approx(1.95), pytest.approx(2.05)]
    assert find(make(kind="trend", direction="up", cells=cells), runs).status == "fails"


def test_gain_trend() -> None:
    claim = make(kind="gain_trend", left={"row": "A"}, right={"row": "B"}, along={"column": ["x", "y"]})
    runs = {
        A: seeds(2.0, 3.0),
        B: seeds(1.0, 2.0),
        ("t", "A", "y"): seeds(9.0, 9.9),
        ("t", "B", "y"): seeds(5.0, 6.0),
    }
    (one,) = find(claim, runs).contrasts
    assert one.mean == pytest.approx((3.0 + 2.9) / 2)


def test_a_figure_is_to_be_seen() -> None:
    assert find(make(kind="figure", needs="a look"), {}).detail == "a look"


class TestTelescope:
    def test_of_groups_of_twenty(self) -> None:
        assert telescope(20) == pytest.approx(0.5, abs=0.01)  # Simonsohn 2015: d33 of 20 per cell

    def test_a_difference_that_the_paper_could_not_have_seen(self) -> None:
        runs = {A: seeds(70.1, 70.2, 70.0), B: seeds(70.0, 70.0, 70.0)}
        spreads = {A: (3.0, 5), B: (4.0, 5)}
        (one,) = find(above(), runs, spreads).contrasts
        assert one.least == pytest.approx(telescope(5) * math.sqrt(12.5))
        assert one.too_small
        assert told(one).endswith("smaller than the paper could have seen")

    def test_without_spreads_nothing_is_said(self) -> None:
        (one,) = find(above(), {A: seeds(70.1, 70.2), B: seeds(70.0, 70.0)}, {A: (3.0, 5)}).contrasts
        assert math.isnan(one.least)
        assert not one.too_small
