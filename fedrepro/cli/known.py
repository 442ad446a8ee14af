"""Names of papers, items and notebooks, read from files alone: a typo is answered before torch is imported."""

import argparse
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

import fedrepro
from fedrepro.core import paths
from fedrepro.core.names import nearest
from fedrepro.data.datasets import DATASETS

Labels = dict[str, set[str]]  # of each item, all labels of its axes


def check(options: argparse.Namespace) -> None:
    """Refuse unknown data sets; and unknown items and labels, where the library is not loaded, which looks itself.

    Raises:
        ValueError: for an unknown item or label, with the nearest real one.
    """
    if options.command == "data" and options.action == "prepare" and options.name not in DATASETS:
        raise ValueError(f"unknown data set {options.name!r}{nearest(options.name, DATASETS)}")
    if "fedrepro.papers" in sys.modules or options.command not in ("run", "reproduce", "list"):
        return
    known = labels()
    chosen = [key for key in keys(options.items, notebooks=options.command == "reproduce") if key in known]
    every = {label for key in chosen for label in known[key]}
    whose = f"{chosen[0]} has no" if len(chosen) == 1 else "no item has"
    for label in getattr(options, "only", ()):
        if label not in every:
            raise ValueError(f"{whose} {label!r}{nearest(label, sorted(every))}")


def keys(targets: Sequence[str], *, notebooks: bool = False) -> list[str]:
    """Return the keys of the items that names ask for, all there are if none is named, each once.

    Args:
        targets: papers, or "paper/item".
        notebooks: whether the notebooks that belong to no paper are known as well.

    Raises:
        ValueError: for an unknown name, with the nearest real one.
    """
    items, found = [*labels()], dict[str, None]()
    every = items + (other_notebooks() if notebooks else [])
    for target in targets:
        asked = [key for key in every if target in (key, key.partition("/")[0])]
        if not asked:
            folders = dict.fromkeys(key.partition("/")[0] for key in every)
            raise ValueError(f"unknown item {target!r}{nearest(target, [*folders, *every])}")
        found |= dict.fromkeys(asked)
    return list(found) if targets else every


def labels(folder: Path | None = None) -> Labels:
    """Return the keys of all items, in their order, and the labels of each.

    Raises:
        ValueError: for a file that cannot be read, naming it.
    """
    found: Labels = {}
    for path in sorted((folder or _papers()).glob("*/items.toml")):
        if not (path.parent / "settings.toml").exists():
            continue
        try:
            for name, entry in tomllib.loads(path.read_text("utf-8")).get("items", {}).items():
                grids = [{k: v for k, v in grid.items() if k != "scales"} for grid in entry.get("grids", [])]
                named = {label for grid in grids for values in grid.values() for label in values}
                found[f"{path.parent.name}/{name}"] = named
        except (ValueError, AttributeError, TypeError) as error:
            raise ValueError(f"{path}: {error}") from error
    return found


def _papers() -> Path:
    """Return the folder of papers, that of the library where it is loaded."""
    loaded = sys.modules.get("fedrepro.papers")
    return Path(loaded.FOLDER) if loaded else Path(fedrepro.__file__).parent / "papers"


def other_notebooks() -> list[str]:
    """Return the keys of the notebooks that belong to no paper, such as "tutorials/01_one_round_by_hand".

    Those in folders below, such as tutorials/optional, are for people alone: no command executes them.
    """
    root = paths.checkout()
    files = sorted((root / "notebooks").glob("[!._]*/[!._]*.ipynb")) if root else []
    return [
        f"{path.parent.name}/{path.stem}"
        for path in files
        if not (_papers() / path.parent.name).is_dir() and not path.name.endswith(".failed.ipynb")
    ]
