"""What a run's record becomes: lines of the csv files, by column."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pandas as pd

from fedrepro.papers import Cell
from fedrepro.papers.reading import LAST

RUN_COLUMNS = [
    *(
        "row",
        "column",
        "seed",
        "result",
        "accuracy",
        "best_accuracy",
        "ensemble_accuracy",
        "average_accuracy",
    ),
    *("teacher_accuracy", "rounds", "setting_key", "key", "scale", "precision", "engine", "device", "threads"),
    *("torch", "commit", "date", "seconds", "split"),
]
ROUND_COLUMNS = [
    *("row", "column", "seed", "round", "accuracy", "average_accuracy", "teacher_accuracy"),
    *("train_loss", "distill_loss", "seconds", "precision"),
]

MEASURE_COLUMNS = ["row", "column", "seed", "round", "measure", "value", "precision"]
FIRST = {"engine": "plain", "precision": "float32"}  # the only ones when records did not name them
HIT_COLUMNS = ["row", "column", "seed", "images", "hits", "precision"]
BY = ["row", "column", "seed", "precision"]  # what one line of `<scale>.csv` is the result of
LATER = {"engine", "precision"}  # columns that files of earlier versions lack
TEXT = dict.fromkeys(  # never numbers, whatever they look like
    [
        *("row", "column", "setting_key", "key", "scale", "device", "torch", "commit", "date", "split"),
        *("measure", "hits"),
    ],
    str,
)


def run_row(cell: Cell, scale: str, key: str, record: dict[str, Any]) -> dict[str, Any]:
    """Return a run's line of `<scale>.csv`."""
    last, where = record["rows"][-1], record["provenance"]
    value = cell.reading([flattened(row) for row in record["rows"]], record.get("answer", "student"))
    if cell.reading == LAST:  # records from before the answer was noted hold it as their result
        value = replace(value, number=record["result"])
    row = {
        "row": cell.row,
        "column": cell.column,
        "seed": record["seed"],
        "result": value.number,
        "censored": int(value.censored),
        "best_accuracy": record["best_accuracy"],
        "rounds": len(record["rows"]),
        "setting_key": record["setting_key"],
        "key": key,
        "scale": scale,
        "precision": record["setting"]["precision"],
        "seconds": round(record["seconds"], 2),
        "split": record["split"][:12],
    }
    row |= {name: last.get(name) for name in RUN_COLUMNS if name.endswith("accuracy") and name in last}
    return row | place_columns(where)


def place_columns(where: dict[str, Any]) -> dict[str, Any]:
    """Return where a run was played: of several processes their devices, versions and commits, in that order."""
    last = {"engine": FIRST["engine"]} | where
    found = {name: last[name] for name in ("device", "threads", "torch", "commit", "date", "engine")}
    if earlier := where.get("earlier", []):
        for name in ("device", "torch", "commit", "engine"):
            found[name] = " + ".join(
                dict.fromkeys(str(place.get(name, FIRST.get(name, ""))) for place in (*earlier, where))
            )
    return found


def flattened(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return everything that was measured of a round, further measures beside the others."""
    return {**{name: value for name, value in row.items() if name != "measured"}, **row.get("measured", {})}


def measure_rows(cell: Cell, record: dict[str, Any]) -> list[dict[str, Any]]:
    """Return a run's lines of `<scale>_measures.csv`."""
    facts = {"row": cell.row, "column": cell.column, "seed": record["seed"]}
    facts |= {"precision": record["setting"]["precision"]}
    return [
        {"round": int(row["round"]), "measure": name, "value": value} | facts
        for row in record["rows"]
        for name, value in row.get("measured", {}).items()
    ]


def hit_rows(cell: Cell, record: dict[str, Any]) -> list[dict[str, Any]]:
    """Return a run's line of `<scale>_hits.csv`; none for a record from before hits were kept."""
    if not record.get("hits"):
        return []
    facts = {"row": cell.row, "column": cell.column, "seed": record["seed"]}
    facts |= {"precision": record["setting"]["precision"]}
    return [facts | {"images": record["images"], "hits": record["hits"]}]


def round_rows(cell: Cell, record: dict[str, Any]) -> list[dict[str, Any]]:
    """Return a run's lines of `<scale>_rounds.csv`."""
    facts = {"row": cell.row, "column": cell.column, "seed": record["seed"]}
    facts |= {"precision": record["setting"]["precision"]}
    rows = [{name: row.get(name) for name in ROUND_COLUMNS} | facts for row in record["rows"]]
    return [row | {"round": int(row["round"])} for row in rows]


def run_columns(runs: pd.DataFrame) -> list[str]:
    """Return the columns of `<scale>.csv`: which numbers are censored is told where some are."""
    censored = "censored" in runs and bool(runs["censored"].any())
    return [*RUN_COLUMNS[:4], "censored", *RUN_COLUMNS[4:]] if censored else RUN_COLUMNS
