"""`fedrepro bench`: measure engines side by side and say what the machine could do at best.

Each engine is measured in a process of its own when there are several, so that one that crashes, hangs or spoils
the device takes nothing else with it. Time is divided among the measurements as it is left.
"""

import argparse
import contextlib
import dataclasses
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from fedrepro.bench import report as bench_report
from fedrepro.bench.choice import choice, engines_of, reason
from fedrepro.bench.engine import SCANS, Bench
from fedrepro.bench.roofline import DTYPES, Roofline, floor, measure
from fedrepro.bench.timing import LeftOutError, Series, Sizes, sizes_of, spare_threads
from fedrepro.models import NAMES
from fedrepro.runs.machine import choose_device, provenance

START = 5.0  # seconds that an engine's process takes to start, about
LEAST = 3.0  # seconds that it is given however little time is left
METRICS = ("train", "predict", "distill")


def add_options(command: argparse.ArgumentParser, *, whole: Callable, seconds: Callable) -> None:
    """Add the options of `fedrepro bench`; `whole` and `seconds` read a number >= 1 and a time."""
    add = command.add_argument
    add("--device", choices=("auto", "cpu", "cuda"), default="auto", metavar="DEVICE", help="auto, cpu or cuda")
    add("--model", choices=NAMES, default="resnet20", metavar="NAME", help="such as convnet; default: resnet20")
    add("--engine", default="", metavar="A,B", help="kernels, or all; default: the automatic choice and plain")
    add("--clients", type=whole, metavar="N", help="clients; default: 10 on CUDA, else 4")
    add("--images", type=whole, metavar="N", help="images of a client; default: 4000 on CUDA, else 400")
    add("--batch", type=whole, default=40, metavar="N", help="images of a client's step; default: 40")
    add("--epochs", type=whole, metavar="N", help="passes in one call; default: 5 on CUDA, else 1")
    add(
        "--precision", choices=[*DTYPES], metavar="TYPE", help="default: bfloat16 if the device has it, or float32"
    )
    add(
        "--budget",
        type=seconds,
        metavar="3m",
        help="time for everything; what does not fit is left out; default: 3m on CUDA, else 35s",
    )
    add("--scan", choices=SCANS, metavar="WHAT", help="also measure over clients, batch, depth or distill")
    add("--profile", action="store_true", help="also tell where the time of a training step goes")
    add("--json", action="store_true", help="print one JSON object and nothing else")
    add("--out", type=Path, metavar="DIR", help="write bench.json, add lines to throughput.csv")
    add("--part", choices=("lead", "other"), help=argparse.SUPPRESS)  # one engine's process among several


class Session:
    """Measurements of one engine, one after the other; what fails is noted and the next one begins."""

    def __init__(self, engine: str, sizes: Sizes, end: float) -> None:
        self.engine, self.sizes, self.end = engine, sizes, end
        self.bench = Bench(sizes, engine)
        self.result: dict[str, Any] = {}
        self.failed: list[str] = []
        self.left_out: list[str] = []
        self.notes: list[str] = []

    def attempt(
        self, name: str, share: float, work: Callable[[float, float], Any], *, optional: bool = False
    ) -> Any:
        """Do one piece of work in a share (0 to 1) of the time left; None if it failed or was left out."""
        left = self.end - time.monotonic()
        say(f"{self.engine}: {name} ({left:.0f} s left)")
        try:
            if left <= 0:
                raise LeftOutError("the budget is spent")
            return work(share * left, min(1.6 * share, 1.0) * left)
        except LeftOutError as error:
            (self.notes if optional else self.left_out).append(f"{self.engine} {name} left out: {error}")
        except Exception as error:  # whatever an engine does, the next one is measured
            first = (str(error).strip() or "no message").splitlines()[0]
            self.failed.append(f"{self.engine} {name}: {type(error).__name__}: {first}")
            say(self.failed[-1])
            if isinstance(error, torch.cuda.OutOfMemoryError):
                torch.cuda.empty_cache()
        return None

    def run(self, *, scan: str | None, round: bool, profile: bool = False) -> dict[str, Any]:
        """Measure everything; returns name -> plain values."""
        bench, cuda, costs = self.bench, self.sizes.device == "cuda", {}
        scale = 0.5 if scan else 1.0
        if cuda:
            torch.cuda.reset_peak_memory_stats()
        for name, share in zip(METRICS, (0.35, 0.2, 0.35)):
            series: Series | None = self.attempt(name, share * scale, getattr(bench, name))
            if series is not None:
                self.result[f"{name}_images_per_s"] = dataclasses.asdict(series)
                costs[name] = 1 / series.value
                if series.repeats < self.sizes.repeats:
                    self.notes.append(
                        f"{self.engine} {name}: only {series.repeats} of {self.sizes.repeats} repeats"
                    )
        self.result["peak_memory_bytes"] = torch.cuda.max_memory_allocated() if cuda else resident()
        exact = not reason(self.engine, self.sizes, "float64")
        self.result |= self.attempt("difference", 1.0, lambda *_: bench.difference(exact=exact)) or {}
        if profile:
            self.result["profile"] = self.attempt("profile", 1.0, lambda *_: bench.profile()) or {}
        if round and len(costs) == len(METRICS):
            played = self.attempt("round", 1.0, lambda _, left: bench.round(left * scale, costs), optional=True)
            if played is not None:
                self.result["round"] = played | {"round_s": dataclasses.asdict(played["round_s"])}
        points = SCANS[scan] if scan else ()
        for place, value in enumerate(points):
            share = 1 / (len(points) - place)
            point = self.attempt(f"{scan} {value}", share, partial(bench.scan, str(scan), value))
            if point is not None:
                metric, series, at = point
                row = dataclasses.asdict(at) | dataclasses.asdict(series)
                self.result.setdefault("scan", []).append(row | {"scan": scan, "metric": metric})
        return self.result


def resident() -> int:
    """Return the largest resident memory of this process so far in bytes; 0 where the system does not tell."""
    try:
        import resource
    except ImportError:  # Windows
        return 0
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def say(text: str) -> None:
    """Tell what is going on, apart from the answer."""
    print(f"bench: {text}", file=sys.stderr, flush=True)


def alone(engine: str, sizes: Sizes, options: argparse.Namespace, end: float, *, lead: bool) -> dict[str, Any]:
    """Measure one engine in a process of its own."""
    seconds = max(end - time.monotonic() - START, LEAST)
    words = [
        sys.executable,
        "-m",
        "fedrepro",
        "bench",
        "--json",
        "--engine",
        engine,
        "--budget",
        f"{seconds:.1f}s",
    ]
    named = {name: getattr(sizes, name) for name in ("device", "model", "clients", "images", "batch", "epochs")}
    for name, value in (named | {"precision": sizes.precision}).items():
        words += [f"--{name}", str(value)]
    words += ["--scan", options.scan] if options.scan else []
    words += ["--profile"] if options.profile else []
    words += ["--part", "lead" if lead else "other"]
    nothing: dict[str, Any] = {"engines": {}, "left_out": [], "notes": []}
    try:
        limit = 1.25 * seconds + (60 if sizes.device == "cuda" else 12)
        done = subprocess.run(words, stdout=subprocess.PIPE, text=True, timeout=limit, check=False)
        answer: dict[str, Any] = json.loads((done.stdout.splitlines() or [""])[-1])
        return answer
    except subprocess.TimeoutExpired:
        return nothing | {"failed": [f"{engine}: hangs, stopped after {limit:.0f} s"]}
    except json.JSONDecodeError:
        return nothing | {"failed": [f"{engine}: its process ended with status {done.returncode}"]}


def describe(sizes: Sizes) -> dict[str, Any]:
    """Return what is measured, where and with what, and the network's floor."""
    automatic, why = choice(sizes)
    facts = dataclasses.asdict(sizes) | provenance(sizes.device) | {"automatic": automatic, "why": why}
    facts["allocator"] = {name: value for name, value in os.environ.items() if name.startswith("MALLOC_")}
    world = Bench(sizes, "plain").world(1, 2, 2)
    return facts | {"floor": dataclasses.asdict(floor(world.architecture, world))}


def bench(options: argparse.Namespace) -> dict[str, Any]:
    """Measure what the options of the command line ask for; returns plain values, see `bench_report.headline`."""
    begun = time.monotonic()
    device = choose_device(options.device)
    if device == "cpu":
        spare_threads()
    sizes = sizes_of(options, device)
    budget = options.budget or (180.0 if device == "cuda" else 35.0)
    engines, skipped = engines_of(options.engine, sizes)
    found: dict[str, Any] = {"engines": {}, "skipped": skipped, "failed": [], "left_out": [], "notes": []}
    if options.engine not in ("", "all"):
        found["failed"] = [f"{name}: {why}" for name, why in skipped.items()]
    roof: Roofline | None = None
    if not options.part:
        say(f"roofline of {device} in {sizes.precision}")
        roof = measure(device, sizes.precision, seconds=min(0.05 * budget, 3.0))
        if device == "cuda":
            torch.cuda.empty_cache()  # for the engines' own processes
    facts = describe(sizes)
    for place, engine in enumerate(engines):
        lead, left = place == 0, begun + budget - time.monotonic()
        share = (1.5 if lead else 1.0) / (len(engines) - place + 0.5 * lead)  # the leading one plays rounds, too
        until = time.monotonic() + min(share, 1.0) * left
        if len(engines) > 1:
            answer = alone(engine, sizes, options, until, lead=lead)
            found["engines"][engine] = answer["engines"].get(engine, {})
            for name in ("failed", "left_out", "notes"):
                found[name] += answer[name]
        else:
            session = Session(engine, sizes, until)
            with contextlib.redirect_stdout(sys.stderr):
                found["engines"][engine] = session.run(
                    scan=options.scan, round=options.part != "other", profile=options.profile
                )
            for name in ("failed", "left_out", "notes"):
                found[name] += getattr(session, name)
    if roof is None:
        return found
    facts |= {"budget_s": budget, "roofline": dataclasses.asdict(roof)}
    facts["seconds"] = time.monotonic() - begun
    return bench_report.headline(facts | found)


def command(options: argparse.Namespace) -> int:
    """Measure, print and write; returns 0 if every engine's training was measured and nothing failed.

    What the budget left out is told, but is no failure: a budget is there to be kept.
    """
    facts = bench(options)
    if options.json or options.part:
        print(json.dumps(facts))
    else:
        print(bench_report.table(facts))
    if options.out:
        for path in bench_report.write(options.out, facts):
            say(f"wrote {path}")
    for text in facts["failed"] + facts["left_out"] + facts["notes"]:
        say(text)
    measured = all(bench_report.RATES[0] in result for result in facts["engines"].values())
    return 0 if measured and not facts["failed"] else 1
