"""Several architectures: each a world of its own, until the teachers of all join into one ensemble."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import tiny
import torch

from fedrepro.core.rng import Streams
from fedrepro.core.state import State
from fedrepro.data.data import Data
from fedrepro.federation.assemble import assemble
from fedrepro.federation.federation import Federation
from fedrepro.methods import catalogue as methods
from fedrepro.methods.compose import Method
from fedrepro.methods.measures import evaluate, measured
from fedrepro.models.architecture import Architecture
from fedrepro.stages.combine import Ensemble, MeanOfProbabilities
from fedrepro.stages.posterior import POSTERIORS
from fedrepro.stages.round import Round

SIZES = (5, 8, 6, 4)
WIDE = Architecture("mlp", tiny.CLASSES, (("features", 2), ("hidden", 6)))
FEDERATED = [name for name in methods.METHODS if name != "centralized"]
SEED = 1


def both(**options: Any) -> Federation:
    """Return four clients, of which the even ones have narrow networks and the odd ones wide ones."""
    return tiny.federation("mlp", sizes=SIZES, own=(0, 2), further=((WIDE, (1, 3)),), **options)


def alone(architecture: Architecture, own: Sequence[int]) -> Federation:
    """Return the same clients, of which some take part, with one architecture."""
    return replace(tiny.federation("mlp", sizes=SIZES), architecture=architecture, own=tuple(own))


def build(name: str, **changes: Any) -> Method:
    return methods.build(tiny.setting(**{"method": name, "client_lr": 0.1, "distill_lr": 0.1} | changes))


def play(method: Method, world: Federation, rounds: int = 2) -> list[tuple[State, Round]]:
    state, played = method.init(world, SEED), []
    for number in range(rounds):
        state, account = method.round(state, world, Streams(SEED, number))
        played.append((state, account))
    return played


class TestOneArchitecture:
    def test_the_only_world_is_the_federation(self) -> None:
        world = tiny.federation("mlp", sizes=SIZES)
        assert world.worlds == (world,)
        assert world.worlds[0] is world
        assert world.numbers == (0, 1, 2, 3)

    @pytest.mark.parametrize("name", ["fedavg", "scaffold", "fedbe"])
    def test_a_run_is_as_without_worlds(self, name: str) -> None:
        world = tiny.federation("mlp", sizes=SIZES)
        said = replace(world, own=(0, 1, 2, 3), further=())
        method = build(name, participation=0.5)
        for (state, account), (same, twin) in zip(play(method, world), play(method, said)):
            assert tiny.same(state.models, same.models)
            assert account.who == twin.who
            assert state.further == account.further == ()
            assert state.worlds == (state,)
            assert account.worlds == (account,)


class TestWorlds:
    def test_they_share_everything_but_the_architecture(self) -> None:
        world = both()
        narrow, wide = world.worlds
        assert (narrow.architecture, narrow.numbers) == (tiny.network("mlp"), (0, 2))
        assert (wide.architecture, wide.numbers) == (WIDE, (1, 3))
        for one in (narrow, wide):
            assert one.clients == 4
            assert one.data is world.data
            assert one.public is world.public
            assert one.test is world.test
            assert one.parts is world.parts
            assert one.desk is world.desk
            assert one.worlds == (one,)

    def test_each_starts_with_models_of_its_own(self) -> None:
        world = both()
        state = build("fedavg").init(world, SEED)
        assert [tiny.same(own.models, one.start(SEED)) for own, one in zip(state.worlds, world.worlds)] == [
            True
        ] * 2
        assert [own.models.params.shape for own in state.worlds] == [(1, 4 * 3 + 3 * 5), (1, 6 * 3 + 3 * 7)]

    @pytest.mark.parametrize("name", ["fedavg", "fedprox", "fedavgm", "scaffold"])
    def test_without_teachers_they_know_nothing_of_each_other(self, name: str) -> None:
        method = build(name, proximal_mu=0.1, server_momentum=0.5)
        together = play(method, both())
        for place, (architecture, own) in enumerate(((tiny.network("mlp"), (0, 2)), (WIDE, (1, 3)))):
            for (state, account), (same, twin) in zip(together, play(method, alone(architecture, own))):
                here, round = state.worlds[place], account.worlds[place]
                assert here.round == same.round
                assert tiny.same(here.models, same.models)
                assert here.memory.keys() == same.memory.keys()
                for what, held in here.memory.items():
                    assert isinstance(held, torch.Tensor)
                    assert torch.equal(held, torch.as_tensor(same.memory[what]))
                assert round.who == twin.who
                assert round.who.clients == own
                assert torch.equal(round.shares, twin.shares)
                assert round.train_loss == twin.train_loss

    def test_shares_are_among_the_worlds_own_clients(self) -> None:
        _, account = play(build("fedavg"), both(), 1)[0]
        expected = [[5 / 11, 6 / 11], [8 / 12, 4 / 12]]
        for round, row in zip(account.worlds, expected):
            assert round.shares.tolist() == [pytest.approx(row, rel=1e-15)]

    @pytest.mark.parametrize("name", FEDERATED)
    def test_every_method_plays(self, name: str) -> None:
        world = both()
        for state, account in play(build(name, participation=0.75), world):
            assert len(state.worlds) == len(account.worlds) == 2
            for own in state.worlds:
                assert own.round == state.round
                assert bool(own.models.params.isfinite().all())
            assert sum(len(round.who.clients) for round in account.worlds) == 3
            assert set(account.seconds) == set(account.further[0].seconds)

    def test_centralised_training_has_no_worlds(self) -> None:
        with pytest.raises(ValueError, match="one client"):
            play(build("centralized"), both(), 1)


class TestEqualOnes:
    """The same architecture several times."""

    setting = tiny.setting(
        data="swiss_roll", model="mlp", partition="swiss_roll", test_images=30, clients=6, participation=0.5
    ).with_(method="fedavg", public_images=0)

    def test_clients_are_dealt_out_in_turn(self) -> None:
        world = assemble(self.setting.with_(model="mlp+mlp+mlp"), 0)
        assert [one.numbers for one in world.worlds] == [(0, 3), (1, 4), (2, 5)]
        assert {one.architecture for one in world.worlds} == {assemble(self.setting, 0).architecture}

    def test_the_draw_of_participants_is_one_over_all(self) -> None:
        method = methods.build(self.setting)
        plain = replace(assemble(self.setting, 0), precision="float64")
        split = replace(assemble(self.setting.with_(model="mlp+mlp"), 0), precision="float64")
        begun = method.init(split, SEED)
        for number in range(10):
            _, whole = method.round(method.init(plain, SEED), plain, Streams(SEED, number))
            _, account = method.round(begun, split, Streams(SEED, number))
            drawn = [round.who.clients for round in account.worlds]
            assert sorted(sum(drawn, ())) == list(whole.who.clients)
            for world, clients in zip(split.worlds, drawn):
                assert set(clients) <= set(world.numbers)
            # From the same first model a client trains the same, whatever world it is in.
            for round in account.worlds:
                for place, client in enumerate(round.who.clients):
                    other = whole.clients.params[whole.who.clients.index(client)]
                    torch.testing.assert_close(round.clients.params[place], other, rtol=1e-12, atol=1e-12)


class TestIdle:
    """One client takes part in a round: the other architecture rests."""

    @pytest.mark.parametrize("name", FEDERATED)
    def test_it_keeps_its_models_to_the_bit_while_the_other_moves(self, name: str) -> None:
        world, method = both(), build(name, participation=0.25)
        state, rested = method.init(world, SEED), set()
        for number in range(6):
            after, account = method.round(state, world, Streams(SEED, number))
            busy = [len(round.who.clients) for round in account.worlds]
            assert sorted(busy) == [0, 1]
            idle = busy.index(0)
            rested.add(idle)
            assert tiny.same(after.worlds[idle].models, state.worlds[idle].models)
            assert after.worlds[idle].memory == state.worlds[idle].memory
            assert after.worlds[idle].round == number + 1
            assert not torch.equal(after.worlds[1 - idle].models.params, state.worlds[1 - idle].models.params)
            assert bool(after.worlds[1 - idle].models.params.isfinite().all())
            row = evaluate(method, after, account, world, last=True)
            assert row["ensemble_size"] == len(account.teacher)
            assert all(isinstance(value, float) for value in measured(method, after, account, world).values())
            state = after
        assert rested == {0, 1}  # both happened

    @pytest.mark.parametrize("posterior", POSTERIORS)
    @pytest.mark.parametrize("teachers", ["samples", "average+clients+samples"])
    def test_nobody_teaches_who_is_not_there(self, posterior: str, teachers: str) -> None:
        world = both()
        method = build("fedbe", participation=0.25, posterior=posterior, teachers=teachers)
        begun = method.init(world, SEED)
        _, account = method.round(begun, world, Streams(SEED, 0))
        for (members, _), round, state in zip(account.teacher.parts, account.worlds, begun.worlds):
            if not round.who.clients:  # at most the model that it has, and nothing drawn from no clients
                assert len(members) <= 1
                assert torch.equal(members.params, state.models.params[: len(members)])


class TestEnsemble:
    world = both()

    def members(self) -> Ensemble:
        narrow, wide = self.world.worlds
        parts = ((narrow.start(0, 3), narrow), (wide.start(0, 2), wide))
        return Ensemble(parts, MeanOfProbabilities(sharpen=2.0))

    def test_logits_of_all_and_one_combination(self) -> None:
        found, public = self.members(), self.world.public
        (narrow, here), (wide, there) = found.parts
        logits = found.logits(public)
        assert len(found) == 5
        assert logits.shape == (5, 10, tiny.CLASSES)
        assert torch.equal(logits[:3], here.predict(narrow, public))
        assert torch.equal(logits[3:], there.predict(wide, public))
        squared = logits.softmax(-1).mean(0) ** 2
        torch.testing.assert_close(found(public), squared / squared.sum(1, keepdim=True), rtol=1e-13, atol=1e-13)
        assert tiny.same(found.members, narrow)

    def test_an_architecture_without_members_is_not_asked(self) -> None:
        (narrow, here), (wide, there) = self.members().parts
        found = Ensemble(((narrow.take(slice(0, 0)), here), (wide, there)), MeanOfProbabilities(sharpen=1.0))
        assert torch.equal(found.logits(self.world.public), there.predict(wide, self.world.public))
        nobody = Ensemble(((narrow.take(slice(0, 0)), here),), found.combine)
        with pytest.raises(ValueError, match="without members"):
            nobody(self.world.public)

    @pytest.mark.parametrize("name", ["v_distillation", "fedbe", "fedbe_without_swa"])
    def test_all_teach_all(self, name: str) -> None:
        state, account = play(build(name), self.world, 1)[0]
        narrow, wide = account.worlds
        assert len(account.teacher) == (4 if name == "v_distillation" else 2 * (1 + 2 + 2))
        assert torch.equal(narrow.targets, wide.targets)  # one ensemble
        torch.testing.assert_close(narrow.targets, account.teacher(self.world.public), rtol=0, atol=0)
        torch.testing.assert_close(narrow.targets.sum(1), torch.ones(10, dtype=torch.float64))
        for own, round in zip(state.worlds, account.worlds):
            assert not torch.equal(own.models.params, round.average.params)
            assert round.distill_loss > 0

    def test_the_others_change_what_a_student_learns(self) -> None:
        method = build("v_distillation")
        together = play(method, self.world, 1)[0]
        apart = play(method, alone(tiny.network("mlp"), (0, 2)), 1)[0]
        assert tiny.same(together[1].average, apart[1].average)
        assert not torch.equal(together[0].models.params, apart[0].models.params)


def guessed(world: Federation, state: State, data: Data) -> float:
    right = world.predict(state.models, data)[0].argmax(1) == data.labels
    return 100 * int(right.sum()) / len(data)


def test_accuracies_of_the_others_are_measured_by_name() -> None:
    setting = tiny.setting(model="resnet8+convnet", method="fedavg", test_images=40)
    world, method = assemble(setting, 0), methods.build(setting)
    state, account = play(method, world, 1)[0]
    found = measured(method, state, account, world)
    assert found == {"accuracy of convnet": guessed(world.worlds[1], state.further[0], world.test)}
    row = evaluate(method, state, account, world, last=True)
    assert row["accuracy"] == guessed(world.worlds[0], state, world.test)


class TestRefusals:
    @pytest.mark.parametrize(
        ("own", "further"),
        [
            ((), (1, 3)),  # all have the first already
            ((0, 1), (1, 3)),
            ((0, 0, 2), (1, 3)),
            ((0, 2), (1, 4)),
            ((0, 2), (-1, 3)),
            ((0, 1, 2, 3), ()),
            ((0, 2), (1,)),  # client 3 has none
        ],
        ids=str,
    )
    def test_every_client_has_one_architecture(self, own: tuple[int, ...], further: tuple[int, ...]) -> None:
        with pytest.raises(ValueError, match="each client has one architecture and each architecture a client"):
            tiny.federation("mlp", sizes=SIZES, own=own, further=((WIDE, further),))

    def test_more_architectures_than_clients(self) -> None:
        with pytest.raises(ValueError, match="each architecture a client"):
            assemble(tiny.setting(model="resnet8+convnet+vgg9+resnet14"), 0)
