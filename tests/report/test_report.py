"""The report: complete, the same when written again, and one well-formed page with nothing from outside."""

import re
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from fedrepro import papers
from fedrepro.report.html import Block, Bullets, Heading, Paragraph, Span, Table, page
from fedrepro.report.markdown import markdown
from fedrepro.report.report import HONEST, write_report
from fedrepro.report.verdict import WORDS
from fedrepro.runs import record

ITEM = "table8_dirichlet"
VOID = {"meta", "br"}


class Page(HTMLParser):
    """Reads a page strictly: every element must be closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.tables: dict[str, list[list[str]]] = {}
        self.rows: list[list[str]] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert len(dict(attrs)) == len(attrs)
        self.tags.append((tag, dict(attrs)))
        if tag in VOID:
            self.words.append(" ")
            return
        self.open.append(tag)
        if tag == "table":
            self.rows = []
        if tag == "tr":
            self.rows.append([])
        if tag in ("th", "td", "caption"):
            self.words = []

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag
        if tag in ("th", "td"):
            self.rows[-1].append("".join(self.words))
        if tag == "caption":
            self.tables["".join(self.words)] = self.rows

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def line(row: str, column: str, seed: int, result: float, **facts: Any) -> dict[str, Any]:
    made = {"device": "cpu: <A> & B|C", "precision": "float32", "torch": "2.14.1", "commit": "abc1234567"}
    made |= {"date": "2026-03-04", "setting_key": "k"}
    return {"row": row, "column": column, "seed": seed, "result": result} | made | facts


def save(folder: Path, item: str, scale: str, lines: list[dict[str, Any]]) -> None:
    place = folder / "fedbe" / item
    place.mkdir(parents=True, exist_ok=True)
    pd.DataFrame(lines).reindex(columns=record.RUN_COLUMNS).to_csv(place / f"{scale}.csv", index=False)


def fill(folder: Path) -> Path:
    """Record one judged cell, one off, one unreported, and some of a smaller scale."""
    lines = [line("alpha=0.1", "ConvNet", seed, 72.5) for seed in range(5)]
    lines += [line("alpha=2", "ResNet-20", 0, 50.0, date="2026-05-06", commit="def-dirty")]
    lines += [line("alpha=9", "ConvNet", 0, 33.0)]
    save(folder, ITEM, "paper", lines)
    save(folder, ITEM, "smoke", [line("alpha=0.5", "ConvNet", 0, 73.6), line("alpha=1", "ConvNet", 0, 11.0)])
    return folder


def written(figures: Path, *others: Path) -> tuple[str, str]:
    md, html = write_report(figures, folders=[figures, *others])
    assert (md, html) == (figures / "report.md", figures / "report.html")
    return md.read_text("utf-8"), html.read_text("utf-8")


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """Return the markdown and the HTML report on `fill`'s records."""
    return written(fill(tmp_path_factory.mktemp("figures")))


def grid(md: str, caption: str) -> dict[tuple[str, str], str]:
    """Return the cells of a table of the markdown report."""
    table = md.split(f"**{caption}**\n\n")[1].split("\n\n")[0].splitlines()
    rows = [[part.strip() for part in re.split(r"(?<!\\)\|", text)[1:-1]] for text in table]
    return {(row[0], name): cell for row in rows[2:] for name, cell in zip(rows[0][1:], row[1:])}


def test_cells_say_what_is_known(report: tuple[str, str]) -> None:
    cells = grid(report[0], r"table8\_dirichlet: paper and paper scale")
    judged = "paper 72.5 ± 0.44<br>ours 72.5 ± 0.00 (5)<br>gap +0.0 \\[−0.4, +0.4\\] points<br>**reproduced**"
    assert cells["alpha=0.1", "ConvNet"] == judged
    # One seed takes the paper's 0.55 over 5 runs: half the interval is 2.132 * 0.55 * sqrt(1.2) = 1.28.
    off = "paper 76.8 ± 0.55 (repaired)<br>ours 50.0 (1)<br>gap −26.8 \\[−28.1, −25.5\\] points<br>**off**"
    assert cells["alpha=2", "ResNet-20"] == off
    assert cells["alpha=0.5", "ConvNet"] == "paper 73.6 ± 0.73<br>**not run**"
    assert cells["alpha=9", "ConvNet"] == "ours 33.0 (1)<br>**not reported**"
    assert cells["alpha=9", "ResNet-20"] == ""


def test_decimals_are_the_papers(report: tuple[str, str]) -> None:
    cells = grid(report[0], r"figure1\_simplex: paper and paper scale")
    assert cells["FedAvg", "Swiss roll"] == "paper 64<br>**not run**"


def test_smaller_scales_have_a_table_of_their_own(report: tuple[str, str]) -> None:
    md, _ = report
    assert f"> {' '.join(HONEST.split())}" in md
    cells = grid(md, r"table8\_dirichlet: short and smoke runs, no reproductions")
    assert {cell for cell in cells.items() if cell[1]} == {
        (("alpha=0.5", "ConvNet"), "smoke 73.6 (1)"),
        (("alpha=1", "ConvNet"), "smoke 11.0 (1)"),
    }


def test_every_reported_cell_is_listed_once(report: tuple[str, str]) -> None:
    md, html = report
    every = [papers.load(name).reported for name in papers.names()]
    reported = sum(cells.groupby(["item", "row", "column"]).ngroups for cells in every)
    waiting = sum(map(int, re.findall(r"not built yet: (\d+) reported cell", md)))
    tables = "".join(part.split(": claims")[0] for part in md.split("\n## "))
    shown = [cell for cell in re.findall(r"\*\*([a-z ]+)\*\*", tables) if cell in WORDS]
    assert len(shown) - shown.count("not reported") + waiting == reported
    cells = [
        cell
        for caption, rows in Page(html).tables.items()
        if caption.endswith(": paper and paper scale")
        for row in rows[1:]
        for cell in row[1:]
        if cell and not cell.endswith("not reported")
    ]
    assert len(cells) + waiting == reported


def test_the_counts_add_up(report: tuple[str, str]) -> None:
    md, html = report
    rows = Page(html).tables["Verdicts on the reported cells"]
    cells = {(paper, name): count for paper, *row in rows[1:] for name, count in zip(rows[0][1:], row)}
    assert grid(md, "Verdicts on the reported cells") == cells
    counts = {name: sum(int(cells[paper, name]) for paper in papers.names()) for name in rows[0][1:]}
    assert (counts["reproduced"], counts["off"], counts["run, not reported"]) == (1, 1, 1)
    assert counts["reported cells"] == sum(counts[word] for word in WORDS[:-1])


def test_a_smoke_run_reproduces_nothing(tmp_path: Path) -> None:
    save(tmp_path, ITEM, "smoke", [line("alpha=0.5", "ConvNet", seed, 73.6) for seed in range(5)])
    save(tmp_path, ITEM, "short", [line("alpha=0.5", "ConvNet", seed, 73.6) for seed in range(5)])
    rows = Page(written(tmp_path)[1]).tables["Verdicts on the reported cells"]
    assert dict(zip(rows[0], rows[1]))["reproduced"] == "0"


def test_it_says_with_what_it_was_made(report: tuple[str, str]) -> None:
    md, html = report
    assert "records of 9 runs, the newest of 2026-05-06; commit abc1234567, def-dirty; torch 2.14.1" in md
    rows = Page(html).tables[f"{ITEM}: recorded"]
    facts = ["cpu: <A> & B|C", "float32", "2.14.1", "abc1234567, def-dirty", "2026-05-06"]
    assert rows[1] == ["paper", "3", "1 to 5", *facts]
    assert rows[2][:3] == ["smoke", "2", "1"]
    assert r"cpu: \<A\> &amp; B\|C" in md


def test_without_records(tmp_path: Path) -> None:
    md, html = written(tmp_path)
    assert "There are no records yet" in md
    assert "not run" in html


def test_the_same_bytes_again_wherever_it_lies(report: tuple[str, str], tmp_path: Path) -> None:
    assert written(fill(tmp_path / "elsewhere")) == report
    assert str(tmp_path.parent) not in "".join(report)


def test_links_only_to_what_there_is(report: tuple[str, str], tmp_path: Path) -> None:
    assert ".ipynb" not in report[0]
    assert ".svg" not in report[0]
    for name in (
        f"notebooks/fedbe/{ITEM}.ipynb",
        f"figures/fedbe/{ITEM}/the sweep.svg",
        f"new/fedbe/{ITEM}/b.svg",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    md, html = written(tmp_path / "figures", tmp_path / "new")
    links = [
        f"../notebooks/fedbe/{ITEM}.ipynb",
        f"fedbe/{ITEM}/the%20sweep.svg",
        f"../new/fedbe/{ITEM}/b.svg",
    ]
    assert f"See [notebook]({links[0]}) · [the sweep.svg]({links[1]}) · [b.svg]({links[2]})\n" in md
    found = [str(a["href"]) for tag, a in Page(html).tags if tag == "a"]
    assert [link for link in found if not link.startswith("#")] == links
    assert md.count("See [") == 1


def test_claims_are_told_with_their_numbers(report: tuple[str, str]) -> None:
    md, html = report
    rows = Page(html).tables["fedbe: claims"]
    row = next(row for row in rows if row[0].startswith("The gain over FedAvg grows"))
    assert row[1].startswith("fails 1 of 2; worst Step: gains 2.5, 7.3")
    assert row[2:] == ["not run"] * 3
    assert "To be seen: " in next(row[0] for row in rows if row[1] == "to be seen")
    assert len(rows) - 1 == sum(
        map(int, re.findall(r"(\d+) [a-z]", md.split("- paper scale: ")[1].split("\n")[0]))
    )


def test_the_page_is_whole_and_alone(report: tuple[str, str]) -> None:
    html = report[1]
    read = Page(html)
    tags = [tag for tag, _ in read.tags]
    assert html.startswith("<!DOCTYPE html>\n")
    assert not {"script", "link", "img", "iframe", "object"} & set(tags)
    assert not re.search(r"https?:|url\(|@import", html)
    assert tags.count("caption") == tags.count("table") > 5
    assert all(a.get("scope") in ("col", "row") for tag, a in read.tags if tag == "th")
    ids = [a["id"] for _, a in read.tags if "id" in a]
    assert len(set(ids)) == len(ids)
    inside = [str(a["href"])[1:] for tag, a in read.tags if tag == "a" and str(a["href"]).startswith("#")]
    assert inside == [name for name, tag in zip(ids, [t for t, a in read.tags if "id" in a]) if tag != "h1"]
    assert "prefers-color-scheme: dark" in html
    assert 'name="viewport"' in html


def test_colour_only_repeats_a_word(report: tuple[str, str]) -> None:
    html = report[1]
    spans = re.findall(r'<span class="verdict ?([a-z]*)">([^<]*)</span>', html)
    assert len(spans) == html.count('class="verdict')
    tones = {unescape(word): tone for tone, word in spans}
    assert (tones["reproduced"], tones["off"], tones["not run"]) == ("good", "bad", "")
    assert all(word for _, word in spans)


def test_everything_is_escaped() -> None:
    bad = '<b a="1">&|*_'
    span = Span(bad, "verdict", '"><script>')
    table = Table(bad, (bad, bad), ((((Span(bad, "quiet"),),), ((span,), (Span(bad, "code"),))),))
    blocks: list[Block] = [
        Heading(1, bad),
        Heading(2, bad),
        Heading(2, bad + "!"),
        Paragraph((Span(bad, "strong"),)),
    ]
    html = page(bad, [*blocks, Bullets(((Span(bad),),)), table])
    read = Page(html)
    assert not {"b", "script"} & {tag for tag, _ in read.tags}
    assert read.tables == {bad: [[bad, bad], [bad, f"{bad} {bad}"]]}
    md = markdown([*blocks, table]).splitlines()
    assert md[0] == r'# \<b a="1"\>&amp;\|\*\_'
    assert len(re.findall(r"(?<!\\)\|", md[-3])) == 3


def test_two_headings_of_the_same_words_have_different_anchors() -> None:
    read = Page(page("t", [Heading(2, "A b"), Heading(3, "A: b")]))
    assert [a["id"] for _, a in read.tags if "id" in a] == ["a-b", "a-b-more"]
    assert [a["href"] for tag, a in read.tags if tag == "a"] == ["#a-b", "#a-b-more"]
