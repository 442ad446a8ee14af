"""The official archives: where they lie, their MD5, and what reads them.

Nothing of an archive is unpacked onto the disk: its expected members are read one by one, after its MD5 was
found to be the official one, and only numpy arrays and plain containers can come out of a pickle.

Shapes: N images, H, W height and width in pixels.
"""

import codecs
import io
import pickle
import tarfile
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from fedrepro.data.datasets import Spec, Split
from fedrepro.data.prepare.class_folders import Arrays, read_zip


@dataclass(frozen=True)
class Archive:
    """An official archive: where it lies, its MD5, and what reads it."""

    url: str
    md5: str
    read: Callable[[Path, Spec], dict[Split, Arrays]]


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
    "cifar100": Archive(
        url="https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz",
        md5="eb9058c3a382ffc7106e4002c42a8d85",
        read=partial(
            read_pickled_batches,
            members={"train": ("cifar-100-python/train",), "test": ("cifar-100-python/test",)},
            label_key="fine_labels",
        ),
    ),
    "tiny_imagenet": Archive(
        url="http://cs231n.stanford.edu/tiny-imagenet-200.zip",
        md5="90528d7ca1a48142e341f4ef8d21d0de",
        read=partial(read_zip, folder="tiny-imagenet-200"),
    ),
}
