"""Notebooks are tested in the same closed room as the library, and all workers share one store of runs."""

import os
import runpy
from pathlib import Path

import pytest

collect_ignore_glob = ["*/optional"]  # needs packages that fedrepro does not install, and hangs a batch run
ROOM = runpy.run_path(str(Path(__file__).parents[1] / "tests" / "conftest.py"))


def pytest_configure(config: pytest.Config) -> None:
    """Set the environment; a run that one worker has played, or is playing, is read by the others."""
    shared = os.environ.get("FEDREPRO_RUNS") if "PYTEST_XDIST_WORKER" in os.environ else None
    ROOM["pytest_configure"](config)
    if shared:
        os.environ["FEDREPRO_RUNS"] = shared
