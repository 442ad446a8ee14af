"""Nearest to a CUDA graph without CUDA: a lane's step, watched and traced."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import TorchDispatchMode

from fedrepro.kernels.graph import graph, lanes

MASKS = (torch.bool, torch.uint8)


class NoHost(TorchDispatchMode):
    """Fails where a recording would: values read by the host, sizes that depend on values, host tensors."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        masks = [i for i in args[1] if i is not None and i.dtype in MASKS] if name == "index" else []
        assert not masks, "index with a mask"
        assert name not in {"_local_scalar_dense", "nonzero", "masked_select", "lift_fresh", "is_nonzero"}, name
        return func(*args, **(kwargs or {}))


def watched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every step of a lane fail where a recording would."""
    step = lanes.Lane._step

    def watch(lane: lanes.Lane, size: int) -> None:
        with NoHost():
            step(lane, size)

    monkeypatch.setattr(lanes.Lane, "_step", watch)


def replayed(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Let lanes replay the operations of one step on the tensors that it saw, without the Python around them.

    Returns:
        A list that grows by one with every replay.
    """
    prepare, replays = lanes.Lane.prepare, list[Any]()

    class Replay:
        def __init__(self, lane: lanes.Lane, size: int) -> None:
            def step(x: Tensor) -> Tensor:
                lane._step(size)
                return x

            lane.clock.zero_()
            self.list = make_fx(step)(torch.ones(1))
            for tensor in (lane.weights, lane.buffers, lane.slots):
                tensor.fill_(float("nan"))

        def replay(self) -> None:
            replays.append(self.list(torch.ones(1)))

    def recorded(lane: lanes.Lane, sizes: list[int]) -> None:
        prepare(lane, sizes)
        graphs: dict[int, Any] = lane._graphs
        graphs |= {size: Replay(lane, size) for size, graph in graphs.items() if graph is None}

    monkeypatch.setattr(lanes.Lane, "prepare", recorded)
    monkeypatch.setattr(graph, "WORTH", 1)
    return replays
