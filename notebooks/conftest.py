"""Notebooks are tested in the same closed room as the library."""

import runpy
from pathlib import Path

collect_ignore_glob = ["*/optional"]  # needs packages that fedrepro does not install, and hangs a batch run
pytest_configure = runpy.run_path(str(Path(__file__).parents[1] / "tests" / "conftest.py"))["pytest_configure"]
