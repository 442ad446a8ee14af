"""The data sets: what is refused, what is read, and that the order of a file does not matter."""

import dataclasses
import hashlib
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import interpolate

from fedrepro.data import data, shipped
from fedrepro.data.data import Data, Spec, available, canonical_order, data_root, files, load, resized
from fedrepro.data.swiss_roll import swiss_roll

CLASSES = ("a", "b", "c")
UNIT = (0.5, 0.5, 0.5)


def images(count: int = 6, seed: int = 0) -> Tensor:
    return torch.randint(0, 256, (count, 2, 4, 3), generator=torch.manual_seed(seed)).to(torch.uint8)


def some(**change: object) -> Data:
    arguments: dict[str, object] = {
        "name": "some",
        "images": images(),
        "labels": torch.tensor([0, 1, 2, 2, 1, 0]),
        "classes": CLASSES,
        "mean": UNIT,
        "std": UNIT,
    }
    return Data(**(arguments | change))  # type: ignore[arg-type]


class TestData:
    def test_knows_its_size(self) -> None:
        assert len(some()) == 6
        assert some().class_count == 3

    def test_features_need_no_constants(self) -> None:
        toy = Data("toy", torch.zeros(2, 5), torch.tensor([0, 1]), ("a", "b"))
        assert (len(toy), toy.mean, toy.std) == (2, (), ())

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"images": images().float()}, r"images must be uint8 .*got float32 \[6, 2, 4, 3\]"),
            ({"images": images().permute(0, 3, 1, 2)}, r"got uint8 \[6, 3, 2, 4\]"),
            ({"images": images()[..., :1]}, r"got uint8 \[6, 2, 4, 1\]"),
            ({"images": images()[0]}, r"got uint8 \[2, 4, 3\]"),
            ({"images": torch.zeros(6, 4, dtype=torch.float64)}, r"got float64 \[6, 4\]"),
            ({"images": torch.zeros(6, 4)}, "mean and std > 0 must have 0 values"),
            ({"labels": torch.zeros(6, dtype=torch.int32)}, r"labels must be int64 \[6\], got int32 \[6\]"),
            ({"labels": torch.zeros(5, dtype=torch.int64)}, r"labels must be int64 \[6\], got int64 \[5\]"),
            ({"labels": torch.zeros(6, 1, dtype=torch.int64)}, r"got int64 \[6, 1\]"),
            ({"labels": torch.tensor([0, 1, 2, 3, 0, 0])}, r"labels must be in \[0, 3\), got 0 to 3"),
            ({"labels": torch.tensor([0, 1, -1, 0, 0, 0])}, r"labels must be in \[0, 3\), got -1 to 1"),
            ({"mean": (0.5,)}, r"mean and std > 0 must have 3 values, got \(0.5,\)"),
            ({"std": (0.5, 0.0, 0.5)}, r"mean and std > 0 must have 3 values.*0.0"),
        ],
    )
    def test_refuses(self, change: dict[str, object], message: str) -> None:
        with pytest.raises(ValueError, match=message):
            some(**change)

    @pytest.mark.parametrize("index", [np.array([4, 0, 4]), torch.tensor([4, 0, 4])])
    def test_subset_keeps_the_order_given(self, index: np.ndarray | Tensor) -> None:
        part = some().subset(index)
        assert torch.equal(part.images, images()[[4, 0, 4]])
        assert part.labels.tolist() == [1, 0, 1]
        assert (part.classes, part.mean, part.std) == (CLASSES, UNIT, UNIT)

    def test_subset_may_be_empty(self) -> None:
        empty = some().subset(np.array([], dtype=np.int64))
        assert len(empty) == 0
        assert empty.fingerprint != some().fingerprint

    @pytest.mark.parametrize(
        ("index", "message"),
        [
            (np.array([6]), r"index must be in \[0, 6\), got 6 to 6"),
            (np.array([-1, 2]), r"index must be in \[0, 6\), got -1 to 2"),
            (np.array([[0]]), r"index must be int64 \[n\], got int64 \[1, 1\]"),
            (np.array([0.0]), r"index must be int64 \[n\], got float64 \[1\]"),
            (np.array([True] * 6), r"index must be int64 \[n\], got bool \[6\]"),
        ],
    )
    def test_subset_refuses(self, index: np.ndarray, message: str) -> None:
        with pytest.raises(ValueError, match=message):
            some().subset(index)


class TestFingerprint:
    def test_is_the_documented_hash(self) -> None:
        tiny = Data("tiny", torch.tensor([[1.0, 2.0]]), torch.tensor([1]), ("a", "b"))
        content = b"float32(1, 2)" + b"\0\0\x80\x3f\0\0\0\x40" + b"int64(1,)" + b"\x01" + b"\0" * 7
        assert tiny.fingerprint == hashlib.sha256(content).hexdigest()

    def test_names_the_content_only(self) -> None:
        assert some().fingerprint == some(name="other", mean=(0.1,) * 3).fingerprint

    @pytest.mark.parametrize(
        "change",
        [
            {"images": images(seed=1)},
            {"images": images().transpose(1, 2)},
            {"labels": torch.tensor([0, 1, 2, 2, 1, 1])},
        ],
    )
    def test_changes_with_the_content(self, change: dict[str, object]) -> None:
        assert some().fingerprint != some(**change).fingerprint

    def test_does_not_depend_on_the_memory_layout(self) -> None:
        planar = images().permute(0, 3, 1, 2).contiguous().permute(0, 2, 3, 1)
        assert not planar.is_contiguous()
        assert some(images=planar).fingerprint == some().fingerprint

    def test_travels_with_the_data_but_not_to_a_subset(self) -> None:
        original = some()
        before = original.fingerprint
        assert original.to("cpu").fingerprint == before
        assert some().to("cpu").fingerprint == before
        assert original.subset(np.arange(5)).fingerprint != before
        assert original.subset(np.arange(6)).fingerprint == before


@pytest.fixture
def prepared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data root with a small data set called "small", in its registry."""
    checksums: dict[data.Split, str] = {}
    (tmp_path / "small").mkdir()
    for seed, split in enumerate(data.SPLITS):
        pixels, labels = images(seed=seed).numpy(), np.array([0, 1, 2, 2, 1, 0])
        order = canonical_order(pixels, labels)
        content = some(images=torch.from_numpy(pixels[order]), labels=torch.from_numpy(labels[order]))
        checksums[split] = content.fingerprint
        for path, array in zip(files("small", split, tmp_path), (pixels, labels)):
            np.save(path, array)
    small = Spec(
        shape=(2, 4, 3),
        sizes={"train": 6, "test": 6},
        classes=CLASSES,
        mean=UNIT,
        std=UNIT,
        checksums=checksums,
    )
    monkeypatch.setattr(data, "DATASETS", {"small": small, "digits": data.DATASETS["digits"]})
    return tmp_path


def rewrite(root: Path, images: np.ndarray | None = None, labels: np.ndarray | None = None) -> None:
    for path, array in zip(files("small", "train", root), (images, labels)):
        if array is not None:
            np.save(path, array)


class TestLoadPrepared:
    def test_reads_what_was_written(self, prepared: Path) -> None:
        train = load("small", "train", root=prepared)
        assert (train.name, train.classes, train.mean, train.std) == ("small", CLASSES, UNIT, UNIT)
        assert train.labels.tolist() == [0, 0, 1, 1, 2, 2]
        written = {(image.tobytes(), label) for image, label in zip(images().numpy(), [0, 1, 2, 2, 1, 0])}
        read = {(image.tobytes(), label) for image, label in zip(train.images.numpy(), train.labels.tolist())}
        assert read == written

    def test_the_order_of_the_file_does_not_matter(self, prepared: Path) -> None:
        first = load("small", "train", root=prepared)
        pixels, labels = images().numpy(), np.array([0, 1, 2, 2, 1, 0])
        by_class = np.argsort(labels, kind="stable")
        for order in (by_class, by_class[::-1], np.array([3, 0, 5, 1, 4, 2])):
            rewrite(prepared, pixels[order], labels[order])
            again = load("small", "train", root=prepared)
            assert torch.equal(again.images, first.images)
            assert torch.equal(again.labels, first.labels)

    def test_the_memory_order_of_the_file_does_not_matter(self, prepared: Path) -> None:
        first = load("small", "train", root=prepared)
        rewrite(prepared, np.asfortranarray(images().numpy()))
        assert torch.equal(load("small", "train", root=prepared).images, first.images)

    def test_the_tensors_do_not_share_the_file(self, prepared: Path) -> None:
        train = load("small", "train", root=prepared)
        train.images.zero_()
        assert load("small", "train", root=prepared).images.any()

    def test_uses_the_data_root(self, prepared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("FEDREPRO_DATA", str(prepared))
        assert len(load("small", "test")) == 6

    def test_a_missing_file(self, prepared: Path) -> None:
        (prepared / "small" / "train_labels.npy").unlink()
        with pytest.raises(
            FileNotFoundError,
            match=r"small.train_labels.npy is missing; run `fedrepro data prepare small`",
        ):
            load("small", "train", root=prepared)
        assert len(load("small", "test", root=prepared)) == 6

    @pytest.mark.parametrize("which", ["train_images.npy", "train_labels.npy"])
    @pytest.mark.parametrize("size", [0, 40, 130])
    def test_a_truncated_file(self, prepared: Path, which: str, size: int) -> None:
        path = prepared / "small" / which
        path.write_bytes(path.read_bytes()[:size])
        with pytest.raises(ValueError, match=rf"{which} cannot be read \(.*run `fedrepro data prepare small`"):
            load("small", "train", root=prepared)

    def test_a_file_that_is_no_array(self, prepared: Path) -> None:
        np.save(prepared / "small" / "train_images.npy", np.array([{"a": 1}], dtype=object))
        with pytest.raises(ValueError, match=r"train_images.npy cannot be read"):
            load("small", "train", root=prepared)

    @pytest.mark.parametrize(
        ("pixels", "labels", "message"),
        [
            (
                images().numpy()[:5],
                None,
                r"train_images.npy must hold uint8 \[6, 2, 4, 3\], found uint8 \[5, ",
            ),
            (images().numpy().transpose(0, 3, 1, 2), None, r"train_images.npy must hold .*\[6, 3, 2, 4\]"),
            (images().numpy() / 255.0, None, r"train_images.npy must hold uint8 .*found float64"),
            (None, np.zeros(7, np.int64), r"train_labels.npy must hold int64 \[6\], found int64 \[7\]"),
            (None, np.zeros(6, np.uint8), r"train_labels.npy must hold int64 \[6\], found uint8 \[6\]"),
            (None, np.array([0, 1, 2, 2, 1, 3]), r"train_labels.npy must be in \[0, 3\), found 0 to 3"),
            (None, np.array([0, 1, 2, 2, -1, 0]), r"train_labels.npy must be in \[0, 3\), found -1 to 2"),
            (images(seed=1).numpy(), None, r"train_images.npy.*wrong content .*expected [0-9a-f]{64}, found"),
            (None, np.array([0, 1, 2, 2, 0, 1]), r"train_labels.npy.*wrong content .*expected [0-9a-f]{64}"),
        ],
    )
    def test_wrong_content(
        self, prepared: Path, pixels: np.ndarray | None, labels: np.ndarray | None, message: str
    ) -> None:
        rewrite(prepared, pixels, labels)
        with pytest.raises(ValueError, match=message + r".*run `fedrepro data prepare small`"):
            load("small", "train", root=prepared)

    def test_without_checksums_the_labels_are_counted(
        self, prepared: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        spec = dataclasses.replace(data.DATASETS["small"], checksums={})
        monkeypatch.setattr(data, "DATASETS", {"small": spec})
        rewrite(prepared, images(seed=1).numpy())  # other pixels pass
        assert load("small", "train", root=prepared).labels.tolist() == [0, 0, 1, 1, 2, 2]
        rewrite(prepared, labels=np.array([0, 1, 1, 2, 1, 0]))
        with pytest.raises(
            ValueError,
            match=r"wrong content for small's train split, 2 images of class b expected, found 3; run `fedrepro",
        ):
            load("small", "train", root=prepared)

    def test_unknown_names(self, prepared: Path) -> None:
        with pytest.raises(ValueError, match="data set must be one of small, digits, got 'mnist'"):
            load("mnist", "train", root=prepared)
        with pytest.raises(ValueError, match="split must be one of train, test, got 'val'"):
            load("small", "val", root=prepared)  # type: ignore[arg-type]

    def test_available(self, prepared: Path) -> None:
        assert available(prepared) == [
            ("small", True, prepared / "small", 12),
            ("digits", True, "shipped", 1797),
        ]
        (prepared / "small" / "test_images.npy").unlink()
        assert available(prepared)[0] == ("small", False, prepared / "small", 12)


def test_canonical_order_by_hand() -> None:
    # SHA-256 starts with 4b for the byte 1, db for the byte 2, 08 for the byte 3.
    pixels = np.array([1, 2, 3, 1], dtype=np.uint8).reshape(4, 1)
    assert canonical_order(pixels, np.array([0, 0, 0, 0])).tolist() == [2, 0, 3, 1]
    assert canonical_order(pixels, np.array([0, 0, 1, 0])).tolist() == [0, 3, 1, 2]


class TestDigits:
    def test_sizes_and_classes(self) -> None:
        train, test = load("digits", "train"), load("digits", "test")
        assert train.images.shape == (1297, 32, 32, 3)
        assert test.images.shape == (500, 32, 32, 3)
        # 500 of 1797 for each of scikit-learn's counts 178 182 177 183 181 182 181 179 174 180: 49.5, 50.6,
        # 49.2, 50.9, 50.4, 50.6, 50.4, 49.8, 48.4, 50.1, and four ones left for the largest remainders
        assert test.labels.bincount().tolist() == [50, 51, 49, 51, 50, 51, 50, 50, 48, 50]
        assert (train.labels.bincount() + test.labels.bincount()).sum() == 1797

    def test_no_image_is_in_both_splits(self) -> None:
        train, test = load("digits", "train"), load("digits", "test")
        seen = [{image.numpy().tobytes() for image in part.images} for part in (train, test)]
        assert seen[0].isdisjoint(seen[1])

    def test_pixels_are_enlarged_and_scaled(self) -> None:
        from sklearn.datasets import load_digits

        parts = [load("digits", split) for split in data.SPLITS]
        pixels = torch.cat([part.images for part in parts])
        assert torch.equal(pixels, pixels[..., :1].expand(-1, -1, -1, 3))
        # Corners have nothing to be mixed with, so they are the corners of the 8x8 image times 255/16.
        corners = pixels[:, [0, 0, 31, 31], [0, 31, 0, 31], 0].long()
        small = torch.from_numpy(load_digits().images)[:, [0, 0, 7, 7], [0, 7, 0, 7]]
        expected = (small * 255 / 16).round().long()
        assert sorted(corners.tolist()) == sorted(expected.tolist())
        assert pixels.max() == 255

    def test_constants_are_those_of_the_training_split(self) -> None:
        train = load("digits", "train")
        scaled = train.images.double() / 255
        assert train.mean == pytest.approx([scaled.mean().item()] * 3, abs=1e-5)
        assert train.std == pytest.approx([scaled.std(correction=0).item()] * 3, abs=1e-5)

    def test_another_content_is_noticed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        import sklearn.datasets

        digits = sklearn.datasets.load_digits()
        digits.images[0, 4, 4] = 16 - digits.images[0, 4, 4]
        monkeypatch.setattr(sklearn.datasets, "load_digits", lambda: digits)
        with pytest.raises(ValueError, match=r"scikit-learn: wrong content .*expected"):
            [load("digits", split) for split in data.SPLITS]


class TestPhotos:
    def test_sizes_and_classes(self) -> None:
        for split, per_class in (("train", 50), ("test", 10)):
            part = load("photos", split)  # type: ignore[arg-type]
            assert part.images.shape == (2 * per_class, 32, 32, 3)
            assert part.labels.tolist() == [0] * per_class + [1] * per_class

    def test_the_test_split_is_the_start_of_every_class(self) -> None:
        pixels, labels = shipped.photos()
        order = canonical_order(pixels, labels)
        assert np.array_equal(load("photos", "test").images.numpy(), pixels[[*order[:10], *order[60:70]]])
        assert np.array_equal(load("photos", "train").images.numpy(), pixels[[*order[10:60], *order[70:]]])

    def test_constants_are_those_of_the_training_split(self) -> None:
        train = load("photos", "train")
        scaled = train.images.double() / 255
        # Another decoder may move pixels by one, and with them the choice of the test split
        assert train.mean == pytest.approx(scaled.mean((0, 1, 2)).tolist(), abs=0.03)
        assert train.std == pytest.approx(scaled.std((0, 1, 2), correction=0).tolist(), abs=0.03)

    def test_tiles_by_hand(self, monkeypatch: pytest.MonkeyPatch) -> None:
        import sklearn.datasets

        photo = np.zeros((130, 190, 3), np.uint8)  # 2 x 2 tiles fit
        photo[64:66, 64:66, 1] = [[1, 2], [3, 4]]  # the mean 2.5 is rounded upwards
        photo[126:128, 126:128, 2] = [[0, 0], [0, 1]]
        photo[0:2, 62:64] = 255
        monkeypatch.setattr(sklearn.datasets, "load_sample_image", lambda name: photo)
        tiles, labels = shipped.photos()
        assert labels.tolist() == [0, 0, 0, 0, 1, 1, 1, 1]
        assert (tiles.dtype, tiles.shape) == (np.uint8, (8, 32, 32, 3))
        assert np.argwhere(tiles[:4]).tolist() == [[0, 0, 31, k] for k in range(3)] + [[3, 0, 0, 1]]
        assert (tiles[0, 0, 31, 0], tiles[3, 0, 0, 1]) == (255, 3)


def test_what_is_known_of_the_data_sets() -> None:
    for name in ("cifar100", "tiny_imagenet"):
        spec = data.DATASETS[name]
        assert spec.classes == tuple(sorted(set(spec.classes)))  # by the alphabet, as the authors count them
    assert len(data.DATASETS["cifar100"].classes) == 100
    assert data.DATASETS["cifar100"].classes[88:91] == ("tiger", "tractor", "train")
    assert len(data.DATASETS["tiny_imagenet"].classes) == 200
    assert all(re.fullmatch(r"n\d{8}", wnid) for wnid in data.DATASETS["tiny_imagenet"].classes)
    for name, spec in data.DATASETS.items():
        assert spec.shipped or all(size % len(spec.classes) == 0 for size in spec.sizes.values()), name


class TestResized:
    def one(self, rows: list[list[int]]) -> Data:
        """One image of these rows; green is twice, blue three times red."""
        red = torch.tensor(rows)[..., None]
        return some(images=(red * torch.tensor([1, 2, 3])).to(torch.uint8)[None], labels=torch.tensor([0]))

    @pytest.mark.parametrize(
        ("rows", "size", "expected"),
        [
            # Means of 2 x 2: 10 / 4 = 2.5 goes up to 3 and 9 / 4 = 2.25 down to 2
            ([[1, 2, 0, 1], [3, 4, 4, 4]], (1, 2), [[3, 2]]),
            ([[1, 2, 4], [0, 0, 0]], (2, 1), [[2], [0]]),  # 7 / 3
            # Twice as wide: the new centres lie a quarter before and behind each old one
            ([[0, 40]], (1, 4), [[0, 10, 30, 40]]),
            ([[0], [40]], (4, 1), [[0], [10], [30], [40]]),
            # In both directions: products of 0, 1/4, 3/4 and 1, times 16
            ([[0, 0], [0, 16]], (4, 4), [[0, 0, 0, 0], [0, 1, 3, 4], [0, 3, 9, 12], [0, 4, 12, 16]]),
            # Three to two: centres 3/4 and 9/4, a triangle of half width 3/2, so that the pixels at 1/2, 3/2 and
            # 5/2 weigh 5/6, 3/6 and 0 of 8/6, and the other way round
            ([[8, 16, 80]], (1, 2), [[11, 56]]),
            # The height shrinks by a whole factor, the width does not: means 8, 16, 80 first
            ([[8, 0, 70], [8, 32, 90]], (1, 2), [[11, 56]]),
        ],
    )
    def test_by_hand(self, rows: list[list[int]], size: tuple[int, int], expected: list[list[int]]) -> None:
        found = resized(self.one(rows), size)
        assert found.images.dtype == torch.uint8
        assert found.images[0, ..., 0].tolist() == expected

    def test_colours_do_not_mix(self) -> None:
        assert resized(self.one([[0, 40]]), (1, 4)).images[0, 0].tolist() == [
            [0, 0, 0],
            [10, 20, 30],
            [30, 60, 90],
            [40, 80, 120],
        ]

    @pytest.mark.parametrize("size", [(8, 8), (3, 4), (2, 7), (1, 1), (5, 3), (13, 4)])
    def test_is_torchs_filter_but_for_the_rounding(self, size: tuple[int, int]) -> None:
        before = some(images=torch.randint(0, 256, (6, 8, 8, 3), generator=torch.manual_seed(0)).to(torch.uint8))
        planar, after = before.images.permute(0, 3, 1, 2).double(), resized(before, size).images
        for axis in (0, 1):
            one = (size[0], 8) if axis == 0 else size
            if 8 % one[axis]:
                planar = interpolate(planar, size=one, mode="bilinear", antialias=True)
            else:
                planar = interpolate(planar, size=one, mode="area")
        assert (after.permute(0, 3, 1, 2) - planar).abs().max() <= 0.5 + 1e-9

    def test_the_same_size_changes_nothing(self) -> None:
        before = some()
        assert resized(before, (2, 4)) is before

    def test_extremes_stay(self) -> None:
        for value in (0, 255):
            uniform = some(images=torch.full((6, 7, 5, 3), value, dtype=torch.uint8))
            for size in ((3, 3), (11, 8), (1, 10)):
                assert resized(uniform, size).images.unique().tolist() == [value]

    def test_chunks_make_no_difference(self, monkeypatch: pytest.MonkeyPatch) -> None:
        whole = resized(some(), (3, 3))
        monkeypatch.setattr(data, "RESIZED_AT_ONCE", 4)
        assert torch.equal(resized(some(), (3, 3)).images, whole.images)

    def test_the_rest_stays_but_for_the_fingerprint(self) -> None:
        before = some()
        known, after = before.fingerprint, resized(before, (1, 2))
        assert torch.equal(after.labels, before.labels)
        assert (after.name, after.classes, after.mean, after.std) == ("some", CLASSES, UNIT, UNIT)
        assert after.fingerprint != known

    @pytest.mark.parametrize("size", [(0, 4), (4, -1)])
    def test_refuses(self, size: tuple[int, int]) -> None:
        with pytest.raises(ValueError, match=re.escape(f"size must be >= 1 x 1 for images, got {size}")):
            resized(some(), size)
        with pytest.raises(ValueError, match=r"for images, got \(4, 4\) for float32 \[2, 5\]"):
            resized(Data("toy", torch.zeros(2, 5), torch.tensor([0, 1]), ("a", "b")), (4, 4))


class TestDataRoot:
    @pytest.fixture(autouse=True)
    def _clean(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        for name in ("FEDREPRO_DATA", "XDG_CACHE_HOME", "LOCALAPPDATA"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("HOME", str(tmp_path))
        monkeypatch.setenv("USERPROFILE", str(tmp_path))

    def test_the_users_choice_comes_first(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "other"))
        monkeypatch.setenv("FEDREPRO_DATA", "~/sets")
        assert data_root() == tmp_path / "sets"

    @pytest.mark.parametrize(
        ("system", "variable", "fallback"),
        [("Linux", "XDG_CACHE_HOME", ".cache"), ("Windows", "LOCALAPPDATA", "AppData/Local")],
    )
    def test_the_cache_folder(
        self, system: str, variable: str, fallback: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.setattr(data.platform, "system", lambda: system)
        assert data_root() == tmp_path / fallback / "fedrepro" / "data"
        monkeypatch.setenv("FEDREPRO_DATA", "")
        monkeypatch.setenv(variable, str(tmp_path / "cache"))
        assert data_root() == tmp_path / "cache" / "fedrepro" / "data"

    def test_a_relative_cache_folder_is_ignored(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setattr(data.platform, "system", lambda: "Linux")
        monkeypatch.setenv("XDG_CACHE_HOME", "cache")
        assert data_root() == tmp_path / ".cache" / "fedrepro" / "data"
        monkeypatch.setenv("XDG_CACHE_HOME", "~/mine")
        assert data_root() == tmp_path / "mine" / "fedrepro" / "data"


def roll(seed: int = 0, **change: Any) -> tuple[list[np.ndarray], Data, Data]:
    arguments = {"turns": 1.5, "noise": 0.1} | change
    return swiss_roll(rng=np.random.default_rng(seed), **arguments)


class TestSwissRoll:
    def test_the_papers_counts(self) -> None:
        parts, train, test = roll()
        assert np.concatenate(parts).tolist() == list(range(900))
        assert [train.subset(part).labels.bincount().tolist() for part in parts] == [
            [240, 30, 30],
            [30, 240, 30],
            [30, 30, 240],
        ]
        assert test.labels.bincount().tolist() == [100, 100, 100]
        assert train.images.shape == (900, 2)
        assert train.images.dtype == torch.float32

    def test_what_is_not_whole_goes_to_the_next_classes(self) -> None:
        parts, train, test = roll(clients=4, client_images=10, majority=0.45, arms=4, test_images=6)
        # round(4.5) = 4 (to the even), and 6 over three classes are 2 each
        assert train.subset(parts[1]).labels.bincount().tolist() == [2, 4, 2, 2]
        assert test.labels.bincount().tolist() == [2, 2, 1, 1]
        parts, train, _ = roll(clients=4, client_images=10, majority=0.5, arms=4)
        assert train.subset(parts[3]).labels.bincount().tolist() == [2, 2, 1, 5]

    def test_without_noise_the_points_lie_on_their_arms(self) -> None:
        _, train, _ = roll(noise=0.0)
        radius = train.images.norm(dim=1)
        assert radius.max() <= 1
        angle = 2 * math.pi * (1.5 * radius + train.labels / 3)
        expected = torch.stack([radius * angle.cos(), radius * angle.sin()], dim=1)
        torch.testing.assert_close(train.images, expected, atol=1e-5, rtol=0)
        # Uniform along the radius: mean 1/2 within four standard errors, 0.289 / sqrt(900) each
        assert abs(radius.mean() - 0.5) < 4 * 0.289 / 30

    def test_noise_moves_the_radius(self) -> None:
        (_, clean, _), (_, noisy, _) = roll(noise=0.0), roll(noise=0.1)
        moved = (noisy.images - clean.images).norm(dim=1)
        # The mean square of 900 moves is noise^2 within four standard errors, sqrt(2 / 900) = 0.047 each
        assert (moved**2).mean() == pytest.approx(0.01, rel=4 * 0.047)

    def test_a_seed_fixes_the_points_and_another_changes_them(self) -> None:
        _, train, test = roll(0)
        _, again, test_again = roll(0)
        _, other, _ = roll(1)
        assert (train.fingerprint, test.fingerprint) == (again.fingerprint, test_again.fingerprint)
        assert train.fingerprint != other.fingerprint

    def test_no_point_is_in_both_sets(self) -> None:
        _, train, test = roll()
        assert torch.cdist(train.images, test.images).min() > 0

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"clients": 0}, "must be >= 1 and arms >= 2, got 0, 300, 300 and 3"),
            ({"client_images": 0}, "got 3, 0, 300 and 3"),
            ({"test_images": 0}, "got 3, 300, 0 and 3"),
            ({"arms": 1}, "got 3, 300, 300 and 1"),
            ({"majority": 1.1}, re.escape("majority must be in [0, 1], got 1.1")),
            ({"turns": 0.0}, "turns must be > 0.*got 0.0 and 0.1"),
            ({"noise": -0.1}, "noise >= 0.*got 1.5 and -0.1"),
            ({"noise": math.nan}, "noise >= 0.*got 1.5 and nan"),
        ],
    )
    def test_refuses(self, change: dict[str, Any], message: str) -> None:
        with pytest.raises(ValueError, match=message):
            roll(**change)


def test_without_a_home_only_what_is_shipped_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> Path:
        raise ValueError("FEDREPRO_DATA is not set, and neither is a home")

    monkeypatch.setattr("fedrepro.data.data.data_root", none)
    found = {line.name: line for line in available()}
    assert found["digits"].present
    assert not found["cifar10"].present
    assert found["cifar10"].where == "FEDREPRO_DATA is not set, and neither is a home"
