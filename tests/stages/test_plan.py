import pytest
import tiny
import torch
from torch import Tensor

from fedrepro.core.rng import Streams
from fedrepro.core.state import State
from fedrepro.kernels.batches import NO_AUGMENT, Augment, BatchPlan, batch_plan
from fedrepro.stages.plan import Sample
from fedrepro.stages.round import Participants


def plan(sizes: tuple[int, ...], batch_size: int, **options: object) -> BatchPlan:
    chosen = {"epochs": [1] * len(sizes), "augment": NO_AUGMENT} | options
    generators = [tiny.seeded(client) for client in range(len(sizes))]
    return batch_plan(list(tiny.cut(sizes)), generators, batch_size=batch_size, **chosen)  # type: ignore[arg-type]


def drawn(sample: Sample, clients: int, streams: Streams) -> Participants:
    """Return the participants among clients of a federation."""
    world = tiny.federation("mlp", sizes=(1,) * clients)
    return sample(tiny.round_of(world, State(streams.round, world.start(0))), world, streams)


def lengths(made: BatchPlan, member: int = 0) -> list[int]:
    """Return the images of each of a member's own steps."""
    return [count for count in made.mask[member].sum(1).tolist() if count]


def seen(made: BatchPlan, member: int) -> Tensor:
    """Return the images in the order in which a member meets them."""
    return made.index[member][made.mask[member]]


class TestSample:
    def test_full_participation_is_everyone(self) -> None:
        who = drawn(Sample(participation=1.0, local_epochs=3), 5, Streams(0, 2))
        assert who.clients == (0, 1, 2, 3, 4)
        assert who.models == (0,) * 5
        assert who.epochs == (3,) * 5

    @pytest.mark.parametrize(
        ("participation", "clients", "count"),
        [(0.4, 20, 8), (0.1, 100, 10), (0.25, 10, 3), (0.24, 10, 2), (0.01, 10, 1), (0.4, 21, 8)],
    )
    def test_the_count_is_rounded_half_up_and_at_least_one(
        self, participation: float, clients: int, count: int
    ) -> None:
        who = drawn(Sample(participation=participation, local_epochs=1), clients, Streams(0))
        assert len(who.clients) == len(who.models) == len(who.epochs) == count
        assert list(who.clients) == sorted(set(who.clients))  # ascending, nobody twice
        assert set(who.clients) <= set(range(clients))

    def test_every_client_is_drawn_equally_often(self) -> None:
        sample = Sample(participation=0.3, local_epochs=1)
        rounds = 2000
        counts = torch.zeros(10)
        for r in range(rounds):
            counts[list(drawn(sample, 10, Streams(4, r)).clients)] += 1
        # Probability 0.3: 600 of 2,000 rounds, standard error sqrt(2000 * 0.3 * 0.7) = 20.5.
        assert bool(((counts - 600).abs() < 4.5 * 20.5).all())

    def test_seed_and_round_alone_decide(self) -> None:
        def draw(seed: int, round: int) -> list[tuple[int, ...]]:
            sample = Sample(participation=0.2, local_epochs=1)
            return [drawn(sample, 50, Streams(seed, round)).clients]

        assert draw(0, 1) == draw(0, 1)
        assert draw(0, 1) != draw(0, 2)
        assert draw(0, 1) != draw(1, 1)

    def test_uneven_epochs_are_each_clients_own(self) -> None:
        sample = Sample(participation=1.0, local_epochs=4, uneven=True)
        found = [drawn(sample, 30, Streams(0, r)).epochs for r in (0, 1, 0)]
        assert set(found[0]) == {1, 2, 3, 4}
        assert found[0] == found[2]
        assert found[0] != found[1]
        fewer = drawn(Sample(participation=0.5, local_epochs=4, uneven=True), 30, Streams(0))
        assert fewer.epochs == tuple(found[0][client] for client in fewer.clients)  # whoever else takes part

    def test_a_part_of_the_participants(self) -> None:
        who = Participants((1, 3, 4), (0, 1, 0), (2, 3, 4))
        assert who.part(slice(1, 3)) == Participants((3, 4), (1, 0), (3, 4))

    @pytest.mark.parametrize("participation", [0.0, -0.5, 1.4, float("nan")])
    def test_participation_out_of_range(self, participation: float) -> None:
        with pytest.raises(ValueError, match=rf"participation must be in \(0, 1\], got {participation}"):
            Sample(participation=participation, local_epochs=1)

    def test_local_epochs_out_of_range(self) -> None:
        with pytest.raises(ValueError, match="local_epochs must be >= 1, got 0"):
            Sample(participation=1.0, local_epochs=0)


class TestBatches:
    def test_every_epoch_is_a_new_permutation_of_the_members_own_images(self) -> None:
        made = plan((6, 7), 3, epochs=[3, 3])
        for member, part in enumerate(tiny.cut((6, 7))):
            epochs = seen(made, member).view(3, -1)
            assert all(sorted(epoch.tolist()) == part.tolist() for epoch in epochs)
            assert len({tuple(epoch.tolist()) for epoch in epochs}) > 1

    def test_unequal_members_are_padded_with_masked_steps(self) -> None:
        made = plan((4, 10, 3), 4, epochs=[1, 2, 1])
        # 4 -> [4]; 10 -> [4, 4, 2] twice; 3 -> [3]
        assert made.index.shape == made.mask.shape == made.flip.shape == (3, 6, 4)
        assert made.shift.shape == (3, 6, 4, 2)
        assert made.mask.sum(2).tolist() == [[4, 0, 0, 0, 0, 0], [4, 4, 2, 4, 4, 2], [3, 0, 0, 0, 0, 0]]
        # Images fill a step from its first place.
        assert bool((made.mask.long().diff(dim=2) <= 0).all())

    @pytest.mark.parametrize(
        ("size", "policy", "expected"),
        [
            (9, "keep", [4, 4, 1]),
            (9, "drop", [4, 4]),
            (9, "merge", [4, 5]),
            (10, "keep", [4, 4, 2]),
            (10, "drop", [4, 4]),
            (10, "merge", [4, 4, 2]),
            (8, "drop", [4, 4]),
            (8, "merge", [4, 4]),
            (3, "drop", [3]),  # the only batch is never dropped: nobody trains on nothing
            (1, "merge", [1]),
            (5, "merge", [5]),
        ],
    )
    def test_last_batch(self, size: int, policy: str, expected: list[int]) -> None:
        made = plan((size,), 4, last_batch=policy)
        assert lengths(made) == expected
        assert len(set(seen(made, 0).tolist())) == sum(expected)

    def test_a_batch_size_of_one_leaves_nothing_over(self) -> None:
        # Every batch is full, so there is no last, shorter one to merge.
        assert lengths(plan((3,), 1, last_batch="merge")) == [1, 1, 1]

    def test_merging_is_the_default(self) -> None:
        assert lengths(plan((9,), 4)) == [4, 5]

    @pytest.mark.parametrize(
        ("images", "batch_size", "epochs", "steps", "last"),
        [
            (4_000, 40, 20, 2_000, 40),  # FedBE Step: a client's round
            (10_000, 128, 20, 1_580, 16),  # distillation: 20 epochs of 78 full batches and one of 16
            (50_000, 128, 1, 391, 80),  # centralised
            (400, 20, 20, 400, 20),  # CIFAR-100, 100 clients
        ],
    )
    def test_the_papers_steps(self, images: int, batch_size: int, epochs: int, steps: int, last: int) -> None:
        made = plan((images,), batch_size, epochs=[epochs])
        counts = lengths(made)
        assert len(counts) == made.index.shape[1] == steps
        assert sum(counts) == images * epochs
        assert counts[-1] == last
        assert set(counts) == {batch_size, last}

    def test_a_members_draws_are_its_own(self) -> None:
        augment = Augment(pad=2, flip=True)
        parts = tiny.cut((9, 23))

        def draw(chosen: list[int]) -> BatchPlan:
            return batch_plan(
                [parts[member] for member in chosen],
                [tiny.seeded(member) for member in chosen],
                epochs=[2] * len(chosen),
                batch_size=4,
                augment=augment,
            )

        alone, together, turned = draw([0]), draw([0, 1]), draw([1, 0])
        steps, batch = alone.mask.shape[1:]
        for name in ("index", "mask", "shift", "flip"):
            own = getattr(alone, name)[0]
            assert torch.equal(getattr(together, name)[0, :steps, :batch], own)
            assert torch.equal(getattr(turned, name)[1, :steps, :batch], own)
            assert torch.equal(getattr(turned, name)[0], getattr(together, name)[1])

    def test_refusals(self) -> None:
        with pytest.raises(ValueError, match="member 1 has no images"):
            plan((3, 0), 2)
        with pytest.raises(ValueError, match="batch_size must be >= 1, got 0"):
            plan((3,), 0)
        with pytest.raises(ValueError, match=r"epochs must be >= 1, got \[1, 0\]"):
            plan((3, 3), 2, epochs=[1, 0])
        with pytest.raises(ValueError, match=r"last_batch must be one of .*, got 'pad'"):
            plan((3,), 2, last_batch="pad")
        with pytest.raises(ValueError, match="argument 3 is shorter"):
            plan((3, 3), 2, epochs=[1])


class TestAugment:
    @pytest.mark.parametrize("pad", [-1, 17])
    def test_pad_out_of_range(self, pad: int) -> None:
        with pytest.raises(ValueError, match=rf"pad must be in \[0, 16\] pixels, got {pad}"):
            Augment(pad=pad, flip=True)

    def test_offsets_and_flips_are_uniform(self) -> None:
        made = plan((5000,), 50, augment=Augment(pad=2, flip=True))
        assert made.pad == 2
        for axis in (0, 1):
            counts = torch.bincount(made.shift[0, :, :, axis].flatten().long(), minlength=5)
            assert len(counts) == 5  # offsets 0 to 2 pad, the last one included
            # 1,000 each, standard error sqrt(5000 * 0.2 * 0.8) = 28.3.
            assert bool(((counts - 1000).abs() < 4.5 * 28.3).all())
        # 2,500 mirrored, standard error sqrt(5000 / 4) = 35.4.
        assert abs(int(made.flip.sum()) - 2500) < 4.5 * 35.4
        # Down, right and mirror are drawn apart: correlations are 0 +- 1 / sqrt(5000) = 0.014.
        drawn = torch.stack([made.shift[0, ..., 0], made.shift[0, ..., 1], made.flip[0]]).flatten(1).double()
        assert float(torch.corrcoef(drawn).triu(1).abs().max()) < 4.5 * 0.0141

    def test_off_draws_nothing(self) -> None:
        made = plan((50,), 5, augment=NO_AUGMENT)
        assert made.pad == 0
        assert not made.shift.any()
        assert not made.flip.any()

    def test_augmentation_does_not_change_the_batches(self) -> None:
        with_it, without = plan((50,), 5, augment=Augment(pad=2, flip=True)), plan((50,), 5)
        assert torch.equal(with_it.index, without.index)
