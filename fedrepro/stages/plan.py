"""The first stage, plan: who takes part in a round, from which model, and how long.

Shapes: S clients of the round.
"""

from dataclasses import dataclass

import torch

from fedrepro.core.rng import Streams
from fedrepro.core.setting import REQUIRED, SHARE, Option, Setting, at_least, declare
from fedrepro.federation.federation import Federation
from fedrepro.stages.round import Participants, Round

declare(
    participation=Option("share of the clients that take part in a round", neutral=1.0, example=0.5, must=SHARE),
    local_epochs=Option("passes over a client's images in a round", neutral=REQUIRED, example=2, must=at_least(1)),
    uneven_epochs=Option(
        "whether each client makes from 1 to `local_epochs` passes, drawn for each round",
        neutral=False,
        example=True,
    ),
)


@dataclass(frozen=True, kw_only=True)
class Sample:
    """Draw a share of the clients without replacement; all of them when participation is 1.

    Where there are several architectures, the draw is one over the clients of all, and each world keeps its own.

    Args:
        participation: share of the clients that take part, in (0, 1].
        local_epochs: passes over its own data that each client makes, >= 1.
        uneven: stragglers: each client makes a number of passes that is drawn anew for each round, uniformly
            from 1 to `local_epochs` (FedBE 5.3: from (0, 20]).
    """

    participation: float
    local_epochs: int
    uneven: bool = False

    def __post_init__(self) -> None:
        """Check the ranges."""
        if not 0 < self.participation <= 1:
            raise ValueError(f"participation must be in (0, 1], got {self.participation}")
        if self.local_epochs < 1:
            raise ValueError(f"local_epochs must be >= 1, got {self.local_epochs}")

    def __call__(self, round: Round, federation: Federation, streams: Streams) -> Participants:
        """Return this round's participants in ascending order of client number."""
        clients = federation.clients
        count = max(1, int(self.participation * clients + 0.5))
        chosen = torch.randperm(clients, generator=streams.torch("participants"))[:count].sort().values
        who = tuple(client for client in chosen.tolist() if client in set(federation.numbers))
        epochs = (self.local_epochs,) * len(who)
        if self.uneven:
            epochs = tuple(
                int(torch.randint(1, self.local_epochs + 1, (1,), generator=streams.torch("local epochs", client)))
                for client in who
            )
        return Participants(who, (0,) * len(who), epochs)


def sample(setting: Setting) -> Sample:
    """Return the plan of a setting."""
    return Sample(
        participation=setting.participation, local_epochs=setting.local_epochs, uneven=setting.uneven_epochs
    )
