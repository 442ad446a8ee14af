"""Whether what was kept of a run can be its own: types, and numbers that must agree with each other."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fedrepro.core.metrics import unpacked
from fedrepro.core.setting import Setting

RECORD = ("setting", "setting_key", "seed", "result", "rows", "seconds", "split", "provenance", "best_accuracy")
PLACE = ("device", "threads", "torch", "commit", "date")  # what lines of records tell of a place


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _perhaps(value: Any) -> bool:
    return value is None or _number(value)


def _text(value: Any) -> bool:
    return isinstance(value, str)


def _row(value: Any) -> bool:
    """Return whether a value is what was measured of a round: numbers by name, and further ones."""
    if not isinstance(value, dict) or not all(
        _number(value.get(name)) for name in ("round", "accuracy", "seconds")
    ):
        return False
    further = value.get("measured", {})
    return isinstance(further, dict) and all(
        _perhaps(held) for held in (*further.values(), *(value[name] for name in value if name != "measured"))
    )


def _rows(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(map(_row, value))


def _place(value: Any) -> bool:
    return isinstance(value, dict) and all(name in value for name in PLACE)


def _setting(value: Any) -> bool:
    return isinstance(value, dict) and _text(value.get("precision"))


TYPES: dict[str, Callable[[Any], bool]] = {
    "setting": _setting,
    "setting_key": _text,
    "seed": lambda value: isinstance(value, int),
    "result": _perhaps,
    "rows": _rows,
    "seconds": _number,
    "split": _text,
    "provenance": lambda value: (
        _place(value) and isinstance(value.get("earlier", []), list) and all(map(_place, value.get("earlier", [])))
    ),
    "best_accuracy": _number,
    "answer": _text,
    "hits": _text,
    "images": lambda value: isinstance(value, int),
}


def flaw(record: Mapping[str, Any]) -> str:
    """Return in words what a record lacks or cannot be; nothing if it is sound."""
    if missing := [name for name in RECORD if name not in record]:
        return f"without {', '.join(missing)}"
    if strange := [name for name in record if name not in TYPES]:
        return f"unknown {strange[0]!r}"
    if wrong := [name for name, fits in TYPES.items() if name in record and not fits(record[name])]:
        return f"{', '.join(wrong)}: not what a record holds"
    rows = record["rows"]
    if why := misnumbered(rows):
        return why
    if not math.isclose(record["seconds"], sum(row["seconds"] for row in rows), rel_tol=1e-9, abs_tol=1e-9):
        return "its seconds are not the sum of its rounds'"
    best = max(row["accuracy"] for row in rows)
    if not math.isclose(record.get("best_accuracy", best), best, abs_tol=1e-9):
        return "its best accuracy is not that of its rounds"
    return _setting_s_key(record) or _result(record) or _hits(record)


def _setting_s_key(record: Mapping[str, Any]) -> str:
    try:
        key = Setting.of(record["setting"]).key
    except ValueError as error:
        return f"its setting: {error}"
    return "" if key == record["setting_key"] else f"its setting is not that of {record['setting_key']}"


def _result(record: Mapping[str, Any]) -> str:
    """Return in words where the result is none of the accuracies of the last round."""
    last, result = record["rows"][-1], record["result"]
    known = [last[name] for name in last if name.endswith("accuracy") and last[name] is not None]
    agrees = result is None or any(math.isclose(result, value, abs_tol=1e-9) for value in known)
    return "" if agrees or math.isnan(result) else f"its result {result} is none of its last round's accuracies"


def _hits(record: Mapping[str, Any]) -> str:
    if not record.get("hits"):
        return ""
    try:
        share = 100 * float(unpacked(record["hits"], record["images"]).mean())
    except (ValueError, KeyError) as error:
        return f"its hits: {error}"
    agrees = record["result"] is None or math.isclose(share, record["result"], abs_tol=1e-2)
    return "" if agrees else f"its result {record['result']} is not that of its hits, {share}"


def misnumbered(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return in words where rows are not those of rounds 0, 1, 2 and so on; nothing if they are."""
    for number, row in enumerate(rows):
        if row.get("round") != number:
            return f"row {number} is that of round {row.get('round')}"
    return ""
