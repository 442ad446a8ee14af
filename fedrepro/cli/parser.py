"""The options of all commands. Nothing here imports torch, so that a typo is answered at once."""

import argparse
from collections.abc import Callable
from pathlib import Path

import fedrepro
from fedrepro.bench.options import add_options
from fedrepro.cli.arguments import Parser, budget_seconds, folder, labels, whole

SCALES = ("smoke", "short", "paper")  # those of `papers.SCALES`, whose import takes seconds

Add = Callable[[str, str, str], argparse.ArgumentParser]  # a command: its name, what it does, an example


def parser() -> argparse.ArgumentParser:
    """Return the argument parser of the command line."""
    main = Parser(
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
    add_options(measure, whole=whole, seconds=budget_seconds)
    report = add("report", "Write the report from the records and show where it is.", "fedrepro report")
    report.add_argument(
        "--record", action="store_true", help="write figures/report.md and .html of the repository"
    )
    _list(add)
    _data(add)
    text = "Write the skeleton of a new item: its notebook and its entry, and a new paper's files."
    new = add("new", text, "fedrepro new fedbe/table9_mine")
    new.add_argument("item", metavar="PAPER/ITEM", help="such as fedbe/table9_mine, of a-z, 0-9 and _")
    return main


def _run(add: Add) -> None:
    run = add(
        "run",
        "Carry out the runs behind items, going on from their checkpoints.",
        "fedrepro run fedbe/table1_methods --scale short --only ConvNet,Step --seeds 3 --budget 8m",
    )
    _which_runs(run, count="+")
    run.add_argument("--cheapest", action="store_true", help="the least work first; without what is recorded")
    run.add_argument("--list", action="store_true", help="show the runs and what is done; start none")


def _reproduce(add: Add) -> None:
    reproduce = add(
        "reproduce",
        "Carry out the runs, execute the notebooks, write figures and the report; everything if no item is named.",
        "fedrepro reproduce fedbe --scale smoke",
    )
    _which_runs(reproduce, count="*")
    text = "limit per notebook"
    reproduce.add_argument("--timeout", type=budget_seconds, default=3600.0, metavar="1h", help=text)
    reproduce.add_argument(
        "--out", type=folder, metavar="DIR", help="figures and report go here; default: results/"
    )


def _which_runs(command: argparse.ArgumentParser, *, count: str) -> None:
    add = command.add_argument
    add("items", nargs=count, metavar="ITEM", help="a paper (fedbe) or paper/item")
    add("--scale", choices=SCALES, default="smoke", metavar="SCALE", help="smoke (default), short or paper")
    add("--seeds", type=whole, metavar="N", help="seeds 0..N-1; default: the item's own")
    add(
        "--only",
        type=labels,
        default=(),
        metavar="A,B",
        help='only these networks, partitions, methods; "A, B" in quotes is one',
    )
    text = "float32 (default) or bfloat16, of the convolutions"
    add("--precision", choices=("float32", "bfloat16"), default="float32", metavar="TYPE", help=text)
    text = "auto (default: cuda if there is one), cpu or cuda"
    add("--device", choices=("auto", "cpu", "cuda"), default="auto", metavar="DEVICE", help=text)
    add("--budget", type=budget_seconds, metavar="8m", help="stop the runs cleanly before this time is over")
    add("--record", action="store_true", help="also write the results into figures/ of the repository")


def _list(add: Add) -> None:
    text = "List the papers' items: what is done at each scale, the data they need and what they cost."
    items = add("list", text, "fedrepro list fedbe/table1_methods --cost")
    items.add_argument("items", nargs="*", metavar="ITEM", help="a paper (fedbe) or paper/item; default: all")
    text = "hours here, by rates measured in some seconds, and on recorded devices"
    items.add_argument("--cost", action="store_true", help=text)


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
