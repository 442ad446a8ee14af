"""`fedrepro run`: the runs that items need, and telling how they ended."""

import argparse
import re
import statistics
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from fedrepro.bench.timing import precision_of
from fedrepro.cli.elsewhere import Found, elsewhere
from fedrepro.cli.planned import Wanted, absence, absent, named, needs, planned
from fedrepro.core import paths
from fedrepro.federation.desk import STOPPED
from fedrepro.federation.loaded import fingerprint
from fedrepro.papers import Cell
from fedrepro.runs import record
from fedrepro.runs.machine import LOST, choose_device
from fedrepro.runs.play import play_all
from fedrepro.runs.request import Outcome, Run
from fedrepro.runs.store import Store

Done = list[tuple[Cell, int, Outcome]]  # cell, seed, how its run ended
FASTER = "this CPU has bfloat16: --precision bfloat16 trains about half as fast again (float32 is used)"
COUNTED = 2000  # numbers asked for up to which all runs are listed beforehand
NOTHING_YET = re.compile(r"after round 0 |inside round 1, after step 0 of \d+ of training 1\b")


def run(options: argparse.Namespace) -> int:
    """Carry out the runs of items, or list them."""
    device = choose_device(options.device)
    wanted = planned(named(options.items), options)
    if options.cheapest:
        wanted = _missing(wanted, options.scale)
    if options.list:
        return _list(wanted, _order(wanted, options, device) if options.cheapest else None)
    if options.record:
        record.check(paths.recorded_folder(), {cell.item for cell, _ in wanted.cells}, options.scale)
    if options.precision == "float32" and device == "cpu" and precision_of("cpu") == "bfloat16":
        print(FASTER, flush=True)
    wanted, whole = there(wanted)
    done, store = play(wanted, options)
    kept = not options.record or write(paths.recorded_folder(), done, options.scale)
    good = tell(done, store, wanted.count)
    results(done)
    return 0 if good and whole and kept else 1


def there(wanted: Wanted) -> tuple[Wanted, bool]:
    """Tell which data sets are missing; returns what can be run without them, and whether that is all."""
    missing = absent()
    possible = wanted.without(missing)
    lost = len(wanted.cells) - len(possible.cells)
    if lost:
        lacking = sorted(set().union(*(needs(cell.setting) for cell, _ in wanted.cells)) & missing)
        print(absence(lacking, lost), file=sys.stderr, flush=True)
    return possible, not lost


def _missing(wanted: Wanted, scale: str) -> Wanted:
    """Return what is asked for without the runs that are recorded already, and tell how many those are."""
    from fedrepro.cli.state import recorded

    known = recorded(wanted, scale)
    if known:
        every = sum(max(seeds for _, seeds in asked) for asked in wanted.sharing.values())
        print(f"recorded already, so left out: {len(known)} of {every} runs", flush=True)
    return replace(wanted, left_out=frozenset(known))


def play(wanted: Wanted, options: argparse.Namespace) -> tuple[Done, Store]:
    """Carry out runs, one for all cells that have it in common; returns how each cell's run ended."""
    store, device, asked = Store(), choose_device(options.device), list[Run]()
    order = _order(wanted, options, device)

    def one_by_one() -> Iterator[Run]:
        for run in order:
            asked.append(run)
            yield run

    # A plan of usual size is known beforehand, so that the progress bar knows its end.
    runs = list(one_by_one()) if wanted.count <= COUNTED else one_by_one()
    ended = list(play_all(runs, store, device=device, budget=options.budget, report=_line))
    return [
        (cell, run.seed, _readable(cell, outcome, store))
        for run, outcome in zip(asked, ended)
        for cell in wanted.asking(run.setting, run.seed)
    ], store


def _readable(cell: Cell, outcome: Outcome, store: Store) -> Outcome:
    """Return an outcome, as failed where a cell cannot read its number from the record."""
    if outcome.record is None:
        return outcome
    try:
        record.run_row(cell, "", outcome.key, outcome.record)
    except (ValueError, KeyError, TypeError) as error:
        why = f"{store.root / outcome.key / 'record.json'}: {error if str(error) else type(error).__name__}"
        return replace(outcome, status="failed", record=None, error=why)
    return outcome


def _order(wanted: Wanted, options: argparse.Namespace, device: str) -> Iterator[Run]:
    """Return the runs as they come, or by their cost on this machine, which is measured once."""
    if not getattr(options, "cheapest", False):
        return wanted.runs()
    from fedrepro.bench.rates import Rates

    rates = Rates.here(device)
    return wanted.cheapest(lambda setting: rates.seconds(setting))


def _line(run: Run, outcome: Outcome) -> None:
    """Print a line per run where no bar is shown, as in a log file."""
    if not sys.stderr.isatty() and outcome.status != "paused":
        print(f"{outcome.status}: {run.label}, seed {run.seed}", flush=True)


def tell(done: Done, store: Store, wanted: int) -> bool:
    """Tell what did not end well; returns whether all that was wanted did."""
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
    if wanted > len(done):  # not even begun
        counts["paused"] = counts.get("paused", 0) + wanted - len(done)
    summary = ", ".join(f"{count} {status}" for status, count in sorted(counts.items())) or "no runs needed"
    for engine in sorted({_engine(outcome) for _, _, outcome in done if outcome.record is not None} - {""}):
        print(engine)
    print(f"runs: {summary}; store: {store.root}")
    if counts.get("paused"):
        gone = any(outcome.error == LOST for _, _, outcome in done)
        onward = "the same command goes on from here" if any(_kept(outcome) for _, _, outcome in done) else ""
        longer = "" if gone else "nothing was done in it, it needs more time"
        print("; ".join(filter(None, (LOST if gone else "the budget is spent", onward or longer))))
    return set(counts) <= {"done"}


def _kept(outcome: Outcome) -> bool:
    """Return whether something of a run is kept, so that the next call goes on from there."""
    stopped = outcome.status == "paused" and outcome.error.startswith(STOPPED)
    return outcome.record is not None or (stopped and not NOTHING_YET.search(outcome.error))


def _engine(outcome: Outcome) -> str:
    """Return which kernel a finished run chose, and why; nothing for records from before that was noted."""
    where = (outcome.record or {})["provenance"]
    return f"engine {where['engine']}: {where['engine_why']}" if "engine_why" in where else ""


def results(done: Done) -> None:
    """Print what the finished runs gave: a line for each cell, mean ± standard deviation over its seeds."""
    found: dict[tuple[str, str], list[float]] = {}
    for cell, _, outcome in done:
        if outcome.record is not None:
            value = record.run_row(cell, "", outcome.key, outcome.record)["result"]
            found.setdefault((cell.item, f"{cell.row}, {cell.column}"), []).append(float(value))
    width = max((len(name) for _, name in found), default=0)
    for item in dict.fromkeys(item for item, _ in found):
        print(f"{item:<{width}}  seeds  mean ± std")
        for name, values in ((name, values) for (of, name), values in found.items() if of == item):
            spread = f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else ""
            print(f"{name:<{width}}  {len(values):>5}  {statistics.fmean(values):.2f}{spread}")


def write(folder: Path, done: Done, scale: str, *, quietly: bool = False) -> bool:
    """Write the records of finished runs, item by item, and tell the files; returns whether all were written.

    Where another item's records hold another result of one of these runs, they take over the new one.
    """
    by_item: dict[str, list[Found]] = {}
    for cell, _, outcome in done:
        if outcome.record is not None:
            by_item.setdefault(cell.item, []).append((cell, outcome.key, outcome.record))
    refused = False
    try:
        further = dict(elsewhere(folder, by_item, scale))
    except ValueError as error:
        print(f"not looked for in other items: {error}", file=sys.stderr)
        refused, further = True, {}
    for item, found in further.items():
        print(f"{item} has {len(found)} of these runs with other results, which give way: draw its figures anew")
    for item, found in (by_item | further).items():
        try:
            written = record.write(folder, item, scale, found)
        except (ValueError, OSError) as error:  # the others are written all the same
            print(f"not recorded: {item}: {error}", file=sys.stderr)
            refused = True
            continue
        for path in written if not quietly else ():
            print(f"wrote {path}")
    return not refused


def _list(wanted: Wanted, order: Iterator[Run] | None) -> int:
    """Show the runs of cells and what is done, item by item or in an order; without its data a run has no key."""
    store, missing = Store(), absent()
    files = {"record.json": "done", "failed.json": "failed", "checkpoint.pt": "begun", "inside.pt": "begun"} | {
        "inside/round.json": "begun"
    }
    ordered = ((cell, run.seed) for run in order or () for cell in wanted.asking(run.setting, run.seed))
    for cell, seed in ordered if order is not None else wanted.numbers():
        place = f"{cell.item}  {cell.row}, {cell.column}, seed {seed}"
        if lost := needs(cell.setting) & missing:
            print(f"{'-' * 12}  {'-':<6}  {place} (no {', '.join(sorted(lost))})")
            continue
        key = store.key(cell.setting, seed, fingerprint(cell.setting))
        state = next((word for name, word in files.items() if (store.root / key / name).exists()), "-")
        print(f"{key}  {state:<6}  {place}")
    return 0
