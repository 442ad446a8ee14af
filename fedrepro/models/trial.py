"""Code that draws from torch's global generator, and networks on trial, with the global state kept."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import RLock

import torch
from torch import nn

SIDES = (64, 224)  # of images, for networks that do not take the size that was named
_TURN = RLock()  # the global generator is one for all threads


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed torch's global generator on the CPU for a while; afterwards it has its old state again.

    Threads wait for each other. Generators of other devices are left alone.

    Args:
        seed: the seed, in [0, 2**64).
    """
    with _TURN, torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield


@dataclass(frozen=True)
class Trial:
    """What one forward pass in training mode showed: the inputs' shape, the outputs, whether it drew numbers."""

    shape: tuple[int, ...]
    outputs: object
    drew: bool


def attempt(name: str, module: nn.Module, shape: tuple[int, ...]) -> Trial:
    """Run one forward pass in training mode on two random inputs.

    Args:
        name: the network's name, for messages.
        module: a network that nobody else uses; its buffers change.
        shape: of one input; images [C, H, W] that do not fit are tried with sides 64 and 224 as well.

    Returns:
        The trial with the first shape that fits. Draws from generators other than torch's are not seen.

    Raises:
        ValueError: if no shape fits, with what went wrong on the first.
    """
    module.train()
    shapes = [shape]
    if len(shape) == 3:
        shapes += [(shape[0], side, side) for side in SIDES]
    reason: Exception | None = None
    for tried in shapes:
        inputs = torch.randn(2, *tried, generator=torch.Generator().manual_seed(0))
        try:
            with seeded(0), torch.no_grad():
                before = torch.get_rng_state()
                outputs = module(inputs)
                return Trial(tried, outputs, not torch.equal(torch.get_rng_state(), before))
        except Exception as error:
            reason = reason or error
    sizes = ", ".join(str([2, *tried]) for tried in shapes)
    raise ValueError(f"{name} does not take inputs {sizes}: {type(reason).__name__}: {reason}") from reason
