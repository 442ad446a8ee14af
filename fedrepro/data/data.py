"""Data sets: what they are, where they lie, and how they are read.

The prepared form is `<data root>/<name>/{train,test}_images.npy` (uint8 NHWC) and `_labels.npy` (int64),
written by `fedrepro.prepare` or copied by hand. A new data set is an entry in `DATASETS` and in `ARCHIVES`.

Shapes: N images, C classes, H, W height and width in pixels, D features.
"""

import hashlib
import os
import platform
import warnings
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedrepro.core import paths
from fedrepro.data.datasets import DATASETS, SPLITS, Spec, Split
from fedrepro.data.partition import apportion
from fedrepro.data.shipped import SHIPPED


@dataclass(frozen=True, eq=False)
class Data:
    """Labelled images, or the features of a toy problem, on one device."""

    name: str
    images: Tensor  # uint8 [N, H, W, 3], or float32 features [N, D]
    labels: Tensor  # int64 [N], in [0, C)
    classes: tuple[str, ...]  # the C class names
    mean: tuple[float, ...] = ()  # to normalise each channel, in units of [0, 1] pixels; none for features
    std: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        """Raise a ValueError where the parts do not fit together."""
        images, labels, mean, std = self.images, self.labels, self.mean, self.std
        pixels = images.dtype == torch.uint8 and images.ndim == 4 and images.shape[3] == 3
        if not pixels and not (images.dtype == torch.float32 and images.ndim == 2):
            raise ValueError(f"images must be uint8 [N, H, W, 3] or float32 [N, D], got {_describe(images)}")
        if labels.dtype != torch.int64 or labels.shape != images.shape[:1]:
            raise ValueError(f"labels must be int64 [{len(images)}], got {_describe(labels)}")
        _check_range("labels", labels, self.class_count)
        if not len(mean) == len(std) == 3 * pixels or min(std, default=1.0) <= 0:
            raise ValueError(f"mean and std > 0 must have {3 * pixels} values, got {mean} and {std}")

    def __len__(self) -> int:
        """Return the number of images N."""
        return len(self.labels)

    @property
    def class_count(self) -> int:
        """Return the number of classes C."""
        return len(self.classes)

    @cached_property
    def fingerprint(self) -> str:
        """Return the SHA-256 (hex) of the types, shapes and bytes of images and labels, on any device."""
        digest = hashlib.sha256()
        for tensor in (self.images, self.labels):
            array = np.ascontiguousarray(tensor.cpu().numpy())
            digest.update(f"{array.dtype.name}{array.shape}".encode())
            digest.update(array.astype(array.dtype.newbyteorder("<"), copy=False).reshape(-1).data)
        return digest.hexdigest()

    def subset(self, index: np.ndarray | Tensor) -> "Data":
        """Return the images at the given positions, integers [n] in [0, N), in that order."""
        chosen = torch.as_tensor(index, device=self.images.device)
        if chosen.ndim != 1 or chosen.dtype not in (torch.int64, torch.int32):
            raise ValueError(f"index must be int64 [n], got {_describe(chosen)}")
        _check_range("index", chosen, len(self))
        return replace(self, images=self.images[chosen], labels=self.labels[chosen])

    def to(self, device: torch.device | str) -> "Data":
        """Return the same data on another device."""
        moved = replace(self, images=self.images.to(device), labels=self.labels.to(device))
        if "fingerprint" in self.__dict__:  # the content is the same: spare the hashing
            moved.__dict__["fingerprint"] = self.fingerprint
        return moved


def _describe(array: Tensor | np.ndarray) -> str:
    return f"{str(array.dtype).removeprefix('torch.')} {list(array.shape)}"  # as in "uint8 [10, 32, 32, 3]"


def _check_range(what: str, values: Tensor, stop: int) -> None:
    """Raise a ValueError unless all integers lie in [0, stop)."""
    if len(values) and not 0 <= int(values.min()) <= int(values.max()) < stop:
        raise ValueError(f"{what} must be in [0, {stop}), got {int(values.min())} to {int(values.max())}")


def spec_of(name: str) -> Spec:
    """Return what is known of a data set."""
    if name not in DATASETS:
        raise ValueError(f"data set must be one of {', '.join(DATASETS)}, got {name!r}")
    return DATASETS[name]


def data_root() -> Path:
    """Return the folder of prepared data: `$FEDREPRO_DATA`, else in the user's cache folder."""
    if chosen := paths.chosen("FEDREPRO_DATA"):
        return chosen
    windows = platform.system() == "Windows"
    variable, fallback = ("LOCALAPPDATA", "~/AppData/Local") if windows else ("XDG_CACHE_HOME", "~/.cache")
    what = "FEDREPRO_DATA is not set, and neither is a home"
    cache = os.environ.get(variable, "")
    # A relative path there is invalid, says the XDG Base Directory Specification, and to be ignored.
    cache = cache if Path(cache).is_absolute() or cache.startswith("~") else fallback
    return paths.absolute(cache, what) / "fedrepro" / "data"


def files(name: str, split: Split, root: Path) -> tuple[Path, Path]:
    """Return where a split's images and labels lie in prepared form."""
    return root / name / f"{split}_images.npy", root / name / f"{split}_labels.npy"


class Available(NamedTuple):
    """A data set, whether all of its files are there, where ("shipped"), and the images of both splits."""

    name: str
    present: bool
    where: Path | str
    images: int


def available(root: Path | None = None) -> list[Available]:
    """List the data sets; only `load` looks whether the files are whole."""
    lines, why = list[Available](), ""
    try:
        root = root or data_root()
    except ValueError as error:  # no home: what is shipped needs none
        why = str(error)
    for name, spec in DATASETS.items():
        found = [path for split in SPLITS for path in files(name, split, root)] if root else []
        present = bool(found) and all(path.is_file() for path in found)
        where: Path | str = "shipped" if spec.shipped else root / name if root else why
        lines.append(Available(name, present or spec.shipped, where, sum(spec.sizes.values())))
    return lines


def load(name: str, split: Split, *, root: Path | None = None) -> Data:
    """Load one split of a data set on the CPU, checked and in canonical order.

    That order is by label, then by a digest of the image: files in archive order, sorted by class or copied
    by hand in any order give bit-identical tensors, hence identical partitions. Nothing is shuffled. The
    folder of prepared data is `root`, or `data_root()` if None. Where a data set has no checksums, sizes and
    counts of labels are checked and not the pixels (see `Spec`).

    Raises:
        FileNotFoundError: if a file is missing; the message names it and the command that mends it.
        ValueError: if a file is damaged, likewise, or a name is unknown.
    """
    spec = spec_of(name)
    if split not in SPLITS:
        raise ValueError(f"split must be one of {', '.join(SPLITS)}, got {split!r}")
    if spec.shipped:
        place, mend = "scikit-learn", "install another version of scikit-learn"
        images, labels = _shipped(name, split)
    else:
        found = files(name, split, root or data_root())
        place, mend = f"{found[0]} or {found[1].name}", f"run `fedrepro data prepare {name}`"
        images = _array(found[0], "uint8", [spec.sizes[split], *spec.shape], 256, mend)
        labels = _array(found[1], "int64", [spec.sizes[split]], len(spec.classes), mend)
    order = canonical_order(images, labels)
    tensors = torch.from_numpy(images[order]), torch.from_numpy(labels[order])
    data = Data(name, *tensors, spec.classes, spec.mean, spec.std)
    if problem := _wrong_content(data, spec, split):
        raise ValueError(f"{place}: wrong content for {name}'s {split} split, {problem}; {mend}")
    return data


def _wrong_content(data: Data, spec: Spec, split: Split) -> str | None:
    """Return how a split differs from its checksum or, without one, from equally many images per class."""
    if split in spec.checksums:
        expected = spec.checksums[split]
        return None if data.fingerprint == expected else f"SHA-256 expected {expected}, found {data.fingerprint}"
    counts = data.labels.bincount(minlength=data.class_count)
    wrong = (counts != spec.per_class(split)).nonzero()
    if not len(wrong):
        return None
    label = int(wrong[0])
    return f"{spec.per_class(split)} images of class {data.classes[label]} expected, found {int(counts[label])}"


RESIZED_AT_ONCE = 100  # images: more leave the caches, and their memory is mapped anew each time


def resized(data: Data, size: tuple[int, int]) -> Data:
    """Return the same images at another height and width.

    Along each axis, pixels are averaged where the size shrinks by a whole factor; otherwise it is the bilinear
    filter, widened where the size shrinks (antialias). All weights are integers and each pixel is divided and
    rounded once, a half upwards, so every machine and device gets the same bytes.

    Args:
        data: images, not features.
        size: the new height and width in pixels, each >= 1.
    """
    if data.images.ndim != 4 or min(size) < 1:
        raise ValueError(f"size must be >= 1 x 1 for images, got {size} for {_describe(data.images)}")
    if tuple(data.images.shape[1:3]) == tuple(size):
        return data
    device = data.images.device
    rows, columns = (
        torch.from_numpy(_weights(old, new)).to(device) for old, new in zip(data.images.shape[1:3], size)
    )
    divisor = (rows.sum(1)[:, None] * columns.sum(1))[..., None]
    images = torch.empty((len(data), *size, 3), dtype=torch.uint8, device=device)
    for begin in range(0, len(data), RESIZED_AT_ONCE):
        chunk = slice(begin, begin + RESIZED_AT_ONCE)
        # Exact: float64 holds integers up to 2^53, and no quotient of small ones rounds up to an integer
        total = torch.einsum("ih,nhwc,jw->nijc", rows, data.images[chunk].double(), columns)
        images[chunk] = ((2 * total + divisor) / (2 * divisor)).floor()
    return replace(data, images=images)


def _weights(old: int, new: int) -> np.ndarray:
    """Return the integer weights, float64 [new, old], of the old pixels along an axis in each new one."""
    if old % new == 0:
        return np.kron(np.eye(new), np.ones(old // new))
    # In units of 1 / (2 old new) of the axis, the centres lie at odd multiples of `old` and of `new`. The filter
    # is a triangle that reaches as far as two pixels of the coarser grid are apart.
    apart = np.abs(old * (2 * np.arange(new)[:, None] + 1) - new * (2 * np.arange(old) + 1))
    return np.maximum(2 * max(old, new) - apart, 0).astype(np.float64)


def canonical_order(images: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Return the positions [N] that sort by label, then by digest; ties are equal in every byte."""
    rows = np.ascontiguousarray(images).reshape(len(labels), -1)
    digests = b"".join(hashlib.sha256(row.data).digest() for row in rows)
    words = np.frombuffer(digests, dtype=">u8").reshape(-1, 4)
    return np.lexsort((*words.T[::-1], labels))


def _array(path: Path, dtype: str, shape: list[int], stop: int, mend: str) -> np.ndarray:
    """Map one prepared file into memory after checking that it holds integers in [0, stop) as described."""
    try:
        with warnings.catch_warnings(action="error"):
            array = np.lib.format.open_memmap(path, mode="r")  # never unpickles
        size = path.stat().st_size
    except FileNotFoundError as error:
        raise FileNotFoundError(f"{path} is missing; {mend}") from error
    except Exception as error:  # numpy evaluates the header as Python, so damage there may raise anything
        why = " ".join(f"{type(error).__name__} {error}".split())[:200]
        raise ValueError(f"{path} cannot be read ({why}); {mend}") from error
    if array.dtype != dtype or list(array.shape) != shape:
        raise ValueError(f"{path} must hold {dtype} {shape}, found {_describe(array)}; {mend}")
    if size != array.offset + array.nbytes:
        raise ValueError(f"{path} must have {array.offset + array.nbytes} bytes, found {size}; {mend}")
    if array.min() < 0 or array.max() >= stop:
        raise ValueError(f"{path} must be in [0, {stop}), found {array.min()} to {array.max()}; {mend}")
    return array


def _shipped(name: str, split: Split) -> tuple[np.ndarray, np.ndarray]:
    """Return a shipped data set's split: the test images are the start of every class in canonical order."""
    images, labels = SHIPPED[name]()
    order, quota = canonical_order(images, labels), apportion(np.bincount(labels), spec_of(name).sizes["test"])
    test = np.concatenate([order[labels[order] == c][:n] for c, n in enumerate(quota)])
    index = test if split == "test" else np.setdiff1d(order, test)
    return images[index], labels[index]
