"""The fourth stage, server: what becomes of the clients' mean.

Shapes: K global models, S clients, P parameters.
"""

from dataclasses import dataclass

import torch

from fedrepro.core.rng import Streams
from fedrepro.core.setting import Option, Setting, declare
from fedrepro.core.stack import Stack
from fedrepro.core.state import Memory
from fedrepro.federation.federation import Federation
from fedrepro.stages.round import Round

BN_BUFFERS = ("average", "last_client", "recalibrate")
MOMENTUM_FORMS = ("heavy_ball", "ema")
declare(
    bn_buffers=Option(
        "where the average's BatchNorm statistics come from, see `Replace`",
        neutral="average",
        example="last_client",
    ),
    server_momentum=Option("FedAvgM's beta", neutral=0.0, example=0.5, where={"method": "fedavgm"}),
    momentum_form=Option(
        "form of FedAvgM, see `Momentum`",
        neutral="heavy_ball",
        example="ema",
        where={"method": "fedbe_fedavgm", "server_momentum": 0.5},
    ),
)


@dataclass(frozen=True, kw_only=True)
class Replace:
    """The average of the clients becomes the global model (FedAvg; FedBE eq. 2 and 10).

    Args:
        bn_buffers: where BatchNorm statistics come from: "average" (weighted like the parameters),
            "last_client" (those of the participant with the highest number, as FedDF's released code does) or
            "recalibrate" (recomputed on the public images).
    """

    bn_buffers: str = "average"

    def __post_init__(self) -> None:
        """Check the option."""
        if self.bn_buffers not in BN_BUFFERS:
            raise ValueError(f"bn_buffers must be one of {BN_BUFFERS}, got {self.bn_buffers!r}")

    @property
    def needs_clients(self) -> bool:
        """Whether the clients' models are looked at."""
        return self.bn_buffers == "last_client"

    def __call__(self, round: Round, federation: Federation, streams: Streams) -> tuple[Stack, Memory]:
        """Return the aggregated models [K] from the means of the clients, and nothing to remember."""
        return self._statistics(round.average, round, federation), {}

    def _statistics(self, average: Stack, round: Round, federation: Federation) -> Stack:
        if self.bn_buffers == "last_client":
            last = [_last(model, round) for model in range(len(average))]
            return Stack(average.layout, average.params, *_rows(last, round.clients))
        if self.bn_buffers == "recalibrate":
            return federation.recalibrate(average)
        return average


@dataclass(frozen=True, kw_only=True)
class Momentum(Replace):
    """FedAvgM: the server moves along a running sum of the clients' mean updates (Hsu et al. 2019).

    With delta = w_t - sum_i p_i w_i and v_0 = 0: v <- beta v + delta, w_{t+1} = w_t - v. Parameters only;
    BatchNorm statistics come from the clients as with `Replace`. w_t is the model that was sent out, so under
    FedBE it is the distilled one.

    "ema" is the form of FedBE's released code: v <- beta v + (1 - beta) delta from the third round on; in the
    first two rounds w_{t+1} is the plain average and v its delta. The code moves BatchNorm statistics as well:
    that took variances below zero in the third round (ResNet-8 on digits), after which every prediction is
    NaN. Here they stay the clients'.

    Args:
        bn_buffers: see `Replace`.
        beta: in [0, 1); 0 is `Replace`.
        form: a name of `MOMENTUM_FORMS`.
    """

    beta: float
    form: str = "heavy_ball"

    def __post_init__(self) -> None:
        """Check the options."""
        super().__post_init__()
        if not 0 <= self.beta < 1:
            raise ValueError(f"beta must be in [0, 1), got {self.beta}")
        if self.form not in MOMENTUM_FORMS:
            raise ValueError(f"the momentum's form must be one of {MOMENTUM_FORMS}, got {self.form!r}")

    def __call__(self, round: Round, federation: Federation, streams: Streams) -> tuple[Stack, Memory]:
        """Return the moved models [K], and the velocities [K, P] to remember as "server_velocity"."""
        average, before = round.average, round.state.models.params
        delta = before - average.params
        held = round.state.memory.get("server_velocity", torch.zeros_like(delta))
        assert isinstance(held, torch.Tensor)
        if self.form == "heavy_ball":
            velocity = self.beta * held + delta
        else:
            velocity = delta if round.state.round < 2 else self.beta * held + (1 - self.beta) * delta
        params = average.params if velocity is delta else before - velocity
        moved = Stack(average.layout, params, average.buffers, average.counters)
        return self._statistics(moved, round, federation), {"server_velocity": velocity}


def replace(setting: Setting) -> Replace:
    """Return the server of a setting: the average becomes the global model."""
    return Replace(bn_buffers=setting.bn_buffers)


def momentum(setting: Setting) -> Momentum:
    """Return the server of a setting with FedAvgM's momentum."""
    return Momentum(beta=setting.server_momentum, form=setting.momentum_form, bn_buffers=setting.bn_buffers)


def _last(model: int, round: Round) -> int:
    """Return the place of the last participant that counts in a model's average; -1 if none does."""
    return max((place for place, share in enumerate(round.shares[model].tolist()) if share > 0), default=-1)


def _rows(places: list[int], clients: Stack) -> tuple[torch.Tensor, torch.Tensor]:
    return clients.buffers[places], clients.counters[places]
