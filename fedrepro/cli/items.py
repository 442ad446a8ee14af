"""`fedrepro list`: the items of all papers, what is done at each scale, the data they need and what they cost."""

import argparse
import math
from collections.abc import Iterable, Mapping

from fedrepro import papers
from fedrepro.bench import rates as speed
from fedrepro.bench.cost import Images, images
from fedrepro.cli.planned import Wanted, absent, named, needs
from fedrepro.cli.state import Ran, asked, finished, mark, recorded, state
from fedrepro.core import paths
from fedrepro.core.setting import Setting
from fedrepro.papers import SCALES, Item
from fedrepro.runs.machine import choose_device


def items(options: argparse.Namespace) -> int:
    """List items with their state, the data sets that they need, and their cost."""
    chosen, missing, ran = named(options.items), absent(), finished(paths.runs_folder())
    for name in dict.fromkeys(item.paper for item in chosen):
        print(papers.load(name).title)
        for item in (item for item in chosen if item.paper == name):
            print(f"  {item.key:<28} {item.title} ({item.source})")
            for scale in SCALES:
                print(f"    {_line(item, scale, missing, ran)}")
    if options.cost:
        _costs(chosen, ran)
    print(f"store: {paths.runs_folder()}")
    return 0


def _line(item: Item, scale: str, missing: set[str], ran: Ran) -> str:
    """Return the line of an item at a scale."""
    count = f"{scale}: "
    wanted = asked(item, scale)
    if item.batch:
        count += f"{len(wanted.cells)} cells x {item.seeds[scale]} seeds"
    else:
        count += f"{item.seeds[scale]} seeds in the notebook"
    try:
        parts = [count, state(item, scale, ran).words]
    except (ValueError, OSError) as error:  # a damaged file of one item; the others are listed
        parts = [count, str(error)]
    data = sorted(set().union(*(needs(cell.setting) for cell, _ in wanted.cells)))
    parts += [f"{name} ({'missing' if name in missing else 'there'})" for name in data]
    if item.batch:
        work = _sum(runs(wanted))
        parts.append(f"{_short(work.trained)} images to train, {_short(work.predicted)} to predict")
    return "; ".join(parts)


def runs(wanted: Wanted) -> dict[tuple[Setting, int], None]:
    """Return the runs behind cells, each once however many cells need it."""
    return {(run.setting, run.seed): None for run in wanted.runs()}


def _sum(found: Iterable[tuple[Setting, int]]) -> Images:
    return sum((_images(setting) for setting, _ in found), Images())


def _images(setting: Setting) -> Images:
    """Return the images of a run; none where its setting cannot be run."""
    try:
        return images(setting)
    except ValueError:
        return Images()


def _short(number: float) -> str:
    """Return a number of images for reading, such as 40 M."""
    for size, unit in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if number >= size:
            return f"{number / size:.3g}{unit}"
    return f"{number:.0f}"


def _costs(chosen: list[Item], ran: Ran) -> None:
    """Print what items cost at each scale, and all of them together, a run counted once."""
    rates = speed.Rates.here(choose_device("auto"))
    known = speed.recorded(paths.recorded_folder() / "performance" / "throughput.csv") if paths.checkout() else {}
    batch = [item for item in chosen if item.batch]
    networks = {
        name
        for item in batch
        for s in SCALES
        for c, _ in asked(item, s).cells
        for name in c.setting.model.split("+")
    }
    places = {where: by for where, by in known.items() if networks & {n for n, r in by.items() if len(r) == 3}}
    head = ["item", "scale", "runs", "done", "missing", "to train", "to predict", "here"]
    lines = [head + [f"[{number}]" for number in range(1, len(places) + 1)]]
    for scale in SCALES:
        every = {item.key: asked(item, scale) for item in batch}
        if len(batch) > 1:  # there a run is recorded if all items that show it have recorded it
            every["together"] = Wanted(tuple(cell for wanted in every.values() for cell in wanted.cells))
        for name, wanted in every.items():
            lines.append([name, scale, *_cost(runs(wanted), recorded(wanted, scale), ran, rates, places)])
    widths = [max(map(len, column)) for column in zip(*lines)]
    for line in lines:
        words = [
            f"{word:<{width}}" if n < 2 else f"{word:>{width}}"
            for n, (word, width) in enumerate(zip(line, widths))
        ]
        print("  ".join(words).rstrip())
    where = f"{rates.machine['device']}, {rates.machine['threads']} threads"
    print(f"here: {where}, measured in some seconds each: {rates.path}")
    for number, (where, by) in enumerate(places.items(), 1):
        named_ = ", ".join(sorted(name for name, kinds in by.items() if len(kinds) == 3))
        print(f"[{number}]: {where}, as recorded for {named_}; runs of other networks are not counted there")


def _cost(
    mine: Mapping[tuple[Setting, int], None],
    known: set[tuple[Setting, int]],
    ran: Ran,
    rates: speed.Rates,
    places: Mapping[str, dict[str, dict[str, float]]],
) -> list[str]:
    """Return how many runs there are, done and missing; of the missing ones images and the time on each device."""
    left = [one for one in mine if one not in known and (mark(one[0]), one[1]) not in ran]
    work = _sum(left)
    words = [
        str(len(mine)),
        str(len(mine) - len(left)),
        str(len(left)),
        _short(work.trained),
        _short(work.predicted),
    ]
    words.append(_time(sum(rates.seconds(setting) for setting, _ in left)))
    for by in places.values():
        full = [s for s, _ in left if all(len(by.get(name, {})) == 3 for name in s.model.split("+"))]
        taken = sum(speed.seconds(_images(s), [by[name] for name in s.model.split("+")]) for s in full)
        words.append(
            _time(taken) + (f" for {len(full)} runs" if 0 < len(full) < len(left) else "") if full else "-"
        )
    return words


def _time(spent: float) -> str:
    """Return a time in hours, or in seconds where it is short; "?" where a network could not be measured."""
    if not math.isfinite(spent):
        return "?"
    return f"{spent:.0f} s" if spent < 60 else f"{spent / 3600:.2g} h" if spent < 3600 else f"{spent / 3600:.0f} h"
