"""The register of kernels by name. `plain` is the reference that all others must agree with."""

import importlib
from types import ModuleType

from fedrepro.kernels import plain, stacked, threads
from fedrepro.kernels.graph import graph

KERNELS: dict[str, ModuleType] = {
    "plain": plain,
    "threads": threads,
    "graph": graph,
    "stacked": stacked,
}
# Imported when asked for: it needs Triton, which torch brings along on Linux with CUDA only.
LAZY: dict[str, str] = {"fused": "fedrepro.kernels.fused"}


def kernel(name: str) -> ModuleType:
    """Return a kernel by name; raises ValueError for an unknown one, and for one that cannot be imported."""
    if name in KERNELS:
        return KERNELS[name]
    if name not in LAZY:
        raise ValueError(f"kernel must be one of {[*KERNELS, *LAZY]}, got {name!r}")
    try:
        importlib.import_module("triton")
        return importlib.import_module(LAZY[name])
    except ImportError as error:
        raise ValueError(f"kernel {name!r} needs Triton, which cannot be imported: {error}") from error
