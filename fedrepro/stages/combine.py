"""How an ensemble's members combine into one prediction: the only tensor that crosses architectures.

Shapes: M members, N images, C classes.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedrepro.core.stack import Stack
from fedrepro.data.data import Data
from fedrepro.federation.federation import Federation


def sharpen(probabilities: Tensor, exponent: float) -> Tensor:
    """Sharpen predictions: p[c]^s / sum_c' p[c']^s (FedBE 5.1 with s = 2, a temperature of 1/2).

    Args:
        probabilities: [..., C], rows summing to 1.
        exponent: s > 0; 1 changes nothing.
    """
    if not exponent > 0:
        raise ValueError(f"sharpen must be > 0, got {exponent}")
    # Dividing by the largest first keeps at least one entry at 1: no row underflows to 0/0.
    powered = (probabilities / probabilities.amax(-1, keepdim=True)) ** exponent
    return powered / powered.sum(-1, keepdim=True)


@dataclass(frozen=True, kw_only=True)
class MeanOfProbabilities:
    """p = (1/M) sum_m softmax(z_m), then sharpened (FedBE eq. 4 and section 5.1)."""

    sharpen: float

    def __call__(self, logits: Tensor) -> Tensor:
        """Combine logits [M, N, C] into probabilities [N, C]."""
        return sharpen(logits.softmax(-1).mean(0), self.sharpen)


@dataclass(frozen=True)
class MeanOfLogits:
    """p = softmax((1/M) sum_m z_m)."""

    def __call__(self, logits: Tensor) -> Tensor:
        """Combine logits [M, N, C] into probabilities [N, C]."""
        return logits.mean(0).softmax(-1)


Combine = MeanOfProbabilities | MeanOfLogits


@dataclass(frozen=True)
class Ensemble:
    """Teachers together with the rule that combines them."""

    members: Stack
    combine: Combine
    federation: Federation

    def __call__(self, data: Data) -> Tensor:
        """Return the ensemble's probabilities [N, C] on a data set.

        Raises:
            ValueError: if the ensemble has no members.
        """
        if not len(self.members):
            raise ValueError("an ensemble without members cannot predict")
        with torch.no_grad():
            return self.combine(self.federation.predict(self.members, data))
