"""How many cores this process may use: what a container or an affinity mask leaves of the machine's."""

import math
import os
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

import torch

CHOSEN = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")  # variables by which a user chooses
_FIRST = torch.get_num_threads()  # before anybody can have chosen another number through this module's users


def cpu_quota(own: Path = Path("/proc/self/cgroup"), root: Path = Path("/sys/fs/cgroup")) -> float:
    """Return the CPU time per time that the cgroups of this process allow, infinity for no limit.

    Both versions of cgroups are looked at, and all groups from the process's own one up: the least counts.

    Args:
        own: the list of the process's groups, lines of "number:controllers:path".
        root: where cgroups are mounted.
    """
    try:
        lines = own.read_text().splitlines()
    except (OSError, ValueError):
        return math.inf
    return min((limit for line in lines for limit in _limits(line, root)), default=math.inf)


def _limits(line: str, root: Path) -> Iterator[float]:
    """Give the limits of one line's group and of those around it."""
    number, _, rest = line.partition(":")
    controllers, _, path = rest.partition(":")
    if number == "0" and not controllers:
        mounts, read = [root, root / "unified"], _version_2
    elif "cpu" in controllers.split(","):
        mounts, read = [root / "cpu", root / controllers, root / "cpu,cpuacct"], _version_1
    else:
        return
    parts = [part for part in path.split("/") if part not in ("", ".", "..")]
    for mount in mounts:
        for depth in range(len(parts) + 1):  # in a container the path may be the host's: what is there counts
            try:
                limit = read(mount.joinpath(*parts[:depth]))
            except (OSError, ValueError, ZeroDivisionError):
                continue
            if limit > 0:
                yield limit


def _version_2(group: Path) -> float:
    quota, period = (group / "cpu.max").read_text().split()
    return math.inf if quota == "max" else int(quota) / int(period)


def _version_1(group: Path) -> float:
    quota = int((group / "cpu.cfs_quota_us").read_text())
    return math.inf if quota < 0 else quota / int((group / "cpu.cfs_period_us").read_text())


def allowed() -> int:
    """Return how many cores this process may keep busy, >= 1: a part of a core counts as a whole one."""
    affinity = getattr(os, "sched_getaffinity", None)  # not everywhere
    cores = len(affinity(0)) if affinity else os.cpu_count() or 1
    quota = cpu_quota()
    return max(1, min(cores, math.ceil(quota) if quota < math.inf else cores))


@lru_cache(maxsize=1)
def heed_quota() -> None:
    """Let torch use no more threads than there are cores to use, unless the user has chosen a number.

    torch counts the host's cores. Threads beyond a container's quota wait for each other most of the time.
    """
    chosen = any(name in os.environ for name in CHOSEN) or torch.get_num_threads() != _FIRST
    if not chosen and (cores := allowed()) < torch.get_num_threads():
        torch.set_num_threads(cores)
