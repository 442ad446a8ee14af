"""Seconds of runs: their images over the images/s of networks, measured here and recorded elsewhere."""

import contextlib
import json
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from fedrepro.bench.cost import Images, images
from fedrepro.bench.engine import CLASSES, CLIENT, KINDS, Bench
from fedrepro.bench.report import read
from fedrepro.bench.timing import LeftOutError, Sizes
from fedrepro.core import paths
from fedrepro.core.files import StoreError, write_atomically
from fedrepro.core.setting import Setting
from fedrepro.kernels import stacked
from fedrepro.models.architecture import Architecture
from fedrepro.runs.machine import provenance

Known = dict[str, float]  # images/s of each of `KINDS`
WORK = 2  # raised when another work is measured, so that rates of before are not taken
SECONDS, MOST = 0.4, 3.0  # that a measurement should take, and may take but for its first steps


@dataclass
class Rates:
    """Images/s of this machine: some seconds for each network and precision, kept until the machine is another.

    machine: device, threads and torch, with which the rates were measured. `measure` is called for a device, a
    network and a precision of which nothing is known.
    """

    device: str
    machine: dict[str, Any]
    path: Path
    known: dict[str, Known] = field(default_factory=dict)
    measure: Callable[[str, str, str], Known] = field(default_factory=lambda: measured)
    failed: set[str] = field(default_factory=set)

    @classmethod
    def here(cls, device: str, path: Path | None = None) -> "Rates":
        """Return what is known of this machine; rates of another one, or by another torch, are not taken."""
        where = provenance(device)
        machine = {name: where[name] for name in ("device", "threads", "torch")} | {"work": WORK}
        found = cls(device, machine, path or paths.results_folder() / "rates.json")
        with contextlib.suppress(OSError, ValueError, LookupError, AttributeError, TypeError):
            kept = json.loads(found.path.read_text("utf-8"))
            if kept["machine"] == machine:
                found.known = {
                    name: {kind: float(rates[kind]) for kind in KINDS} for name, rates in kept["rates"].items()
                }
        return found

    def of(self, model: str, precision: str) -> Known:
        """Return the rates of a network, measuring them where they are not known; NaN where that fails."""
        name = f"{model}, {precision}"
        if name not in self.known and name not in self.failed:
            print(f"measuring {name}", file=sys.stderr, flush=True)
            try:
                self.known[name] = self.measure(self.device, model, precision)
            except Exception as error:  # whatever a network does, the others have a cost
                print(f"not measured: {name}: {error}", file=sys.stderr)
                self.failed.add(name)
            else:
                self._write()
        return self.known.get(name, dict.fromkeys(KINDS, math.nan))

    def _write(self) -> None:
        """Keep what is known; where nothing can be written it is measured anew the next time."""
        date = datetime.now(UTC).strftime("%Y-%m-%d")
        content = {"machine": self.machine, "date": date, "rates": self.known}
        with contextlib.suppress(StoreError):
            write_atomically(self.path, (json.dumps(content, indent=1, sort_keys=True) + "\n").encode())

    def seconds(self, setting: Setting) -> float:
        """Return the seconds of a run on this machine; inf where its network cannot be measured."""
        rates = [self.of(model, setting.precision) for model in setting.model.split("+")]
        found = seconds(images(setting), rates)
        return math.inf if math.isnan(found) else found


def seconds(work: Images, rates: list[Known]) -> float:
    """Return the seconds of work dealt out equally to networks with these rates; NaN where a rate is missing."""
    parts = dict(zip(KINDS, (work.clients, work.predicted, work.students)))
    return sum(
        count / len(rates) / rate.get(kind, math.nan) for rate in rates for kind, count in parts.items() if count
    )


def measured(device: str, model: str, precision: str) -> Known:
    """Measure the images/s of a network on a device, in a few seconds."""
    cuda = device == "cuda"
    clients = 10 if cuda else max(2, torch.get_num_threads())
    sizes = Sizes(
        device=device,
        model=model,
        precision=precision,
        clients=clients,
        images=1000 if cuda else 400,
        batch=40,  # FedBE's of a client; its student's is 128. Smaller ones are slower, on a CPU to less than half
        epochs=1,
        public=2000 if cuda else 128,
        teachers=clients,
    )
    chosen = stacked.choose(Architecture(model, CLASSES), torch.device(device), precision, CLIENT)
    bench, found = Bench(sizes, chosen.engine), {}
    for kind in KINDS:
        try:
            found[kind] = bench.rate(kind, SECONDS, MOST).value
        except LeftOutError:  # other work on this machine held up the first steps
            found[kind] = bench.rate(kind, SECONDS, 10 * MOST).value
    return found


def recorded(throughput: Path) -> dict[str, dict[str, Known]]:
    """Return the rates of recorded devices, device with precision -> network -> rates, the fastest of each.

    Args:
        throughput: a file of `fedrepro bench`; without it nothing is recorded.
    """
    if not throughput.exists():
        return {}
    table = read(throughput)
    table = table[table["metric"].isin([f"{kind}_images_per_s" for kind in KINDS])]
    found: dict[str, dict[str, Known]] = {}
    for line in table.to_dict("records"):
        networks = found.setdefault(f"{line['device']}, {line['precision']}", {})
        rates, kind = networks.setdefault(line["model"], {}), line["metric"].removesuffix("_images_per_s")
        rates[kind] = max(float(line["value"]), rates.get(kind, 0.0))
    return found
