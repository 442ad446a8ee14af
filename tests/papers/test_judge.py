"""Judging: gaps worked out by hand, every word, and what is near for each metric."""

import math
from typing import Any

import pytest

from fedrepro.papers.judge import STATUSES, WORDS, judge, standard_errors
from fedrepro.papers.metrics import METRICS, metric

NAN = math.nan


class TestStandardErrors:
    def test_both_spreads(self) -> None:
        # Ours: mean 80, variance 18, two runs. sqrt(4^2 / 1 + 18 / 2) = 5.
        assert standard_errors(70.0, 4.0, 1, [77.0, 83.0]) == pytest.approx(2.0)
        assert standard_errors(90.0, 4.0, 1, [77.0, 83.0]) == pytest.approx(-2.0)
        assert standard_errors(70.0, 8.0, 4, [77.0, 83.0]) == pytest.approx(2.0)

    def test_one_run_takes_the_papers_spread(self) -> None:
        # sqrt(3^2 / 5 + 3^2 / 1) = sqrt(10.8)
        assert standard_errors(70.0, 3.0, 5, [76.0]) == pytest.approx(6 / math.sqrt(10.8))

    def test_without_the_papers_spread_ours_alone(self) -> None:
        # Ours: mean 70, variance 8; the paper's number counts as one run of that spread: 4 / sqrt(8 + 8/2).
        assert standard_errors(66.0, NAN, NAN, [68.0, 72.0]) == pytest.approx(4 / 12**0.5)

    def test_a_spread_over_an_unknown_number_of_runs_is_unknown(self) -> None:
        # Ours: mean 70, variance 8; the paper's number counts as one run of that spread: 4 / sqrt(8 + 8/2).
        assert standard_errors(66.0, 5.0, NAN, [68.0, 72.0]) == pytest.approx(4 / 12**0.5)
        assert math.isnan(standard_errors(66.0, 5.0, NAN, [68.0]))

    @pytest.mark.parametrize(
        ("mean", "std", "runs", "ours"),
        [
            (70.0, NAN, NAN, [71.0]),
            (70.0, 1.0, 5, []),
            (NAN, 1.0, 5, [71.0, 72.0]),
            (70.0, NAN, NAN, [64.1, 64.1, 64.1]),  # their computed spread is noise, not 0
            (70.0, 0.0, 5, [71.0]),
        ],
    )
    def test_nothing_known(self, mean: float, std: float, runs: float, ours: list[float]) -> None:
        assert math.isnan(standard_errors(mean, std, runs, ours))

    def test_refuses_what_is_no_number(self) -> None:
        with pytest.raises(ValueError, match="at least 0, got -1"):
            standard_errors(70.0, -1.0, 5, [71.0])
        with pytest.raises(ValueError, match="finite"):
            standard_errors(70.0, 1.0, 5, [71.0, NAN])


def cell(mean: float = 70.0, std: float = NAN, runs: float = NAN, status: str = "ok") -> dict[str, Any]:
    return {"mean": mean, "std": std, "runs": runs, "status": status}


class TestJudge:
    @pytest.mark.parametrize(
        ("mean", "word"), [(65.0, "reproduced"), (64.9, "off"), (95.0, "reproduced"), (95.1, "off")]
    )
    def test_three_standard_errors(self, mean: float, word: str) -> None:
        # A standard error is 5 points here, and our mean 80.
        assert judge(cell(mean, 4.0, 1), [77.0, 83.0], scale="paper").word == word

    @pytest.mark.parametrize(
        ("mean", "ours", "word"),
        [(76.6, 77.1, "reproduced"), (76.6, 76.1, "reproduced"), (76.6, 77.2, "off")],
    )
    def test_half_a_point_where_no_spread_is_known(self, mean: float, ours: float, word: str) -> None:
        assert judge(cell(mean), [ours], scale="paper").word == word

    def test_a_known_spread_comes_before_the_half_point(self) -> None:
        # 0.4 points, but more than four standard errors: variance 0.005, sqrt(0.005 + 0.005/2) = 0.0866.
        verdict = judge(cell(70.0), [70.35, 70.45], scale="paper")
        assert verdict.word == "off"
        assert (verdict.gap_points, verdict.gap_se) == (pytest.approx(0.4), pytest.approx(0.4 / 0.0075**0.5))

    @pytest.mark.parametrize("scale", ["smoke", "short"])
    def test_a_smaller_scale_is_never_a_reproduction(self, scale: str) -> None:
        verdict = judge(cell(70.0, 1.0, 5), [70.0, 70.0, 70.0], scale=scale)
        assert verdict.word == "not run"
        assert math.isnan(verdict.gap_points)

    def test_no_run(self) -> None:
        assert judge(cell(70.0, 1.0, 5), [], scale="paper").word == "not run"

    @pytest.mark.parametrize("status", ["contradiction", "suspicious"])
    def test_a_paper_against_itself_is_shown_but_not_judged(self, status: str) -> None:
        assert judge(cell(status=status), [], scale="paper").word == "paper contradicts itself"
        verdict = judge(cell(status=status), [71.5], scale="paper")
        assert (verdict.word, verdict.gap_points) == ("paper contradicts itself", 1.5)

    def test_a_lost_number(self) -> None:
        assert judge(cell(NAN, status="lost"), [71.0], scale="paper").word == "number lost"

    @pytest.mark.parametrize("status", ["repaired", "inferred"])
    def test_numbers_read_through_damage_count(self, status: str) -> None:
        assert judge(cell(status=status), [70.2], scale="paper").word == "reproduced"

    def test_refuses_unknown_words(self) -> None:
        with pytest.raises(ValueError, match=r"status must be one of .* got 'fine'"):
            judge(cell(status="fine"), [70.0], scale="paper")
        with pytest.raises(ValueError, match=r"scale must be one of .* got 'full'"):
            judge(cell(), [70.0], scale="full")
        with pytest.raises(ValueError, match="status 'ok' must be known"):
            judge(cell(NAN), [70.0], scale="paper")

    def test_refuses_an_unknown_metric(self) -> None:
        with pytest.raises(ValueError, match=r"unknown metric 'test_acc' \(did you mean 'test_acc_pct'\?\)"):
            judge(cell() | {"metric": "test_acc"}, [70.0], scale="paper")


class TestMetrics:
    @pytest.mark.parametrize(
        ("name", "mean", "ours", "word"),
        [
            ("test_acc_pct", 70.0, 70.5, "reproduced"),
            ("acc_gain_pct", 0.7, 1.3, "off"),
            ("rounds_to_target", 350.0, 385.0, "reproduced"),
            ("rounds_to_target", 350.0, 386.0, "off"),
            ("rounds_to_target", 4.0, 4.4, "reproduced"),  # though a mean of two seeds is 0.5 away at least
            ("relative_weight_distance", 0.40, 0.42, "reproduced"),
            ("relative_weight_distance", 0.40, 0.43, "off"),
            ("percent", 78.0, 81.9, "reproduced"),
            ("percent", 78.0, 82.0, "off"),
            ("seconds", 10.0, 10.0, "not judged"),
            ("hours", 5.0, 5.0, "not judged"),
            ("decay", 0.9, 0.9, "not judged"),
        ],
    )
    def test_what_is_near(self, name: str, mean: float, ours: float, word: str) -> None:
        assert judge(cell(mean) | {"metric": name}, [ours], scale="paper").word == word

    def test_a_known_spread_judges_rounds_too(self) -> None:
        # A standard error of 31 sqrt(2), as one seed takes the paper's spread over one run: 120 is within three.
        assert judge(cell(350.0, 31.0, 1) | {"metric": "rounds_to_target"}, [470.0], scale="paper").word == (
            "reproduced"
        )

    def test_times_have_no_gap(self) -> None:
        verdict = judge(cell(10.0) | {"metric": "seconds"}, [20.0], scale="paper")
        assert math.isnan(verdict.gap_points)
        assert judge(cell(10.0) | {"metric": "seconds"}, [], scale="paper").word == "not run"

    def test_every_metric_says_what_is_near_and_in_which_unit(self) -> None:
        for name, kind in METRICS.items():
            assert kind.unit in {"%", "points", "rounds", "ratio", "s", "h"}
            assert kind.better in {"more", "less", ""}
            assert (kind.margin(100.0) > 0) == kind.judged, name
            assert kind.near(0.0, 1.0)
            assert not kind.near(NAN, 1.0)
        assert metric("hours").unit == "h"


class TestCensored:
    ROUNDS = cell(20.0) | {"metric": "rounds_to_target"}

    def word(self, values: list[float], censored: list[bool], **facts: float) -> str:
        verdict = judge(self.ROUNDS | facts, values, scale="paper", censored=censored)
        assert math.isnan(verdict.gap_points)
        assert math.isnan(verdict.gap_se)
        return verdict.word

    def test_a_bound_is_not_averaged(self) -> None:
        assert self.word([18.0, 22.0, 40.0], [False, False, True]) == "censored"
        assert self.word([100.0, 22.0, 40.0], [True, False, True]) == "censored"

    def test_bounds_below_the_papers_number_say_nothing(self) -> None:
        assert self.word([18.0, 18.0], [True, True]) == "censored"
        assert self.word([22.0, 30.0], [True, True]) == "censored"  # a tenth above is near

    def test_when_all_bounds_lie_far_above_it_is_off(self) -> None:
        assert self.word([23.0, 30.0], [True, True]) == "off"
        assert self.word([23.0, 30.0], [True, True], std=2.0, runs=3.0) == "censored"
        assert self.word([27.0, 30.0], [True, True], std=2.0, runs=3.0) == "off"

    def test_smaller_scales_and_lost_numbers_come_first(self) -> None:
        assert judge(self.ROUNDS, [40.0], scale="short", censored=[True]).word == "not run"
        lost = self.ROUNDS | {"mean": NAN, "status": "lost"}
        assert judge(lost, [40.0], scale="paper", censored=[True]).word == "number lost"

    def test_the_last_word_is_of_cells_without_a_number(self) -> None:
        assert WORDS[-1] == "not reported"  # the report counts on it
        assert "ok" in STATUSES
