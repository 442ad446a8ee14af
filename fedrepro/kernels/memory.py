"""Freed memory on the CPU: kept by the process, so that a step does not fetch the same pages again and again."""

import ctypes
import os
import platform
from functools import lru_cache

# Numbers of glibc's mallopt(3).
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3
_NEVER, _AHEAD = (1 << 31) - 1, 256 << 20  # bytes; glibc takes an int


@lru_cache(maxsize=1)
def keep_freed_memory() -> str:
    """Ask glibc to keep freed memory for the next step instead of giving it back to the system.

    A training step allocates and frees its activations anew. glibc maps each large one afresh, and the system
    then fills its pages with zeros at first touch, which can take half as long as the step itself. The process
    holds on to the most memory that it ever used. Nothing is changed where an environment variable of glibc's
    (MALLOC_..., GLIBC_TUNABLES) or LD_PRELOAD shows that the user has made a choice.

    Returns:
        What was done, or why nothing was, in a few words for people.
    """
    chosen = [name for name in os.environ if name.startswith(("MALLOC_", "GLIBC_TUNABLES", "LD_PRELOAD"))]
    if chosen:
        return f"memory as {', '.join(sorted(chosen))} says"
    if platform.libc_ver()[0] != "glibc":
        return "memory left to the system, which has no glibc"
    mallopt = ctypes.CDLL(None).mallopt
    for option, value in ((_MMAP_THRESHOLD, 1 << 30), (_TRIM_THRESHOLD, _NEVER), (_TOP_PAD, _AHEAD)):
        # Where a glibc refuses a gigabyte, 32 MiB is the most it takes.
        if not mallopt(option, value) and not mallopt(option, 32 << 20):
            return "memory left to the system, whose glibc took no options"
    return "freed memory kept"
