"""The fifth stage, teach: an ensemble's members, picked from a round. Sampled ones are in `posterior`.

Shapes: S clients, M members.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from fedrepro.core.rng import Streams
from fedrepro.core.setting import Option, Setting, declare
from fedrepro.core.stack import Stack, concatenate
from fedrepro.federation.federation import Federation
from fedrepro.stages.posterior import posterior
from fedrepro.stages.round import Round, Teach, check, needs_clients

declare(
    teachers=Option(
        'FedBE\'s teachers: some of "average", "clients" and "samples", joined by "+"',
        neutral="average+clients+samples",
        example="average",
    )
)


@dataclass(frozen=True)
class Nobody:
    """No teachers."""

    needs_clients: ClassVar[bool] = False

    def __call__(self, round: Round, federation: Federation, streams: Streams) -> Stack:
        """Return an empty stack."""
        return round.average.take(slice(0, 0))


@dataclass(frozen=True)
class Average:
    """The aggregated models themselves as teachers."""

    needs_clients: ClassVar[bool] = False

    def __call__(self, round: Round, federation: Federation, streams: Streams) -> Stack:
        """Return the averages [K]."""
        return round.average


@dataclass(frozen=True)
class Clients:
    """The clients' models as teachers."""

    def __call__(self, round: Round, federation: Federation, streams: Streams) -> Stack:
        """Return the S clients."""
        return round.clients


@dataclass(frozen=True)
class Union:
    """Several sources of teachers together, in the order given."""

    sources: tuple[Teach, ...]

    @property
    def needs_clients(self) -> bool:
        """Whether one of the sources does."""
        return any(map(needs_clients, self.sources))

    def check(self, federation: Federation) -> None:
        """Refuse what one of the sources refuses."""
        for source in self.sources:
            check(source, federation)

    def __call__(self, round: Round, federation: Federation, streams: Streams) -> Stack:
        """Return all teachers in one stack."""
        return concatenate([source(round, federation, streams) for source in self.sources])


def teachers(setting: Setting) -> Union:
    """Return FedBE's teachers of a setting.

    Raises:
        ValueError: unless `teachers` names some of average, clients and samples, each once.
    """
    sources: dict[str, Callable[[], Teach]] = {
        "average": Average,
        "clients": Clients,
        "samples": lambda: posterior(setting),
    }
    chosen = setting.teachers.split("+")
    if sorted(chosen) != sorted(set(chosen) & set(sources)):
        raise ValueError(f"teachers must be some of {list(sources)} joined by +, got {setting.teachers!r}")
    return Union(tuple(sources[name]() for name in chosen))
