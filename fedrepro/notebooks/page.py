"""An executed notebook as one page of html, to be read without Jupyter and without a network.

Formulas become MathML, which browsers draw themselves. The page has no script, and nothing is fetched.
"""

import os
import re
from collections.abc import Collection
from html import escape
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from jinja2 import pass_context
from latex2mathml.converter import convert
from nbconvert.exporters import HTMLExporter
from nbconvert.filters.markdown_mistune import IPythonRenderer, MarkdownWithMath

from fedrepro.core.files import write_atomically
from fedrepro.notebooks.notebook import load

TEMPLATES = Path(__file__).parent / "templates"


def write_page(executed: Path, notebook: Path, others: Collection[Path] = ()) -> Path:
    """Write the page of an executed notebook beside it.

    Args:
        executed: the notebook with its outputs.
        notebook: what it was executed from, to whose folder its links are relative.
        others: executed notebooks whose pages are still to come.

    Returns:
        The page's file: the executed notebook's name with html at its end.

    Raises:
        StoreError: if the page cannot be written.
    """
    page = executed.with_suffix(".html")
    exporter = _Exporter(executed.parent, notebook.parent, others)
    resources = {
        "metadata": {"name": _title(executed)},
        "look": (TEMPLATES / "page" / "page.css").read_text("utf-8"),
    }
    with executed.open(encoding="utf-8") as file:
        text, _ = exporter.from_file(file, resources)
    write_atomically(page, text.encode())
    return page


def _title(executed: Path) -> str:
    """Return the first heading of a notebook, or its name."""
    cells = load(executed)["cells"]
    text = "".join("".join(cell["source"]) + "\n" for cell in cells if cell["cell_type"] == "markdown")
    heading = re.search(r"^# (.+)$", text, flags=re.MULTILINE)
    return escape(heading[1] if heading else executed.stem)


# Where the translation is not what browsers need: bars as high as their fraction, relations and functions without
# room around them, bold digits (browsers know no other variant than the normal one).
MENDED = {
    "<mo>&#x02016;</mo>": '<mo stretchy="false">&#x02016;</mo>',
    "<mi>&#x0007E;</mi>": "<mo>&#x0223C;</mo>",
    "<mi>log</mi>": '<mi>log</mi><mspace width="0.17em"/>',
    '<mn mathvariant="bold">1</mn>': "<mn>&#x1D7CF;</mn>",
}


class _Exporter(HTMLExporter):
    """nbconvert's exporter with our template, MathML and links that hold where the page lies."""

    def __init__(self, folder: Path, source: Path, others: Collection[Path]) -> None:
        super().__init__(template_name="page", extra_template_basedirs=[str(TEMPLATES)])
        self._places = folder, source, others

    @pass_context
    def markdown2html(self, context: Any, source: str) -> str:
        """Return the html of a cell of text."""
        renderer = _Renderer(self._places, escape=False, anchor_link_text="")
        found: str = MarkdownWithMath(renderer=renderer).render(source)
        return found


class _Renderer(IPythonRenderer):
    def __init__(self, places: tuple[Path, Path, Collection[Path]], **options: Any) -> None:
        super().__init__(**options)
        self._folder, self._source, self._others = places

    def block_math(self, body: str) -> str:
        return mathml(body, "block")

    def inline_math(self, body: str) -> str:
        return mathml(body, "inline")

    def link(self, text: str, url: str, title: str | None = None) -> str:
        found: str = super().link(text, moved(url, self._source, self._folder, self._others), title)
        return found


def mathml(formula: str, display: str) -> str:
    """Return a formula of LaTeX as MathML; as it stands where it is none that can be translated."""
    try:
        found: str = convert(formula.strip(), display=display)
    except Exception:  # the package raises errors of many kinds
        found = "\\"
    for wrong, right in MENDED.items():
        found = found.replace(wrong, right)
    # What it does not know it leaves as it stands, with the backslash.
    return f"<code>{escape(formula)}</code>" if "\\" in found else found


def moved(url: str, source: Path, folder: Path, others: Collection[Path] = ()) -> str:
    """Return a link of a notebook in one folder for its page in another.

    Another notebook is its page, where there is one or will be one, else the notebook itself.
    """
    parts = urlsplit(url)
    if parts.scheme or parts.netloc or not parts.path:
        return url
    path = Path(unquote(parts.path))
    page = path.with_suffix(".html")
    if path.suffix == ".ipynb" and ((folder / page).exists() or (folder / path).resolve() in others):
        return parts._replace(path=quote(page.as_posix())).geturl()
    return parts._replace(path=quote(Path(os.path.relpath(source / path, folder)).as_posix())).geturl()
