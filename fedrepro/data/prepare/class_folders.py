"""Images in class folders, on the disk or in a zip file: what lies where, and reading it.

The images, .png, .jpg or .jpeg, lie at any depth in `train/<class>/` and `test/<class>/`. For the test split,
`val/<class>/` will do where `test` has no class folders, and so will Tiny-ImageNet's `val/images/` with the
classes in `val/val_annotations.txt`. Class folders may differ from the names of the classes in capitals and in
all that is neither letter nor digit. Other files are ignored, and so is whatever lies in or is a file or folder
that systems and programs leave behind (`LEFT_BEHIND`).

Shapes: N images, H, W height and width in pixels.
"""

import os
import re
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path, PurePosixPath

import numpy as np
from PIL import ExifTags, Image

from fedrepro.core.files import text
from fedrepro.data.datasets import SPLITS, Spec, Split

Arrays = tuple[np.ndarray, np.ndarray]  # images uint8 [N, H, W, 3], labels int64 [N]
PLACES: Mapping[Split, tuple[str, ...]] = {"train": ("train",), "test": ("test", "val")}
ANNOTATIONS = "val_annotations.txt"
SUFFIXES = (".png", ".jpg", ".jpeg")
# How names begin that are nobody's images: .ipynb_checkpoints, .DS_Store, ._1.png, @eaDir, #recycle, $RECYCLE.BIN,
# ~lock, __MACOSX.
LEFT_BEHIND = (".", "@", "#", "$", "~", "__")
MODES = ("RGB", "L", "P", "1", "RGBA", "LA")  # of Pillow; those with an alpha channel must be opaque


@dataclass(frozen=True)
class Tree:
    """The files under a folder, on the disk or in a zip file."""

    where: Path
    names: Sequence[str]  # relative to the folder, with slashes
    read: Callable[[str], bytes]


def read_folder(folder: Path, spec: Spec) -> dict[Split, Arrays]:
    """Read a data set from class folders of images.

    Args:
        folder: has the folders `train` and `test` or `val`.
        spec: the data set: its classes, its sizes and the images' shape.

    Returns:
        Images uint8 [N, H, W, 3] and labels int64 [N] of each split, sorted by class, then by file name.

    Raises:
        FileNotFoundError: if there is no such folder.
        ValueError: if a class or an image is missing, unknown, of another size or damaged.
    """
    if not folder.is_dir():
        raise FileNotFoundError(f"the folder of images must be a folder, got {folder}")
    names = [
        (Path(parent) / name).relative_to(folder).as_posix()
        for place in ("train", "test", "val")
        for parent, _, found in os.walk(folder / place, followlinks=True)
        for name in found
    ]
    return _read(Tree(folder, sorted(names), lambda name: (folder / name).read_bytes()), spec)


def read_zip(path: Path, spec: Spec, *, folder: str) -> dict[Split, Arrays]:
    """Read a data set from class folders of images below a folder of a zip file, as `read_folder` does.

    Raises:
        ValueError: if the zip file is damaged, or does not hold what it should.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            names = [
                name.removeprefix(f"{folder}/") for name in archive.namelist() if name.startswith(f"{folder}/")
            ]
            return _read(Tree(path, sorted(names), lambda name: archive.read(f"{folder}/{name}")), spec)
    # zipfile raises NotImplementedError where a damaged header names a compression that does not exist.
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError) as error:
        raise ValueError(f"{path} is damaged: {error}") from error


def _read(tree: Tree, spec: Spec) -> dict[Split, Arrays]:
    listed = {split: _listed(tree, spec, split) for split in SPLITS}  # all is counted before an image is read
    splits: dict[Split, Arrays] = {}
    for split, by_class in listed.items():
        images = np.empty((spec.sizes[split], *spec.shape), dtype=np.uint8)
        for place, name in enumerate(name for names in by_class for name in names):
            images[place] = _pixels(tree, name, spec)
        splits[split] = images, np.repeat(np.arange(len(by_class)), spec.per_class(split))
    return splits


def _listed(tree: Tree, spec: Spec, split: Split) -> list[list[str]]:
    """Return the names of the images of each class of a split.

    Raises:
        ValueError: unless there is every class, no other, and each with as many images as it must have.
    """
    places = PLACES[split]
    place, found = next(((place, found) for place in places if (found := _by_class(tree, place))), (places[0], {}))
    where, count = tree.where / place, spec.per_class(split)
    if not found:
        wanted = " or ".join(f"{place}/<class>/" for place in places)
        raise ValueError(f"{tree.where} must have the {split} images in {wanted}, found none there")
    labels = {_plain(name): label for label, name in enumerate(spec.classes)}
    by_class: list[list[str]] = [[] for _ in spec.classes]
    for name, images in found.items():
        if _plain(name) not in labels:
            raise ValueError(
                f"{where} must have folders of {len(labels)} classes ({_few(spec.classes)}) and no other,"
                f" found {name}"
            )
        by_class[labels[_plain(name)]] += images
    if missing := [name for name, images in zip(spec.classes, by_class) if not images]:
        raise ValueError(f"{where} must have images of {len(labels)} classes, found none of {_few(missing)}")
    for name, images in zip(spec.classes, by_class):
        if len(images) != count:
            raise ValueError(
                f"{where} must have {count} images of {name}, found {len(images)}{_odd(images, count)}"
            )
    return by_class


def _by_class(tree: Tree, place: str) -> dict[str, list[str]]:
    """Return the names of the images in `train`, `test` or `val` by the names of their classes."""
    annotations = f"{place}/{ANNOTATIONS}"
    classes = None
    if annotations in tree.names:
        lines = text(tree.where / annotations, tree.read(annotations)).splitlines()
        classes = dict(line.split("\t")[:2] for line in lines if "\t" in line)
    found: dict[str, list[str]] = {}
    for name in tree.names:
        path = PurePosixPath(name)
        if len(path.parts) < 3 or path.parts[0] != place or any(p.startswith(LEFT_BEHIND) for p in path.parts):
            continue
        if path.suffix.lower() not in SUFFIXES:
            continue
        folder = path.parts[1]
        if folder == "images":  # of all classes, which only the annotations know, if there are any
            if classes is None:
                continue
            if path.name not in classes:
                raise ValueError(f"{tree.where / annotations} must name the class of {path.name}, it does not")
            folder = classes[path.name]
        found.setdefault(folder, []).append(name)
    return found


def _odd(names: Sequence[str], count: int) -> str:
    """Return which of the images of a class are probably too many, those with the rarest form of name first."""
    if len(names) <= count:
        folders = sorted({str(PurePosixPath(name).parent) for name in names})
        return f" in {_few(folders)}"
    forms = [re.sub(r"[0-9]+", "0", name) for name in names]
    often = Counter(forms)
    odd = [name for _, name in sorted(zip(forms, names), key=lambda pair: often[pair[0]])]
    return f", too many by {len(names) - count}: look at {_few(odd[: len(names) - count])}"


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")


def _pixels(tree: Tree, name: str, spec: Spec) -> np.ndarray:
    """Decode one image of the right size to uint8 [H, W, 3], a greyscale one with three equal colours."""
    height, width, _ = spec.shape
    content = tree.read(name)
    try:
        with Image.open(BytesIO(content), formats=("PNG", "JPEG")) as image:
            if image.size != (width, height):
                problem = f"must have {height} x {width} pixels, found {image.height} x {image.width}"
            elif not (problem := _unlike(image, content)):
                return np.asarray(image.convert("RGB"))
    except Exception as error:  # Pillow's decoders may raise anything over damaged bytes
        raise ValueError(f"{tree.where / name} is damaged: {type(error).__name__} {error}") from error
    raise ValueError(f"{tree.where / name} {problem}")


def _unlike(image: Image.Image, content: bytes) -> str:
    """Return why an image does not become RGB of 8 bits without loss or doubt, or "".

    Grey of 1, 2 or 4 bits has exact values in 8 bits, and colours of a palette have 8 bits.
    """
    if image.format == "PNG" and content[24] == 16:  # the header's bit depth; Pillow cuts 16 bits of colours to 8
        return f"must have 8 bits per colour, found mode {image.mode} of 16 bits"
    if image.mode not in MODES:
        return f"must have 8 bits per colour in mode {', '.join(MODES)}, found mode {image.mode}"
    if (frames := getattr(image, "n_frames", 1)) != 1:
        return f"must be one image, found {frames} frames"
    if (turned := image.getexif().get(ExifTags.Base.Orientation, 1)) not in (0, 1):
        return f"must be stored upright, found EXIF orientation {turned}"
    if "A" in image.mode or "transparency" in image.info:
        least = int(np.asarray(image.convert("RGBA"))[..., 3].min())
        if least != 255:
            return f"must be opaque, found mode {image.mode} with an alpha of {least}"
    return ""
