"""Judging: recorded numbers beside the paper's, cell by cell, and the paper's claims on both.

Only records at paper scale are ever judged. A cell of `short` or `smoke` is shown beside them and no more.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import pandas as pd

from fedrepro.core.names import nearest
from fedrepro.papers import SCALES, Paper
from fedrepro.papers.claims import Claim, Key, check, needed_cells
from fedrepro.papers.contrasts import Contrast, Seeds, find
from fedrepro.papers.judge import JUDGED, judge
from fedrepro.papers.judge import WORDS as WORDS
from fedrepro.papers.judging import margin
from fedrepro.papers.metrics import metric
from fedrepro.papers.reported import STATUSES, agree
from fedrepro.papers.reported import decimals as decimals
from fedrepro.report.found import Scattered, censored, damages, item_names, noise_floors, prior, records, scattered

COLUMNS = [
    *("row", "column", "metric", "source", "paper_mean", "paper_std", "paper_runs", "status"),
    *("recorded_mean", "recorded_std", "recorded_seeds", "noise_floor"),
    *("gap_points", "gap_low", "gap_high", "margin", "margin_reason", "e_n", "prior", "verdict", "more_seeds"),
    *("short_mean", "short_std", "short_seeds", "smoke_mean", "smoke_seeds", "judged_at", "note"),
]
OWN = "paper's own numbers"
SCALE_OF = {OWN: "reported", "paper scale": "paper", "short": "short", "smoke": "smoke"}


def reported_cells(paper: Paper, item: str) -> pd.DataFrame:
    """List an item's cells as the paper prints them, those of several sources joined into one line.

    Returns:
        Columns row, column, metric, source, mean, std, runs, status, note, in the order of `reported.csv`;
        see `fedrepro.papers.reported.printed`.
    """
    names = [name for name in paper.reported.columns if name != "item"]
    return pd.DataFrame([line for cell, line in paper.printed.items() if cell[0] == item], columns=names)


def comparison(paper: Paper, item: str, folders: Iterable[Path]) -> pd.DataFrame:
    """Put what the paper reports of an item beside what was recorded, one line per cell.

    Cells of several items that show the same number of the same runs have one verdict: that of the first of them
    that the paper prints, and a contradiction where it prints different numbers.

    Args:
        paper, item: which; the item as "table1_methods" or "fedbe/table1_methods".
        folders: as for `records`: the repository's figures first, then the results of a session.

    Returns:
        `COLUMNS`: first the reported cells, then those that were run though the paper has no number for
        them ("not reported"). `recorded_*` is paper scale, the only one judged; what is said of the gap is as in
        `fedrepro.papers.judge.Verdict`. `noise_floor`: see `noise_floors`. `judged_at`: the cell of the same runs
        whose verdict it is; empty for a verdict of its own.

    Raises:
        ValueError: for an unknown item, with the nearest real one.
    """
    item, folders = item.removeprefix(f"{paper.name}/"), list(folders)
    if item not in item_names(paper):
        raise ValueError(f"unknown item {item!r} of {paper.name}{nearest(item, item_names(paper))}")
    found = {scale: records(paper, item, scale, folders) for scale in reversed(SCALES)}
    made = {scale: dict(list(table.groupby(["row", "column"]))) for scale, table in found.items()}
    order = (
        list(dict.fromkeys((c.row, c.column) for c in paper.cells(item, "paper"))) if item in paper.items else []
    )
    further = {(str(row), str(column)) for groups in made.values() for row, column in groups}
    own = [(row, column) for name, row, column in paper.printed if name == item]
    cells = dict.fromkeys([*own, *(cell for cell in order if cell in further), *sorted(further)])
    floors = noise_floors(paper, item, "paper", folders, found["paper"])
    others = scattered(paper, folders)
    lines = []
    for cell in cells:
        mine = {scale: groups[cell] for scale, groups in made.items() if cell in groups}
        line = _line(paper, (item, *cell), mine, others)
        if cell in floors:
            said = f"the noise floor of the test set is {floors[cell]:.2f} points"
            line["note"] = "; ".join(filter(None, (line["note"], said)))
        lines.append({"row": cell[0], "column": cell[1], "noise_floor": floors.get(cell, math.nan)} | line)
    return pd.DataFrame(lines, columns=COLUMNS)


def _judged_by(paper: Paper, cell: Key) -> tuple[Key, dict[Any, Any]]:
    """Return the cell by which a cell is judged, with the doubts about all that show the same runs."""
    printed = paper.printed
    same = [twin for twin in paper.twins.get(cell, (cell,)) if twin in printed]
    known = [twin for twin in same if pd.notna(printed[twin]["mean"])]
    home = (known or same)[0]
    status = min((printed[twin]["status"] for twin in same), key=STATUSES.index)
    differ = not agree(*([printed[twin][name] for twin in known] for name in ("mean", "step")))
    return home, {**printed[home], "status": "contradiction" if differ else status}


def _line(
    paper: Paper,
    cell: Key,
    made: dict[str, pd.DataFrame],
    others: Sequence[Scattered],
) -> dict[str, Any]:
    line: dict[str, Any] = {"status": "not reported", "verdict": "not reported", "judged_at": ""}
    notes: list[str] = []
    if cell in paper.printed:
        own = paper.printed[cell]
        line |= {name: own[name] for name in ("metric", "source", "status")}
        line |= {f"paper_{name}": own[name] for name in ("mean", "std", "runs")}
        ours = made["paper"] if "paper" in made else pd.DataFrame({"result": [], "setting_key": []})
        home, number = _judged_by(paper, cell)
        said, notes = _verdict(paper, cell, home, number, ours, others)
        line |= said | {"judged_at": ", ".join(home) if home != cell else ""}
    for scale, name in (("paper", "recorded"), ("short", "short"), ("smoke", "smoke")):
        line |= {f"{name}_mean": math.nan, f"{name}_seeds": 0}
        if scale in made:
            table = made[scale]
            line |= {f"{name}_mean": _mean(table), f"{name}_seeds": len(table)}
            notes += _remarks(scale, table)
        known = scale in made and not censored(made[scale]).any()
        line[f"{name}_std"] = made[scale]["result"].std() if known else math.nan
    return line | {"note": "; ".join(notes)}


def _verdict(
    paper: Paper,
    cell: Key,
    home: Key,
    number: Mapping[Any, Any],
    ours: pd.DataFrame,
    others: Sequence[Scattered],
) -> tuple[dict[str, Any], list[str]]:
    """Return the columns of a cell's verdict, and what must be said of it; home and number: see `_judged_by`."""
    means = {key: float(line["mean"]) for key, line in paper.printed.items()}
    within = margin(
        home, number["metric"], number["step"], judging=paper.judging, claims=paper.claims, printed=means
    )
    every = (paper.judging.get(twin[0], {}).get("tuned", "") for twin in paper.twins.get(cell, (cell,)))
    tuned = next(filter(None, every), "")
    keys = set(ours["setting_key"])
    verdict = judge(
        number,
        list(ours["result"]),
        scale="paper",
        censored=list(censored(ours)),
        margin=within.points,
        step=number["step"],
        prior=prior(paper, home, number, [one for one in others if one.key not in keys]),
        tuned=bool(tuned),
    )
    own = paper.printed[cell]["note"]
    notes = [own] if own else []
    notes += [f"the same runs as {', '.join(home)}, judged there"] if home != cell else []
    notes += [f"tuned: {tuned}"] if verdict.word == "tuned" else []
    if verdict.word in JUDGED:
        notes.append(f"margin {within.points:g} ({within.reason})")
        known = "no spread" if verdict.prior.startswith("none") else "spread borrowed"
        notes += [f"{known} ({verdict.prior.removeprefix('none: ')})"] if verdict.prior else []
    notes += [] if metric(number["metric"]).judged else [f"no accuracy but {number['metric']}: never judged"]
    line: dict[str, Any] = {"verdict": verdict.word, "gap_points": verdict.gap_points, "gap_low": verdict.low}
    line |= {"gap_high": verdict.high, "margin": verdict.margin, "margin_reason": within.reason}
    return line | {"e_n": verdict.en, "prior": verdict.prior, "more_seeds": verdict.more}, notes


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


def claims(paper: Paper, folders: Iterable[Path], item: str = "") -> pd.DataFrame:
    """Check the claims of a paper on its own numbers and, paired by seed, on what was recorded at each scale.

    Args:
        paper, folders: as for `records`.
        item: the short name of the item whose claims are checked; all of the paper's if empty.

    Returns:
        Columns id, text, reading, place, item; then for each name of `SCALE_OF` one with "holds", "fails",
        "cannot tell", "not run", "partly run", "to be seen", "censored" where runs did not reach a target or, for
        the paper's own numbers, "number lost", and one "<name>: detail" with the numbers or what is missing. On
        the paper's own numbers means are compared; on ours see `fedrepro.papers.contrasts`.
    """
    folders = list(folders)
    spreads = _spreads(paper)
    asked = _asked(paper, item)
    own = values(paper, "reported", folders)
    runs = {name: _seeds(paper, scale, folders, asked) for name, scale in SCALE_OF.items() if name != OWN}
    facts = ["id", "text", "reading", "place", "item"]
    lines = []
    for claim in asked:
        line = {name: getattr(claim, name) for name in facts}
        outcome = check(claim, own)
        lost = outcome.status in ("not run", "partly run")
        line |= {OWN: "number lost" if lost else outcome.status, f"{OWN}: detail": outcome.detail}
        for name, numbers in runs.items():
            finding = find(claim, numbers, spreads)
            status, detail = str(finding.status), finding.detail
            bounds = [key for key in needed_cells(claim) if any(map(math.isnan, numbers.get(key, {}).values()))]
            if bounds and status != "fails":
                status = "censored"
                detail = f"no mean, as targets were not reached: {'; '.join(map(', '.join, bounds))}"
            line |= {name: status, f"{name}: detail": detail}
        lines.append(line)
    return pd.DataFrame(lines, columns=facts + [part for name in SCALE_OF for part in (name, f"{name}: detail")])


def contrasts(paper: Paper, scale: str, folders: Iterable[Path], item: str = "") -> pd.DataFrame:
    """Return every contrast of a paper's claims on the runs of a scale.

    Args:
        paper, scale, folders: as for `records`.
        item: as for `claims`.

    Returns:
        Columns claim, item, and the fields of `fedrepro.papers.contrasts.Contrast`.
    """
    asked = _asked(paper, item)
    runs, spreads = _seeds(paper, scale, list(folders), asked), _spreads(paper)
    names = ["claim", "item", *(field.name for field in fields(Contrast))]
    found = ((claim, one) for claim in asked for one in find(claim, runs, spreads).contrasts)
    return pd.DataFrame([{"claim": c.id, "item": c.item} | vars(one) for c, one in found], columns=names)


def _asked(paper: Paper, item: str) -> list[Claim]:
    return [claim for claim in paper.claims if item in ("", claim.item)]


def _seeds(paper: Paper, scale: str, folders: Sequence[Path], asked: Sequence[Claim]) -> dict[Key, Seeds]:
    """Return the results that claims ask for, by cell, seed and precision; NaN for one that is only a lower bound.

    Items whose records are damaged are left out.
    """
    found: dict[Key, Seeds] = {}
    needed = {key[0] for claim in asked for key in needed_cells(claim)}
    items = [item for item in item_names(paper) if item in needed]
    damaged = damages(paper, folders, items)
    for item in (item for item in items if item not in damaged):
        table = records(paper, item, scale, folders)
        table["result"] = table["result"].where(~censored(table))
        for (row, column), lines in table.groupby(["row", "column"]):
            places = zip(lines["seed"].astype(int), lines["precision"].astype(str))
            found[item, str(row), str(column)] = dict(zip(places, lines["result"].astype(float)))
    return found


def _spreads(paper: Paper) -> dict[Key, tuple[float, int]]:
    """Return the spread over runs of each cell of which the paper prints it, and how many runs."""
    known = ((key, line["std"], line["runs"]) for key, line in paper.printed.items())
    return {key: (float(std), int(runs)) for key, std, runs in known if std >= 0 and runs >= 1}
