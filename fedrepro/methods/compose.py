"""A federated method as a value: stages that never change their order, composed into one round.

    plan     who takes part, from which model, how long                     [S]
    train    the clients' own training                                      [S, ...]
    weigh    shares of the participants                                     [K, S]
    server   what becomes of mix(shares, clients)                           [K, ...]
    teach    the ensemble's members                                         [M, ...]
    combine  the members' outputs into one prediction                       [N, C]
    distill  from the prediction back to a model                            [K, ...]

"Off" is a value as well (`Nobody`, `Keep`): no stage asks which method it serves. What a stage must remember from
round to round (SCAFFOLD's control variates, the server's momentum) it finds in the state's memory by name, and
returns anew; it changes nothing in place.

Shapes: S participants, K global models, M members, N images, C classes, P parameters.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass
from functools import reduce

import torch
from torch import Tensor

from fedrepro.core.rng import Streams
from fedrepro.core.stack import Stack, mix, plus
from fedrepro.core.state import Memory, State
from fedrepro.federation.federation import Federation
from fedrepro.kernels.plain import Trained
from fedrepro.stages.combine import Combine, Ensemble
from fedrepro.stages.distill import Distill, Distilled
from fedrepro.stages.plan import Participants
from fedrepro.stages.round import Trace
from fedrepro.stages.teach import Aggregation, Nobody, Teach

Init = Callable[[Federation, int], State]


Round = Callable[[State, Federation, Streams], tuple[State, Trace]]


@dataclass(frozen=True)
class Method:
    """A pair of pure functions, and which of its predictions stands for it in a table.

    Args:
        init: (federation, seed) -> the state before the first round.
        round: (state, federation, streams) -> the state after one more round, and its trace.
        answer: "student" (the global model) or "ensemble" (the teachers together).
        stages: the stages that it was composed of, for printing.
    """

    init: Init
    round: Round
    answer: str
    stages: tuple[tuple[str, object], ...] = ()

    def __str__(self) -> str:
        """Show the stages, one per line, as `shown` does."""
        width = max((len(name) for name, _ in self.stages), default=0)
        return "\n".join(f"{name:<{width}}  {shown(stage)}" for name, stage in self.stages)


def shown(stage: object) -> str:
    """Return a stage as text; options at their default, such as a term that is off, are left out."""
    if isinstance(stage, tuple):
        return f"({', '.join(map(shown, stage))})"
    if not is_dataclass(stage):
        return repr(stage)
    options = ((f, getattr(stage, f.name)) for f in fields(stage))
    chosen = (f"{f.name}={shown(value)}" for f, value in options if value != f.default)
    return f"{type(stage).__name__}({', '.join(chosen)})"


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


def one_global_model(federation: Federation, seed: int) -> State:
    """Start a run with one global model, drawn from the seed."""
    return State(0, federation.start(seed))


Plan = Callable[[int, Streams], Participants]


Train = Callable[[Stack, Participants, Federation, Streams, Memory], tuple[Trained, Memory]]


Weigh = Callable[[Federation, Participants], Tensor]


Server = Callable[[Stack, Stack, State, Federation], tuple[Stack, Memory]]


GROUP_BYTES = 2 << 30  # of clients' models at once, where no teacher needs them all


@dataclass(frozen=True, kw_only=True)
class Stages:
    """The seven stages of a round, in their order."""

    plan: Plan
    train: Train
    weigh: Weigh
    server: Server
    teach: Teach
    combine: Combine
    distill: Distill

    def __call__(self, state: State, federation: Federation, streams: Streams) -> tuple[State, Trace]:
        """Play one round (FedBE Algorithm 1, one pass of its loop over r)."""
        watch = Stopwatch(federation.device)
        who = self.plan(federation.clients, streams)
        size = self._group(len(who.clients), state.models)
        memory, losses, averages = dict(state.memory), list[Tensor](), list[Stack]()
        for first in range(0, len(who.clients), size):
            part = slice(first, first + size)
            group = Participants(who.clients[part], who.models[part], who.epochs[part])
            with watch.stage("train"):
                start = state.models.take(list(group.models))
                trained, changes = self.train(start, group, federation, streams, state.memory)
                losses.append(trained.loss.double().cpu())
            memory |= changes
            with watch.stage("aggregate"):
                if not averages:
                    shares = self.weigh(federation, who)
                averages.append(mix(shares[:, part], trained.stack))
        clients = trained.stack
        if size < len(who.clients):
            start, clients = start.take(slice(0, 0)), clients.take(slice(0, 0))
        with watch.stage("aggregate"):
            average, changes = self.server(reduce(plus, averages), trained.stack, state, federation)
        memory |= changes
        with watch.stage("teach"):
            round = Aggregation(start, clients, shares, average)
            teacher = Ensemble(self.teach(round, federation, streams), self.combine, federation)
        with watch.stage("distill"):
            distilled: Distilled = self.distill(average, teacher, federation, streams)
        trace = Trace(
            who,
            start,
            clients,
            shares,
            average,
            teacher,
            distilled.targets,
            float(torch.cat(losses) @ shares[0].double()),
            distilled.loss,
            watch.seconds,
        )
        return State(state.round + 1, distilled.student, memory), trace

    def _group(self, participants: int, models: Stack) -> int:
        """Return how many clients are trained before they are averaged: all, unless nobody needs them after that.

        Then memory does not grow with the number of clients.
        """
        if self.teach != Nobody() or not getattr(self.train, "in_groups", False):
            return participants
        # A client has a first model, a last one, their average over steps, and momentum.
        return max(
            1, min(participants, GROUP_BYTES // (4 * models.params.element_size() * models.params.shape[1]))
        )


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
) -> Method:
    """Compose stages into a method; see the module's table for what each stage does.

    Raises:
        ValueError: if `answer` is neither "student" nor "ensemble".
    """
    if answer not in ("student", "ensemble"):
        raise ValueError(f'answer must be "student" or "ensemble", got {answer!r}')
    stages = Stages(
        plan=plan, train=train, weigh=weigh, server=server, teach=teach, combine=combine, distill=distill
    )
    shown = tuple((f.name, getattr(stages, f.name)) for f in fields(stages))
    return Method(one_global_model, stages, answer, shown)
