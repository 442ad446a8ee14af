"""Preparing from archives and folders: small ones like the real, and everything that can be wrong with them."""

import dataclasses
import errno
import hashlib
import io
import os
import pickle
import re
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Thread, Timer

import numpy as np
import pytest
import torch
from filelock import FileLock
from PIL import Image

from fedrepro.data import data
from fedrepro.data.data import Data, Spec, canonical_order, load
from fedrepro.data.prepare import archives, class_folders, prepare, space
from fedrepro.data.prepare import download as downloads

UNIT = (0.5, 0.5, 0.5)
MEMBERS: dict[data.Split, tuple[str, ...]] = {
    "train": ("small/batch_1", "small/batch_2"),
    "test": ("small/test_batch",),
}


def planar(first: int, count: int) -> np.ndarray:
    """Batch rows [n, 18] of 2x3 images: red 0.., green 80.., blue 160.., each image ten further."""
    one_image = np.concatenate([np.arange(6), 80 + np.arange(6), 160 + np.arange(6)])
    return (one_image + 10 * np.arange(first, first + count)[:, None]).astype(np.uint8)


def python2_pickle(rows: np.ndarray, labels: list[int]) -> bytes:
    """A batch as Python 2 pickled it: byte strings, and numpy's old module names."""

    def text(value: bytes) -> bytes:
        return b"U" + bytes([len(value)]) + value

    data = rows.tobytes()
    array = (
        b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(K\x00t"
        + text(b"b")
        + b"tR(K\x01K"
        + bytes([rows.shape[0]])
        + b"K"
        + bytes([rows.shape[1]])
        + b"\x86cnumpy\ndtype\n("
        + text(b"u1")
        + b"K\x00K\x01tR(K\x03"
        + text(b"|")
        + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89T"
        + struct.pack("<i", len(data))
        + data
        + b"tb"
    )
    numbers = b"](" + b"".join(b"K" + bytes([label]) for label in labels) + b"e"
    return b"\x80\x02}(" + text(b"labels") + numbers + text(b"data") + array + b"u."


def members() -> dict[str, bytes]:
    return {
        "small/batch_1": python2_pickle(planar(0, 3), [1, 0, 1]),
        "small/batch_2": python2_pickle(planar(3, 3), [0, 0, 1]),
        "small/test_batch": python2_pickle(planar(6, 2), [1, 0]),
        "small/readme.html": b"hello",
    }


def pack(path: Path, contents: dict[str, bytes]) -> str:
    """Write a .tar.gz and return its MD5."""
    with tarfile.open(path, "w:gz") as tar:
        for name, content in contents.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return hashlib.md5(path.read_bytes()).hexdigest()


def nhwc(first: int, count: int) -> np.ndarray:
    """The images that `planar` describes, pixel by pixel."""
    image = [[[c * 80 + 3 * row + column for c in range(3)] for column in range(3)] for row in range(2)]
    return np.stack([np.array(image) + 10 * k for k in range(first, first + count)]).astype(np.uint8)


def checksum(images: np.ndarray, labels: list[int]) -> str:
    order = canonical_order(images, np.array(labels))
    tensors = torch.from_numpy(images[order]), torch.tensor(labels)[torch.from_numpy(order)]
    return Data("small", *tensors, ("a", "b"), UNIT, UNIT).fingerprint


class Small:
    """The data set "small": its archive, its registry entries and an empty data root."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root, self.archive, self.patch = folder / "root", folder / "small.tar.gz", monkeypatch
        self.spec = Spec(
            shape=(2, 3, 3),
            sizes={"train": 6, "test": 2},
            classes=("a", "b"),
            mean=UNIT,
            std=UNIT,
            checksums={
                "train": checksum(nhwc(0, 6), [1, 0, 1, 0, 0, 1]),
                "test": checksum(nhwc(6, 2), [1, 0]),
            },
        )
        self.url = "http://localhost/small.tar.gz"
        self.register(pack(self.archive, members()))

    def register(self, md5: str) -> None:
        """Put the data set into the registries, with this MD5."""
        read = partial(archives.read_pickled_batches, members=MEMBERS, label_key="labels")
        official = prepare.Archive(url=self.url, md5=md5, read=read)
        self.patch.setattr(data, "DATASETS", {"small": self.spec, "digits": data.DATASETS["digits"]})
        self.patch.setattr(prepare, "ARCHIVES", {"small": official})

    def repack(self, contents: dict[str, bytes]) -> None:
        """Replace the archive and make it the official one."""
        self.register(pack(self.archive, contents))

    def prepare(self, **change: object) -> Path:
        arguments: dict[str, object] = {"root": self.root, "archive": self.archive, "progress": False}
        return prepare.prepare("small", **(arguments | change))  # type: ignore[arg-type]

    def left(self) -> list[str]:
        """What lies in the data root, but for the lock."""
        return sorted(path.name for path in self.root.iterdir() if path.suffix != ".lock")


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Small:
    return Small(tmp_path, monkeypatch)


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *message: object) -> None:
        del message


@pytest.fixture
def website(small: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Serve the archive on this machine, as its official address."""
    monkeypatch.setenv("no_proxy", "*")
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=tmp_path)) as server:
        small.url = f"http://127.0.0.1:{server.server_port}/small.tar.gz"
        small.register(prepare.ARCHIVES["small"].md5)
        Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        yield
        server.shutdown()


def test_planar_bytes_become_pixels_in_the_archives_order(small: Small) -> None:
    folder = small.prepare()
    assert folder == small.root / "small"
    assert small.left() == ["small"]
    train, labels = np.load(folder / "train_images.npy"), np.load(folder / "train_labels.npy")
    assert (train.dtype, train.shape, labels.dtype) == (np.uint8, (6, 2, 3, 3), np.int64)
    assert train[0, 1, 2].tolist() == [5, 85, 165]  # the last of each plane's six bytes
    assert np.array_equal(train, nhwc(0, 6))
    assert labels.tolist() == [1, 0, 1, 0, 0, 1]
    assert np.array_equal(np.load(folder / "test_images.npy"), nhwc(6, 2))
    assert np.load(folder / "test_labels.npy").tolist() == [1, 0]
    assert load("small", "train", root=small.root).labels.tolist() == [0, 0, 0, 1, 1, 1]


@pytest.mark.parametrize("protocol", [2, 4])
def test_reads_pickles_of_this_python_too(small: Small, protocol: int) -> None:
    def batch(first: int, labels: list[int]) -> bytes:
        return pickle.dumps({"data": planar(first, len(labels)), "labels": labels}, protocol=protocol)

    small.repack(
        {
            "small/batch_1": batch(0, [1, 0, 1]),
            "small/batch_2": batch(3, [0, 0, 1]),
            "small/test_batch": batch(6, [1, 0]),
        }
    )
    assert len(load("small", "train", root=small.prepare().parent)) == 6


def test_a_prepared_data_set_is_left_alone(small: Small, capsys: pytest.CaptureFixture[str]) -> None:
    folder = small.prepare()
    before = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
    small.archive.unlink()  # not even looked at
    assert small.prepare(progress=True) == folder
    assert "small is already prepared and valid" in capsys.readouterr().err
    assert {path: path.stat().st_mtime_ns for path in folder.iterdir()} == before


def test_works_on_a_read_only_root(small: Small) -> None:
    small.prepare()
    for path in small.root.iterdir():
        if path.suffix == ".lock":
            path.unlink()
    small.root.chmod(0o500)
    try:
        assert small.prepare() == small.root / "small"
        assert not list(small.root.glob(".*"))
    finally:
        small.root.chmod(0o700)


def test_damaged_files_are_replaced_and_others_kept(small: Small, capsys: pytest.CaptureFixture[str]) -> None:
    folder = small.prepare()
    (folder / "notes.txt").write_text("mine")
    (folder / "train_images.npy").write_bytes(b"damaged")
    (folder / "test_labels.npy").unlink()
    small.prepare(progress=True)
    assert "train_images.npy cannot be read" in capsys.readouterr().err
    assert np.array_equal(np.load(folder / "train_images.npy"), nhwc(0, 6))
    assert np.load(folder / "test_labels.npy").tolist() == [1, 0]
    assert (folder / "notes.txt").read_text() == "mine"
    assert small.left() == ["small"]


def test_a_link_to_another_folder_is_filled_there(small: Small, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    small.root.mkdir()
    (small.root / "small").symlink_to(tmp_path / "elsewhere", target_is_directory=True)
    assert small.prepare() == small.root / "small"
    assert (small.root / "small").is_symlink()
    assert len(list((tmp_path / "elsewhere").glob("*.npy"))) == 4
    assert small.left() == ["small"]


def test_what_a_killed_preparation_left_is_cleared(small: Small) -> None:
    (small.root / ".small.partial" / "small").mkdir(parents=True)
    (small.root / ".small.partial" / "small" / "train_images.npy").write_bytes(b"half")
    small.prepare()
    assert small.left() == ["small"]


def test_a_wrong_md5_names_the_file_and_both_sums(small: Small) -> None:
    expected = prepare.ARCHIVES["small"].md5
    small.archive.write_bytes(small.archive.read_bytes() + b"\0")
    found = hashlib.md5(small.archive.read_bytes()).hexdigest()
    with pytest.raises(
        ValueError,
        match=rf"small.tar.gz is damaged or not .*of small: MD5 expected {expected}, found {found}",
    ):
        small.prepare()
    assert small.left() == []


def test_nothing_is_unpickled_before_the_md5_is_right(small: Small, tmp_path: Path) -> None:
    pack(small.archive, members() | {"small/batch_1": evil_pickle(tmp_path)})
    with pytest.raises(ValueError, match="MD5 expected"):
        small.prepare()


def test_a_missing_archive(small: Small, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"the archive of small must be a file, got .*nowhere"):
        small.prepare(archive=tmp_path / "nowhere.tar.gz")
    with pytest.raises(FileNotFoundError, match="the archive of small must be a file"):
        small.prepare(archive=tmp_path)
    assert small.left() == []


def test_a_failure_keeps_the_files_that_were_there(small: Small) -> None:
    folder = small.prepare()
    (folder / "test_labels.npy").unlink()
    before = {path: path.read_bytes() for path in folder.iterdir()}
    small.archive.write_bytes(b"no archive")
    with pytest.raises(ValueError, match="MD5"):
        small.prepare()
    assert {path: path.read_bytes() for path in folder.iterdir()} == before


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5])
def test_a_truncated_archive(small: Small, share: float) -> None:
    content = small.archive.read_bytes()
    small.archive.write_bytes(content[: int(share * len(content))])
    small.register(hashlib.md5(small.archive.read_bytes()).hexdigest())
    with pytest.raises(ValueError, match=r"small.tar.gz (is damaged|must contain)"):
        small.prepare()
    assert small.left() == []


def test_a_missing_member(small: Small) -> None:
    contents = members()
    del contents["small/batch_2"]
    small.repack(contents)
    with pytest.raises(ValueError, match=r"small.tar.gz must contain small/batch_2"):
        small.prepare()


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        ({"data": planar(0, 3)}, "must hold 'data' and 'labels'"),
        ({"labels": [1, 0, 1]}, "must hold 'data' and 'labels'"),
        ({"data": [1, 2], "labels": [1, 0]}, "must hold 'data' and 'labels'"),
        ([1, 2], "must hold 'data' and 'labels'"),
        ({"data": planar(0, 3), "labels": [1, 0]}, r"uint8 \[2, 18\]"),
        ({"data": planar(0, 3)[:, :12], "labels": [1, 0, 1]}, r"uint8 \[3, 18\], got .*12"),
        (
            {"data": planar(0, 3).astype(np.int64), "labels": [1, 0, 1]},
            r"uint8 \[3, 18\], got int64",
        ),
    ],
)
def test_a_batch_that_does_not_hold_what_it_should(small: Small, batch: object, message: str) -> None:
    small.repack(members() | {"small/batch_1": pickle.dumps(batch)})
    with pytest.raises(ValueError, match=r"small.tar.gz is damaged: .*" + message):
        small.prepare()


def test_too_few_images(small: Small) -> None:
    small.repack(members() | {"small/batch_2": python2_pickle(planar(3, 2), [0, 0])})
    with pytest.raises(ValueError, match=r"train_images.npy must hold uint8 \[6, 2, 3, 3\], found .*\[5,"):
        small.prepare()
    assert small.left() == []


def test_other_pixels_in_an_archive_that_passes(small: Small) -> None:
    small.repack(members() | {"small/test_batch": python2_pickle(planar(7, 2), [1, 0])})
    with pytest.raises(ValueError, match="wrong content for small's test split, SHA-256 expected"):
        small.prepare()
    assert small.left() == []


class Evil:
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self.folder),)


def evil_pickle(folder: Path) -> bytes:
    return pickle.dumps({"data": Evil(folder / "evil"), "labels": []})


def test_a_pickle_cannot_call_anything(small: Small, tmp_path: Path) -> None:
    small.repack(members() | {"small/batch_1": evil_pickle(tmp_path)})
    with pytest.raises(ValueError, match=r"is damaged: \w+.mkdir has no place in a batch"):
        small.prepare()
    assert not (tmp_path / "evil").exists()


def test_other_members_are_never_written(small: Small, tmp_path: Path) -> None:
    small.repack(members() | {"../escaped": b"x", str(tmp_path / "absolute"): b"x"})
    small.prepare()
    assert not (small.root.parent / "escaped").exists()
    assert not (tmp_path / "absolute").exists()
    assert small.left() == ["small"]


@pytest.mark.usefixtures("website")
class TestDownload:
    def test_where_no_archive_is_given(self, small: Small, capfd: pytest.CaptureFixture[str]) -> None:
        small.prepare(archive=None)
        assert small.left() == ["small"]
        assert capfd.readouterr() == ("", "")

    def test_with_a_progress_bar_if_asked(self, small: Small, capfd: pytest.CaptureFixture[str]) -> None:
        small.prepare(archive=None, progress=True)
        assert "100%" in capfd.readouterr().err

    def test_a_failure_says_what_to_do(self, small: Small) -> None:
        small.archive.unlink()
        with pytest.raises(
            ConnectionError,
            match=r"could not download http:.*404.*`fedrepro data prepare small --archive small.tar.gz`",
        ):
            small.prepare(archive=None)
        assert small.left() == []

    def test_a_wrong_md5_is_refused(self, small: Small) -> None:
        small.register("0" * 32)
        with pytest.raises(ConnectionError, match=r"could not download .*corrupted"):
            small.prepare(archive=None)
        assert small.left() == []


def test_says_what_happens_if_asked(small: Small, capsys: pytest.CaptureFixture[str]) -> None:
    small.prepare(progress=True)
    told = capsys.readouterr()
    assert told.out == ""
    assert "train_images.npy is missing" in told.err
    assert f"reading {small.archive}" in told.err
    assert f"prepared small: {small.root / 'small'}" in told.err


def test_uses_the_data_root(small: Small, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDREPRO_DATA", str(small.root))
    assert small.prepare(root=None) == small.root / "small"


def test_names_that_cannot_be_prepared(small: Small) -> None:
    with pytest.raises(ValueError, match="data set must be one of small, digits, got 'mnist'"):
        prepare.prepare("mnist", root=small.root)
    with pytest.raises(ValueError, match="digits needs no preparing"):
        prepare.prepare("digits", root=small.root)
    assert not small.root.exists()


def test_every_data_set_is_shipped_or_has_an_archive() -> None:
    for name, spec in data.DATASETS.items():
        assert spec.shipped != (name in prepare.ARCHIVES)
    assert set(prepare.ARCHIVES) <= set(data.DATASETS)
    for archive in prepare.ARCHIVES.values():
        assert len(archive.md5) == 32
        assert re.match("https?://", archive.url)  # the MD5 is checked, whoever answers


def test_the_real_archives_are_read_as_their_authors_wrote_them(tmp_path: Path) -> None:
    """CIFAR-100's fine labels, in members named train and test; here with images of 2x3."""
    small = Spec(shape=(2, 3, 3), sizes={"train": 2, "test": 1}, classes=("a", "b"), mean=UNIT, std=UNIT)
    contents = {
        f"cifar-100-python/{split}": pickle.dumps(
            {"data": planar(first, count), "fine_labels": [1, 0][:count], "coarse_labels": [0] * count}
        )
        for split, first, count in (("train", 0, 2), ("test", 2, 1))
    }
    pack(tmp_path / "cifar.tar.gz", contents)
    splits = archives.ARCHIVES["cifar100"].read(tmp_path / "cifar.tar.gz", small)
    assert np.array_equal(splits["train"][0], nhwc(0, 2))
    assert splits["train"][1].tolist() == [1, 0]
    assert np.array_equal(splits["test"][0], nhwc(2, 1))


# -- class folders --------------------------------------------------------------------------------------------


def write(folder: Path, names: list[str], first: int = 0) -> None:
    """Write the images that `nhwc` describes, PNG or what the name says."""
    for k, name in enumerate(names, first):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(nhwc(k, 1)[0]).save(folder / name)


A, B = [f"train/a/{k}.png" for k in (1, 3, 4)], [f"train/b/{k}.png" for k in (0, 2, 5)]


@pytest.fixture
def pictures(small: Small, tmp_path: Path) -> Path:
    """A folder with the very images of "small", whose labels in the archive are 1 0 1 0 0 1 and 1 0."""
    write(tmp_path / "pictures", [B[0], A[0], B[1], A[1], A[2], B[2], "test/b/6.png", "test/a/7.png"])
    small.archive.unlink()
    return tmp_path / "pictures"


def from_folder(small: Small, pictures: Path) -> Path:
    return small.prepare(archive=None, from_folder=pictures)


def test_class_folders_give_what_the_archive_gives(small: Small, pictures: Path) -> None:
    (pictures / "train" / "a" / "readme.txt").write_text("no image")
    (pictures / "train" / "a" / "._1.png").write_bytes(b"no image either")
    (pictures / "other").mkdir()
    assert from_folder(small, pictures) == small.root / "small"
    assert np.load(small.root / "small" / "train_labels.npy").tolist() == [0, 0, 0, 1, 1, 1]
    assert np.array_equal(np.load(small.root / "small" / "train_images.npy")[3], nhwc(0, 1)[0])
    assert load("small", "train", root=small.root).fingerprint == small.spec.checksums["train"]


@pytest.mark.parametrize(
    "moves",
    [
        [("test", "val")],
        [("train/a", "train/A"), ("test/b", "test/_B-")],
        [("train/a", "x"), ("x", "train/a/images")],
        [("train/a", "x"), ("x", "train/a/0/1")],
        [("train/a/1.png", "train/a/1.PNG")],
    ],
)
def test_other_layouts(moves: list[tuple[str, str]], small: Small, pictures: Path) -> None:
    for old, new in moves:
        (pictures / new).parent.mkdir(parents=True, exist_ok=True)
        (pictures / old).rename(pictures / new)
    from_folder(small, pictures)


def annotate(pictures: Path, text: str = "6.png\tb\t0\t0\t1\t1\n7.png\ta\t0\t0\t1\t1\n") -> None:
    """Turn the test images into Tiny-ImageNet's validation set, beside its test set without labels."""
    write(pictures, ["val/images/6.png", "val/images/7.png"], first=6)
    (pictures / "val" / "val_annotations.txt").write_text(text)
    for name in ("b/6.png", "a/7.png"):
        (pictures / "test" / name).unlink()
    write(pictures, ["test/images/test_0.png"])


def test_the_layout_of_tiny_imagenet(small: Small, pictures: Path) -> None:
    annotate(pictures)
    from_folder(small, pictures)
    assert np.array_equal(np.load(small.root / "small" / "test_images.npy"), nhwc(6, 2)[::-1])


def test_annotations_that_miss_an_image(small: Small, pictures: Path) -> None:
    annotate(pictures, "7.png\ta\t0\t0\t1\t1\n")
    with pytest.raises(ValueError, match=r"val_annotations.txt must name the class of 6.png"):
        from_folder(small, pictures)


def test_annotations_that_are_no_utf8(small: Small, pictures: Path) -> None:
    annotate(pictures)
    (pictures / "val" / "val_annotations.txt").write_bytes(b"6.png\tb\n7.png\t\xe9\n")
    with pytest.raises(ValueError, match=r"val_annotations\.txt, line 2: not UTF-8"):
        from_folder(small, pictures)


def test_greyscale_becomes_three_equal_colours(small: Small, pictures: Path) -> None:
    grey = np.arange(6, dtype=np.uint8).reshape(2, 3)
    Image.fromarray(grey).save(pictures / A[0])
    splits = class_folders.read_folder(pictures, small.spec)
    assert np.array_equal(splits["train"][0][0], np.stack([grey] * 3, axis=2))


@pytest.mark.parametrize(
    ("lost", "added", "message"),
    [
        (A, [], r"pictures.train must have images of 2 classes, found none of a$"),
        ([], ["train/c/0.png"], r"pictures.train must have folders of 2 classes \(a, b\) and no other, found c$"),
        (B[:1], [], r"pictures.train must have 3 images of b, found 2 in train/b$"),
        (
            [],
            ["train/A/9.png"],
            r"train must have 3 images of a, found 4, too many by 1: .*train/A/9.png$",
        ),
        (
            [],
            ["train/a/1 (copy).png", "train/a/8.jpg"],
            r"3 images of a, found 5, too many by 2: look at train/a/1 \(copy\).png, train/a/8.jpg$",
        ),
        (A + B, [], r"pictures must have the train images in train/<class>/, found none there$"),
        (
            ["test/b/6.png", "test/a/7.png"],
            ["test/images/6.png", "test/7.png"],
            r"pictures must have the test images in test/<class>/ or val/<class>/, found none there$",
        ),
        (A[:1], ["train/a/1.jpg"], r"pictures must hold the very pixels of small, .*SHA-256 expected"),
    ],
)
def test_folders_that_do_not_hold_what_they_should(
    lost: list[str], added: list[str], message: str, small: Small, pictures: Path
) -> None:
    for name in lost:
        (pictures / name).unlink()
    write(pictures, added)
    with pytest.raises(ValueError, match=message):
        from_folder(small, pictures)
    assert small.left() == []


def test_an_image_of_another_size(small: Small, pictures: Path) -> None:
    Image.fromarray(np.zeros((3, 2, 3), np.uint8)).save(pictures / B[1])
    with pytest.raises(ValueError, match=r"train.b.2.png must have 2 x 3 pixels, found 3 x 2$"):
        from_folder(small, pictures)


@pytest.mark.parametrize(
    "left",
    [
        *("train/a/.ipynb_checkpoints/1-checkpoint.png", "train/.ipynb_checkpoints/a/1.png"),
        *("train/a/@eaDir/1.png/SYNOPHOTO_THUMB_M.jpg", "train/@eaDir/1.png", "train/__MACOSX/a/._1.png"),
        *("train/a/.DS_Store", "train/a/._1.png", "train/.hidden/1.png", "train/a/.thumbs/1.png", "test/.a/1.png"),
        *("train/#recycle/a/1.png", "train/a/$RECYCLE.BIN/1.png", "__MACOSX/train/a/1.png"),
    ],
)
def test_what_systems_leave_behind_is_no_image(left: str, small: Small, pictures: Path) -> None:
    path = pictures / left
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(nhwc(0, 1)[0]).save(path, format="PNG")
    from_folder(small, pictures)
    assert small.left() == ["small"]


def shown(mode: str) -> Image.Image:
    """Return an image of 2 x 3 pixels in a mode of Pillow."""
    if mode == "I;16":
        return Image.fromarray((np.arange(6).reshape(2, 3) * 10_000).astype(np.uint16))
    return Image.fromarray(nhwc(1, 1)[0]).convert(mode)


class TestModes:
    """Only what becomes RGB of 8 bits without loss or doubt is read."""

    @pytest.mark.parametrize(
        ("name", "mode", "message"),
        [
            ("png", "I;16", "must have 8 bits per colour, found mode I;16 of 16 bits"),
            ("jpg", "CMYK", "must have 8 bits per colour in mode RGB, .*, found mode CMYK"),
        ],
    )
    def test_refused(self, name: str, mode: str, message: str, small: Small, pictures: Path) -> None:
        (pictures / B[1]).unlink()
        path = pictures / f"train/b/2.{name}"
        shown(mode).save(path)
        with pytest.raises(ValueError, match=rf"train.b.2.{name} {message}$"):
            from_folder(small, pictures)
        assert small.left() == []

    def test_colours_of_16_bits(self, small: Small, pictures: Path) -> None:
        # Pillow reads them as RGB of 8 bits and says nothing; it cannot write them.
        def chunk(kind: bytes, body: bytes) -> bytes:
            return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

        rows = b"".join(b"\0" + bytes(range(18)) for _ in range(2))
        header = struct.pack(">IIBBBBB", 3, 2, 16, 2, 0, 0, 0)
        content = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows))
        (pictures / B[1]).write_bytes(content + chunk(b"IEND", b""))
        with pytest.raises(ValueError, match=r"2.png must have 8 bits per colour, found mode RGB of 16 bits"):
            from_folder(small, pictures)

    @pytest.mark.parametrize("mode", ["RGBA", "P", "RGB"])
    def test_opaque_ones_give_their_colours(self, mode: str, small: Small, pictures: Path) -> None:
        whole = Image.open(pictures / B[1])
        image = whole.quantize(6) if mode == "P" else whole.convert(mode)
        image.save(pictures / B[1])
        from_folder(small, pictures)

    @pytest.mark.parametrize("mode", ["1", "LA", "L"])
    def test_grey(self, mode: str, small: Small, pictures: Path) -> None:
        image = shown("L").convert(mode)
        image.save(pictures / A[0])
        found = class_folders.read_folder(pictures, small.spec)["train"][0][0]
        grey = np.asarray(image.convert("L"))
        assert np.array_equal(found, np.stack([grey] * 3, axis=2))

    @pytest.mark.parametrize("mode", ["RGBA", "LA"])
    def test_transparent_ones(self, mode: str, small: Small, pictures: Path) -> None:
        image = shown(mode)
        image.putalpha(200)
        image.save(pictures / B[1])
        with pytest.raises(ValueError, match=rf"2.png must be opaque, found mode {mode} with an alpha of 200"):
            from_folder(small, pictures)

    def test_a_transparent_colour(self, small: Small, pictures: Path) -> None:
        shown("L").save(pictures / B[1], transparency=int(np.asarray(shown("L"))[0, 0]))
        with pytest.raises(ValueError, match=r"2.png must be opaque, found mode L with an alpha of 0"):
            from_folder(small, pictures)

    def test_animated_ones(self, small: Small, pictures: Path) -> None:
        first, second = (Image.fromarray(nhwc(k, 1)[0]) for k in (2, 3))
        first.save(pictures / B[1], save_all=True, append_images=[second])
        with pytest.raises(ValueError, match=r"2.png must be one image, found 2 frames"):
            from_folder(small, pictures)

    @pytest.mark.parametrize("name", ["png", "jpg"])
    def test_turned_ones(self, name: str, small: Small, pictures: Path) -> None:
        exif = Image.Exif()
        exif[0x0112] = 3
        (pictures / B[1]).unlink()
        shown("RGB").save(pictures / f"train/b/2.{name}", exif=exif)
        with pytest.raises(ValueError, match=rf"2.{name} must be stored upright, found EXIF orientation 3"):
            from_folder(small, pictures)

    def test_any_damage_names_the_file(self, small: Small, pictures: Path) -> None:
        whole, source = (pictures / B[1]).read_bytes(), np.random.default_rng(0)
        for bit in source.choice(8 * len(whole), 200, replace=False).tolist():
            damaged = bytearray(whole)
            damaged[bit // 8] ^= 1 << bit % 8
            (pictures / B[1]).write_bytes(damaged)
            try:
                class_folders.read_folder(pictures, small.spec)
            except ValueError as error:
                assert "2.png" in str(error)  # noqa: PT017


class TestUnpacked:
    """The folders that the CIFAR archives unpack to."""

    @pytest.fixture
    def unpacked(self, small: Small, tmp_path: Path) -> Path:
        folder = tmp_path / "mine" / "small"
        folder.mkdir(parents=True)
        for name, content in members().items():
            (folder / Path(name).name).write_bytes(content)
        md5s = {Path(name).name: hashlib.md5(content).hexdigest() for name, content in members().items()}
        read = partial(archives.read_unpacked_batches, md5s=md5s, members=MEMBERS, label_key="labels")
        known = dataclasses.replace(prepare.ARCHIVES["small"], inside="small", unpacked=read)
        small.patch.setattr(prepare, "ARCHIVES", {"small": known})
        small.archive.unlink()
        return folder

    @pytest.mark.parametrize("up", [0, 1])
    def test_gives_what_the_archive_gives(self, up: int, small: Small, unpacked: Path) -> None:
        from_folder(small, unpacked if not up else unpacked.parent)
        for split in data.SPLITS:
            assert load("small", split, root=small.root).fingerprint == small.spec.checksums[split]

    def test_under_another_name(self, small: Small, unpacked: Path) -> None:
        from_folder(small, unpacked.rename(unpacked.with_name("cifar")))

    def test_a_damaged_file_is_not_even_unpickled(self, small: Small, unpacked: Path, tmp_path: Path) -> None:
        (unpacked / "batch_2").write_bytes(evil_pickle(tmp_path))
        with pytest.raises(ValueError, match=r"small.batch_2 is damaged or not the official file: MD5 expected"):
            from_folder(small, unpacked)
        assert not (tmp_path / "evil").exists()
        assert small.left() == []

    def test_a_missing_file(self, small: Small, unpacked: Path) -> None:
        (unpacked / "batch_2").unlink()
        with pytest.raises(ValueError, match=r"small must contain batch_2, which it does not"):
            from_folder(small, unpacked)

    @pytest.mark.parametrize(
        ("name", "inside", "files"),
        [
            ("cifar10", "cifar-10-batches-py", [*(f"data_batch_{k}" for k in range(1, 6)), "test_batch"]),
            ("cifar100", "cifar-100-python", ["train", "test"]),
        ],
    )
    def test_cifar(self, name: str, inside: str, files: list[str], tmp_path: Path) -> None:
        known = archives.ARCHIVES[name]
        assert known.inside == inside
        assert isinstance(known.unpacked, partial)
        assert list(known.unpacked.keywords["md5s"]) == files
        (tmp_path / inside).mkdir()
        for place in (tmp_path, tmp_path / inside):
            with pytest.raises(ValueError, match=rf"{inside} must contain {files[0]}, which it does not"):
                known.read_folder(place, data.DATASETS[name])
            (tmp_path / inside / "meta").touch()
        (tmp_path / inside / files[0]).write_bytes(b"another")
        with pytest.raises(ValueError, match=rf"{inside}.{files[0]} is damaged or not the official file"):
            known.read_folder(tmp_path, data.DATASETS[name])


class TestDamage:
    """Whatever happens to a prepared file: an error that names it and the command, which then mends it."""

    def test_flipped_bits(self, small: Small) -> None:
        folder, source = small.prepare(), np.random.default_rng(0)
        paths = sorted(folder.glob("*.npy"))
        whole = {path: path.read_bytes() for path in paths}
        noticed = 0
        for number in range(240):
            path = paths[number % len(paths)]
            damaged = bytearray(whole[path])
            reach = 128 if number % 2 else len(damaged)  # half of them in the header
            bit = int(source.integers(8 * reach))
            damaged[bit // 8] ^= 1 << bit % 8
            path.write_bytes(damaged)
            try:
                split: data.Split = "test" if path.name.startswith("test") else "train"
                found = load("small", split, root=small.root).fingerprint
                assert found == small.spec.checksums[split]  # the flip says the same in other words
            except ValueError as error:
                noticed += 1
                assert path.name in str(error)  # noqa: PT017
                assert str(error).endswith("run `fedrepro data prepare small`")  # noqa: PT017
                assert "\n" not in str(error)  # noqa: PT017
                if number % 40 == 0:
                    small.prepare()
            path.write_bytes(whole[path])
        assert noticed > 230
        assert {path: path.read_bytes() for path in paths} == whole

    @pytest.mark.parametrize(
        "array",
        [
            np.array([{"a": 1}, None, 2], dtype=object),
            np.zeros((6, 2, 3, 3), np.int8),
            np.zeros((6, 2, 3), np.uint8),
            np.zeros(0, np.uint8),
            np.zeros((6, 2, 3, 3), [("a", "u1")]),
        ],
    )
    def test_another_array(self, array: np.ndarray, small: Small) -> None:
        path = small.prepare() / "train_images.npy"
        np.save(path, array)
        with pytest.raises(ValueError, match=r"train_images.npy .*run `fedrepro data prepare small`$"):
            load("small", "train", root=small.root)
        small.prepare()
        assert load("small", "train", root=small.root).fingerprint == small.spec.checksums["train"]

    def test_a_pickle_is_not_loaded(self, small: Small, tmp_path: Path) -> None:
        path = small.prepare() / "train_labels.npy"
        path.write_bytes(evil_pickle(tmp_path))
        with pytest.raises(ValueError, match=r"train_labels\.npy cannot be read"):
            load("small", "train", root=small.root)
        assert not (tmp_path / "evil").exists()

    def test_further_bytes(self, small: Small) -> None:
        path = small.prepare() / "train_images.npy"
        path.write_bytes(path.read_bytes() + b"\0")
        with pytest.raises(ValueError, match=r"train_images.npy must have \d+ bytes, found \d+; run"):
            load("small", "train", root=small.root)


class TestFullDisk:
    @pytest.mark.parametrize(
        "error",
        [OSError(errno.ENOSPC, "No space left on device"), OSError("1228800 requested and 716672 written")],
    )
    def test_while_preparing(self, error: OSError, small: Small, monkeypatch: pytest.MonkeyPatch) -> None:
        def save(path: Path, array: np.ndarray, allow_pickle: bool) -> None:
            path.write_bytes(b"half")
            raise error

        monkeypatch.setattr(np, "save", save)
        with pytest.raises(OSError, match=r"no space left on device.*train_images.npy") as caught:
            small.prepare()
        assert caught.value.errno == errno.ENOSPC
        assert "--archive" not in str(caught.value)
        assert small.left() == []

    @pytest.mark.usefixtures("website")
    def test_while_downloading(self, small: Small, monkeypatch: pytest.MonkeyPatch) -> None:
        def full(*arguments: object) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(downloads, "_fetch", full)
        with pytest.raises(OSError, match=r"no space left on device.*small.tar.gz") as caught:
            small.prepare(archive=None)
        assert "--archive" not in str(caught.value)
        assert small.left() == []

    def test_another_error_stays(self, tmp_path: Path) -> None:
        with pytest.raises(PermissionError, match=r"^mine$"), space.told_when_full(tmp_path):
            raise PermissionError("mine")


class Faltering(SimpleHTTPRequestHandler):
    """Sends a part of the file and falls silent; the next time it goes on, or not."""

    content = b""
    asked: list[str | None]
    good_from = 10**9  # the request from which on all is well
    lets_go_on = True
    quiet: Event

    def do_GET(self) -> None:
        self.asked.append(self.headers["Range"])
        begin = int(self.headers["Range"].removeprefix("bytes=").removesuffix("-")) if self.headers["Range"] else 0
        begin = begin if self.lets_go_on else 0
        self.send_response(206 if begin else 200)
        self.send_header("Content-Length", str(len(self.content) - begin))
        self.end_headers()
        well = len(self.asked) > self.good_from
        self.wfile.write(self.content[begin:] if well else self.content[begin : begin + 20])
        self.wfile.flush()
        if not well:
            self.quiet.wait(10)

    def log_message(self, *message: object) -> None:
        del message


class TestSilence:
    @pytest.fixture
    def server(self, small: Small, monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Faltering]]:
        monkeypatch.setenv("no_proxy", "*")
        monkeypatch.setattr(downloads, "SILENT", 0.1)
        quiet = Event()
        handler = type("Here", (Faltering,), {"content": small.archive.read_bytes(), "asked": [], "quiet": quiet})
        with ThreadingHTTPServer(("127.0.0.1", 0), handler) as served:
            small.url = f"http://127.0.0.1:{served.server_port}/small.tar.gz"
            small.register(prepare.ARCHIVES["small"].md5)
            Thread(target=served.serve_forever, args=(0.05,), daemon=True).start()
            yield handler
            quiet.set()
            served.shutdown()

    @pytest.mark.parametrize("lets_go_on", [True, False])
    def test_it_goes_on_where_it_stopped(
        self, lets_go_on: bool, small: Small, server: type[Faltering], capsys: pytest.CaptureFixture[str]
    ) -> None:
        server.good_from, server.lets_go_on = 2, lets_go_on
        small.prepare(archive=None, progress=True)
        assert server.asked == [None, "bytes=20-", "bytes=40-" if lets_go_on else "bytes=20-"]
        assert "the server was silent for 0.1 seconds; going on from 20 bytes" in capsys.readouterr().err

    def test_after_some_tries_it_is_given_up(self, small: Small, server: type[Faltering]) -> None:
        with pytest.raises(ConnectionError, match=r"could not download http.*silent for 0.1 seconds.*--archive"):
            small.prepare(archive=None)
        assert len(server.asked) == 3
        assert small.left() == []

    def test_a_trickle_is_no_progress(
        self, small: Small, server: type[Faltering], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(downloads, "WINDOW", -1.0)
        with pytest.raises(ConnectionError, match="only 20 bytes came in -1 seconds"):
            small.prepare(archive=None)


class TestLock:
    def test_another_process_is_waited_for_and_told_of_once(
        self, small: Small, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setattr(prepare, "AT_ONCE", 0.05)
        small.root.mkdir()
        with FileLock(small.root / ".small.lock", thread_local=False) as lock:
            Timer(0.3, lock.release).start()
            with ThreadPoolExecutor(1) as pool:  # a lock counts for a thread
                pool.submit(small.prepare, progress=True).result()
        told = capsys.readouterr().err
        assert told.count("waiting for another process that prepares small and holds") == 1
        assert "prepared small" in told

    def test_not_for_ever(self, small: Small, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(prepare, "AT_ONCE", 0.01)
        monkeypatch.setattr(prepare, "PATIENCE", 0.1)
        small.root.mkdir()
        with FileLock(small.root / ".small.lock"), pytest.raises(TimeoutError, match=r"has held .*small.lock for"):
            small.prepare()

    @pytest.mark.parametrize("error", [OSError(errno.ENOLCK, "No locks available"), NotImplementedError("flock")])
    def test_a_file_system_without_locks(
        self, error: Exception, small: Small, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuse(*arguments: object, **options: object) -> None:
            raise error

        monkeypatch.setattr(FileLock, "acquire", refuse)
        with pytest.raises(OSError, match=r"cannot be locked on its file system: .*FEDREPRO_DATA"):
            small.prepare()


@pytest.mark.parametrize("content", [b"", b"no image", None])
def test_a_damaged_image(content: bytes | None, small: Small, pictures: Path) -> None:
    whole = (pictures / B[1]).read_bytes()
    (pictures / B[1]).write_bytes(whole[:50] if content is None else content)
    with pytest.raises(ValueError, match=r"train.b.2.png is damaged: "):
        from_folder(small, pictures)


def test_a_folder_that_is_not_there(small: Small, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"the folder of images must be a folder, got .*nowhere"):
        from_folder(small, tmp_path / "nowhere")
    with pytest.raises(ValueError, match=r"archive and from_folder exclude each other, got .* and .*nowhere"):
        small.prepare(from_folder=tmp_path / "nowhere")


class TestZip:
    """Tiny-ImageNet's archive, with few and small images."""

    @pytest.fixture
    def tiny(self, small: Small, pictures: Path, tmp_path: Path) -> Path:
        annotate(pictures)
        with zipfile.ZipFile(tmp_path / "tiny.zip", "w") as archive:
            for path in sorted(pictures.rglob("*")):
                archive.write(path, f"tiny-imagenet-200/{path.relative_to(pictures).as_posix()}")
        return tmp_path / "tiny.zip"

    def test_is_read_as_a_folder_is(self, small: Small, pictures: Path, tiny: Path) -> None:
        from_zip = archives.ARCHIVES["tiny_imagenet"].read(tiny, small.spec)
        on_disk = class_folders.read_folder(pictures, small.spec)
        for split in data.SPLITS:
            for ours, theirs in zip(from_zip[split], on_disk[split]):
                assert np.array_equal(ours, theirs)

    @pytest.mark.parametrize("share", [0.0, 0.5])
    def test_may_be_truncated(self, share: float, small: Small, tiny: Path) -> None:
        tiny.write_bytes(tiny.read_bytes()[: int(share * tiny.stat().st_size)])
        with pytest.raises(ValueError, match=r"tiny.zip is damaged"):
            archives.ARCHIVES["tiny_imagenet"].read(tiny, small.spec)

    def test_errors_name_the_member(self, small: Small, pictures: Path, tiny: Path) -> None:
        spec = dataclasses.replace(small.spec, shape=(3, 3, 3))
        with pytest.raises(ValueError, match=r"tiny.zip.train.a.1.png must have 3 x 3 pixels, found 2 x 3"):
            archives.ARCHIVES["tiny_imagenet"].read(tiny, spec)
