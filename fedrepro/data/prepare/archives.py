"""The official archives: where they lie, their MD5, and what reads them.

Nothing of an archive is unpacked onto the disk: its expected members are read one by one, after its MD5 was
found to be the official one, and only numpy arrays and plain containers can come out of a pickle.

Shapes: N images, H, W height and width in pixels.
"""

import codecs
import hashlib
import io
import pickle
import tarfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from fedrepro.data.datasets import Spec, Split
from fedrepro.data.prepare.class_folders import Arrays, read_folder, read_zip

BATCHES = ("train", "test", "data_batch_1", "test_batch", "batches.meta", "meta")  # of unpacked CIFAR archives


@dataclass(frozen=True)
class Archive:
    """An official archive: where it lies, its MD5, and what reads it."""

    url: str
    md5: str
    read: Callable[[Path, Spec], dict[Split, Arrays]]
    inside: str = ""  # the folder that it unpacks to
    unpacked: Callable[[Path, Spec], dict[Split, Arrays]] | None = None  # reads it, if it has no class folders

    def read_folder(self, folder: Path, spec: Spec) -> dict[Split, Arrays]:
        """Read class folders, or what the archive unpacks to; either may also lie in a folder `inside` there.

        Raises:
            FileNotFoundError: if there is no such folder.
            ValueError: if it does not hold what it should.
        """
        place = folder
        if self.inside and not (folder / "train").exists() and (folder / self.inside).is_dir():
            place = folder / self.inside
        if self.unpacked is not None and self.looks_unpacked(place):
            return self.unpacked(place, spec)
        return read_folder(place, spec)

    def looks_unpacked(self, folder: Path) -> bool:
        """Return whether a folder holds files of batches and not class folders."""
        return folder.name == self.inside or any((folder / name).is_file() for name in BATCHES)


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
    except Exception as error:  # damaged bytes may make tarfile and pickle raise anything
        raise ValueError(f"{path} is damaged: {error}") from error
    if missing := sorted(wanted - batches.keys()):
        raise ValueError(f"{path} must contain {', '.join(missing)}, which it does not")
    return _joined(batches, members)


def read_unpacked_batches(
    folder: Path, spec: Spec, md5s: Mapping[str, str], *, members: Mapping[Split, tuple[str, ...]], label_key: str
) -> dict[Split, Arrays]:
    """Read what the CIFAR archives unpack to: a folder of pickled dicts.

    Args:
        folder: has the members' files.
        spec, members, label_key: see `read_pickled_batches`.
        md5s: the MD5 of each file by its name; no file is unpickled before it was found to be that.

    Returns:
        As `read_pickled_batches`.

    Raises:
        ValueError: if a file is missing, or is not the official one.
    """
    batches: dict[str, Arrays] = {}
    for member in (member for names in members.values() for member in names):
        path = folder / PurePosixPath(member).name
        if not path.is_file():
            raise ValueError(f"{folder} must contain {path.name}, which it does not")
        content = path.read_bytes()
        found = hashlib.md5(content, usedforsecurity=False).hexdigest()
        if found != md5s[path.name]:
            raise ValueError(
                f"{path} is damaged or not the official file: MD5 expected {md5s[path.name]}, found {found}"
            )
        try:
            batches[member] = _batch(content, spec, label_key)
        except Exception as error:
            raise ValueError(f"{path} is damaged: {error}") from error
    return _joined(batches, members)


def _joined(batches: Mapping[str, Arrays], members: Mapping[Split, tuple[str, ...]]) -> dict[Split, Arrays]:
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


def _batches(url: str, md5: str, inside: str, label_key: str, files: Mapping[str, str]) -> Archive:
    """Return one of the CIFAR archives: the files of its train split, and as the last one its test split."""
    *train, test = (f"{inside}/{name}" for name in files)
    options: dict[str, Any] = {"members": {"train": tuple(train), "test": (test,)}, "label_key": label_key}
    return Archive(
        url=url,
        md5=md5,
        read=partial(read_pickled_batches, **options),
        inside=inside,
        unpacked=partial(read_unpacked_batches, md5s=files, **options),
    )


ARCHIVES: Mapping[str, Archive] = {
    "cifar10": _batches(
        "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
        "c58f30108f718f92721af3b95e74349a",
        "cifar-10-batches-py",
        "labels",
        {
            "data_batch_1": "c99cafc152244af753f735de768cd75f",
            "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
            "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
            "data_batch_4": "634d18415352ddfa80567beed471001a",
            "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
            "test_batch": "40351d587109b95175f43aff81a1287e",
        },
    ),
    "cifar100": _batches(
        "https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz",
        "eb9058c3a382ffc7106e4002c42a8d85",
        "cifar-100-python",
        "fine_labels",
        {"train": "16019d7e3df5f24257cddd939b257f8d", "test": "f0ef6b0ae62326f3e7ffdfab6717acfc"},
    ),
    "tiny_imagenet": Archive(
        url="http://cs231n.stanford.edu/tiny-imagenet-200.zip",
        md5="90528d7ca1a48142e341f4ef8d21d0de",
        read=partial(read_zip, folder="tiny-imagenet-200"),
        inside="tiny-imagenet-200",
    ),
}
