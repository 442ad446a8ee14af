"""The plain kernel: one model at a time, with nn.Module and torch.optim. Every other kernel is held to it.

Shapes: S members trained, M members, N images, C classes, T steps, B batch, P parameters.
"""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedrepro.core.stack import Stack
from fedrepro.data.data import Data
from fedrepro.kernels.batches import BatchPlan
from fedrepro.kernels.inputs import inputs
from fedrepro.kernels.step import Proximal, Sgd
from fedrepro.models.architecture import Architecture

PRECISIONS = ("float32", "bfloat16", "float64")
TINY = 1e-30  # in place of a length of zero, whose direction is zero as well


class NonFiniteLossError(ArithmeticError):
    """A loss, or a weight after the last step, became infinite or NaN; `member` tells of which model."""

    def __init__(self, member: int) -> None:
        super().__init__(f"the loss of member {member} is not finite")
        self.member = member


@dataclass(frozen=True)
class Trained:
    """What training returns.

    stack: the final models [S]; average: the mean of each member's collected models [S] (a copy of `stack`
    when none was collected); velocity: momentum buffers [S, P]; loss: mean loss over all steps [S].
    """

    stack: Stack
    average: Stack
    velocity: Tensor
    loss: Tensor


def _autocast(device: torch.device, precision: str):
    if precision not in PRECISIONS:
        raise ValueError(f"precision must be one of {PRECISIONS}, got {precision!r}")
    return torch.autocast(device.type, torch.bfloat16) if precision == "bfloat16" else nullcontext()


def _module(architecture: Architecture, like: Tensor) -> nn.Module:
    module = architecture.make().to(device=like.device, dtype=like.dtype)
    return module.to(memory_format=torch.channels_last)


def train(
    architecture: Architecture,
    start: Stack,
    data: Data,
    targets: Tensor,
    plan: BatchPlan,
    sgd: Sgd,
    *,
    precision: str = "float32",
    collect: Tensor | None = None,
    velocity: Tensor | None = None,
    correction: Tensor | None = None,
    loss_scale: float = 1.0,
    before_step: Callable[[], object] = lambda: None,
) -> Trained:
    """Train every member of a stack on its own batches.

    The loss is cross-entropy, the mean over the batch of -sum_c p_c log q_c (FedBE eq. 1 for labels, section 4
    for pseudo-labels). Convolutions may run in bfloat16; weights, statistics, loss and update are float32.
    A proximal term and a correction act on the gradient, and are no part of the loss that is returned.

    Args:
        architecture: the network of all members.
        start: S initial models on the data's device.
        data: the images that the plan points into.
        targets: labels [N] int64, or probabilities [N, C].
        plan: batches of each member, on any device.
        sgd: learning rates [T], momentum, weight decay, proximal term.
        precision: "float32", "bfloat16", or "float64" (then `start` is float64).
        collect: [T] bool, steps after which the weights enter the running mean (SWA).
        velocity: momentum buffers [S, P] to go on from; zero when not given.
        correction: [S, P], added to each member's gradient at every step: c - c_i of SCAFFOLD (Algorithm 1).
        loss_scale: factor on the loss; 1 is the paper's, 1/C that of FedBE's released code.
        before_step: called before every step; what it raises ends the training.

    Returns:
        Final and averaged models, momentum buffers and mean losses.

    Raises:
        NonFiniteLossError: naming the first member whose loss is infinite or NaN.
    """
    module = _module(architecture, start.params).train()
    parameters = list(module.parameters())
    plan = plan.to(start.params.device)
    counts = plan.mask.sum(2).tolist()  # [S, T], read once: no step waits for the device
    rates = sgd.lr.tolist()
    finals: list[Stack] = []
    averages: list[Stack] = []
    velocities: list[Tensor] = []
    losses: list[Tensor] = []
    for member in range(len(start)):
        start.load(member, module)
        optimizer = torch.optim.SGD(
            [
                {"params": [p for p in parameters if p.ndim > 1], "weight_decay": sgd.weight_decay},
                {"params": [p for p in parameters if p.ndim <= 1], "weight_decay": 0.0},
            ],
            lr=0.0,
            momentum=sgd.momentum,
        )
        if velocity is not None and sgd.momentum:
            for p, held in zip(parameters, _like(parameters, start, velocity[member])):
                optimizer.state[p]["momentum_buffer"] = held
        anchors = [p.detach().clone() for p in parameters] if sgd.proximal.mu else []
        shifts = _like(parameters, start, correction[member]) if correction is not None else []
        total = torch.zeros((), dtype=start.params.dtype, device=start.params.device)
        mean, collected = torch.zeros_like(start.params[member]), 0
        for step, count in enumerate(counts[member]):
            if count == 0:
                continue
            before_step()
            index = plan.index[member, step, :count]
            x = inputs(
                data,
                index,
                dtype=start.params.dtype,
                shift=plan.shift[member, step, :count],
                flip=plan.flip[member, step, :count],
                pad=plan.pad,
            )
            with _autocast(x.device, precision):
                logits = module(x)
            loss = F.cross_entropy(logits.to(start.params.dtype), targets[index])
            optimizer.zero_grad(set_to_none=True)
            (loss * loss_scale).backward()
            gradients = [p.grad for p in parameters if p.grad is not None]
            if sgd.proximal.mu:
                _pull(module, gradients, anchors, sgd.proximal)
            if shifts:
                for gradient, shift in zip(gradients, shifts, strict=True):
                    gradient += shift
            for group in optimizer.param_groups:
                group["lr"] = rates[step]
            optimizer.step()
            total += loss.detach()
            if collect is not None and bool(collect[step]):
                collected += 1
                mean += (_flat(parameters) - mean) / collected
        total /= max(sum(count > 0 for count in counts[member]), 1)
        final = Stack.of(module)
        if not bool(total.isfinite() & final.params.isfinite().all()):
            raise NonFiniteLossError(member)
        finals.append(final)
        averages.append(Stack(final.layout, mean[None], final.buffers, final.counters) if collected else final)
        momenta = [optimizer.state[p].get("momentum_buffer", torch.zeros_like(p)) for p in parameters]
        velocities.append(_flat(momenta))
        losses.append(total)
    return Trained(_join(finals), _join(averages), torch.stack(velocities), torch.stack(losses))


def _like(parameters: list[nn.Parameter], stack: Stack, row: Tensor) -> list[Tensor]:
    """Return a copy of a row [P], cut into the shapes and memory formats of the parameters."""
    views = stack.layout.views(row, stack.layout.params)
    return [torch.empty_like(p).detach().copy_(view) for p, (_, view) in zip(parameters, views)]


@torch.no_grad()
def _pull(module: nn.Module, gradients: list[Tensor], anchors: list[Tensor], proximal: Proximal) -> None:
    """Add the gradient of the proximal term to the parameters' own."""
    for (name, p), gradient, anchor in zip(module.named_parameters(), gradients, anchors, strict=True):
        away = p - anchor
        if proximal.form == "squared":
            gradient += proximal.mu * away
        elif "weight" in name:
            gradient += proximal.mu / 2 * away / away.norm().clamp_min(TINY)


def _flat(tensors: list[Tensor] | list[nn.Parameter]) -> Tensor:
    return torch.cat([t.detach().reshape(-1) for t in tensors])


def _join(stacks: list[Stack]) -> Stack:
    layout = stacks[0].layout
    parts = [[getattr(s, name) for s in stacks] for name in ("params", "buffers", "counters")]
    return Stack(layout, *(torch.cat(part) for part in parts))


@torch.no_grad()
def predict(
    architecture: Architecture,
    stack: Stack,
    data: Data,
    *,
    precision: str = "float32",
    batch_size: int = 250,
    before_step: Callable[[], object] = lambda: None,
) -> Tensor:
    """Run every member over a data set in evaluation mode, without augmentation.

    Args:
        architecture: the network of all members.
        stack: M models on the data's device.
        data: N images.
        precision: as in `train`.
        batch_size: images per forward pass; the result depends on it only by rounding.
        before_step: called before every forward pass; what it raises ends the work.

    Returns:
        Logits [M, N, C] in the stack's dtype.
    """
    module = _module(architecture, stack.params).eval()
    out = stack.params.new_empty(len(stack), len(data), architecture.classes)
    batches = torch.arange(len(data), device=data.images.device).split(batch_size)
    for member in range(len(stack)):
        stack.load(member, module)
        for index in batches:
            before_step()
            x = inputs(data, index, dtype=stack.params.dtype)
            with _autocast(x.device, precision):
                out[member, index] = module(x).to(out.dtype)
    return out


@torch.no_grad()
def recalibrate(
    architecture: Architecture,
    stack: Stack,
    data: Data,
    *,
    precision: str = "float32",
    batch_size: int = 250,
    before_step: Callable[[], object] = lambda: None,
) -> Stack:
    """Recompute the BatchNorm statistics of every member by one pass over a data set.

    Needed after any change of the weights that did not go through training, such as SWA's average. The
    statistics are the plain mean over batches (cumulative averaging), images are not augmented.

    Returns:
        The same parameters with new buffers; networks without BatchNorm come back unchanged.
    """
    module = _module(architecture, stack.params)
    norms = [m for m in module.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    if not norms or not len(stack):
        return stack
    batches = torch.arange(len(data), device=data.images.device).split(batch_size)
    done = []
    for member in range(len(stack)):
        stack.load(member, module)
        module.train()
        for norm in norms:
            norm.reset_running_stats()
            norm.momentum = None
        for index in batches:
            before_step()
            with _autocast(stack.params.device, precision):
                module(inputs(data, index, dtype=stack.params.dtype))
        fresh = Stack.of(module)
        done.append(Stack(fresh.layout, stack.params[member : member + 1], fresh.buffers, fresh.counters))
    return _join(done)
