"""Local training of a round: FedBE equation 1 with its schedule, client by client."""

from dataclasses import fields, replace
from typing import Any

import pytest
import tiny
import torch

from fedrepro.core.rng import Streams, generator
from fedrepro.core.stack import Stack
from fedrepro.core.state import Memory, State
from fedrepro.data.data import Data
from fedrepro.federation.federation import Federation
from fedrepro.kernels.batches import NO_AUGMENT, Augment, BatchPlan, batch_plan
from fedrepro.kernels.trained import Carried, Trained
from fedrepro.stages.round import Participants, Round
from fedrepro.stages.train import DivergedError, LocalSgd, Scaffold, local_batches


def local(**changes: Any) -> LocalSgd:
    values: dict[str, Any] = {
        "lr": 0.1,
        "lr_schedule": "constant",
        "rounds": 40,
        "batch_size": 4,
        "momentum": 0.9,
        "weight_decay": 0.01,
        "augment": NO_AUGMENT,
    }
    return LocalSgd(**(values | changes))


def sent(world: Federation, who: Participants, start: Stack | None = None, memory: Memory | None = None) -> Round:
    """Return a round in which the models have just been sent out: the first ones, unless others are given."""
    begun = start if start is not None else world.start(0).take([0] * len(who.clients))
    return tiny.round_of(world, State(0, world.start(0), memory or {}), start=begun, who=who)


def train(stage: LocalSgd, who: Participants, world: Federation, streams: Streams) -> Trained:
    """Train some clients from the first model; the stage has no use for a memory."""
    trained, memory = stage(sent(world, who), world, streams)
    assert memory == {}
    return trained


def who(*clients: int, epochs: int = 1) -> Participants:
    return Participants(clients, (0,) * len(clients), (epochs,) * len(clients))


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


class TestRepeatedDraws:
    """FedBE's released code: in FedAvg all draws are the same, in FedBE those of all clients of a round."""

    world = tiny.federation("mlp", sizes=(6, 8, 6, 7))

    def drawn(self, repeated: str, client: int, round: int) -> list[Any]:
        """Return the order, crops and flips of a client in a round, its first image counted as 0."""
        stage = local(repeated=repeated, augment=Augment(pad=1, flip=True))
        plan = stage.batches(who(1, client, epochs=2), self.world, Streams(2, round))
        own = plan.mask[1]
        order = plan.index[1][own] - int(self.world.parts[client].min())
        return [order.tolist(), plan.shift[1][own].tolist(), plan.flip[1][own].tolist()]

    @pytest.mark.parametrize(
        ("repeated", "clients", "rounds"),
        [("none", False, False), ("clients", True, False), ("rounds", True, True)],
    )
    def test_what_is_the_same(self, repeated: str, clients: bool, rounds: bool) -> None:
        one = self.drawn(repeated, 0, 5)
        assert one == self.drawn(repeated, 0, 5)
        assert (one == self.drawn(repeated, 2, 5)) == clients  # as large as client 0
        assert (one == self.drawn(repeated, 0, 6)) == rounds

    def test_the_stream_is_that_of_round_and_client_0(self) -> None:
        parts, streams = [self.world.parts[1]], [generator(2, "batches", round=0, client=0)]
        literal = batch_plan(parts, streams, epochs=[1], batch_size=4, augment=NO_AUGMENT)
        assert torch.equal(
            local(repeated="rounds").batches(who(1), self.world, Streams(2, 7)).index, literal.index
        )


class TestSteppedRates:
    """1-Ensemble of FedBE's released code: half of 0.01 at first, a tenth of it after every 30 epochs."""

    def test_the_codes_schedule(self) -> None:
        world = tiny.federation("mlp", sizes=(8, 8))  # two steps an epoch
        stage = local(lr=0.01, lr_schedule="fedbe_official", rounds=1, decay_epochs=30, decay_factor=0.1)
        plan = stage.batches(who(0, 1, epochs=200), world, Streams(0))
        found = stage.rates(len(plan), Streams(0), 200)
        assert len(found) == 400
        assert found[[0, 59, 60, 119, 120, 399]].tolist() == pytest.approx(
            [5e-3, 5e-3, 5e-4, 5e-4, 5e-5, 5e-9], rel=1e-12
        )

    def test_each_client_counts_its_own_epochs(self) -> None:
        # 5 images are two steps of up to 4, 12 are three, 3 are one; the middle client makes two epochs only.
        world = tiny.federation("mlp", sizes=(6, 12, 3))
        stage = local(lr=0.8, decay_epochs=1, decay_factor=0.5, momentum=0.0)
        part = Participants((0, 1, 2), (0, 0, 0), (3, 2, 3))
        plan = stage.batches(part, world, Streams(0))
        assert plan.mask.any(2).int().tolist() == [
            [1, 1, 0, 1, 1, 0, 1, 1, 0],
            [1, 1, 1, 1, 1, 1, 0, 0, 0],
            [1, 0, 0, 1, 0, 0, 1, 0, 0],
        ]
        assert stage.rates(len(plan), Streams(0), 3).tolist() == pytest.approx([0.8] * 3 + [0.4] * 3 + [0.2] * 3)
        before = local(lr=0.8).batches(part, world, Streams(0))
        for client in range(3):
            assert torch.equal(plan.index[client][plan.mask[client]], before.index[client][before.mask[client]])

    def test_training_against_a_literal_loop(self) -> None:
        world = tiny.federation("mlp", sizes=(6, 12), precision="float64")
        stage = local(decay_epochs=2, decay_factor=0.1)
        together = train(stage, who(0, 1, epochs=4), world, Streams(3))
        for client in range(2):
            plan = local().batches(who(client, epochs=4), world, Streams(3))
            each = len(plan) // 4
            rates = torch.tensor([0.1] * 2 * each + [0.01] * 2 * each, dtype=torch.float64)
            alone = world.train(world.start(0), world.data, (world.data.labels,), plan, stage.step, rates)
            torch.testing.assert_close(
                together.stack.params[client], alone.stack.params[0], rtol=1e-12, atol=1e-14
            )
            assert float(together.loss[client]) == pytest.approx(float(alone.loss[0]), rel=1e-12)


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
        trained = train(local(), who(0, 1), world, Streams(0))
        assert bool(trained.stack.params.isfinite().all())


class TestTraining:
    world = tiny.federation("mlp", sizes=(5, 8, 6))

    @pytest.mark.parametrize(
        ("schedule", "round", "factor"),
        [
            ("fedbe", 0, 1.0),
            ("fedbe", 11, 1.0),
            ("fedbe", 12, 0.1),
            ("fedbe", 23, 0.1),
            ("fedbe", 24, 0.01),
            ("fedbe", 39, 0.01),
            ("fedbe_official", 0, 0.5),
            ("constant", 39, 1.0),
        ],
    )
    def test_against_a_literal_loop(self, schedule: str, round: int, factor: float) -> None:
        streams = Streams(1, round)
        trained = train(local(lr_schedule=schedule), who(0, 2, epochs=2), self.world, streams)
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
        together = train(stage, who(0, 1, 2), world, Streams(0, 1))
        for pair in ([0, 1], [0, 2], [1, 2]):
            apart = train(stage, who(*pair), world, Streams(0, 1))
            assert tiny.same(apart.stack, together.stack.take(pair))
            assert torch.equal(apart.loss, together.loss[pair])
        for client in range(3):  # alone it may have all cores, which sum in another order
            alone = train(stage, who(client), world, Streams(0, 1))
            torch.testing.assert_close(
                alone.stack.params[0], together.stack.params[client], rtol=1e-12, atol=1e-12
            )

    def test_velocity_carries_on(self) -> None:
        stage, streams = local(), Streams(0, 1)
        plan = local_batches(self.world, who(0, 1, epochs=4), streams, batch_size=4, augment=NO_AUGMENT)
        begun = sent(self.world, who(0, 1))
        whole = stage.run(begun, self.world, streams, plan)
        first, second = tiny.replanned(plan, lambda t: t[:, :3]), tiny.replanned(plan, lambda t: t[:, 3:])
        half = stage.run(begun, self.world, streams, first)
        rest = stage.run(sent(self.world, who(0, 1), half.stack), self.world, streams, second, half.carried)
        assert tiny.same(rest.stack, whole.stack)
        assert torch.equal(rest.carried.slots, whole.carried.slots)
        assert torch.equal(rest.loss, whole.loss)


class TestDivergence:
    def test_client_and_round_are_named(self) -> None:
        world = tiny.federation("mlp", sizes=(4, 4, 4, 4, 4))
        broken = world.data.images.clone()
        broken[16:] = float("inf")  # those of client 4, who is second in the round
        world = replace(world, data=replace(world.data, images=broken))
        with pytest.raises(DivergedError, match="the loss of client 4 in round 3 is not finite"):
            train(local(), who(1, 4), world, Streams(0, 3))
        train(local(), who(1, 2), world, Streams(0, 3))  # the others are well

    def test_a_learning_rate_that_is_far_too_large(self) -> None:
        world = tiny.federation("resnet8", precision="float32")
        with pytest.raises(DivergedError, match=r"client \d in round 0 is not finite \(learning rate 1e\+30\)"):
            train(local(lr=1e30), who(0, 1, 2, epochs=3), world, Streams(0))

    def test_weights_that_overflow_in_the_last_step(self) -> None:
        # The only step has a finite loss and leaves infinite weights. Unnoticed, they would spoil the average,
        # and the next round would blame whichever client comes first.
        world = tiny.federation("mlp", sizes=(4, 4), precision="float32")
        features = world.data.images.clone()
        features[4:] *= 1e6  # client 1's gradients are large
        world = replace(world, data=replace(world.data, images=features))
        with pytest.raises(DivergedError, match="client 1 in round 0"):
            train(local(lr=1e35), who(0, 1), world, Streams(0))

    def test_kept_it_is_left_to_later_stages(self) -> None:
        world = tiny.federation("mlp", sizes=(4, 4, 4))
        broken = world.data.images.clone()
        broken[4:8] = float("inf")
        world = replace(world, data=replace(world.data, images=broken))
        found = train(local(diverged="keep"), who(0, 1, 2), world, Streams(0))
        assert found.finite.tolist() == [True, False, True]
        assert found.finite.device.type == "cpu"
        well = train(local(), who(0, 2), world, Streams(0))
        assert tiny.same(found.stack.take([0, 2]), well.stack)

    def test_a_client_without_images_is_named(self) -> None:
        world = tiny.federation("mlp", sizes=(4, 0, 4, 0))
        with pytest.raises(ValueError, match="client 3"):
            train(local(), who(2, 3), world, Streams(0))


class TestRefusals:
    world = tiny.federation("mlp")

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"lr_schedule": "linear"}, "lr_schedule must be one of"),
            ({"momentum": 1.0}, r"momentum must be in \[0, 1\), got 1"),
            ({"weight_decay": -0.1}, "weight_decay must be >= 0, got -0.1"),
            ({"lr": -0.1}, r"learning rates must be \[\d+\] \(the steps\) values >= 0, got \[-0\.1"),
            ({"lr_decay": 1.1}, r"lr_decay must be in \(0, 1\], got 1.1"),
            ({"decay_epochs": -1}, "decay_epochs must be >= 0"),
            ({"decay_factor": 0.0}, r"decay_factor in \(0, 1\], got 0 and 0.0"),
            ({"repeated": "always"}, "repeated must be one of .*, got 'always'"),
            ({"diverged": "drop"}, 'diverged must be "fail" or "keep", got '),
            ({"batch_size": 0}, "batch_size must be >= 1, got 0"),
            ({"last_batch": "pad"}, "last_batch must be one of"),
        ],
    )
    def test_values_out_of_range(self, changes: dict[str, Any], message: str) -> None:
        with pytest.raises(ValueError, match=message):
            train(local(**changes), who(0, 1, 2), self.world, Streams(0))


class TestScaffold:
    """SCAFFOLD on a loss whose gradient is known: then its control variates are too."""

    world = tiny.federation("mlp", sizes=(4, 8, 4))

    def stage(self, **changes: Any) -> Scaffold:
        values = {f.name: getattr(local(), f.name) for f in fields(LocalSgd)}
        return Scaffold(**(values | {"weight_decay": 0.0} | changes))

    def remembered(self, found: tuple[Trained, Memory]) -> dict[str, torch.Tensor]:
        """Return the control variates that a round leaves."""
        assert set(found[1]) == {"control", "controls"}
        return {name: held for name, held in found[1].items() if isinstance(held, torch.Tensor)}

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
        plan = stage.batches(who(0, 1, epochs=2), self.world, Streams(0))
        assert plan.mask.any(2).sum(1).tolist() == [2, 4]
        assert stage.lengths(plan, Streams(0)).tolist() == pytest.approx(expected)

    @pytest.mark.parametrize("length", ["plain", "effective"])
    @pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9])
    @pytest.mark.parametrize("decay", [1.0, 0.99])
    def test_lengths_against_a_literal_loop(self, momentum: float, length: str, decay: float) -> None:
        world = tiny.federation("mlp", sizes=(40, 9, 23))
        stage = self.stage(momentum=momentum, length=length, lr_decay=decay, lr_schedule="fedbe", lr=0.01)
        streams = Streams(0, 13)  # the second third of the rounds: a tenth of the rate
        plan = stage.batches(who(0, 1, 2, epochs=20), world, streams)
        found = stage.lengths(plan, streams)
        assert found.dtype == torch.float64
        for client, steps in enumerate((200, 40, 120)):
            way = velocity = 0.0
            for step in range(steps):  # a constant gradient of 1
                velocity = (momentum if length == "effective" else 0.0) * velocity + 1.0
                way += 0.001 * decay**step * velocity
            assert float(found[client]) == pytest.approx(way, rel=1e-12, abs=0)

    @pytest.mark.parametrize("momentum", [0.0, 0.9])
    def test_a_constant_gradient_becomes_the_control_variate(self, momentum: float) -> None:
        # In place of training: y = x - L (g_i - c_i + c) with a constant g_i, whatever the momentum.
        stage = self.stage(momentum=momentum)
        size = self.world.start(0).params.shape[1]
        gradients = torch.randn(2, size, generator=tiny.seeded(1), dtype=torch.float64)
        given: list[torch.Tensor] = []

        class Constant(Scaffold):
            def run(
                self, round: Round, federation: Federation, streams: Streams, plan: BatchPlan,
                carried: Any = None, correction: Any = None,
            ) -> Trained:  # fmt: skip
                given.append(correction)
                start, way = round.start, self.lengths(plan, streams)[:, None] * (gradients + correction)
                end = Stack(start.layout, start.params - way, start.buffers, start.counters)
                return Trained.of(end, Carried.fresh(start, self.step.rule))

        stage = Constant(**{f.name: getattr(stage, f.name) for f in fields(Scaffold)})
        first = self.remembered(stage(sent(self.world, who(0, 2)), self.world, Streams(0)))
        torch.testing.assert_close(first["controls"][[0, 2]], gradients)
        assert not bool(first["controls"][1].any())  # it took no part
        torch.testing.assert_close(first["control"], gradients.sum(0) / 3)  # of three clients
        again = sent(self.world, who(0, 2), memory=first)
        second = self.remembered(stage(again, self.world, Streams(0)))
        torch.testing.assert_close(given[1], gradients.sum(0) / 3 - gradients)
        torch.testing.assert_close(second["controls"], first["controls"])  # c_i+ = g_i again
        torch.testing.assert_close(second["control"], first["control"])

    def test_against_a_literal_loop(self) -> None:
        stage, streams = self.stage(momentum=0.0), Streams(0)
        trained, memory = stage(sent(self.world, who(0, 1)), self.world, streams)
        x = self.world.start(0).params[0]
        after, again = stage(sent(self.world, who(0, 1), memory=memory), self.world, streams)
        plan = stage.batches(who(0, 1), self.world, streams)
        c_own = [(x - trained.stack.params[i]) / (0.1 * steps) for i, steps in enumerate((1, 2))]
        c, controls = (c_own[0] + c_own[1]) / 3, self.remembered((trained, memory))["controls"]
        for place in range(2):
            torch.testing.assert_close(controls[place], c_own[place])
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
