"""The third stage, weigh: how much each participant counts in the average.

Shapes: K global models, S clients.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedrepro.core.names import pick
from fedrepro.core.rng import Streams
from fedrepro.core.setting import Option, Setting, declare
from fedrepro.federation.federation import Federation
from fedrepro.stages.round import Round, Weigh

declare(
    client_shares=Option('how clients are weighed, "by_size" or "uniform"', neutral="by_size", example="uniform")
)


@dataclass(frozen=True)
class BySize:
    """Weigh each participant by its number of images: p_i = n_i / sum_j n_j (FedBE eq. 10)."""

    needs_clients: ClassVar[bool] = False

    def __call__(self, round: Round, federation: Federation, streams: Streams) -> Tensor:
        """Return shares [K, S] float64; the row of a model sums to 1 over the clients that started from it."""
        return among_models(federation.sizes[list(round.who.clients)], round)


@dataclass(frozen=True)
class Uniform:
    """Weigh all participants alike, p_i = 1 / S, whatever their number of images (FedDF's text and code)."""

    needs_clients: ClassVar[bool] = False

    def __call__(self, round: Round, federation: Federation, streams: Streams) -> Tensor:
        """Return shares [K, S] float64; the row of a model sums to 1 over the clients that started from it."""
        return among_models(torch.ones(len(round.who.clients), dtype=torch.float64), round)


def shares(setting: Setting) -> Weigh:
    """Return how a setting weighs its clients.

    Raises:
        ValueError: for unknown shares.
    """
    choices: dict[str, Weigh] = {"by_size": BySize(), "uniform": Uniform()}
    return pick("client_shares", setting.client_shares, choices)


def among_models(weights: Tensor, round: Round) -> Tensor:
    """Turn weights [S] of the clients into shares [K, S] of the model that each started from.

    A model from which nobody started, or whose clients all weigh nothing, has a row of zeros: it stays as it is.
    """
    models = torch.tensor(round.who.models, dtype=torch.int64)
    own = models == torch.arange(len(round.state.models))[:, None]  # [K, S]
    weights = torch.where(own, weights, 0.0)
    total = weights.sum(1, keepdim=True)
    return weights / torch.where(total > 0, total, 1.0)
