"""Preparing from archives and folders: small ones like the real, and everything that can be wrong with them."""

import dataclasses
import hashlib
import io
import os
import pickle
import re
import struct
import tarfile
import zipfile
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import numpy as np
import pytest
import torch
from PIL import Image

from fedrepro.data import data
from fedrepro.data.data import Data, Spec, canonical_order, load
from fedrepro.data.prepare import archives, class_folders, prepare

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
        (B[:1], [], r"pictures.train must have 3 images of b, found 2$"),
        ([], ["train/A/9.png"], r"pictures.train must have 3 images of a, found 4$"),
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
