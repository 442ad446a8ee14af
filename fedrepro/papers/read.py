"""Reading a paper's folder: settings.toml, items.toml and reported.csv."""

import csv
import io
import math
import tomllib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from fedrepro.core.files import text
from fedrepro.core.names import pick
from fedrepro.core.setting import Setting
from fedrepro.papers.claims import Claim, parse_claims
from fedrepro.papers.judging import checked
from fedrepro.papers.metrics import metric
from fedrepro.papers.paper import KINDS, SCALES, Assumption, Gain, Grid, Item, Paper, Preset
from fedrepro.papers.rules import rules

NUMBERS = ("mean", "std", "runs")  # columns of reported.csv; an empty field is not printed
REPORTED = ("item", "row", "column", "metric", *NUMBERS, "source", "status", "note")
TEXTS = ("title", "source", "claim", "row", "column")  # of an item; none may be empty


def paper(folder: Path) -> Paper:
    """Read one paper; what its files lack, or have of another kind, is a ValueError that names them."""
    try:
        return _paper(folder)
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        what = f"lacks {error}" if isinstance(error, KeyError) else str(error)
        raise ValueError(f"{folder}: settings.toml or items.toml {what}") from error


def _paper(folder: Path) -> Paper:
    """Read one paper.

    Args:
        folder: the paper's, named like the paper.

    Raises:
        ValueError: for a value that is neither stated nor assumed, a text that was left empty, or an unknown
            preset, label, setting or metric; the message names the file.
    """
    name = folder.name
    settings, items = (_toml(folder / file) for file in ("settings.toml", "items.toml"))
    rows = []
    for key, entry in settings.get("values", {}).items():
        if sum(kind in entry for kind in KINDS) != 1:
            raise ValueError(f"{name}: {key} must be either stated or assumed")
        kind = next(kind for kind in KINDS if kind in entry)
        rows.append({"name": key, "value": entry["value"], "kind": kind, "source": entry[kind]})
    entries = settings.get("presets", {})
    presets = {key: _preset(key, entry, entries) for key, entry in entries.items()}
    try:
        _filled_in("the paper", settings, ("title",))
        found = rules(settings, {}, presets)
        assumptions = tuple(_assumption(*entry) for entry in settings.get("assumptions", {}).items())
    except ValueError as error:
        raise ValueError(f"{name}/settings.toml: {error}") from error
    reported = _reported(folder / "reported.csv")
    claims, judging = _conclusions(folder, reported)
    return Paper(
        name,
        settings["title"],
        pd.DataFrame(rows, columns=["name", "value", "kind", "source"]),
        found,
        presets,
        {key: _item(name, key, entry, presets) for key, entry in items.get("items", {}).items()},
        reported,
        items.get("not_built", {}),
        assumptions,
        claims,
        judging,
    )


def _conclusions(folder: Path, reported: pd.DataFrame) -> tuple[tuple[Claim, ...], Mapping[str, Any]]:
    """Read claims.toml and judging.toml, which a paper need not have."""
    path, rules = folder / "claims.toml", folder / "judging.toml"
    try:
        claims = parse_claims(text(path)) if path.exists() else ()
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{path}: {error}") from error
    try:
        places = reported[["item", "row", "column"]].itertuples(index=False, name=None)
        return claims, checked(_toml(rules) if rules.exists() else {}, claims, places)
    except ValueError as error:
        raise ValueError(f"{folder.name}/judging.toml: {error}") from error


def _toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(text(path).replace("\r\n", "\n"))
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{path}: {error}") from error


def _reported(path: Path) -> pd.DataFrame:
    """Read the numbers that a paper prints.

    Texts stay texts, also those that other programs take for missing ones.

    Raises:
        ValueError: for a header, a line or a number that is none, or an unknown metric; names file and line.
    """
    written = text(path)
    if not written.endswith("\n"):
        raise ValueError(f"{path}, line {written.count(chr(10)) + 1}: cut off, it has no end of line")
    lines = csv.reader(io.StringIO(written, newline=""), strict=True)
    asked: dict[str, int] = {}  # the metrics, and the line of each
    try:
        head = next(lines, [])
        if missing := [column for column in REPORTED if column not in head]:
            raise ValueError(f"not the header of reported numbers, without {', '.join(missing)}")
        for line in lines:
            if len(line) != len(head):
                raise ValueError(f"{len(line)} fields, not {len(head)}")
            entry = dict(zip(head, line))
            for column in NUMBERS:
                if entry[column] and not _is_number(entry[column]):
                    raise ValueError(f"{column} must be a number, got {entry[column]!r}")
            asked.setdefault(entry["metric"], lines.line_num)
    except (ValueError, csv.Error) as error:
        raise ValueError(f"{path}, line {max(1, lines.line_num)}: {error}") from error
    for name, line_number in asked.items():
        try:
            metric(name)
        except ValueError as error:
            place = f"{path.parent.name}/{path.name}"
            raise ValueError(f"{place}: {error} (line {line_number})") from error
    empty = {column: [""] for column in head if column not in ("item", "row", "column")}
    types = {column: str for column in head if column not in NUMBERS}
    return pd.read_csv(io.StringIO(written), dtype=types, keep_default_na=False, na_values=empty)


def _is_number(value: str) -> bool:
    try:
        return math.isfinite(float(value)) and "_" not in value
    except ValueError:
        return False


def _filled_in(what: str, entry: Mapping[str, Any], names: tuple[str, ...]) -> None:
    for name in names:
        if not str(entry.get(name, "")).strip():
            raise ValueError(f"the {name} of {what} must be filled in, got {entry.get(name)!r}")


def _preset(name: str, entry: Mapping[str, Any], every: Mapping[str, Any]) -> Preset:
    """Read a preset; one that `unites` others has the values of all of them."""
    values = {key: value for other in entry.get("unites", []) for key, value in every[other]["set"].items()}
    return Preset(name, values | entry.get("set", {}), entry["paper"], entry["code"])


def _assumption(name: str, entry: Mapping[str, Any]) -> Assumption:
    """Read what is assumed beside settings: its `value`, why (`assumed`), and the settings `where` it is so."""
    where = entry.get("where", {})
    for key in entry:
        pick("key of an assumption", key, dict.fromkeys(("value", "assumed", "where")))
    for key in where:
        pick("setting", key, Setting.types())
    _filled_in(f"the assumption {name!r}", entry, ("value", "assumed"))
    if name in Setting.types():
        raise ValueError(f"the assumption {name!r} has the name of a setting: give it under [values]")
    return Assumption(name, entry["value"], entry["assumed"], where)


def _grid(entry: Mapping[str, Any]) -> Grid:
    axes = {axis: tuple(values) for axis, values in entry.items() if axis != "scales"}
    for label in (label for values in axes.values() for label in values):
        if not isinstance(label, str) or not label.isprintable() or label != label.strip() or not label:
            raise ValueError(f"a label must be a text in one line, without spaces around it, got {label!r}")
    return Grid(axes, tuple(entry.get("scales", SCALES)))


def _gain(entry: Mapping[str, Any]) -> Gain:
    of, above = ((entry[side]["item"], entry[side]["row"]) for side in ("of", "above"))
    return Gain(entry["row"], entry["column"], of, above)


def _item(name: str, key: str, entry: Mapping[str, Any], presets: Mapping[str, Preset]) -> Item:
    limits = {
        scale: {axis: tuple(values) for axis, values in entry.get(scale, {}).items()}
        for scale in ("smoke", "short")
    }
    try:
        grids = tuple(map(_grid, entry.get("grids", [])))
    except ValueError as error:
        raise ValueError(f"{name}/items.toml: {key}: {error}") from error
    item = Item(
        paper=name,
        name=key,
        **{text: entry.get(text, "") for text in TEXTS},
        grids=grids,
        gains=tuple(map(_gain, entry.get("gain", []))),
        limits=limits,
        rules=(),
        seeds=entry["seeds"],
        batch=entry.get("batch", True),
        read=entry.get("read", {}),
        not_built=entry.get("not_built", {}),
        baselines=entry.get("baselines", {}),
    )
    try:
        _filled_in(key, entry, TEXTS)
        if not item.labels:
            raise ValueError(f"the grids of {key} must be filled in, got {entry.get('grids')!r}")
        return replace(item, rules=rules(entry, item.labels, presets))
    except ValueError as error:
        raise ValueError(f"{name}/items.toml: {error}") from error
