"""Randomness: one generator per (seed, purpose, round, client), never a global seed.

Every random decision has its own stream, so FedBE's extra draws cannot move the next round's clients, the
result does not depend on the order or the number of workers, and a resumed run needs no generator state:
the stream of round 17 is derived again from its name.
"""

import hashlib
from dataclasses import dataclass

import numpy as np
import torch


def derive(seed: int, purpose: str, *, round: int = 0, client: int = 0) -> int:
    """Derive the 63-bit seed of one stream from its name.

    Args:
        seed: the run's seed, >= 0.
        purpose: what the stream is for, such as "batches" or "posterior".
        round: communication round, from 0.
        client: client number, from 0.

    Returns:
        An integer in [0, 2**63), the first bytes of a SHA-256 over the name.

    Raises:
        ValueError: if the seed is negative.
    """
    if seed < 0:
        raise ValueError(f"seed must be >= 0, got {seed}")
    name = f"{seed}/{purpose}/{round}/{client}".encode()
    return int.from_bytes(hashlib.sha256(name).digest()[:8], "big") >> 1


def generator(seed: int, purpose: str, *, round: int = 0, client: int = 0) -> torch.Generator:
    """Return a CPU torch generator for one stream; see `derive`."""
    return torch.Generator().manual_seed(derive(seed, purpose, round=round, client=client))


def numpy_generator(seed: int, purpose: str, *, round: int = 0, client: int = 0) -> np.random.Generator:
    """Return a numpy generator for one stream; see `derive`."""
    return np.random.default_rng(derive(seed, purpose, round=round, client=client))


@dataclass(frozen=True)
class Streams:
    """The random streams of one round of one run."""

    seed: int
    round: int = 0

    def torch(self, purpose: str, client: int = 0) -> torch.Generator:
        """Return the torch generator of this round for a purpose (and a client)."""
        return generator(self.seed, purpose, round=self.round, client=client)

    def numpy(self, purpose: str, client: int = 0) -> np.random.Generator:
        """Return the numpy generator of this round for a purpose (and a client)."""
        return numpy_generator(self.seed, purpose, round=self.round, client=client)
