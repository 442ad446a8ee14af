"""What there is of what a command may ask for: numbers that are recorded, and runs that the store has finished."""

import json
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from fedrepro import papers
from fedrepro.cli.planned import Wanted
from fedrepro.core import paths
from fedrepro.core.setting import Setting, digest
from fedrepro.papers import Item
from fedrepro.runs import record

Ran = set[tuple[str, int]]  # digests of settings, and seeds, of the runs that the store has finished


@dataclass(frozen=True)
class State:
    """How many numbers of an item at a scale there are: asked for, recorded, and only on this machine."""

    asked: int
    recorded: int
    here: int

    @property
    def words(self) -> str:
        """The state in words."""
        places = [(self.recorded, "recorded"), (self.here, "only on this machine")]
        have = [f"{number} {place}" for number, place in places if number]
        if not have:
            return "missing"
        if self.recorded + self.here < self.asked:
            return f"partly: {', '.join(have)} of {self.asked}"
        return f"done, {have[0].partition(' ')[2]}" if len(have) == 1 else f"done: {', '.join(have)}"


def asked(item: Item, scale: str) -> Wanted:
    """Return the cells of an item at a scale with its own number of seeds."""
    cells = papers.load(item.paper).cells(item.name, scale)
    return Wanted(tuple((cell, item.seeds[scale]) for cell in cells))


def recorded(wanted: Wanted, scale: str) -> set[tuple[Setting, int]]:
    """Return the runs of which every number asked for is recorded in the repository, in their precision."""
    if not paths.checkout():
        return set()

    @lru_cache
    def lines(item: str) -> dict[tuple[str, ...], set[int]]:
        """Return the seeds of each cell, setting and precision."""
        found: dict[tuple[str, ...], set[int]] = {}
        try:
            table = record.read(paths.recorded_folder(), item, scale)
        except (ValueError, OSError):  # damaged: nothing of it counts
            return found
        names = ("row", "column", "setting_key", "precision")
        for *place, seed in zip(*(table[name].astype(str) for name in names), table["seed"]):
            found.setdefault(tuple(place), set()).add(int(seed))
        return found

    whole: set[tuple[Setting, int]] = set()
    for setting, asked in wanted.sharing.items():
        places = [(cell.row, cell.column, setting.key, setting.precision) for cell, _ in asked]
        # A cell that asks for fewer seeds has nothing to say of the others.
        seeds = [lines(cell.item).get(place, set()) for (cell, _), place in zip(asked, places)]
        whole |= {
            (setting, seed)
            for seed in set().union(*seeds)
            if any(seed < most for _, most in asked)
            and all(seed in found for found, (_, most) in zip(seeds, asked) if seed < most)
        }
    return whole


def state(item: Item, scale: str, ran: Ran) -> State:
    """Count what there is of an item at a scale.

    What an item computes in its notebook is recorded under names of its own; a seed is done if it has a line.
    """
    wanted, name = asked(item, scale), item.key
    lines = [set[tuple[str, str, int]](), set[tuple[str, str, int]]()]
    folders = [paths.recorded_folder()] if paths.checkout() else []
    for place, folder in [*((0, folder) for folder in folders), (1, paths.made_folder())]:
        table = record.read(folder, name, scale if item.batch else "paper")
        lines[place] |= {(str(r), str(c), int(s)) for r, c, s in zip(table["row"], table["column"], table["seed"])}
    if not item.batch:
        seeds = [{seed for _, _, seed in found if seed < item.seeds[scale]} for found in lines]
        return State(item.seeds[scale], len(seeds[0]), len(seeds[1] - seeds[0]))
    every = {(cell.row, cell.column, seed): cell.setting for cell, seed in wanted.numbers()}
    kept = {number for number in every if number in lines[0]}
    here = {number for number, setting in every.items() if number in lines[1] or (mark(setting), number[2]) in ran}
    return State(len(every), len(kept), len(here - kept))


def mark(setting: Setting) -> str:
    """Return the mark of a setting among `finished`."""
    return digest(setting.hashed())


def finished(store: Path) -> Ran:
    """Return the finished runs of a store; whose setting cannot be read is left out."""
    found: Ran = set()
    for path in store.glob("*/record.json"):
        try:
            values = json.loads((path.parent / "setting.json").read_text("utf-8"))
            seed = int(values.pop("seed"))
            found.add((mark(Setting.of(values)), seed))
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            continue
    return found
