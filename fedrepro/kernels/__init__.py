"""Kernels: everything that trains or runs networks. `plain` is the reference that others must agree with."""

from types import ModuleType

from fedrepro.kernels import plain

KERNELS: dict[str, ModuleType] = {"plain": plain}


def kernel(name: str) -> ModuleType:
    """Return a kernel by name; raises ValueError for an unknown one."""
    if name not in KERNELS:
        raise ValueError(f"kernel must be one of {sorted(KERNELS)}, got {name!r}")
    return KERNELS[name]
