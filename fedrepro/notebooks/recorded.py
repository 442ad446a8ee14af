"""What the repository has recorded of an item, for the first screen of its notebook: an answer and a picture.

Both are made of records and never of the session, so they are the same at every scale.
"""

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from fedrepro import papers
from fedrepro.core import paths
from fedrepro.core.files import text
from fedrepro.notebooks import given, tables
from fedrepro.papers import Item, Paper
from fedrepro.report import verdict

WIDEST = 760  # of a picture on a page, in its pixels
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
        Columns claim (its id), comparison, "A − B, points", "90 % interval", seeds,
        "seeds with A above B, a tie half".
        No lines where nothing is recorded.

    Raises:
        ValueError: for an unknown item.
    """
    found = given.item_of(item)
    paper = papers.load(found.paper)
    columns = [
        "claim",
        "comparison",
        "A − B, points",
        "90 % interval",
        "seeds",
        "seeds with A above B, a tie half",
    ]
    lines = [
        (
            one.claim,
            one.label,
            f"{one.mean:+.2f}",
            "" if one.seeds == 1 else f"{one.low:+.1f} to {one.high:+.1f}",
            f"{one.seeds}",
            f"{one.share * one.seeds:g}",
        )
        for one in _contrasts(paper, found)[1]
    ]
    return tables.Lines(pd.DataFrame(lines, columns=columns).set_index("claim"))


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
    text = f"Recorded at {scale} scale: {done} of {len(wanted)} cells, {number}."
    if scale != "paper":
        noise = (
            " With one seed a difference of less than about two points may be noise." if seeds.max() == 1 else ""
        )
        return (
            f"{text} These runs are much smaller than the paper's: compare their order, not their height.{noise}"
        )
    words = run["verdict"].value_counts()
    return f"{text} Judged against the paper: {', '.join(f'{word} {count}' for word, count in words.items())}."


def _contrasts(paper: Paper, item: Item) -> tuple[str, list[Any]]:
    """Return the contrasts of an item's claims that say no more than that one cell is above another.

    They are of the largest scale that has any, which is returned as well: "" for none.
    """
    plain = {one.id for one in paper.claims if one.kind == "greater" and not one.margin}
    for scale in ("paper", "short") if plain else ():
        found = verdict.contrasts(paper, scale, folders(), item.name)
        if len(found := found[found["claim"].isin(plain)]):
            return scale, list(found.itertuples())
    return "", []


def _gains_in_words(paper: Paper, item: Item) -> list[str]:
    """Say the first claim of which something is recorded, and by how many points it is so, paired by seed."""
    scale, found = _contrasts(paper, item)
    own = [one for one in found if one.claim == found[0].claim][:4]
    if not own:
        return []
    claim = next(one for one in paper.claims if one.id == own[0].claim)
    said = [
        f"{one.label + ': ' if one.label else ''}{one.mean:+.2f}"
        + (" (one seed)" if one.seeds == 1 else f" ({one.low:+.1f} to {one.high:+.1f}, {one.seeds} seeds)")
        for one in own
    ]
    how = f"By how many points it is so at {scale} scale, paired by seed, with 90 % intervals"
    return [f"A claim of the paper, in our words: {claim.text} {how}: {'; '.join(said)}."]


def _claims_in_words(paper: Paper, item: Item, scale: str) -> list[str]:
    """Count what became of an item's claims, on the paper's own numbers and on the records of a scale."""
    table = verdict.claims(paper, folders(), item.name)
    if table.empty:
        return []
    said = []
    for name in ("reported", *([scale] if scale else [])):
        counts = table[COLUMN_OF[name]].value_counts()
        whose = "the paper's own numbers" if name == "reported" else f"the records of {name} scale"
        said.append(f"on {whose} {', '.join(f'{status} {count}' for status, count in counts.items())}")
    return [f"Claims about this item: {len(table)}; {'; '.join(said)}."]
