"""What is known of a round, and what each of its seven stages is asked for.

Shapes: S participants, K global models, M members, N images, C classes.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from fedrepro.core.rng import Streams
from fedrepro.core.stack import Stack
from fedrepro.core.state import Memory, State
from fedrepro.federation.federation import Federation
from fedrepro.kernels.trained import Trained
from fedrepro.stages.combine import Combine, Ensemble


@dataclass(frozen=True)
class Participants:
    """The clients of one round [S]: their numbers, the global model each starts from, and local epochs."""

    clients: tuple[int, ...]
    models: tuple[int, ...]
    epochs: tuple[int, ...]

    def part(self, chosen: slice) -> "Participants":
        """Return some of them."""
        return Participants(self.clients[chosen], self.models[chosen], self.epochs[chosen])


@dataclass(frozen=True)
class Round:
    """One round: it begins with the state, and each stage adds what it made. Nothing in it is ever changed.

    Every stage finds here what those before it left; what comes later is empty. After the last stage it is also
    the account of the round, for readers and measures.

    Args:
        state: as it was before the round, of this architecture.
        who: participants [S].
        start: the models sent out [S].
        clients: those that came back [S]. Where no stage needs them, they are averaged as they finish, and
            `start` and `clients` stay empty.
        finite: which clients' trainings stayed finite, [S] bool on the CPU.
        shares: weights of the clients [K, S] float64.
        average: their means as the server made the next models of them [K].
        teacher: the ensemble, of the members of all architectures.
        targets: what the students learnt from, probabilities [N, C]; no rows where nothing was learnt.
        train_loss, distill_loss: means over steps and clients; NaN where there are none.
        measured: what stages measured, by name.
        seconds: wall time by stage.
        further: where there are several architectures, the rounds of the others.
    """

    state: State
    who: Participants
    start: Stack
    clients: Stack
    finite: Tensor
    shares: Tensor
    average: Stack
    teacher: Ensemble
    targets: Tensor
    train_loss: float = float("nan")
    distill_loss: float = float("nan")
    measured: Mapping[str, float] = field(default_factory=dict)
    seconds: Mapping[str, float] = field(default_factory=dict)
    further: "tuple[Round, ...]" = ()

    @classmethod
    def begin(cls, state: State, federation: Federation, combine: Combine) -> "Round":
        """Return a round of which nothing is known but the state."""
        models = state.models
        nothing = models.take(slice(0, 0))
        return cls(
            state=state,
            who=Participants((), (), ()),
            start=nothing,
            clients=nothing,
            finite=torch.ones(0, dtype=torch.bool),
            shares=torch.zeros(len(models), 0, dtype=torch.float64),
            average=models,
            teacher=Ensemble.of(nothing, combine, federation),
            targets=models.params.new_empty(0, federation.architecture.classes),
        )

    @property
    def worlds(self) -> "tuple[Round, ...]":
        """One round for each architecture, the first one's first."""
        return (self, *self.further)


@dataclass(frozen=True)
class Distilled:
    """What distillation returns.

    student: the next global models [K]; loss: mean over steps and students, NaN where nothing was learnt; targets
    [N, C]: what it learnt from, no rows where nothing was; measured: numbers by name, recorded for each round;
    memory: what the stage will want to know in later rounds.
    """

    student: Stack
    loss: float
    targets: Tensor
    measured: Mapping[str, float] = field(default_factory=dict)
    memory: Memory = field(default_factory=dict)


def check(stage: object, federation: Federation) -> None:
    """Let a stage refuse a federation before anything is trained, by its method `check(federation)` if any."""
    look = getattr(stage, "check", None)
    if look is not None:
        look(federation)


# The stages. Each is a function of the round so far, the federation and the round's random streams, and changes
# nothing that it is given. What a stage remembers from round to round it finds in `round.state.memory` by name,
# and returns anew. A stage with an attribute `needs_clients` that is False does not look at the clients' models
# after they are averaged; where all say so, they are averaged in groups, and memory does not grow with their
# number.


class Plan(Protocol):
    """Who takes part."""

    def __call__(self, round: Round, federation: Federation, streams: Streams) -> Participants:
        """Return the participants [S], those of `federation.numbers` alone."""


class Train(Protocol):
    """The clients' own training."""

    def __call__(self, round: Round, federation: Federation, streams: Streams) -> tuple[Trained, Memory]:
        """Train `round.who` from `round.start` [S]."""


class Weigh(Protocol):
    """How much each client counts."""

    def __call__(self, round: Round, federation: Federation, streams: Streams) -> Tensor:
        """Return shares [K, S] float64; the row of a model that stays as it is may be all zeros."""


class Server(Protocol):
    """What becomes of the means."""

    def __call__(self, round: Round, federation: Federation, streams: Streams) -> tuple[Stack, Memory]:
        """Return the next models [K] from `round.average`, which holds mix(shares, clients)."""


class Teach(Protocol):
    """Who teaches."""

    def __call__(self, round: Round, federation: Federation, streams: Streams) -> Stack:
        """Return the ensemble's members [M] of this architecture."""


class Distill(Protocol):
    """From the ensemble back to models."""

    def __call__(self, round: Round, federation: Federation, streams: Streams) -> Distilled:
        """Return the next global models [K] from `round.average` and `round.teacher`."""


def needs_clients(stage: object) -> bool:
    """Return whether a stage looks at the clients' models after they were averaged: yes, unless it says no."""
    return bool(getattr(stage, "needs_clients", True))
