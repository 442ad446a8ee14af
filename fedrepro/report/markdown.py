"""A report's blocks as markdown, with tables as GitHub shows them."""

import re
from collections.abc import Iterable

from fedrepro.report.html import Block, Bullets, Heading, Line, Paragraph


def markdown(blocks: Iterable[Block]) -> str:
    """Return the markdown file of a report."""
    parts = []
    for block in blocks:
        if isinstance(block, Heading):
            parts.append(f"{'#' * block.level} {_escape(block.text)}")
        elif isinstance(block, Paragraph):
            parts.append(("> " if block.warning else "") + _plain(block.line))
        elif isinstance(block, Bullets):
            parts.append("\n".join(f"- {_plain(line)}" for line in block.lines))
        else:
            rows = [["<br>".join(map(_plain, cell)) for cell in row] for row in block.rows]
            lines = [[_escape(name) for name in block.head], ["---"] * len(block.head), *rows]
            parts.append(f"**{_escape(block.caption)}**")
            parts.append("\n".join(f"| {' | '.join(line)} |" for line in lines))
    return "\n\n".join(parts) + "\n"


def _escape(text: str) -> str:
    return re.sub(r"([\\`*_\[\]<>|~])", r"\\\1", re.sub(r"\s+", " ", text)).replace("&", "&amp;")


def _plain(line: Line) -> str:
    texts = []
    for span in line:
        mark = {"strong": "**", "verdict": "**", "code": "`"}.get(span.kind, "")
        text = f"{mark}{span.text if span.kind == 'code' else _escape(span.text)}{mark}"
        texts.append(f"[{text}]({span.link})" if span.link else text)
    return "".join(texts)
