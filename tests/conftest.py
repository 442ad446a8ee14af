"""Tests run in a closed room: an empty data root, a run store of their own, two threads, no GPU unasked."""

import os
import shutil
import tempfile
from importlib.util import find_spec
from pathlib import Path

import pytest

# A machine with a GPU may have little else than torch: what cannot be imported there must not stop `-m gpu`.
NEEDS = {
    "hypothesis": ["data/test_partition.py"],
    "matplotlib": ["bench/test_performance.py", "plots/test_plots.py", "plots/test_save.py"],
}
lacking = [package for package in NEEDS if find_spec(package) is None]
collect_ignore = [name for package in lacking for name in NEEDS[package]]
if "hypothesis" not in lacking:
    import hypothesis

    hypothesis.settings.register_profile("tests", deadline=None, derandomize=True)
    hypothesis.settings.load_profile("tests")


def pytest_report_header() -> list[str]:
    """Tell which tests are left out for want of a package."""
    return [f"without {package}: left out {', '.join(NEEDS[package])}" for package in lacking]


def _wants_gpu(config: pytest.Config) -> bool:
    expression = config.getoption("markexpr")
    return "gpu" in expression and "not gpu" not in expression


def pytest_configure(config: pytest.Config) -> None:
    """Set the environment before anything imports torch; kernels inherit it."""
    room = tempfile.mkdtemp(prefix="fedrepro-tests-")
    config.add_cleanup(lambda: shutil.rmtree(room, ignore_errors=True))
    for name in ("runs", "data"):
        os.environ[f"FEDREPRO_{name.upper()}"] = str(Path(room, name))
        Path(room, name).mkdir()
    os.environ.setdefault("OMP_NUM_THREADS", "2")
    if not _wants_gpu(config):
        os.environ["CUDA_VISIBLE_DEVICES"] = ""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the tests marked gpu unless `-m gpu` asks for them."""
    if not _wants_gpu(config):
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason="needs a CUDA device; run with -m gpu"))
