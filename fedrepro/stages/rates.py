"""Learning rates as values: within a round (per step) and over rounds.

Shapes: T steps.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


class Rates(Protocol):
    """Learning rates within a round."""

    def steps(self, count: int) -> Tensor:
        """Return the learning rate of each step, [T] float64."""


@dataclass(frozen=True, kw_only=True)
class Constant:
    """The same learning rate at every step."""

    lr: float

    def steps(self, count: int) -> Tensor:
        """Return the learning rate of each step, [T] float64."""
        return torch.full((count,), self.lr, dtype=torch.float64)


@dataclass(frozen=True, kw_only=True)
class Decaying:
    """A learning rate that shrinks by a factor from step to step (FedBE's Figure 5: 0.99).

    Args:
        lr: learning rate of the first step.
        decay: factor, in (0, 1]; 1 is `Constant`.
    """

    lr: float
    decay: float

    def steps(self, count: int) -> Tensor:
        """Return the learning rate of each step, [T] float64."""
        return self.lr * self.decay ** torch.arange(count, dtype=torch.float64)


@dataclass(frozen=True, kw_only=True)
class Stepped:
    """A learning rate that shrinks by a factor from step to step, and by another after every so many of them.

    Args:
        lr: learning rate of the first step.
        decay: factor from step to step, in (0, 1]; 1 for none.
        every: steps after which `factor` comes in, again and again; 0 for never.
        factor: in (0, 1]; 1-Ensemble of FedBE's released code has a tenth after every 30 epochs.
    """

    lr: float
    decay: float = 1.0
    every: int
    factor: float

    def steps(self, count: int) -> Tensor:
        """Return the learning rate of each step, [T] float64."""
        rates = Decaying(lr=self.lr, decay=self.decay).steps(count)
        if not self.every:
            return rates
        return rates * self.factor ** (torch.arange(count) // self.every).double()


@dataclass(frozen=True, kw_only=True)
class Cosine:
    """Cosine annealing to zero: (lr / 2) (1 + cos(pi t / T)) in step t = 0 ... T - 1 (FedDF: 1e-3, 10,000 steps).

    Args:
        lr: learning rate of the first step.
    """

    lr: float

    def steps(self, count: int) -> Tensor:
        """Return the learning rate of each step, [T] float64; a training that ends early takes its first ones."""
        return self.lr / 2 * (1 + torch.cos(math.pi * torch.arange(count, dtype=torch.float64) / max(count, 1)))


@dataclass(frozen=True, kw_only=True)
class Cyclical:
    """SWA's saw tooth: linear from `high` down to `low` within each cycle, then back up (FedBE 5.1).

    Args:
        high: learning rate at the first step of a cycle; FedBE 1e-3.
        low: learning rate at the last step of a cycle; FedBE 4e-4.
        cycle: steps per cycle, >= 1; FedBE 25.
    """

    high: float
    low: float
    cycle: int

    def steps(self, count: int) -> Tensor:
        """Return the learning rate of each step, [T] float64."""
        if self.cycle < 1:
            raise ValueError(f"cycle must be >= 1 step, got {self.cycle}")
        position = torch.arange(count, dtype=torch.float64) % self.cycle
        return self.high + (self.low - self.high) * position / max(self.cycle - 1, 1)


def _fedbe(progress: float, round: int) -> float:
    # FedBE B.1: 0.01 if r < 0.3 R, 0.001 if 0.3 R <= r < 0.6 R, and 0.0001 otherwise.
    return 1.0 if progress < 0.3 else 0.1 if progress < 0.6 else 0.01


def _fedbe_official(progress: float, round: int) -> float:
    # FedBE's released code: half at round 0, then a fifth, a tenth and a hundredth after 30, 60 and 90 %.
    if round == 0:
        return 0.5
    return 0.01 if progress > 0.9 else 0.1 if progress > 0.6 else 0.2 if progress > 0.3 else 1.0


ROUND_SCHEDULES: dict[str, Callable[[float, int], float]] = {
    "constant": lambda progress, round: 1.0,
    "fedbe": _fedbe,
    "fedbe_official": _fedbe_official,
    # Centralised training: a tenth after half of the epochs, a hundredth after three quarters.
    "halves": lambda progress, round: 1.0 if progress < 0.5 else 0.1 if progress < 0.75 else 0.01,
}


def round_factor(schedule: str, *, round: int, rounds: int) -> float:
    """Return the factor on the clients' learning rate in one round.

    Args:
        schedule: a name of `ROUND_SCHEDULES`.
        round: the round, from 0.
        rounds: how many rounds the run has, >= 1.

    Raises:
        ValueError: if the schedule has no such name.
    """
    if schedule not in ROUND_SCHEDULES:
        raise ValueError(f"lr_schedule must be one of {sorted(ROUND_SCHEDULES)}, got {schedule!r}")
    return ROUND_SCHEDULES[schedule](round / rounds, round)
