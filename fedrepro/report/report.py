"""The report: every number of every paper beside what was recorded, as markdown and as one HTML page.

It accounts for each reported cell, run or not, and depends on nothing but the records: writing it twice
gives the same bytes.
"""

import math
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pandas as pd

from fedrepro import papers
from fedrepro.core.files import write_atomically
from fedrepro.papers import SCALES, Item, Paper
from fedrepro.papers.metrics import METRICS
from fedrepro.report.html import Block, Bullets, Heading, Line, Lines, Paragraph, Span, Table, page
from fedrepro.report.markdown import markdown
from fedrepro.report.verdict import SCALE_OF, WORDS, claims, comparison, decimals, item_names, records

TITLE = "The papers' numbers and ours"
HOW = """Each number that a paper prints stands beside what our runs recorded at paper scale: mean ± standard
deviation (number of seeds). “reproduced”: the means differ by at most 3 standard errors (SE) of their
difference, or by at most 0.5 points where no spread is known; for one seed of ours the paper's spread stands
in, and where the paper prints none, its number counts as one run with our spread. “off”: they differ by
more. “not run”: there is no run at paper scale."""
HONEST = """Smoke and short runs are no reproductions. Smoke runs use other, tiny data to show that all works;
short runs use fewer images, rounds or epochs than the paper. Their numbers have tables of their own, and no
verdict ever rests on them."""
CLAIMS = """Each sentence that the paper draws from its numbers, checked on the means of those numbers and of
our records. A claim may fail on the paper's own numbers. That it holds in a short or smoke run confirms
nothing."""
UNITS = {  # behind the numbers of a table; percentages are told by the table's caption
    name: {"%": "", "points": " points gained"}.get(metric.unit, f" {metric.unit}")
    for name, metric in METRICS.items()
}


def write_report(folder: Path, *, folders: Sequence[Path]) -> tuple[Path, Path]:
    """Write `report.md` and `report.html` about all papers.

    Args:
        folder: where to; links to notebooks and figures are relative to it.
        folders: of records: the repository's figures first, then a session's results, which win.

    Returns:
        The two files.
    """
    blocks = document(folder, folders)
    files = folder / "report.md", folder / "report.html"
    for path, text in zip(files, (markdown(blocks), page(TITLE, blocks))):
        write_atomically(path, text.encode())
    return files


def document(folder: Path, folders: Sequence[Path]) -> list[Block]:
    """Return the report's blocks; see `write_report`."""
    parts: list[Block] = []
    found: list[pd.DataFrame] = []
    verdicts: dict[str, list[str]] = {}
    for paper in map(papers.load, papers.names()):
        parts.append(Heading(2, paper.title))
        waiting: list[Line] = []
        verdicts[paper.name] = []
        for item in item_names(paper):
            table = comparison(paper, item, folders)
            made = {scale: records(paper, item, scale, folders) for scale in reversed(SCALES)}
            found += [lines for lines in made.values() if len(lines)]
            verdicts[paper.name] += list(table["verdict"])
            if item in paper.items or any(map(len, made.values())):
                parts += _section(paper.items.get(item), item, table, made)
                parts += _links(f"{paper.name}/{item}", folder, folders)
            else:
                waiting.append(_waiting(item, table))
        parts += [Heading(3, f"{paper.name}: not built yet"), Bullets(tuple(waiting))] if waiting else []
        parts += _claims(paper, folders)
    start: list[Block] = [Heading(1, TITLE), Paragraph(_text(HOW)), Paragraph(_text(HONEST), warning=True)]
    return [*start, Paragraph(_text(_origin(found))), _counts(verdicts), *parts]


def _text(text: str) -> Line:
    return (Span(" ".join(text.split())),)


def _many(number: int, thing: str) -> str:
    return f"{number} {thing}{'' if number == 1 else 's'}"


def _origin(found: Sequence[pd.DataFrame]) -> str:
    """Say when and with what the records were made."""
    if not found:
        return "There are no records yet: every number below is the paper's."
    every = pd.concat(found)  # a run may stand in several items, and a toy's run gives several numbers
    named = every["key"].notna()
    number = len(every[named].drop_duplicates(["key", "seed"])) + int((~named).sum())
    made = f"Made from the records of {_many(number, 'run')}, the newest of {every['date'].max()}"
    facts = [f"{name} {_listed(every[name])}" for name in ("commit", "torch", "device")]
    return f"{'; '.join([made, *facts])}."


def _listed(values: pd.Series) -> str:
    return ", ".join(sorted(set(values.dropna().astype(str)))) or "unknown"


def _sources(table: pd.DataFrame) -> str:
    return "; ".join(dict.fromkeys(part for text in table["source"].dropna() for part in text.split("; ")))


def _counts(verdicts: Mapping[str, Sequence[str]]) -> Table:
    rows: list[tuple[Lines, ...]] = []
    for paper, words in verdicts.items():
        counts = [words.count(word) for word in WORDS]
        numbers = [len(words) - words.count("not reported"), *counts]
        rows.append(((_text(paper),), *((_text(str(number)),) for number in numbers)))
    head = ("paper", "reported cells", *WORDS[:-1], "run, not reported")
    return Table("Verdicts on the reported cells", head, tuple(rows))


def _waiting(item: str, table: pd.DataFrame) -> Line:
    """Return the line that accounts for an item that has no notebook and no records."""
    others = table.loc[table["verdict"] != "not run", "verdict"].value_counts(sort=False)
    texts = [f"not built yet: {_many(len(table), 'reported cell')}, not run"]
    texts += [f"{number} of them: {word}" for word, number in others.items()]
    return (Span(item, "code"), Span(f" ({_sources(table)}): {'; '.join(texts)}"))


def _links(key: str, folder: Path, folders: Sequence[Path]) -> list[Block]:
    """Return links to the item's notebook and figures, those that there are."""
    notebook = f"../notebooks/{key}.ipynb"
    found = {"notebook": notebook} if (folder / notebook).exists() else {}
    for place in folders:
        for path in sorted((place / key).glob("*.svg")):
            found[path.name] = quote(Path(os.path.relpath(path, folder)).as_posix())
    links = [part for name, link in found.items() for part in (Span(" · "), Span(name, link=link))]
    return [Paragraph((Span("See "), *links[1:]))] if links else []


def _section(entry: Item | None, item: str, table: pd.DataFrame, made: Mapping[str, pd.DataFrame]) -> list[Block]:
    """Return what is known of one item."""
    about = f"{entry.source}. Claim: {entry.claim}" if entry else _sources(table)
    blocks: list[Block] = [Heading(3, f"{item}: {entry.title}" if entry else item), Paragraph(_text(about))]
    if any(map(len, made.values())):
        head = ("scale", "cells", "seeds per cell", "device", "precision", "torch", "commit", "newest")
        rows = tuple(_made(scale, found) for scale, found in made.items() if len(found))
        blocks.append(Table(f"{item}: recorded", head, rows))
    else:
        blocks.append(Paragraph(_text("Recorded: nothing yet.")))
    judged = table[table["status"].ne("not reported") | table["recorded_seeds"].gt(0)]
    if len(judged):
        places = decimals(table["paper_mean"]), decimals(table["paper_std"])
        blocks.append(_grid(f"{item}: paper and paper scale", judged, lambda cell: _judged(cell, places)))
    else:
        blocks.append(Paragraph(_text("The paper prints no number for this item.")))
    smaller = table[table["short_seeds"].gt(0) | table["smoke_seeds"].gt(0)]
    if len(smaller):
        blocks.append(_grid(f"{item}: short and smoke runs, no reproductions", smaller, _smaller))
    notes: dict[str, list[str]] = {}
    for cell in table.to_dict("records"):
        notes.setdefault(cell["note"], []).append(f"{cell['row']} × {cell['column']}")
    told = tuple(_text(f"{note}: {', '.join(cells)}") for note, cells in notes.items() if note)
    return [*blocks, Bullets(told)] if told else blocks


def _made(scale: str, found: pd.DataFrame) -> tuple[Lines, ...]:
    """Return the line that says how an item was recorded at a scale."""
    seeds = found.groupby(["row", "column"]).size()
    spread = str(seeds.min()) if seeds.min() == seeds.max() else f"{seeds.min()} to {seeds.max()}"
    texts = [scale, str(len(seeds)), spread]
    texts += [_listed(found[name]) for name in ("device", "precision", "torch", "commit")]
    return tuple((_text(text),) for text in [*texts, found["date"].max()])


def _grid(caption: str, table: pd.DataFrame, show: Callable[[Mapping[Any, Any]], Lines]) -> Table:
    """Lay an item's cells out as the paper does, rows by columns."""
    cells = {(cell["row"], cell["column"]): show(cell) for cell in table.to_dict("records")}
    columns = list(dict.fromkeys(table["column"]))
    rows = dict.fromkeys(table["row"])
    laid = tuple(((_text(row),), *(cells.get((row, column), ()) for column in columns)) for row in rows)
    return Table(caption, ("", *columns), laid)


def _number(mean: float, std: float, places: tuple[int, int]) -> str:
    spread = f" ± {std:.{places[1]}f}" if math.isfinite(std) else ""
    return f"{mean:.{places[0]}f}{spread}"


def _signed(number: float) -> str:
    return f"{round(number, 1) + 0.0:+.1f}".replace("-", "−")  # adding 0 turns -0.0 into 0.0


def _judged(cell: Mapping[Any, Any], places: tuple[int, int]) -> Lines:
    """Return a cell's lines: the paper's number, ours, the gap, the verdict."""
    lines: list[Line] = []
    if math.isfinite(cell["paper_mean"]):
        how = f" ({cell['status']})" if cell["status"] in ("repaired", "inferred") else ""
        number = _number(cell["paper_mean"], cell["paper_std"], places)
        lines.append(_text(f"paper {number}{UNITS.get(cell['metric'], '')}{how}"))
    if cell["recorded_seeds"] and math.isfinite(cell["recorded_mean"]):
        number = _number(cell["recorded_mean"], cell["recorded_std"], (max(1, places[0]), 2))
        lines.append(_text(f"ours {number} ({cell['recorded_seeds']})"))
    elif not cell["recorded_seeds"] and cell["verdict"] != "not run":
        lines.append((Span("not run", "quiet"),))
    if math.isfinite(cell["gap_points"]):
        unit = METRICS[cell["metric"]].unit
        unit = "points" if unit == "%" else unit
        known = math.isfinite(cell["gap_low"])
        around = f" [{_signed(cell['gap_low'])}, {_signed(cell['gap_high'])}]" if known else ""
        lines.append(_text(f"gap {_signed(cell['gap_points'])}{around} {unit}"))
    return *lines, (Span(cell["verdict"], "verdict"),)


def _smaller(cell: Mapping[Any, Any]) -> Lines:
    numbers = [(scale, cell[f"{scale}_mean"], cell[f"{scale}_seeds"]) for scale in ("short", "smoke")]
    shown = [
        (scale, f"{mean:.1f}" if math.isfinite(mean) else "censored", seeds) for scale, mean, seeds in numbers
    ]
    return tuple(_text(f"{scale} {number} ({seeds})") for scale, number, seeds in shown if seeds)


def _claims(paper: Paper, folders: Sequence[Path]) -> list[Block]:
    table = claims(paper, folders)
    if not len(table):
        return []
    rows: list[tuple[Lines, ...]] = []
    for claim in table.to_dict("records"):
        about = [_text(claim["text"]), (Span(f"{claim['place']}. {claim['reading']}".strip(), "quiet"),)]
        if claim["smoke"] == "to be seen":
            about.append((Span(f"To be seen: {claim['smoke: detail']}", "quiet"),))
        outcomes = []
        for name, scale in SCALE_OF.items():
            # A smaller scale gets no verdict's colour: it confirms nothing.
            lines: list[Line] = [(Span(claim[name], "plain" if scale in ("short", "smoke") else "verdict"),)]
            if claim[name] in ("holds", "fails"):
                lines.append((Span(claim[f"{name}: detail"], "quiet"),))
            outcomes.append(tuple(lines))
        rows.append((tuple(about), *outcomes))
    counts = [
        f"{name}: {', '.join(f'{n} {word}' for word, n in table[name].value_counts().sort_index().items())}"
        for name in SCALE_OF
    ]
    return [
        Heading(3, f"{paper.name}: claims"),
        Paragraph(_text(CLAIMS)),
        Bullets(tuple(map(_text, counts))),
        Table(f"{paper.name}: claims", ("claim", *SCALE_OF), tuple(rows)),
    ]
