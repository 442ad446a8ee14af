"""Preparing: from an official archive or a folder of images to the arrays that `fedrepro.data` loads.

A preparation that is interrupted leaves the prepared files as they were.
"""

import contextlib
import hashlib
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from http.client import HTTPException
from pathlib import Path

import numpy as np
from filelock import Timeout

from fedrepro.core.locks import NO_LOCKS, lock_of
from fedrepro.data.data import data_root, files, load, spec_of
from fedrepro.data.datasets import SPLITS, Split
from fedrepro.data.prepare.archives import ARCHIVES, Archive
from fedrepro.data.prepare.class_folders import Arrays
from fedrepro.data.prepare.download import download
from fedrepro.data.prepare.space import FullDiskError, told_when_full

AT_ONCE, PATIENCE = 1.0, 3600.0  # seconds for which a lock is waited for without a word, and with one


def prepare(
    name: str,
    *,
    root: Path | None = None,
    archive: Path | None = None,
    from_folder: Path | None = None,
    progress: bool = True,
) -> Path:
    """Write a data set's prepared form from its official archive or a folder of its images, and check it.

    Files that are prepared already and whole are left alone, damaged ones are replaced. The images keep the
    source's order: `load` has its own.

    Args:
        name: a key of `ARCHIVES`, such as "cifar10".
        root: folder of prepared data; `data_root()` if None.
        archive: the archive, copied by hand; downloaded if None.
        from_folder: a folder of images in class folders, as `class_folders` describes, or what the archive unpacks
            to, or the folder that it lies in; instead of the archive.
        progress: tell on standard error what happens.

    Returns:
        The folder of the prepared files.

    Raises:
        FileNotFoundError: if the archive or the folder does not exist.
        ValueError: if the data set is unknown or needs no preparing, the archive is not the official one, the
            folder does not hold what it should, or both are given.
        ConnectionError: if the download fails.
        TimeoutError: if another process is at it for longer than `PATIENCE`.
        OSError: if the disk is full or cannot lock files.
    """
    spec = spec_of(name)
    if name not in ARCHIVES:
        raise ValueError(f"{name} needs no preparing: a dependency ships it")
    if archive is not None and from_folder is not None:
        raise ValueError(f"archive and from_folder exclude each other, got {archive} and {from_folder}")
    root = root or data_root()
    say = _tell if progress else _hush
    if _problem(name, root) is None:  # before anything is written: the root may be a read-only share
        say(f"{name} is already prepared and valid: {root / name}")
        return root / name
    # A folder that is a link to another disk is filled there: renaming works only within one disk.
    folder = (root / name).resolve()
    workplace = folder.with_name(f".{name}.partial")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _alone(folder.with_name(f".{name}.lock"), name, say), told_when_full(folder.parent):
        problem = _problem(name, root)  # another process may have prepared it while this one waited
        if problem is None:
            return root / name
        say(f"preparing {name}: {problem}")
        shutil.rmtree(workplace, ignore_errors=True)  # left by a preparation that was killed
        workplace.mkdir()
        try:
            if from_folder is not None:
                say(f"reading {from_folder}")
                _save(name, ARCHIVES[name].read_folder(from_folder, spec), workplace)
            else:
                source = archive or _download(name, ARCHIVES[name], workplace, progress=progress, say=say)
                _check_md5(source, name, ARCHIVES[name].md5)
                say(f"reading {source}")
                _save(name, ARCHIVES[name].read(source, spec), workplace)
            _check(name, workplace, from_folder)
            _install(workplace / name, folder)
        finally:
            shutil.rmtree(workplace, ignore_errors=True)
    say(f"prepared {name}: {root / name}")
    return root / name


def _tell(message: str) -> None:
    print(message, file=sys.stderr, flush=True)


def _hush(message: str) -> None:
    del message


@contextlib.contextmanager
def _alone(lock: Path, name: str, say: Callable[[str], None]) -> Iterator[None]:
    """Hold a lock; where another process has it, say so once and wait."""
    held = lock_of(lock)
    try:
        with told_when_full(lock):
            try:
                held.acquire(timeout=AT_ONCE)
            except Timeout:
                say(f"waiting for another process that prepares {name} and holds {lock}")
                held.acquire(timeout=PATIENCE)
    except Timeout as error:
        raise TimeoutError(
            f"another process has held {lock} for {PATIENCE:.0f} seconds: end it if it hangs, then run this again"
        ) from error
    except NotImplementedError as error:
        raise OSError(f"{lock} cannot be locked on its file system: choose a folder with FEDREPRO_DATA") from error
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
        raise OSError(
            error.errno, "cannot be locked on its file system: choose a folder with FEDREPRO_DATA", str(lock)
        ) from error
    try:
        yield
    finally:
        held.release()


def _problem(name: str, root: Path) -> str | None:
    """Return what is wrong with the prepared files, or None if they are all whole."""
    try:
        for split in SPLITS:
            load(name, split, root=root)
    except (OSError, ValueError) as error:
        return str(error)
    return None


def _check(name: str, root: Path, from_folder: Path | None) -> None:
    """Raise a ValueError unless what was just written can be loaded; for a folder, say what may be wrong."""
    for split in SPLITS:
        try:
            load(name, split, root=root)
        except ValueError as error:
            if from_folder is None:
                raise
            raise ValueError(
                f"{from_folder} must hold the very pixels of {name}, as PNG files without loss do and JPEG files"
                f" do not, but has others ({error})"
            ) from error


def _download(name: str, archive: Archive, folder: Path, *, progress: bool, say: Callable[[str], None]) -> Path:
    """Download an archive; see `download`. Where that fails, say what may be done without internet."""
    target = folder / archive.url.rsplit("/", 1)[-1]
    try:
        download(archive.url, target, archive.md5, progress=progress, say=say)
    except FullDiskError:
        raise
    except (OSError, HTTPException) as error:
        raise ConnectionError(
            f"could not download {archive.url} ({error}); without internet, copy the file here and run"
            f" `fedrepro data prepare {name} --archive {target.name}`"
        ) from error
    return target


def _check_md5(path: Path, name: str, expected: str) -> None:
    """Raise an error unless a file is there and has the expected MD5."""
    if not path.is_file():
        raise FileNotFoundError(f"the archive of {name} must be a file, got {path}")
    with path.open("rb") as file:
        found = hashlib.file_digest(file, partial(hashlib.md5, usedforsecurity=False)).hexdigest()
    if found != expected:
        raise ValueError(
            f"{path} is damaged or not the official archive of {name}: MD5 expected {expected}, found {found}"
        )


def _save(name: str, splits: Mapping[Split, Arrays], root: Path) -> None:
    """Write the prepared form of a data set under a folder."""
    (root / name).mkdir()
    for split, arrays in splits.items():
        for path, array in zip(files(name, split, root), arrays):
            with told_when_full(path):
                np.save(path, array, allow_pickle=False)


def _install(new: Path, folder: Path) -> None:
    """Move finished files into place: as one folder, or file by file where the folder exists."""
    if not folder.exists():
        new.replace(folder)
        return
    for path in new.iterdir():
        path.replace(folder / path.name)
