"""How long a round will take, from the records of like runs: before the first one has been played."""

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from fedrepro.core.state import State
from fedrepro.federation.federation import Federation
from fedrepro.runs.request import Run
from fedrepro.runs.store import Store

Kind = tuple[Any, ...]
PROBED = 32  # images that are predicted to see how fast a network is
LOOKED_AT = 300  # records of the store, the newest ones
# What the seconds of a round depend on most; the rest is taken to scale with the images that pass.
ALIKE = ("model", "method", "precision")


def _kind(values: Mapping[str, Any]) -> Kind:
    return tuple(values.get(name) for name in ALIKE)


def work(setting: Mapping[str, Any]) -> float:
    """Return about how many images pass through the network in a round, each pass forward counted once."""

    def of(name: str) -> float:
        value = setting.get(name, 0)
        return float(value) if isinstance(value, int | float) else 0.0

    own = of("client_images") or of("clients") * (
        of("major_classes") * of("major_images") + (10 - of("major_classes")) * of("minor_images")
    )
    passes = 3.0 * own * of("participation") * max(1.0, of("local_epochs"))  # backward is two of forward
    distils = setting.get("method") not in ("fedavg", "fedprox", "scaffold", "centralized")
    members = of("clients") + of("samples") + 1.0
    if distils:
        passes += of("public_images") * (3.0 * of("distill_epochs") + members)
    return max(1.0, passes + of("test_images") * (members if distils else 2.0))


def forward_seconds(federation: Federation, state: State) -> float:
    """Return the seconds that a test image needs to pass through a model, by a look at a few; 0 on a GPU.

    A GPU is not asked: the first call records or compiles, which says nothing about the others.
    """
    world = federation.worlds[0]
    few = world.test.subset(torch.arange(min(PROBED, len(world.test))))
    if federation.device.type != "cpu" or not len(few):
        return 0.0
    one = state.models.take(slice(0, 1))
    world.predict(one, few)  # the first call is slower than the others
    begun = time.perf_counter()
    world.predict(one, few)
    return (time.perf_counter() - begun) / len(few)


def _age(path: Path) -> float:
    try:
        return -path.stat().st_mtime
    except OSError:  # removed meanwhile
        return 0.0


class Expected:
    """The longest round of each kind of run so far, and of those whose records the store holds."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._longest: dict[Kind, float] = {}  # in this process, of the same work
        self._rates: dict[Kind, float] | None = None  # seconds for a pass, of earlier ones

    def seconds(self, run: Run) -> float:
        """Return the seconds that a round of a run is thought to take; 0 where nothing is known."""
        values = run.setting.asdict()
        if found := self._longest.get((*_kind(values), work(values))):
            return found
        if self._rates is None:
            self._rates = self._look()
        return self._rates.get(_kind(values), 0.0) * work(values)

    def learn(self, run: Run, record: Mapping[str, Any] | None) -> None:
        """Take note of the record of a run that is done."""
        if record is not None:
            values = run.setting.asdict()
            kind = (*_kind(values), work(values))
            slowest = max(row["seconds"] for row in record["rows"])
            self._longest[kind] = max(slowest, self._longest.get(kind, 0.0))

    def _look(self) -> dict[Kind, float]:
        rates: dict[Kind, float] = {}
        paths = sorted(self._store.root.glob("*/record.json"), key=_age)
        for path in paths[:LOOKED_AT]:
            try:
                record = json.loads(path.read_bytes())
                values = record["setting"]
                rate = max(row["seconds"] for row in record["rows"]) / work(values)
                rates[_kind(values)] = max(rate, rates.get(_kind(values), 0.0))
            except (OSError, ValueError, KeyError, TypeError, AttributeError):  # told when that run is asked for
                continue
        return rates
