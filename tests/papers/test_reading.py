"""Readings: which number of a run's rounds stands in a cell, worked out by hand."""

import math
from typing import Any

import pytest

from fedrepro.papers.reading import Reading, Value

NAN = math.nan
ROWS: list[dict[str, Any]] = [
    {"round": 0.0, "accuracy": 50.0, "ensemble_accuracy": None, "seconds": 3.0, "forget": 1.0},
    {"round": 1.0, "accuracy": 72.0, "ensemble_accuracy": None, "seconds": 1.0},
    {"round": 2.0, "accuracy": 60.0, "ensemble_accuracy": NAN, "seconds": 1.0, "forget": 4.0},
    {"round": 3.0, "accuracy": 71.5, "ensemble_accuracy": 80.0, "seconds": 1.0, "forget": None},
]


@pytest.mark.parametrize(("answer", "number"), [("student", 71.5), ("ensemble", 80.0)])
def test_the_last_answer_unless_something_else_is_asked_for(answer: str, number: float) -> None:
    assert Reading()(ROWS, answer) == Value(number)
    assert Reading().until is None


@pytest.mark.parametrize(
    ("read", "number"),
    [
        ({"at": 1}, 50.0),
        ({"at": 3}, 60.0),
        ({"at": "best"}, 72.0),
        ({"at": "best", "cap": 1}, 50.0),
        ({"at": "mean", "cap": 3}, (50 + 72 + 60) / 3),
        ({"at": "sum", "measure": "seconds"}, 6.0),
        ({"at": "mean", "measure": "seconds"}, 1.5),
        ({"at": "last", "measure": "accuracy", "cap": 2}, 72.0),
        ({"at": "mean", "measure": "forget"}, 2.5),  # of the two that are known
        ({"measure": "ensemble_accuracy"}, 80.0),
    ],
)
def test_a_round_the_best_or_all_rounds(read: dict[str, Any], number: float) -> None:
    value = Reading.of(read)(ROWS, "student")
    assert value.number == pytest.approx(number)
    assert not value.censored


def test_of_an_ensemble_what_is_measured_of_the_ensemble() -> None:
    assert Reading(at="best")(ROWS, "ensemble") == Value(80.0)
    assert Reading(at="best", measure="accuracy")(ROWS, "ensemble") == Value(72.0)


@pytest.mark.parametrize(
    ("read", "value"),
    [
        ({"target": 72.0}, Value(2.0)),  # at least the target
        ({"target": 50.0}, Value(1.0)),  # rounds count from 1
        ({"target": 72.5}, Value(4.0, censored=True)),
        ({"target": 71.0, "cap": 1}, Value(1.0, censored=True)),
        ({"target": 72.0, "cap": 2}, Value(2.0)),
        ({"target": 72.5, "cap": 100}, Value(4.0, censored=True)),
        ({"target": 79.0, "measure": "ensemble_accuracy"}, Value(4.0)),  # unknown rounds reach nothing
    ],
)
def test_the_first_round_that_reaches_a_target(read: dict[str, Any], value: Value) -> None:
    reading = Reading.of({"at": "first"} | read)
    assert reading(ROWS, "student") == value
    assert reading.until == (read.get("measure", "answer"), read["target"])
    assert reading.column("student") == read.get("measure", "accuracy")


@pytest.mark.parametrize(
    "read",
    [
        {"at": 5},
        {"at": 2, "measure": "forget"},
        {"measure": "forget"},
        {"measure": "ensemble_accuracy", "cap": 2},
        {"at": "best", "measure": "ensemble_accuracy", "cap": 2},
    ],
)
def test_what_is_unknown_is_no_number(read: dict[str, Any]) -> None:
    value = Reading.of(read)(ROWS, "student")
    assert math.isnan(value.number)
    assert not value.censored


@pytest.mark.parametrize(
    ("read", "message"),
    [
        ({"at": "frist"}, r"at must be .* got 'frist' \(did you mean 'first'\?\)"),
        ({"at": 0}, "a round's number from 1, got 0"),
        ({"at": True}, "a round's number from 1, got True"),
        ({"at": "first"}, "a finite target need each other, got 'first' and nan"),
        ({"target": 50.0}, "a finite target need each other, got 'last' and 50.0"),
        ({"cap": -1}, r"cap must be 0 \(all rounds\) or .* got -1"),
        ({"at": 3, "cap": 2}, "include the round that is read, got 2"),
        ({"mesure": "accuracy"}, r"unknown key 'mesure' of a reading \(did you mean 'measure'\?\)"),
    ],
)
def test_refuses_what_cannot_be_read(read: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Reading.of(read)


def test_a_run_must_have_the_measure() -> None:
    with pytest.raises(ValueError, match=r"no round has the measure 'acuracy' \(did you mean 'accuracy'\?\)"):
        Reading(measure="acuracy")(ROWS, "student")
    with pytest.raises(ValueError, match="at least one round, got none"):
        Reading()([], "student")
