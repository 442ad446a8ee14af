"""Measuring one engine: one thing after the other in the time that is left, here or in a process of its own."""

import argparse
import dataclasses
import json
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from fedrepro.bench.engine import KINDS, SCANS, Bench
from fedrepro.bench.timing import LeftOutError, Sizes

SHARES = {"train": 0.35, "predict": 0.2, "distill": 0.35}  # of the time left
START = 5.0  # seconds that an engine's process takes to start, about
LEAST = 3.0  # seconds that it is given however little time is left
TOLD = ("failed", "left_out", "notes")  # lists of lines


def say(text: str) -> None:
    """Tell what is going on, apart from the answer."""
    print(f"bench: {text}", file=sys.stderr, flush=True)


def answer() -> dict[str, Any]:
    """Return an answer in which nothing was measured: "engines" {name: numbers}, and the lists of `TOLD`."""
    return {"engines": {}} | {name: [] for name in TOLD}


class Session:
    """Measurements of one engine; what fails is noted and the next one begins.

    Args:
        engine: name of a kernel.
        sizes: what is measured.
        end: value of `time.monotonic()` when its time is over.
    """

    def __init__(self, engine: str, sizes: Sizes, end: float) -> None:
        self.engine, self.sizes, self.end = engine, sizes, end
        self.bench = Bench(sizes, engine)
        self.answer = answer()

    def attempt(self, name: str, share: float, work: Callable[[float, float], Any], told: str = "left_out") -> Any:
        """Do one piece of work in a share (0 to 1) of the time left; None if it failed or was left out.

        It is called with the seconds that it should take and those that it may take.
        """
        left = self.end - time.monotonic()
        say(f"{self.engine}: {name} ({left:.0f} s left)")
        try:
            if left <= 0:
                raise LeftOutError("the budget is spent")
            return work(share * left, min(1.6 * share, 1.0) * left)
        except LeftOutError as error:
            self.answer[told].append(f"{self.engine} {name} left out: {error}")
        except Exception as error:  # whatever an engine does, the next one is measured
            first = (str(error).strip() or "no message").splitlines()[0]
            self.answer["failed"].append(f"{self.engine} {name}: {type(error).__name__}: {first}")
            say(self.answer["failed"][-1])
            if isinstance(error, torch.cuda.OutOfMemoryError):
                torch.cuda.empty_cache()
        return None

    def run(self, *, scan: str | None, round: bool, profile: bool = False) -> dict[str, Any]:
        """Measure everything; returns the answer, see `answer`."""
        bench, cuda, repeats = self.bench, self.sizes.device == "cuda", self.sizes.repeats
        result = self.answer["engines"].setdefault(self.engine, {})
        scale, costs = 0.5 if scan else 1.0, {}
        if cuda:
            torch.cuda.reset_peak_memory_stats()
        for kind in KINDS:
            series = self.attempt(kind, SHARES[kind] * scale, partial(bench.rate, kind))
            if series is not None:
                result[f"{kind}_images_per_s"] = dataclasses.asdict(series)
                costs[kind] = 1 / series.value
                if series.repeats < repeats:
                    few = f"{self.engine} {kind}: only {series.repeats} of {repeats} repeats"
                    self.answer["notes"].append(few)
        result["peak_memory_bytes"] = torch.cuda.max_memory_allocated() if cuda else resident()
        result |= self.attempt("difference", 1.0, lambda *_: bench.difference()) or {}
        if profile:
            result["profile"] = self.attempt("profile", 1.0, lambda *_: bench.profile()) or {}
        if round and len(costs) == len(KINDS):
            played = self.attempt("round", scale, lambda seconds, _: bench.round(seconds, costs), "notes")
            result |= {"round": played} if played else {}
        if scan:
            values = SCANS[scan]
            shares = (1 / (len(values) - place) for place in range(len(values)))
            points = [
                self.attempt(f"{scan} {value}", share, partial(bench.scan, scan, value))
                for value, share in zip(values, shares)
            ]
            result["scan"] = [point for point in points if point]
        return self.answer


def resident() -> int:
    """Return the largest resident memory of this process so far in bytes; 0 where the system does not tell."""
    try:
        import resource
    except ImportError:  # Windows
        return 0
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def alone(engine: str, sizes: Sizes, options: argparse.Namespace, end: float, *, lead: bool) -> dict[str, Any]:
    """Measure one engine in a process of its own; returns its answer, see `answer`."""
    seconds = max(end - time.monotonic() - START, LEAST)
    limit = 1.25 * seconds + (60 if sizes.device == "cuda" else 12)
    names = ("device", "model", "clients", "images", "batch", "epochs", "precision")
    given = {"engine": engine, "budget": f"{seconds:.1f}s", "part": "lead" if lead else "other"}
    given |= {name: getattr(sizes, name) for name in names} | ({"scan": options.scan} if options.scan else {})
    words = [f"--{name}={value}" for name, value in given.items()] + ["--profile"] * options.profile
    command = [sys.executable, "-m", "fedrepro", "bench", *words]
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=limit, check=False)
        found: dict[str, Any] = json.loads((done.stdout.splitlines() or [""])[-1])
        return found
    except subprocess.TimeoutExpired:
        return answer() | {"failed": [f"{engine}: hangs, stopped after {limit:.0f} s"]}
    except json.JSONDecodeError:
        return answer() | {"failed": [f"{engine}: its process ended with status {done.returncode}"]}
