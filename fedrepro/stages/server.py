"""What the server does with the clients' models: weigh them and form the next average.

Shapes: K global models, S clients, P parameters.
"""

from dataclasses import dataclass

import torch

from fedrepro.core.setting import declare
from fedrepro.core.stack import Stack
from fedrepro.core.state import Memory, State
from fedrepro.federation.federation import Federation

BN_BUFFERS = ("average", "last_client", "recalibrate")


declare(client_shares="by_size")  # how clients are weighed: "by_size" or "uniform"


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

    def __call__(
        self, average: Stack, clients: Stack, state: State, federation: Federation
    ) -> tuple[Stack, Memory]:
        """Return the aggregated model, a stack of one, from the mean of the clients and the clients [S]."""
        return self._statistics(average, clients, federation), {}

    def _statistics(self, average: Stack, clients: Stack, federation: Federation) -> Stack:
        if self.bn_buffers == "last_client":
            return Stack(average.layout, average.params, clients.buffers[-1:], clients.counters[-1:])
        if self.bn_buffers == "recalibrate":
            return federation.recalibrate(average)
        return average


MOMENTUM_FORMS = ("heavy_ball", "ema")


declare(server_momentum=0.0, momentum_form="heavy_ball")  # beta and form of Momentum


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

    def __call__(
        self, average: Stack, clients: Stack, state: State, federation: Federation
    ) -> tuple[Stack, Memory]:
        """Return the moved model, a stack of one, and the velocities to remember."""
        delta = state.models.params - average.params
        before = state.memory.get("server_velocity", torch.zeros_like(delta))
        if self.form == "heavy_ball":
            velocity = self.beta * before + delta
        else:
            velocity = delta if state.round < 2 else self.beta * before + (1 - self.beta) * delta
        params = average.params if velocity is delta else state.models.params - velocity
        moved = Stack(average.layout, params, average.buffers, average.counters)
        return self._statistics(moved, clients, federation), {"server_velocity": velocity}
