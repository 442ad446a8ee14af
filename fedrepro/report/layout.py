"""Tables in the paper's own layout: to show in notebooks and in the report, and as csv and LaTeX.

Every table is drawn by `styled`, pandas' Styler with the template `table.html`.
"""

import html
import string
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import cast

import pandas as pd
from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape
from pandas.io.formats.style import Styler
from pandas.io.formats.style_render import CSSDict

from fedrepro.core.files import write_atomically
from fedrepro.papers import Paper
from fedrepro.report.cells import MARKS, OTHER, Cell, grid, judged, of_paper, ours, printed, smaller
from fedrepro.report.verdict import comparison

TEMPLATES = Path(__file__).parent / "templates"
ENVIRONMENT = Environment(
    loader=FileSystemLoader(TEMPLATES),
    autoescape=select_autoescape(),
    trim_blocks=True,
    lstrip_blocks=True,
    undefined=StrictUndefined,
)


# The look of tables, of a notebook's (where Styler keeps it to the table) and of the report's page.
LOOK: list[CSSDict] = [
    {"selector": "caption", "props": "text-align: left; font-weight: 600; caption-side: top; color: inherit"},
    {"selector": "th, td", "props": "text-align: left; vertical-align: top; border: 1px solid #d3d9df"},
    {"selector": "thead th, tbody th", "props": "background: #f2f4f7; color: #1d2329; font-weight: 600"},
    {"selector": "tr.group th", "props": "background: #e3e7ec"},
    {"selector": "td", "props": "white-space: pre-line; font-variant-numeric: tabular-nums"},
    {"selector": "td.good", "props": "background: #dbe9f9; color: #12314f"},
    {"selector": "td.near", "props": "background: #eef4fb; color: #12314f"},
    {"selector": "td.bad", "props": "background: #fbdcc4; color: #5c2400; font-weight: 600"},
    {"selector": "td.odd", "props": "background: #fbf0c0; color: #4f3d00"},
    {"selector": "td.open", "props": "background: #ebedf0; color: #2b333b"},
    {"selector": "td.unrun", "props": "color: #6b747d"},
]


def layout(paper: Paper, item: str, folders: Iterable[Path]) -> pd.DataFrame:
    """Lay an item out as the paper prints it.

    Args:
        paper, item: which; the item by its short name.
        folders: of records, as for `comparison`.

    Returns:
        Texts. Rows: the paper's, with two levels where they are grouped ("Step", "FedBE"). Columns: the paper's,
        and below each "paper", "ours" and "verdict" (paper scale), and "short" where there is one of it.
    """
    return laid(paper, item, comparison(paper, item, folders))


def laid(paper: Paper, item: str, cells: pd.DataFrame) -> pd.DataFrame:
    """Lay a comparison out; see `layout`."""
    places = printed(cells)
    parts: dict[str, Callable[[Cell], str]] = {
        "paper": lambda cell: of_paper(cell, places),
        "ours": lambda cell: ours(cell, places, "recorded"),
        "verdict": lambda cell: str(cell["verdict"]),
        "short": lambda cell: ours(cell, places, "short"),
    }
    grids = {part: grid(cells, show) for part, show in parts.items()}
    order = list(grids["paper"].columns)
    table = pd.concat(grids, axis=1).swaplevel(axis=1)
    wanted = [(column, part) for column in order for part in parts if part != "short" or _any(cells, column)]
    table = table.reindex(columns=pd.MultiIndex.from_tuples(wanted, names=["", ""])) if wanted else table
    entry = paper.items.get(item)
    fields = [name for _, name, _, _ in string.Formatter().parse(entry.row) if name] if entry else []
    levels = table.index.nlevels
    table.index.names = fields if len(fields) == levels else ["group", "row"][-levels:]
    return table


def _any(cells: pd.DataFrame, column: object) -> bool:
    return bool(cells.loc[cells["column"] == column, "short_seeds"].gt(0).any())


def write(paper: Paper, item: str, cells: pd.DataFrame, folder: Path) -> list[Path]:
    """Write a comparison's layout as <item>.csv and <item>.tex (for booktabs and multirow); return the files."""
    table = laid(paper, item, cells)
    if table.empty:
        return []
    texts = {"csv": table.to_csv(lineterminator="\n"), "tex": latex(table, f"{paper.name}:{item}")}
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{item}.{ending}" for ending in texts]
    for path, text in zip(paths, texts.values()):
        write_atomically(path, text.encode())
    return paths


def latex(table: pd.DataFrame, label: str) -> str:
    """Return a layout as a LaTeX table for booktabs and multirow, without columns that hold no run."""
    unrun = table.columns[[set(table[name]) <= {"", "not run"} for name in table.columns]]
    made = (
        table.drop(columns=unrun)
        .style.format(escape="latex")
        .format_index(escape="latex")
        .format_index(escape="latex", axis=1)
    )
    text = made.to_latex(
        hrules=True,
        multicol_align="c",
        label=f"tab:{label}",
        clines="skip-last;data" if table.index.nlevels > 1 else None,
    )
    for sign, command in (("±", r"$\pm$"), ("−", "$-$"), ("≥", r"$\ge$")):
        text = text.replace(sign, command)
    return "% \\usepackage{booktabs, multirow}\n" + text


_Templated = cast(type[Styler], Styler.from_custom_template(str(TEMPLATES), html_table="table.html"))


def styled(
    table: pd.DataFrame, tones: pd.DataFrame | None = None, *, caption: str = "", kind: str = "short"
) -> Styler:
    """Return a table to show, its texts escaped and to the left.

    Args:
        table: texts; an index of two levels gives each group a line of its own.
        tones: the class of each cell, in the table's layout.
        caption: above it.
        kind: "short" for cells that stay unbroken, "long" for sentences, "long stacked" for many of them, which on
            a phone stand below each other.
    """
    made = _Templated(table, uuid="t", cell_ids=False)
    made = made.format(escape="html").format_index(escape="html").format_index(escape="html", axis=1)
    made = made.set_table_styles(LOOK).set_table_attributes(f'class="{kind}"')
    made = made.set_caption(html.escape(caption, quote=False)) if caption else made
    return made.set_td_classes(tones) if tones is not None else made


def judged_table(cells: pd.DataFrame, *, caption: str = "") -> Styler:
    """Return a comparison at paper scale in the paper's layout, each verdict as colour, sign and word."""
    places = printed(cells)
    tones = grid(cells, lambda cell: MARKS.get(str(cell["verdict"]), OTHER).tone)
    return styled(grid(cells, lambda cell: judged(cell, places)), tones, caption=caption)


def smaller_table(cells: pd.DataFrame, scale: str, *, caption: str = "") -> Styler:
    """Return what was recorded at a smaller scale in the paper's layout: only what was run."""
    made = cells[cells[f"{scale}_seeds"].gt(0)]
    places = printed(cells)
    return styled(grid(made, lambda cell: smaller(cell, places, scale)), caption=caption)


@dataclass(frozen=True)
class Part:
    """A table to show; folded behind a summary, if it has one."""

    styler: Styler
    summary: str = ""
    caption: str = ""

    @property
    def folded(self) -> bool:
        """Whether only the summary is seen at first."""
        return bool(self.summary)

    @property
    def table(self) -> str:
        """The table's HTML, with its look."""
        return self.styler.to_html()


def parts(cells: pd.DataFrame, name: str = "") -> list[Part]:
    """Return the tables of a comparison: judged cells, folded where none was run, then the smaller scales'.

    With a name, each table's caption begins with it.
    """
    listed = cells[cells["verdict"].ne("not reported") | cells["recorded_seeds"].gt(0)]
    recorded, short, smoke = (cells[f"{scale}_seeds"].gt(0).any() for scale in ("recorded", "short", "smoke"))
    found = []
    if len(listed):
        unrun = "" if recorded else f"not run at paper scale: {len(listed)} cells, the paper's numbers"
        found.append(_part(partial(judged_table, listed), name, "paper and paper scale", unrun))
    if short:
        found.append(_part(partial(smaller_table, cells, "short"), name, "short scale, no reproduction", ""))
    if smoke:
        fold = "smoke scale, no reproduction" if recorded or short else ""
        found.append(_part(partial(smaller_table, cells, "smoke"), name, "smoke scale, no reproduction", fold))
    return found


def _part(make: Callable[..., Styler], name: str, text: str, summary: str) -> Part:
    caption = f"{name}: {text}" if name else text
    return Part(make(caption=caption), summary, text)


def shown(tables: Sequence[Part], legend: str = "") -> str:
    """Return the HTML of tables for a notebook."""
    return ENVIRONMENT.get_template("shown.html").render(parts=tables, legend=legend)
