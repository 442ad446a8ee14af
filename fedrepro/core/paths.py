"""Where things lie: the checkout, committed figures, and the ignored folder of results."""

import os
from pathlib import Path

import fedrepro


def checkout() -> Path | None:
    """Return the root of the repository that the package runs from, or None if it was installed elsewhere."""
    root = Path(fedrepro.__file__).resolve().parents[1]
    return root if (root / "notebooks").is_dir() and (root / "pyproject.toml").is_file() else None


def results_folder() -> Path:
    """Return the folder for what commands make: `results/` of the checkout, else of the current folder."""
    return (checkout() or Path.cwd()) / "results"


def runs_folder() -> Path:
    """Return the store of runs: `$FEDREPRO_RUNS`, else `runs` in the results."""
    named = os.environ.get("FEDREPRO_RUNS")
    return Path(named).expanduser().absolute() if named else results_folder() / "runs"


def made_folder() -> Path:
    """Return where figures and tables of this machine go: `figures` in the results."""
    return results_folder() / "figures"


def recorded_folder() -> Path:
    """Return the committed results, `figures/` of the checkout.

    Raises:
        FileNotFoundError: if the package does not run from a checkout.
    """
    root = checkout()
    if root is None:
        raise FileNotFoundError("recorded results are part of the repository: install it with pip install -e .")
    return root / "figures"


def record_folders() -> list[Path]:
    """Return the folders to read records from, later ones winning: the committed ones, then this machine's."""
    return ([recorded_folder()] if checkout() else []) + [made_folder()]
