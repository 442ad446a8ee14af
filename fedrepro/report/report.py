"""The report: every number of every paper beside what was recorded, as markdown, as one HTML page, and as tables.

It accounts for each reported cell, run or not, and depends on nothing but the records: writing it twice
gives the same bytes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd

from fedrepro import papers
from fedrepro.core.files import write_atomically
from fedrepro.papers import SCALES, Paper
from fedrepro.papers.judge import WORDS
from fedrepro.papers.judged import rates_table
from fedrepro.report import layout
from fedrepro.report.cells import judged, legend, printed
from fedrepro.report.found import damages, item_names
from fedrepro.report.html import anchor, page
from fedrepro.report.layout import Part, styled
from fedrepro.report.markdown import markdown
from fedrepro.report.pictures import Picture, notebook, pictures, relative
from fedrepro.report.verdict import SCALE_OF, claims, comparison, records

TITLE = "The papers' numbers and ours"
HOW = """Each number that a paper prints stands beside the mean of our seeds at paper scale, ± their standard
deviation (number of seeds). Under it: the gap, ours less the paper's, with its 90 % interval. “reproduced”: the
interval lies inside the margin, half of the effect that the table is about (one point where no claim says
more), and the gap does not differ from zero. “reproduced, with a difference”: inside, but different from zero.
“off”: different, and not inside. “cannot tell”: neither, with the number of further seeds that could tell.
Where a spread is not known, that of other seeds stands in. “tuned”: the setting was chosen by the paper's
number. Cells that show the same runs have one verdict and count once; only the numbers beside an item's name count
each of its cells."""
HONEST = """Smoke and short runs are no reproductions. Smoke runs use other, tiny data to show that all works;
short runs use fewer images, rounds or epochs than the paper. Their numbers have tables of their own, and no
verdict ever rests on them."""
CLAIMS = """Each sentence that the paper draws from its numbers: on the means of those numbers, and on
differences of our runs, paired by seed. “holds”: every comparison is above zero, by its 90 % interval. “fails”:
one is below zero. A claim may fail on the paper's own numbers. That it holds in a short or smoke run confirms
nothing."""
RATES = """How often each word falls, in percent, where the true gap is known: a simulation in which the paper
prints the spread of its five runs and seeds scatter by a quarter of the margin. “off” without a gap, and
“reproduced” at a margin or more, are wrong."""
FIRST = ("reproduced", "off", "cannot tell", "not run")  # told of every paper, also where there is none


@dataclass(frozen=True)
class Off:
    """A cell that is off: where it stands, and its numbers."""

    item: str
    anchor: str
    where: str
    text: str


@dataclass(frozen=True)
class Section:
    """What is known of one item; `scale` is the largest at which it is recorded, `counts` is of its verdicts."""

    paper: str
    name: str
    heading: str
    anchor: str
    about: str
    scale: str
    counts: Mapping[str, int]
    tables: Sequence[Part]
    legend: str
    recorded: Part | None
    pictures: Sequence[Picture]
    links: Sequence[tuple[str, str]]
    notes: Sequence[str]
    off: Sequence[Off]


@dataclass(frozen=True)
class Claims(Part):
    """The table of a paper's claims, and how many of them hold where."""

    counts: Sequence[str] = ()


@dataclass(frozen=True)
class Chapter:
    """What is known of one paper; items that were run come first. `tables` are its items' comparisons."""

    name: str
    title: str
    anchor: str
    counts: Mapping[str, int]
    off: Sequence[Off]
    sections: Sequence[Section]
    waiting: Sequence[tuple[str, str]]
    claims: Claims | None
    tables: Mapping[str, pd.DataFrame]


def write_report(folder: Path, *, folders: Sequence[Path]) -> tuple[Path, Path]:
    """Write `report.md` and `report.html` about all papers, and each item's table below `tables/`.

    Args:
        folder: where to; links to notebooks and figures are relative to it.
        folders: of records: the repository's figures first, then a session's results, which win.

    Returns:
        The two files; beside them lie tables/<paper>/<item>.csv and .tex, see `layout.write`.
    """
    found = document(folder, folders)
    files = folder / "report.md", folder / "report.html"
    for path, text in zip(files, (markdown(found), page(found))):
        write_atomically(path, text.encode())
    for chapter in found["papers"]:
        for item, table in chapter.tables.items():
            layout.write(papers.load(chapter.name), item, table, folder / "tables" / chapter.name)
    return files


def document(folder: Path, folders: Sequence[Path]) -> dict[str, Any]:
    """Return what the templates of the report show; see `write_report`."""
    found: list[pd.DataFrame] = []
    chapters = [_chapter(paper, folder, folders, found) for paper in map(papers.load, papers.names())]
    words = [word for word in WORDS if any(chapter.counts.get(word) for chapter in chapters)]
    return {
        "title": TITLE,
        "origin": _origin(found),
        "honest": " ".join(HONEST.split()),
        "how": " ".join(HOW.split()),
        "claims_text": " ".join(CLAIMS.split()),
        "rates_text": " ".join(RATES.split()),
        "rates": Part(styled(rates_table().set_index(["true gap", "seeds"]), caption="The judge's own rates")),
        "papers": chapters,
        "counts": _counts(chapters),
        "words": words,
    }


def _chapter(paper: Paper, folder: Path, folders: Sequence[Path], found: list[pd.DataFrame]) -> Chapter:
    """Return what is known of a paper; what its records are is added to `found`."""
    waiting, sections, verdicts = [], [], []
    damaged = damages(paper, folders)
    readable = {item: () if item in damaged else folders for item in item_names(paper)}
    tables = {item: comparison(paper, item, places) for item, places in readable.items()}
    for item, table in tables.items():
        made = {scale: records(paper, item, scale, readable[item]) for scale in reversed(SCALES)}
        found += [lines for lines in made.values() if len(lines)]
        verdicts += list(table.loc[table["judged_at"].eq(""), "verdict"])
        if item in paper.items or any(map(len, made.values())):
            section = _section(paper, item, table, made, folder, folders)
            unread = (
                f"{section.about} Its records are not read: {damaged[item]}" if item in damaged else section.about
            )
            sections.append(replace(section, about=unread))
        else:
            waiting.append((item, _waiting(table)))
    sections.sort(key=lambda section: -SCALES.index(section.scale) if section.scale else 1)
    off = [cell for section in sections for cell in section.off]
    counts = {str(word): verdicts.count(word) for word in WORDS if word in FIRST or word in verdicts}
    name = f"paper-{anchor(paper.name)}"
    told = _claims(paper, folders)
    return Chapter(paper.name, paper.title, name, counts, off, sections, waiting, told, tables)


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
    if (commits := every["commit"].nunique()) > 3:
        facts[0] = f"{commits} commits, told at each item"
    return f"{'; '.join([made, *facts])}."


def _listed(values: pd.Series) -> str:
    return ", ".join(sorted(set(values.dropna().astype(str)))) or "unknown"


def _sources(table: pd.DataFrame) -> str:
    return "; ".join(dict.fromkeys(part for text in table["source"].dropna() for part in text.split("; ")))


def _counts(chapters: Sequence[Chapter]) -> Part:
    """Return the table of how often each verdict was given."""
    words = [word for word in WORDS if any(word in chapter.counts for chapter in chapters)]
    lines = {}
    for chapter in chapters:
        reported = sum(number for word, number in chapter.counts.items() if word != "not reported")
        numbers = {"reported cells": reported} | {word: chapter.counts.get(word, 0) for word in words}
        lines[chapter.name] = {word: str(number) for word, number in numbers.items()}
    table = pd.DataFrame.from_dict(lines, orient="index").rename(columns={"not reported": "run, not reported"})
    return Part(styled(table.rename_axis("paper"), caption="Verdicts on the reported cells"))


def _waiting(table: pd.DataFrame) -> str:
    """Return the line that accounts for an item that has no notebook and no records."""
    others = table.loc[table["verdict"] != "not run", "verdict"].value_counts(sort=False)
    texts = [f"not built yet: {_many(len(table), 'reported cell')}, not run"]
    texts += [f"{number} of them: {word}" for word, number in others.items()]
    return f"({_sources(table)}): {'; '.join(texts)}"


def _section(
    paper: Paper,
    item: str,
    table: pd.DataFrame,
    made: Mapping[str, pd.DataFrame],
    folder: Path,
    folders: Sequence[Path],
) -> Section:
    """Return what is known of one item."""
    entry, key = paper.items.get(item), f"{paper.name}/{item}"
    scale = next((scale for scale, lines in made.items() if len(lines)), "")
    heading, name = f"{item}: {entry.title}" if entry else item, anchor(key)
    rows = {scale: _made(lines) for scale, lines in made.items() if len(lines)}
    caption = f"{item}: recorded"
    recorded = pd.DataFrame.from_dict(rows, orient="index").rename_axis("scale") if rows else None
    links = notebook(key, folder)
    for place in folders:
        links += [(path.name, relative(path, folder)) for path in sorted((place / key).glob("*.svg"))]
    csv = folder / "tables" / paper.name / f"{item}.csv"
    if len(table):
        links += [(path.name, relative(path, folder)) for path in (csv, csv.with_suffix(".tex"))]
    places = printed(table)
    off = [
        Off(item, name, f"{cell['row']} × {cell['column']}", " ".join(judged(cell, places).split("\n")))
        for cell in table[table["verdict"].eq("off") & table["judged_at"].eq("")].to_dict("records")
    ]
    notes: dict[str, list[str]] = {}
    for cell in table.to_dict("records"):
        notes.setdefault(cell["note"], []).append(f"{cell['row']} × {cell['column']}")
    return Section(
        paper=paper.name,
        name=item,
        heading=heading,
        anchor=name,
        about=f"{entry.source}. Claim: {entry.claim}" if entry else _sources(table),
        scale=scale,
        counts={str(word): number for word in WORDS if (number := int((table["verdict"] == word).sum()))},
        tables=layout.parts(table, item),
        legend=legend(table) if scale == "paper" else "",
        recorded=None if recorded is None else Part(styled(recorded, caption=caption)),
        pictures=pictures(key, folder, folders, recorded=scale),
        links=links,
        notes=[f"{note}: {', '.join(where)}" for note, where in notes.items() if note],
        off=off,
    )


def _made(found: pd.DataFrame) -> dict[str, str]:
    """Return the line that says how an item was recorded at a scale."""
    seeds = found.groupby(["row", "column"]).size()
    spread = str(seeds.min()) if seeds.min() == seeds.max() else f"{seeds.min()} to {seeds.max()}"
    facts = {name: _listed(found[name]) for name in ("device", "precision", "torch", "commit")}
    return {"cells": str(len(seeds)), "seeds per cell": spread} | facts | {"newest": str(found["date"].max())}


def _claims(paper: Paper, folders: Sequence[Path]) -> Claims | None:
    """Return the claims of a paper, on its own numbers and at each scale."""
    table = claims(paper, folders)
    if not len(table):
        return None
    rows, tones = {}, {}
    for claim in table.to_dict("records"):
        about = "\n".join(filter(None, [claim["text"], f"{claim['place']}. {claim['reading']}".strip()]))
        if claim["smoke"] == "to be seen":
            about += f"\nTo be seen: {claim['smoke: detail']}"
        told = {name: claim[name] in ("holds", "fails") for name in SCALE_OF}
        rows[about] = {
            name: f"{claim[name]}\n{claim[f'{name}: detail']}" if told[name] else str(claim[name])
            for name in SCALE_OF
        }
        # A smaller scale gets no verdict's colour: it confirms nothing.
        colours = {"holds": "good", "fails": "bad"}
        tones[about] = {
            name: "" if scale in ("short", "smoke") else colours.get(claim[name], "open")
            for name, scale in SCALE_OF.items()
        }
    frames = [pd.DataFrame.from_dict(lines, orient="index") for lines in (rows, tones)]
    counts = [
        f"{name}: {', '.join(f'{n} {word}' for word, n in table[name].value_counts().sort_index().items())}"
        for name in SCALE_OF
    ]
    caption = f"{paper.name}: claims"
    return Claims(styled(frames[0].rename_axis("claim"), frames[1], caption=caption, kind="long"), counts=counts)
