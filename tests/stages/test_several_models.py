"""Several global models: each is the mean of the clients that started from it, and students learn side by side."""

from dataclasses import dataclass, replace
from typing import Any

import pytest
import tiny
import torch
from torch import Tensor

from fedrepro.core.rng import Streams
from fedrepro.core.stack import Stack, mix
from fedrepro.core.state import State
from fedrepro.federation.federation import Federation
from fedrepro.kernels.batches import NO_AUGMENT
from fedrepro.methods.compose import Method, compose
from fedrepro.methods.measures import evaluate, measured
from fedrepro.stages.combine import Ensemble, MeanOfProbabilities
from fedrepro.stages.distill import DistillSgd, DistillSwa, Keep
from fedrepro.stages.posterior import Dirichlet, Gaussian
from fedrepro.stages.rates import Constant, Cyclical
from fedrepro.stages.round import Participants, Round
from fedrepro.stages.server import Momentum, Replace
from fedrepro.stages.teach import Average, Clients, Nobody
from fedrepro.stages.train import LocalSgd
from fedrepro.stages.weigh import BySize, Uniform

SIZES = (5, 8, 6, 4)
STREAMS = Streams(1)
TRAIN = LocalSgd(
    lr=0.1, lr_schedule="constant", rounds=4, batch_size=4, momentum=0.9, weight_decay=0.001, augment=NO_AUGMENT
)


@dataclass(frozen=True)
class Assigned:
    """All clients, each with a global model of its own."""

    models: tuple[int, ...]

    def __call__(self, round: Round, federation: Federation, streams: Streams) -> Participants:
        return Participants(tuple(range(len(self.models))), self.models, (1,) * len(self.models))


def method(models: tuple[int, ...], *, count: int = 2, **stages: Any) -> Method:
    parts: dict[str, Any] = {
        "plan": Assigned(models),
        "train": TRAIN,
        "weigh": BySize(),
        "server": Replace(),
        "teach": Nobody(),
        "combine": MeanOfProbabilities(sharpen=1.0),
        "distill": Keep(),
    }
    return compose(**(parts | stages), models=count)


def once(played: Method, world: Federation) -> tuple[State, Round]:
    return played.round(played.init(world, 1), world, STREAMS)


def sgd(**changes: Any) -> DistillSgd:
    values: dict[str, Any] = {
        "epochs": 2,
        "batch_size": 4,
        "schedule": Constant(lr=0.3),
        "momentum": 0.9,
        "weight_decay": 0.0,
        "augment": NO_AUGMENT,
    }
    return DistillSgd(**(values | changes))


def swa() -> DistillSwa:
    schedule = Cyclical(high=0.3, low=0.1, cycle=2)
    return DistillSwa(
        epochs=2, batch_size=4, schedule=schedule, momentum=0.9, weight_decay=0.0, augment=NO_AUGMENT,
        swa_start=2, cycle=2,
    )  # fmt: skip


class TestStart:
    def test_the_first_is_as_before_and_the_second_another(self) -> None:
        world = tiny.federation("mlp", sizes=SIZES)
        two, one = (method((0,) * 4, count=count).init(world, 1).models for count in (2, 1))
        assert len(two) == 2
        assert tiny.same(two.take([0]), one)
        assert tiny.same(one, world.start(1))
        assert tiny.same(two.take([1]), world.architecture.start(1, 1).to(dtype=torch.float64))
        assert not torch.equal(two.params[0], two.params[1])

    def test_no_model_is_refused(self) -> None:
        with pytest.raises(ValueError, match="models must be >= 1, got 0"):
            method((0,), count=0)


class TestAverages:
    def test_shares_by_hand(self) -> None:
        world = tiny.federation("mlp", sizes=SIZES)
        _, round = once(method((0, 1, 0, 1)), world)
        # 5 and 6 images of 11; 8 and 4 of 12.
        expected = [[5 / 11, 0, 6 / 11, 0], [0, 8 / 12, 0, 4 / 12]]
        assert round.shares.dtype == torch.float64
        assert round.shares.tolist() == [pytest.approx(row, rel=1e-15) for row in expected]
        alike = once(method((0, 1, 0, 0), weigh=Uniform()), world)[1].shares
        assert alike.tolist() == [pytest.approx([1 / 3, 0, 1 / 3, 1 / 3]), [0, 1, 0, 0]]

    @pytest.mark.parametrize("name", ["mlp", "resnet8"])
    def test_each_is_the_mean_of_its_own_clients(self, name: str) -> None:
        world = tiny.federation(name, sizes=SIZES)
        state, round = once(method((0, 1, 0, 1)), world)
        before = round.state.models
        assert tiny.same(round.start, before.take([0, 1, 0, 1]))
        ends = round.clients.params
        first, second = (5 * ends[0] + 6 * ends[2]) / 11, (8 * ends[1] + 4 * ends[3]) / 12
        torch.testing.assert_close(state.models.params, torch.stack([first, second]), rtol=1e-13, atol=1e-13)
        alone = mix(torch.tensor([[5, 6]], dtype=torch.float64) / 11, round.clients.take([0, 2]))
        torch.testing.assert_close(state.models.buffers[:1], alone.buffers, rtol=1e-13, atol=1e-13)
        assert torch.equal(state.models.counters[:1], alone.counters)

    def test_a_client_trains_from_its_own_model(self) -> None:
        world = tiny.federation("mlp", sizes=SIZES)
        _, two = once(method((0, 1, 0, 1)), world)
        _, one = once(method((0,) * 4, count=1), world)
        assert tiny.same(two.clients.take([0, 2]), one.clients.take([0, 2]))
        assert not torch.equal(two.clients.params[1], one.clients.params[1])

    def test_the_loss_is_the_mean_over_models(self) -> None:
        world = tiny.federation("mlp", sizes=SIZES)
        _, two = once(method((0, 0, 0, 1)), world)
        first = once(method((0, 0, 0), count=1), world)[1].train_loss
        begun = method((0, 0, 0, 1)).init(world, 1).models
        who = Participants((3,), (1,), (1,))
        alone = tiny.round_of(world, State(0, begun), start=begun.take([1]), who=who)
        trained, _ = TRAIN(alone, world, STREAMS)
        assert two.train_loss == pytest.approx((first + float(trained.loss[0])) / 2, rel=1e-12)

    @pytest.mark.parametrize("size", [1, 3])
    def test_in_groups(self, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
        world = tiny.federation("mlp", sizes=SIZES)
        whole, _ = once(method((0, 1, 0, 1)), world)
        own = 4 * 8 * world.start(0).params.shape[1]
        monkeypatch.setattr("fedrepro.methods.compose.GROUP_BYTES", size * own)
        state, round = once(method((0, 1, 0, 1)), world)
        assert len(round.clients) == 0
        torch.testing.assert_close(state.models.params, whole.models.params, rtol=1e-13, atol=1e-13)


SERVERS = [
    Replace(),
    Replace(bn_buffers="last_client"),
    Replace(bn_buffers="recalibrate"),
    Momentum(beta=0.5),
    Momentum(beta=0.5, form="ema", bn_buffers="last_client"),
]


class TestWithoutClients:
    @pytest.mark.parametrize("server", SERVERS, ids=repr)
    def test_a_model_stays_as_it_is(self, server: Replace) -> None:
        world = tiny.federation("resnet8", sizes=SIZES)
        played = method((1, 1, 1, 1), server=server)
        state, round = once(played, world)
        assert tiny.same(state.models.take([0]), round.state.models.take([0]))
        assert not torch.equal(state.models.params[1], round.state.models.params[1])
        assert round.shares[0].tolist() == [0, 0, 0, 0]
        assert round.train_loss > 0
        # And after a round in which it moved, so that its momentum is not zero.
        both = method((0, 1, 0, 1), server=server)
        moved, _ = once(both, world)
        rested, _ = played.round(moved, world, Streams(1, 1))
        assert tiny.same(rested.models.take([0]), moved.models.take([0]))

    def test_the_last_client_is_each_models_own(self) -> None:
        world = tiny.federation("resnet8", sizes=SIZES)
        state, round = once(method((0, 1, 0, 0), server=Replace(bn_buffers="last_client")), world)
        assert torch.equal(state.models.buffers, round.clients.buffers[[3, 1]])
        assert torch.equal(state.models.counters, round.clients.counters[[3, 1]])


class TestStudents:
    world = tiny.federation("mlp", sizes=SIZES)

    def learnt(self, stage: DistillSgd, average: Stack) -> tuple[Stack, Tensor, float]:
        members = tiny.trained_clients(self.world, 5).clients
        teacher = Ensemble.of(members, MeanOfProbabilities(sharpen=2.0), self.world)
        round = tiny.round_of(self.world, State(0, average), average=average, teacher=teacher)
        found = stage(round, self.world, STREAMS)
        return found.student, found.targets, found.loss

    @pytest.mark.parametrize("stage", [sgd(), swa()], ids=["sgd", "swa"])
    def test_the_first_is_as_if_it_were_the_only_one(self, stage: DistillSgd) -> None:
        average = self.world.start(1, 2)
        two, targets, loss = self.learnt(stage, average)
        one, same, alone = self.learnt(stage, average.take([0]))
        assert len(two) == 2
        assert tiny.same(two.take([0]), one)
        assert torch.equal(targets, same)
        assert loss != alone

    def test_each_has_batches_of_its_own(self) -> None:
        average = self.world.start(1).take([0, 0])
        two, _, _ = self.learnt(sgd(), average)
        assert not torch.equal(two.params[0], two.params[1])
        whole, _, _ = self.learnt(sgd(batch_size=10), average)  # one batch: only the order within it differs
        torch.testing.assert_close(whole.params[0], whole.params[1], rtol=1e-12, atol=1e-12)

    def test_the_loss_is_the_mean_over_students(self) -> None:
        average = self.world.start(1, 2)
        _, targets, loss = self.learnt(sgd(batch_size=10, epochs=1), average)
        logits = self.world.predict(average, self.world.public)
        by_hand = -(targets * logits.log_softmax(-1)).sum(-1).mean(1)  # one step: the loss before it
        assert loss == pytest.approx(float(by_hand.mean()), rel=1e-12)

    def test_in_a_round(self) -> None:
        played = method((0, 1, 0, 1), teach=Clients(), distill=sgd())
        state, round = once(played, self.world)
        assert len(state.models) == 2
        assert len(round.teacher) == 4
        for model in range(2):
            assert not torch.equal(state.models.params[model], round.average.params[model])

    def test_all_averages_teach(self) -> None:
        _, round = once(method((0, 1, 0, 1), teach=Average()), self.world)
        assert tiny.same(round.teacher.members, round.average)


class TestPosteriors:
    """Drawn from the clients that started from the first model, as far as they weigh."""

    world = tiny.federation("mlp")
    clients = tiny.stack([[1, 2], [3, 6], [9, -7]], [[0, 1], [4, 3], [2, 5]], [5, 9, 7])
    shares = torch.tensor([[0.25, 0.75, 0.0], [0.0, 0.0, 1.0]], dtype=torch.float64)

    def round(self, shares: Tensor, clients: Stack) -> Round:
        state = State(0, clients.take(list(range(len(shares)))))
        start = clients.take([0] * len(clients))
        return tiny.round_of(
            self.world, state, clients=clients, start=start, shares=shares, average=mix(shares, clients)
        )

    @pytest.mark.parametrize("samples", [1, 2, 5])
    def test_gaussian(self, samples: int) -> None:
        stage = Gaussian(samples=samples)
        found = stage(self.round(self.shares, self.clients), self.world, STREAMS)
        alone = stage(self.round(self.shares[:1, :2], self.clients.take([0, 1])), self.world, STREAMS)
        torch.testing.assert_close(found.params, alone.params, rtol=1e-13, atol=1e-13)
        torch.testing.assert_close(found.buffers, alone.buffers, rtol=1e-13, atol=1e-13)

    @pytest.mark.parametrize("buffers", ["average", "sample"])
    def test_dirichlet(self, buffers: str) -> None:
        stage = Dirichlet(samples=20, dirichlet_alpha=1.0, buffers=buffers)
        found = stage(self.round(self.shares, self.clients), self.world, STREAMS)
        # Between the first two clients: (1 + 2 t, 2 + 4 t).
        along = (found.params[:, 0] - 1) / 2
        assert bool(((along >= 0) & (along <= 1)).all())
        torch.testing.assert_close(found.params[:, 1], 2 + 4 * along, rtol=1e-12, atol=1e-12)


def test_accuracies_are_named() -> None:
    world = tiny.federation("mlp", sizes=SIZES, test=30)
    played = method((0, 1, 0, 1))
    state, round = once(played, world)
    right = (world.predict(state.models, world.test).argmax(2) == world.test.labels).double().mean(1) * 100
    assert measured(played, state, round, world) == {"accuracy of model 1": pytest.approx(float(right[1]))}
    assert evaluate(played, state, round, world, last=True)["accuracy"] == pytest.approx(float(right[0]))


def test_accuracies_are_named_with_several_architectures() -> None:
    wide = replace(tiny.network("mlp"), options=(("features", 2), ("hidden", 6)))
    world = tiny.federation("mlp", sizes=SIZES, own=(0, 1), further=((wide, (2, 3)),))

    class Both:
        def __call__(self, round: Round, federation: Federation, streams: Streams) -> Participants:
            return Participants(federation.numbers, (0, 1), (1, 1))

    played = method((), plan=Both())
    state, round = once(played, world)
    found = measured(played, state, round, world)
    assert set(found) == {"accuracy of model 1", "accuracy of mlp", "accuracy of model 1 of mlp"}
    logits = world.worlds[1].predict(state.further[0].models, world.test)
    right = (logits.argmax(2) == world.test.labels).double().mean(1) * 100
    assert found["accuracy of mlp"] == pytest.approx(float(right[0]))
    assert found["accuracy of model 1 of mlp"] == pytest.approx(float(right[1]))
