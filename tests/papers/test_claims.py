"""Claims: each kind by hand, the errors of the file, and FedBE's claims on the paper's own numbers."""

import math
from pathlib import Path

import pandas as pd
import pytest

from fedrepro import papers
from fedrepro.notebooks import toy
from fedrepro.papers import claims
from fedrepro.papers.claims import Claim, Key, check, combinations, needed_cells, parse_claim, parse_claims

FEDBE = Path(claims.__file__).parent / "fedbe"
FIGURES = Path(__file__).parents[2] / "figures" / "fedbe"


def make(**keys: object) -> Claim:
    return parse_claim({"id": "c", "text": "A sentence.", "place": "Table 1", "item": "t"} | keys)


def values(row_columns: dict[tuple[str, str], float], item: str = "t") -> dict[Key, float]:
    return {(item, row, column): number for (row, column), number in row_columns.items()}


GREATER = {
    "kind": "greater",
    "left": {"row": "{partition}/A"},
    "right": {"row": "{partition}/B"},
    "over": {"partition": ["Step", "Dirichlet"], "column": ["x"]},
}
NUMBERS = values(
    {("Step/A", "x"): 61.0, ("Step/B", "x"): 60.5, ("Dirichlet/A", "x"): 70.0, ("Dirichlet/B", "x"): 68.0}
)


class TestGreater:
    def test_holds_and_names_the_worst(self) -> None:
        outcome = check(make(**GREATER), NUMBERS)
        assert outcome.status == "holds"
        assert outcome.detail == "2 of 2; worst Step, x: 61.0 vs 60.5"
        assert (outcome.holding, outcome.combinations) == (2, 2)

    def test_fails_when_one_combination_does(self) -> None:
        outcome = check(make(**GREATER), NUMBERS | {("t", "Step/A", "x"): 60.25})
        assert outcome.status == "fails"
        assert outcome.detail == "1 of 2; worst Step, x: 60.25 vs 60.5"

    def test_equal_is_not_greater(self) -> None:
        assert check(make(**GREATER), NUMBERS | {("t", "Step/A", "x"): 60.5}).status == "fails"

    @pytest.mark.parametrize(
        ("margin", "status"), [(0.4, "holds"), (0.5, "fails"), (1, "fails"), (-0.4, "holds"), (-3.0, "holds")]
    )
    def test_margin_is_added_to_the_right(self, margin: float, status: str) -> None:
        assert check(make(**GREATER, margin=margin), NUMBERS).status == status

    def test_negative_margin_allows_a_lower_left(self) -> None:
        lower = NUMBERS | {("t", "Step/A", "x"): 60.0}
        assert check(make(**GREATER, margin=-0.6), lower).status == "holds"
        assert check(make(**GREATER, margin=-0.4), lower).status == "fails"

    def test_floating_point_noise_does_not_decide(self) -> None:
        # 74.9 - 72.5 is 2.4000000000000057.
        pair = values({("Step/A", "x"): 74.9, ("Step/B", "x"): 72.5})
        claim = make(
            kind="greater",
            left={"row": "Step/A"},
            right={"row": "Step/B"},
            over={"column": ["x"]},
            margin=2.4,
        )
        assert check(claim, pair).status == "fails"

    def test_cell_of_another_item(self) -> None:
        claim = make(
            kind="greater", left={"row": "A", "column": "x"}, right={"item": "u", "row": "B", "column": "x"}
        )
        assert needed_cells(claim) == (("t", "A", "x"), ("u", "B", "x"))
        assert check(claim, {("t", "A", "x"): 2.0, ("u", "B", "x"): 1.0}).detail == "1 of 1; worst 2.0 vs 1.0"


class TestWithin:
    CLAIM = make(
        kind="within",
        left={"row": "{a}"},
        right={"row": "{b}"},
        margin=1.5,
        over={"a": ["p", "q", "r"], "b": ["p", "q", "r"], "column": ["x"]},
    )

    def test_pairs_are_compared_once_and_never_with_themselves(self) -> None:
        assert [label for label, _ in combinations(self.CLAIM)] == ["p, q, x", "p, r, x", "q, r, x"]

    def test_margin_itself_is_within(self) -> None:
        outcome = check(self.CLAIM, values({("p", "x"): 10.0, ("q", "x"): 11.5, ("r", "x"): 10.5}))
        assert outcome.status == "holds"
        assert outcome.detail == "3 of 3; worst p, q, x: 10.0 vs 11.5"

    def test_either_side_may_be_too_far(self) -> None:
        outcome = check(self.CLAIM, values({("p", "x"): 10.0, ("q", "x"): 8.0, ("r", "x"): 9.0}))
        assert outcome.status == "fails"
        assert outcome.detail == "2 of 3; worst p, q, x: 10.0 vs 8.0"


class TestTrend:
    @staticmethod
    def claim(direction: str) -> Claim:
        cells = [{"row": "{m}", "column": column} for column in ("1", "2", "3")]
        return make(kind="trend", direction=direction, cells=cells, over={"m": ["A"]})

    @pytest.mark.parametrize(
        ("numbers", "down", "up"),
        [
            ((3, 2, 1), "holds", "fails"),
            ((1, 2, 3), "fails", "holds"),
            ((3, 2, 2), "fails", "fails"),
            ((3, 1, 2), "fails", "fails"),
        ],
    )
    def test_is_strict_at_every_step(self, numbers: tuple[int, int, int], down: str, up: str) -> None:
        known = values({("A", str(place)): number for place, number in enumerate(numbers, start=1)})
        assert check(self.claim("down"), known).status == down
        assert check(self.claim("up"), known).status == up

    def test_detail_shows_the_sequence(self) -> None:
        known = values({("A", "1"): 78.2, ("A", "2"): 77.7, ("A", "3"): 71.5})
        assert check(self.claim("down"), known).detail == "1 of 1; worst A: 78.2, 77.7, 71.5"


class TestGainTrend:
    CLAIM = make(
        kind="gain_trend",
        left={"row": "{p}/A"},
        right={"row": "{p}/B"},
        over={"p": ["S", "D"]},
        along={"column": ["1", "2", "3"]},
    )
    RISING = values(
        {("S/A", "1"): 5, ("S/B", "1"): 4, ("S/A", "2"): 4, ("S/B", "2"): 2, ("S/A", "3"): 9, ("S/B", "3"): 6}
    )

    def test_gain_must_rise_along_the_axis(self) -> None:
        level = values(
            {
                ("D/A", "1"): 5,
                ("D/B", "1"): 4,
                ("D/A", "2"): 4,
                ("D/B", "2"): 2,
                ("D/A", "3"): 8,
                ("D/B", "3"): 6,
            }
        )
        outcome = check(self.CLAIM, self.RISING | level)
        assert outcome.status == "fails"
        assert outcome.detail == "1 of 2; worst D: gains 1.0, 2.0, 2.0"

    def test_holds_when_every_gain_rises(self) -> None:
        shifted = {
            (item, row.replace("S", "D"), column): n + 1.0 for (item, row, column), n in self.RISING.items()
        }
        assert check(self.CLAIM, self.RISING | shifted).status == "holds"


@pytest.mark.parametrize(("number", "status"), [(0.7, "holds"), (1.0, "holds"), (1.01, "fails"), (-3.0, "holds")])
def test_at_most(number: float, status: str) -> None:
    outcome = check(
        make(kind="at_most", left={"row": "A", "column": "1"}, margin=1.0), values({("A", "1"): number})
    )
    assert outcome.status == status
    assert outcome.detail == f"{int(status == 'holds')} of 1; worst {number} vs 1.0"


class TestWithoutAnAnswer:
    @pytest.mark.parametrize("unknown", [math.nan, math.inf])
    def test_partly_run_when_a_number_is_not_finite(self, unknown: float) -> None:
        outcome = check(make(**GREATER), NUMBERS | {("t", "Dirichlet/B", "x"): unknown})
        assert outcome.status == "partly run"
        assert outcome.detail == "1 of 4 cells missing; first t, Dirichlet/B, x"

    def test_not_run_when_a_cell_is_absent(self) -> None:
        assert check(make(**GREATER), {}).status == "not run"

    def test_figure_is_not_checkable_and_says_what_it_needs(self) -> None:
        outcome = check(make(kind="figure", needs="Curves that cross."), NUMBERS)
        assert (outcome.status, outcome.detail) == ("to be seen", "Curves that cross.")


class TestParsing:
    @pytest.mark.parametrize(
        ("keys", "message"),
        [
            ({**GREATER, "kind": "larger"}, "kind must be one of"),
            ({**GREATER, "note": "x"}, "unknown key 'note' for kind 'greater'"),
            ({**GREATER, "direction": "up"}, "unknown key 'direction' for kind 'greater'"),
            ({"kind": "figure", "needs": "x", "over": {}}, "unknown key 'over' for kind 'figure'"),
            ({"kind": "figure"}, "needs the key 'needs'"),
            ({"kind": "greater", "left": {"row": "A"}}, "needs the key 'right'"),
            ({**GREATER, "text": " "}, "text must be a text"),
            ({**GREATER, "margin": "1"}, "margin must be a number"),
            ({**GREATER, "margin": True}, "margin must be a number"),
            ({**GREATER, "kind": "within", "margin": -1}, "must not be negative"),
            ({**GREATER, "left": {"line": "A"}}, "a cell must have a row"),
            ({**GREATER, "left": "A"}, "a cell must have a row"),
            ({**GREATER, "left": {"row": "{partition.upper}/A"}}, "plain names only"),
            ({**GREATER, "left": {"row": "{partition!r}/A"}}, "plain names only"),
            ({**GREATER, "left": {"row": "{method}"}}, "must give the names"),
            ({**GREATER, "over": {"partition": ["Step"]}}, "must give the names"),
            (
                {**GREATER, "over": {"partition": ["Step"], "column": ["x"], "seed": ["1"]}},
                "must give the names",
            ),
            ({**GREATER, "over": {"partition": [], "column": ["x"]}}, "list of different texts"),
            ({**GREATER, "over": {"partition": ["a", "a"], "column": ["x"]}}, "list of different texts"),
            ({**GREATER, "over": ["x"]}, "over must be a table"),
            ({**GREATER, "right": GREATER["left"]}, "must compare different cells"),
            (
                {"kind": "trend", "direction": "down", "cells": [{"row": "A", "column": "x"}]},
                "two or more cells",
            ),
            (
                {"kind": "trend", "direction": "flat", "cells": [{"row": r, "column": "x"} for r in "AB"]},
                "direction must be 'up' or 'down', got 'flat'",
            ),
            ({**GREATER, "kind": "gain_trend", "along": {"column": ["x"]}}, "along must be one name"),
        ],
    )
    def test_error_names_the_claim_and_the_rule(self, keys: dict[str, object], message: str) -> None:
        with pytest.raises(ValueError, match=r"^claim odd-one: ") as error:
            make(**{"id": "odd-one"} | keys)
        assert message in str(error.value)

    def test_claim_without_id_says_so(self) -> None:
        with pytest.raises(ValueError, match="claim without id: kind 'figure' needs the key 'id'"):
            parse_claim({"kind": "figure", "needs": "x", "text": "x", "place": "x", "item": "t"})

    def test_one_id_twice(self) -> None:
        table = '[[claim]]\nid="a"\ntext="x"\nplace="x"\nitem="t"\nkind="figure"\nneeds="x"\n'
        assert [claim.id for claim in parse_claims(table)] == ["a"]
        with pytest.raises(ValueError, match="claim a: an id must be given once"):
            parse_claims(table + table)

    def test_a_file_without_claims_yet(self) -> None:
        assert parse_claims("# none yet\n") == ()

    @pytest.mark.parametrize("text", ['title = "x"', '[claim]\nid = "a"'])
    def test_file_of_another_shape(self, text: str) -> None:
        with pytest.raises(ValueError, match=r"must be \[\[claim\]\] tables"):
            parse_claims(text)

    def test_column_comes_from_the_axes_unless_given(self) -> None:
        assert [cell.column for cell in make(**GREATER).cells] == ["{column}", "{column}"]


@pytest.fixture(scope="module")
def fedbe() -> tuple[Claim, ...]:
    return parse_claims((FEDBE / "claims.toml").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def reported() -> dict[Key, float]:
    table = pd.read_csv(FEDBE / "reported.csv")
    return {(i, r, c): m for i, r, c, m in zip(*(table[k] for k in ["item", "row", "column", "mean"]))}


# What the paper's own numbers contradict, with the evidence; the readings are those of claims.toml.
CONTRADICTED = {
    # Step: the middle networks gain less than ResNet-20.
    "gain-grows-with-depth": "1 of 2; worst Step: gains 2.5, 7.3, 6.2, 5.0, 9.3",
    # The other exception is ConvNet on Dirichlet, where FedAvg is 4.6 points above.
    "fedavg-comparable-to-v-distillation": "8 of 10; worst Step, ResNet-56: 51.4 vs 56.4",
    # v-Distillation loses fewer points on both partitions: 16.2 against 16.8 and 10.3 against 11.2.
    "smallest-loss-with-depth": "6 of 8; worst Dirichlet, v-Distillation: gains 5.1, 4.2",
    "gain-larger-when-not-iid": "1 of 2; worst MobileNetV2: gains 2.8, 2.3",
    "fedprox-gain-at-least-2.5": "5 of 6; worst Normal, ConvNet: 74.9 vs 72.5",
    "fedprox-gain-at-most-5.7": "4 of 6; worst Stragglers, ResNet-20: 77.5 vs 69.4",
    # True of parameter 1 only.
    "dirichlet-close-to-gaussian": "3 of 8; worst alpha=0.1, ConvNet: 74.5 vs 72.5",
    # True of ResNet-20; ConvNet gains 0.5 to 2.2 points.
    "dirichlet-far-above-fedavg": "5 of 8; worst alpha=0.1, ConvNet: 72.5 vs 72.0",
}
SUPPORTED = {
    "above-fedavg": 10,
    "gain-at-least-2": 10,
    "gain-at-most-9": 10,
    "gain-larger-for-the-deepest": 2,
    "above-every-baseline": 30,
    "swa-above-sgd": 10,
    "bayesian-ensemble-above-clients-alone": 10,
    "fedavg-above-1-ensemble": 10,
    "distilled-resnet20-above-convnet": 6,
    "federated-accuracy-falls-with-depth": 10,
    "centralized-accuracy-rises-with-depth": 1,
    "samples-improve-the-teacher": 4,
    "own-predictions-improve-fedavg": 2,
    "other-public-data-as-good": 8,
    "other-public-data-above-fedavg": 8,
    "not-just-more-data": 1,
    "improves-on-fedavgm": 10,
    "improves-on-fedprox": 10,
    "above-fedavg-on-cifar100": 3,
    "above-fedavg-on-tiny-imagenet": 4,
    "above-fedavg-with-stragglers": 6,
    "improves-on-fedprox-with-stragglers": 6,
    "scaffold-fails-on-resnets": 2,
    "improves-on-scaffold": 2,
    "dirichlet-below-gaussian": 8,
    "dirichlet-1-close-to-gaussian": 2,
    "dirichlet-above-fedavg": 8,
    "insensitive-to-the-dirichlet-parameter": 12,
    "toy-ensemble-above-fedavg": 1,
    "sgd-more-sensitive-to-distillation-epochs": 1,
    "swa-stable-over-distillation-epochs": 1,
    "late-ensemble-above-fedavg": 1,
    "late-ensemble-below-fedbe": 1,
    "forty-rounds-are-enough": 1,
}


def test_claims_that_the_papers_own_numbers_contradict(
    fedbe: tuple[Claim, ...], reported: dict[Key, float]
) -> None:
    outcomes = {claim.id: check(claim, reported) for claim in fedbe}
    assert {name: o.detail for name, o in outcomes.items() if o.status == "fails"} == CONTRADICTED


def test_claims_that_the_papers_own_numbers_support(fedbe: tuple[Claim, ...], reported: dict[Key, float]) -> None:
    outcomes = {claim.id: check(claim, reported) for claim in fedbe}
    assert {name: o.combinations for name, o in outcomes.items() if o.status == "holds"} == SUPPORTED


# Sentences about what no run of ours measures: each says what a run must show.
TO_BE_SEEN = [
    "ensemble-gains-more-when-not-iid",
    "samples-better-calibrated-on-cifar10",
    "sgd-more-sensitive-to-noisy-labels",
]


def test_claims_without_all_of_their_numbers_are_not_judged(
    fedbe: tuple[Claim, ...], reported: dict[Key, float]
) -> None:
    outcomes = {claim.id: check(claim, reported) for claim in fedbe}
    printed = {claim.id: set(needed_cells(claim)) & set(reported) for claim in fedbe}
    assert all(not printed[name] for name, o in outcomes.items() if o.status == "not run")
    assert [name for name, o in outcomes.items() if o.status == "partly run"] == [
        "sgd-student-below-its-teacher",  # the student's accuracy is in Table 1, its teacher's nowhere
        "swa-student-nearer-to-its-teacher",
        "samples-improve-without-the-average",  # the lost row of Table 2
        "toy-best-sample-is-not-the-average",  # a star in the figure
    ]
    assert [name for name, o in outcomes.items() if o.status == "to be seen"] == TO_BE_SEEN
    assert [claim.id for claim in fedbe if claim.kind == "figure"] == TO_BE_SEEN


def test_every_cell_of_a_claim_is_printed_or_built(fedbe: tuple[Claim, ...], reported: dict[Key, float]) -> None:
    paper = papers.load("fedbe")
    built = {(item, c.row, c.column) for item in paper.items for c in paper.cells(item, "paper")}
    assert {key for claim in fedbe for key in needed_cells(claim)} <= set(reported) | built


def test_the_toy_s_claims_are_checked_on_its_records(fedbe: tuple[Claim, ...]) -> None:
    made: dict[Key, float] = {}
    for item in ("figure1_simplex", "figure8_confidence"):
        table = pd.read_csv(FIGURES / item / "paper.csv")
        for (row, column), lines in table.groupby(["row", "column"]):
            made[item, str(row), str(column)] = lines["result"].mean()
    about = [c for c in fedbe if c.item in ("figure1_simplex", "figure8_confidence") and c.kind != "figure"]
    assert {claim.id: check(claim, made).status for claim in about} == {
        "toy-ensemble-above-fedavg": "holds",
        "toy-best-sample-is-not-the-average": "holds",
        "toy-samples-above-clients": "holds",
        "clients-overconfident": "holds",
        "samples-better-calibrated": "holds",
    }


def test_the_record_of_confident_predictions_is_that_of_the_histograms() -> None:
    folder = FIGURES / "figure8_confidence"
    found = toy.overconfidence(pd.read_csv(folder / "figure8_confidence_paper.csv"), above=0.8)
    table = pd.read_csv(folder / "paper.csv").set_index(["row", "seed"])["result"]
    for line in found.to_dict("records"):
        right = table[f"{line['group']}, right among confident", line["seed"]]
        assert right == pytest.approx(100 - line["wrong_among_confident_pct"], abs=1e-4)


def test_every_item_of_the_paper_has_a_claim(fedbe: tuple[Claim, ...], reported: dict[Key, float]) -> None:
    without_numbers = {
        "figure2_depth",
        "figure3_samples",
        "figure5_local_decay",
        "figure6_round_decay",
        "figure7_weight_decay",
        "figure8_confidence",
    }
    assert {claim.item for claim in fedbe} == {item for item, _, _ in reported} | without_numbers


def test_a_margin_has_a_reading(fedbe: tuple[Claim, ...]) -> None:
    assert [claim.id for claim in fedbe if claim.margin and not claim.reading] == []
