"""The server's public images: where they come from.

A new source is an entry in `SOURCES`: a function from a setting, a seed and the clients' training images to
images.

Shapes: N images, C classes, H x W pixels.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from fedrepro.core.names import nearest
from fedrepro.core.rng import numpy_generator
from fedrepro.core.setting import SHARE, Option, Setting, at_least, declare
from fedrepro.data import partition
from fedrepro.data.data import Data, resized, spec_of
from fedrepro.data.datasets import DATASETS
from fedrepro.federation.loaded import datasets

declare(
    public_images=Option("images set aside, stratified, for the server", neutral=0, example=30, must=at_least(0)),
    public_data=Option(
        'where the images come from instead: a data set, of which all training images, or "noise"; "" for those '
        "set aside",
        neutral="",
        example="photos",
    ),
    public_classes=Option(
        "classes of the other data set that the server holds, drawn at random; 0 for all",
        neutral=0,
        example=1,
        where={"public_data": "photos"},
        must=at_least(0),
    ),
    public_fraction=Option(
        "share of the other data set's images that the server holds, stratified",
        neutral=1.0,
        example=0.5,
        where={"public_data": "photos"},
        must=SHARE,
    ),
)

Source = Callable[[Setting, int, Data], Data]


def noise(setting: Setting, seed: int, like: Data) -> Data:
    """Return `public_images` images of pixels drawn uniformly and independently (FedDF, Figure 5)."""
    shape = (setting.public_images, *like.images.shape[1:])
    pixels = numpy_generator(seed, "public noise").integers(256, size=shape, dtype=np.uint8)
    labels = torch.zeros(len(pixels), dtype=torch.int64)
    images = torch.from_numpy(pixels)
    return Data("noise", images, labels, ("noise",), like.mean, like.std).to(like.images.device)


SOURCES: dict[str, Source] = {"noise": noise}


def public_data(setting: Setting, seed: int, held: Tensor | np.ndarray, train: Data) -> Data:
    """Return the server's images.

    Args:
        setting: where they come from.
        seed: the run's seed.
        held: positions in `train` of the images set aside.
        train: the training images, of clients and server together.

    Raises:
        ValueError: for an unknown source or data set.
    """
    if not setting.public_data:
        return train.subset(held)
    if setting.public_data in SOURCES:
        return SOURCES[setting.public_data](setting, seed, train)
    if setting.public_data not in DATASETS:
        known = nearest(setting.public_data, [*DATASETS, *SOURCES])
        raise ValueError(f"unknown data set or source of public images {setting.public_data!r}{known}")
    return _part(setting, seed, _brought(setting.public_data, setting.data, str(train.images.device)))


def _brought(name: str, like: str, device: str) -> Data:
    """Return the training images of one data set as public images for clients of another.

    They are brought to the clients' size and normalised like the clients' images, as the teachers expect it.
    """
    key = (name, like, device)
    train, spec = datasets(name, device)[0], spec_of(like)
    if key not in _KEPT or _KEPT[key][0] is not train:
        _KEPT[key] = train, replace(resized(train, spec.shape[:2]), mean=spec.mean, std=spec.std)
    return _KEPT[key][1]


_KEPT: dict[tuple[str, str, str], tuple[Data, Data]] = {}  # made from which data set, and the images


def _part(setting: Setting, seed: int, data: Data) -> Data:
    """Keep some classes and a share of the images of each; nothing is drawn where all are kept."""
    labels = data.labels.cpu().numpy()
    chosen = np.arange(len(labels))
    if setting.public_classes:
        if setting.public_classes > data.class_count:
            raise ValueError(f"public_classes must be <= {data.class_count}, got {setting.public_classes}")
        classes = numpy_generator(seed, "public classes").permutation(data.class_count)
        chosen = chosen[np.isin(labels, classes[: setting.public_classes])]
    if setting.public_fraction < 1:
        size = max(1, round(setting.public_fraction * len(chosen)))
        kept, _ = partition.stratified_split(labels[chosen], size, rng=numpy_generator(seed, "public fraction"))
        chosen = chosen[kept]
    return data if len(chosen) == len(labels) else data.subset(chosen)
