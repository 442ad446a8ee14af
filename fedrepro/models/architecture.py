"""An architecture as a value: how to make a network, and how to start one."""

import copy
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import torch
from torch import nn

from fedrepro.core.rng import generator
from fedrepro.core.stack import Layout, Stack
from fedrepro.models.initialise import initialise
from fedrepro.models.layers import has_batch_norm
from fedrepro.models.registry import NETWORKS, build, construct, find
from fedrepro.models.trial import attempt


@dataclass(frozen=True)
class Architecture:
    """A network by name, with its number of classes and options.

    Args:
        name: a name that `fedrepro.models.build` takes.
        classes: number of outputs.
        options: keyword options of `fedrepro.models.build`, as sorted (name, value) pairs.
        scheme: initialisation, "xavier" (FedBE's released code), "kaiming", or "own" (the constructor's).
    """

    name: str
    classes: int
    options: tuple[tuple[str, Any], ...] = field(default=())
    scheme: str = "xavier"
    # Two networks that were registered under one name, one after the other, are different architectures.
    registration: int = field(init=False, repr=False, default=0)

    def __post_init__(self) -> None:
        """Note which registration the name stands for."""
        object.__setattr__(self, "registration", _registration(self.name))

    def make(self) -> nn.Module:
        """Build the network; its weights are not to be relied on, see `start`.

        Raises:
            ValueError: as `build`, and if another network was registered under the name since.
        """
        self._check()
        return copy.deepcopy(_made(self)) if find(self.name).bare else _built(self)

    def start(self, seed: int, model: int = 0) -> Stack:
        """Return an initial model of a run, a stack of one, drawn from the run's seed and the model's number only.

        Args:
            seed: the run's seed.
            model: which of the run's global models, from 0.
        """
        stream = generator(seed, "initial model", client=model)
        if self.scheme == "own":
            self._check()
            own = int(torch.randint(2**63 - 1, (), generator=stream))
            return Stack.of(construct(self.name, own, classes=self.classes, **dict(self.options)))
        module = self.make()
        initialise(module, stream, scheme=self.scheme)
        return Stack.of(module)

    @property
    def batch_norm(self) -> bool:
        """Whether the network keeps BatchNorm statistics."""
        return _batch_norm(self)

    @property
    def random(self) -> bool:
        """Whether the network draws random numbers while it trains, as dropout does."""
        return draws(self)

    @property
    def layout(self) -> Layout:
        """Names and shapes of the network's parameters, buffers and counters."""
        return _layout(self)

    def _check(self) -> None:
        if self.registration != _registration(self.name):
            raise ValueError(f"another network {self.name!r} was registered: make its Architecture anew")


def _built(architecture: Architecture) -> nn.Module:
    return build(architecture.name, classes=architecture.classes, **dict(architecture.options))


# A copy takes half the time of a construction, which small runs do hundreds of times.
@lru_cache(maxsize=8)
def _made(architecture: Architecture) -> nn.Module:
    return _built(architecture)


@lru_cache(maxsize=256)
def draws(architecture: Architecture) -> bool:
    """Return whether a network draws from torch's generator while it trains, seen in one forward pass.

    Raises:
        ValueError: if the network takes neither inputs of its own shape nor images with sides 64 or 224.
    """
    shape = find(architecture.name).shape(dict(architecture.options))
    return attempt(architecture.name, architecture.make(), shape).drew


@lru_cache(maxsize=256)
def _layout(architecture: Architecture) -> Layout:
    return Layout.of(architecture.make())


@lru_cache(maxsize=256)
def _batch_norm(architecture: Architecture) -> bool:
    return has_batch_norm(architecture.make())


def _registration(name: str) -> int:
    return NETWORKS[name].number if name in NETWORKS else 0
