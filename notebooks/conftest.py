"""Notebooks are tested in the same closed room as the library."""

import runpy
from pathlib import Path

pytest_configure = runpy.run_path(str(Path(__file__).parents[1] / "tests" / "conftest.py"))["pytest_configure"]
