"""Sizes and timing of the benchmark: repeats of work that adapts to a first timing, medians and spread."""

import argparse
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

DISTILL_BATCH = 128  # FedBE 5.1
Call = Callable[[], object]


class LeftOutError(RuntimeError):
    """A measurement that does not fit into the time that is left."""


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """What is measured: S clients with N images each, batches, epochs of one call; public images, teachers M."""

    device: str
    model: str
    precision: str
    clients: int
    images: int
    batch: int
    epochs: int
    public: int
    teachers: int

    @property
    def repeats(self) -> int:
        """The least number of timed repeats."""
        return 5 if self.device == "cuda" else 3


def sizes_of(options: argparse.Namespace, device: str) -> Sizes:
    """Return what to measure: the options, else the paper's sizes on CUDA and small ones on a CPU."""
    cuda = device == "cuda"
    clients = options.clients or (10 if cuda else 4)
    return Sizes(
        device=device,
        model=options.model,
        precision=options.precision or precision_of(device),
        clients=clients,
        images=options.images or (4000 if cuda else 400),
        batch=options.batch,
        epochs=options.epochs or (5 if cuda else 1),
        public=10_000 if cuda else 400,
        teachers=clients + 11 if cuda else 4,  # FedBE's: clients, their average, 10 samples
    )


def precision_of(device: str) -> str:
    """Return the precision that a device is made for: "bfloat16" where it has it, else "float32"."""
    if device == "cuda":
        return "bfloat16" if torch.cuda.is_bf16_supported(including_emulation=False) else "float32"
    flags = Path("/proc/cpuinfo")
    known = flags.read_text().split() if flags.exists() else []
    return "bfloat16" if "avx512_bf16" in known or "amx_bf16" in known else "float32"


@dataclass(frozen=True)
class Work:
    """What is timed, step by step.

    images: of one step, those of all clients or teachers together; steps: of one repeat if time allows; prepare:
    makes data and batches of so many steps, and returns the call that is timed.
    """

    images: int
    steps: int
    prepare: Callable[[int], Call]


@dataclass(frozen=True)
class Series:
    """Repeats of one measurement: median, smallest and largest, and how many.

    images: images of one repeat, those of all clients or teachers; first_call_s: the first call of all, a single
    step with whatever it loads or compiles; warm_up_s: on CUDA the first call of full size, which may capture.
    """

    value: float
    min: float
    max: float
    repeats: int
    images: int = 0
    first_call_s: float = 0.0
    warm_up_s: float = 0.0

    @classmethod
    def of(cls, values: list[float], images: int = 0, first: float = 0.0, warm: float = 0.0) -> "Series":
        """Summarise the values of single repeats."""
        return cls(statistics.median(values), min(values), max(values), len(values), images, first, warm)


def seconds_of(call: Call, device: str) -> float:
    """Return the wall time of a call, the device's work included."""
    begun = _now(device)
    call()
    return _now(device) - begun


def _now(device: str) -> float:
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def repeated(prepare: Callable[[], Call], *, repeats: int, left: float, device: str) -> list[float]:
    """Time the same work again and again, at least twice, while it fits into `left` seconds.

    Returns:
        The seconds of the first call, which warms up, and of at most so many repeats.
    """
    end = time.perf_counter() + left
    found: list[float] = []
    while len(found) <= repeats and (len(found) < 2 or time.perf_counter() + found[-1] < end):
        found.append(seconds_of(prepare(), device))
    return found


def rate(work: Work, *, seconds: float, left: float, repeats: int, device: str) -> Series:
    """Measure images/s, fitting the steps of a repeat into the time given.

    Args:
        work: what is timed.
        seconds: how long the measurement should take.
        left: how long it may take; then the repeats end early, but for the first.
        repeats: timed repeats.
        device: "cpu" or "cuda".

    Raises:
        LeftOutError: if even single steps would take longer than `left`.
    """
    begun, cuda = time.perf_counter(), device == "cuda"
    first, step = (seconds_of(work.prepare(1), device) for _ in range(2))
    gone = time.perf_counter() - begun
    if step > left - gone:
        raise LeftOutError(f"repeats of {step:.2g} s do not fit into {max(left - gone, 0):.2g} s")
    steps = max(1, min(work.steps, int((seconds - gone) / (repeats + cuda) / step)))
    # On CUDA an engine may capture work of this size in its first call.
    warm = seconds_of(work.prepare(steps), device) if cuda and steps > 1 else 0.0
    values: list[float] = []
    while len(values) < repeats and (not values or time.perf_counter() - begun < left):
        took = seconds_of(work.prepare(steps), device)
        values.append(steps * work.images / took)
        room = (left - (time.perf_counter() - begun)) / max(repeats - len(values), 1)
        if took > room:  # another job came in between
            steps = max(1, int(steps * room / took))
    return Series.of(values, steps * work.images, first, warm)


def spare_threads() -> None:
    """Take one thread instead of several where that is faster: other jobs hold the cores, and threads would wait.

    A number of threads set by OMP_NUM_THREADS stays.
    """
    many = torch.get_num_threads()
    if "OMP_NUM_THREADS" in os.environ or many == 1:
        return
    layer, x = torch.nn.Conv2d(16, 16, 3, padding=1), torch.randn(40, 16, 32, 32)

    def ten_steps() -> Call:
        layer(x).sum().backward()  # the first call starts the threads
        return lambda: [layer(x).sum().backward() for _ in range(10)]

    several = seconds_of(ten_steps(), "cpu")
    torch.set_num_threads(1)
    if several < seconds_of(ten_steps(), "cpu"):
        torch.set_num_threads(many)
