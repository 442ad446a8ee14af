"""Readings: which number of a run stands in a cell, so that one run can serve several cells."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from fedrepro.core.names import nearest

ANSWER = "answer"
AT = ("last", "first", "best", "mean", "sum")
# What every run records of a round. Stages' seconds ("train_seconds") and what a method measures come on top.
RECORDED = (
    *("accuracy", "average_accuracy", "teacher_accuracy", "ensemble_accuracy", "ensemble_size"),
    *("train_loss", "distill_loss", "seconds"),
)


@dataclass(frozen=True)
class Value:
    """A number that was read; a censored one is a lower bound, as the target was not reached by then."""

    number: float
    censored: bool = False


@dataclass(frozen=True, kw_only=True)
class Reading:
    """How a cell's number is read from the rounds of a run.

    Args:
        measure: "answer" for the accuracy of what the method answers with (its global model, or its ensemble),
            else a column of the run's rounds.
        at: "last" round, or a round's number, counted from 1; "best" (the largest), "mean" or "sum" over rounds;
            "first": not the measure but the number of the first round in which it is at least the target.
        target: of "first".
        cap: how many rounds are looked at; 0 for all. A run that does not reach its target in them is censored.

    Raises:
        ValueError: for an unknown `at`, a target without "first" or the other way round, or numbers below range.
    """

    measure: str = ANSWER
    at: str | int = "last"
    target: float = math.nan
    cap: int = 0

    def __post_init__(self) -> None:
        """Check what belongs together."""
        if isinstance(self.at, str) and self.at not in AT:
            raise ValueError(f"at must be a round's number or one of {AT}, got {self.at!r}{nearest(self.at, AT)}")
        if not isinstance(self.at, str) and (isinstance(self.at, bool) or self.at < 1):
            raise ValueError(f"at must be a round's number from 1, got {self.at!r}")
        if (self.at == "first") != math.isfinite(self.target):
            raise ValueError(
                f'at = "first" and a finite target need each other, got {self.at!r} and {self.target}'
            )
        if self.cap < 0 or (isinstance(self.at, int) and 0 < self.cap < self.at):
            raise ValueError(f"cap must be 0 (all rounds) or include the round that is read, got {self.cap}")

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> "Reading":
        """Build a reading from the plain values of a `read` in items.toml.

        Raises:
            ValueError: for an unknown name, with the nearest real one, or a value out of range.
        """
        names = [field.name for field in fields(cls)]
        for name in values:
            if name not in names:
                raise ValueError(f"unknown key {name!r} of a reading{nearest(name, names)}")
        return cls(**values)

    def column(self, answer: str) -> str:
        """Return the column that is read of a method that answers with its "student" or its "ensemble"."""
        if self.measure != ANSWER:
            return self.measure
        return "ensemble_accuracy" if answer == "ensemble" else "accuracy"

    @property
    def until(self) -> tuple[str, float] | None:
        """What may end the run early: a measure and the target that it must reach; None if all rounds count."""
        return (self.measure, self.target) if self.at == "first" else None

    def __call__(self, rows: Sequence[Mapping[str, Any]], answer: str) -> Value:
        """Read the number.

        Args:
            rows: what was measured in each round, in their order; None and NaN stand for unknown.
            answer: what the method answers with, "student" or "ensemble".

        Returns:
            The number, NaN where nothing is known: a round that was not played, a measure never taken. Unknown
            rounds reach no target and are left out of "best", "mean" and "sum".

        Raises:
            ValueError: for no rounds, or a measure that no round has, with the nearest real one.
        """
        if not rows:
            raise ValueError("a reading needs at least one round, got none")
        column, names = self.column(answer), list(dict.fromkeys(name for row in rows for name in row))
        if column not in names:
            told = f"no round has the measure {column!r}{nearest(column, names)}"
            raise ValueError(f"{told}; a run from before it was taken must leave the store (its folder in it)")
        seen = [_number(row.get(column)) for row in rows[: self.cap or None]]
        if self.at == "first":
            reached = (number for number, value in enumerate(seen, start=1) if value >= self.target)
            first = next(reached, None)
            return Value(float(first or len(seen)), censored=first is None)
        if isinstance(self.at, int):
            return Value(seen[self.at - 1] if self.at <= len(seen) else math.nan)
        if self.at == "last":
            return Value(seen[-1])
        known = [value for value in seen if not math.isnan(value)]
        if not known:
            return Value(math.nan)
        total = math.fsum(known)
        return Value({"best": max(known), "sum": total, "mean": total / len(known)}[self.at])


LAST = Reading()  # what stands in a cell unless its item says otherwise


def _number(value: Any) -> float:
    return math.nan if value is None else float(value)
