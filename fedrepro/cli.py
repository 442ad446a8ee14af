"""The command line: `fedrepro run`, `reproduce`, `report`, `list`, `data`, `bench`."""

import argparse
import csv
import re
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

import fedrepro
from fedrepro import papers
from fedrepro.bench import command as bench
from fedrepro.core import paths
from fedrepro.core.files import StoreError
from fedrepro.papers import SCALES, Cell, Item
from fedrepro.runs import record
from fedrepro.runs.machine import LOST, choose_device
from fedrepro.runs.play import Outcome, Run, play_all
from fedrepro.runs.store import Store


def budget_seconds(text: str) -> float:
    """Turn "90s", "8m" or "1.5h" into seconds.

    Raises:
        argparse.ArgumentTypeError: for anything else.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smh])", text.strip())
    if not match or float(match[1]) <= 0:
        raise argparse.ArgumentTypeError(f"must be a time such as 90s, 8m or 1.5h, got {text!r}")
    return float(match[1]) * {"s": 1, "m": 60, "h": 3600}[match[2]]


def _labels(text: str) -> tuple[str, ...]:
    """Split at commas; a label that has one itself stands in double quotes."""
    parts = next(csv.reader([text], skipinitialspace=True), [])
    return tuple(part.strip() for part in parts if part.strip())


def _positive(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number >= 1, got {text!r}")
    return int(text)


def parser() -> argparse.ArgumentParser:
    """Return the argument parser of the command line."""
    main = argparse.ArgumentParser(
        prog="fedrepro",
        description="Regenerate the tables and figures of papers on ensemble distillation in federated learning.",
        epilog="example: fedrepro reproduce fedbe/table1_methods",
    )
    main.add_argument("--version", action="version", version=f"fedrepro {fedrepro.__version__}")
    commands = main.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def add(name: str, text: str, example: str) -> argparse.ArgumentParser:
        return commands.add_parser(name, help=text, description=text, epilog=f"example: {example}")

    run = add(
        "run",
        "Play the runs behind items, going on from their checkpoints.",
        "fedrepro run fedbe/table1_methods --scale short --only ConvNet,Step --seeds 3 --budget 8m",
    )
    reproduce = add(
        "reproduce",
        "Play the runs, execute the notebooks, write figures and the report; everything if no item is named.",
        "fedrepro reproduce fedbe --scale smoke",
    )
    for command in (run, reproduce):
        count = "+" if command is run else "*"
        command.add_argument("items", nargs=count, metavar="ITEM", help="a paper (fedbe) or paper/item")
        scales = "smoke (default), short or paper"
        command.add_argument("--scale", choices=SCALES, default="smoke", metavar="SCALE", help=scales)
        command.add_argument("--seeds", type=_positive, metavar="N", help="seeds 0..N-1; default: the item's own")
        command.add_argument(
            "--device",
            choices=("auto", "cpu", "cuda"),
            default="auto",
            metavar="DEVICE",
            help="auto (default: cuda if there is one), cpu or cuda",
        )
        command.add_argument(
            "--budget",
            type=budget_seconds,
            metavar="8m",
            help="stop the runs cleanly before this time is over",
        )
        command.add_argument(
            "--record", action="store_true", help="also write the results into figures/ of the repository"
        )
    run.add_argument("--precision", choices=("float32", "bfloat16"), default="float32", help="of the convolutions")
    reproduce.set_defaults(precision="float32")
    run.add_argument(
        "--only", type=_labels, default=(), metavar="A,B", help="only these networks, partitions, methods"
    )
    run.add_argument("--list", action="store_true", help="show the runs and what is done; play none")
    reproduce.add_argument(
        "--timeout", type=budget_seconds, default=3600.0, metavar="1h", help="limit per notebook"
    )
    text = "Measure images/s of training, prediction and distillation, beside what the machine could do."
    measure = add("bench", text, "fedrepro bench --device cpu --model resnet20 --json")
    bench.add_options(measure, whole=_positive, seconds=budget_seconds)
    add("report", "Write the report from the records and show where it is.", "fedrepro report").add_argument(
        "--record", action="store_true", help="write figures/report.md and .html of the repository"
    )
    add("list", "List the papers' items with their scales and seeds.", "fedrepro list")
    data = add("data", "Prepare data sets, or list what is there.", "fedrepro data prepare cifar10")
    actions = data.add_subparsers(dest="action", required=True, metavar="ACTION")
    prepare = actions.add_parser(
        "prepare",
        help="download or read the official archive, check it, store it as arrays",
        epilog="example: fedrepro data prepare cifar10 --archive cifar-10-python.tar.gz",
    )
    prepare.add_argument("name", help="such as cifar10")
    source = prepare.add_mutually_exclusive_group()
    source.add_argument("--archive", type=Path, metavar="FILE", help="the official archive, if already here")
    text = "has images in train/CLASS/ and test/CLASS/ (or val/), instead of the archive"
    source.add_argument("--from-folder", type=Path, metavar="DIR", help=text)
    text = "Show the data sets and the folder in which they are looked for."
    actions.add_parser("list", help=text, description=text, epilog="example: fedrepro data list")
    return main


def _items(names: Sequence[str]) -> list[Item]:
    targets = names or papers.names()
    found = {item.key: item for name in targets for item in papers.find(name)}
    return list(found.values())


def _planned(items: list[Item], options: argparse.Namespace) -> list[tuple[Cell, Run]]:
    """List all runs, in the items' order of cells, all cells of a seed before the next seed."""
    planned = []
    only = getattr(options, "only", ())
    batch = [item for item in items if item.grids and item.batch]
    if len(batch) > 1:  # of several items, those that have no such label are not meant
        labels = {item.key: {v for values in item.labels.values() for v in values} for item in batch}
        batch = [item for item in batch if set(only) <= labels[item.key]] or batch
    for item in batch:
        cells = papers.load(item.paper).cells(item.name, options.scale, only=only)
        for seed in range(options.seeds or item.seeds[options.scale]):
            for cell in cells:
                setting = cell.setting.with_(precision=options.precision)
                planned.append((cell, Run(setting, seed, f"{cell.row} {cell.column}")))
    return planned


Done = list[tuple[Cell, int, Outcome]]  # cell, seed, how its run ended


def _play(items: list[Item], options: argparse.Namespace) -> tuple[Done, Store]:
    store = Store()
    planned = _planned(items, options)
    unique: dict[tuple[str, int], Run] = {}
    for _, run in planned:
        unique.setdefault((str(run.setting.asdict()), run.seed), run)
    outcomes = play_all(
        unique.values(), store, device=choose_device(options.device), budget=options.budget, report=_tell
    )
    by_run = dict(zip(unique, outcomes))
    return [(cell, run.seed, by_run[str(run.setting.asdict()), run.seed]) for cell, run in planned], store


def _tell(run: Run, outcome: Outcome) -> None:
    """Print a line per run where no bar is shown, as in a log file."""
    if not sys.stderr.isatty() and outcome.status != "paused":
        print(f"{outcome.status}: {run.label}, seed {run.seed}", flush=True)


def _say(done: Done, store: Store) -> bool:
    """Tell what did not end well; returns whether everything did."""
    counts: dict[str, int] = {}
    shown = set()
    for cell, seed, outcome in done:
        counts[outcome.status] = counts.get(outcome.status, 0) + 1
        if outcome.status in ("failed", "busy") and outcome.key not in shown:
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


def _write(folder: Path, done: Done, scale: str) -> None:
    by_item: dict[str, list] = {}
    for cell, _, outcome in done:
        if outcome.record is not None:
            by_item.setdefault(cell.item, []).append((cell, outcome.key, outcome.record))
    for item, found in by_item.items():
        for path in record.write(folder, item, scale, found):
            print(f"wrote {path}")


def _run(options: argparse.Namespace) -> int:
    items = _items(options.items)
    if options.list:
        return _show(items, options)
    done, store = _play(items, options)
    if options.record:
        _write(paths.recorded_folder(), done, options.scale)
    return 0 if _say(done, store) else 1


def _show(items: list[Item], options: argparse.Namespace) -> int:
    from fedrepro.federation.assemble import fingerprint

    store = Store()
    for cell, run in _planned(items, options):
        key = store.key(run.setting, run.seed, fingerprint(run.setting))
        files = {"record.json": "done", "failed.json": "failed", "checkpoint.pt": "begun"}
        state = next((word for name, word in files.items() if (store.root / key / name).exists()), "-")
        print(f"{key}  {state:<6}  {cell.item}  {cell.row}, {cell.column}, seed {run.seed}")
    return 0


def _reproduce(options: argparse.Namespace) -> int:
    from fedrepro.notebooks import batch
    from fedrepro.report import report

    items = _items(options.items)
    done, store = _play(items, options)
    good = _say(done, store)
    figures = paths.recorded_folder() if options.record else paths.made_folder()
    if options.record:
        _write(figures, done, options.scale)
    # The runs are done, so a notebook has little to compute; on a GPU two would share its memory.
    cores = torch.get_num_threads() if choose_device(options.device) == "cpu" else 1
    workers = min(4, cores)
    jobs = []
    paused = {cell.item for cell, _, outcome in done if outcome.status == "paused"}
    for item in items:
        if item.key in paused:  # its notebook would play all that the budget left out
            print(f"put off: {item.key}", file=sys.stderr)
            continue
        parameters = {
            "scale": options.scale,
            "seeds": options.seeds or item.seeds[options.scale],
            "device": options.device,
            "out": str(figures),
        }
        notebook = paths.recorded_folder().parent / "notebooks" / f"{item.key}.ipynb"
        output = paths.results_folder() / "notebooks" / f"{item.key}.ipynb"
        jobs.append(
            batch.Job(
                notebook=notebook,
                output=output,
                timeout=options.timeout,
                parameters=parameters,
                threads=cores // workers if cores > 1 else 0,
            )
        )
    for job, result in zip(jobs, batch.execute_all(jobs, workers=workers)):
        good = good and result.ok
        if not result.ok:
            print(f"failed: {job.notebook}: {result.error}", file=sys.stderr)
    written = report.write_report(figures, folders=paths.record_folders())
    print(f"notebooks: {paths.results_folder() / 'notebooks'}")
    print(f"figures:   {figures}")
    print("report:    " + "\n           ".join(map(str, written)))
    return 0 if good else 1


def _report(options: argparse.Namespace) -> int:
    from fedrepro.report import report

    if options.record:
        written = report.write_report(paths.recorded_folder(), folders=[paths.recorded_folder()])
    else:
        written = report.write_report(paths.made_folder(), folders=paths.record_folders())
    print("\n".join(map(str, written)))
    return 0


def _list() -> int:
    for name in papers.names():
        paper = papers.load(name)
        print(paper.title)
        for item in paper.items.values():
            print(f"  {item.key:<28} {item.title} ({item.source})")
            cells = [f"{scale}: {_count(item, scale)}" for scale in SCALES]
            print(f"  {'':<28} {'; '.join(cells)}")
    print(f"store: {paths.runs_folder()}")
    return 0


def _count(item: Item, scale: str) -> str:
    if not item.batch:
        return f"{item.seeds[scale]} seeds in the notebook"
    cells = len(papers.load(item.paper).cells(item.name, scale))
    return f"{cells} cells x {item.seeds[scale]} seeds"


def _data(options: argparse.Namespace) -> int:
    from fedrepro.data.data import available, data_root
    from fedrepro.data.prepare.prepare import prepare

    if options.action == "prepare":
        print(prepare(options.name, archive=options.archive, from_folder=options.from_folder))
        return 0
    for name, present, where, images in available():
        print(f"{name:<14} {'ready' if present else 'missing':<8} {images:>6} images  {where}")
    print(f"data root: {data_root()}")
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns 0 only if everything asked for was done."""
    options = parser().parse_args(arguments)
    commands = {
        "run": _run,
        "reproduce": _reproduce,
        "report": _report,
        "list": lambda _: _list(),
        "data": _data,
        "bench": bench.command,
    }
    try:
        return commands[options.command](options)
    except (ValueError, StoreError, OSError) as error:
        print(f"fedrepro: {error}", file=sys.stderr)
        return 2
    except ImportError as error:
        print(f"fedrepro: {error}; notebooks need pip install 'fedrepro[notebooks]'", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("fedrepro: interrupted; finished rounds are kept, the same command goes on", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
