"""Judging: every word by hand."""

import math
from typing import Any

import pytest

from fedrepro.papers.gap import Spread
from fedrepro.papers.judge import JUDGED, STATUSES, WORDS, Word, judge
from fedrepro.papers.metrics import METRICS, metric

NAN = math.nan
PRIOR = Spread(0.4, 4, "our seeds of 3 other cells")


def cell(mean: float = 70.0, std: float = NAN, runs: float = NAN, status: str = "ok") -> dict[str, Any]:
    return {"mean": mean, "std": std, "runs": runs, "status": status}


class TestJudge:
    @pytest.mark.parametrize(
        ("ours", "word"),
        [
            # Variances 0.04 / 4 + 0.09 / 5 + 0.01 / 12: u = 0.1697. Shares 0.357 and 0.643: 3.57 degrees of
            # freedom, t 2.205 and 2.911: half the interval 0.374; different from 0.494 on.
            (70.1, "reproduced"),
            (70.45, "reproduced"),
            (70.55, "reproduced, with a difference"),
            (69.45, "reproduced, with a difference"),
            (70.65, "off"),
            (69.35, "off"),
        ],
    )
    def test_equivalence_then_difference(self, ours: float, word: Word) -> None:
        spread = 0.2 * math.sqrt(3) / 2  # of four values at equal distances of two sizes: standard deviation 0.2
        values = [ours - spread, ours - spread, ours + spread, ours + spread]
        verdict = judge(cell(70.0, 0.3, 5), values, scale="paper", margin=1.0, step=0.1)
        assert verdict.word == word
        assert verdict.gap_points == pytest.approx(ours - 70)
        assert (verdict.high - verdict.low) / 2 == pytest.approx(0.374, abs=2e-3)
        assert verdict.prior == ""

    def test_scattered_seeds_cannot_tell(self) -> None:
        verdict = judge(cell(), [75.0, 79.0], scale="paper", step=0.1)
        assert verdict.word == "cannot tell"
        assert verdict.low < -1 < 1 < verdict.high
        assert verdict.prior == "the paper's: these seeds"

    def test_the_words_do_not_jump_with_the_last_digit(self) -> None:
        for ours in ([70.4, 70.4], [70.4, 70.41]):
            assert judge(cell(), ours, scale="paper", step=0.1).word == "reproduced, with a difference"

    def test_fewer_seeds_never_pass_more_easily(self) -> None:
        values = [69.6, 70.4, 69.8, 70.2, 69.9, 70.1]
        words = [judge(cell(70.0, 0.3, 5), values[:n], scale="paper", step=0.1).word for n in (2, 4, 6)]
        assert words == ["cannot tell", "reproduced", "reproduced"]

    @pytest.mark.parametrize("margin", [-1.0, 0.0, NAN, math.inf])
    def test_a_margin_that_is_none(self, margin: float) -> None:
        with pytest.raises(ValueError, match=f"a margin must be above 0 and finite, got {margin}"):
            judge(cell(), [70.0], scale="paper", margin=margin, step=0.1)

    def test_more_seeds_are_planned(self) -> None:
        verdict = judge(cell(70.0, 0.3, 5), [69.6, 70.4], scale="paper", step=0.1)
        assert (verdict.word, verdict.more >= 1, math.isfinite(verdict.more)) == ("cannot tell", True, True)
        hopeless = judge(cell(70.0, 3.0, 3), [69.6, 70.4], scale="paper", step=0.1)
        assert (hopeless.word, hopeless.more) == ("cannot tell", math.inf)

    @pytest.mark.parametrize("scale", ["smoke", "short"])
    def test_a_smaller_scale_is_never_a_reproduction(self, scale: str) -> None:
        verdict = judge(cell(70.0, 1.0, 5), [70.0, 70.0, 70.0], scale=scale)
        assert verdict.word == "not run"
        assert math.isnan(verdict.gap_points)

    def test_no_run(self) -> None:
        assert judge(cell(70.0, 1.0, 5), [], scale="paper").word == "not run"

    def test_numbers_that_nobody_can_check_are_shown_and_not_judged(self) -> None:
        for status, word in (("contradiction", "paper contradicts itself"), ("suspicious", "suspicious")):
            assert judge(cell(status=status), [], scale="paper").word == word
            verdict = judge(cell(status=status), [71.5, 71.5], scale="paper")
            assert (verdict.word, verdict.gap_points) == (word, 1.5)

    def test_a_setting_tuned_to_the_number(self) -> None:
        verdict = judge(cell(70.0, 0.3, 5), [70.0, 70.1, 69.9], scale="paper", tuned=True)
        assert (verdict.word, verdict.gap_points) == ("tuned", pytest.approx(0.0))
        assert judge(cell(), [], scale="paper", tuned=True).word == "not run"

    def test_a_lost_number(self) -> None:
        assert judge(cell(NAN, status="lost"), [71.0], scale="paper").word == "number lost"

    @pytest.mark.parametrize("status", ["repaired", "inferred"])
    def test_numbers_read_through_damage_count(self, status: str) -> None:
        assert judge(cell(70.0, 0.3, 5, status), [70.1, 69.9, 70.0], scale="paper").word == "reproduced"

    def test_refuses_unknown_words(self) -> None:
        with pytest.raises(ValueError, match=r"status must be one of .* got 'fine'"):
            judge(cell(status="fine"), [70.0], scale="paper")
        with pytest.raises(ValueError, match=r"scale must be one of .* got 'full'"):
            judge(cell(), [70.0], scale="full")
        with pytest.raises(ValueError, match="status 'ok' must be known"):
            judge(cell(NAN), [70.0], scale="paper")

    def test_refuses_what_is_no_number(self) -> None:
        with pytest.raises(ValueError, match="at least 0, got -1"):
            judge(cell(70.0, -1.0, 5), [71.0], scale="paper")
        with pytest.raises(ValueError, match="finite"):
            judge(cell(70.0, 1.0, 5), [71.0, NAN], scale="paper")

    def test_refuses_an_unknown_metric(self) -> None:
        with pytest.raises(ValueError, match=r"unknown metric 'test_acc' \(did you mean 'test_acc_pct'\?\)"):
            judge(cell() | {"metric": "test_acc"}, [70.0], scale="paper")


class TestOneSeed:
    def test_without_a_spread_it_says_nothing(self) -> None:
        for runs, std in ((NAN, NAN), (1, 3.0), (NAN, 3.0)):  # over one run, or nobody knows how many
            verdict = judge(cell(70.0, std, runs), [70.0], scale="paper")
            assert (verdict.word, verdict.prior) == ("cannot tell", "none: one seed, and no spread is known")
            assert (verdict.gap_points, verdict.more) == (0.0, 1)

    def test_it_takes_the_papers_and_says_so(self) -> None:
        # u = 0.2 sqrt(1 + 1 / 5) = 0.219, t(0.95, 4) = 2.132: half the interval 0.467
        verdict = judge(cell(70.0, 0.2, 5), [70.3], scale="paper")
        assert (verdict.word, verdict.prior) == ("reproduced", "ours: the paper's runs")
        assert verdict.high == pytest.approx(0.3 + 0.467, abs=1e-3)

    def test_of_two_priors_it_takes_the_larger(self) -> None:
        verdict = judge(cell(70.0, 0.2, 5), [70.3], scale="paper", prior=PRIOR)
        assert verdict.prior == "ours: our seeds of 3 other cells"
        assert judge(cell(70.0, 0.6, 5), [70.3], scale="paper", prior=PRIOR).prior == "ours: the paper's runs"

    def test_a_prior_for_both(self) -> None:
        # u = 0.4 sqrt(1 + 1): 0.566 * 2.132 = 1.21
        verdict = judge(cell(70.0), [70.0], scale="paper", prior=PRIOR, margin=1.3)
        whose = "our seeds of 3 other cells"
        assert (verdict.word, verdict.prior) == ("reproduced", f"ours: {whose}; the paper's: {whose}")
        assert verdict.high == pytest.approx(1.206, abs=1e-3)


class TestMargins:
    @pytest.mark.parametrize(
        ("name", "mean", "gap", "word"),
        [
            ("test_acc_pct", 70.0, 0.9, "reproduced, with a difference"),
            ("test_acc_pct", 70.0, 1.1, "off"),
            ("acc_gain_pct", 0.7, 0.9, "reproduced, with a difference"),
            ("rounds_to_target", 350.0, 34.0, "reproduced, with a difference"),
            ("rounds_to_target", 350.0, 36.0, "off"),
            ("relative_weight_distance", 0.40, 0.019, "reproduced, with a difference"),
            ("relative_weight_distance", 0.40, 0.021, "off"),
            ("percent", 78.0, 3.8, "reproduced, with a difference"),
            ("percent", 78.0, 4.0, "off"),
        ],
    )
    def test_of_each_metric(self, name: str, mean: float, gap: float, word: Word) -> None:
        values = [mean + gap] * 3
        assert judge(cell(mean) | {"metric": name}, values, scale="paper").word == word

    def test_no_margin_is_below_the_printing_step(self) -> None:
        verdict = judge(cell(70.0), [70.0, 70.0], scale="paper", margin=0.01, step=0.5)
        assert verdict.margin == 0.5

    def test_times_have_no_gap(self) -> None:
        verdict = judge(cell(10.0) | {"metric": "seconds"}, [20.0], scale="paper")
        assert (verdict.word, math.isnan(verdict.gap_points)) == ("not judged", True)
        assert judge(cell(10.0) | {"metric": "seconds"}, [], scale="paper").word == "not run"

    def test_every_metric_has_a_unit_and_a_margin(self) -> None:
        for name, kind in METRICS.items():
            assert kind.unit in {"%", "points", "rounds", "ratio", "s", "h"}
            assert kind.better in {"more", "less", ""}
            assert (kind.margin(100.0) > 0) == kind.judged, name
            assert metric(name) is kind


class TestCensored:
    ROUNDS = cell(20.0, 2.0, 3) | {"metric": "rounds_to_target"}

    def word(self, values: list[float], censored: list[bool], **facts: Any) -> Word:
        verdict = judge(self.ROUNDS | facts, values, scale="paper", censored=censored)
        assert math.isnan(verdict.gap_points)
        return verdict.word

    def test_a_bound_among_the_numbers(self) -> None:
        assert self.word([18.0, 40.0], [False, True]) == "censored"

    @pytest.mark.parametrize(
        ("bound", "facts", "word"),
        [
            # A margin of 2 rounds, and t(0.975, 2) 2 / sqrt(3) = 4.303 * 1.155 = 4.97 of the paper's.
            (26.9, {}, "censored"),
            (27.1, {}, "off"),
            (22.1, {"std": NAN}, "censored"),  # one bound, and nobody's spread: it says nothing of other runs
        ],
    )
    def test_only_bounds(self, bound: float, facts: dict[str, Any], word: Word) -> None:
        assert self.word([bound], [True], **facts) == word

    def test_doubts_come_first(self) -> None:
        for status, word in (("contradiction", "paper contradicts itself"), ("suspicious", "suspicious")):
            assert self.word([40.0, 40.0], [True, True], status=status) == word
        assert judge(self.ROUNDS, [40.0], scale="paper", censored=[True], tuned=True).word == "tuned"

    def test_a_smaller_scale_and_a_lost_number_come_first(self) -> None:
        assert judge(self.ROUNDS, [40.0], scale="short", censored=[True]).word == "not run"
        lost = self.ROUNDS | {"mean": NAN, "status": "lost"}
        assert judge(lost, [40.0], scale="paper", censored=[True]).word == "number lost"


def test_words_and_statuses() -> None:
    assert len(set(WORDS)) == len(WORDS)
    assert WORDS[:4] == JUDGED
    assert len(set(STATUSES)) == len(STATUSES)
