"""The report as markdown, with tables as GitHub shows them."""

import re
from typing import Any, cast

import pandas as pd

from fedrepro.report.layout import ENVIRONMENT, Part


def markdown(document: dict[str, Any]) -> str:
    """Return the markdown file of a report."""
    text = ENVIRONMENT.get_template("report.md").render(document)
    return re.sub(r"\n{3,}", "\n\n", text).rstrip() + "\n"


def escaped(text: object) -> str:
    """Return text of which markdown makes nothing else."""
    return re.sub(r"([\\`*_\[\]<>|~])", r"\\\1", re.sub(r"\s+", " ", str(text))).replace("&", "&amp;")


def table(part: Part) -> str:
    """Return a table of a report; a group of rows begins with its name in bold."""
    frame = cast(Any, part.styler).data
    lines = [["" if pd.isna(name) else str(name) for name in (frame.index.names[-1] or "", *frame.columns)]]
    body, group = [], ""
    for name, cells in zip(frame.index, frame.to_numpy().tolist()):
        own, row = name if isinstance(name, tuple) else ("", name)
        if own != group:
            body.append([f"**{_cell(own)}**", *[""] * len(cells)] if own else [""] * (len(cells) + 1))
            group = own
        body.append([_cell(row), *map(_cell, cells)])
    rows = [[escaped(name) for name in lines[0]], ["---"] * len(lines[0]), *body]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _cell(text: object) -> str:
    return "<br>".join(map(escaped, str(text).split("\n")))


ENVIRONMENT.filters |= {"md": escaped, "table": table}
