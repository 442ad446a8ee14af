import pytest
import tiny
import torch
from torch import Tensor

from fedrepro.core.rng import Streams
from fedrepro.core.stack import Stack, mix
from fedrepro.core.state import Memory, State
from fedrepro.federation.federation import Federation
from fedrepro.stages.round import Participants
from fedrepro.stages.server import Momentum, Replace
from fedrepro.stages.weigh import BySize, Uniform

WORLD = tiny.federation("mlp", sizes=(10, 30, 60))
STREAMS = Streams(0)


def who(*clients: int) -> Participants:
    return Participants(clients, (0,) * len(clients), (1,) * len(clients))


def weighed(stage: BySize | Uniform, world: Federation, *clients: int) -> Tensor:
    """Return the shares of a round in which some clients started from the only model."""
    return stage(tiny.round_of(world, State(0, world.start(0)), who=who(*clients)), world, STREAMS)


def served(stage: Replace, shares: Tensor, clients: Stack, world: Federation) -> Stack:
    """Return what a server without memory makes of the clients."""
    round = tiny.round_of(
        world,
        State(0, clients.take([0])),
        clients=clients,
        shares=shares,
        average=mix(shares, clients),
        who=who(*range(len(clients))),
    )
    average, memory = stage(round, world, STREAMS)
    assert memory == {}
    return average


class TestBySize:
    def test_equation_10(self) -> None:
        shares = weighed(BySize(), WORLD, 0, 1, 2)
        assert shares.shape == (1, 3)
        assert shares.dtype == torch.float64
        torch.testing.assert_close(
            shares, torch.tensor([[0.1, 0.3, 0.6]], dtype=torch.float64), rtol=1e-15, atol=0
        )

    @pytest.mark.parametrize(
        ("clients", "expected"),
        [((0, 2), [1 / 7, 6 / 7]), ((1, 2), [1 / 3, 2 / 3]), ((2, 0), [6 / 7, 1 / 7]), ((1,), [1.0])],
    )
    def test_shares_follow_the_clients_numbers(self, clients: tuple[int, ...], expected: list[float]) -> None:
        # Not their places in the round, and over the participants only.
        found = weighed(BySize(), WORLD, *clients)
        torch.testing.assert_close(found, torch.tensor([expected], dtype=torch.float64), rtol=1e-15, atol=0)

    def test_equal_sizes_are_weighed_equally(self) -> None:
        world = tiny.federation("mlp", sizes=(4, 4, 4, 4))
        assert weighed(BySize(), world, 0, 1, 2, 3).tolist() == [[0.25] * 4]


def test_uniform_shares_ignore_the_sizes() -> None:
    shares = weighed(Uniform(), WORLD, 2, 0)
    assert shares.tolist() == [[0.5, 0.5]]
    assert shares.dtype == torch.float64


class TestReplace:
    clients = tiny.stack([[1, 2], [3, 6], [5, -4]], [[0, 1], [4, 3], [2, 5]], [5, 9, 7])
    shares = torch.tensor([[0.25, 0.25, 0.5]], dtype=torch.float64)

    def test_the_average_of_everything(self) -> None:
        found = served(Replace(), self.shares, self.clients, WORLD)
        # 0.25 + 0.75 + 2.5 = 3.5; 0.5 + 1.5 - 2 = 0; 0 + 1 + 1 = 2; 0.25 + 0.75 + 2.5 = 3.5
        assert found.params.tolist() == [[3.5, 0]]
        assert found.buffers.tolist() == [[2, 3.5]]
        assert found.counters.tolist() == [[9]]
        assert found.counters.dtype == torch.int64
        assert len(found) == 1

    def test_statistics_of_the_last_client(self) -> None:
        found = served(Replace(bn_buffers="last_client"), self.shares, self.clients, WORLD)
        assert found.params.tolist() == [[3.5, 0]]
        assert found.buffers.tolist() == [[2, 5]]  # those of the third, unmixed
        assert found.counters.tolist() == [[7]]

    def test_recalibrated_statistics(self) -> None:
        world = tiny.federation("resnet8")
        round = tiny.trained_clients(world)
        found = served(Replace(bn_buffers="recalibrate"), round.shares, round.clients, world)
        assert torch.equal(found.params, round.average.params)
        assert tiny.same(found, world.recalibrate(round.average))
        other = type(round.clients)(
            round.clients.layout, round.clients.params, round.clients.buffers * 3, round.clients.counters
        )
        assert tiny.same(served(Replace(bn_buffers="recalibrate"), round.shares, other, world), found)

    def test_recalibration_needs_public_images(self) -> None:
        world = tiny.federation("resnet8", public=0)
        round = tiny.trained_clients(world)
        with pytest.raises(ValueError, match="needs public images"):
            served(Replace(bn_buffers="recalibrate"), round.shares, round.clients, world)

    @pytest.mark.parametrize("bn_buffers", ["average", "last_client"])
    def test_one_client_is_that_client(self, bn_buffers: str) -> None:
        alone = self.clients.take([1])
        one = torch.ones(1, 1, dtype=torch.float64)
        assert tiny.same(served(Replace(bn_buffers=bn_buffers), one, alone, WORLD), alone)

    @pytest.mark.parametrize("bn_buffers", ["average", "last_client", "recalibrate"])
    def test_variances_stay_positive_and_clients_untouched(self, bn_buffers: str) -> None:
        world = tiny.federation("resnet8")
        round = tiny.trained_clients(world)
        kept = tiny.copied(round.clients)
        found = served(Replace(bn_buffers=bn_buffers), round.shares, round.clients, world)
        assert tiny.same(round.clients, kept)
        assert found.counters.dtype == torch.int64
        variances = [view for name, view in found.named_buffers().items() if name.endswith("var")]
        assert len(variances) == 7
        assert all(bool((view > 0).all()) for view in variances)

    def test_an_unknown_choice_is_refused(self) -> None:
        with pytest.raises(ValueError, match=r"bn_buffers must be one of .*, got 'first_client'"):
            Replace(bn_buffers="first_client")


def velocity(state: State) -> Tensor:
    held = state.memory["server_velocity"]
    assert isinstance(held, Tensor)
    return held


class TestMomentum:
    """One parameter and one statistic, on numbers worked out by hand."""

    def moved(self, stage: Momentum, state: State, clients: Stack) -> tuple[Stack, Memory]:
        """Let the server move to the only client."""
        round = tiny.round_of(WORLD, state, clients=clients, average=clients, who=who(0))
        return stage(round, WORLD, STREAMS)

    def rounds(self, stage: Momentum, sent: list[float], averages: list[float]) -> list[tuple[Stack, State]]:
        found, memory = [], dict[str, Tensor | Stack]()
        for number, (model, mean) in enumerate(zip(sent, averages)):
            state = State(number, tiny.stack([[model, 0]], [[model * 10, 0]], [3]), memory)
            average, changes = self.moved(stage, state, tiny.stack([[mean, 0]], [[mean * 10, 0]], [5]))
            memory = dict(memory) | dict(changes)
            found.append((average, State(number + 1, average, memory)))
        return found

    def test_heavy_ball(self) -> None:
        # beta 1/2. Round 1: delta = 8 - 6 = 2, v = 2, w = 8 - 2 = 6.
        # Round 2, from 6 to 5: delta = 1, v = 1 + 1 = 2, w = 4.
        # Round 3, before which distillation has moved w to 10: delta = 10 - 9 = 1, v = 1 + 1 = 2, w = 8.
        found = self.rounds(Momentum(beta=0.5), [8, 6, 10], [6, 5, 9])
        assert [float(average.params[0, 0]) for average, _ in found] == [6, 4, 8]
        assert [float(velocity(state)[0, 0]) for _, state in found] == [2, 2, 2]
        assert [float(average.buffers[0, 0]) for average, _ in found] == [60, 50, 90]  # the clients', unmoved
        assert [average.counters.tolist() for average, _ in found] == [[[5]]] * 3

    def test_ema(self) -> None:
        # Two plain rounds, v = 2 and then v = 1.
        # Round 3: delta = 5 - 1 = 4, v = 1/2 + 4/2 = 2.5, w = 5 - 2.5 = 2.5.
        # Round 4: delta = 2.5 - 0 = 2.5, v = 1.25 + 1.25 = 2.5, w = 0.
        found = self.rounds(Momentum(beta=0.5, form="ema"), [8, 6, 5, 2.5], [6, 5, 1, 0])
        assert [float(average.params[0, 0]) for average, _ in found] == [6, 5, 2.5, 0]
        assert [float(average.buffers[0, 0]) for average, _ in found] == [60, 50, 10, 0]  # the clients'

    @pytest.mark.parametrize("form", ["heavy_ball", "ema"])
    def test_variances_stay_positive_over_rounds(self, form: str) -> None:
        # Moved like the weights, a variance that falls from round to round would overshoot below zero.
        stage, state = Momentum(beta=0.9, form=form), State(0, tiny.stack([[1, 1]], [[0, 1]], [1]))
        for variance in (0.4, 0.2, 0.1, 0.05):
            average, memory = self.moved(stage, state, tiny.stack([[1, 1]], [[0, variance]], [1]))
            assert float(average.buffers[0, 1]) == pytest.approx(variance)
            state = State(state.round + 1, average, memory)

    @pytest.mark.parametrize("form", ["heavy_ball", "ema"])
    def test_without_beta_it_replaces(self, form: str) -> None:
        for average, _ in self.rounds(Momentum(beta=0.0, form=form), [8, 6, 5], [6, 5, 1])[:3]:
            assert float(average.params[0, 0]) in (6, 5, 1)

    def test_values_out_of_range(self) -> None:
        with pytest.raises(ValueError, match=r"beta must be in \[0, 1\), got 1"):
            Momentum(beta=1.0)
        with pytest.raises(ValueError, match="form must be one of"):
            Momentum(beta=0.5, form="nesterov")
        with pytest.raises(ValueError, match="bn_buffers"):
            Momentum(beta=0.5, bn_buffers="none")


class TestFederation:
    def test_refusals(self) -> None:
        data = tiny.points(5)
        with pytest.raises(ValueError, match="at least one client"):
            Federation(tiny.network("mlp"), data, (), data, data)
        with pytest.raises(ValueError, match="client 1 points outside the data of 5 images"):
            Federation(tiny.network("mlp"), data, (torch.arange(3), torch.tensor([4, 5])), data, data)
        with pytest.raises(ValueError, match="client 0 points outside"):
            Federation(tiny.network("mlp"), data, (torch.tensor([-1]),), data, data)
        with pytest.raises(ValueError, match="needs public images"):
            tiny.federation("mlp", public=0).recalibrate(WORLD.start(0))

    def test_sizes_and_dtypes(self) -> None:
        assert WORLD.sizes.tolist() == [10, 30, 60]
        assert WORLD.clients == 3
        assert WORLD.start(0).params.dtype == torch.float64
        assert tiny.federation("mlp", precision="bfloat16").start(0).params.dtype == torch.float32

    def test_the_seed_alone_decides_the_start(self) -> None:
        assert tiny.same(WORLD.start(3), tiny.federation("mlp", sizes=(2, 2)).start(3))
        assert not torch.equal(WORLD.start(3).params, WORLD.start(4).params)
