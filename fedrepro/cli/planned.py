"""What a command is asked for: cells of items with their seeds, and the runs that serve them, made one by one."""

import argparse
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from fedrepro import papers
from fedrepro.core.setting import Setting
from fedrepro.data.data import available
from fedrepro.data.datasets import DATASETS
from fedrepro.papers import Cell, Item
from fedrepro.runs.request import Run, merged


@dataclass(frozen=True)
class Wanted:
    """Cells in their order, each with the number of its seeds, and runs that are left out: (setting, seed)."""

    cells: tuple[tuple[Cell, int], ...]
    left_out: frozenset[tuple[Setting, int]] = frozenset()

    @property
    def count(self) -> int:
        """How many numbers are asked for: each cell with each seed."""
        return sum(seeds for _, seeds in self.cells) - sum(len(self.asking(*run)) for run in self.left_out)

    @cached_property
    def sharing(self) -> dict[Setting, list[tuple[Cell, int]]]:
        """The cells of each setting: one run serves them all."""
        found: dict[Setting, list[tuple[Cell, int]]] = {}
        for cell, seeds in self.cells:
            found.setdefault(cell.setting, []).append((cell, seeds))
        return found

    def asking(self, setting: Setting, seed: int) -> list[Cell]:
        """Return the cells that ask for a run."""
        return [cell for cell, seeds in self.sharing.get(setting, []) if seed < seeds]

    def numbers(self) -> Iterator[tuple[Cell, int]]:
        """Yield each cell with each seed but for what is left out: item by item, and there seed by seed."""
        for _, group in itertools.groupby(self.cells, key=lambda pair: pair[0].item):
            cells = list(group)
            for seed in range(max(seeds for _, seeds in cells)):
                meant = ((cell, seed) for cell, seeds in cells if seed < seeds)
                yield from (one for one in meant if (one[0].setting, seed) not in self.left_out)

    def runs(self) -> Iterator[Run]:
        """Yield all runs in the order of the numbers that they give; nothing is counted or made before."""
        for cell, seed in self.numbers():
            if self.asking(cell.setting, seed)[0] is cell:
                yield self.run(cell.setting, seed)

    def cheapest(self, cost: Callable[[Setting], float]) -> Iterator[Run]:
        """Yield all runs, those of the least cost first; what costs the same seed by seed."""
        costs = {setting: cost(setting) for setting in self.sharing}
        for _, group in itertools.groupby(sorted(costs, key=costs.__getitem__), key=costs.__getitem__):
            settings = list(group)
            most = {setting: max(seeds for _, seeds in self.sharing[setting]) for setting in settings}
            for seed in range(max(most.values())):
                meant = [setting for setting in settings if seed < most[setting]]
                yield from (self.run(one, seed) for one in meant if (one, seed) not in self.left_out)

    def run(self, setting: Setting, seed: int) -> Run:
        """Return the one run of a setting and seed that serves every cell which asks for it."""
        asked = [
            Run(setting, seed, f"{cell.row} {cell.column}", until=cell.reading.until)
            for cell in self.asking(setting, seed)
        ]
        (run,) = merged(asked).values()
        return run

    def without(self, missing: set[str]) -> "Wanted":
        """Return what can be run without some data sets."""
        cells = tuple((cell, seeds) for cell, seeds in self.cells if not needs(cell.setting) & missing)
        return replace(self, cells=cells)


def named(names: Sequence[str]) -> list[Item]:
    """Return the items of papers and of "paper/item"; all there are if none is named."""
    targets = names or papers.names()
    found = {item.key: item for name in targets for item in papers.find(name)}
    return list(found.values())


def planned(items: Sequence[Item], options: argparse.Namespace) -> Wanted:
    """Return the cells of items that options ask for; of several items, those without such a label are not meant.

    Raises:
        ValueError: for labels that no item has.
    """
    batch = [item for item in items if item.grids and item.batch]
    if len(batch) > 1:
        known = {item.key: {v for values in item.labels.values() for v in values} for item in batch}
        batch = [item for item in batch if set(options.only) <= known[item.key]] or batch
    found: list[tuple[Cell, int]] = []
    refusals: list[ValueError] = []
    for item in batch:
        try:
            cells = papers.load(item.paper).cells(item.name, options.scale, only=options.only)
        except ValueError as error:  # an item that has such labels at another scale only
            refusals.append(error)
            continue
        seeds = options.seeds or item.seeds[options.scale]
        found += [(replace(one, setting=one.setting.with_(precision=options.precision)), seeds) for one in cells]
    if refusals and not found:
        raise refusals[0]
    return Wanted(tuple(found))


def needs(setting: Setting) -> set[str]:
    """Return the data sets of a setting that must be prepared: those that no dependency ships."""
    names = {setting.data, setting.public_data} & set(DATASETS)
    return {name for name in names if not DATASETS[name].shipped}


def absent() -> set[str]:
    """Return the data sets that are not prepared on this machine."""
    return {line.name for line in available() if not line.present}


def absence(missing: Sequence[str], places: int) -> str:
    """Say which data sets are missing, for how many cells, and how they are brought."""
    commands = " && ".join(f"fedrepro data prepare {name}" for name in missing)
    waiting = f"{places} cell{'s wait' if places > 1 else ' waits'} for it"
    return f"missing data: {', '.join(missing)} ({waiting}): {commands}"
