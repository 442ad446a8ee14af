"""Reading csv files strictly: what is cut, merged by hand or damaged is refused, with the file and the line."""

import csv
import io
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from fedrepro.core.files import text

MARKERS = ("<<<<<<< ", ">>>>>>> ", "||||||| ", "=======")  # of git, where a merge had a conflict


def read_table(path: Path, columns: Sequence[str] = ()) -> pd.DataFrame:
    """Read a csv file as pandas does, after every line of it was looked at.

    Args:
        path: the file.
        columns: that it must have, among others.

    Raises:
        ValueError: if it is cut off inside a line, a line has more or fewer fields than the first, a column is
            missing or there twice, or a mark of a conflict stands there; names the file and the line.
    """
    written = text(path)
    lines = csv.reader(io.StringIO(written, newline=""), strict=True)
    try:
        head = next(lines, [])
        for line in (head, *lines):
            if line and line[0].startswith(MARKERS):
                raise ValueError(f"a conflict marker of git: {line[0]!r}")
            if len(line) != len(head):
                raise ValueError(f"{len(line)} fields, not {len(head)}")
        if not written.endswith("\n"):
            raise ValueError("cut off, it has no end of line")
    except (ValueError, csv.Error) as error:
        raise ValueError(f"{path}, line {max(1, lines.line_num)}: {error}") from error
    if missing := [name for name in columns if name not in head]:
        raise ValueError(f"{path}, line 1: no column {', '.join(missing)}")
    if len(set(head)) < len(head):
        raise ValueError(f"{path}, line 1: a column twice")
    return pd.read_csv(io.StringIO(written))
