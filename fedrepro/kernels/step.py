"""What a training step does, as a value."""

from dataclasses import dataclass

from torch import Tensor

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
