"""How a model and images lie in memory where many members train or predict at once.

Shapes: M members, P parameters, P' places for them, Q buffer entries, R counters.
"""

from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache
from math import prod

import torch
from torch import Tensor

from fedrepro.core.stack import Layout

_ALIGNED = 64  # every tensor begins at a multiple of this many scalars, as fast convolutions want it


def autocast(device: torch.device, precision: str) -> AbstractContextManager:
    """Return the context of the forward pass: bfloat16 where asked, without keeping cast weights.

    Kept casts would be those of the weights before the update, and their memory would belong to a recording.
    """
    if precision != "bfloat16":
        return nullcontext()
    return torch.autocast(device.type, torch.bfloat16, cache_enabled=False)


class Places:
    """Where parameters lie in a lane [P']: every tensor aligned, convolution weights channels-last."""

    def __init__(self, layout: Layout, device: torch.device) -> None:
        self.entries: list[tuple[str, tuple[int, ...], int]] = []
        position, begin = [], 0
        for name, shape in layout.params:
            own = torch.arange(prod(shape))
            if len(shape) == 4:
                own = own.view(_channels_last(shape)).permute(0, 3, 1, 2).reshape(-1)
            position.append(begin + own)
            self.entries.append((name, shape, begin))
            begin += -(-prod(shape) // _ALIGNED) * _ALIGNED
        self.size = begin
        self.position = torch.cat(position).to(device)  # [P], places of the parameters in a stack's order

    def spread(self, rows: Tensor) -> Tensor:
        """Return parameters [..., P] in their places [..., P'], zeros in between."""
        out = rows.new_zeros(*rows.shape[:-1], self.size)
        return out.index_copy_(-1, self.position, rows)

    def views(self, row: Tensor) -> dict[str, Tensor]:
        """Return the parameters of one member [P'] by name, as views."""
        out = {}
        for name, shape, begin in self.entries:
            view = row[begin : begin + prod(shape)]
            last = len(shape) == 4
            out[name] = view.view(_channels_last(shape)).permute(0, 3, 1, 2) if last else view.view(shape)
        return out


@lru_cache(maxsize=16)
def places(layout: Layout, device: torch.device) -> Places:
    """Return the places of a layout on a device, made once."""
    return Places(layout, device)


def _channels_last(shape: tuple[int, ...]) -> tuple[int, ...]:
    return (shape[0], *shape[2:], shape[1])


def state_views(layout: Layout, buffers: Tensor, counters: Tensor) -> dict[str, Tensor]:
    """Return one member's statistics [Q] and counters [R] by name, as views that count changes separately.

    Autograd would take a layer's update of its statistics for a change of what another layer has saved, since
    views of one tensor share a version; `.data` does not.
    """
    out = {}
    for flat, entries in ((buffers, layout.buffers), (counters, layout.counters)):
        for (name, shape), (_, view) in zip(entries, Layout.views(flat, entries)):
            out[name] = view.view(shape).data
    return out
