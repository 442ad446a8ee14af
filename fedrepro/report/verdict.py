"""Judging: recorded numbers beside the paper's, cell by cell, and the paper's claims on both.

Only records at paper scale are ever judged. A cell of `short` or `smoke` is shown beside them and no more.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fedrepro import papers
from fedrepro.core.names import nearest
from fedrepro.papers import SCALES, Gain, Paper
from fedrepro.papers.claims import Key, check, needed_cells, parse_claims
from fedrepro.papers.judge import STATUSES, judge
from fedrepro.papers.judge import WORDS as WORDS
from fedrepro.papers.metrics import metric
from fedrepro.runs import record

COLUMNS = [
    *("row", "column", "metric", "source", "paper_mean", "paper_std", "paper_runs", "status"),
    *("recorded_mean", "recorded_std", "recorded_seeds", "gap_points", "gap_se", "verdict"),
    *("short_mean", "short_seeds", "smoke_mean", "smoke_seeds", "note"),
]
OWN = "paper's own numbers"
SCALE_OF = {OWN: "reported", "paper scale": "paper", "short": "short", "smoke": "smoke"}


def censored(table: pd.DataFrame) -> pd.Series:
    """Return for each line of a record whether its result is only a lower bound, as it reached no target."""
    if "censored" not in table:  # records of before there were targets
        return pd.Series(False, index=table.index)
    return pd.to_numeric(table["censored"]).fillna(0).ne(0)


def item_names(paper: Paper) -> list[str]:
    """List a paper's items: those that are built, then the others that it prints numbers of."""
    return list(dict.fromkeys([*paper.items, *paper.reported["item"]]))


def reported_cells(paper: Paper, item: str) -> pd.DataFrame:
    """List an item's cells as the paper prints them, those of several sources joined into one line.

    Returns:
        Columns row, column, metric, source, mean, std, runs, status, note, in the order of `reported.csv`.
        Sources that print different numbers make the status "contradiction"; the first one's are kept.
    """
    table = paper.reported[paper.reported["item"] == item].drop(columns="item")
    cells: dict[tuple[str, str], list[dict[Any, Any]]] = {}
    for line in table.to_dict("records"):
        cells.setdefault((line["row"], line["column"]), []).append(line)
    return pd.DataFrame([_joined(lines) for lines in cells.values()], columns=table.columns)


def _joined(lines: Sequence[Mapping[Any, Any]]) -> dict[str, Any]:
    known = {name: [line[name] for line in lines if pd.notna(line[name])] for name in lines[0]}
    notes = known["note"]
    joined = {name: values[0] if values else math.nan for name, values in known.items()}
    joined["status"] = min(known["status"], key=STATUSES.index)
    if any(len(set(known[name])) > 1 for name in ("mean", "std")):
        joined["status"] = "contradiction"
        notes.append("; ".join(f"{line['source']} prints {line['mean']} ± {line['std']}" for line in lines))
    return joined | {"source": "; ".join(dict.fromkeys(known["source"])), "note": "; ".join(notes)}


def records(paper: Paper, item: str, scale: str, folders: Iterable[Path]) -> pd.DataFrame:
    """Read what was recorded of an item at a scale.

    Args:
        paper, item, scale: which; the item by its short name.
        folders: a run (row, column, seed) of a later folder replaces that of an earlier one.

    Returns:
        The lines of the files, sorted by row, column and seed, with `settings`: how many settings the cell
        has records of. Only runs of one of them are there: that with the most seeds, then in float32, then
        the newest. A cell that is a gain has a line for each seed that both of its cells have
        in one precision.
    """
    folders = list(folders)
    made = _records(paper, item, scale, folders)
    gains = paper.items[item].gains if item in paper.items else ()
    tables = [made, *(_gain(gain, paper, scale, folders) for gain in gains)]
    return pd.concat(tables).sort_values(["row", "column", "seed"], ignore_index=True)


def _gain(gain: Gain, paper: Paper, scale: str, folders: Iterable[Path]) -> pd.DataFrame:
    """Return the lines of a cell that is the difference of two others, with the facts of the first's runs."""
    upper, lower = (
        table[(table["row"] == row) & (table["column"] == gain.column)].set_index("seed")
        for item, row in (gain.of, gain.above)
        for table in [_records(paper, item, scale, folders)]
    )
    same = upper["precision"] == lower["precision"].reindex(upper.index)
    upper = upper[upper.index.isin(lower.index) & same]
    lower = lower.reindex(upper.index)
    found = upper.assign(row=gain.row, result=upper["result"] - lower["result"])
    found["settings"] = np.maximum(upper["settings"], lower["settings"])
    if "censored" in found:
        found["censored"] = censored(upper) | censored(lower)
    return found.reset_index()


def _records(paper: Paper, item: str, scale: str, folders: Iterable[Path]) -> pd.DataFrame:
    files = [record.read(folder, f"{paper.name}/{item}", scale) for folder in folders]
    if not (read := [table for table in files if len(table)]):
        return pd.DataFrame(columns=[*record.RUN_COLUMNS, "settings"])
    texts = dict.fromkeys(["row", "column", "setting_key", "commit", "date"], str)
    table = pd.concat(read).dropna(subset=["result"]).astype(texts | {"result": float})
    table = table.drop_duplicates(["row", "column", "setting_key", "precision", "seed"], keep="last")
    table["settings"] = table.groupby(["row", "column"])["setting_key"].transform("nunique")
    by = ["row", "column", "setting_key", "precision"]
    groups = table.groupby(by, as_index=False, dropna=False).agg(seeds=("seed", "size"), newest=("date", "max"))
    groups["full"] = groups["precision"] == record.FIRST["precision"]
    best = groups.sort_values(["seeds", "full", "newest", "setting_key"]).drop_duplicates(by[:2], keep="last")
    return table.merge(best[by], on=by).sort_values(["row", "column", "seed"], ignore_index=True)


def decimals(numbers: pd.Series) -> int:
    """Return how many decimals a paper prints: as many as the most exact of its numbers needs."""
    return max((len(f"{number:.3f}".rstrip("0").split(".")[1]) for number in numbers.dropna()), default=0)


def comparison(paper: Paper, item: str, folders: Iterable[Path]) -> pd.DataFrame:
    """Put what the paper reports of an item beside what was recorded, one line per cell.

    Args:
        paper, item: which; the item as "table1_methods" or "fedbe/table1_methods".
        folders: as for `records`: the repository's figures first, then the results of a session.

    Returns:
        `COLUMNS`: first the reported cells, then those that were run though the paper has no number for
        them ("not reported"). `recorded_*` is paper scale, the only one judged.

    Raises:
        ValueError: for an unknown item, with the nearest real one.
    """
    item, folders = item.removeprefix(f"{paper.name}/"), list(folders)
    if item not in item_names(paper):
        raise ValueError(f"unknown item {item!r} of {paper.name}{nearest(item, item_names(paper))}")
    printed = {(line["row"], line["column"]): line for line in reported_cells(paper, item).to_dict("records")}
    found = {scale: records(paper, item, scale, folders) for scale in reversed(SCALES)}
    made = {scale: dict(list(table.groupby(["row", "column"]))) for scale, table in found.items()}
    order = (
        list(dict.fromkeys((c.row, c.column) for c in paper.cells(item, "paper"))) if item in paper.items else []
    )
    further = {cell for groups in made.values() for cell in groups}
    cells = dict.fromkeys([*printed, *(cell for cell in order if cell in further), *sorted(further)])
    lines = []
    for cell in cells:
        own = {scale: groups[cell] for scale, groups in made.items() if cell in groups}
        lines.append({"row": cell[0], "column": cell[1]} | _line(printed.get(cell), own))
    return pd.DataFrame(lines, columns=COLUMNS)


def _line(printed: dict[Any, Any] | None, made: dict[str, pd.DataFrame]) -> dict[str, Any]:
    line: dict[str, Any] = {"status": "not reported", "verdict": "not reported"}
    notes = []
    if printed is not None:
        line |= {name: printed[name] for name in ("metric", "source", "status")}
        line |= {f"paper_{name}": printed[name] for name in ("mean", "std", "runs")}
        ours = made["paper"] if "paper" in made else pd.DataFrame({"result": []})
        verdict = judge(printed, list(ours["result"]), scale="paper", censored=list(censored(ours)))
        line |= {"verdict": verdict.word, "gap_points": verdict.gap_points, "gap_se": verdict.gap_se}
        notes = [printed["note"]] if printed["note"] else []
        judged = metric(printed["metric"]).judged
        notes += [] if judged else [f"no accuracy but {printed['metric']}: never judged"]
    for scale, name in (("paper", "recorded"), ("short", "short"), ("smoke", "smoke")):
        line |= {f"{name}_mean": math.nan, f"{name}_seeds": 0}
        if scale in made:
            table = made[scale]
            line |= {f"{name}_mean": _mean(table), f"{name}_seeds": len(table)}
            notes += _remarks(scale, table)
    known = "paper" in made and not censored(made["paper"]).any()
    line["recorded_std"] = made["paper"]["result"].std() if known else math.nan
    return line | {"note": "; ".join(notes)}


def _mean(table: pd.DataFrame) -> float:
    """Return the mean of a cell's results, NaN where some are only lower bounds."""
    return math.nan if censored(table).any() else table["result"].mean()


def _remarks(scale: str, table: pd.DataFrame) -> list[str]:
    """Return what must be said of a cell's records beside their numbers."""
    seeds, notes = f"{len(table)} seed{'s' if len(table) > 1 else ''}", []
    if (settings := table["settings"].iloc[0]) > 1:
        used = f"{table['setting_key'].iloc[0]} ({seeds})"
        notes.append(f"{scale} scale has records of {settings} settings, used is {used}")
    if (missed := censored(table)).any():
        within = ", ".join(f"{number:g}" for number in sorted(set(table.loc[missed, "result"])))
        notes.append(f"{scale} scale: {missed.sum()} of {seeds} did not reach the target within {within} rounds")
    return notes


def values(paper: Paper, scale: str, folders: Iterable[Path]) -> dict[Key, float]:
    """Return the mean of every known cell, by (item, row, column); scale "reported" is the paper's own.

    The mean of a cell is NaN if some of its runs did not reach their target.
    """
    found: dict[Key, float] = {}
    own, folders = scale == "reported", list(folders)
    for item in item_names(paper):
        table = reported_cells(paper, item) if own else records(paper, item, scale, folders)
        if own:
            table = table.rename(columns={"mean": "result"}).dropna(subset=["result"])
        for (row, column), lines in table.groupby(["row", "column"]):
            found[item, str(row), str(column)] = _mean(lines)
    return found


def claims(paper: Paper, folders: Iterable[Path]) -> pd.DataFrame:
    """Check every claim of a paper on its own numbers and on what was recorded at each scale.

    Returns:
        Columns id, text, reading, place, item; then for each name of `SCALE_OF` one with "holds", "fails",
        "not run", "partly run", "to be seen", "censored" where runs did not reach a target or, for the paper's
        own numbers, "number lost", and one "<name>: detail" with the numbers or what is missing.
    """
    path, folders = papers.FOLDER / paper.name / "claims.toml", list(folders)
    made = {name: values(paper, scale, folders) for name, scale in SCALE_OF.items()}
    facts = ["id", "text", "reading", "place", "item"]
    lines = []
    for claim in parse_claims(path.read_text(encoding="utf-8")) if path.exists() else ():
        line = {name: getattr(claim, name) for name in facts}
        for name, numbers in made.items():
            outcome = check(claim, numbers)
            status, detail = str(outcome.status), outcome.detail
            if bounds := [key for key in needed_cells(claim) if math.isnan(numbers.get(key, 0.0))]:
                status = "censored"
                detail = f"no mean, as targets were not reached: {'; '.join(map(', '.join, bounds))}"
            elif name == OWN and status in ("not run", "partly run"):
                status = "number lost"
            line |= {name: status, f"{name}: detail": detail}
        lines.append(line)
    return pd.DataFrame(lines, columns=facts + [part for name in SCALE_OF for part in (name, f"{name}: detail")])
