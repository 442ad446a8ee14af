"""`fedrepro data`, `fedrepro report` and `fedrepro new`: what there is, and what is added to it."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from fedrepro.core import paths


def data(options: argparse.Namespace) -> int:
    """Prepare a data set, or list what is there."""
    from fedrepro.data.data import available, data_root
    from fedrepro.data.prepare.prepare import prepare

    if options.action == "prepare":
        print(prepare(options.name, archive=options.archive, from_folder=options.from_folder))
        return 0
    for name, present, where, images in available():
        print(f"{name:<14} {'ready' if present else 'missing':<8} {images:>6} images  {where}")
    print(f"data root: {data_root()}")
    return 0


def report(options: argparse.Namespace) -> int:
    """Write the report: of the committed records alone, or of this machine's as well."""
    from fedrepro.core.files import check_writable
    from fedrepro.report.report import write_report

    folder = paths.recorded_folder() if options.record else paths.made_folder()
    folders = [folder] if options.record else paths.record_folders()
    check_writable(folder)
    written = write_report(folder, folders=folders)
    if not any(has_records(place) for place in folders):
        print(f"no records in {' or '.join(map(str, folders))}: the report has the papers' numbers alone")
    print("\n".join(map(str, written)))
    return 1 if tell_damages(folders) else 0


def tell_damages(folders: Sequence[Path]) -> bool:
    """Say which records could not be read, and return whether there are any; the report holds all others."""
    from fedrepro import papers
    from fedrepro.report.found import damages

    wrong = [text for name in papers.names() for text in damages(papers.load(name), folders).values()]
    for text in wrong:
        print(f"not read: {text}", file=sys.stderr)
    return bool(wrong)


def has_records(folder: Path) -> bool:
    """Return whether a folder of figures holds records of an item at a scale."""
    return any(next(folder.glob(f"*/*/{scale}.csv"), None) for scale in ("smoke", "short", "paper"))


def new(options: argparse.Namespace) -> int:
    """Write the skeleton of a new item into the checkout.

    Raises:
        FileNotFoundError: if the package does not run from a checkout.
    """
    from fedrepro.notebooks.new import new

    root = paths.checkout()
    if root is None:
        raise FileNotFoundError("a new item is part of the repository: install it with pip install -e .")
    for path in new(options.item, root=root):
        print(f"wrote {path}")
    return 0
