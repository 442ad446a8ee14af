"""Recorded sessions of the fused kernel, kept for the next round, and members copied in and out of them.

Shapes: S members.
"""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from fedrepro.core.stack import Stack
from fedrepro.kernels.fused.session import Session
from fedrepro.kernels.graph.sessions import roomy

Made = TypeVar("Made")
KEPT = 4  # recorded sessions that are kept for the next round


@dataclass
class Kept:
    """A session, and what runs its recorded step."""

    session: Session
    run: Callable[[], None]


sessions: OrderedDict[tuple, Kept] = OrderedDict()


def session_of(key: tuple, make: Callable[[], Kept]) -> Kept:
    """Return a recorded session, the newest few being kept; recording costs seconds, a round less than one."""
    if key in sessions:
        sessions.move_to_end(key)
        return sessions[key]
    while len(sessions) >= KEPT:
        sessions.popitem(last=False)
    sessions[key] = make_room(make)
    return sessions[key]


def make_room(make: Callable[[], Made]) -> Made:
    """Make something; if memory runs out, once more without the recordings of earlier rounds."""
    return roomy(make, give_way)


def give_way() -> None:
    """Let go of all recorded sessions."""
    sessions.clear()
    torch.cuda.empty_cache()


def load(session: Session, stack: Stack) -> None:
    """Copy members [S] in: their weights and statistics."""
    net = session.net
    padded = torch.cat([stack.params, stack.params.new_zeros(len(stack), 1)], 1)
    session.weights.copy_(padded[:, net.pack.to(padded.device)])
    session.compute.copy_(session.weights)
    session.stats.copy_(stack.buffers[:, net.buffers.to(padded.device)].view_as(session.stats))


def unload(session: Session, like: Stack, steps: Tensor) -> Stack:
    """Copy the members out; `steps` [S] is added to their counters."""
    net = session.net
    buffers = torch.empty_like(like.buffers)
    buffers[:, net.buffers.to(buffers.device)] = session.stats.flatten(1)
    params = session.weights[:, net.unpack.to(buffers.device)]
    return Stack(like.layout, params, buffers, like.counters + steps.to(like.counters)[:, None])
