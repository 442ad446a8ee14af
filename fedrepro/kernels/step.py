"""What a training step does, as hashable values: a rule that moves the weights, and a loss.

Rates are data and stand apart, one for each step. A kernel that does not know a rule, a loss or one of their
options refuses it by name (`unknown`), and another one runs.

Shapes: S members, P parameters, B batch, C classes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

PROXIMAL_FORMS = ("squared", "fedbe_official")


@dataclass(frozen=True, kw_only=True)
class Proximal:
    """FedProx's pull towards the model w0 that training started from.

    "squared" adds (mu/2) ||w - w0||^2 over all trainable parameters to the loss (FedProx eq. 2), so mu (w - w0) to
    the gradient. "fedbe_official" is what FedBE's released code has: (mu/2) ||w - w0||, not squared, for each
    tensor whose name contains "weight"; that pulls with a constant force of mu/2, and not at all where w = w0.

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
class Rule:
    """What all rules share: how the gradient g comes about that moves the weights.

    g is the gradient of the loss, plus that of the proximal term, plus a correction if the kernel was given one
    (SCAFFOLD's); then its length over all parameters is cut to `clip`. Weight decay acts on weights only (tensors
    of two or more axes), not on biases or norm layers' parameters, as in FedBE's released code (for clients; its
    student decays all parameters).

    Args:
        weight_decay: lambda, >= 0.
        proximal: FedProx's pull towards the first weights.
        clip: largest length of g, g <- g min(1, clip / (||g|| + 1e-6)); 0 for no limit.
    """

    slots: ClassVar[int]  # numbers that the rule carries from step to step for each parameter

    weight_decay: float = 0.0
    proximal: Proximal = FREE
    clip: float = 0.0

    def __post_init__(self) -> None:
        """Check the ranges."""
        if not self.weight_decay >= 0:
            raise ValueError(f"weight_decay must be >= 0, got {self.weight_decay}")
        if not self.clip >= 0:
            raise ValueError(f"clip must be >= 0, got {self.clip}")


@dataclass(frozen=True, kw_only=True)
class Sgd(Rule):
    """v <- momentum v + g + lambda w; w <- w - rate v, with v_0 = 0. It carries v.

    Args:
        weight_decay, proximal, clip: see `Rule`.
        momentum: in [0, 1).
    """

    slots: ClassVar[int] = 1

    momentum: float = 0.0

    def __post_init__(self) -> None:
        """Check the ranges."""
        super().__post_init__()
        if not 0 <= self.momentum < 1:
            raise ValueError(f"momentum must be in [0, 1), got {self.momentum}")


@dataclass(frozen=True, kw_only=True)
class Adam(Rule):
    """Adam (Kingma and Ba 2015, Algorithm 1), with decay in the gradient: g <- g + lambda w. It carries m and v.

    m <- beta1 m + (1 - beta1) g; v <- beta2 v + (1 - beta2) g^2; in step t, counted from 1,
    w <- w - rate (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + eps).

    Args:
        weight_decay, proximal, clip: see `Rule`.
        beta1, beta2: in [0, 1); the paper's 0.9 and 0.999.
        eps: > 0; the paper's 1e-8.
    """

    slots: ClassVar[int] = 2

    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8

    def __post_init__(self) -> None:
        """Check the ranges."""
        super().__post_init__()
        for name in ("beta1", "beta2"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name} must be in [0, 1), got {getattr(self, name)}")
        if not self.eps > 0:
            raise ValueError(f"eps must be > 0, got {self.eps}")


@dataclass(frozen=True, kw_only=True)
class AdamW(Adam):
    """Adam whose decay is no part of the gradient: first w <- w - rate lambda w (Loshchilov, Hutter 2019)."""


@dataclass(frozen=True, kw_only=True)
class Term:
    """One part of a loss: the cross-entropy, at a temperature, of the logits z against targets of its own.

    weight * mean over the batch of -sum_c p_c log softmax(z / temperature)_c. The targets p are labels, or
    probabilities, which then are to have been made at that temperature. Its gradient is also that of KL(p || q),
    from which it differs by the entropy of p. A factor of temperature^2, where a paper has one, goes into the
    weight.

    Args:
        weight: any finite number.
        temperature: > 0.
    """

    weight: float = 1.0
    temperature: float = 1.0

    def __post_init__(self) -> None:
        """Check the ranges."""
        if not torch.isfinite(torch.tensor(self.weight)):
            raise ValueError(f"the weight of a term must be finite, got {self.weight}")
        if not self.temperature > 0:
            raise ValueError(f"temperature must be > 0, got {self.temperature}")


@dataclass(frozen=True, kw_only=True)
class Loss:
    """A sum of terms, each with targets of its own.

    Args:
        terms: one or more.
        scale: factor on the gradient, and not on the loss that is reported; 1/C is FedBE's released code, which
            averages over classes as well.
    """

    terms: tuple[Term, ...] = (Term(),)
    scale: float = 1.0

    def __post_init__(self) -> None:
        """Check that there is something to learn."""
        if not self.terms:
            raise ValueError("a loss needs at least one term, got none")

    def __call__(self, logits: Tensor, targets: Sequence[Tensor]) -> Tensor:
        """Return the loss of logits [B, C] against one target for each term: labels [B] int64 or [B, C]."""
        if len(targets) != len(self.terms):
            raise ValueError(f"a loss of {len(self.terms)} terms needs as many targets, got {len(targets)}")
        parts = []
        for term, target in zip(self.terms, targets):
            part = F.cross_entropy(logits if term.temperature == 1 else logits / term.temperature, target)
            parts.append(part if term.weight == 1 else part * term.weight)
        return parts[0] if len(parts) == 1 else torch.stack(parts).sum()


CROSS_ENTROPY = Loss()


@dataclass(frozen=True, kw_only=True)
class Step:
    """What every step of a training does; with the rates and the batches it determines the result.

    Args:
        rule: how the weights move.
        loss: what is to become small.
    """

    rule: Rule
    loss: Loss = CROSS_ENTROPY


Known = Mapping[type, frozenset[str] | set[str]]  # for each class the options that a kernel knows


def unknown(step: Step, known: Known) -> str:
    """Return what of a step a kernel does not know, by name, or "" if it knows all.

    Args:
        step: the step asked for.
        known: the classes that the kernel knows, each with its options; others may only have their default.
    """
    parts: tuple[Any, ...] = (step, step.rule, step.rule.proximal, step.loss, *step.loss.terms)
    for value in parts:
        if type(value) not in known:
            return f"it does not know {type(value).__name__}"
        for field in fields(value):
            own = getattr(value, field.name)
            if field.name not in known[type(value)] and own != field.default:
                return f"it does not know {type(value).__name__}'s {field.name} = {own!r}"
    return ""


EVERYTHING: Known = {
    kind: {field.name for field in fields(kind)} for kind in (Step, Sgd, Adam, AdamW, Proximal, Loss, Term)
}
