"""The stacked kernel: takes the fastest kernel that can do a piece of work on a device."""

import importlib
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from fedrepro.core.stack import Stack
from fedrepro.data.data import Data
from fedrepro.kernels import plain, threads
from fedrepro.kernels.batches import BatchPlan
from fedrepro.kernels.cores import heed_quota
from fedrepro.kernels.graph import graph
from fedrepro.kernels.memory import keep_freed_memory
from fedrepro.kernels.step import Step
from fedrepro.kernels.trained import Trained
from fedrepro.models.architecture import Architecture


@dataclass(frozen=True)
class Choice:
    """The kernel that runs, "fused", "graph", "threads" or "plain", and the reason in one line."""

    engine: str
    why: str

    def __str__(self) -> str:
        """Return the choice in one line."""
        return f"{self.engine}: {self.why}"


def fused() -> ModuleType | None:
    """Return the fused kernel, or None where it cannot be imported (it needs Triton)."""
    try:
        importlib.import_module("triton")  # which the kernel itself may put off
        return importlib.import_module("fedrepro.kernels.fused")
    except ImportError:
        return None


def takes(
    architecture: Architecture,
    device: torch.device,
    precision: str,
    step: Step | None = None,
    data: Data | None = None,
) -> str:
    """Return "" where any kernel can do the work, otherwise why `plain`, which can do the most, cannot."""
    return plain.takes(architecture, device, precision, step, data)


def choose(
    architecture: Architecture,
    device: torch.device,
    precision: str,
    step: Step | None = None,
    data: Data | None = None,
) -> Choice:
    """Return which kernel does a piece of work, and why; the arguments are those of `kernels.plain.takes`.

    The kernels are asked in order of their speed. Without `step` and `data` it is the one that a network has as a
    rule: unusual steps or images may need another.
    """
    asked = (architecture, device, precision, step, data)
    if device.type != "cuda":
        heed_quota()
        memory = keep_freed_memory()
        against = threads.takes(*asked) or threads.not_worth(architecture)
        if not against:
            return Choice("threads", f"members side by side on {torch.get_num_threads()} cores; {memory}")
        return Choice("plain", f"one model at a time: {against}; {memory}")
    module = fused()
    against = "it needs Triton" if module is None else module.takes(*asked)
    if not against:
        return Choice("fused", "kernels of its own for this network, all members in one launch")
    lacking = graph.takes(*asked)
    if not lacking:
        return Choice("graph", f"recorded steps, members side by side; not fused: {against}")
    return Choice("plain", f"one model at a time; not graph: {lacking}")


def _engine(
    architecture: Architecture, device: torch.device, precision: str, data: Data, step: Step | None = None
) -> ModuleType:
    choice = choose(architecture, device, precision, step, data)
    if choice.engine == "plain" and device.type == "cuda":
        _say(architecture, choice.why)
    modules: dict[str, ModuleType] = {"plain": plain, "threads": threads, "graph": graph}
    return modules.get(choice.engine) or importlib.import_module("fedrepro.kernels.fused")


@lru_cache(maxsize=256)
def _say(architecture: Architecture, why: str) -> None:
    warnings.warn(f"{architecture.name} trains slowly: {why}", RuntimeWarning, stacklevel=4)


def train(
    architecture: Architecture,
    start: Stack,
    data: Data,
    targets: Sequence[Tensor],
    plan: BatchPlan,
    step: Step,
    rates: Tensor,
    *,
    precision: str = "float32",
    **options: Any,
) -> Trained:
    """Train every member of a stack on its own batches; see `kernels.plain.train`."""
    engine = _engine(architecture, start.params.device, precision, data, step)
    trained: Trained = engine.train(
        architecture, start, data, targets, plan, step, rates, precision=precision, **options
    )
    return trained


def predict(
    architecture: Architecture, stack: Stack, data: Data, *, precision: str = "float32", **options: Any
) -> Tensor:
    """Return logits [M, N, C] of every member; see `kernels.plain.predict`."""
    engine = _engine(architecture, stack.params.device, precision, data)
    logits: Tensor = engine.predict(architecture, stack, data, precision=precision, **options)
    return logits


def recalibrate(
    architecture: Architecture, stack: Stack, data: Data, *, precision: str = "float32", **options: Any
) -> Stack:
    """Recompute the BatchNorm statistics of every member; see `kernels.plain.recalibrate`."""
    engine = _engine(architecture, stack.params.device, precision, data)
    fresh: Stack = engine.recalibrate(architecture, stack, data, precision=precision, **options)
    return fresh
