"""The stages that pick an ensemble's members from a round."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from fedrepro.core.rng import Streams
from fedrepro.core.stack import Stack, concatenate
from fedrepro.federation.federation import Federation


@dataclass(frozen=True)
class Aggregation:
    """What the server knows after local training.

    start: the models sent out [S]; clients: the models that came back [S]; shares: weights of the
    clients [1, S]; average: the aggregated model [1].
    """

    start: Stack
    clients: Stack
    shares: Tensor
    average: Stack


Teach = Callable[[Aggregation, Federation, Streams], Stack]


@dataclass(frozen=True)
class Average:
    """The aggregated model itself as a teacher."""

    def __call__(self, round: Aggregation, federation: Federation, streams: Streams) -> Stack:
        """Return the average, a stack of one."""
        return round.average


@dataclass(frozen=True)
class Clients:
    """The clients' models as teachers."""

    def __call__(self, round: Aggregation, federation: Federation, streams: Streams) -> Stack:
        """Return the S clients."""
        return round.clients


@dataclass(frozen=True)
class Nobody:
    """No teachers."""

    def __call__(self, round: Aggregation, federation: Federation, streams: Streams) -> Stack:
        """Return an empty stack."""
        return round.clients.take(slice(0, 0))


@dataclass(frozen=True)
class Union:
    """Several sources of teachers together, in the order given."""

    sources: tuple[Teach, ...]

    def __call__(self, round: Aggregation, federation: Federation, streams: Streams) -> Stack:
        """Return all teachers in one stack."""
        return concatenate([source(round, federation, streams) for source in self.sources])
