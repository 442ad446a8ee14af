"""Predictions of the fused kernel, and BatchNorm statistics recomputed.

Shapes: M members, N images, C classes.
"""

from functools import partial

import torch
from torch import Tensor

from fedrepro.core.stack import Stack, concatenate
from fedrepro.data.data import Data
from fedrepro.kernels.batches import cuts
from fedrepro.kernels.fused.kept import load, make_room, unload
from fedrepro.kernels.fused.plan import Network, network
from fedrepro.kernels.fused.session import Session, Size
from fedrepro.kernels.graph.sessions import here
from fedrepro.models.architecture import Architecture

IMAGES = 8192  # images of all members in flight


def _batches(session: Session, sizes: list[int]) -> None:
    """Let every member see all images once, in order, in batches of these sizes."""
    counts = torch.tensor(sizes, device=session.device)
    first = counts.cumsum(0) - counts
    place = first[:, None] + torch.arange(session.size.batch, device=session.device)
    session.index.copy_(place.clamp_max(sum(sizes) - 1).expand_as(session.index))
    session.counts.copy_(counts.expand_as(session.counts))
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
            session = make_room(partial(_reading, net, size, data, precision))
            load(session, part)
            _batches(session, cuts(len(data), batch, "keep"))
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
    sizes = cuts(len(data), batch_size)
    batch, steps = max(sizes, default=1), len(sizes)
    done = []
    with here(data.images.device):
        for part in _chunks(stack, batch):
            size = Size(len(part), steps, batch, height, width)
            session = make_room(partial(_reading, net, size, data, precision))
            load(session, part)
            session.stats.zero_()
            _batches(session, sizes)
            # The mean over batches, each counted by its size.
            seen = torch.tensor(sizes).cumsum(0).double()
            session.stat_rates.copy_(seen.diff(prepend=seen.new_zeros(1)) / seen)
            for _ in range(steps):
                session.statistics_step()
            fresh = unload(session, part, torch.zeros(len(part)))
            counters = torch.full_like(part.counters, steps)
            done.append(Stack(part.layout, part.params, fresh.buffers, counters))
            del session
    return concatenate(done)
