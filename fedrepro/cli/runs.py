"""`fedrepro run`: which runs items need, playing them, and telling how they ended."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from fedrepro import papers
from fedrepro.bench.timing import precision_of
from fedrepro.core import paths
from fedrepro.federation.desk import STOPPED
from fedrepro.federation.loaded import fingerprint
from fedrepro.papers import Cell, Item
from fedrepro.runs import record
from fedrepro.runs.machine import LOST, choose_device
from fedrepro.runs.play import play_all
from fedrepro.runs.request import Outcome, Run, merged
from fedrepro.runs.store import Store

Done = list[tuple[Cell, int, Outcome]]  # cell, seed, how its run ended
FASTER = "this CPU has bfloat16: --precision bfloat16 trains about half as fast again (float32 is used)"


def run(options: argparse.Namespace) -> int:
    """Play the runs of items, or list them."""
    items = named(options.items)
    if options.list:
        return _list(items, options)
    slower = options.precision == "float32" and choose_device(options.device) == "cpu"
    if slower and precision_of("cpu") == "bfloat16":
        print(FASTER, flush=True)
    done, store = play(items, options)
    if options.record:
        write(paths.recorded_folder(), done, options.scale)
    return 0 if tell(done, store) else 1


def named(names: Sequence[str]) -> list[Item]:
    """Return the items of papers and of "paper/item"; all there are if none is named."""
    targets = names or papers.names()
    found = {item.key: item for name in targets for item in papers.find(name)}
    return list(found.values())


def planned(items: list[Item], options: argparse.Namespace) -> list[tuple[Cell, Run]]:
    """List all runs, in the items' order of cells, all cells of a seed before the next seed."""
    found = []
    batch = [item for item in items if item.grids and item.batch]
    if len(batch) > 1:  # of several items, those that have no such label are not meant
        labels = {item.key: {v for values in item.labels.values() for v in values} for item in batch}
        batch = [item for item in batch if set(options.only) <= labels[item.key]] or batch
    for item in batch:
        cells = papers.load(item.paper).cells(item.name, options.scale, only=options.only)
        for seed in range(options.seeds or item.seeds[options.scale]):
            for cell in cells:
                setting = cell.setting.with_(precision=options.precision)
                label = f"{cell.row} {cell.column}"
                found.append((cell, Run(setting, seed, label, until=cell.reading.until)))
    return found


def play(items: list[Item], options: argparse.Namespace) -> tuple[Done, Store]:
    """Play the runs of items, one for all cells that have it in common; returns how each cell's run ended."""
    store, wanted = Store(), planned(items, options)
    runs = merged(one for _, one in wanted)
    device = choose_device(options.device)
    played = play_all(runs.values(), store, device=device, budget=options.budget, report=_line)
    outcomes = dict(zip(runs, played))
    return [(cell, one.seed, outcomes[one.setting, one.seed]) for cell, one in wanted], store


def _line(run: Run, outcome: Outcome) -> None:
    """Print a line per run where no bar is shown, as in a log file."""
    if not sys.stderr.isatty() and outcome.status != "paused":
        print(f"{outcome.status}: {run.label}, seed {run.seed}", flush=True)


def tell(done: Done, store: Store) -> bool:
    """Tell what did not end well; returns whether everything did."""
    counts: dict[str, int] = {}
    shown = set()
    for cell, seed, outcome in done:
        counts[outcome.status] = counts.get(outcome.status, 0) + 1
        # Of what the budget left out, only that which it stopped half way.
        told = outcome.status in ("failed", "busy") or outcome.error.startswith(STOPPED)
        if told and outcome.key not in shown:
            place = f"{cell.item} {cell.row}, {cell.column}, seed {seed}"
            print(f"{outcome.status}: {place}: {outcome.error}", file=sys.stderr)
            shown.add(outcome.key)
    summary = ", ".join(f"{count} {status}" for status, count in sorted(counts.items())) or "no runs needed"
    for engine in sorted({_engine(outcome) for _, _, outcome in done if outcome.record is not None} - {""}):
        print(engine)
    print(f"runs: {summary}; store: {store.root}")
    if counts.get("paused"):
        gone = any(outcome.error == LOST for _, _, outcome in done)
        print(f"{LOST if gone else 'the budget is spent'}; the same command goes on from here")
    return set(counts) <= {"done"}


def _engine(outcome: Outcome) -> str:
    """Return which kernel a finished run chose, and why; nothing for records from before that was noted."""
    where = (outcome.record or {})["provenance"]
    return f"engine {where['engine']}: {where['engine_why']}" if "engine_why" in where else ""


def write(folder: Path, done: Done, scale: str) -> None:
    """Write the records of finished runs, item by item, and tell the files."""
    by_item: dict[str, list] = {}
    for cell, _, outcome in done:
        if outcome.record is not None:
            by_item.setdefault(cell.item, []).append((cell, outcome.key, outcome.record))
    for item, found in by_item.items():
        for path in record.write(folder, item, scale, found):
            print(f"wrote {path}")


def _list(items: list[Item], options: argparse.Namespace) -> int:
    """Show the runs of items and what is done."""
    store = Store()
    files = {"record.json": "done", "failed.json": "failed", "checkpoint.pt": "begun", "inside.pt": "begun"}
    for cell, one in planned(items, options):
        key = store.key(one.setting, one.seed, fingerprint(one.setting))
        state = next((word for name, word in files.items() if (store.root / key / name).exists()), "-")
        print(f"{key}  {state:<6}  {cell.item}  {cell.row}, {cell.column}, seed {one.seed}")
    return 0
