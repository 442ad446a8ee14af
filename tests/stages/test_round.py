"""One record of the round: what each stage finds there, and what it leaves."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from typing import Any, ClassVar

import pytest
import tiny
import torch
from torch import Tensor

from fedrepro.core.rng import Streams
from fedrepro.core.stack import Stack, mix
from fedrepro.core.state import Memory, State
from fedrepro.federation.federation import Federation
from fedrepro.kernels.batches import NO_AUGMENT
from fedrepro.kernels.trained import Trained
from fedrepro.methods.compose import METHODS, Method, compose, method, shown
from fedrepro.methods.measures import measured
from fedrepro.stages.combine import MeanOfProbabilities
from fedrepro.stages.distill import DistillSgd, Keep
from fedrepro.stages.plan import Sample
from fedrepro.stages.posterior import Gaussian
from fedrepro.stages.rates import Constant
from fedrepro.stages.round import Distilled, Participants, Round, needs_clients
from fedrepro.stages.server import Momentum, Replace
from fedrepro.stages.teach import Average, Clients, Nobody, Union
from fedrepro.stages.train import LocalSgd, Scaffold
from fedrepro.stages.weigh import BySize, Uniform

SIZES = (5, 8, 6, 4)
WORLD = tiny.federation("mlp", sizes=SIZES)
STREAMS = Streams(1)
SMALL = "fedrepro.methods.compose.GROUP_BYTES"


def local(**changes: Any) -> LocalSgd:
    values: dict[str, Any] = {"lr": 0.1, "lr_schedule": "constant", "rounds": 4, "batch_size": 4, "momentum": 0.9}
    return LocalSgd(**(values | {"weight_decay": 0.0, "augment": NO_AUGMENT} | changes))


def as_kind(kind: type[LocalSgd]) -> LocalSgd:
    """Return the clients' training as a stage of another class."""
    return kind(**{field.name: getattr(local(), field.name) for field in fields(LocalSgd)})


def sgd() -> DistillSgd:
    return DistillSgd(
        epochs=1, batch_size=4, schedule=Constant(lr=0.1), momentum=0.0, weight_decay=0.0, augment=NO_AUGMENT
    )


def parts(**stages: Any) -> dict[str, Any]:
    every: dict[str, Any] = {
        "plan": Sample(participation=1.0, local_epochs=1),
        "train": local(),
        "weigh": BySize(),
        "server": Replace(),
        "teach": Nobody(),
        "combine": MeanOfProbabilities(sharpen=1.0),
        "distill": Keep(),
    }
    return every | stages


def play(made: Method, world: Federation = WORLD, rounds: int = 1) -> list[tuple[State, Round]]:
    state, played = made.init(world, 1), []
    for number in range(rounds):
        state, round = made.round(state, world, Streams(1, number))
        played.append((state, round))
    return played


def filled(round: Round) -> set[str]:
    """Return the names of what a round knows besides the state."""
    known = {
        "who": len(round.who.clients),
        "start": len(round.start),
        "clients": len(round.clients),
        "finite": len(round.finite),
        "shares": round.shares.shape[1],
        "average": round.average is not round.state.models,
        "teacher": len(round.teacher),
        "targets": len(round.targets),
        "train_loss": not math.isnan(round.train_loss),
        "distill_loss": not math.isnan(round.distill_loss),
        "seconds": len(round.seconds),
        "further": len(round.further),
    }
    return {name for name, there in known.items() if there}


@dataclass
class Noted:
    """A stage with a note of the rounds that it was called with."""

    stage: Any
    rounds: list[Round]

    def __call__(self, round: Round, federation: Federation, streams: Streams) -> Any:
        self.rounds.append(round)
        return self.stage(round, federation, streams)


class TestEveryStageFindsWhatCameBefore:
    CLIENTS: ClassVar = {"who", "start", "clients", "finite"}
    FOUND: ClassVar[dict[str, set[str]]] = {
        "plan": set(),
        "train": {"who", "start"},
        "weigh": CLIENTS,
        "server": CLIENTS | {"shares", "average"},
        "teach": CLIENTS | {"shares", "average", "train_loss"},
        "distill": CLIENTS | {"shares", "average", "train_loss", "teacher"},
    }
    ALL: ClassVar = {*FOUND["distill"], "targets", "distill_loss", "seconds"}

    def noted(self) -> tuple[dict[str, list[Round]], list[Tensor], State, Round]:
        stages = parts(teach=Union((Average(), Clients())), distill=sgd(), server=Momentum(beta=0.5))
        notes: dict[str, list[Round]] = {name: [] for name in self.FOUND}
        logits: list[Tensor] = []

        def combine(given: Tensor) -> Tensor:
            logits.append(given)
            return given.softmax(-1).mean(0)

        wrapped: dict[str, Any] = {name: Noted(stages[name], notes[name]) for name in notes}
        (_, (state, account)) = play(compose(**wrapped, combine=combine), rounds=2)
        return notes, logits, state, account

    def test_which_fields_are_filled(self) -> None:
        notes, logits, _, account = self.noted()
        for name, rounds in notes.items():
            assert [filled(round) for round in rounds] == [self.FOUND[name]] * 2, name
        assert filled(account) == self.ALL
        assert [given.shape for given in logits] == [(5, 10, tiny.CLASSES)] * 2  # the seventh: nothing but logits

    def test_what_they_hold(self) -> None:
        notes, _, after, account = self.noted()
        first = {name: rounds[1] for name, rounds in notes.items()}
        before = first["plan"].state
        assert before.round == 1
        assert all(round.state is before for round in (*first.values(), account))
        assert first["train"].who == account.who == tiny.everyone(4)
        assert tiny.same(first["train"].start, before.models.take([0] * 4))
        assert tiny.same(first["server"].average, mix(account.shares, account.clients))
        assert first["weigh"].average is before.models
        assert first["teach"].average is account.average  # moved by the server
        assert not torch.equal(account.average.params, first["server"].average.params)
        assert first["distill"].teacher is account.teacher
        assert first["teach"].train_loss == account.train_loss
        assert not tiny.same(after.models, account.average)
        assert list(account.seconds) == ["train", "aggregate", "teach", "distill"]

    def test_a_stage_that_fails_is_named(self) -> None:
        def broken(round: Round, federation: Federation, streams: Streams) -> Stack:
            raise RuntimeError("no teacher")

        with pytest.raises(RuntimeError, match="no teacher") as caught:
            play(compose(**parts(teach=broken)))
        assert caught.value.__notes__ == ["stage teach"]


@dataclass(frozen=True)
class ByDistance:
    """Weigh clients by how far they went; it has to see all of them."""

    needs_clients: ClassVar[bool] = True

    def __call__(self, round: Round, federation: Federation, streams: Streams) -> Tensor:
        assert len(round.clients) == len(round.start) == len(round.who.clients)
        way = (round.clients.params - round.start.params).norm(dim=1)
        return (way / way.sum())[None].double()


@dataclass(frozen=True)
class OnlyFinite:
    """Weigh the clients whose training stayed finite alike, the others not at all."""

    def __call__(self, round: Round, federation: Federation, streams: Streams) -> Tensor:
        finite = round.finite.double()
        return (finite / finite.sum())[None]


class TestWeigh:
    def test_it_sees_all_clients_however_small_the_groups(self, monkeypatch: pytest.MonkeyPatch) -> None:
        whole, _ = play(compose(**parts(weigh=ByDistance())))[0]
        monkeypatch.setattr(SMALL, 1)
        state, round = play(compose(**parts(weigh=ByDistance())))[0]
        assert len(round.clients) == 4
        assert tiny.same(state.models, whole.models)
        ways = [float((end - begin).norm()) for end, begin in zip(round.clients.params, round.start.params)]
        literal = sum(way / sum(ways) * end for way, end in zip(ways, round.clients.params))
        torch.testing.assert_close(state.models.params[0], literal, rtol=1e-13, atol=1e-13)

    def test_it_sees_who_takes_part_where_clients_come_in_groups(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(SMALL, 1)
        notes: list[Round] = []

        class Quiet(Noted):
            needs_clients = False

        _, round = play(compose(**parts(weigh=Quiet(Uniform(), notes))))[0]
        assert len(notes) == 1  # once for all groups
        assert notes[0].who == tiny.everyone(4)
        assert len(notes[0].clients) == 0
        assert round.shares.tolist() == [[0.25] * 4]

    def test_a_client_that_diverged_can_be_left_out(self) -> None:
        broken = WORLD.data.images.clone()
        broken[5:13] = float("inf")  # those of client 1
        world = replace(WORLD, data=replace(WORLD.data, images=broken))
        state, round = play(compose(**parts(train=local(diverged="keep"), weigh=OnlyFinite())), world)[0]
        assert round.finite.tolist() == [True, False, True, True]
        assert not bool(round.clients.params[1].isfinite().all())
        literal = (round.clients.params[0] + round.clients.params[2] + round.clients.params[3]) / 3
        torch.testing.assert_close(state.models.params[0], literal, rtol=1e-13, atol=1e-13)
        assert math.isfinite(round.train_loss)

    def test_where_all_stay_finite_keeping_changes_nothing(self) -> None:
        (state, round), (same, _) = (
            play(compose(**parts(train=local(diverged=choice))))[0] for choice in ("keep", "fail")
        )
        assert round.finite.tolist() == [True] * 4
        assert tiny.same(state.models, same.models)


@dataclass(frozen=True)
class Remember:
    """Remember the average, and say how far the one of the round before lies from it."""

    def __call__(self, round: Round, federation: Federation, streams: Streams) -> Distilled:
        before = round.state.memory.get("average", round.average)
        assert isinstance(before, Stack)
        way = float((round.average.params - before.params).norm())
        return Distilled(
            round.average, float("nan"), round.targets, measured={"way": way}, memory={"average": round.average}
        )


class TestMemory:
    def test_it_holds_stacks_from_round_to_round(self) -> None:
        rounds = play(compose(**parts(distill=Remember())), rounds=3)
        assert rounds[0][1].state.memory == {}
        for (state, round), (_, later) in pairwise(rounds):
            held = later.state.memory["average"]
            assert isinstance(held, Stack)
            assert held is state.memory["average"]
            assert tiny.same(held, round.average)

    def test_stages_remember_side_by_side(self) -> None:
        made = compose(**parts(train=as_kind(Scaffold), server=Momentum(beta=0.5), distill=Remember()))
        for state, _ in play(made, rounds=2):
            assert set(state.memory) == {"control", "controls", "server_velocity", "average"}

    def test_what_is_not_said_anew_is_kept(self) -> None:
        class Once:
            needs_clients = False

            def __call__(self, round: Round, federation: Federation, streams: Streams) -> tuple[Stack, Memory]:
                return round.average, {} if round.state.memory else {"first": torch.tensor(7)}

        for state, _ in play(compose(**parts(server=Once())), rounds=3):
            assert state.memory["first"] == torch.tensor(7)


class TestMeasured:
    def test_what_a_stage_measured_arrives(self) -> None:
        made = compose(**parts(distill=Remember()))
        rounds = play(made, rounds=2)
        assert rounds[0][1].measured == {"way": 0.0}
        way = float((rounds[1][1].average.params - rounds[0][1].average.params).norm())
        assert way > 0
        assert rounds[1][1].measured == {"way": way}
        assert measured(made, *rounds[1], WORLD) == {"way": way}

    def test_of_another_architecture_it_is_named_so(self) -> None:
        wide = replace(tiny.network("mlp"), options=(("features", 2), ("hidden", 6)))
        world = replace(WORLD, own=(0, 1), further=((wide, (2, 3)),))
        made = compose(**parts(distill=Remember()))
        state, round = play(made, world, 2)[1]
        found = measured(made, state, round, world)
        assert set(found) == {"way", "way of mlp", "accuracy of mlp"}
        assert found["way"] == round.measured["way"]
        assert found["way of mlp"] == round.further[0].measured["way"] != found["way"]

    def test_the_methods_own_measures(self) -> None:
        given: list[tuple[State, Round, Federation]] = []

        def size(state: State, round: Round, federation: Federation) -> Mapping[str, float]:
            given.append((state, round, federation))
            return {"norm": float(state.models.params.norm()), "seen": float(len(round.clients))}

        made = compose(**parts(distill=Remember()), measures=[size, lambda *_: {"seen twice": 1.0}])
        state, round = play(made)[0]
        assert given == []  # not before they are asked for
        found = measured(made, state, round, WORLD)
        assert [tuple(map(id, call)) for call in given] == [(id(state), id(round), id(WORLD))]
        norm = float(state.models.params.norm())
        assert found == {"way": 0.0, "norm": norm, "seen": 4.0, "seen twice": 1.0}

    def test_without_any_there_is_nothing(self) -> None:
        made = compose(**parts())
        assert measured(made, *play(made)[0], WORLD) == {}


class TestGroups:
    @pytest.mark.parametrize(
        ("stage", "needs"),
        [
            *((stage, False) for stage in (local(), BySize(), Uniform(), Replace(), Nobody(), Average(), Keep())),
            *((stage, False) for stage in (Replace(bn_buffers="recalibrate"), Momentum(beta=0.5), sgd())),
            *((stage, True) for stage in (Replace(bn_buffers="last_client"), Clients(), Gaussian(samples=1))),
            (Momentum(beta=0.5, bn_buffers="last_client"), True),
            (Union((Average(), Nobody())), False),
            (Union((Average(), Clients())), True),
            (ByDistance(), True),
            (Remember(), True),  # who says nothing may look
        ],
        ids=repr,
    )
    def test_who_needs_clients(self, stage: object, needs: bool) -> None:
        assert needs_clients(stage) is needs

    @pytest.mark.parametrize("needed", [False, True])
    @pytest.mark.parametrize("name", ["weigh", "server", "teach", "distill"])
    def test_one_that_needs_them_is_enough(self, name: str, needed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(SMALL, 1)

        class Wants(Noted):
            needs_clients = needed

        stages = parts()
        _, round = play(compose(**(stages | {name: Wants(stages[name], [])})))[0]
        assert len(round.clients) == len(round.start) == len(round.finite) == (4 if needed else 0)

    def test_statistics_of_the_last_client_keep_all(self, monkeypatch: pytest.MonkeyPatch) -> None:
        world = tiny.federation("resnet8", sizes=SIZES)
        made = compose(**parts(server=Replace(bn_buffers="last_client")))
        whole = play(made, world, 2)
        monkeypatch.setattr(SMALL, 1)
        for (state, round), (same, twin) in zip(play(made, world, 2), whole):
            assert len(round.clients) == 4
            assert tiny.same(state.models, same.models)
            assert tiny.same(round.clients, twin.clients)
            assert torch.equal(state.models.buffers, round.clients.buffers[3:])
            assert round.train_loss == twin.train_loss

    def test_an_average_alone_can_teach(self, monkeypatch: pytest.MonkeyPatch) -> None:
        made = compose(**parts(teach=Average(), distill=sgd()))
        whole, _ = play(made)[0]
        monkeypatch.setattr(SMALL, 1)
        state, round = play(made)[0]
        assert len(round.clients) == 0
        assert len(round.teacher) == 1
        torch.testing.assert_close(state.models.params, whole.models.params, rtol=1e-12, atol=1e-12)

    def test_one_that_diverged_is_named_in_any_group(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(SMALL, 1)
        broken = WORLD.data.images.clone()
        broken[13:19] = float("inf")  # those of client 2
        world = replace(WORLD, data=replace(WORLD.data, images=broken))
        with pytest.raises(ArithmeticError, match="the loss of client 2 in round 0 is not finite"):
            play(compose(**parts()), world)

    def test_training_is_asked_group_by_group(self, monkeypatch: pytest.MonkeyPatch) -> None:
        seen: list[Participants] = []

        class Counted(LocalSgd):
            def __call__(self, round: Round, federation: Federation, streams: Streams) -> tuple[Trained, Memory]:
                seen.append(round.who)
                assert len(round.start) == len(round.who.clients)
                return super().__call__(round, federation, streams)

        size = WORLD.start(0).params.shape[1] * 8
        monkeypatch.setattr(SMALL, 3 * 4 * size)
        _, round = play(compose(**parts(train=as_kind(Counted))))[0]
        assert [who.clients for who in seen] == [(0, 1, 2), (3,)]
        assert round.who == tiny.everyone(4)


class TestCatalogue:
    def test_names_are_taken_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        own: dict[str, Any] = {}
        monkeypatch.setattr("fedrepro.methods.compose.METHODS", own)

        def fedother(setting: Any) -> Method:
            return compose(**parts())

        def twin(setting: Any) -> Method:
            return compose(**parts())

        assert method(fedother) is fedother
        method(fedother)  # a module may be read again
        assert own == {"fedother": fedother}
        twin.__name__, twin.__module__ = "fedother", "elsewhere"
        with pytest.raises(ValueError, match=f"there is a method 'fedother' already, in {__name__}"):
            method(twin)
        assert own == {"fedother": fedother}
        assert "fedother" not in METHODS

    def test_stages_are_shown_in_their_order(self) -> None:
        made = compose(**parts(distill=Remember()))
        assert [name for name, _ in made.stages] == list(parts())
        assert str(made).splitlines()[-1] == "distill  Remember()"
        assert shown((Replace(), 3)) == "(Replace(), 3)"


@dataclass(frozen=True)
class Nothing:
    """Weigh nobody."""

    def __call__(self, round: Round, federation: Federation, streams: Streams) -> Tensor:
        return torch.zeros(1, len(round.who.clients), dtype=torch.float64)


def test_where_nobody_weighs_anything_the_model_stays() -> None:
    state, round = play(compose(**parts(weigh=Nothing())))[0]
    assert tiny.same(state.models, round.state.models)
    assert math.isnan(round.train_loss)
