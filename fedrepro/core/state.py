"""What a run carries from one round to the next."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor

from fedrepro.core.stack import Stack

Memory = Mapping[str, Tensor]


@dataclass(frozen=True)
class State:
    """What a run carries from round to round.

    round: rounds done; models: the global models [K]; memory: further tensors by name, such as momentum.
    """

    round: int
    models: Stack
    memory: Memory = field(default_factory=dict)
