"""Local training: what each participant does with its own images in a round."""

from dataclasses import dataclass
from typing import ClassVar

import torch

from fedrepro.core.rng import Streams
from fedrepro.core.setting import declare
from fedrepro.core.stack import Stack
from fedrepro.core.state import Memory
from fedrepro.federation.federation import Federation
from fedrepro.kernels.batches import Augment, BatchPlan, batch_plan
from fedrepro.kernels.plain import NonFiniteLossError, Trained
from fedrepro.kernels.step import FREE, Proximal, Sgd
from fedrepro.stages.plan import Participants
from fedrepro.stages.rates import Decaying, round_factor

declare(proximal_mu=0.0, proximal_form="squared")  # FedProx's term, see optim.Proximal


class DivergedError(ArithmeticError):
    """A loss became infinite or NaN; the message names the client, or distillation, and the round."""


def local_batches(
    federation: Federation,
    who: Participants,
    streams: Streams,
    *,
    batch_size: int,
    augment: Augment,
    last_batch: str = "merge",
) -> BatchPlan:
    """Plan every participant's batches of one round, [S, T, B].

    Raises:
        ValueError: if a client has no images, or a batch of one image would meet BatchNorm, naming the client.
    """
    for client in who.clients:
        if not len(federation.parts[client]):
            raise ValueError(f"client {client} has no images to train on")
    plan = batch_plan(
        [federation.parts[client] for client in who.clients],
        [streams.torch("batches", client) for client in who.clients],
        epochs=who.epochs,
        batch_size=batch_size,
        augment=augment,
        last_batch=last_batch,
    )
    if federation.architecture.batch_norm:
        alone = (plan.mask.sum(2) == 1).any(1).tolist()
        for client, single in zip(who.clients, alone):
            if single:
                size = len(federation.parts[client])
                raise ValueError(
                    f"client {client} ({size} images, batches of {batch_size}) would train on a batch of one "
                    'image, which BatchNorm cannot normalise: use last_batch="merge" or "drop", another batch '
                    "size or GroupNorm, or give every client two images or more"
                )
    return plan


@dataclass(frozen=True, kw_only=True)
class LocalSgd:
    """Momentum SGD on cross-entropy over the client's own images (FedBE eq. 1); a fresh optimiser each round.

    Args:
        lr: learning rate before the round's factor; FedBE 0.01.
        lr_schedule: factor over rounds, a name of `optim.ROUND_SCHEDULES`; within a round it is constant.
        rounds: rounds of the whole run, which the schedule is relative to.
        batch_size: FedBE 40.
        momentum: in [0, 1); FedBE 0.9.
        weight_decay: on weights only, >= 0.
        augment: crops and flips.
        last_batch: see `plan.batch_plan`.
        lr_decay: factor on the learning rate from step to step within a round, in (0, 1]; FedBE's Figure 5 tries
            0.99, all else has 1.
        proximal: FedProx's pull towards the model sent out.
    """

    in_groups: ClassVar[bool] = True

    lr: float
    lr_schedule: str
    rounds: int
    batch_size: int
    momentum: float
    weight_decay: float
    augment: Augment
    last_batch: str = "merge"
    lr_decay: float = 1.0
    proximal: Proximal = FREE

    def __post_init__(self) -> None:
        """Check the range."""
        if not 0 < self.lr_decay <= 1:
            raise ValueError(f"lr_decay must be in (0, 1], got {self.lr_decay}")

    def __call__(
        self, start: Stack, who: Participants, federation: Federation, streams: Streams, memory: Memory
    ) -> tuple[Trained, Memory]:
        """Train all participants from `start` [S]; nothing is remembered.

        Raises:
            DivergedError: naming the client whose loss is not finite, and the round.
        """
        return self.steps(start, who, federation, streams, self.batches(federation, who, streams)), {}

    def batches(self, federation: Federation, who: Participants, streams: Streams) -> BatchPlan:
        """Plan all participants' batches; see `local_batches`."""
        return local_batches(
            federation,
            who,
            streams,
            batch_size=self.batch_size,
            augment=self.augment,
            last_batch=self.last_batch,
        )

    def rates(self, steps: int, streams: Streams) -> torch.Tensor:
        """Return the learning rate of each step of this round, [T] float64."""
        factor = round_factor(self.lr_schedule, round=streams.round, rounds=self.rounds)
        return Decaying(lr=self.lr * factor, decay=self.lr_decay).steps(steps)

    def steps(
        self,
        start: Stack,
        who: Participants,
        federation: Federation,
        streams: Streams,
        plan: BatchPlan,
        velocity: torch.Tensor | None = None,
        correction: torch.Tensor | None = None,
    ) -> Trained:
        """Run a batch plan, optionally with momentum buffers [S, P] to go on from and a correction [S, P]."""
        rates = self.rates(plan.index.shape[1], streams)
        sgd = Sgd(lr=rates, momentum=self.momentum, weight_decay=self.weight_decay, proximal=self.proximal)
        labels = federation.data.labels
        try:
            return federation.train(
                start, federation.data, labels, plan, sgd, velocity=velocity, correction=correction
            )
        except NonFiniteLossError as error:
            client = who.clients[error.member]
            raise DivergedError(
                f"the loss of client {client} in round {streams.round} is not finite (learning rate {rates[0]:g})"
            ) from error


LENGTHS = ("effective", "plain")
declare(scaffold_length="effective")  # see Scaffold


@dataclass(frozen=True, kw_only=True)
class Scaffold(LocalSgd):
    """SCAFFOLD: every local gradient is corrected by control variates (Karimireddy et al. 2020, Algorithm 1).

    Server and clients hold c and c_i, zero at first. A client's step uses g - c_i + c; after K steps from x to y_i
    (option II) c_i+ = c_i - c + (x - y_i) / L, and c+ = c + (1/N) sum_i (c_i+ - c_i) over the participants, with N
    the number of all clients. Only trainable parameters have control variates. Models are averaged by size as
    everywhere here, which is SCAFFOLD's own mean (with a global step of 1) where clients are of equal size.

    L is the length of the way per unit of gradient. "plain": K eta, as in the paper, whose clients have no
    momentum. "effective": with momentum m a gradient goes on to count, and the way of a constant gradient is
    sum_t eta_t (1 - m^t) / (1 - m), nearly K eta / (1 - m); with K eta the c_i would come out 1 / (1 - m) times
    too long. Without momentum both are the same.

    Args:
        length: a name of `LENGTHS`.
    """

    in_groups: ClassVar[bool] = False

    length: str = "effective"

    def __post_init__(self) -> None:
        """Check the options."""
        super().__post_init__()
        if self.length not in LENGTHS:
            raise ValueError(f"length must be one of {LENGTHS}, got {self.length!r}")

    def __call__(
        self, start: Stack, who: Participants, federation: Federation, streams: Streams, memory: Memory
    ) -> tuple[Trained, Memory]:
        """Train all participants from `start` [S]; returns also c [P] and all c_i [N, P].

        Raises:
            DivergedError: as `LocalSgd`.
        """
        plan = self.batches(federation, who, streams)
        nothing = start.params.new_zeros(federation.clients, start.params.shape[1])
        controls, control = memory.get("controls", nothing), memory.get("control", nothing[0])
        own = controls[list(who.clients)]
        trained = self.steps(start, who, federation, streams, plan, correction=control - own)
        moved = start.params - trained.stack.params
        change = moved / self.lengths(plan, streams).to(moved)[:, None] - control  # c_i+ - c_i
        fresh = controls.clone()
        fresh[list(who.clients)] = own + change
        return trained, {"controls": fresh, "control": control + change.sum(0) / federation.clients}

    def lengths(self, plan: BatchPlan, streams: Streams) -> torch.Tensor:
        """Return L of each participant, [S] float64."""
        taken = plan.mask.any(2)  # [S, T]
        momentum = self.momentum if self.length == "effective" else 0.0
        nth = taken.cumsum(1).double()  # a step's number among those that the participant takes
        rates = self.rates(plan.index.shape[1], streams)
        return (taken * rates * (1 - momentum**nth) / (1 - momentum)).sum(1)
