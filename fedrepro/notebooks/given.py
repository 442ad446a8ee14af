"""What a book is opened with: every parameter checked, and what the command line hands on to notebooks."""

import json
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pandas as pd

from fedrepro import papers
from fedrepro.core import paths
from fedrepro.core.names import nearest
from fedrepro.papers import SCALES, Cell, Item
from fedrepro.runs.machine import choose_device

ONLY, PRECISION = (
    "FEDREPRO_ONLY",
    "FEDREPRO_PRECISION",
)  # set by `fedrepro reproduce` for the notebooks that it runs


def item_of(name: object) -> Item:
    """Return the item of a name such as "fedbe/table1_methods".

    Raises:
        ValueError: for anything else, with the nearest real name.
    """
    if not isinstance(name, str):
        raise ValueError(f'item must be a text such as "fedbe/table1_methods", got {name!r}')
    found = papers.find(name)
    if "/" not in name or len(found) != 1:
        raise ValueError(f"item must be one of {', '.join(item.key for item in found)}, got {name!r}")
    return found[0]


def check(scale: object, seeds: object) -> None:
    """Refuse what is no scale or no number of seeds.

    Raises:
        ValueError: naming the value.
    """
    if not isinstance(scale, str) or scale not in SCALES:
        raise ValueError(f"scale must be {' or '.join(SCALES)}, got {scale!r}{nearest(str(scale), SCALES)}")
    if type(seeds) is not int or seeds < 1:
        raise ValueError(f"seeds must be a whole number >= 1, got {seeds!r}")


def device_of(name: object) -> str:
    """Return a torch device name; raises ValueError as `choose_device` does."""
    if not isinstance(name, str):
        raise ValueError(f"device must be auto, cpu or cuda, got {name!r}")
    return choose_device(name)


def folder_of(out: object) -> Path:
    """Return the absolute folder of figures, this machine's if none is named; a tilde is the home folder.

    Raises:
        ValueError: for what is no folder.
    """
    if not isinstance(out, str | Path) or "\0" in str(out):
        raise ValueError(f"out must be the name of a folder, got {out!r}")
    try:
        folder = Path(out).expanduser().absolute() if str(out).strip() else paths.made_folder()
    except RuntimeError as error:
        raise ValueError(f"out must be the name of a folder, got {out!r}: {error}") from error
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"out must be the name of a folder, {folder} is a file")
    return folder


def scale_of(shown: pd.DataFrame, scale: str) -> str:
    """Return the scale whose name a picture bears: a book's own, or the largest that is shown if that is smaller.

    Args:
        shown: its numbers; where they come from says a column source as that of `Book.points`, such as
            "recorded (short)", if there is one.
        scale: of the book.
    """
    if "source" not in shown:
        return scale
    from fedrepro.plots import frames  # matplotlib is no part of the core

    found = set(shown["source"].map(frames.scale_of))
    return min(scale, max(found & set(SCALES), key=SCALES.index, default=scale), key=SCALES.index)


def in_precision(cells: Sequence[Cell]) -> list[Cell]:
    """Return the cells in the precision that was asked for on the command line, else in their own."""
    precision = os.environ.get(PRECISION, "")
    if not precision:
        return list(cells)
    return [replace(cell, setting=cell.setting.with_(precision=precision)) for cell in cells]


def meant(item: Item, scale: str, cells: Sequence[Cell]) -> list[Cell]:
    """Return the cells that are to be played: those with the labels asked for on the command line, else all."""
    labels = os.environ.get(ONLY, "")
    if not labels:
        return list(cells)
    try:
        only = json.loads(labels)
    except ValueError:
        only = None
    if not isinstance(only, list) or not all(isinstance(label, str) for label in only):
        raise ValueError(f'{ONLY} must be labels such as ["ConvNet"], got {labels!r}')
    chosen = papers.load(item.paper).cells(item.name, scale, only=tuple(only))
    places = {(cell.row, cell.column) for cell in chosen}
    return [cell for cell in cells if (cell.row, cell.column) in places]
