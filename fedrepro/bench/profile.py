"""Where the time of a training step goes, by kind of operation, from torch's profiler."""

import math
import re
from collections.abc import Iterable
from typing import Any

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity

from fedrepro.bench.timing import Call, seconds_of

KINDS = {  # of an operator on the CPU, or of a kernel on CUDA; the first that matches counts
    "norms": re.compile(r"(batch|group|layer)_?norm|(^|[^a-z])(bn|norm)_", re.IGNORECASE),
    "products": re.compile(
        r"conv(?!ert)|winograd|gemm|nvjet|addmm|aten::(bmm|mm|linear)$|cutlass|wgrad|dgrad|implicit", re.IGNORECASE
    ),
    "activations": re.compile(r"relu|clamp|threshold", re.IGNORECASE),
}


def kind(name: str) -> str:
    """Return what kind of work an operator or a kernel does: "products" are convolutions and linear layers."""
    return next((kind for kind, pattern in KINDS.items() if pattern.search(name)), "others")


def profile(call: Call, device: str, steps: int) -> dict[str, float]:
    """Profile a call of several training steps.

    The call is first timed without the profiler, which slows small operations down; the profile gives the shares.

    Args:
        call: does the steps; called five times.
        device: "cpu" or "cuda".
        steps: how many they are.

    Returns:
        Per step: `step_s`, its time without the profiler; `<kind>_s`, the part of it that each kind of operations
        takes; `idle_s`, what is left: on the CPU the time of Python and torch's own book-keeping, on CUDA the time
        in which no kernel runs; `calls`, operators called on the CPU, those within others as well, or kernels
        launched. On CUDA kernels may run side by side, so that the kinds together may take longer than the step.
    """
    cuda = device == "cuda"
    call()
    step = min(seconds_of(call, device) for _ in range(3)) / steps
    with torch.profiler.profile(activities=[ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * cuda) as seen:
        whole = seconds_of(call, device)
    spent, calls = dict.fromkeys((*KINDS, "others"), 0.0), 0
    for event in seen.key_averages():
        if _works(event, cuda=cuda):
            spent[kind(event.key)] += (event.self_device_time_total if cuda else event.self_cpu_time_total) / 1e6
            calls += event.count
    ranges = (event.time_range for event in seen.events() if cuda and _works(event, cuda=cuda))
    busy = covered((r.start, r.end) for r in ranges) / 1e6 if cuda else sum(spent.values())
    kinds = {f"{name}_s": step * seconds / whole for name, seconds in spent.items()}
    return {"step_s": step, "calls": calls / steps} | kinds | {"idle_s": step * (1 - busy / whole)}


def covered(ranges: Iterable[tuple[float, float]]) -> float:
    """Return the length of the union of ranges (start, end)."""
    total, reached = 0.0, -math.inf
    for start, end in sorted(ranges):
        total += max(end - max(start, reached), 0.0)
        reached = max(reached, end)
    return total


def _works(event: Any, *, cuda: bool) -> bool:
    """Return whether an event is an operator's or, on CUDA, a kernel's; annotations span several of them."""
    if cuda:
        return event.device_type == DeviceType.CUDA and not getattr(event, "is_user_annotation", False)
    return event.device_type == DeviceType.CPU and event.key.startswith("aten::")
