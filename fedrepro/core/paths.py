"""Where things lie: the checkout, committed figures, and the ignored folder of results."""

import os
import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

import fedrepro

NAMES = ("FEDREPRO_RUNS", "FEDREPRO_DATA", "FEDREPRO_RESULTS")  # variables of the environment that name folders


def chosen(name: str) -> Path | None:
    """Return the folder that a variable of the environment names, or None if it is not set or empty.

    A tilde is the home folder. A relative path is relative to where this process is when it first asks: what is
    found is put into the environment as an absolute path, so that it stays the same here and in all children.

    Raises:
        ValueError: where there is no such home folder.
    """
    value = os.environ.get(name, "").strip()
    if not value:
        return None
    found = absolute(value, f"{name}={value}")
    os.environ[name] = str(found)
    return found


def absolute(value: str, what: str) -> Path:
    """Return a path from the root, with its tilde resolved; raises ValueError, naming `what`, if it cannot be."""
    try:
        found = Path(value).expanduser()
    except RuntimeError as error:
        raise ValueError(f"{what}: there is no such home folder; name a path without a tilde") from error
    return found.absolute()


def checkout() -> Path | None:
    """Return the root of the repository that the package runs from, or None if it was installed elsewhere."""
    root = Path(fedrepro.__file__).resolve().parents[1]
    return root if (root / "notebooks").is_dir() and _ours(root / "pyproject.toml") else None


@lru_cache
def _ours(project: Path) -> bool:
    """Return whether a project file is that of this package, not of somebody who has a copy of it."""
    try:
        written = project.read_text("utf-8", errors="replace")
    except OSError:
        return False
    return re.search(r'^name\s*=\s*"fedrepro"', written, re.MULTILINE) is not None


def results_folder() -> Path:
    """Return the folder for what commands make.

    It is `$FEDREPRO_RESULTS`, else `results/` of the checkout, else of the current folder.

    Raises:
        ValueError: if `$FEDREPRO_RESULTS` would mix what is made with what is recorded.
    """
    found = chosen("FEDREPRO_RESULTS")
    if found is None:
        return (checkout() or Path.cwd()) / "results"
    check_apart(found / "figures", f"FEDREPRO_RESULTS={found}")
    return found


def check_apart(figures: Path, what: str) -> None:
    """Refuse a folder for figures inside the recorded ones; raises ValueError, naming `what` chose it."""
    root = checkout()
    if root is not None and figures.resolve().is_relative_to((root / "figures").resolve()):
        raise ValueError(f"{what} would write over the recorded figures: name another folder")


def runs_folder() -> Path:
    """Return the store of runs: `$FEDREPRO_RUNS`, else `runs` in the results.

    Raises:
        ValueError: if `$FEDREPRO_RUNS` would mix runs with what is recorded.
    """
    found = chosen("FEDREPRO_RUNS")
    if found is None:
        return results_folder() / "runs"
    check_apart(found, f"FEDREPRO_RUNS={found}")
    return found


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
        raise FileNotFoundError(
            "recorded results are part of the repository, and this package was installed without it: clone it and "
            "install it with pip install -e ., or leave --record out (results then go to FEDREPRO_RESULTS)"
        )
    return root / "figures"


def record_folders() -> list[Path]:
    """Return the folders to read records from, later ones winning: the committed ones, then this machine's."""
    return list(origins())


def origins() -> Mapping[Path, str]:
    """Return the folders of records and what their numbers may be called: "recorded", or this machine's "made".

    Outside of a checkout nothing is recorded.
    """
    recorded = {recorded_folder(): "recorded"} if checkout() else {}
    return recorded | {made_folder(): "made"}
