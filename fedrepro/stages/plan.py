"""Who takes part in a round, from which model, and how long.

Shapes: S clients of the round.
"""

from dataclasses import dataclass

import torch

from fedrepro.core.rng import Streams


@dataclass(frozen=True)
class Participants:
    """The clients of one round [S]: their numbers, the global model each starts from, and local epochs."""

    clients: tuple[int, ...]
    models: tuple[int, ...]
    epochs: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Sample:
    """Draw a share of the clients without replacement; all of them when participation is 1.

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

    def __call__(self, clients: int, streams: Streams) -> Participants:
        """Return this round's participants in ascending order of client number."""
        count = max(1, int(self.participation * clients + 0.5))
        chosen = torch.randperm(clients, generator=streams.torch("participants"))[:count].sort().values
        who = tuple(chosen.tolist())
        epochs = (self.local_epochs,) * count
        if self.uneven:
            epochs = tuple(
                int(torch.randint(1, self.local_epochs + 1, (1,), generator=streams.torch("local epochs", client)))
                for client in who
            )
        return Participants(who, (0,) * count, epochs)
