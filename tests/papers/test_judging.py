"""Margins: half of the difference that a claim rests on, by hand, and what judging.toml may say."""

from dataclasses import replace
from typing import Any

import pytest

from fedrepro import papers
from fedrepro.papers.claims import Key, parse_claim
from fedrepro.papers.judging import Margin, checked, margin

CLAIM = parse_claim(
    {
        **{"id": "above", "text": "A above B.", "place": "Table 1", "item": "t", "kind": "greater"},
        **{"left": {"row": "{part}/A"}, "right": {"row": "{part}/B"}},
        "over": {"part": ["one", "two"], "column": ["x", "y"]},
    }
)
PRINTED: dict[Key, float] = {
    **{("t", "one/A", "x"): 74.5, ("t", "one/B", "x"): 72.0, ("t", "one/C", "x"): 60.0},
    **{
        ("t", "two/A", "x"): 70.0,
        ("t", "two/B", "x"): 69.9,
        ("t", "one/A", "y"): 50.0,
        ("t", "three/C", "x"): 1.0,
    },
}


def of(row: str, column: str = "x", step: float = 0.1, kind: str = "test_acc_pct", **judging: Any) -> Margin:
    facts: dict[str, Any] = {
        "judging": {"t": judging or {"effect": ["above"]}},
        "claims": [CLAIM],
        "printed": PRINTED,
    }
    return margin(("t", row, column), kind, step, **facts)


@pytest.mark.parametrize("row", ["one/A", "one/B", "one/C"])
def test_half_of_the_difference_in_its_part_of_the_column(row: str) -> None:
    assert of(row) == Margin(1.25, "half of the 2.5 points that “above” rests on")


def test_no_less_than_the_printing_step() -> None:
    assert of("two/A") == Margin(0.1, "the printing step; less by half of the 0.1 points that “above” rests on")


def test_one_point_where_no_claim_says_more() -> None:
    for found in (of("three/C"), of("one/A", "y"), of("one/A", effect=[])):  # B at y is not printed
        assert found == Margin(1.0, "no claim says more")


def test_other_metrics_have_shares() -> None:
    assert of("one/C", kind="rounds_to_target", effect=[]) == Margin(6.0, "10 % of the number: no claim says more")


def test_by_hand() -> None:
    rules = [{"row": "one/A", "points": 0.4, "reason": "why"}, {"column": "x", "points": 2, "reason": "else"}]
    assert of("one/A", margins=rules) == Margin(0.4, "why")
    assert of("one/B", margins=rules) == Margin(2.0, "else")
    assert of("one/A", "z", effect=["above"], margins=rules[1:]) == Margin(1.0, "no claim says more")


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"efect": ["above"]}, "unknown key 'efect' of t .*effect"),
        ({"effect": ["abov"]}, "no claim puts one cell above another as 'abov' .*above"),
        ({"margins": [{"points": 0, "reason": "why"}]}, "needs points above 0 and a reason"),
        ({"margins": [{"points": True, "reason": "why"}]}, "needs points above 0"),
        ({"margins": [{"points": float("inf"), "reason": "why"}]}, "needs points above 0"),
        ({"margins": [{"points": float("nan"), "reason": "why"}]}, "needs points above 0"),
        ({"margins": [{"points": 1.0, "reason": " "}]}, "and a reason"),
        ({"margins": [{"points": 1.0, "reason": "why", "rows": "A"}]}, "needs points above 0 and a reason"),
        (3, "t must be a table"),
    ],
)
def test_refusals(entry: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        checked({"t": entry}, [CLAIM])


def test_half_of_a_difference_that_is_said_to_be_small_is_no_margin() -> None:
    small = replace(CLAIM, id="near", kind="within", margin=2.0)
    with pytest.raises(ValueError, match="no claim puts one cell above another as 'near'"):
        checked({"t": {"effect": ["near"]}}, [CLAIM, small])


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"tt": {}}, r"prints no number of 'tt'.*\bt\b"),
        (
            {"t": {"margins": [{"row": "one/AA", "points": 1.0, "reason": "why"}]}},
            "row 'one/AA', which is not printed.*one/A",
        ),
        (
            {"t": {"margins": [{"column": "one/A", "points": 1.0, "reason": "why"}]}},
            "column 'one/A', which is not printed",
        ),
        ({"t": {"margins": [{"row": "z", "points": 1.0, "reason": "why"}]}}, "row 'z', which is not printed"),
    ],
)
def test_a_margin_is_for_a_cell_that_is_printed(table: Any, message: str) -> None:
    cells = [("t", "one/A", "x"), ("t", "one/B", "x"), ("u", "z", "x")]
    with pytest.raises(ValueError, match=message):
        checked(table, [], cells)
    assert checked({"t": {"margins": [{"row": "one/B", "points": 1.0, "reason": "why"}]}}, [], cells)


@pytest.mark.parametrize("name", papers.names())
def test_every_judged_item_is_one_of_the_papers(name: str) -> None:
    paper = papers.load(name)
    assert set(paper.judging) <= set(paper.reported["item"])


def test_fedbes_main_table() -> None:
    paper = papers.load("fedbe")
    means = {key: line["mean"] for key, line in paper.printed.items()}
    facts: dict[str, Any] = {"judging": paper.judging, "claims": paper.claims, "printed": means}
    # FedBE 74.5 and FedAvg 72.0; 72.7 and 66.5; Dirichlet 73.9 and 72.3.
    for row, column, points in (
        ("Step/FedBE w/o SWA", "ConvNet", 1.25),
        ("Step/FedAvg", "ResNet-32", 3.1),
        ("Dirichlet/1-Ensemble", "ConvNet", 0.8),
        ("Centralized/SGD", "ConvNet", 1.0),
    ):
        assert margin(("table1_methods", row, column), "test_acc_pct", 0.1, **facts).points == points
