"""From settings to federations: the paper's counts, nothing shared that must not be, the seed alone decides."""

from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
import pytest
import tiny
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedrepro import papers
from fedrepro.core.rng import numpy_generator
from fedrepro.core.setting import Setting
from fedrepro.data.partition import class_counts, iid, stratified_split
from fedrepro.federation.assemble import PARTITIONS as KNOWN
from fedrepro.federation.assemble import architectures, assemble, split
from fedrepro.federation.federation import Federation
from fedrepro.federation.loaded import fingerprint
from fedrepro.kernels.batches import NO_AUGMENT, batch_plan
from fedrepro.methods import catalogue as methods

# The labels of CIFAR-10's 50,000 training images, without the images.
LABELS = np.random.default_rng(0).permutation(np.repeat(np.arange(10), 5000))
Parts = list[NDArray[np.int64]]


@lru_cache
def paper(row: str, column: str = "ResNet-20") -> Setting:
    """Return a setting of FedBE's Table 1 at the paper's scale."""
    cells = papers.load("fedbe").cells("table1_methods", "paper")
    return next(cell.setting for cell in cells if (cell.row, cell.column) == (row, column))


@lru_cache
def divided(row: str, seed: int = 0) -> tuple[Parts, NDArray[np.int64]]:
    return shared(paper(row), seed)


def shared(setting: Setting, seed: int = 0) -> tuple[Parts, NDArray[np.int64]]:
    """Return the clients' images and the server's public ones; it sets nothing else aside."""
    parts, server = split(setting, LABELS, seed)
    assert [name for name, held in server.items() if len(held) and name != "public"] == []
    return parts, server["public"]


def counts(parts: Parts) -> NDArray[np.int64]:
    return class_counts(LABELS, parts, 10)


def assert_disjoint(parts: Parts, held: NDArray[np.int64]) -> None:
    together = np.concatenate([*parts, held])
    assert len(np.unique(together)) == len(together)
    assert together.min() >= 0
    assert together.max() < len(LABELS)


class TestFedbeOnCifar10:
    @pytest.mark.parametrize("row", ["Step/FedBE", "Dirichlet/FedBE"])
    def test_the_server_has_a_thousand_of_each_class(self, row: str) -> None:
        parts, held = divided(row)
        assert counts([held]).tolist() == [[1000] * 10]
        assert_disjoint(parts, held)
        assert sum(map(len, parts)) == 40_000

    def test_step(self) -> None:
        # 2 classes x 1,960 + 8 classes x 10 = 4,000 images; every class is major for two clients.
        table = counts(divided("Step/FedBE")[0])
        assert table.shape == (10, 10)
        assert sorted(set(table.flatten().tolist())) == [10, 1960]
        assert (table == 1960).sum(0).tolist() == [2] * 10
        assert (table == 1960).sum(1).tolist() == [2] * 10
        assert table.sum(1).tolist() == [4000] * 10

    def test_dirichlet(self) -> None:
        table = counts(divided("Dirichlet/FedBE")[0])
        assert table.sum(0).tolist() == [4000] * 10
        assert len(set(table.sum(1).tolist())) > 1  # sizes differ
        assert table.sum(1).min() >= 10
        # Dir(0.1) over ten clients: most classes are mostly with one or two of them.
        assert np.median(table.max(0)) > 1600

    def test_a_concentration_to_infinity_is_iid(self) -> None:
        parts, _ = shared(paper("Dirichlet/FedBE").with_(partition_alpha=1e9))
        assert np.abs(counts(parts) - 400).max() <= 1

    def test_centralised_has_all_images(self) -> None:
        parts, held = divided("Centralized/SGD")
        assert [len(part) for part in parts] == [50_000]
        assert len(held) == 0

    def test_iid(self) -> None:
        parts, held = shared(paper("Step/FedBE").with_(partition="iid"))
        assert [len(part) for part in parts] == [4000] * 10
        assert_disjoint(parts, held)
        # 400 of each class, standard error below sqrt(4000 * 0.1 * 0.9) = 19.
        assert np.abs(counts(parts) - 400).max() < 5 * 19

    def test_the_released_codes_shards(self) -> None:
        parts, held = shared(paper("Step/FedBE").with_(partition="step_fedbe_official"))
        assert [len(part) for part in parts] == [2 * 2000 + 10 * 10] * 10
        assert not set(np.concatenate(parts)) & set(held)
        assert (counts(parts) >= 10).all()

    def test_the_released_codes_dirichlet(self) -> None:
        # In the code 0 % of the cells are empty, and the largest of ten clients holds about 6,300 to 7,200 images;
        # by the text's rule 36 % are empty, and it holds 5,400 to 12,900.
        setting = paper("Dirichlet/FedBE").with_(partition="dirichlet_fedbe_official")
        splits = [shared(setting, seed) for seed in range(9)]
        tables = [counts(parts) for parts, _ in splits]
        for (parts, held), table in zip(splits, tables):
            assert_disjoint(parts, held)
            assert table.sum(0).tolist() == [4000] * 10
            assert table.min() >= 2
        assert 6300 < np.median([table.sum(1).max() for table in tables]) < 7800
        assert max(table.sum(1).max() for table in tables) < 5000 + 4000  # full at 5,000: one more class at most
        text = [counts(shared(paper("Dirichlet/FedBE"), seed)[0]) for seed in range(9)]
        assert 0.3 < np.mean([table == 0 for table in text]) < 0.42

    def test_fewer_client_images(self) -> None:
        # Figure 4: 25,000 for the clients, 2 x 1,210 + 8 x 10 = 2,500 each.
        setting = paper("Step/FedBE").with_(client_images=25_000, major_images=1210, public_images=20_000)
        parts, held = shared(setting)
        assert [len(part) for part in parts] == [2500] * 10
        assert len(held) == 20_000
        assert_disjoint(parts, held)
        fewer, _ = shared(setting.with_(partition="iid", client_images=1000))
        assert counts(fewer).sum(0).tolist() == [100] * 10  # stratified

    def test_steps(self) -> None:
        setting = paper("Step/FedBE")
        parts, held = divided("Step/FedBE")

        def steps(part: NDArray[np.int64], batch: int, epochs: int) -> Tensor:
            plan = batch_plan(
                [torch.from_numpy(part)],
                [tiny.seeded(0)],
                epochs=[epochs],
                batch_size=batch,
                augment=NO_AUGMENT,
            )
            return plan.mask[0].sum(1)

        local = steps(parts[0], setting.client_batch, setting.local_epochs)
        assert local.tolist() == [40] * 2000  # 4,000 / 40 * 20 epochs
        distilled = steps(held, setting.distill_batch, setting.distill_epochs)
        assert distilled.tolist() == ([128] * 78 + [16]) * 20  # 79 steps * 20 epochs = 1,580
        central = paper("Centralized/SGD")
        epoch = steps(divided("Centralized/SGD")[0][0], central.client_batch, central.local_epochs)
        assert epoch.tolist() == [128] * 390 + [80]

    def test_all_methods_share_the_split_of_a_seed(self) -> None:
        reference = divided("Step/FedBE")
        for method in ("FedAvg", "1-Ensemble", "v-Distillation", "FedBE w/o SWA"):
            parts, held = divided(f"Step/{method}")
            assert all(np.array_equal(a, b) for a, b in zip(parts, reference[0], strict=True))
            assert np.array_equal(held, reference[1])

    @pytest.mark.parametrize("row", ["Step/FedBE", "Dirichlet/FedBE"])
    def test_the_seed_decides(self, row: str) -> None:
        again, held_again = shared(paper(row))
        other, held_other = shared(paper(row), 1)
        parts, held = divided(row)
        assert all(np.array_equal(a, b) for a, b in zip(parts, again, strict=True))
        assert np.array_equal(held, held_again)
        assert not np.array_equal(parts[0], other[0])
        assert not np.array_equal(held, held_other)

    def test_step_and_dirichlet_share_the_servers_images(self) -> None:
        assert np.array_equal(divided("Step/FedBE")[1], divided("Dirichlet/FedBE")[1])

    def test_a_new_partition_is_an_entry(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(
            KNOWN, "halves", lambda setting, labels, rng: np.array_split(np.arange(len(labels)), 2)
        )
        parts, held = shared(paper("Step/FedBE").with_(partition="halves"))
        assert [len(part) for part in parts] == [20_000] * 2
        assert_disjoint(parts, held)

    def test_refusals(self) -> None:
        with pytest.raises(ValueError, match='the partition "swiss_roll" goes with data = "swiss_roll"'):
            split(paper("Step/FedBE").with_(partition="swiss_roll"), LABELS, 0)
        with pytest.raises(ValueError, match=r"unknown partition 'stepp' \(did you mean 'step'\?\)"):
            split(paper("Step/FedBE").with_(partition="stepp"), LABELS, 0)
        with pytest.raises(ValueError, match="class 0 needs"):
            split(paper("Step/FedBE").with_(major_images=1961), LABELS, 0)
        with pytest.raises(ValueError, match="size must be in"):
            split(paper("Step/FedBE").with_(client_images=40_001), LABELS, 0)


class TestServersParts:
    """Images that the server holds labelled: to choose by, and to train on."""

    setting = paper("Step/FedBE").with_(partition="iid")
    sizes: ClassVar = {"validation_images": 500, "core_images": 1000}

    def divide(self, **sizes: int) -> tuple[Parts, dict[str, NDArray[np.int64]]]:
        return split(self.setting.with_(**sizes), LABELS, 0)

    def test_sizes_and_classes(self) -> None:
        parts, server = self.divide(**self.sizes)
        assert list(server) == ["public", "validation", "core"]
        assert [counts([held]).tolist() for held in server.values()] == [[[1000] * 10], [[50] * 10], [[100] * 10]]
        assert sum(map(len, parts)) == 50_000 - 10_000 - 500 - 1000

    def test_they_share_no_image(self) -> None:
        parts, server = self.divide(**self.sizes)
        together = np.concatenate([*parts, *server.values()])
        assert sorted(together.tolist()) == list(range(50_000))

    @pytest.mark.parametrize("sizes", [{"validation_images": 500}, {"core_images": 1000}, sizes], ids=str)
    def test_the_public_images_stay(self, sizes: dict[str, int]) -> None:
        with_it, without = self.divide(**sizes)[1], self.divide()[1]
        assert np.array_equal(with_it["public"], without["public"])
        both = self.divide(**self.sizes)[1]
        assert np.array_equal(with_it["validation"], both["validation"] if "validation_images" in sizes else [])

    def test_without_them_nothing_moves(self) -> None:
        held, rest = stratified_split(LABELS, 10_000, rng=numpy_generator(0, "server split"))
        dealt = iid(LABELS[rest], clients=10, rng=numpy_generator(0, "partition"))
        parts, server = self.divide(validation_images=0, core_images=0)
        assert np.array_equal(server["public"], held)
        assert len(server["validation"]) == len(server["core"]) == 0
        assert all(np.array_equal(part, rest[own]) for part, own in zip(parts, dealt, strict=True))

    def test_the_seed_decides(self) -> None:
        one, again, other = (split(self.setting.with_(**self.sizes), LABELS, seed)[1] for seed in (0, 0, 1))
        for name in ("validation", "core"):
            assert np.array_equal(one[name], again[name])
            assert not np.array_equal(one[name], other[name])

    def test_before_the_clients_share_of_images_is_kept(self) -> None:
        few, _ = self.divide(**self.sizes, client_images=1000)
        assert counts(few).sum(0).tolist() == [100] * 10

    def test_more_than_there_are(self) -> None:
        with pytest.raises(ValueError, match=r"\[0, 39500\].*got 39501"):
            self.divide(validation_images=500, core_images=39_501)

    def test_in_a_federation(self) -> None:
        setting = tiny.setting(validation_images=20, core_images=30)
        here, without = assemble(setting, 0), assemble(tiny.setting(), 0)
        images = [here.data.images[torch.cat(here.parts)], here.public.images, here.validation.images]
        together = [contents(held) for held in (*images, here.core.images)]
        assert [len(held) for held in together] == [60, 20, 20, 30]
        assert len(set[bytes]().union(*together)) == 130
        assert torch.equal(here.public.images, without.public.images)
        assert here.validation.classes == here.core.classes == here.data.classes
        # Labels are the images' own, and each class is as frequent as among all.
        every = {image.numpy().tobytes(): int(label) for image, label in zip(here.data.images, here.data.labels)}
        for held in (here.validation, here.core):
            assert [every[image.numpy().tobytes()] for image in held.images] == held.labels.tolist()
            found = torch.bincount(held.labels, minlength=10)
            assert bool((found - len(held) / 10).abs().max() <= 1)
        assert len(without.validation) == len(without.core) == 0
        assert without.validation.classes == without.data.classes

    def test_the_toy_has_none(self) -> None:
        setting = TestSwissRoll.setting.with_(validation_images=20, core_images=20)
        here = assemble(setting, 0)
        assert len(here.validation) == len(here.core) == 0


PARTITIONS: dict[str, dict[str, Any]] = {
    "step": {"clients": 10, "major_classes": 2, "client_images": 0},
    "dirichlet": {},
    "dirichlet_fedbe_official": {"client_images": 120},
    "iid": {},
    "central": {"clients": 1},
}


def contents(images: Tensor) -> set[bytes]:
    return {image.numpy().tobytes() for image in images}


@pytest.mark.parametrize("partition", PARTITIONS)
class TestDigits:
    def make(self, partition: str, seed: int = 0, **changes: Any) -> Federation:
        return assemble(tiny.setting(**{"partition": partition} | PARTITIONS[partition] | changes), seed)

    def test_clients_server_and_test_share_no_image(self, partition: str) -> None:
        here = self.make(partition)
        together = torch.cat(here.parts)
        assert len(together.unique()) == len(together)
        clients, public, test = (
            contents(images) for images in (here.data.images[together], here.public.images, here.test.images)
        )
        assert len(clients) == len(together)
        assert (len(public), len(test)) == (20, 500)
        assert not clients & public
        assert not clients & test
        assert not public & test

    def test_the_seed_decides_all_but_the_test_images(self, partition: str) -> None:
        one, same, other = (self.make(partition, seed, test_images=50) for seed in (0, 0, 1))
        assert all(torch.equal(a, b) for a, b in zip(one.parts, same.parts, strict=True))
        assert torch.equal(one.public.images, same.public.images)
        assert tiny.same(one.start(0), same.start(0))
        assert not torch.equal(one.public.images, other.public.images)
        assert not torch.equal(one.start(0).params, other.start(1).params)
        assert torch.equal(one.test.images, other.test.images)
        assert torch.bincount(one.test.labels, minlength=10).tolist() == [5] * 10  # stratified

    def test_seeds_may_share_one_split(self, partition: str) -> None:
        first, second = (self.make(partition, seed, split_seed=1) for seed in (0, 1))
        own = self.make(partition, 1)
        for here in (first, second):
            assert all(torch.equal(a, b) for a, b in zip(here.parts, own.parts, strict=True))
            assert torch.equal(here.public.images, own.public.images)
        assert tiny.same(first.start(0), self.make(partition).start(0))
        assert not tiny.same(first.start(0), second.start(1))

    def test_the_method_does_not(self, partition: str) -> None:
        reference = self.make(partition)
        for method in methods.METHODS:
            here = self.make(partition, method=method, samples=7, distill_epochs=3)
            assert all(torch.equal(a, b) for a, b in zip(here.parts, reference.parts, strict=True))
            assert torch.equal(here.public.images, reference.public.images)
            assert tiny.same(here.start(0), reference.start(0))

    def test_sizes(self, partition: str) -> None:
        here = self.make(partition)
        assert here.clients == {"step": 10, "central": 1}.get(partition, 3)
        # Step: 2 x 3 + 8 x 1 images each. The others share 60 images of the clients together, or 120.
        assert int(here.sizes.sum()) == {"step": 140, "dirichlet_fedbe_official": 120}.get(partition, 60)
        assert here.precision == "float32"
        assert all(part.dtype == torch.int64 for part in here.parts)


class TestSwissRoll:
    setting = tiny.setting(data="swiss_roll", model="mlp", test_images=30, partition="swiss_roll")

    def test_clients(self) -> None:
        here = assemble(self.setting, 0)
        assert here.sizes.tolist() == [300] * 3
        table = [torch.bincount(here.data.labels[part], minlength=3).tolist() for part in here.parts]
        assert table == [[240, 30, 30], [30, 240, 30], [30, 30, 240]]  # 80 % and twice 10 %
        assert len(torch.cat(here.parts).unique()) == len(here.data) == 900
        assert len(here.public) == 0
        assert torch.bincount(here.test.labels).tolist() == [10] * 3
        rows = {tuple(row) for row in here.data.images.tolist()}
        assert not rows & {tuple(row) for row in here.test.images.tolist()}

    def test_the_seed_decides(self) -> None:
        one, same, other = (assemble(self.setting, seed) for seed in (0, 0, 1))
        assert torch.equal(one.data.images, same.data.images)
        assert not torch.equal(one.data.images, other.data.images)
        assert torch.equal(assemble(self.setting.with_(split_seed=1), 0).data.images, other.data.images)


class TestArchitecture:
    @pytest.mark.parametrize(
        ("changes", "options"),
        [
            ({}, {"shortcut": "A", "norm": "batch"}),
            ({"shortcut": "B"}, {"shortcut": "B", "norm": "batch"}),
            ({"norm": "group", "groups": 4}, {"shortcut": "A", "norm": "group", "groups": 4}),
            ({"model": "convnet", "extra_layers": 2}, {"extra_layers": 2}),
            ({"model": "mlp", "hidden": 5}, {"hidden": 5}),
        ],
    )
    def test_options_reach_the_network(self, changes: dict[str, Any], options: dict[str, Any]) -> None:
        setting = tiny.setting(**changes)
        (found,) = architectures(setting, 7)
        assert dict(found.options) == options
        assert (found.name, found.classes, found.scheme) == (setting.model, 7, setting.initialisation)
        assert found.batch_norm == (setting.model == "resnet8" and setting.norm == "batch")
        assert found.make() is not found.make()

    def test_several_are_dealt_out_in_turn(self) -> None:
        here = assemble(tiny.setting(model="resnet8+convnet", clients=5, norm="group", extra_layers=1), 0)
        first, second = here.worlds
        assert (first.architecture.name, second.architecture.name) == ("resnet8", "convnet")
        assert (first.numbers, second.numbers) == ((0, 2, 4), (1, 3))
        assert dict(first.architecture.options) == {"shortcut": "A", "norm": "group", "groups": 2}
        assert dict(second.architecture.options) == {"extra_layers": 1}
        alone = assemble(tiny.setting(clients=5), 0)
        assert all(torch.equal(a, b) for a, b in zip(here.parts, alone.parts, strict=True))
        assert (alone.own, alone.further) == ((), ())


def test_fingerprints() -> None:
    train, test = fingerprint(tiny.setting()).split("-")
    assert (train, test) == ("72c4a22d4dee7fd6", "cd93fb6867833a4e")
    assert fingerprint(tiny.setting(data="swiss_roll")) == "generated"
    assert fingerprint(tiny.setting(public_data="noise")) == f"{train}-{test}"  # made by code
    parts = fingerprint(tiny.setting(public_data="photos")).split("-")
    assert parts[:2] == [train, test]
    assert len(parts[2]) == 16
