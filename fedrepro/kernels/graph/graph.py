"""The graph kernel: members train side by side on CUDA, each step replayed from a recorded CUDA graph.

It takes any network without random layers. On the CPU the same steps run without recording, as a rehearsal;
`plain` is as fast there.

Shapes: S members trained, M members, N images, C classes, T steps, B batch, P parameters.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import lru_cache

import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedrepro.core.stack import Layout, Stack
from fedrepro.data.data import Data
from fedrepro.kernels.batches import BatchPlan, check_rates, cuts, share_out
from fedrepro.kernels.graph import sessions
from fedrepro.kernels.graph.lanes import Form, Lane
from fedrepro.kernels.graph.places import autocast, places, state_views
from fedrepro.kernels.graph.sessions import LANES, StackMemoryError, fork, here, streams
from fedrepro.kernels.inputs import Pixels
from fedrepro.kernels.plain import PRECISIONS
from fedrepro.kernels.step import Adam, AdamW, Known, Loss, Proximal, Sgd, Step, Term, unknown
from fedrepro.kernels.trained import Carried, Trained
from fedrepro.models.architecture import Architecture

__all__ = ["StackMemoryError", "predict", "recalibrate", "takes", "train"]

WORTH = 6  # steps of one batch size from which recording it is cheaper than running it
TURN = 4  # steps that a lane queues before the next lane's turn
SIDE = 4  # members that predict side by side: their large batches fill a device sooner


ADAM = {"weight_decay", "proximal", "clip", "beta1", "beta2", "eps"}
KNOWN: Known = {
    Step: {"rule", "loss"},
    Loss: {"terms", "scale"},
    Term: {"weight", "temperature"},
    Proximal: {"mu", "form"},
    Sgd: {"weight_decay", "proximal", "clip", "momentum"},
    Adam: ADAM,
    AdamW: ADAM,
}


def takes(
    architecture: Architecture,
    device: torch.device,
    precision: str,
    step: Step | None = None,
    data: Data | None = None,
) -> str:
    """Return "" if this kernel can do the work, otherwise the reason why it cannot; see `kernels.plain.takes`."""
    if device.type not in ("cpu", "cuda"):
        return f"graph runs on cuda or cpu, not on {device.type}"
    if precision not in PRECISIONS:
        return f"precision must be one of {PRECISIONS}, got {precision!r}"
    return _layers(architecture) or (unknown(step, KNOWN) if step is not None else "")


@lru_cache(maxsize=256)
def _layers(architecture: Architecture) -> str:
    """Return what of a network a recording cannot hold, or ""."""
    for layer in architecture.make().modules():
        if isinstance(layer, nn.SyncBatchNorm):
            return "SyncBatchNorm talks to other processes"
        if isinstance(layer, nn.modules.batchnorm._BatchNorm) and layer.momentum is None:
            return f"{type(layer).__name__} with momentum None reads its counter at every step"
    return f"{architecture.name} draws random numbers at every step" if architecture.random else ""


def _check(architecture: Architecture, device: torch.device, precision: str, step: Step | None = None) -> None:
    reason = takes(architecture, device, precision, step)
    if reason:
        raise ValueError(reason)


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
    chunk: int | None = None,
) -> Trained:
    """Train every member of a stack on its own batches; see `kernels.plain.train`.

    Args:
        architecture, start, data, targets, step, rates, precision, collect, carried, correction: as there.
        plan: best on the CPU: it is read there once, before the first step.
        chunk: members side by side; when not given, up to 16, or as many as the memory allows.

    Returns:
        As there.

    Raises:
        StackMemoryError: if the device has no memory for `chunk` members, or for one.
        ValueError: for a network, a precision, a rule or a loss that `takes` refuses.
    """
    device = start.params.device
    _check(architecture, device, precision, step)
    check_rates(rates, plan)
    filled = plan.mask.sum(2)
    order = torch.argsort((filled == 0).to(torch.int8), dim=1, stable=True)  # [S, T], steps taken come first
    counts = [[size for size in row if size] for row in filled.tolist()]
    flagged = collect.tolist() if collect is not None else [False] * len(plan)
    taken = [[flagged[number] for number in row] for row in order.tolist()]  # [S, T] in the new order
    lrs = rates.to(start.params.dtype)[order.to(rates.device)].to(device)
    plan = _reordered(plan, order)
    carried = carried if carried is not None else Carried.fresh(start, step.rule)
    before = carried.collected.tolist()
    end, after = _empty(start), carried.copied()
    if isinstance(step.rule, Sgd) and not step.rule.momentum:
        carried = replace(
            carried, slots=torch.zeros_like(carried.slots)
        )  # it moves nothing, and is carried no more
    form = Form.of(architecture, start, data, targets, plan, step, precision, correction is not None)
    plan = plan.to(device)

    def work(lane: Lane, members: list[int]) -> Iterator[None]:
        for member in members:
            lane.load(start, member, carried, correction, plan, lrs)
            collected = before[member]
            for size, wanted in zip(counts[member], taken[member]):
                lane.step(size)
                if wanted:
                    collected += 1
                    lane.collect(collected)
                yield
            lane.unload(end, after, member, steps=len(counts[member]), collected=collected)

    with torch.no_grad(), here(device):
        try:
            session = sessions.session(form)
            lanes, queues = _lanes(session, counts, chunk)
            session.ground.fill(data, targets)
            with fork(device):
                busy = [(lane, work(lane, members)) for lane, members in zip(lanes, queues)]
                while busy:
                    busy = [(lane, steps) for lane, steps in busy if _turn(lane, steps)]
        except BaseException:
            sessions.forget()  # a lane that stopped half way is no place to start from
            raise
    return Trained.of(end, after)


def _empty(like: Stack) -> Stack:
    parts = (like.params, like.buffers, like.counters)
    return Stack(like.layout, *(torch.empty_like(part, memory_format=torch.contiguous_format) for part in parts))


def _reordered(plan: BatchPlan, order: Tensor) -> BatchPlan:
    member = torch.arange(len(order), device=order.device)[:, None]
    return plan.changed(lambda part: part[member, order], plan.noise)


def _turn(lane: Lane, steps: Iterator[None]) -> bool:
    """Queue a lane's next steps; return whether some are left."""
    with lane.current():
        return all(next(steps, steps) is None for _ in range(TURN))


def _lanes(
    session: sessions.Session, counts: list[list[int]], chunk: int | None
) -> tuple[list[Lane], list[list[int]]]:
    """Return lanes ready for the members' batch sizes, and the members of each."""
    width = min(len(counts), LANES if chunk is None else max(chunk, 1))
    largest = max((size for sizes in counts for size in sizes), default=0)
    if chunk is None and largest and width > max(len(session.lanes), 1):
        width = min(width, session.fit(largest, width))
    queues = share_out([len(sizes) for sizes in counts], width)
    uses = [Counter(size for member in queue for size in counts[member]) for queue in queues]
    lanes = session.take([[size for size, times in use.items() if times >= WORTH] for use in uses])
    return lanes, queues


def _rows(architecture: Architecture, stack: Stack) -> tuple[nn.Module, list[dict[str, Tensor]]]:
    """Return a network, and the parameters of each member in the layout that convolutions want."""
    there = places(stack.layout, stack.params.device)
    return architecture.make(), [there.views(row) for row in there.spread(stack.params)]


def _states(layout: Layout, buffers: Tensor, counters: Tensor) -> list[dict[str, Tensor]]:
    return [state_views(layout, *rows) for rows in zip(buffers, counters)]


def _side(device: torch.device, place: int) -> torch.cuda.StreamContext | nullcontext:
    stream = streams(device)[place % LANES]
    return nullcontext() if stream is None else torch.cuda.stream(stream)


@torch.no_grad()
def predict(
    architecture: Architecture, stack: Stack, data: Data, *, precision: str = "float32", batch_size: int = 1000
) -> Tensor:
    """Run every member over a data set in evaluation mode; see `kernels.plain.predict`.

    Returns:
        Logits [M, N, C] in the stack's dtype.
    """
    device = stack.params.device
    _check(architecture, device, precision)
    out = stack.params.new_empty(len(stack), len(data), architecture.classes)
    with here(device):
        module, rows = _rows(architecture, stack)
        module.eval()
        states = _states(stack.layout, stack.buffers, stack.counters)
        pixels = Pixels.of(data, stack.params.dtype)
        with fork(device):
            for begin in range(0, len(data), batch_size):
                batch = slice(begin, begin + batch_size)
                for member in range(len(stack)):
                    with _side(device, member % SIDE), autocast(device, precision):
                        x = pixels(data.images[batch])
                        logits = functional_call(module, rows[member] | states[member], (x,), strict=True)
                        out[member, batch] = logits.to(out.dtype)
    return out


@torch.no_grad()
def recalibrate(
    architecture: Architecture, stack: Stack, data: Data, *, precision: str = "float32", batch_size: int = 250
) -> Stack:
    """Recompute the BatchNorm statistics of every member by one pass over data; see `kernels.plain.recalibrate`.

    Returns:
        The same parameters with new buffers; networks without BatchNorm come back unchanged.
    """
    device = stack.params.device
    _check(architecture, device, precision)
    if not architecture.batch_norm or not len(stack):
        return stack
    fresh = Stack(stack.layout, stack.params.clone(), stack.buffers.clone(), torch.zeros_like(stack.counters))
    with here(device):
        module, rows = _rows(architecture, stack)
        module.train()
        norms = {n: m for n, m in module.named_modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)}
        for name, view in fresh.named_buffers().items():
            if name.rpartition(".")[0] in norms:
                view.fill_(1.0 if name.endswith("var") else 0.0)
        states = _states(fresh.layout, fresh.buffers, fresh.counters)
        pixels = Pixels.of(data, stack.params.dtype)
        with fork(device):
            done = 0
            for size in cuts(len(data), batch_size):
                begin, done = done, done + size
                for norm in norms.values():
                    norm.momentum = size / done  # the mean; None would read the counter
                for member in range(len(stack)):
                    with _side(device, member), autocast(device, precision):
                        x = pixels(data.images[begin:done])
                        functional_call(module, rows[member] | states[member], (x,), strict=True)
    return fresh
