"""What a run has come to: whether it may end, and the record of one that has."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from fedrepro.papers.reading import LAST, Reading
from fedrepro.runs.request import Run
from fedrepro.runs.rows import flattened


def reached(run: Run, rows: Sequence[Mapping[str, Any]], answer: str) -> bool:
    """Return whether a run may end early since a round has reached its target."""
    if run.until is None:
        return False
    reading = Reading(measure=run.until[0])
    seen = (flattened(row).get(reading.column(answer)) for row in rows)
    return any(value is not None and value >= run.until[1] for value in seen)


def record_of(
    run: Run, answer: str, rows: list[dict[str, Any]], split: str, places: list[dict[str, Any]]
) -> dict[str, Any]:
    """Return the record of a finished run; `places` are those that played rounds, the last one's last."""
    return {
        "setting": run.setting.asdict(),
        "setting_key": run.setting.key,
        "seed": run.seed,
        "answer": answer,
        "result": LAST(rows, answer).number,
        "best_accuracy": max(row["accuracy"] for row in rows),
        "rows": [_finite({name: value for name, value in row.items() if name != "hits"}) for row in rows],
        "hits": rows[-1].get("hits", ""),
        "split": split,
        "seconds": sum(row["seconds"] for row in rows),
        "provenance": places[-1] | ({"earlier": places[:-1]} if places[1:] else {}),
    }


def _finite(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row in which unknown numbers are None, as JSON has it."""
    return {
        name: _finite(value) if isinstance(value, Mapping) else None if math.isnan(value) else value
        for name, value in row.items()
    }
