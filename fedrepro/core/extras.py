"""The optional packages: what is not installed is told before any work, with the command that installs it."""

import sys
from importlib.util import find_spec

# What executing notebooks, and making pages of them, needs.
NOTEBOOKS = ("papermill", "nbclient", "nbconvert", "latex2mathml", "ipykernel", "psutil", "matplotlib", "seaborn")
REMEDY = "in the repository's folder: pip install -e '.[notebooks]'"


def need(purpose: str, *packages: str) -> None:
    """Look for packages without importing them.

    Raises:
        ValueError: naming what is not installed, and the remedy.
    """
    if lacking := [name for name in packages if not _found(name)]:
        raise ValueError(f"{purpose} needs {', '.join(lacking)}, not installed here; {REMEDY}")


def _found(package: str) -> bool:
    if package in sys.modules:
        return sys.modules[package] is not None  # None where it was forbidden
    try:
        return find_spec(package) is not None
    except (ImportError, ValueError):
        return False
