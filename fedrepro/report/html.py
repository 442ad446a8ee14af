"""The report as a single HTML page: beside it only the pictures, nothing from anywhere else.

A verdict is always a word, with a sign before it in tables; its colour only repeats it. Wide tables scroll inside
their own frame and keep the rows' names in sight, so the page works on a phone and with a keyboard.
"""

import re
from typing import Any

from fedrepro.report.cells import MARKS
from fedrepro.report.layout import ENVIRONMENT, LOOK


def page(document: dict[str, Any]) -> str:
    """Return the HTML file of a report."""
    return ENVIRONMENT.get_template("page.html").render(document, marks=MARKS, look=LOOK)


def anchor(text: str) -> str:
    """Return a name for links, made of the words so that a link outlives a longer report."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-") or "part"
