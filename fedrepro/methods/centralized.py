"""Centralised training: one client holds everything, and nothing is federated. A bound in many tables."""

from dataclasses import replace

import torch
from torch import Tensor

from fedrepro.core.rng import Streams
from fedrepro.core.setting import Setting
from fedrepro.core.state import State
from fedrepro.federation.federation import Federation
from fedrepro.kernels.trained import Carried
from fedrepro.methods.compose import Method, Stopwatch, method, start
from fedrepro.stages.combine import combination
from fedrepro.stages.round import Participants, Round
from fedrepro.stages.train import local_sgd


@method
def centralized(setting: Setting) -> Method:
    """Centralised training on all images; a round is one epoch, and momentum lives on from round to round."""
    train, combine = local_sgd(setting), combination(setting)
    who = Participants((0,), (0,), (1,))

    def begin(federation: Federation, seed: int) -> State:
        _check(federation)
        return start(federation, seed, stages=(train,))

    def play(state: State, federation: Federation, streams: Streams) -> tuple[State, Round]:
        _check(federation)
        watch = Stopwatch(federation.device)
        round = replace(Round.begin(state, federation, combine), who=who, start=state.models)
        with watch.stage("train"):
            held, carried = state.memory.get("velocity"), None
            if held is not None:
                assert isinstance(held, Tensor)
                steps = torch.ones(1, dtype=torch.int64, device=federation.device)  # it has begun
                carried = Carried.living_on(state.models, train.step.rule, held[:, None], steps)
            trained = train.run(round, federation, streams, train.batches(who, federation, streams), carried)
        loss = trained.carried.total / (trained.carried.steps - int(carried is not None))
        account = replace(
            round,
            clients=trained.stack,
            finite=trained.finite,
            shares=torch.ones(1, 1, dtype=torch.float64),
            average=trained.stack,
            train_loss=float(loss[0]),
            seconds=watch.seconds,
        )
        memory = {"velocity": trained.carried.slots[:, 0]}
        return State(state.round + 1, trained.stack, memory), account

    return Method(begin, play, "student", (("train", train),))


def _check(federation: Federation) -> None:
    if federation.clients != 1:
        raise ValueError(
            f'centralised training has one client with all images (partition "central"), got {federation.clients}'
        )
