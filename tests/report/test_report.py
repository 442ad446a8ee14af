"""The report: complete, the same when written again, and one well-formed page with nothing from outside."""

import re
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from fedrepro import papers
from fedrepro.papers.judge import WORDS
from fedrepro.report import layout
from fedrepro.report.cells import judged
from fedrepro.report.html import anchor
from fedrepro.report.layout import Part, styled
from fedrepro.report.markdown import escaped, table
from fedrepro.report.pictures import notebook, pictures
from fedrepro.report.report import HONEST, write_report
from fedrepro.report.verdict import comparison
from fedrepro.runs import record

ITEM = "table8_dirichlet"
VOID = {"meta", "br", "img"}


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
            self.rows[-1].append("".join(self.words).strip())
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
    """Return the cells of a table of the markdown report; names of groups stand in front of their rows' names."""
    lines = md.split(f"**{caption}**\n\n")[1].split("\n\n")[0].splitlines()
    rows = [[part.strip() for part in re.split(r"(?<!\\)\|", text)[1:-1]] for text in lines]
    cells: dict[tuple[str, str], str] = {}
    group = ""
    for name, *row in rows[2:]:
        if name.startswith("**"):
            group = f"{name.strip('*')}/"
        else:
            cells |= {(group + name, column): cell for column, cell in zip(rows[0][1:], row)}
    return cells


def test_cells_say_what_is_known(report: tuple[str, str]) -> None:
    cells = grid(report[0], r"table8\_dirichlet: paper and paper scale")
    assert cells["alpha=0.1", "ConvNet"].startswith(r"72.5 ± 0.44 \| 72.5 ± 0.00 (5)<br>✓ reproduced; +0.0")
    assert cells["alpha=2", "ResNet-20"].startswith(r"76.8 ± 0.55 (repaired) \| 50.0 (1)<br>✗ off; −26.8")
    assert cells["alpha=0.5", "ConvNet"] == "73.6 ± 0.73"
    assert cells["alpha=9", "ConvNet"] == r"– \| 33.0 (1)<br>+ not reported"
    assert cells["alpha=9", "ResNet-20"] == ""


def test_a_table_has_the_papers_layout(report: tuple[str, str]) -> None:
    md, html = report
    cells = grid(md, r"table1\_methods: paper and paper scale")
    assert cells["Step/FedBE", "ConvNet"] == "74.5 ± 0.51"
    assert cells["Dirichlet/FedBE w/o SWA", "ResNet-56"] == "63.2 ± 0.71"
    rows = Page(html).tables["table1_methods: paper and paper scale"]
    assert rows[0] == ["", "ConvNet", "ResNet-20", "ResNet-32", "ResNet-44", "ResNet-56"]
    assert [row[0] for row in rows if len(row) == 1] == ["Step", "Dirichlet", "Centralized"]


def test_decimals_are_the_papers(report: tuple[str, str]) -> None:
    cells = grid(report[0], r"figure1\_simplex: paper and paper scale")
    assert cells["FedAvg", "Swiss roll"] == "64"


def test_smaller_scales_have_a_table_of_their_own(report: tuple[str, str]) -> None:
    md, _ = report
    assert f"> {' '.join(HONEST.split())}" in md
    cells = grid(md, r"table8\_dirichlet: smoke scale, no reproduction")
    assert {cell for cell in cells.items() if cell[1]} == {
        (("alpha=0.5", "ConvNet"), "73.60 (1)"),
        (("alpha=1", "ConvNet"), "11.00 (1)"),
    }


def test_every_reported_cell_is_listed_once(report: tuple[str, str]) -> None:
    md, html = report
    every = [papers.load(name).reported for name in papers.names()]
    reported = sum(cells.groupby(["item", "row", "column"]).ngroups for cells in every)
    waiting = sum(map(int, re.findall(r"not built yet: (\d+) reported cell", md)))
    tables = Page(html).tables
    assert len([cell for caption in tables for cell in grid_of(tables, caption)]) + waiting == reported
    shown = re.findall(r"\*\*([a-z0-9_\\]+: paper and paper scale)\*\*", md)
    cells = [cell for caption in shown for cell in grid(md, caption).values()]
    assert len([cell for cell in cells if cell and "not reported" not in cell]) + waiting == reported


def grid_of(tables: dict[str, list[list[str]]], caption: str) -> list[str]:
    """Return the reported cells of a table of the page."""
    if not caption.endswith(": paper and paper scale"):
        return []
    cells = [cell for row in tables[caption][1:] for cell in row[1:]]
    return [cell for cell in cells if cell and "not reported" not in cell]


def test_the_counts_add_up(report: tuple[str, str]) -> None:
    md, html = report
    rows = Page(html).tables["Verdicts on the reported cells"]
    cells = {(paper, name): count for paper, *row in rows[1:] for name, count in zip(rows[0][1:], row)}
    assert grid(md, "Verdicts on the reported cells") == cells
    counts = {name: sum(int(cells[paper, name]) for paper in papers.names()) for name in rows[0][1:]}
    assert (counts["reproduced"], counts["off"], counts["run, not reported"]) == (1, 1, 1)
    assert counts["reported cells"] == sum(counts.get(word, 0) for word in WORDS if word != "not reported")


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


def test_damaged_records_keep_no_other_item_away(tmp_path: Path) -> None:
    figures = fill(tmp_path / "figures")
    before = written(figures)[0]
    path = figures / "fedbe" / "table8_dirichlet" / "paper.csv"
    path.write_text("<<<<<<< HEAD\n" + path.read_text())
    md, html = written(figures)
    assert f"Its records are not read: {path}, line 1: a conflict marker of git" in html
    assert "72.5 ± 0.00 (5)" in before
    assert "72.5 ± 0.00 (5)" not in md
    others = [line for line in before.splitlines() if line.startswith("### ") and "claims" not in line]
    assert others
    assert all(line in md for line in others)


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
    assert f"See [notebook]({links[0]}) · [the sweep.svg]({links[1]}) · [b.svg]({links[2]}) · " in md
    found = [str(a["href"]) for tag, a in Page(html).tags if tag == "a"]
    outside = [link for link in found if not link.startswith("#")]
    assert [link for link in outside if not link.startswith("tables/")] == links
    assert all((tmp_path / "figures" / link).exists() for link in outside if link.startswith("tables/"))
    (tmp_path / f"notebooks/fedbe/{ITEM}.html").touch()
    assert notebook(f"fedbe/{ITEM}", tmp_path / "figures") == [("notebook", f"../notebooks/fedbe/{ITEM}.html")]


def test_pictures_are_those_of_the_largest_scale(tmp_path: Path) -> None:
    place = tmp_path / "figures" / "fedbe" / ITEM
    for name in ("curves_smoke", "curves_short", "sweep_short", "sweep_paper", "odd_smoke"):
        place.mkdir(parents=True, exist_ok=True)
        (place / f"{name}.png").touch()
    (place / "sweep_paper.alt.txt").write_text("What <it> shows.\n")

    def shown(recorded: str) -> list[tuple[str, str]]:
        found = pictures(f"fedbe/{ITEM}", tmp_path / "figures", [tmp_path / "figures"], recorded=recorded)
        return [(picture.source, picture.alt) for picture in found]

    curves, sweep = f"fedbe/{ITEM}/curves_short.png", f"fedbe/{ITEM}/sweep_paper.png"
    assert shown("paper") == [(curves, "curves_short"), (sweep, "What <it> shows.")]
    for name in ("curves_short", "sweep_short", "sweep_paper"):
        (place / f"{name}.png").unlink()
    assert [alt for _, alt in shown("smoke")] == ["curves_smoke", "odd_smoke"]  # better than nothing
    assert shown("short") == []


def test_what_was_run_comes_first_and_the_rest_is_folded(report: tuple[str, str]) -> None:
    html = report[1]
    articles = re.findall(r"<article .*?</article>", html, flags=re.S)
    assert f'id="fedbe-{ITEM.replace("_", "-")}"' in articles[0]
    assert 'data-scale="paper" data-words="reproduced|off|not run|not reported"' in articles[0]
    assert all("<details><summary>Nothing recorded" in article for article in articles[1:])
    contents = html.split("<nav")[1].split("</nav>")[0]
    assert contents.count('class="filtered"') == len(articles)
    assert '<span class="chip bad">1 off</span>' in contents.split("</li>")[0]


def test_what_is_off_is_told_before_the_contents(report: tuple[str, str]) -> None:
    before = re.sub(r"<[^>]+>", "", report[1].split("<nav")[0])
    assert f"{ITEM}, alpha=2 × ResNet-20: 76.8 ± 0.55 (repaired) | 50.0 (1) ✗ off; −26.8" in before
    assert "1 reproduced 1 off" in " ".join(before.split())


def test_each_items_table_is_written_as_csv_and_latex(tmp_path: Path) -> None:
    paper, folder = papers.load("fedbe"), tmp_path / "tables/fedbe"
    for item in (ITEM, "table1_methods"):
        layout.write(paper, item, comparison(paper, item, [fill(tmp_path)]), folder)
    found = pd.read_csv(tmp_path / f"tables/fedbe/{ITEM}.csv", header=[0, 1], index_col=0)
    assert found["ConvNet", "ours"]["alpha=0.1"] == "72.5 ± 0.00 (5)"
    assert found["ResNet-20", "verdict"]["alpha=2"] == "off"
    tex = (tmp_path / "tables/fedbe/table1_methods.tex").read_text()
    assert r"\toprule" in tex
    assert r"\multirow[c]{5}{*}{Step} & FedAvg & 72.0 $\pm$ 0.25 & 70.2 $\pm$ 0.17" in tex


def test_claims_are_told_with_their_numbers(report: tuple[str, str]) -> None:
    md, html = report
    rows = Page(html).tables["fedbe: claims"]
    row = next(row for row in rows if row[0].startswith("The gain over FedAvg grows"))
    assert row[1].startswith("fails\n1 of 2; worst Step: gains 2.5, 7.3")
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
    assert not {"link", "img", "iframe", "object"} & set(tags)
    assert not [a for tag, a in read.tags if tag == "script" and a]  # nothing is fetched
    assert next(a for tag, a in read.tags if tag == "form")["hidden"] is None  # until the script shows it
    assert not re.search(r"https?:|url\(|@import", html)
    assert tags.count("caption") == tags.count("table") > 5
    assert all(a.get("scope") in ("col", "row", "rowgroup") for tag, a in read.tags if tag == "th")
    ids = [a["id"] for _, a in read.tags if "id" in a]
    assert len(set(ids)) == len(ids)
    inside = [str(a["href"])[1:] for tag, a in read.tags if tag == "a" and str(a["href"]).startswith("#")]
    assert set(inside) <= set(ids)
    headed = [
        str(a["id"]) for tag, a in read.tags if tag in ("h2", "h3") and not str(a["id"]).endswith("overview")
    ]
    assert set(headed) <= set(inside)
    assert 'name="viewport"' in html


def test_colour_only_repeats_a_word(report: tuple[str, str]) -> None:
    html = report[1]
    cells = re.findall(r'<td class="(good|near|bad|odd|open)">([^<]*)</td>', html)
    words = {unescape(text).split("\n")[1].split(" ", 1)[1]: tone for tone, text in cells if "(" in text}
    tones = {re.split("[; ]", word)[0]: tone for word, tone in words.items()}
    assert (tones["reproduced"], tones["off"], tones["not"]) == ("good", "bad", "open")
    assert all(text for _, text in cells)
    assert set(re.findall(r'<td class="unrun">([^<]*)</td>', html)) >= {"73.6 ± 0.73"}


def test_everything_is_escaped() -> None:
    bad = '<b a="1">&|*_'
    part = Part(styled(pd.DataFrame({bad: [bad]}, index=[bad]), caption=bad))
    read = Page(part.styler.to_html(exclude_styles=True))
    assert "b" not in {tag for tag, _ in read.tags}
    assert read.tables == {bad: [["", bad], [bad, bad]]}
    assert escaped(bad) == r'\<b a="1"\>&amp;\|\*\_'
    assert len(re.findall(r"(?<!\\)\|", table(part).splitlines()[-1])) == 3


def test_an_anchor_is_made_of_the_words() -> None:
    assert anchor("fedbe/Table 1: A_b!") == "fedbe-table-1-a-b"
    assert anchor("...") == "part"


def test_more_seeds_stand_behind_cannot_tell() -> None:
    cell: dict[str, Any] = {
        "paper_mean": 70.0,
        "paper_std": float("nan"),
        "status": "ok",
        "metric": "test_acc_pct",
        "verdict": "cannot tell",
        "gap_points": float("nan"),
    }
    for more, told in ((4.0, "4 more seeds"), (1.0, "1 more seed"), (float("inf"), "no number of seeds could")):
        assert judged(cell | {"more_seeds": more}, {}).endswith(f"? cannot tell: {told}")


def test_the_judge_tells_its_own_rates(report: tuple[str, str]) -> None:
    for text in report:
        assert "How often the verdicts are wrong" in text
    assert "| 3 | 94.3 | 2.0 | 0.0 | 3.7 |" in report[0]
