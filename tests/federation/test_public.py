"""The server's public images from elsewhere: noise, or a part of another data set."""

from typing import Any

import pytest
import tiny
import torch

from fedrepro.core.rng import Streams
from fedrepro.data.data import Data, load
from fedrepro.federation.assemble import assemble
from fedrepro.federation.federation import Federation
from fedrepro.federation.public import SOURCES
from fedrepro.methods import catalogue as methods
from fedrepro.methods.measures import evaluate


def world(seed: int = 0, **changes: Any) -> Federation:
    return assemble(tiny.setting(**changes), seed)


def public(seed: int = 0, **changes: Any) -> Data:
    return world(seed, **changes).public


@pytest.mark.parametrize("source", ["noise", "photos"])
class TestEverySource:
    def test_clients_and_test_images_stay(self, source: str) -> None:
        here, without = world(public_data=source), world()
        assert all(torch.equal(a, b) for a, b in zip(here.parts, without.parts, strict=True))
        assert here.data is without.data
        assert torch.equal(here.test.images, without.test.images)
        assert not torch.equal(here.public.images[:20], without.public.images)

    def test_they_are_normalised_like_the_clients(self, source: str) -> None:
        here = world(public_data=source)
        assert (here.public.mean, here.public.std) == (here.data.mean, here.data.std)
        assert here.public.images.shape[1:] == here.data.images.shape[1:]
        assert here.public.images.dtype == torch.uint8

    def test_a_round_of_distillation(self, source: str) -> None:
        here = world(public_data=source, public_fraction=0.2)
        method = methods.build(tiny.setting(method="v_distillation"))
        state, round = method.round(method.init(here, 0), here, Streams(0))
        assert round.targets.shape == (20, 10)
        assert bool(state.models.params.isfinite().all())
        row = evaluate(method, state, round, here, last=True)
        assert row["teacher_accuracy"] != row["teacher_accuracy"]  # NaN: these images have no true labels here

    def test_they_have_no_true_labels(self, source: str) -> None:
        here = world(public_data=source)
        method = methods.build(tiny.setting(method="fedbe_ground_truth"))
        with pytest.raises(ValueError, match="public images of the clients' classes"):
            method.round(method.init(here, 0), here, Streams(0))


class TestNoise:
    def test_the_seed_decides(self) -> None:
        one, same, other = (public(seed, public_data="noise") for seed in (0, 0, 1))
        assert torch.equal(one.images, same.images)
        assert not torch.equal(one.images, other.images)
        method = public(0, public_data="noise", method="fedavg", samples=7)
        assert torch.equal(one.images, method.images)

    @pytest.mark.parametrize("count", [0, 1, 20])
    def test_as_many_as_are_set_aside(self, count: int) -> None:
        found = public(public_data="noise", public_images=count)
        assert found.images.shape == (count, 32, 32, 3)
        assert found.name == "noise"
        assert found.classes == ("noise",)
        assert found.labels.tolist() == [0] * count

    def test_pixels_are_uniform_and_independent(self) -> None:
        pixels = public(public_data="noise", public_images=200).images
        counts = torch.bincount(pixels.flatten().long(), minlength=256)
        assert len(counts) == 256
        # 200 x 3072 / 256 = 2,400 of each value, standard error sqrt(2400 * 255 / 256) = 48.9.
        assert bool(((counts - 2400).abs() < 4.5 * 48.9).all())
        flat = pixels.flatten().double() - 127.5
        variance = (256**2 - 1) / 12
        for apart in (1, 3, 96, 3072):  # channels, neighbours, rows, images
            product = flat[apart:] * flat[:-apart]
            assert abs(float(product.mean())) < 4.5 * variance / len(product) ** 0.5

    def test_a_new_source_is_an_entry(self, monkeypatch: pytest.MonkeyPatch) -> None:
        assert "noise" in SOURCES
        monkeypatch.setitem(SOURCES, "own", lambda setting, seed, like: like.subset(torch.arange(seed, seed + 3)))
        assert torch.equal(public(2, public_data="own").images, world().data.images[2:5])


class TestAnotherDataSet:
    photos = load("photos", "train")

    def test_all_of_it(self) -> None:
        for seed in (0, 1):
            found = public(seed, public_data="photos", public_images=7)
            assert torch.equal(found.images, self.photos.images)
            assert torch.equal(found.labels, self.photos.labels)
            assert found.classes == self.photos.classes
        assert torch.bincount(found.labels).tolist() == [50, 50]

    def test_some_classes(self) -> None:
        drawn = []
        for seed in range(8):
            found = public(seed, public_data="photos", public_classes=1)
            (label,) = set(found.labels.tolist())
            drawn.append(label)
            assert torch.equal(found.images, self.photos.images[self.photos.labels == label])
            assert found.classes == self.photos.classes
        assert set(drawn) == {0, 1}
        again = [int(public(seed, public_data="photos", public_classes=1).labels[0]) for seed in range(8)]
        assert again == drawn

    @pytest.mark.parametrize(("fraction", "count"), [(0.5, [25, 25]), (0.1, [5, 5]), (0.02, [1, 1])])
    def test_a_share_of_each_class(self, fraction: float, count: list[int]) -> None:
        one, same, other = (public(seed, public_data="photos", public_fraction=fraction) for seed in (0, 0, 1))
        assert torch.bincount(one.labels, minlength=2).tolist() == count
        assert torch.equal(one.images, same.images)
        assert not torch.equal(one.images, other.images)
        known = {image.numpy().tobytes() for image in self.photos.images}
        found = [image.numpy().tobytes() for image in one.images]
        assert len(set(found)) == len(found)
        assert set(found) <= known

    def test_at_least_one_image(self) -> None:
        assert len(public(public_data="photos", public_fraction=0.001)) == 1

    def test_a_share_of_some_classes(self) -> None:
        whole = public(3, public_data="photos", public_classes=1)
        part = public(3, public_data="photos", public_classes=1, public_fraction=0.3)
        assert len(part) == 15
        assert set(part.labels.tolist()) == set(whole.labels.tolist())

    def test_all_classes_by_number_are_all(self) -> None:
        assert torch.equal(public(public_data="photos", public_classes=2).images, self.photos.images)

    def test_more_classes_than_there_are(self) -> None:
        with pytest.raises(ValueError, match="public_classes must be <= 2, got 3"):
            public(public_data="photos", public_classes=3)

    @pytest.mark.parametrize("changes", [{"public_classes": 1}, {"public_fraction": 0.5}], ids=str)
    def test_images_set_aside_are_all_kept(self, changes: dict[str, Any]) -> None:
        assert torch.equal(public(**changes).images, public().images)


@pytest.mark.parametrize("name", ["nois", "imagenet", "swiss_roll"])
def test_an_unknown_source(name: str) -> None:
    with pytest.raises(ValueError, match=f"unknown data set or source of public images '{name}'"):
        public(public_data=name)
