"""The plain kernel: one model at a time, with nn.Module and torch.optim. Every other kernel is held to it.

Shapes: S members trained, M members, N images, C classes, T steps, B batch, P parameters.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from itertools import accumulate

import torch
from torch import Tensor, nn

from fedrepro.core.stack import Stack, concatenate, flat
from fedrepro.data.data import Data
from fedrepro.kernels.batches import BatchPlan, check_rates, cuts
from fedrepro.kernels.inputs import inputs
from fedrepro.kernels.optimizers import optimizer_of, resume, slots_of
from fedrepro.kernels.step import EVERYTHING, Proximal, Step, unknown
from fedrepro.kernels.trained import Carried, Trained
from fedrepro.models.architecture import Architecture

PRECISIONS = ("float32", "bfloat16", "float64")
TINY = 1e-30  # in place of a length of zero, whose direction is zero as well


def takes(
    architecture: Architecture,
    device: torch.device,
    precision: str,
    step: Step | None = None,
    data: Data | None = None,
) -> str:
    """Return "" if this kernel can do the work, otherwise the reason why it cannot.

    Args:
        architecture: the network.
        device: where it is to run.
        precision: see `train`.
        step: what a step of training does; None where nothing is trained.
        data: the images; None where they are not known yet.
    """
    if precision not in PRECISIONS:
        return f"precision must be one of {PRECISIONS}, got {precision!r}"
    return unknown(step, EVERYTHING) if step is not None else ""


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
    targets: Sequence[Tensor],
    plan: BatchPlan,
    step: Step,
    rates: Tensor,
    *,
    precision: str = "float32",
    collect: Tensor | None = None,
    carried: Carried | None = None,
    correction: Tensor | None = None,
    before_step: Callable[[], object] = lambda: None,
) -> Trained:
    """Train every member of a stack on its own batches.

    The loss is cross-entropy, the mean over the batch of -sum_c p_c log q_c (FedBE eq. 1 for labels, section 4
    for pseudo-labels), or a sum of such terms. Convolutions may run in bfloat16; weights, statistics, loss and
    update are float32. A proximal term and a correction act on the gradient, and are no part of the loss that is
    returned. A training may be cut between two steps: plan, rates and `collect` of the rest, with the models so
    far as `start` and what they carry, lead to the same bits.

    Args:
        architecture: the network of all members.
        start: S initial models on the data's device.
        data: the images that the plan points into.
        targets: for each term of the loss labels [N] int64, or probabilities [N, C].
        plan: batches of each member, on any device.
        step: the rule and the loss.
        rates: learning rate of each step, [T] on the CPU.
        precision: "float32", "bfloat16", or "float64" (then `start` is float64).
        collect: [T] bool, steps after which the weights enter the running mean (SWA).
        carried: what an earlier part of the training handed on; it is not written to.
        correction: [S, P], added to each member's gradient at every step: c - c_i of SCAFFOLD (Algorithm 1).
        before_step: called before every step; what it raises ends the training.

    Returns:
        Final and averaged models, mean losses, which members are finite, and what a next part needs.

    Raises:
        ValueError: for an unknown rule or precision, or targets that do not fit the loss.
    """
    if reason := takes(architecture, start.params.device, precision, step):
        raise ValueError(reason)
    check_rates(rates, plan)
    module = _module(architecture, start.params).train()
    parameters = list(module.parameters())
    plan = plan.to(start.params.device)
    counts = plan.mask.sum(2).tolist()  # [S, T], read once: no step waits for the device
    lrs, seeds = rates.tolist(), plan.noise.tolist()
    carried = carried if carried is not None else Carried.fresh(start, step.rule)
    finals: list[Stack] = []
    after: list[Carried] = []
    with _own_noise(architecture, start.params.device) as sow:
        for member in range(len(start)):
            start.load(member, module)
            slots, total = carried.slots[member], carried.total[member].clone()
            mean, collected = carried.mean[member].clone(), int(carried.collected[member])
            done = int(carried.steps[member])
            optimizer = optimizer_of(step.rule, parameters)
            if done:
                resume(optimizer, step.rule, parameters, [_like(parameters, start, slot) for slot in slots], done)
            anchors = _like(parameters, start, carried.anchor[member]) if step.rule.proximal.mu else []
            shifts = _like(parameters, start, correction[member]) if correction is not None else []
            for number, count in enumerate(counts[member]):
                if count == 0:
                    continue
                before_step()
                sow(seeds[member][number])
                index = plan.index[member, number, :count]
                x = inputs(
                    data,
                    index,
                    dtype=start.params.dtype,
                    shift=plan.shift[member, number, :count],
                    flip=plan.flip[member, number, :count],
                    pad=plan.pad,
                )
                with _autocast(x.device, precision):
                    logits = module(x)
                loss = step.loss(logits.to(start.params.dtype), [target[index] for target in targets])
                optimizer.zero_grad(set_to_none=True)
                (loss * step.loss.scale).backward()
                gradients = [p.grad for p in parameters if p.grad is not None]
                if step.rule.proximal.mu:
                    _pull(module, gradients, anchors, step.rule.proximal)
                if shifts:
                    for gradient, shift in zip(gradients, shifts, strict=True):
                        gradient += shift
                if step.rule.clip:
                    nn.utils.clip_grad_norm_(parameters, step.rule.clip)
                for group in optimizer.param_groups:
                    group["lr"] = lrs[number]
                optimizer.step()
                done += 1
                total += loss.detach()
                if collect is not None and bool(collect[number]):
                    collected += 1
                    mean += (flat(parameters) - mean) / collected
            finals.append(Stack.of(module))
            held = [flat([optimizer.state[p].get(name, torch.zeros_like(p)) for p in parameters])
                    for name in slots_of(step.rule)]  # fmt: skip
            own = torch.stack(held) if done else slots
            counted = (carried.steps.new_tensor(number) for number in (done, collected))
            after.append(Carried(own, next(counted), total, mean, next(counted), carried.anchor[member]))
    return Trained.of(concatenate(finals), Carried.stacked(after))


@contextmanager
def _own_noise(architecture: Architecture, device: torch.device) -> Iterator[Callable[[int], object]]:
    """Let a network that draws random numbers do so from a step's own seed; the global state stays."""
    if not architecture.random:
        yield lambda seed: None
        return
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        yield torch.manual_seed


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

    Needed after any change of the weights that did not go through training, such as SWA's average. The statistics
    are the mean over batches by their size; a last batch of one image joins the one before. Nothing is random.

    Returns:
        The same parameters with new buffers; networks without BatchNorm come back unchanged.
    """
    module = _module(architecture, stack.params).eval()
    norms = [m for m in module.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    if not norms or not len(stack):
        return stack
    batches = torch.arange(len(data), device=data.images.device).split(sizes := cuts(len(data), batch_size))
    shares = [size / seen for size, seen in zip(sizes, accumulate(sizes))]
    done = []
    for member in range(len(stack)):
        stack.load(member, module)
        for norm in norms:
            norm.train().reset_running_stats()
        for index, share in zip(batches, shares):
            before_step()
            for norm in norms:
                norm.momentum = share
            with _autocast(stack.params.device, precision):
                module(inputs(data, index, dtype=stack.params.dtype))
        fresh = Stack.of(module)
        done.append(Stack(fresh.layout, stack.params[member : member + 1], fresh.buffers, fresh.counters))
    return concatenate(done)
