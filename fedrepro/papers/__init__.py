"""Papers as data: their settings, items, reported numbers and claims.

Each paper is a folder here. `settings.toml` holds every value with where the paper states it or why it is
assumed; `items.toml` says which runs an item (a table or figure) needs; `reported.csv` holds the paper's
numbers and `claims.toml` the sentences it draws from them.
"""

from functools import lru_cache
from pathlib import Path

from fedrepro.core.names import nearest
from fedrepro.papers import read
from fedrepro.papers.paper import SCALES, Cell, Gain, Grid, Item, Paper, Preset
from fedrepro.papers.reading import Reading, Value

__all__ = [
    "FOLDER",
    "SCALES",
    "Cell",
    "Gain",
    "Grid",
    "Item",
    "Paper",
    "Preset",
    "Reading",
    "Value",
    "find",
    "load",
    "names",
]

FOLDER = Path(__file__).parent


def names() -> list[str]:
    """List the papers that there are."""
    return sorted(path.parent.name for path in FOLDER.glob("*/settings.toml"))


@lru_cache
def load(name: str) -> Paper:
    """Read one paper.

    Raises:
        ValueError: for an unknown paper, with the nearest real one, or what `read.paper` refuses.
    """
    if name not in names():
        raise ValueError(f"unknown paper {name!r}{nearest(name, names())}")
    return read.paper(FOLDER / name)


def find(target: str) -> list[Item]:
    """Return the items that a name asks for: "fedbe" all of a paper, "fedbe/table1_methods" one.

    Raises:
        ValueError: for an unknown paper or item, with the nearest real name.
    """
    paper, _, item = target.partition("/")
    if paper not in names():
        every = [entry.key for name in names() for entry in load(name).items.values()]
        raise ValueError(f"unknown item {target!r}{nearest(target, names() + every)}")
    found = load(paper).items
    if not item:
        return list(found.values())
    if item not in found:
        raise ValueError(f"unknown item {target!r}{nearest(target, [entry.key for entry in found.values()])}")
    return [found[item]]
