"""CPU quotas of containers, from files as the kernel writes them."""

import math
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from fedrepro.kernels import cores


def put(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


@pytest.mark.parametrize(
    ("groups", "files", "expected"),
    [
        ("0::/\n", {"cpu.max": "max 100000\n"}, math.inf),
        ("0::/\n", {"cpu.max": "150000 100000\n"}, 1.5),
        ("0::/\n", {"unified/cpu.max": "200000 100000\n"}, 2.0),
        # The least on the way up counts, wherever it is.
        ("0::/a/b\n", {"a/cpu.max": "300000 100000\n", "a/b/cpu.max": "max 100000\n"}, 3.0),
        ("0::/a/b\n", {"a/cpu.max": "300000 100000\n", "a/b/cpu.max": "50000 100000\n"}, 0.5),
        # A path of the host's that is not there inside of the container.
        ("0::/../../pod/x\n", {"cpu.max": "400000 100000\n"}, 4.0),
        (
            "4:memory:/m\n3:cpu,cpuacct:/d\n0::/\n",
            {"cpu,cpuacct/d/cpu.cfs_quota_us": "250000\n", "cpu,cpuacct/d/cpu.cfs_period_us": "100000\n"},
            2.5,
        ),
        ("1:cpu:/\n", {"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, math.inf),
        ("1:cpu:/d\n", {"cpu/cpu.cfs_quota_us": "100000\n", "cpu/cpu.cfs_period_us": "50000\n"}, 2.0),
        ("2:cpuset:/d\n", {"cpu/cpu.cfs_quota_us": "100000\n", "cpu/cpu.cfs_period_us": "50000\n"}, math.inf),
        # What cannot be read is no limit.
        ("0::/\n", {"cpu.max": "\n"}, math.inf),
        ("0::/\n", {"cpu.max": "many 100000\n"}, math.inf),
        ("0::/\n", {"cpu.max": "100000 0\n"}, math.inf),
        ("nonsense\n", {}, math.inf),
        ("", {}, math.inf),
    ],
)
def test_quota(groups: str, files: dict[str, str], expected: float, tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.write_text(groups)
    assert cores.cpu_quota(own, put(tmp_path / "cgroup", files)) == expected


def test_no_list_of_groups(tmp_path: Path) -> None:
    assert cores.cpu_quota(tmp_path / "nowhere", tmp_path) == math.inf


@pytest.mark.parametrize(("quota", "mask", "expected"), [(math.inf, 6, 6), (0.2, 6, 1), (2.1, 6, 3), (8.0, 2, 2)])
def test_cores(quota: float, mask: int, expected: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cores, "cpu_quota", lambda: quota)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(mask)), raising=False)
    assert cores.allowed() == expected


class TestThreads:
    @pytest.fixture(autouse=True)
    def eight(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
        """Let torch have eight threads that nobody chose, and a quota of three."""
        self.now = [8]
        monkeypatch.setattr(torch, "get_num_threads", lambda: self.now[-1])
        monkeypatch.setattr(torch, "set_num_threads", self.now.append)
        monkeypatch.setattr(cores, "_FIRST", 8)
        monkeypatch.setattr(cores, "allowed", lambda: 3)
        for name in cores.CHOSEN:
            monkeypatch.delenv(name, raising=False)
        cores.heed_quota.cache_clear()
        yield self.now
        cores.heed_quota.cache_clear()

    def test_no_more_than_the_quota_and_once(self) -> None:
        cores.heed_quota()
        assert self.now == [8, 3]
        self.now.append(8)  # later choices stay
        cores.heed_quota()
        assert self.now == [8, 3, 8]

    @pytest.mark.parametrize("name", cores.CHOSEN)
    def test_a_variable_stays(self, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv(name, "8")
        cores.heed_quota()
        assert self.now == [8]

    def test_a_number_that_was_set_stays(self) -> None:
        self.now.append(6)
        cores.heed_quota()
        assert self.now == [8, 6]

    def test_it_never_becomes_more(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(cores, "allowed", lambda: 12)
        cores.heed_quota()
        assert self.now == [8]
