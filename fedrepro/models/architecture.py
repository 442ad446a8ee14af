"""An architecture as a value: how to make a network, and how to start one."""

from dataclasses import dataclass, field
from typing import Any

from torch import nn

from fedrepro import models
from fedrepro.core.rng import generator
from fedrepro.core.stack import Stack


@dataclass(frozen=True)
class Architecture:
    """A network by name, with its number of classes and options.

    Args:
        name: a key of `fedrepro.models.NAMES`.
        classes: number of outputs.
        options: keyword options of `fedrepro.models.build`, as sorted (name, value) pairs.
        scheme: initialisation, "xavier" (FedBE's released code) or "kaiming".
    """

    name: str
    classes: int
    options: tuple[tuple[str, Any], ...] = field(default=())
    scheme: str = "xavier"

    def make(self) -> nn.Module:
        """Build the network; its weights are not to be relied on, see `start`."""
        return models.build(self.name, classes=self.classes, **dict(self.options))

    def start(self, seed: int) -> Stack:
        """Return the initial model of a run, a stack of one, drawn from the run's seed only."""
        module = self.make()
        models.initialise(module, generator(seed, "initial model"), scheme=self.scheme)
        return Stack.of(module)

    @property
    def batch_norm(self) -> bool:
        """Whether the network keeps BatchNorm statistics."""
        return models.has_batch_norm(self.make())
