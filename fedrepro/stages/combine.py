"""How an ensemble's members combine into one prediction: the only tensor that crosses architectures.

Shapes: M members, N images, C classes.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from fedrepro.core.setting import Option, Setting, above, among, declare
from fedrepro.core.stack import Stack
from fedrepro.data.data import Data
from fedrepro.federation.federation import Federation

COMBINATIONS = ("probabilities", "logits")
declare(
    sharpen=Option("exponent on the ensemble's probabilities", neutral=1.0, example=2.0),
    combination=Option(
        'what is averaged over the members of an ensemble, "probabilities" or "logits"',
        neutral="probabilities",
        example="logits",
        must=among(*COMBINATIONS),
    ),
    member_temperature=Option(
        "by which the logits of an ensemble's members are divided first", neutral=1.0, example=2.0, must=above(0)
    ),
)

Combine = Callable[[Tensor], Tensor]  # logits [M, N, C] -> probabilities [N, C]


@dataclass(frozen=True, kw_only=True)
class MeanOfProbabilities:
    """p = (1/M) sum_m softmax(z_m / temperature), then sharpened (FedBE eq. 4 and section 5.1).

    Args:
        sharpen: exponent on the mean, > 0.
        temperature: of each member, > 0.
    """

    sharpen: float
    temperature: float = 1.0

    def __post_init__(self) -> None:
        """Check the range."""
        if not self.sharpen > 0:
            raise ValueError(f"sharpen must be > 0, got {self.sharpen}")

    def __call__(self, logits: Tensor) -> Tensor:
        """Combine logits [M, N, C] into probabilities [N, C]."""
        return sharpen((logits / self.temperature).softmax(-1).mean(0), self.sharpen)


@dataclass(frozen=True, kw_only=True)
class MeanOfLogits:
    """p = softmax((1/M) sum_m z_m / temperature) (FedDF Algorithm 1, FedSDD section 3.2).

    Args:
        temperature: > 0; the student is then to be taught at the same.
    """

    temperature: float = 1.0

    def __post_init__(self) -> None:
        """Check the range."""
        if not self.temperature > 0:
            raise ValueError(f"temperature must be > 0, got {self.temperature}")

    def __call__(self, logits: Tensor) -> Tensor:
        """Combine logits [M, N, C] into probabilities [N, C]."""
        return (logits.mean(0) / self.temperature).softmax(-1)


def vote(logits: Tensor) -> Tensor:
    """Return the share of the members that choose each class, from logits [M, N, C] to [N, C].

    A tie goes to the class of the larger mean probability: half a vote is dealt out by the mean.
    """
    members, _, classes = logits.shape
    votes = torch.nn.functional.one_hot(logits.argmax(-1), classes).sum(0)
    return (votes + logits.softmax(-1).mean(0) / 2) / (members + 0.5)


def vote_in_order(logits: Tensor) -> Tensor:
    """Return the share of the members that choose each class, from logits [M, N, C] to [N, C].

    A tie goes to the class first in order, as in FedBE's released code (merge_logits, by scipy.stats.mode): less
    than half a vote is dealt out in the order of the classes.
    """
    members, _, classes = logits.shape
    votes = torch.nn.functional.one_hot(logits.argmax(-1), classes).sum(0)
    order = torch.linspace(0.5, 0.0, classes + 1, device=logits.device, dtype=logits.dtype)[:-1]
    return (votes + order) / (members + order.sum())


def combination(setting: Setting) -> MeanOfProbabilities | MeanOfLogits:
    """Return how a setting's ensembles combine; to sharpen a mean of logits is to lower its temperature."""
    if setting.combination == "logits":
        return MeanOfLogits(temperature=setting.member_temperature / setting.sharpen)
    return MeanOfProbabilities(sharpen=setting.sharpen, temperature=setting.member_temperature)


@dataclass(frozen=True)
class Ensemble:
    """Teachers, those of each architecture with a federation that runs them, and the rule that combines them."""

    parts: tuple[tuple[Stack, Federation], ...]
    combine: Combine

    @classmethod
    def of(cls, members: Stack, combine: Combine, federation: Federation) -> "Ensemble":
        """Return an ensemble of one architecture."""
        return cls(((members, federation),), combine)

    @property
    def members(self) -> Stack:
        """The teachers of the first architecture, mostly the only one."""
        return self.parts[0][0]

    def __len__(self) -> int:
        """Return the number of members M, of all architectures."""
        return sum(len(members) for members, _ in self.parts)

    def logits(self, data: Data) -> Tensor:
        """Return the members' logits [M, N, C] on a data set, architecture by architecture.

        Raises:
            ValueError: if the ensemble has no members.
        """
        if not len(self):
            raise ValueError("an ensemble without members cannot predict")
        with torch.no_grad():
            found = [federation.predict(members, data) for members, federation in self.parts if len(members)]
        return found[0] if len(found) == 1 else torch.cat(found)

    def __call__(self, data: Data) -> Tensor:
        """Return the ensemble's probabilities [N, C] on a data set.

        Raises:
            ValueError: if the ensemble has no members.
        """
        return self.combine(self.logits(data))


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
