"""The options of `fedrepro bench`. Nothing here imports torch, so that a misspelt option is answered at once."""

import argparse
from collections.abc import Callable
from pathlib import Path

PRECISIONS = ("float32", "bfloat16", "float64")
SCANNED = ("clients", "batch", "depth", "distill")


def add_options(command: argparse.ArgumentParser, *, whole: Callable, seconds: Callable) -> None:
    """Add the options of `fedrepro bench`; `whole` and `seconds` read a number >= 1 and a time."""
    add = command.add_argument
    add("--device", choices=("auto", "cpu", "cuda"), default="auto", metavar="DEVICE", help="auto, cpu or cuda")
    add("--model", default="resnet20", metavar="NAME", help="such as convnet; default: resnet20")
    add("--engine", default="", metavar="A,B", help="kernels, or all; default: the automatic choice and plain")
    add("--clients", type=whole, metavar="N", help="clients; default: 10 on CUDA, else 4")
    add("--images", type=whole, metavar="N", help="images of a client; default: 4000 on CUDA, else 400")
    add("--batch", type=whole, default=40, metavar="N", help="images of a client's step; default: 40")
    add("--epochs", type=whole, metavar="N", help="passes in one call; default: 5 on CUDA, else 1")
    text = "default: bfloat16 if the device has it, or float32"
    add("--precision", choices=PRECISIONS, metavar="TYPE", help=text)
    text = "time for everything; what does not fit is left out; default: 3m on CUDA, else 35s"
    add("--budget", type=seconds, metavar="3m", help=text)
    add("--scan", choices=SCANNED, metavar="WHAT", help="also measure over clients, batch, depth or distill")
    add("--profile", action="store_true", help="also tell where the time of a training step goes")
    add("--json", action="store_true", help="print one JSON object and nothing else")
    add("--out", type=Path, metavar="DIR", help="write bench.json, add lines to throughput.csv")
    add("--part", choices=("lead", "other"), help=argparse.SUPPRESS)  # one engine's process among several
