"""What the repository has recorded of an item, for the first screen of its notebook: an answer and a picture.

Both are made of records and never of the session, so they are the same at every scale.
"""

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from fedrepro import papers
from fedrepro.core import paths
from fedrepro.core.digits import signed
from fedrepro.core.files import text
from fedrepro.notebooks import given
from fedrepro.notebooks.lines import Lines
from fedrepro.papers import Item, Paper
from fedrepro.report import verdict
from fedrepro.runs import record
from fedrepro.runs.rows import FIRST

WIDEST = 760  # of a picture on a page, in its pixels
OWN, BY = "mean of probabilities", "accuracy by "
# What became of claims, said so that it needs no explanation.
MEANT = {
    "holds": ("holds", "hold", ""),
    "fails": ("fails", "fail", ""),
    "cannot tell": ("cannot be told", "cannot be told", " from so few seeds"),
    "partly run": ("lacks", "lack", " some of the cells to compare"),
    "not run": ("lacks", "lack", " all of the cells to compare"),
    "number lost": ("compares", "compare", " numbers that are lost"),
    "to be seen": ("has", "have", " no numbers to compare, only a picture"),
    "censored": ("compares", "compare", " runs that did not reach their target"),
}
COLUMN_OF = {scale: column for column, scale in verdict.SCALE_OF.items()}  # of `verdict.claims`


@dataclass(frozen=True)
class Shown:
    """A stored picture as a notebook shows it: the bytes of a png, and what it shows in words."""

    png: bytes
    alt: str

    def _repr_png_(self) -> tuple[bytes, dict[str, Any]]:
        width, height = struct.unpack(">II", self.png[16:24])
        shown = min(WIDEST, width)
        return self.png, {"width": shown, "height": round(height * shown / width), "alt": self.alt}

    def __repr__(self) -> str:
        """Show the words."""
        return self.alt


def folders() -> list[Path]:
    """Return where records lie: the repository's folder, or none outside of a checkout."""
    return [paths.recorded_folder()] if paths.checkout() else []


def picture(item: str, name: str = "") -> Shown | None:
    """Return an item's recorded picture at its largest scale, or None if there is none.

    Args:
        item: such as "fedbe/table1_methods".
        name: of the picture without its scale; the item's own if left out.

    Raises:
        ValueError: for an unknown item, or a picture that is damaged.
    """
    found = given.item_of(item)
    for scale in ("paper", "short"):
        for folder in folders():
            png = folder / found.key / f"{name or found.name}_{scale}.png"
            if png.exists():
                alt = png.with_suffix(".alt.txt")
                return Shown(_whole(png), text(alt).strip() if alt.exists() else png.stem)
    return None


def _whole(png: Path) -> bytes:
    """Return the bytes of a picture; raises ValueError, naming it, unless it begins and ends as a png does."""
    content = png.read_bytes()
    if not content.startswith(b"\x89PNG\r\n\x1a\n") or not content.endswith(b"IEND\xaeB`\x82"):
        raise ValueError(f"{png} is no whole png: take its last whole version (git checkout)")
    return content


def answer(item: str) -> str:
    """Return in a few lines what was recorded of an item: at which scale, on how many seeds, with what result.

    Raises:
        ValueError: for an unknown item.
    """
    found = given.item_of(item)
    paper = papers.load(found.paper)
    if not folders():
        return "Nothing is recorded here: the package does not run from a checkout of its repository."
    cells = verdict.comparison(paper, found.name, folders())
    scale, lines = _largest(cells), [_at_scale(paper, found, cells, "paper")]
    if (cells["short_seeds"] > 0).any():
        lines.append(_at_scale(paper, found, cells, "short"))
    if scale:
        lines += _gains_in_words(paper, found)
    else:
        lines.append("Not run at short scale either: what is ours below is from smoke runs, which say nothing.")
    return "\n".join([*lines, *_claims_in_words(paper, found, scale)])


def gains(item: str) -> pd.DataFrame:
    """Return the paper's claims of the form "A is above B", as differences paired by seed.

    They are of the largest scale at which both sides of one of them are recorded.

    Returns:
        Columns claim (its id, and its margin if it has one), A, B (their cells), "A − B, points", "90 % interval"
        (where there are two seeds or more), seeds, "of them as claimed" (a tie is a half).
        No lines where nothing is recorded. Runs of one pair on two machines are told at their seeds.

    Raises:
        ValueError: for an unknown item.
    """
    found = given.item_of(item)
    paper = papers.load(found.paper)
    scale, known = _contrasts(paper, found)
    places = _Places(paper, scale)
    lines = [
        (
            one.claim + (f" (by {one.margin:g})" if one.margin else ""),
            *_sides(one.cells, found.name),
            signed(one.mean, 2),
            "" if one.seeds == 1 else f"{signed(one.low)} to {signed(one.high)}",
            f"{one.seeds}{', on two machines' if places.apart(one) else ''}",
            f"{one.share * one.seeds:g}",
        )
        for one in known
    ]
    columns = ["claim", "A", "B", "A − B, points", "90 % interval", "seeds", "of them as claimed"]
    made = pd.DataFrame(lines, columns=columns).set_index("claim")
    return Lines(made if (made["90 % interval"] != "").any() else made.drop(columns="90 % interval"))


def ways(item: str, scale: str, rows: Mapping[str, str], column: str) -> pd.DataFrame:
    """Return what recorded runs reach, and what their models reach combined otherwise (`methods.measures`).

    Args:
        item: such as "fedbe/paper_vs_code".
        scale: of the records.
        rows: row -> the name under which it is shown.
        column: of all of them.

    Returns:
        Columns name, way ("mean of probabilities" is the run's own), seed, accuracy; no line without records.
    """
    key, columns = given.item_of(item).key, ["name", "way", "seed", "accuracy"]
    found = [pd.DataFrame(columns=columns)]
    for folder in folders():
        own = record.read(folder, key, scale).assign(accuracy=lambda table: table["result"], way=OWN)
        other = record.read_measures(folder, key, scale).assign(accuracy=lambda table: table["value"])
        other = other[other["measure"].str.startswith(BY)].assign(way=other["measure"].str.removeprefix(BY))
        for row, name in rows.items():
            for lines in (own, other):
                here = lines[(lines["row"] == row) & (lines["column"] == column)]
                found.append(here.assign(name=name)[columns])
    return pd.concat([part for part in found if len(part)] or found[:1], ignore_index=True)


class _Places:
    """On which machine each run of a scale was made."""

    def __init__(self, paper: Paper, scale: str) -> None:
        self._paper, self._scale = paper, scale
        self._known: dict[str, dict[Any, str]] = {}

    def apart(self, contrast: Any) -> bool:
        """Say whether a contrast pairs runs of different machines."""
        return any(
            len({self._of(key[0]).get((*key[1:], *seed), "") for key in contrast.cells}) > 1
            for seed in contrast.common
        )

    def _of(self, item: str) -> dict[Any, str]:
        if item not in self._known:
            table = verdict.records(self._paper, item, self._scale, folders())
            keys = zip(table["row"], table["column"], table["seed"].astype(int), table["precision"].astype(str))
            self._known[item] = dict(zip(keys, table["device"].astype(str)))
        return self._known[item]


def _sides(cells: Sequence[tuple[str, str, str]], item: str) -> list[str]:
    """Return the names of the two cells of "A above B", with their item where it is another one."""
    return [f"{row}, {column}" + (f" ({other})" if other != item else "") for other, row, column in cells]


def _difference(cells: Sequence[tuple[str, str, str]], item: str) -> str:
    """Return "A − B", with what both have in common once."""
    (one, row, column), (other, base, beside) = cells
    if column == beside and one == other == item:
        return f"{row} − {base}, {column}"
    return " − ".join(_sides(cells, item))


def _largest(cells: pd.DataFrame) -> str:
    """Return the largest scale at which an item is recorded; "" for none, or for smoke alone."""
    return "paper" if (cells["recorded_seeds"] > 0).any() else "short" if (cells["short_seeds"] > 0).any() else ""


def _at_scale(paper: Paper, item: Item, cells: pd.DataFrame, scale: str) -> str:
    """Say how much of an item is recorded at a scale, and, at the paper's, how it was judged."""
    seeds = cells["recorded_seeds" if scale == "paper" else f"{scale}_seeds"]
    run, wanted = cells[seeds > 0], {(cell.row, cell.column) for cell in paper.cells(item.name, scale)}
    if run.empty:
        return f"Not run at {scale} scale: no number is judged against the paper's."
    number = " to ".join(dict.fromkeys(f"{n:g}" for n in (seeds[seeds > 0].min(), seeds.max())))
    done = len(wanted & set(zip(run["row"], run["column"])))
    number += " seed each" if number == "1" else " seeds each"
    how = _precisions(paper, item, scale)
    text = f"Recorded at {scale} scale: {done} of {len(wanted)} cells, {number}{how}."
    if scale != "paper":
        noise = (
            " With one seed a difference of less than about two points may be noise." if seeds.max() == 1 else ""
        )
        return (
            f"{text} These runs are much smaller than the paper's: compare their order, not their height.{noise}"
        )
    words = run.loc[run["verdict"] != "not reported", "verdict"].value_counts()
    if words.empty:
        return f"{text} The paper prints no number for them: none is judged."
    told = "; ".join(f"{word}: {count} {'cell' if count == 1 else 'cells'}" for word, count in words.items())
    return f"{text} Judged against the paper: {told}."


def _precisions(paper: Paper, item: Item, scale: str) -> str:
    """Say in which precision an item was recorded, unless all of it is float32."""
    found = list(dict.fromkeys(verdict.records(paper, item.name, scale, folders())["precision"].astype(str)))
    return "" if found == [FIRST["precision"]] else f", in {' and '.join(found)}"


def _contrasts(paper: Paper, item: Item) -> tuple[str, list[Any]]:
    """Return the contrasts of an item's claims that one cell is above another, maybe by a margin: A − B as it is.

    They are of the largest scale that has any, which is returned as well: "" for none. `share` stays the part of
    the seeds on which A is above B by the margin.
    """
    margins = {one.id: one.margin for one in paper.claims if one.kind == "greater"}
    for scale in ("paper", "short") if margins else ():
        found = verdict.contrasts(paper, scale, folders(), item.name)
        if len(found := found[found["claim"].isin(list(margins))]):
            margin = found["claim"].map(margins)
            moved = {name: found[name] + margin for name in ("mean", "low", "high")}
            return scale, list(found.assign(**moved, margin=margin).itertuples())
    return "", []


def _gains_in_words(paper: Paper, item: Item) -> list[str]:
    """Say the first claim of which something is recorded, and the differences that it speaks of."""
    scale, found = _contrasts(paper, item)
    own = [one for one in found if one.claim == found[0].claim][:4]
    if not own:
        return []
    claim = next(one for one in paper.claims if one.id == own[0].claim)
    said = [
        f"{_difference(one.cells, item.name)}: {signed(one.mean, 2)}"
        + (" (1 seed)" if one.seeds == 1 else f" ({signed(one.low)} to {signed(one.high)}, {one.seeds} seeds)")
        for one in own
    ]
    interval = ", with its 90 % interval" if any(one.seeds > 1 for one in own) else ""
    how = f"At {scale} scale, in points, paired by seed{interval}"
    return [f"A claim of the paper, in our words: {claim.text}", f"{how}: {'; '.join(said)}."]


def _claims_in_words(paper: Paper, item: Item, scale: str) -> list[str]:
    """Count what became of an item's claims, on the paper's own numbers and on the records of a scale."""
    table = verdict.claims(paper, folders(), item.name)
    if table.empty:
        return []
    said = [f"Claims about this item: {len(table)}."]
    for name in ("reported", *([scale] if scale else [])):
        whose = "the paper's own numbers" if name == "reported" else f"the records of {name} scale"
        told = [
            f"{count} {MEANT[str(status)][count > 1]}{MEANT[str(status)][2]}"
            for status, count in table[COLUMN_OF[name]].value_counts().items()
        ]
        said.append(f"On {whose} {', '.join(told)}.")
    return [" ".join(said)]
