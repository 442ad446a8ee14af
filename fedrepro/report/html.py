"""A report's blocks, and the single HTML page that shows them: nothing outside the file is needed.

A verdict is always a word; its colour only repeats it. The page follows the reader's light or dark theme,
and wide tables scroll inside their own frame, so it works on a phone and with a keyboard.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from html import escape
from typing import Literal


@dataclass(frozen=True)
class Span:
    """Some text of one kind, perhaps a link."""

    text: str
    kind: Literal["plain", "strong", "quiet", "code", "verdict"] = "plain"
    link: str = ""


Line = tuple[Span, ...]
Lines = tuple[Line, ...]


@dataclass(frozen=True)
class Heading:
    """A heading; 1 is the document's title."""

    level: Literal[1, 2, 3]
    text: str


@dataclass(frozen=True)
class Paragraph:
    """A paragraph; `warning` sets it apart."""

    line: Line
    warning: bool = False


@dataclass(frozen=True)
class Bullets:
    """A list."""

    lines: Lines


@dataclass(frozen=True)
class Table:
    """A table with a caption; the first cell of a row names it, and each cell may have several lines."""

    caption: str
    head: tuple[str, ...]
    rows: tuple[tuple[Lines, ...], ...]


Block = Heading | Paragraph | Bullets | Table

TONES = {
    "reproduced": "good",
    "holds": "good",
    "off": "bad",
    "fails": "bad",
    "paper contradicts itself": "odd",
    "number lost": "odd",
}
STYLE = """
:root { color-scheme: light dark;
  --page: #fff; --ink: #1d2329; --soft: #56616c; --rule: #d3d9df; --head: #f2f4f7; --link: #0b57a4;
  --good: #0d5f2c; --good-back: #dff3e4; --bad: #97201a; --bad-back: #fbe3e0;
  --odd: #6b4700; --odd-back: #fbefcf; --none: #4a545e; --none-back: #e9ecef; }
@media (prefers-color-scheme: dark) { :root {
  --page: #14181c; --ink: #e4e8ec; --soft: #a3aeb9; --rule: #3a434c; --head: #1e242a; --link: #84bdf5;
  --good: #8fdca6; --good-back: #143722; --bad: #ffaea6; --bad-back: #4a1c19;
  --odd: #f0cf7c; --odd-back: #40320d; --none: #bac3cc; --none-back: #2b333b; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink); line-height: 1.5;
  font-family: system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif; }
main { max-width: 76rem; margin: 0 auto; padding: 1.5rem 1rem 4rem; }
h1 { font-size: 1.7rem; line-height: 1.2; margin: 0 0 1rem; }
h2 { font-size: 1.35rem; line-height: 1.3; margin: 3rem 0 0.8rem; padding-top: 0.8rem;
  border-top: 2px solid var(--rule); }
h3 { font-size: 1.12rem; margin: 2.4rem 0 0.5rem; }
p, ul { max-width: 46rem; margin: 0.6rem 0; overflow-wrap: break-word; }
ul { padding-left: 1.3rem; }
a { color: var(--link); }
code { font-family: ui-monospace, "DejaVu Sans Mono", monospace; font-size: 0.9em; overflow-wrap: anywhere; }
.warning { border-left: 0.3rem solid var(--odd); background: var(--odd-back); padding: 0.7rem 0.9rem; }
.quiet { color: var(--soft); font-size: 0.88em; }
.scroll { overflow-x: auto; margin: 1rem 0 1.4rem; }
.scroll:focus-visible { outline: 2px solid var(--link); outline-offset: 2px; }
table { border-collapse: collapse; font-size: 0.88rem; font-variant-numeric: tabular-nums; }
caption { text-align: left; font-weight: 600; font-size: 0.95rem; padding: 0 0 0.4rem; }
th, td { border: 1px solid var(--rule); padding: 0.4rem 0.6rem; text-align: left; vertical-align: top; }
thead th, thead td, tbody th { background: var(--head); font-weight: 600; }
tbody th { min-width: 7rem; }
.short td { white-space: nowrap; }
.long td { min-width: 7.5rem; } .long tbody th { min-width: 15rem; font-weight: 400; }
.verdict { display: inline-block; border-radius: 0.25rem; padding: 0 0.4rem; font-weight: 600;
  color: var(--none); background: var(--none-back); }
.good { color: var(--good); background: var(--good-back); }
.bad { color: var(--bad); background: var(--bad-back); }
.odd { color: var(--odd); background: var(--odd-back); }
@media (min-width: 40rem) { .short tbody th { position: sticky; left: 0; } }
@media print { .scroll { overflow: visible; } main { max-width: none; } }
""".strip()


def page(title: str, blocks: list[Block]) -> str:
    """Return the HTML file of a report, with a table of contents before its first section."""
    anchors = _anchors([block for block in blocks if isinstance(block, Heading)])
    parts = [_block(block, anchors) for block in blocks]
    sections = [place for place, block in enumerate(blocks) if isinstance(block, Heading) and block.level == 2]
    if sections:
        parts.insert(sections[0], _contents(blocks, anchors))
    body = "\n".join(parts)
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title>
<style>
{STYLE}
</style>
</head>
<body>
<main>
{body}
</main>
</body>
</html>
"""


def _anchors(headings: list[Heading]) -> dict[Heading, str]:
    """Name the headings for links, by their words so that a link outlives a longer report."""
    anchors: dict[Heading, str] = {}
    for heading in headings:
        name = re.sub(r"[^a-z0-9]+", "-", heading.text.lower()).strip("-") or "part"
        while name in anchors.values():
            name += "-more"
        anchors[heading] = name
    return anchors


def _contents(blocks: list[Block], anchors: Mapping[Heading, str]) -> str:
    """Return the list of links to the sections, the parts of each in a list inside it."""
    sections: list[list[str]] = []
    for block in blocks:
        if isinstance(block, Heading) and block.level > 1:
            link = f'<a href="#{anchors[block]}">{escape(block.text)}</a>'
            if block.level == 2 or not sections:
                sections.append([link])
            else:
                sections[-1].append(link)
    lines = []
    for section, *inside in sections:
        deeper = "".join(f"\n<li>{link}</li>" for link in inside)
        lines.append(f"<li>{section}{f'<ul>{deeper}</ul>' if inside else ''}</li>")
    return "\n".join(['<nav aria-label="Contents">', "<ul>", *lines, "</ul>", "</nav>"])


def _block(block: Block, anchors: Mapping[Heading, str]) -> str:
    if isinstance(block, Heading):
        return f'<h{block.level} id="{anchors[block]}">{escape(block.text)}</h{block.level}>'
    if isinstance(block, Paragraph):
        mark = ' class="warning"' if block.warning else ""
        return f"<p{mark}>{_line(block.line)}</p>"
    if isinstance(block, Bullets):
        return "\n".join(["<ul>", *(f"<li>{_line(line)}</li>" for line in block.lines), "</ul>"])
    return _table(block)


def _table(table: Table) -> str:
    # Cells of short lines stay unbroken and scroll; sentences wrap.
    lines = [line for row in table.rows for cell in row[1:] for line in cell]
    long = max((sum(len(span.text) for span in line) for line in lines), default=0) > 40
    head = "".join(f'<th scope="col">{escape(name)}</th>' if name else "<td></td>" for name in table.head)
    rows = []
    for name, *cells in table.rows:
        data = "".join(f"<td>{'<br>'.join(map(_line, cell))}</td>" for cell in cells)
        rows.append(f'<tr><th scope="row">{"<br>".join(map(_line, name))}</th>{data}</tr>')
    return "\n".join(
        [
            f'<div class="scroll" role="region" tabindex="0" aria-label="{escape(table.caption)}">',
            f'<table class="{"long" if long else "short"}">',
            f"<caption>{escape(table.caption)}</caption>",
            f"<thead><tr>{head}</tr></thead>",
            "<tbody>",
            *rows,
            "</tbody>",
            "</table>",
            "</div>",
        ]
    )


def _line(line: Line) -> str:
    return "".join(map(_span, line))


def _span(span: Span) -> str:
    text = escape(span.text)
    if span.kind == "strong":
        text = f"<strong>{text}</strong>"
    elif span.kind == "code":
        text = f"<code>{text}</code>"
    elif span.kind == "quiet":
        text = f'<span class="quiet">{text}</span>'
    elif span.kind == "verdict":
        text = f'<span class="{" ".join(filter(None, ["verdict", TONES.get(span.text, "")]))}">{text}</span>'
    return f'<a href="{escape(span.link)}">{text}</a>' if span.link else text
