"""The fused kernel: ResNets with BatchNorm, all members at once, in Triton kernels recorded as one CUDA graph.

It agrees with `plain` up to rounding (in float64, under Triton's interpreter, to 1e-9). On a GPU sums are formed
in no fixed order, so two runs differ in the last bits.

Shapes: S members trained, M members, N images, C classes, T steps, B batch, P parameters.
"""

import os
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor

from fedrepro.core.stack import Stack, concatenate
from fedrepro.data.data import Data
from fedrepro.kernels.batches import BatchPlan
from fedrepro.kernels.fused.plan import Network, bytes_of_an_image, network, why_not
from fedrepro.kernels.fused.session import COMPUTE, Session, Size
from fedrepro.kernels.graph.sessions import StackMemoryError, here, roomy
from fedrepro.kernels.plain import NonFiniteLossError, Trained
from fedrepro.kernels.step import Sgd
from fedrepro.models.architecture import Architecture

Made = TypeVar("Made")
IMAGES = 8192  # images of all members in flight when predicting
KEPT = 4  # recorded sessions that are kept for the next round


def supports(architecture: Architecture, device: torch.device, precision: str) -> str:
    """Return why this kernel cannot run here, or "" if it can."""
    if device.type != "cuda" and os.environ.get("TRITON_INTERPRET") != "1":
        return "needs a CUDA device"
    if device.type == "cuda" and precision == "float64":
        return "float64 is not fused"
    if torch.cuda.is_available() and torch.cuda.get_device_capability(device) < (8, 0):
        return "needs a GPU of compute capability 8.0 or higher"
    return why_not(architecture)


def takes(data: Data, sgd: Sgd | None = None) -> bool:
    """Return whether the kernels know the images (sides that halve twice) and the rule (squared proximal term)."""
    images = data.images
    if sgd is not None and sgd.proximal.mu and sgd.proximal.form != "squared":
        return False
    return images.ndim == 4 and images.is_contiguous() and images.shape[1] % 4 == images.shape[2] % 4 == 0


@dataclass
class _Kept:
    session: Session
    run: Callable[[], None]


_sessions: OrderedDict[tuple, _Kept] = OrderedDict()


def _session(key: tuple, make: Callable[[], _Kept]) -> _Kept:
    """Return a recorded session, the newest few being kept; recording costs seconds, a round less than one."""
    if key in _sessions:
        _sessions.move_to_end(key)
        return _sessions[key]
    while len(_sessions) >= KEPT:
        _sessions.popitem(last=False)
    _sessions[key] = _roomy(make)
    return _sessions[key]


def _roomy(make: Callable[[], Made]) -> Made:
    """Make something; if memory runs out, once more without the recordings of earlier rounds."""
    return roomy(make, _give_way)


def _give_way() -> None:
    _sessions.clear()
    torch.cuda.empty_cache()


def _load(session: Session, stack: Stack) -> None:
    net = session.net
    padded = torch.cat([stack.params, stack.params.new_zeros(len(stack), 1)], 1)
    session.weights.copy_(padded[:, net.pack.to(padded.device)])
    session.compute.copy_(session.weights)
    session.stats.copy_(stack.buffers[:, net.buffers.to(padded.device)].view_as(session.stats))


def _unload(session: Session, like: Stack, steps: Tensor) -> Stack:
    """Copy the members out; `steps` [S] is added to their counters."""
    net = session.net
    buffers = torch.empty_like(like.buffers)
    buffers[:, net.buffers.to(buffers.device)] = session.stats.flatten(1)
    params = session.weights[:, net.unpack.to(buffers.device)]
    return Stack(like.layout, params, buffers, like.counters + steps.to(like.counters)[:, None])


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
) -> Trained:
    """Train every member of a stack on its own batches, as many at once as memory holds; see `plain.train`.

    Raises:
        NonFiniteLossError: as `plain.train`.
        StackMemoryError: if not even one member fits.
        ValueError: for a proximal term that is not squared.
    """
    if sgd.proximal.mu and sgd.proximal.form != "squared":
        raise ValueError(f"only the squared proximal term is fused, got {sgd.proximal.form!r}")
    net, members = network(architecture), len(start)
    width = _width(net, plan.index.shape[2], data, precision)
    if width < 1:
        raise StackMemoryError(
            f"{data.images.device} has no memory to train one {architecture.name} on batches of "
            f"{plan.index.shape[2]} images: use smaller batches"
        )
    done: list[Trained] = []
    with here(data.images.device):
        for first in range(0, members, width):
            part = slice(first, first + width)
            own = BatchPlan(plan.index[part], plan.mask[part], plan.shift[part], plan.flip[part], plan.pad)
            speed = velocity[part] if velocity is not None else None
            shift = correction[part] if correction is not None else None
            try:
                done.append(
                    _train(
                        net,
                        start.take(part),
                        data,
                        targets,
                        own,
                        sgd,
                        precision,
                        collect,
                        speed,
                        shift,
                        loss_scale,
                    )
                )
            except NonFiniteLossError as error:
                raise NonFiniteLossError(first + error.member) from None
    return Trained(
        concatenate([d.stack for d in done]),
        concatenate([d.average for d in done]),
        torch.cat([d.velocity for d in done]),
        torch.cat([d.loss for d in done]),
    )


def _width(net: Network, batch: int, data: Data, precision: str) -> int:
    """Return how many members' activations and gradients fit into three fifths of the free memory."""
    device = data.images.device
    if device.type != "cuda":
        return 1 << 30
    unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    kept = sum(k.session.bytes for k in _sessions.values())  # of this and of other forms: they can give way
    room = 0.6 * (torch.cuda.mem_get_info(device)[0] + unused + kept)
    height, width = data.images.shape[1:3]
    return int(room / (batch * bytes_of_an_image(net, height, width, COMPUTE[precision].itemsize)))


def _train(
    net: Network,
    start: Stack,
    data: Data,
    targets: Tensor,
    plan: BatchPlan,
    sgd: Sgd,
    precision: str,
    collect: Tensor | None,
    velocity: Tensor | None,
    correction: Tensor | None,
    loss_scale: float,
) -> Trained:
    """Train members that fit side by side."""
    members, steps, batch = plan.index.shape
    device = start.params.device
    augment = bool(plan.pad or plan.flip.any())
    height, width = data.images.shape[1:3]
    # Room for a power of two of steps, so that rounds of somewhat different length share a recording.
    size = Size(members, max(8, 1 << (steps - 1).bit_length()), batch, height, width)
    key: tuple = (net.name, size, data.images.data_ptr(), len(data), plan.pad, augment, precision)
    corrected = correction is not None
    key = (*key, data.mean, data.std, sgd.momentum, sgd.proximal.mu, corrected, loss_scale, device)

    def make() -> _Kept:
        session = Session(
            net,
            size,
            data.images,
            data.mean,
            data.std,
            pad=plan.pad if augment else None,
            precision=precision,
            training=True,
            momentum=sgd.momentum,
            mu=sgd.proximal.mu,
            corrected=corrected,
            loss_scale=loss_scale,
        )
        return _Kept(session, session.record(session.train_step))

    kept = _session(key, make)
    session, run = kept.session, kept.run
    counts = plan.mask.sum(2, dtype=torch.int32)
    session.index[:, :steps].copy_(plan.index)
    session.shift[:, :steps].copy_(plan.shift if plan.pad else torch.zeros_like(plan.shift))
    session.flip[:, :steps].copy_(plan.flip)
    session.counts[:, :steps].copy_(counts)
    session.rates[:steps].copy_(sgd.lr)
    session.stat_rates.fill_(net.momentum)
    session.decay.copy_(net.decays * sgd.weight_decay)
    if targets.ndim == 1:
        session.targets.zero_().scatter_(1, targets[:, None], 1.0)
    else:
        session.targets.copy_(targets)
    _load(session, start)
    if sgd.proximal.mu:
        session.anchor.copy_(session.weights)
    if correction is not None:
        session.correction.zero_()
        session.correction[:, net.unpack.to(device)] = correction
    session.velocity.zero_()
    if velocity is not None and sgd.momentum:
        session.velocity[:, net.unpack.to(device)] = velocity
    for tensor in (session.loss, session.step, session.sums, session.grads):
        tensor.zero_()
    mean = torch.zeros_like(session.weights)
    collected = torch.zeros(members, 1, dtype=mean.dtype, device=device)
    took = (counts > 0).to(mean)
    flags = collect.tolist() if collect is not None else [False] * steps
    for step, flag in enumerate(flags):
        run()
        if flag:  # members whose step was masked collect nothing
            collected += took[:, step, None]
            mean += took[:, step, None] * (session.weights - mean) / collected.clamp_min(1)
    active = (counts > 0).sum(1)
    final = _unload(session, start, active)
    loss = session.loss / active.clamp_min(1).to(session.loss)
    finite = (loss.isfinite() & final.params.isfinite().all(1)).tolist()
    if not all(finite):
        raise NonFiniteLossError(finite.index(False))
    means = torch.where(collected > 0, mean[:, net.unpack.to(device)], final.params)
    average = Stack(final.layout, means, final.buffers.clone(), final.counters.clone())
    momenta = session.velocity[:, net.unpack.to(device)]
    return Trained(final, average, momenta if sgd.momentum else torch.zeros_like(momenta), loss)


def _batches(session: Session, count: int) -> None:
    """Let every member see all images once, in order."""
    steps, batch = session.size.steps, session.size.batch
    place = torch.arange(steps * batch, device=session.device).view(1, steps, batch)
    session.index.copy_(place.clamp_max(count - 1).expand_as(session.index))
    session.counts.copy_((place < count).sum(2))
    session.step.zero_()


def _chunks(stack: Stack, batch: int) -> list[Stack]:
    members = max(1, IMAGES // batch)
    return [stack.take(slice(i, i + members)) for i in range(0, len(stack), members)]


@torch.no_grad()
def predict(
    architecture: Architecture, stack: Stack, data: Data, *, precision: str = "float32", batch_size: int = 250
) -> Tensor:
    """Run every member over a data set in evaluation mode; see `plain.predict`."""
    net = network(architecture)
    height, width = data.images.shape[1:3]
    out = stack.params.new_empty(len(stack), len(data), architecture.classes)
    if not len(data):
        return out
    batch = min(len(data), max(batch_size, IMAGES // max(len(stack), 1) // 2))
    done = 0
    with here(data.images.device):
        for part in _chunks(stack, batch):
            size = Size(len(part), -(-len(data) // batch), batch, height, width)
            session = _roomy(partial(_reading, net, size, data, precision))
            _load(session, part)
            _batches(session, len(data))
            for first in range(0, len(data), batch):
                session.predict_step()
                last = min(first + batch, len(data))
                out[done : done + len(part), first:last] = session.logits[:, : last - first]
            done += len(part)
            del session  # before the next one takes as much
    return out


def _reading(net: Network, size: Size, data: Data, precision: str) -> Session:
    """Return a session that only reads images."""
    return Session(net, size, data.images, data.mean, data.std, pad=None, precision=precision, training=False)


@torch.no_grad()
def recalibrate(
    architecture: Architecture, stack: Stack, data: Data, *, precision: str = "float32", batch_size: int = 250
) -> Stack:
    """Recompute the BatchNorm statistics of every member by one pass over a data set; see `plain.recalibrate`."""
    net = network(architecture)
    if not len(stack):
        return stack
    height, width = data.images.shape[1:3]
    batch = min(batch_size, len(data))
    done = []
    with here(data.images.device):
        for part in _chunks(stack, batch):
            steps = -(-len(data) // batch)
            size = Size(len(part), steps, batch, height, width)
            session = _roomy(partial(_reading, net, size, data, precision))
            _load(session, part)
            session.stats.zero_()
            _batches(session, len(data))
            session.stat_rates.copy_(1 / torch.arange(1, steps + 1, dtype=torch.float64))
            for _ in range(steps):
                session.statistics_step()
            fresh = _unload(session, part, torch.zeros(len(part)))
            counters = torch.full_like(part.counters, steps)
            done.append(Stack(part.layout, part.params, fresh.buffers, counters))
            del session
    return concatenate(done)
