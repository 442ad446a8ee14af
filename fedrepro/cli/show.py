"""`fedrepro list`, `fedrepro data` and `fedrepro new`: what there is, and what is added to it."""

import argparse

from fedrepro import papers
from fedrepro.core import paths
from fedrepro.papers import SCALES, Item


def items(options: argparse.Namespace) -> int:
    """List the items of all papers with their scales and seeds."""
    for name in papers.names():
        paper = papers.load(name)
        print(paper.title)
        for item in paper.items.values():
            print(f"  {item.key:<28} {item.title} ({item.source})")
            cells = [f"{scale}: {_count(item, scale)}" for scale in SCALES]
            print(f"  {'':<28} {'; '.join(cells)}")
    print(f"store: {paths.runs_folder()}")
    return 0


def _count(item: Item, scale: str) -> str:
    if not item.batch:
        return f"{item.seeds[scale]} seeds in the notebook"
    cells = len(papers.load(item.paper).cells(item.name, scale))
    return f"{cells} cells x {item.seeds[scale]} seeds"


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
