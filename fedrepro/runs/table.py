"""Reading record files strictly: what is no whole, sound table is refused, with the file and the line.

A file may be cut or merged by hand or by git at any place; every line is looked at, and the files of an item are
held against each other, so that lines that are missing are noticed as well.
"""

import csv
import hashlib
import io
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from fedrepro.core.csvs import MARKERS
from fedrepro.core.files import text
from fedrepro.core.metrics import unpacked
from fedrepro.runs.rows import FIRST, LATER, TEXT

WHOLE = {"seed", "round", "images", "rounds", "threads", "censored"}
NEEDED = {"seed", "round", "images"}  # never empty
FINITE = r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d\d?)?"  # far from where numbers end
NUMBER = r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?|[+-]?inf"
SHAPES = {  # of texts; an empty one stands for what was not known
    "setting_key": (r"\w+", "a key"),
    "key": (r"\w*", "a key"),
    "date": (r"\d{4}-\d{2}-\d{2}|unknown|", "a date such as 2026-01-31"),
    "hits": (r"[A-Za-z0-9+/]+={0,2}", "a text in base 64"),
    "measure": (r".+", "the name of a measure"),
}
FILES = "files"  # under which name a file of settings has the digests of the files beside it


def table(path: Path, content: bytes, columns: Sequence[str], by: Sequence[str], scale: str = "") -> pd.DataFrame:
    """Read one record file.

    Args:
        path: the file, to be named.
        content: what was read of it.
        columns: that it may have, in any order; those of `rows.LATER` may be missing.
        by: columns of which no two lines have the same values.
        scale: what its column `scale` must say, if it has one.

    Returns:
        The lines with the given columns in their order, and `censored` behind the fourth where the file has it.

    Raises:
        ValueError: for everything else; names the file and the line.
    """
    written = text(path, content)
    if not written.endswith("\n"):
        raise ValueError(f"{path}, line {written.count(chr(10)) + 1}: cut off, it has no end of line{REMEDY}")
    lines = csv.reader(io.StringIO(written, newline=""), strict=True)
    try:
        head = next(lines, [])
        _header(head, columns)
        seen: dict[tuple[str, ...], int] = {}
        for line in lines:
            named = dict(zip(head, line))
            _line(named, line, len(head), scale)
            key = tuple(_plain(name, named.get(name, "")) or FIRST.get(name, "") for name in by)
            if key in seen:
                raise ValueError(f"the same {', '.join(by)} as line {seen[key]}: {', '.join(key)}")
            seen[key] = lines.line_num
    except (ValueError, csv.Error) as error:
        raise ValueError(f"{path}, line {max(1, lines.line_num)}: {error}{REMEDY}") from error
    return _typed(written, head, columns)


REMEDY = "; take the file's last whole version (git checkout), or remove the item's files of that scale"


def _header(head: Sequence[str], columns: Sequence[str]) -> None:
    if head and head[0].startswith(MARKERS):
        raise ValueError(f"a conflict marker of git: {head[0]!r}")
    missing = [name for name in columns if name not in head and name not in LATER]
    unknown = [name for name in head if name not in columns and name != "censored"]
    if missing or unknown or len(set(head)) < len(head):
        what = [f"without {', '.join(missing)}"] if missing else []
        what += [f"with unknown {', '.join(map(repr, unknown))}"] if unknown else []
        raise ValueError(f"not the header of a record: {'; '.join(what) or 'a column twice'}")


def _line(named: Mapping[str, str], line: Sequence[str], fields: int, scale: str) -> None:
    """Look at the fields of a line one by one; raises ValueError for the first that cannot be."""
    if line and line[0].startswith(MARKERS) and len(line) != fields:  # a label may look like one
        raise ValueError(f"a conflict marker of git: {line[0]!r}")
    if len(line) != fields:
        raise ValueError(f"{len(line)} fields, not {fields}")
    for name, value in named.items():
        if name in SHAPES:
            shape, what = SHAPES[name]
        elif name in TEXT or name in FIRST:
            continue
        elif name in WHOLE:
            shape, what = r"\d{1,15}(\.0+)?" + "|" * (name not in NEEDED), "a whole number of at most 15 digits"
        elif name == "result" or name.endswith("accuracy"):
            shape, what = rf"{FINITE}|", "a finite number"
        else:
            shape, what = f"{NUMBER}|", "a number"
        if not re.fullmatch(shape, value):
            raise ValueError(f"{name} must be {what}, got {value!r}")
    if "hits" in named:
        unpacked(named["hits"], int(float(named["images"])))
    if scale and named.get("scale", scale) not in ("", scale):
        raise ValueError(f"a run of scale {named['scale']!r} among those of {scale!r}")


def _plain(name: str, value: str) -> str:
    """Return a field as it is compared: whole numbers alike however they are written, texts as they are."""
    return re.sub(r"^0*(\d+?)(\.0+)?$", r"\1", value) if name in WHOLE else value


def _typed(written: str, head: Sequence[str], columns: Sequence[str]) -> pd.DataFrame:
    """Return checked text as a table: texts stay texts, whatever they look like, and empty facts are missing."""
    empty = {name: [""] for name in head if name not in ("row", "column", "measure")}
    types = dict.fromkeys([name for name in head if name in TEXT or name in FIRST], str)
    found = pd.read_csv(io.StringIO(written), dtype=types, keep_default_na=False, na_values=empty)
    if "censored" in found and "censored" not in columns:
        columns = [*columns[:4], "censored", *columns[4:]]
    found = found.reindex(columns=list(columns))
    for name in FIRST.keys() & set(columns):
        found[name] = found[name].astype(object).where(found[name].notna(), FIRST[name])
    return found


def settings(path: Path, content: bytes) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
    """Read a file of settings.

    Returns:
        The settings by their keys, and the digests of the record files beside it by their names, as `digest` makes
        them; none in a file of an earlier version.

    Raises:
        ValueError: if it is none, or its settings are not what was written; names the file and the line.
    """

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        names = [name for name, _ in pairs]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"{twice[0]!r} stands there twice")
        return dict(pairs)

    written = text(path, content)
    for number, line in enumerate(written.splitlines(), start=1):
        if line.startswith(MARKERS):
            raise ValueError(f"{path}, line {number}: a conflict marker of git: {line!r}{REMEDY}")
    try:
        found = json.loads(written, object_pairs_hook=once)
        if not isinstance(found, dict) or not all(isinstance(value, dict) and value for value in found.values()):
            raise ValueError("not an object of settings")
        digests = found.pop(FILES, {})
        if not all(isinstance(value, str) for value in digests.values()):
            raise ValueError(f"{FILES!r} are no digests of files")
        if digests and digests.pop(path.name, "") != digest(json.dumps(found, sort_keys=True).encode()):
            raise ValueError("its settings are not what was written")
    except ValueError as error:
        raise ValueError(f"{path} is damaged: {error}{REMEDY}") from error
    return found, digests


def written(path: Path, settings: Mapping[str, Any], contents: Mapping[Path, bytes]) -> bytes:
    """Return the content of a file of settings by their keys, with digests of them and of the files beside it."""
    digests = {other.name: digest(content) for other, content in contents.items()}
    digests[path.name] = digest(json.dumps(settings, sort_keys=True).encode())
    return (json.dumps(dict(settings) | {FILES: digests}, indent=1, sort_keys=True) + "\n").encode()


def digest(content: bytes) -> str:
    """Return what tells a content from any other."""
    return hashlib.sha256(content).hexdigest()[:32]


def whole(settings: Path, digests: Mapping[str, str], contents: Mapping[Path, bytes]) -> None:
    """Hold files against the digests that were written with them.

    Raises:
        ValueError: for a file that is missing, was added, or is not what was written; names it.
    """
    known = {path.name: path for path in contents if path != settings}
    for name in sorted(digests.keys() | known.keys()):
        if name not in known:
            raise ValueError(f"{settings.with_name(name)} is missing, which {settings.name} knows{REMEDY}")
        if name not in digests:
            raise ValueError(f"{known[name]} was not written with {settings.name}{REMEDY}")
        if digest(contents[known[name]]) != digests[name]:
            raise ValueError(f"{known[name]} is not what was written with {settings.name}{REMEDY}")


def agree(path: Path, runs: pd.DataFrame, others: Mapping[Path, pd.DataFrame], known: set[str] | None) -> None:
    """Hold the files of an item against each other: none may lack lines that another one asks for.

    Args:
        path: of the runs, a line each.
        runs: its lines.
        others: the lines by round, if there are any, and those of measures and hits, by their files.
        known: the keys of the settings; None where they were not kept.

    Raises:
        ValueError: where a run lacks rounds or its setting, or something is there of a run that is not.
    """
    used = set(runs["setting_key"])
    known = used if known is None else known
    if lost := sorted(used - known):
        raise ValueError(f"{path}: the setting {lost[0]} of a run is missing in {_settings(path)}{REMEDY}")
    if lost := sorted(known - used):
        raise ValueError(f"{path}: no run of the setting {lost[0]}, which {_settings(path)} has{REMEDY}")
    keys = _keys(runs)
    wanted = dict(zip(keys, runs["rounds"]))
    for other, lines in others.items():
        if stray := sorted(set(_keys(lines)) - set(wanted)):
            raise ValueError(f"{path}: no run {_named(stray[0])}, of which {other} has lines{REMEDY}")
    rounds = path.with_name(f"{path.stem}_rounds.csv")
    played = [key for key, split in zip(keys, runs["split"]) if isinstance(split, str)]  # not by a notebook itself
    if unknown := [key for key in played if pd.isna(wanted[key])]:
        raise ValueError(f"{path}: no number of rounds of {_named(unknown[0])}{REMEDY}")
    numbers: dict[tuple[Any, ...], set[int]] = {key: set() for key in played}
    if rounds in others:
        for key, number in zip(_keys(others[rounds]), others[rounds]["round"]):
            numbers.setdefault(key, set()).add(int(number))
    for key, found in numbers.items():
        if pd.isna(wanted[key]) or len(found) != int(wanted[key]) or max(found, default=-1) != len(found) - 1:
            raise ValueError(f"{rounds}: {len(found)} rounds of {_named(key)}, not {wanted[key]}{REMEDY}")


def _settings(path: Path) -> str:
    return f"{path.stem}_settings.json"


def _keys(lines: pd.DataFrame) -> list[tuple[Any, ...]]:
    return list(zip(lines["row"], lines["column"], lines["seed"].astype(int), lines["precision"]))


def _named(key: tuple[Any, ...]) -> str:
    return f"{key[0]!r}, {key[1]!r}, seed {key[2]}, {key[3]}"
