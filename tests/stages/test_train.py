"""Local training of a round: FedBE equation 1 with its schedule, client by client."""

from dataclasses import fields, replace
from typing import Any

import pytest
import tiny
import torch

from fedrepro.core.rng import Streams, generator
from fedrepro.core.stack import Stack
from fedrepro.data.data import Data
from fedrepro.federation.federation import Federation
from fedrepro.kernels.batches import NO_AUGMENT, Augment, batch_plan
from fedrepro.kernels.plain import Trained
from fedrepro.stages.plan import Participants
from fedrepro.stages.train import DivergedError, LocalSgd, Scaffold, local_batches


class Once(LocalSgd):
    """The stage without its memory, for which it has no use."""

    def __call__(  # type: ignore[override]
        self, start: Stack, who: Participants, federation: Federation, streams: Streams
    ) -> Trained:
        trained, memory = super().__call__(start, who, federation, streams, {})
        assert memory == {}
        return trained


def local(**changes: Any) -> Once:
    values: dict[str, Any] = {
        "lr": 0.1,
        "lr_schedule": "constant",
        "rounds": 40,
        "batch_size": 4,
        "momentum": 0.9,
        "weight_decay": 0.01,
        "augment": NO_AUGMENT,
    }
    return Once(**(values | changes))


def who(*clients: int, epochs: int = 1) -> Participants:
    return Participants(clients, (0,) * len(clients), (epochs,) * len(clients))


def start(world: Federation, count: int) -> Stack:
    return world.start(0).take([0] * count)


def one_hot(data: Data) -> torch.Tensor:
    return torch.eye(tiny.CLASSES, dtype=torch.float64)[data.labels]


class TestBatches:
    world = tiny.federation("mlp", sizes=(5, 8, 6, 7))

    def test_a_client_has_its_own_stream(self) -> None:
        made = local_batches(self.world, who(1, 3), Streams(2, 5), batch_size=4, augment=NO_AUGMENT)
        literal = batch_plan(
            [self.world.parts[1], self.world.parts[3]],
            [generator(2, "batches", round=5, client=1), generator(2, "batches", round=5, client=3)],
            epochs=[1, 1],
            batch_size=4,
            augment=NO_AUGMENT,
        )
        assert torch.equal(made.index, literal.index)
        for place, client in enumerate((1, 3)):
            seen = made.index[place][made.mask[place]].sort().values
            assert torch.equal(seen, self.world.parts[client])

    def test_companions_do_not_matter_and_rounds_do(self) -> None:
        def batches(clients: tuple[int, ...], round: int) -> list[int]:
            made = local_batches(
                self.world, who(*clients), Streams(2, round), batch_size=4, augment=Augment(pad=1, flip=True)
            )
            place = clients.index(3)
            seen = made.mask[place]
            return [
                *made.index[place][seen].tolist(),
                *made.shift[place][seen].flatten().tolist(),
                *made.flip[place][seen].tolist(),
            ]

        assert batches((3,), 5) == batches((0, 1, 2, 3), 5) == batches((3, 1), 5)
        assert batches((3,), 5) != batches((3,), 6)


class TestBatchOfOne:
    """BatchNorm cannot train on a single image: a left-over one joins the batch before, or it is refused."""

    @pytest.mark.parametrize(
        ("size", "policy", "expected"), [(5, "merge", [5]), (9, "merge", [4, 5]), (9, "drop", [4, 4])]
    )
    def test_what_works(self, size: int, policy: str, expected: list[int]) -> None:
        world = tiny.federation("resnet8", sizes=(4, size))
        made = local_batches(world, who(1), Streams(0), batch_size=4, augment=NO_AUGMENT, last_batch=policy)
        assert made.mask[0].sum(1).tolist() == expected

    @pytest.mark.parametrize(
        ("size", "policy"), [(1, "merge"), (1, "drop"), (1, "keep"), (5, "keep"), (9, "keep")]
    )
    def test_what_is_refused(self, size: int, policy: str) -> None:
        world = tiny.federation("resnet8", sizes=(4, 4, size))
        with pytest.raises(
            ValueError, match=rf"client 2 \({size} images, batches of 4\) would train on a batch of one"
        ):
            local_batches(world, who(0, 2), Streams(0), batch_size=4, augment=NO_AUGMENT, last_batch=policy)

    @pytest.mark.parametrize("name", ["mlp", "group"])
    def test_other_networks_do_not_mind(self, name: str) -> None:
        world = tiny.federation(name, sizes=(4, 1))
        trained = local()(start(world, 2), who(0, 1), world, Streams(0))
        assert bool(trained.stack.params.isfinite().all())


class TestTraining:
    world = tiny.federation("mlp", sizes=(5, 8, 6))

    @pytest.mark.parametrize(
        ("schedule", "round", "factor"),
        [
            ("paper", 0, 1.0),
            ("paper", 11, 1.0),
            ("paper", 12, 0.1),
            ("paper", 23, 0.1),
            ("paper", 24, 0.01),
            ("paper", 39, 0.01),
            ("official", 0, 0.5),
            ("constant", 39, 1.0),
        ],
    )
    def test_against_a_literal_loop(self, schedule: str, round: int, factor: float) -> None:
        streams = Streams(1, round)
        trained = local(lr_schedule=schedule)(start(self.world, 2), who(0, 2, epochs=2), self.world, streams)
        plan = local_batches(self.world, who(0, 2, epochs=2), streams, batch_size=4, augment=NO_AUGMENT)
        truth = one_hot(self.world.data).numpy()
        for place in range(2):
            client = tiny.Literal.of(self.world.start(0), 0)  # a fresh optimiser: its velocity starts at zero
            for step in range(plan.index.shape[1]):
                index = plan.index[place, step][plan.mask[place, step]]
                if len(index):
                    x = self.world.data.images[index].double().numpy()
                    # One learning rate for the whole round: 0.1 times the round's factor.
                    client.step(x, truth[index], 0.1 * factor, 0.9, 0.01)
            torch.testing.assert_close(trained.stack.params[place], client.flat(), rtol=1e-12, atol=1e-12)

    def test_clients_train_apart(self) -> None:
        world = tiny.federation("resnet8")
        stage = local(augment=Augment(pad=1, flip=True))
        together = stage(start(world, 3), who(0, 1, 2), world, Streams(0, 1))
        for pair in ([0, 1], [0, 2], [1, 2]):
            apart = stage(start(world, 2), who(*pair), world, Streams(0, 1))
            assert tiny.same(apart.stack, together.stack.take(pair))
            assert torch.equal(apart.loss, together.loss[pair])
        for client in range(3):  # alone it may have all cores, which sum in another order
            alone = stage(start(world, 1), who(client), world, Streams(0, 1))
            torch.testing.assert_close(
                alone.stack.params[0], together.stack.params[client], rtol=1e-12, atol=1e-12
            )

    def test_velocity_carries_on(self) -> None:
        stage, streams = local(), Streams(0, 1)
        plan = local_batches(self.world, who(0, 1, epochs=4), streams, batch_size=4, augment=NO_AUGMENT)
        whole = stage.steps(start(self.world, 2), who(0, 1), self.world, streams, plan)
        first, second = tiny.replanned(plan, lambda t: t[:, :3]), tiny.replanned(plan, lambda t: t[:, 3:])
        half = stage.steps(start(self.world, 2), who(0, 1), self.world, streams, first)
        rest = stage.steps(half.stack, who(0, 1), self.world, streams, second, velocity=half.velocity)
        assert tiny.same(rest.stack, whole.stack)
        assert torch.equal(rest.velocity, whole.velocity)


class TestDivergence:
    def test_client_and_round_are_named(self) -> None:
        world = tiny.federation("mlp", sizes=(4, 4, 4, 4, 4))
        broken = world.data.images.clone()
        broken[16:] = float("inf")  # those of client 4, who is second in the round
        world = replace(world, data=replace(world.data, images=broken))
        with pytest.raises(DivergedError, match="the loss of client 4 in round 3 is not finite"):
            local()(start(world, 2), who(1, 4), world, Streams(0, 3))
        local()(start(world, 2), who(1, 2), world, Streams(0, 3))  # the others are well

    def test_a_learning_rate_that_is_far_too_large(self) -> None:
        world = tiny.federation("resnet8", precision="float32")
        with pytest.raises(DivergedError, match=r"client \d in round 0 is not finite \(learning rate 1e\+30\)"):
            local(lr=1e30)(start(world, 3), who(0, 1, 2, epochs=3), world, Streams(0))

    def test_weights_that_overflow_in_the_last_step(self) -> None:
        # The only step has a finite loss and leaves infinite weights. Unnoticed, they would spoil the average,
        # and the next round would blame whichever client comes first.
        world = tiny.federation("mlp", sizes=(4, 4), precision="float32")
        features = world.data.images.clone()
        features[4:] *= 1e6  # client 1's gradients are large
        world = replace(world, data=replace(world.data, images=features))
        with pytest.raises(DivergedError, match="client 1 in round 0"):
            local(lr=1e35)(start(world, 2), who(0, 1), world, Streams(0))

    def test_a_client_without_images_is_named(self) -> None:
        world = tiny.federation("mlp", sizes=(4, 0, 4, 0))
        with pytest.raises(ValueError, match="client 3"):
            local()(start(world, 2), who(2, 3), world, Streams(0))


class TestRefusals:
    world = tiny.federation("mlp")

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"lr_schedule": "linear"}, "lr_schedule must be one of"),
            ({"momentum": 1.0}, r"momentum must be in \[0, 1\), got 1"),
            ({"weight_decay": -0.1}, "weight_decay must be >= 0, got -0.1"),
            ({"lr": -0.1}, "lr must be a vector .* of values >= 0"),
            ({"batch_size": 0}, "batch_size must be >= 1, got 0"),
            ({"last_batch": "pad"}, "last_batch must be one of"),
        ],
    )
    def test_values_out_of_range(self, changes: dict[str, Any], message: str) -> None:
        with pytest.raises(ValueError, match=message):
            local(**changes)(start(self.world, 3), who(0, 1, 2), self.world, Streams(0))


class TestScaffold:
    """SCAFFOLD on a loss whose gradient is known: then its control variates are too."""

    world = tiny.federation("mlp", sizes=(4, 8, 4))

    def stage(self, **changes: Any) -> Scaffold:
        values = {f.name: getattr(local(), f.name) for f in fields(LocalSgd)}
        return Scaffold(**(values | {"weight_decay": 0.0} | changes))

    @pytest.mark.parametrize(
        ("momentum", "length", "expected"),
        [
            # Two steps of rate 0.1, and four. Plain: 0.2 and 0.4.
            (0.0, "plain", [0.2, 0.4]),
            (0.0, "effective", [0.2, 0.4]),
            (0.5, "plain", [0.2, 0.4]),
            # A gradient counts 1, 1.5, 1.75 and 1.875 times in the first to fourth step's velocity.
            (0.5, "effective", [0.25, 0.6125]),
        ],
    )
    def test_lengths_by_hand(self, momentum: float, length: str, expected: list[float]) -> None:
        stage = self.stage(momentum=momentum, length=length)
        plan = stage.batches(self.world, who(0, 1, epochs=2), Streams(0))
        assert plan.mask.any(2).sum(1).tolist() == [2, 4]
        assert stage.lengths(plan, Streams(0)).tolist() == pytest.approx(expected)

    @pytest.mark.parametrize("momentum", [0.0, 0.9])
    def test_a_constant_gradient_becomes_the_control_variate(self, momentum: float) -> None:
        # In place of training: y = x - L (g_i - c_i + c) with a constant g_i, whatever the momentum.
        stage, start_ = self.stage(momentum=momentum), start(self.world, 2)
        gradients = torch.randn(start_.params.shape, generator=tiny.seeded(1), dtype=torch.float64)
        given: list[torch.Tensor] = []

        class Constant(Scaffold):
            def steps(self, start: Stack, *arguments: Any, correction: Any = None, **options: Any) -> Trained:
                plan = arguments[3]
                given.append(correction)
                way = self.lengths(plan, Streams(0))[:, None] * (gradients + correction)
                end = Stack(start.layout, start.params - way, start.buffers, start.counters)
                return Trained(end, end, way, way.new_zeros(2))

        stage = Constant(**{f.name: getattr(stage, f.name) for f in fields(Scaffold)})
        first = stage(start_, who(0, 2), self.world, Streams(0), {})[1]
        torch.testing.assert_close(first["controls"][[0, 2]], gradients)
        assert not bool(first["controls"][1].any())  # it took no part
        torch.testing.assert_close(first["control"], gradients.sum(0) / 3)  # of three clients
        second = stage(start_, who(0, 2), self.world, Streams(0), first)[1]
        torch.testing.assert_close(given[1], gradients.sum(0) / 3 - gradients)
        torch.testing.assert_close(second["controls"], first["controls"])  # c_i+ = g_i again
        torch.testing.assert_close(second["control"], first["control"])

    def test_against_a_literal_loop(self) -> None:
        stage, streams = self.stage(momentum=0.0), Streams(0)
        trained, memory = stage(start(self.world, 2), who(0, 1), self.world, streams, {})
        x = self.world.start(0).params[0]
        after, again = stage(start(self.world, 2), who(0, 1), self.world, streams, memory)
        plan = stage.batches(self.world, who(0, 1), streams)
        c_own = [(x - trained.stack.params[i]) / (0.1 * steps) for i, steps in enumerate((1, 2))]
        c = (c_own[0] + c_own[1]) / 3
        for place in range(2):
            torch.testing.assert_close(memory["controls"][place], c_own[place])
            client = tiny.Literal.of(self.world.start(0), 0)
            truth = one_hot(self.world.data).numpy()
            for step in range(place + 1):
                index = plan.index[place, step][plan.mask[place, step]]
                client.step(self.world.data.images[index].double().numpy(), truth[index], 0.1, 0.0, 0.0)
                shift = 0.1 * (c - c_own[place])  # a step's correction, put in by hand after it
                weights = client.flat() - shift
                client = tiny.Literal.of(Stack(trained.stack.layout, weights[None], *rest(trained.stack)), 0)
            torch.testing.assert_close(after.stack.params[place], client.flat())
        assert again.keys() == memory.keys()

    def test_refusal(self) -> None:
        with pytest.raises(ValueError, match="length must be one of"):
            self.stage(length="long")


def rest(stack: Stack) -> tuple[torch.Tensor, torch.Tensor]:
    return stack.buffers[:1], stack.counters[:1]
