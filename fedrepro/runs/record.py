"""Records: what runs measured, as small csv files that people can read and git can diff.

    <folder>/<paper>/<item>/<scale>.csv            one line per run
    <folder>/<paper>/<item>/<scale>_rounds.csv     one line per run and round
    <folder>/<paper>/<item>/<scale>_measures.csv   one line per run, round and further measure, where there are any
    <folder>/<paper>/<item>/<scale>_hits.csv       one line per run: which test images its answer got right
    <folder>/<paper>/<item>/<scale>_settings.json  the full setting behind each setting_key, digests of the others

Scales have files of their own, so a result of a smaller scale can never replace one of a larger; nor does a run
in one precision replace that in another. The files of a scale change together, and are read strictly: a file that
is cut, merged by hand or damaged is named, and nothing is changed.
"""

from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import pandas as pd

from fedrepro.core.files import check_writable
from fedrepro.core.locks import alone
from fedrepro.core.setting import Setting
from fedrepro.core.together import JOURNAL, settle, snapshot, write_together
from fedrepro.papers import SCALES, Cell
from fedrepro.runs import table as tables
from fedrepro.runs.rows import (
    BY,
    HIT_COLUMNS,
    MEASURE_COLUMNS,
    ROUND_COLUMNS,
    RUN_COLUMNS,
    TEXT,
    hit_rows,
    measure_rows,
    place_columns,
    round_rows,
    run_columns,
    run_row,
)
from fedrepro.runs.rows import FIRST as FIRST
from fedrepro.runs.rows import flattened as flattened

FILES = {  # the ending of each csv file, its columns, and those of which no two lines have the same values
    ".csv": (RUN_COLUMNS, BY),
    "_rounds.csv": (ROUND_COLUMNS, [*BY, "round"]),
    "_measures.csv": (MEASURE_COLUMNS, [*BY, "round", "measure"]),
    "_hits.csv": (HIT_COLUMNS, BY),
}


def _merge(path: Path, fresh: pd.DataFrame, by: list[str], runs: pd.DataFrame | None = None) -> pd.DataFrame:
    """Put fresh lines into a file's: all old lines of the runs that are fresh give way.

    Which runs are fresh tells `runs`, where a run may have no line.
    """
    fresh = fresh.drop_duplicates(by, keep="last")
    if path.exists():
        old = tables.table(path, path.read_bytes(), list(fresh.columns), by)
        fresh = fresh.reindex(columns=old.columns)
        known = fresh if runs is None else runs
        old = old[~pd.MultiIndex.from_frame(old[BY]).isin(pd.MultiIndex.from_frame(known[BY]))]
        parts = [part for part in (old, fresh) if len(part)]  # an empty one would change the types of columns
        fresh = pd.concat(parts, ignore_index=True) if len(parts) > 1 else parts[0] if parts else fresh
    numbers = [name for name in fresh.columns if name not in TEXT and name not in FIRST]
    # Where a fresh run knows none of a column's numbers, joining makes objects of all, written otherwise.
    fresh = fresh.astype({name: float for name in numbers if fresh[name].dtype == object})
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
    runs = runs.reindex(columns=run_columns(runs))
    rounds = pd.DataFrame([row for c, _, r in found for row in round_rows(c, r)]).reindex(columns=ROUND_COLUMNS)
    measures = pd.DataFrame([row for c, _, r in found for row in measure_rows(c, r)], columns=MEASURE_COLUMNS)
    seen = pd.DataFrame([row for c, _, r in found for row in hit_rows(c, r)], columns=HIT_COLUMNS)
    names = [place / f"{scale}.csv", place / f"{scale}_rounds.csv", place / f"{scale}_settings.json"]
    with alone(place):
        _settled(place, scale)
        merged = _merge(names[0], runs, BY)
        contents = {names[0]: _csv(merged), names[1]: _csv(_merge(names[1], rounds, [*BY, "round"]))}
        fresh = {r["setting_key"]: r["setting"] for _, _, r in found}
        for name, table, by in (("measures", measures, [*BY, "round", "measure"]), ("hits", seen, BY)):
            path = place / f"{scale}_{name}.csv"
            if len(table) or path.exists():
                contents[path] = _csv(_merge(path, table, by, runs), digits="%.6g")
        contents[names[2]] = _settings(names[2], fresh, set(merged["setting_key"]), contents)
        _write(place, scale, contents)
    return list(contents)


def _write(place: Path, scale: str, contents: dict[Path, bytes]) -> None:
    """Write the files of an item at a scale if they can be read again; raises ValueError, naming one, if not."""
    _checked(tuple(contents.items()), place / f"{scale}.csv")
    write_together(_journal(place, scale), contents)


def _journal(place: Path, scale: str) -> Path:
    return place / f".{scale}{JOURNAL}"


def _settled(place: Path, scale: str) -> None:
    """Finish what a killed process had begun to write, and look at what is there; under the lock."""
    settle(_journal(place, scale))
    _whole(place, scale)


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
    facts |= place_columns(where)
    fresh = values.assign(**facts).reindex(columns=RUN_COLUMNS)
    place = folder / item
    names = [place / f"{scale}.csv", place / f"{scale}_settings.json"]
    with alone(place):
        _settled(place, scale)
        table = _merge(names[0], fresh, BY)
        contents = {names[0]: _csv(table)}
        for ending in ("_rounds.csv", "_measures.csv", "_hits.csv"):  # of runs that give way to these lines
            path = place / f"{scale}{ending}"
            if path.exists():
                columns, by = FILES[ending]
                none = pd.DataFrame(columns=columns)
                digits = "%.4f" if ending == "_rounds.csv" else "%.6g"
                contents[path] = _csv(_merge(path, none, by, fresh), digits)
        own = {setting.key: setting.asdict()}
        contents[names[1]] = _settings(names[1], own, set(table["setting_key"]), contents)
        _write(place, scale, contents)
    return names


def _csv(table: pd.DataFrame, digits: str = "%.4f") -> bytes:
    return table.to_csv(index=False, float_format=digits, lineterminator="\n").encode()


def _settings(path: Path, fresh: dict[str, Any], used: set[str], contents: Mapping[Path, bytes]) -> bytes:
    """Add settings to a file of them, and drop those that no line of the records uses any more.

    The precision is no part of a setting's key: it stands in the lines, and is left out here. Beside the settings
    stand the digests of the other files, which are written with this one.
    """
    settings = (tables.settings(path, path.read_bytes())[0] if path.exists() else {}) | fresh
    kept = {
        key: {name: value for name, value in settings[key].items() if name != "precision"}
        for key in sorted(settings)
        if key in used
    }
    return tables.written(path, kept, contents)


def read(folder: Path, item: str, scale: str, *, rounds: bool = False) -> pd.DataFrame:
    """Read an item's records at a scale; an empty table with the right columns if there are none.

    Nobody needs to hold a lock: while another process writes, all is old or all is new.

    Raises:
        ValueError: if any file of that scale is no whole, sound table, or lacks what another one asks for; names
            file and line.
        StoreError: if a file cannot be read.
    """
    found = _whole(folder / item, scale)
    name = f"{scale}_rounds.csv" if rounds else f"{scale}.csv"
    empty = pd.DataFrame(columns=ROUND_COLUMNS if rounds else RUN_COLUMNS)
    return found[folder / item / name].copy() if folder / item / name in found else empty


def read_measures(folder: Path, item: str, scale: str) -> pd.DataFrame:
    """Read the further measures of an item's runs, a line each; an empty table if there are none."""
    found = _whole(folder / item, scale)
    path = folder / item / f"{scale}_measures.csv"
    return found[path].copy() if path in found else pd.DataFrame(columns=MEASURE_COLUMNS)


def read_hits(folder: Path, item: str, scale: str) -> pd.DataFrame:
    """Read which test images an item's runs got right (`metrics.unpacked`); an empty table if there are none."""
    found = _whole(folder / item, scale)
    path = folder / item / f"{scale}_hits.csv"
    return found[path].copy() if path in found else pd.DataFrame(columns=HIT_COLUMNS)


def _whole(place: Path, scale: str) -> dict[Path, pd.DataFrame]:
    """Return the tables of an item at a scale that there are, by their files, checked alone and together."""
    paths = [place / f"{scale}{ending}" for ending in (*FILES, "_settings.json")]
    return _checked(tuple(snapshot(_journal(place, scale), paths).items()), place / f"{scale}.csv")


@lru_cache(maxsize=256)
def _checked(contents: tuple[tuple[Path, bytes], ...], runs: Path) -> dict[Path, pd.DataFrame]:
    scale, found, known, digests = runs.stem, {}, None, dict[str, str]()
    for path, content in contents:
        ending = path.name.removeprefix(scale)
        if ending in FILES:
            columns, by = FILES[ending]
            found[path] = tables.table(path, content, columns, by, scale)
        else:
            settings, digests = tables.settings(path, content)
            known = set(settings)
    others = {path: lines for path, lines in found.items() if path != runs}
    if runs in found:
        tables.agree(runs, found[runs], others, known)
    elif any(map(len, others.values())):
        raise ValueError(f"{runs} is missing, of which {next(iter(others))} has lines{tables.REMEDY}")
    if digests:
        tables.whole(runs.with_name(f"{scale}_settings.json"), digests, dict(contents))
    return found


def check(folder: Path, items: Iterable[str], scale: str) -> None:
    """Look, before anything is played, whether the records of items can be written.

    Args:
        folder: where to, as for `write`.
        items: such as "fedbe/table1_methods".
        scale: as for `write`.

    Raises:
        ValueError: if a record that is there is damaged, see `read`.
        StoreError: if the folder cannot be written.
    """
    check_writable(folder)
    for item in items:
        check_writable(folder / item)
        _whole(folder / item, scale)


def in_one_precision(table: pd.DataFrame) -> pd.DataFrame:
    """Keep of every cell (row, column) the precision with the most seeds, float32 if several have as many."""
    by = ["row", "column", "precision"]
    seeds = table.groupby(by, as_index=False).agg(seeds=("seed", "nunique"))
    seeds["full"] = seeds["precision"] == FIRST["precision"]
    best = seeds.sort_values(["seeds", "full"]).drop_duplicates(by[:2], keep="last")
    return table[pd.MultiIndex.from_frame(table[by]).isin(pd.MultiIndex.from_frame(best[by]))]
