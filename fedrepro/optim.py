"""Learning rates as values: within a round (per step) and over rounds.

Shapes: T steps.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


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


def _paper(progress: float, round: int) -> float:
    # FedBE B.1: 0.01 if r < 0.3 R, 0.001 if 0.3 R <= r < 0.6 R, and 0.0001 otherwise.
    return 1.0 if progress < 0.3 else 0.1 if progress < 0.6 else 0.01


def _official(progress: float, round: int) -> float:
    # FedBE's released code: half at round 0, then a fifth, a tenth and a hundredth after 30, 60 and 90 %.
    if round == 0:
        return 0.5
    return 0.01 if progress > 0.9 else 0.1 if progress > 0.6 else 0.2 if progress > 0.3 else 1.0


ROUND_SCHEDULES: dict[str, Callable[[float, int], float]] = {
    "constant": lambda progress, round: 1.0,
    "paper": _paper,
    "official": _official,
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


PROXIMAL_FORMS = ("squared", "official")


@dataclass(frozen=True, kw_only=True)
class Proximal:
    """FedProx's pull towards the model w0 that training started from.

    "squared" adds (mu/2) ||w - w0||^2 over all trainable parameters to the loss (FedProx eq. 2), so mu (w - w0) to
    the gradient. "official" is what FedBE's released code has: (mu/2) ||w - w0||, not squared, for each tensor
    whose name contains "weight"; that pulls with a constant force of mu/2, and not at all where w = w0.

    Args:
        mu: strength, >= 0; 0 pulls nowhere.
        form: a name of `PROXIMAL_FORMS`.
    """

    mu: float
    form: str = "squared"

    def __post_init__(self) -> None:
        """Check the ranges."""
        if not self.mu >= 0:
            raise ValueError(f"mu must be >= 0, got {self.mu}")
        if self.form not in PROXIMAL_FORMS:
            raise ValueError(f"the proximal form must be one of {PROXIMAL_FORMS}, got {self.form!r}")


FREE = Proximal(mu=0.0)


@dataclass(frozen=True, kw_only=True)
class Sgd:
    """SGD as the kernels run it: v <- momentum v + g + weight_decay w; w <- w - lr v.

    g is the gradient of the loss, of the proximal term if there is one, and a correction if the kernel was given
    one (SCAFFOLD's).

    Weight decay acts on weights only (tensors of two or more axes), not on biases or BatchNorm
    parameters, as in FedBE's released code (for clients; its student decays all parameters).

    Args:
        lr: learning rate per step, [T] (the same for every member).
        momentum: in [0, 1).
        weight_decay: >= 0.
        proximal: FedProx's pull towards the first weights.
    """

    lr: Tensor
    momentum: float
    weight_decay: float
    proximal: Proximal = FREE

    def __post_init__(self) -> None:
        """Check the ranges."""
        if not 0 <= self.momentum < 1:
            raise ValueError(f"momentum must be in [0, 1), got {self.momentum}")
        if self.weight_decay < 0:
            raise ValueError(f"weight_decay must be >= 0, got {self.weight_decay}")
        if self.lr.ndim != 1 or bool((self.lr < 0).any()):
            raise ValueError("lr must be a vector [steps] of values >= 0")
