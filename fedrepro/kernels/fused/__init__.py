"""The fused kernel: ResNets with BatchNorm, all members at once, in Triton kernels recorded as one CUDA graph.

It agrees with `plain` up to rounding (in float64, under Triton's interpreter, to 1e-9). On a GPU sums are formed
in no fixed order, so two runs differ in the last bits.

Shapes: S members trained, M members, N images, C classes, T steps, B batch, P parameters.
"""

import os
from collections.abc import Sequence

import torch
from torch import Tensor

from fedrepro.core.stack import Stack, concatenate
from fedrepro.data.data import Data
from fedrepro.kernels.batches import BatchPlan, check_rates
from fedrepro.kernels.fused.kept import Kept, load, session_of, sessions, unload
from fedrepro.kernels.fused.plan import Network, bytes_of_an_image, network, why_not
from fedrepro.kernels.fused.read import predict, recalibrate
from fedrepro.kernels.fused.session import COMPUTE, Session, Size
from fedrepro.kernels.graph.sessions import StackMemoryError, here
from fedrepro.kernels.step import Known, Loss, Proximal, Sgd, Step, Term, unknown
from fedrepro.kernels.trained import Carried, Trained
from fedrepro.models.architecture import Architecture

__all__ = ["predict", "recalibrate", "takes", "train"]

KNOWN: Known = {
    **{Step: {"rule", "loss"}, Proximal: {"mu"}, Loss: {"terms", "scale"}, Term: set()},
    Sgd: {"weight_decay", "proximal", "momentum"},
}


def takes(
    architecture: Architecture,
    device: torch.device,
    precision: str,
    step: Step | None = None,
    data: Data | None = None,
) -> str:
    """Return why this kernel cannot do the work, or "" if it can; see `kernels.plain.takes`."""
    if device.type != "cuda" and os.environ.get("TRITON_INTERPRET") != "1":
        return "needs a CUDA device"
    if device.type == "cuda" and precision == "float64":
        return "float64 is not fused"
    if torch.cuda.is_available() and torch.cuda.get_device_capability(device) < (8, 0):
        return "needs a GPU of compute capability 8.0 or higher"
    return why_not(architecture) or _step(step) or _images(data)


def _step(step: Step | None) -> str:
    """Return what of a step is not fused, or ""."""
    if step is not None and len(step.loss.terms) > 1:
        return f"a loss of {len(step.loss.terms)} terms is not fused"
    return unknown(step, KNOWN) if step is not None else ""


def _images(data: Data | None) -> str:
    """Return what of the images does not fit the kernels, or "": their sides must halve twice."""
    if data is None:
        return ""
    images = data.images
    if images.ndim == 4 and images.is_contiguous() and images.shape[1] % 4 == images.shape[2] % 4 == 0:
        return ""
    return f"images must be contiguous, with sides that are multiples of 4 pixels, got {list(images.shape)}"


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
) -> Trained:
    """Train every member of a stack on its own batches, as many at once as memory holds; see `plain.train`.

    Raises:
        StackMemoryError: if not even one member fits.
        ValueError: for a step or images that are not fused, by name.
    """
    if reason := _step(step) or _images(data):
        raise ValueError(reason)
    check_rates(rates, plan)
    net, members = network(architecture), len(start)
    carried = carried if carried is not None else Carried.fresh(start, step.rule)
    width = _width(net, plan.index.shape[2], data, precision)
    if width < 1:
        raise StackMemoryError(
            f"{data.images.device} has no memory to train one {architecture.name} on batches of "
            f"{plan.index.shape[2]} images: use smaller batches"
        )
    ends: list[Stack] = []
    after: list[Carried] = []
    with here(data.images.device):
        for first in range(0, members, width):
            part = slice(first, first + width)
            own, shift = plan.members(part), correction[part] if correction is not None else None
            options = (precision, collect, carried.take(part), shift)
            end, held = _train(net, start.take(part), data, targets[0], own, step, rates, *options)
            ends.append(end)
            after.append(held)
    return Trained.of(concatenate(ends), Carried.joined(after))


def _width(net: Network, batch: int, data: Data, precision: str) -> int:
    """Return how many members' activations and gradients fit into three fifths of the free memory."""
    device = data.images.device
    if device.type != "cuda":
        return 1 << 30
    unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    kept = sum(k.session.bytes for k in sessions.values())  # of this and of other forms: they can give way
    room = 0.6 * (torch.cuda.mem_get_info(device)[0] + unused + kept)
    height, width = data.images.shape[1:3]
    return int(room / (batch * bytes_of_an_image(net, height, width, COMPUTE[precision].itemsize)))


def _train(
    net: Network,
    start: Stack,
    data: Data,
    targets: Tensor,
    plan: BatchPlan,
    step: Step,
    rates: Tensor,
    precision: str,
    collect: Tensor | None,
    carried: Carried,
    correction: Tensor | None,
) -> tuple[Stack, Carried]:
    """Train members that fit side by side."""
    members, steps, batch = plan.index.shape
    device, rule = start.params.device, step.rule
    assert isinstance(rule, Sgd)  # `_step` has refused all others
    augment = bool(plan.pad or plan.flip.any())
    height, width = data.images.shape[1:3]
    # Room for a power of two of steps, so that rounds of somewhat different length share a recording.
    size = Size(members, max(8, 1 << (plan.room - 1).bit_length()), batch, height, width)
    key: tuple = (net.name, size, data.images.data_ptr(), len(data), plan.pad, augment, precision)
    corrected = correction is not None
    key = (*key, data.mean, data.std, rule.momentum, rule.proximal.mu, corrected, step.loss.scale, device)

    def make() -> Kept:
        session = Session(
            net,
            size,
            data.images,
            data.mean,
            data.std,
            pad=plan.pad if augment else None,
            precision=precision,
            training=True,
            momentum=rule.momentum,
            mu=rule.proximal.mu,
            corrected=corrected,
            loss_scale=step.loss.scale,
        )
        return Kept(session, session.record(session.train_step))

    kept = session_of(key, make)
    session, run = kept.session, kept.run
    counts = plan.mask.sum(2, dtype=torch.int32)
    session.index[:, :steps].copy_(plan.index)
    session.shift[:, :steps].copy_(plan.shift if plan.pad else torch.zeros_like(plan.shift))
    session.flip[:, :steps].copy_(plan.flip)
    session.counts[:, :steps].copy_(counts)
    session.rates[:steps].copy_(rates)
    session.stat_rates.fill_(net.momentum)
    session.decay.copy_(net.decays * rule.weight_decay)
    if targets.ndim == 1:
        session.targets.zero_().scatter_(1, targets[:, None], 1.0)
    else:
        session.targets.copy_(targets)
    load(session, start)
    packed = net.unpack.to(device)
    for held, found in (
        (session.anchor, carried.anchor if rule.proximal.mu else None),
        (session.correction, correction),
        (session.velocity, carried.slots[:, 0] if rule.momentum else None),
    ):
        held.zero_()
        if found is not None:
            held[:, packed] = found
    for tensor in (session.loss, session.step, session.sums, session.grads):
        tensor.zero_()
    mean = torch.zeros_like(session.weights)
    mean[:, packed] = carried.mean
    collected = carried.collected.to(mean)[:, None]
    took = (counts > 0).to(mean)
    flags = collect.tolist() if collect is not None else [False] * steps
    for number, flag in enumerate(flags):
        run()
        if flag:  # members whose step was masked collect nothing
            collected = collected + took[:, number, None]
            mean += took[:, number, None] * (session.weights - mean) / collected.clamp_min(1)
    active = (counts > 0).sum(1).to(device)
    return unload(session, start, active), Carried(
        session.velocity[:, None, packed] if rule.momentum else torch.zeros_like(carried.slots),
        carried.steps + active,
        carried.total + session.loss.to(carried.total),
        mean[:, packed],
        collected[:, 0].round().to(torch.int64),
        carried.anchor,
    )
