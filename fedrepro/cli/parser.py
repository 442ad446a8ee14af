"""The options of all commands."""

import argparse
import csv
import re
from collections.abc import Callable
from pathlib import Path

import fedrepro
from fedrepro.bench import command as bench
from fedrepro.papers import SCALES


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


Add = Callable[[str, str, str], argparse.ArgumentParser]  # a command: its name, what it does, an example


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

    _run(add)
    _reproduce(add)
    text = "Measure images/s of training, prediction and distillation, beside what the machine could do."
    measure = add("bench", text, "fedrepro bench --device cpu --model resnet20 --json")
    bench.add_options(measure, whole=_positive, seconds=budget_seconds)
    report = add("report", "Write the report from the records and show where it is.", "fedrepro report")
    report.add_argument(
        "--record", action="store_true", help="write figures/report.md and .html of the repository"
    )
    add("list", "List the papers' items with their scales and seeds.", "fedrepro list")
    _data(add)
    text = "Write the skeleton of a new item: its notebook and its entry, and a new paper's files."
    new = add("new", text, "fedrepro new fedbe/table9_mine")
    new.add_argument("item", metavar="PAPER/ITEM", help="such as fedbe/table9_mine, of a-z, 0-9 and _")
    return main


def _run(add: Add) -> None:
    run = add(
        "run",
        "Play the runs behind items, going on from their checkpoints.",
        "fedrepro run fedbe/table1_methods --scale short --only ConvNet,Step --seeds 3 --budget 8m",
    )
    _which_runs(run, count="+")
    run.add_argument("--precision", choices=("float32", "bfloat16"), default="float32", help="of the convolutions")
    text = "only these networks, partitions, methods"
    run.add_argument("--only", type=_labels, default=(), metavar="A,B", help=text)
    run.add_argument("--list", action="store_true", help="show the runs and what is done; play none")


def _reproduce(add: Add) -> None:
    reproduce = add(
        "reproduce",
        "Play the runs, execute the notebooks, write figures and the report; everything if no item is named.",
        "fedrepro reproduce fedbe --scale smoke",
    )
    _which_runs(reproduce, count="*")
    reproduce.set_defaults(precision="float32", only=())
    text = "limit per notebook"
    reproduce.add_argument("--timeout", type=budget_seconds, default=3600.0, metavar="1h", help=text)


def _which_runs(command: argparse.ArgumentParser, *, count: str) -> None:
    add = command.add_argument
    add("items", nargs=count, metavar="ITEM", help="a paper (fedbe) or paper/item")
    add("--scale", choices=SCALES, default="smoke", metavar="SCALE", help="smoke (default), short or paper")
    add("--seeds", type=_positive, metavar="N", help="seeds 0..N-1; default: the item's own")
    text = "auto (default: cuda if there is one), cpu or cuda"
    add("--device", choices=("auto", "cpu", "cuda"), default="auto", metavar="DEVICE", help=text)
    add("--budget", type=budget_seconds, metavar="8m", help="stop the runs cleanly before this time is over")
    add("--record", action="store_true", help="also write the results into figures/ of the repository")


def _data(add: Add) -> None:
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
