"""Which pictures of an item the report shows: each at the largest scale at which there is one."""

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from fedrepro.core.files import text as read
from fedrepro.papers import SCALES


@dataclass(frozen=True)
class Picture:
    """A picture as a page shows it, relative to the page: the image, where it leads, what it shows in words."""

    name: str
    source: str
    link: str
    alt: str


def pictures(key: str, folder: Path, folders: Sequence[Path], *, recorded: str = "") -> list[Picture]:
    """Find an item's pictures.

    Args:
        key: of the item, such as "fedbe/table1_methods".
        folder: of the page.
        folders: of records; a picture of a later folder replaces that of an earlier one.
        recorded: the largest scale at which the item is recorded; if that is more than smoke, no picture of smoke
            runs is shown.
    """
    found: dict[str, dict[str, Path]] = {}
    for place in folders:
        for path in sorted((place / key).glob("*.png")):
            if parts := re.fullmatch(rf"(.+)_({'|'.join(SCALES)})", path.stem):
                found.setdefault(parts[1], {})[parts[2]] = path
    larger = recorded in ("short", "paper") or any(set(scales) - {"smoke"} for scales in found.values())
    shown = []
    for name, scales in found.items():
        scale = max(scales, key=SCALES.index)
        if scale == "smoke" and larger:
            continue
        path = scales[scale]
        alt = path.with_suffix(".alt.txt")
        svg = path.with_suffix(".svg")
        text = read(alt).strip() if alt.exists() else path.stem
        shown.append(Picture(name, relative(path, folder), relative(svg if svg.exists() else path, folder), text))
    return shown


def relative(path: Path, folder: Path) -> str:
    """Return a link from a page in a folder."""
    return quote(Path(os.path.relpath(path, folder)).as_posix())


def notebook(key: str, folder: Path) -> list[tuple[str, str]]:
    """Return the link to an item's notebook beside the page: the page made of it where there is one."""
    for ending in (".html", ".ipynb"):
        for place in ("../notebooks", "notebooks"):
            if (folder / place / f"{key}{ending}").exists():
                return [("notebook", f"{place}/{quote(key)}{ending}")]
    return []
