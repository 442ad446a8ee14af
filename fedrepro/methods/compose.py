"""A federated method as a value: stages that never change their order, composed into one round.

    plan     who takes part, from which model, how long                     [S]
    train    the clients' own training                                      [S, ...]
    weigh    shares of the participants                                     [K, S]
    server   what becomes of mix(shares, clients)                           [K, ...]
    teach    the ensemble's members                                         [M, ...]
    combine  the members' outputs into one prediction                       [N, C]
    distill  from the prediction back to a model                            [K, ...]

"Off" is a value as well (`Nobody`, `Keep`): no stage asks which method it serves. All stages but `combine` are
called alike: with the round so far, the federation and the round's random streams (`stages.round`). Where the
clients have several architectures, each is a world of its own until the members of all join into one ensemble, and
again after it.

Shapes: S participants, K global models, M members, N images, C classes, P parameters.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import partial, reduce

import torch
from torch import Tensor

from fedrepro.core.rng import Streams
from fedrepro.core.setting import REQUIRED, Option, Setting, declare
from fedrepro.core.stack import Stack, concatenate, mix, plus
from fedrepro.core.state import Memory, State
from fedrepro.federation.federation import Federation
from fedrepro.kernels import stacked
from fedrepro.stages.combine import Combine, Ensemble
from fedrepro.stages.round import Distill, Plan, Round, Server, Teach, Train, Weigh, check, needs_clients

declare(method=Option("name of a method, see `methods.METHODS`", neutral=REQUIRED, example="fedavg"))

GROUP_BYTES = 2 << 30  # of clients' models at once, where no stage needs them all

Init = Callable[[Federation, int], State]
Play = Callable[[State, Federation, Streams], tuple[State, Round]]
Measure = Callable[[State, Round, Federation], Mapping[str, float]]


@dataclass(frozen=True)
class Method:
    """A pair of pure functions, which of its predictions stands for it in a table, and what is measured besides.

    Args:
        init: (federation, seed) -> the state before the first round.
        round: (state, federation, streams) -> the state after one more round, and the round.
        answer: "student" (the global model) or "ensemble" (the teachers together).
        stages: the stages that it was composed of, for printing.
        measures: further numbers of each round: (state after it, round, federation) -> name -> number.
    """

    init: Init
    round: Play
    answer: str
    stages: tuple[tuple[str, object], ...] = ()
    measures: tuple[Measure, ...] = ()

    def __str__(self) -> str:
        """Show the stages, one per line, as `shown` does."""
        width = max((len(name) for name, _ in self.stages), default=0)
        return "\n".join(f"{name:<{width}}  {shown(stage)}" for name, stage in self.stages)


Build = Callable[[Setting], Method]
METHODS: dict[str, Build] = {}  # filled by the modules of this folder


def method(build: Build) -> Build:
    """Enter a function that builds a method from a setting into `METHODS`, under its own name."""
    if build.__name__ in METHODS and METHODS[build.__name__].__module__ != build.__module__:
        raise ValueError(f"there is a method {build.__name__!r} already, in {METHODS[build.__name__].__module__}")
    METHODS[build.__name__] = build
    return build


def start(federation: Federation, seed: int, *, models: int = 1, stages: Sequence[object] = ()) -> State:
    """Start a run with K global models of each architecture, drawn from the seed.

    Raises:
        ValueError: where a stage, or every kernel, refuses the federation: now, and not after a round's training.
    """
    for world in federation.worlds:
        if reason := stacked.takes(world.architecture, world.device, world.precision):
            raise ValueError(reason)
        for stage in stages:
            check(stage, world)
    states = [State(0, world.start(seed, models)) for world in federation.worlds]
    return replace(states[0], further=tuple(states[1:]))


def compose(
    *,
    plan: Plan,
    train: Train,
    weigh: Weigh,
    server: Server,
    teach: Teach,
    combine: Combine,
    distill: Distill,
    answer: str = "student",
    models: int = 1,
    measures: Sequence[Measure] = (),
) -> Method:
    """Compose stages into a method; see the module's table for what each stage does.

    Args:
        plan, train, weigh, server, teach, combine, distill: the stages.
        answer: see `Method`.
        models: global models K of each architecture.
        measures: see `Method`.

    Raises:
        ValueError: if `answer` is neither "student" nor "ensemble", or without a global model.
    """
    if answer not in ("student", "ensemble"):
        raise ValueError(f'answer must be "student" or "ensemble", got {answer!r}')
    if models < 1:
        raise ValueError(f"models must be >= 1, got {models}")
    stages = _Stages(
        plan=plan, train=train, weigh=weigh, server=server, teach=teach, combine=combine, distill=distill
    )
    shown = tuple((f.name, getattr(stages, f.name)) for f in fields(stages))
    every = tuple(stage for _, stage in shown)
    return Method(partial(start, models=models, stages=every), stages, answer, shown, tuple(measures))


@dataclass(frozen=True, kw_only=True)
class _Stages:
    """The seven stages of a round, in their order."""

    plan: Plan
    train: Train
    weigh: Weigh
    server: Server
    teach: Teach
    combine: Combine
    distill: Distill

    def __call__(self, state: State, federation: Federation, streams: Streams) -> tuple[State, Round]:
        """Play one round (FedBE Algorithm 1, one pass of its loop over r)."""
        watch, worlds = Stopwatch(federation.device), federation.worlds
        begun = [self._gather(own, world, streams, watch) for own, world in zip(state.worlds, worlds, strict=True)]
        with watch.stage("teach"):
            members = [self._teachers(round, world, streams) for (round, _), world in zip(begun, worlds)]
            teacher = Ensemble(tuple(zip(members, worlds)), self.combine)
        ended = [
            self._learn(replace(round, teacher=teacher), memory, world, streams, watch)
            for (round, memory), world in zip(begun, worlds)
        ]
        (first, account), *others = ended
        further = tuple(replace(own, seconds=watch.seconds) for _, own in others)
        return (
            replace(first, further=tuple(own for own, _ in others)),
            replace(account, seconds=watch.seconds, further=further),
        )

    def _gather(
        self, state: State, federation: Federation, streams: Streams, watch: "Stopwatch"
    ) -> tuple[Round, Memory]:
        """Play the first four stages in one world, up to the averages; also returns the memory so far."""
        round = Round.begin(state, federation, self.combine)
        who = self.plan(round, federation, streams)
        if not who.clients:
            return round, state.memory
        round, memory = replace(round, who=who), dict(state.memory)
        size = self._group(len(who.clients), state.models)
        losses, averages = list[Tensor](), list[Stack]()
        for first in range(0, len(who.clients), size):
            part = slice(first, first + size)
            with watch.stage("train"):
                start = state.models.take(list(who.models[part]))
                trained, changes = self.train(replace(round, who=who.part(part), start=start), federation, streams)
                losses.append(trained.loss.double().cpu())
            memory |= changes
            if size == len(who.clients):
                round = replace(round, start=start, clients=trained.stack, finite=trained.finite)
            with watch.stage("aggregate"):
                if not averages:
                    round = replace(round, shares=self.weigh(round, federation, streams))
                averages.append(mix(round.shares[:, part], trained.stack))
        with watch.stage("aggregate"):
            round = replace(round, average=_kept(reduce(plus, averages), round))
            average, changes = self.server(round, federation, streams)
        memory |= changes
        counts = round.shares.double().sum(0)
        models = int((round.shares.sum(1) > 0).sum())  # that have clients
        loss = float(torch.where(counts > 0, torch.cat(losses), 0.0) @ counts)
        loss = loss / models if models else float("nan")
        return replace(round, average=_kept(average, round), train_loss=loss), memory

    def _teachers(self, round: Round, federation: Federation, streams: Streams) -> Stack:
        """Play the fifth stage in one world: where nobody takes part, nobody teaches."""
        return self.teach(round, federation, streams) if round.who.clients else round.clients

    def _learn(
        self, round: Round, memory: Memory, federation: Federation, streams: Streams, watch: "Stopwatch"
    ) -> tuple[State, Round]:
        """Play the last stage in one world."""
        state = round.state
        if not round.who.clients:  # an architecture without participants keeps its models
            return State(state.round + 1, state.models, memory), round
        with watch.stage("distill"):
            distilled = self.distill(round, federation, streams)
        measured = dict(round.measured) | dict(distilled.measured)
        account = replace(round, targets=distilled.targets, distill_loss=distilled.loss, measured=measured)
        return State(state.round + 1, distilled.student, dict(memory) | dict(distilled.memory)), account

    def _group(self, participants: int, models: Stack) -> int:
        """Return how many clients are trained before they are averaged: all, unless nobody needs them after that.

        Then memory does not grow with the number of clients.
        """
        if any(map(needs_clients, (self.train, self.weigh, self.server, self.teach, self.distill))):
            return participants
        # A client has a first model, a last one, their average over steps, and momentum.
        own = 4 * models.params.element_size() * models.params.shape[1]
        return max(1, min(participants, GROUP_BYTES // own))


def _kept(average: Stack, round: Round) -> Stack:
    """Put models without clients back: they stay as they are, to the bit."""
    idle = (round.shares.sum(1) == 0).tolist()
    if not any(idle):
        return average
    both = concatenate([average, round.state.models])
    return both.take([place + len(average) * alone for place, alone in enumerate(idle)])


class Stopwatch:
    """Wall time by stage; waits for the device, so that a stage's own work is counted with it."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.seconds: dict[str, float] = {}

    def _now(self) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter()

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Book the time of the block on a stage; an error that leaves it, of the device as well, says where."""
        begun = self._now()
        try:
            yield
            self.seconds[name] = self.seconds.get(name, 0.0) + self._now() - begun
        except Exception as error:
            error.add_note(f"stage {name}")
            raise


def shown(stage: object) -> str:
    """Return a stage as text; options at their default, such as a term that is off, are left out."""
    if isinstance(stage, tuple):
        return f"({', '.join(map(shown, stage))})"
    if not is_dataclass(stage):
        return repr(stage)
    options = ((f, getattr(stage, f.name)) for f in fields(stage))
    chosen = (f"{f.name}={shown(value)}" for f, value in options if value != f.default)
    return f"{type(stage).__name__}({', '.join(chosen)})"
