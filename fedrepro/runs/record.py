"""Records: what runs measured, as small csv files that people can read and git can diff.

    <folder>/<paper>/<item>/<scale>.csv            one line per run
    <folder>/<paper>/<item>/<scale>_rounds.csv     one line per run and round
    <folder>/<paper>/<item>/<scale>_measures.csv   one line per run, round and further measure, where there are any
    <folder>/<paper>/<item>/<scale>_hits.csv       one line per run: which test images its answer got right
    <folder>/<paper>/<item>/<scale>_settings.json  the full setting behind each setting_key

Scales have files of their own, so a result of a smaller scale can never replace one of a larger; nor does a run
in one precision replace that in another.
"""

import contextlib
import json
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
from filelock import FileLock

from fedrepro.core.files import write_atomically
from fedrepro.core.setting import Setting, digest
from fedrepro.papers import SCALES, Cell
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
TEXT = dict.fromkeys(
    ("row", "column", "setting_key", "key", "commit", "split", "torch", "date", "hits"), str
)  # never numbers


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
    return row | _places(where)


def _places(where: dict[str, Any]) -> dict[str, Any]:
    """Return where a run was played: of several processes their devices, versions and commits, in that order."""
    last = {"engine": FIRST["engine"]} | where
    found = {name: last[name] for name in ("device", "threads", "torch", "commit", "date", "engine")}
    if earlier := where.get("earlier", []):
        for name in ("device", "torch", "commit", "engine"):
            found[name] = " + ".join(dict.fromkeys(str(place[name]) for place in (*earlier, where)))
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


def _merge(path: Path, fresh: pd.DataFrame, by: list[str], runs: pd.DataFrame | None = None) -> pd.DataFrame:
    """Put fresh lines into a file's: all old lines of the runs that are fresh give way.

    Which runs are fresh tells `runs`, where a run may have no line.
    """
    fresh = fresh.drop_duplicates(by, keep="last")
    if path.exists():
        old = _read(path, list(fresh.columns))
        fresh = fresh.reindex(columns=old.columns)
        known = fresh if runs is None else runs
        old = old[~pd.MultiIndex.from_frame(old[BY]).isin(pd.MultiIndex.from_frame(known[BY]))]
        fresh = pd.concat([old, fresh], ignore_index=True) if len(old) else fresh
    return fresh.sort_values(by, kind="stable", ignore_index=True)


def write(folder: Path, item: str, scale: str, found: Iterable[tuple[Cell, str, dict[str, Any]]]) -> list[Path]:
    """Write or extend the records of an item at a scale.

    Args:
        folder: `paths.recorded_folder()` or `paths.made_folder()`.
        item: such as "fedbe/table1_methods".
        scale: "smoke", "short" or "paper".
        found: cells with their run's key and record.

    Returns:
        The files written; none if nothing was found.
    """
    if scale not in SCALES:
        raise ValueError(f"scale must be one of {SCALES}, got {scale!r}")
    found = list(found)
    if not found:
        return []
    place = folder / item
    runs = pd.DataFrame([run_row(c, scale, k, r) for c, k, r in found])
    runs = runs.reindex(columns=_run_columns(runs))
    rounds = pd.DataFrame([row for c, _, r in found for row in round_rows(c, r)]).reindex(columns=ROUND_COLUMNS)
    names = [place / f"{scale}.csv", place / f"{scale}_rounds.csv", place / f"{scale}_settings.json"]
    measures = pd.DataFrame([row for c, _, r in found for row in measure_rows(c, r)], columns=MEASURE_COLUMNS)
    seen = pd.DataFrame([row for c, _, r in found for row in hit_rows(c, r)], columns=HIT_COLUMNS)
    with _alone(place):
        tables = [
            _merge(names[0], runs, BY),
            _merge(names[1], rounds, [*BY, "round"]),
        ]
        for path, table in zip(names, tables):
            _write_table(path, table)
        fresh = {r["setting_key"]: r["setting"] for _, _, r in found}
        _write_settings(names[2], fresh, set(tables[0]["setting_key"]))
        for name, table, by in (("measures", measures, [*BY, "round", "measure"]), ("hits", seen, BY)):
            path = place / f"{scale}_{name}.csv"
            if len(table) or path.exists():
                names.append(path)
                _write_table(path, _merge(path, table, by, runs), digits="%.6g")
    return names


def _run_columns(runs: pd.DataFrame) -> list[str]:
    """Return the columns of `<scale>.csv`: which numbers are censored is told where some are."""
    censored = "censored" in runs and bool(runs["censored"].any())
    return [*RUN_COLUMNS[:4], "censored", *RUN_COLUMNS[4:]] if censored else RUN_COLUMNS


@contextlib.contextmanager
def _alone(place: Path) -> Iterator[None]:
    """Let one process at a time read and rewrite an item's files; the lock's file lies outside of them."""
    name = f"fedrepro-{digest(str(place.resolve()))}.lock"
    with FileLock(Path(tempfile.gettempdir()) / name):
        yield


def write_values(
    folder: Path, item: str, scale: str, values: pd.DataFrame, setting: Setting, where: dict[str, Any]
) -> list[Path]:
    """Write or extend the records of an item whose notebook computes its numbers itself.

    Args:
        folder, item, scale: as for `write`.
        values: columns row, column, seed, result (percent).
        setting: the setting behind all of them.
        where: `runs.provenance` of this machine.
    """
    facts: dict[str, Any] = {
        "rounds": setting.rounds,
        "setting_key": setting.key,
        "key": setting.key,
        "scale": scale,
    }
    facts |= {"precision": setting.precision}
    facts |= _places(where)
    fresh = values.assign(**facts).reindex(columns=RUN_COLUMNS)
    names = [folder / item / f"{scale}.csv", folder / item / f"{scale}_settings.json"]
    with _alone(folder / item):
        table = _merge(names[0], fresh, BY)
        _write_table(names[0], table)
        _write_settings(names[1], {setting.key: setting.asdict()}, set(table["setting_key"]))
    return names


def _write_table(path: Path, table: pd.DataFrame, digits: str = "%.4f") -> None:
    write_atomically(path, table.to_csv(index=False, float_format=digits, lineterminator="\n").encode())


def _write_settings(path: Path, fresh: dict[str, Any], used: set[str]) -> None:
    """Add settings to a file of them, and drop those that no line of the records uses any more.

    The precision is no part of a setting's key: it stands in the lines, and is left out here.
    """
    settings = (json.loads(path.read_text()) if path.exists() else {}) | fresh
    kept = {
        key: {name: value for name, value in settings[key].items() if name != "precision"}
        for key in sorted(settings)
        if key in used
    }
    write_atomically(path, (json.dumps(kept, indent=1, sort_keys=True) + "\n").encode())


def read(folder: Path, item: str, scale: str, *, rounds: bool = False) -> pd.DataFrame:
    """Read an item's records at a scale; an empty table with the right columns if there are none."""
    path = folder / item / (f"{scale}_rounds.csv" if rounds else f"{scale}.csv")
    if not path.exists():
        return pd.DataFrame(columns=ROUND_COLUMNS if rounds else RUN_COLUMNS)
    return _read(path, ROUND_COLUMNS if rounds else RUN_COLUMNS)


def read_hits(folder: Path, item: str, scale: str) -> pd.DataFrame:
    """Read which test images an item's runs got right (`metrics.unpacked`); an empty table if there are none."""
    path = folder / item / f"{scale}_hits.csv"
    return _read(path, HIT_COLUMNS) if path.exists() else pd.DataFrame(columns=HIT_COLUMNS)


def _read(path: Path, columns: list[str]) -> pd.DataFrame:
    table = pd.read_csv(path, dtype=TEXT)
    if "censored" in table and "censored" not in columns:
        columns = [*columns[:4], "censored", *columns[4:]]
    table = table.reindex(columns=columns)
    for name in FIRST.keys() & set(columns):
        table[name] = table[name].astype(object).where(table[name].notna(), FIRST[name])
    return table


def in_one_precision(table: pd.DataFrame) -> pd.DataFrame:
    """Keep of every cell (row, column) the precision with the most seeds, float32 if several have as many."""
    by = ["row", "column", "precision"]
    seeds = table.groupby(by, as_index=False).agg(seeds=("seed", "nunique"))
    seeds["full"] = seeds["precision"] == FIRST["precision"]
    best = seeds.sort_values(["seeds", "full"]).drop_duplicates(by[:2], keep="last")
    return table[pd.MultiIndex.from_frame(table[by]).isin(pd.MultiIndex.from_frame(best[by]))]
