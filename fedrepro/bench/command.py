"""`fedrepro bench`: measure engines side by side and say what the machine could do at best.

Each engine is measured in a process of its own when there are several, so that one that crashes, hangs or spoils
the device takes nothing else with it. Time is divided among the measurements as it is left.
"""

import argparse
import contextlib
import dataclasses
import json
import os
import sys
import time
from typing import Any

import torch

from fedrepro.bench import report as bench_report
from fedrepro.bench.engine import CLASSES, CLIENT, Bench, reason
from fedrepro.bench.roofline import floor, measure
from fedrepro.bench.session import TOLD, Session, alone, answer, say
from fedrepro.bench.timing import Sizes, sizes_of, spare_threads
from fedrepro.core.names import nearest
from fedrepro.kernels import stacked
from fedrepro.kernels.registry import KERNELS, LAZY
from fedrepro.models import NAMES
from fedrepro.models.architecture import Architecture
from fedrepro.runs.machine import choose_device, provenance


def choice(sizes: Sizes) -> stacked.Choice:
    """Return the engine that is chosen automatically, and why."""
    return stacked.choose(Architecture(sizes.model, CLASSES), torch.device(sizes.device), sizes.precision, CLIENT)


def engines_of(text: str, sizes: Sizes) -> tuple[list[str], dict[str, str]]:
    """Return the engines to measure, the leading one first, and those that cannot be, with the reason."""
    lead = choice(sizes).engine
    if text == "all":
        names = [lead, *(name for name in (*KERNELS, *LAZY) if name != "stacked")]
    else:
        names = [name.strip() for name in text.split(",") if name.strip()] or [lead, "plain"]
    why = {name: reason(name, sizes, sizes.precision) for name in dict.fromkeys(names)}
    return [name for name in why if not why[name]], {name: text for name, text in why.items() if text}


def describe(sizes: Sizes) -> dict[str, Any]:
    """Return what is measured, where and with what, and the network's floor."""
    automatic = choice(sizes)
    facts = dataclasses.asdict(sizes) | provenance(sizes.device)
    facts |= {"automatic": automatic.engine, "why": automatic.why}
    facts["allocator"] = {name: value for name, value in os.environ.items() if name.startswith("MALLOC_")}
    world = Bench(sizes, "plain").world(1, 2, 2)
    return facts | {"floor": dataclasses.asdict(floor(world.architecture, world))}


def bench(options: argparse.Namespace) -> dict[str, Any]:
    """Measure what the options of the command line ask for; returns plain values.

    They are those of `bench_report.headline`, or `session.answer` in a process that is one part of a benchmark.
    """
    begun = time.monotonic()
    if options.model not in NAMES:
        raise ValueError(f"unknown model {options.model!r}{nearest(options.model, NAMES)}")
    device = choose_device(options.device)
    if device == "cpu":
        spare_threads()
    sizes = sizes_of(options, device)
    budget = options.budget or (180.0 if device == "cuda" else 35.0)
    engines, skipped = engines_of(options.engine, sizes)
    found = answer() | {"skipped": skipped}
    if options.engine not in ("", "all"):
        found["failed"] = [f"{name}: {why}" for name, why in skipped.items()]
    facts = {}
    if not options.part:
        say(f"roofline of {device} in {sizes.precision}")
        roof = measure(device, sizes.precision, seconds=min(0.05 * budget, 3.0))
        if device == "cuda":
            torch.cuda.empty_cache()  # for the engines' own processes
        facts = describe(sizes) | {"budget_s": budget, "roofline": dataclasses.asdict(roof)}
    for place, engine in enumerate(engines):
        lead, left = place == 0, begun + budget - time.monotonic()
        share = (1.5 if lead else 1.0) / (len(engines) - place + 0.5 * lead)  # the leading one plays rounds, too
        end = time.monotonic() + min(share, 1.0) * left
        if len(engines) > 1:
            part = alone(engine, sizes, options, end, lead=lead)
        else:
            with contextlib.redirect_stdout(sys.stderr):
                session, rounds = Session(engine, sizes, end), options.part != "other"
                part = session.run(scan=options.scan, round=rounds, profile=options.profile)
        found["engines"][engine] = part["engines"].get(engine, {})
        for name in TOLD:
            found[name] += part[name]
    if options.part:
        return found
    return bench_report.headline(facts | found | {"seconds": time.monotonic() - begun})


def command(options: argparse.Namespace) -> int:
    """Measure, print and write; returns 0 if every engine's training was measured and nothing failed.

    What the budget left out is told, but is no failure: a budget is there to be kept.
    """
    facts = bench(options)
    print(json.dumps(facts) if options.json or options.part else bench_report.table(facts))
    if options.out:
        for path in bench_report.write(options.out, facts):
            say(f"wrote {path}")
    for text in (text for name in TOLD for text in facts[name]):
        say(text)
    measured = all(bench_report.RATES["train"] in result for result in facts["engines"].values())
    return 0 if measured and not facts["failed"] else 1
