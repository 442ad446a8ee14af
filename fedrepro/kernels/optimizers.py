"""The rules' optimizers of torch, without its compiler: importing that takes longer than a short training."""

import inspect
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from fedrepro.kernels.step import Adam, AdamW, Rule, Sgd

Kind = TypeVar("Kind", bound=torch.optim.Optimizer)


def eager(kind: type[Kind]) -> type[Kind]:
    """Return a kind of optimizer that does the same, and never imports torch's compiler.

    torch marks some of an optimizer's methods for `torch.compile`, and the first call of a marked one imports all
    of `torch._dynamo`: some 900 modules and more than a second of every process that trains. No optimizer is
    compiled here, so the functions behind the marks are used. Hooks and the profiler's names of steps stay.

    Args:
        kind: such as `torch.optim.SGD`; its options stay as they are, and none may be `differentiable`.
    """
    bare: dict[str, Any] = {name: inspect.unwrap(getattr(kind, name)) for name in ("add_param_group", "zero_grad")}
    bare["step"] = torch.no_grad()(inspect.unwrap(kind.step))
    return type(kind.__name__, (kind,), bare)


SGD, ADAM, ADAMW = eager(torch.optim.SGD), eager(torch.optim.Adam), eager(torch.optim.AdamW)


def optimizer_of(rule: Rule, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    """Return torch's optimizer of a rule; its learning rate is set anew before every step."""
    groups = [
        {"params": [p for p in parameters if p.ndim > 1], "weight_decay": rule.weight_decay},
        {"params": [p for p in parameters if p.ndim <= 1], "weight_decay": 0.0},
    ]
    if isinstance(rule, Sgd):
        return SGD(groups, lr=0.0, momentum=rule.momentum)
    assert isinstance(rule, Adam)  # `takes` has refused all others
    make = ADAMW if isinstance(rule, AdamW) else ADAM
    return make(groups, lr=0.0, betas=(rule.beta1, rule.beta2), eps=rule.eps)


def slots_of(rule: Rule) -> tuple[str, ...]:
    """Return torch's names of what a rule carries."""
    return ("momentum_buffer",) if isinstance(rule, Sgd) else ("exp_avg", "exp_avg_sq")


def resume(
    optimizer: torch.optim.Optimizer,
    rule: Rule,
    parameters: list[nn.Parameter],
    slots: list[list[Tensor]],
    done: int,
) -> None:
    """Put what was carried into an optimizer that has done so many steps."""
    if isinstance(rule, Sgd) and not rule.momentum:
        return
    for place, p in enumerate(parameters):
        optimizer.state[p] = {name: held[place] for name, held in zip(slots_of(rule), slots)}
        if isinstance(rule, Adam):
            optimizer.state[p]["step"] = torch.tensor(float(done))
