"""What a run carries from one round to the next."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor

from fedrepro.core.stack import Stack

Memory = Mapping[str, Tensor | Stack]


@dataclass(frozen=True)
class State:
    """What a run carries from round to round.

    round: rounds done; models: the global models [K] of the first architecture, mostly the only one; memory:
    further tensors and stacks by name, such as momentum; further: where there are several architectures, the
    states of the others.
    """

    round: int
    models: Stack
    memory: Memory = field(default_factory=dict)
    further: "tuple[State, ...]" = ()

    @property
    def worlds(self) -> "tuple[State, ...]":
        """One state for each architecture, the first one's first."""
        return (self, *self.further)
