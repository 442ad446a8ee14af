"""Preparing: from an official archive to the arrays that `fedrepro.data` loads.

Nothing of an archive is unpacked onto the disk: its expected members are read one by one, after its MD5 was
found to be the official one, and only numpy arrays and plain containers can come out of a pickle. A
preparation that is interrupted leaves the prepared files as they were.

Shapes: N images, H, W height and width in pixels.
"""

import codecs
import contextlib
import hashlib
import io
import pickle
import shutil
import sys
import tarfile
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from http.client import HTTPException
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock

from fedrepro.data import SPLITS, Spec, Split, data_root, files, load, spec_of

Arrays = tuple[np.ndarray, np.ndarray]  # images uint8 [N, H, W, 3], labels int64 [N]


@dataclass(frozen=True)
class Archive:
    """An official archive: where it lies, its MD5, and what reads it."""

    url: str
    md5: str
    read: Callable[[Path, Spec], dict[Split, Arrays]]


def prepare(name: str, *, root: Path | None = None, archive: Path | None = None, progress: bool = True) -> Path:
    """Write a data set's prepared form from its official archive, and check it.

    Files that are prepared already and whole are left alone, damaged ones are replaced. The images keep the
    archive's order: `load` has its own.

    Args:
        name: a key of `ARCHIVES`: "cifar10".
        root: folder of prepared data; `data_root()` if None.
        archive: the archive, copied by hand; downloaded if None.
        progress: tell on standard error what happens.

    Returns:
        The folder of the prepared files.

    Raises:
        FileNotFoundError: if the archive does not exist.
        ValueError: if the data set is unknown or needs no preparing, or the archive is not the official one.
        ConnectionError: if the download fails.
    """
    spec = spec_of(name)
    if name not in ARCHIVES:
        raise ValueError(f"{name} needs no preparing: a dependency ships it")
    root = root or data_root()
    say = _tell if progress else _hush
    if _problem(name, root) is None:  # before anything is written: the root may be a read-only share
        say(f"{name} is already prepared and valid: {root / name}")
        return root / name
    # A folder that is a link to another disk is filled there: renaming works only within one disk.
    folder = (root / name).resolve()
    workplace = folder.with_name(f".{name}.partial")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(folder.with_name(f".{name}.lock")):
        problem = _problem(name, root)  # another process may have prepared it while this one waited
        if problem is None:
            return root / name
        say(f"preparing {name}: {problem}")
        shutil.rmtree(workplace, ignore_errors=True)  # left by a preparation that was killed
        workplace.mkdir()
        try:
            source = archive or _download(name, ARCHIVES[name], workplace, progress=progress)
            _check_md5(source, name, ARCHIVES[name].md5)
            say(f"reading {source}")
            _save(name, ARCHIVES[name].read(source, spec), workplace)
            for split in SPLITS:
                load(name, split, root=workplace)
            _install(workplace / name, folder)
        finally:
            shutil.rmtree(workplace, ignore_errors=True)
    say(f"prepared {name}: {root / name}")
    return root / name


def _tell(message: str) -> None:
    print(message, file=sys.stderr, flush=True)


def _hush(message: str) -> None:
    del message


def _problem(name: str, root: Path) -> str | None:
    """Return what is wrong with the prepared files, or None if they are all whole."""
    try:
        for split in SPLITS:
            load(name, split, root=root)
    except (OSError, ValueError) as error:
        return str(error)
    return None


def _download(name: str, archive: Archive, folder: Path, *, progress: bool) -> Path:
    """Download an archive with torchvision's downloader, which checks the MD5 as well."""
    from torchvision.datasets.utils import download_url

    target = folder / archive.url.rsplit("/", 1)[-1]
    quiet = contextlib.nullcontext() if progress else contextlib.redirect_stderr(io.StringIO())
    try:
        with quiet:  # the downloader's progress bar cannot be switched off
            download_url(archive.url, str(folder), target.name, archive.md5)
    except (OSError, RuntimeError, HTTPException) as error:
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
            np.save(path, array, allow_pickle=False)


def _install(new: Path, folder: Path) -> None:
    """Move finished files into place: as one folder, or file by file where the folder exists."""
    if not folder.exists():
        new.replace(folder)
        return
    for path in new.iterdir():
        path.replace(folder / path.name)


def read_pickled_batches(
    path: Path, spec: Spec, *, members: Mapping[Split, tuple[str, ...]], label_key: str
) -> dict[Split, Arrays]:
    """Read the CIFAR archives: a .tar.gz of pickled dicts with "data" and lists of labels.

    Args:
        path: the archive.
        spec: the data set, for the image shape.
        members: the members of each split, in order.
        label_key: where a dict has its labels.

    Returns:
        Images uint8 [N, H, W, 3] and labels int64 [N] of each split, in the archive's order.

    Raises:
        ValueError: if the archive is damaged, or a member is missing or does not hold what it should.
    """
    wanted = {member for names in members.values() for member in names}
    batches: dict[str, Arrays] = {}
    try:
        with tarfile.open(path, "r:gz") as tar:
            for entry in tar:
                if entry.name in wanted and (file := tar.extractfile(entry)) is not None:
                    batches[entry.name] = _batch(file.read(), spec, label_key)
    except (tarfile.TarError, zlib.error, EOFError, OSError, pickle.UnpicklingError, ValueError) as error:
        raise ValueError(f"{path} is damaged: {error}") from error
    if missing := sorted(wanted - batches.keys()):
        raise ValueError(f"{path} must contain {', '.join(missing)}, which it does not")
    return {
        split: (
            np.concatenate([batches[member][0] for member in names]),
            np.concatenate([batches[member][1] for member in names]),
        )
        for split, names in members.items()
    }


def _batch(pickled: bytes, spec: Spec, label_key: str) -> Arrays:
    """Read one pickled batch, whose images are channel-planar uint8 [n, 3 * H * W]."""
    # The batches were written by Python 2, whose byte strings latin1 maps to characters one to one.
    content = _ArraysOnly(io.BytesIO(pickled), encoding="latin1").load()
    height, width, channels = spec.shape
    try:
        planar, labels = content["data"], np.array(content[label_key], dtype=np.int64)
        if planar.dtype != np.uint8 or planar.shape != (len(labels), channels * height * width):
            raise ValueError(
                f"images must be uint8 [{len(labels)}, {channels * height * width}], got"
                f" {planar.dtype} {list(planar.shape)}"
            )
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"a batch must hold 'data' and {label_key!r} ({error!r})") from error
    images = planar.reshape(-1, channels, height, width).transpose(0, 2, 3, 1)
    return np.ascontiguousarray(images), labels


class _ArraysOnly(pickle.Unpickler):
    """An unpickler that can make numpy arrays and plain containers, and can call nothing else."""

    _allowed: Mapping[tuple[str, str], Any] = {
        ("numpy", "ndarray"): np.ndarray,
        ("numpy", "dtype"): np.dtype,
        # Old and new numpy name this function's module differently; an array itself knows where it is.
        ("numpy.core.multiarray", "_reconstruct"): np.empty(0).__reduce__()[0],
        ("numpy._core.multiarray", "_reconstruct"): np.empty(0).__reduce__()[0],
        ("_codecs", "encode"): codecs.encode,
    }

    def find_class(self, module: str, name: str) -> Any:
        """Return an allowed constructor; anything else is an UnpicklingError."""
        if (module, name) not in self._allowed:
            raise pickle.UnpicklingError(f"{module}.{name} has no place in a batch of images")
        return self._allowed[module, name]


ARCHIVES: Mapping[str, Archive] = {
    "cifar10": Archive(
        url="https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
        md5="c58f30108f718f92721af3b95e74349a",
        read=partial(
            read_pickled_batches,
            members={
                "train": tuple(f"cifar-10-batches-py/data_batch_{k}" for k in range(1, 6)),
                "test": ("cifar-10-batches-py/test_batch",),
            },
            label_key="labels",
        ),
    ),
}
