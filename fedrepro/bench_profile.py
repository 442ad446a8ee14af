"""Where the time of a training step goes, by kind of operation, from torch's profiler."""

import re
from collections.abc import Callable
from typing import Any

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity

from fedrepro.bench_timing import seconds_of

KINDS = {  # of an operator on the CPU, or of a kernel on CUDA; the first that matches counts
    "norms": re.compile(r"(batch|group|layer)_?norm|(^|[^a-z])(bn|norm)_", re.IGNORECASE),
    "products": re.compile(r"conv|gemm|addmm|aten::(bmm|mm|linear)$|cutlass|wgrad|dgrad|implicit", re.IGNORECASE),
    "activations": re.compile(r"relu|clamp_min|threshold", re.IGNORECASE),
}


def kind(name: str) -> str:
    """Return what kind of work an operator or a kernel does: "products" are convolutions and linear layers."""
    return next((kind for kind, pattern in KINDS.items() if pattern.search(name)), "others")


def profile(call: Callable[[], object], device: str, steps: int) -> dict[str, float]:
    """Profile a call of several training steps.

    The call is first timed without the profiler, which slows small operations down.

    Args:
        call: does the steps; called five times.
        device: "cpu" or "cuda".
        steps: how many they are.

    Returns:
        Per step: `step_s`, its time; `<kind>_s`, that of each kind of operations; `idle_s`, what is left: on the
        CPU that of Python and torch's own book-keeping, on CUDA that of a device with nothing to do (0 if
        kernels run side by side and fill it); `launches`, how many operators or kernels ran.
    """
    call()
    step = min(seconds_of(call, device) for _ in range(3)) / steps
    cuda = device == "cuda"
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if cuda else [])]
    with torch.profiler.profile(activities=activities) as seen:
        seconds_of(call, device)
    found: dict[str, float] = {"step_s": step, "launches": 0.0}
    found |= {f"{name}_s": 0.0 for name in (*KINDS, "others")}
    for event in seen.key_averages():
        if not _works(event, cuda=cuda):
            continue
        spent = event.self_device_time_total if cuda else event.self_cpu_time_total
        found[f"{kind(event.key)}_s"] += spent / 1e6 / steps
        found["launches"] += event.count / steps
    busy = sum(found[f"{name}_s"] for name in (*KINDS, "others"))
    return found | {"idle_s": max(step - busy, 0.0)}


def _works(event: Any, *, cuda: bool) -> bool:
    if cuda:
        return event.device_type == DeviceType.CUDA
    return event.device_type == DeviceType.CPU and event.key.startswith("aten::")
