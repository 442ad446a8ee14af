"""Local training: what each participant does with its own images in a round."""

from dataclasses import dataclass

import torch

from fedrepro.federation import Federation
from fedrepro.kernels.plain import NonFiniteLossError, Trained
from fedrepro.optim import Constant, Sgd, round_factor
from fedrepro.plan import Augment, BatchPlan, Participants, batch_plan
from fedrepro.rng import Streams
from fedrepro.stack import Stack


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
    """

    lr: float
    lr_schedule: str
    rounds: int
    batch_size: int
    momentum: float
    weight_decay: float
    augment: Augment
    last_batch: str = "merge"

    def __call__(self, start: Stack, who: Participants, federation: Federation, streams: Streams) -> Trained:
        """Train all participants from `start` [S].

        Raises:
            DivergedError: naming the client whose loss is not finite, and the round.
        """
        plan = local_batches(
            federation,
            who,
            streams,
            batch_size=self.batch_size,
            augment=self.augment,
            last_batch=self.last_batch,
        )
        return self.steps(start, who, federation, streams, plan)

    def steps(
        self,
        start: Stack,
        who: Participants,
        federation: Federation,
        streams: Streams,
        plan: BatchPlan,
        velocity: torch.Tensor | None = None,
    ) -> Trained:
        """Run a given batch plan, optionally going on from momentum buffers [S, P]."""
        factor = round_factor(self.lr_schedule, round=streams.round, rounds=self.rounds)
        rates = Constant(lr=self.lr * factor).steps(plan.index.shape[1])
        sgd = Sgd(lr=rates, momentum=self.momentum, weight_decay=self.weight_decay)
        try:
            return federation.train(start, federation.data, federation.data.labels, plan, sgd, velocity=velocity)
        except NonFiniteLossError as error:
            client = who.clients[error.member]
            raise DivergedError(
                f"the loss of client {client} in round {streams.round} is not finite (learning rate {rates[0]:g})"
            ) from error
