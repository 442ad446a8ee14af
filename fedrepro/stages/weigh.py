"""How much each participant counts in the average.

Shapes: K global models, S clients.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedrepro.federation.federation import Federation
from fedrepro.stages.plan import Participants


@dataclass(frozen=True)
class BySize:
    """Weigh each participant by its number of images: p_i = n_i / sum_j n_j (FedBE eq. 10)."""

    def __call__(self, federation: Federation, who: Participants) -> Tensor:
        """Return shares [1, S] float64 in the order of the participants; they sum to 1."""
        sizes = federation.sizes[list(who.clients)]
        return (sizes / sizes.sum())[None]


@dataclass(frozen=True)
class Uniform:
    """Weigh all participants alike, p_i = 1 / S, whatever their number of images (FedDF's text and code)."""

    def __call__(self, federation: Federation, who: Participants) -> Tensor:
        """Return shares [1, S] float64; they sum to 1."""
        count = len(who.clients)
        return torch.full((1, count), 1 / count, dtype=torch.float64)
