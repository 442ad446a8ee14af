"""A federation: who holds which images, what the server holds, and which kernel runs the networks.

Shapes: S clients, N images, C classes, M members.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from fedrepro.core.stack import Stack
from fedrepro.data.data import Data
from fedrepro.kernels import kernel, stacked
from fedrepro.models.architecture import Architecture


@dataclass(frozen=True)
class Federation:
    """The world that a method acts on; it never changes during a run.

    Args:
        architecture: the network of every client and of the server.
        data: the images of all clients together.
        parts: for each client the positions of its images in `data`, int64 vectors.
        public: the server's unlabelled images (labels are kept for diagnosis only); empty if it has none.
        test: the held-out images.
        precision: "float32" or "bfloat16" for the convolutions; "float64" for exact comparisons.
        kernel: name of the kernel that trains and predicts; "stacked" takes the fastest that can.
    """

    architecture: Architecture
    data: Data
    parts: tuple[Tensor, ...]
    public: Data
    test: Data
    precision: str = "float32"
    kernel: str = "stacked"

    def __post_init__(self) -> None:
        """Check that there are clients and that their images exist."""
        if not self.parts:
            raise ValueError("a federation needs at least one client, got none")
        for client, part in enumerate(self.parts):
            if len(part) and not 0 <= int(part.min()) <= int(part.max()) < len(self.data):
                raise ValueError(f"client {client} points outside the data of {len(self.data)} images")

    @property
    def clients(self) -> int:
        """The number of clients."""
        return len(self.parts)

    @property
    def device(self) -> torch.device:
        """The device of the images, on which networks run too."""
        return self.data.images.device

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of parameters and statistics."""
        return torch.float64 if self.precision == "float64" else torch.float32

    @property
    def choice(self) -> stacked.Choice:
        """The kernel that runs in the end, where "stacked" chooses one, and why."""
        if self.kernel != "stacked":
            return stacked.Choice(self.kernel, "asked for")
        return stacked.choose(self.architecture, self.device, self.precision)

    @cached_property
    def sizes(self) -> Tensor:
        """How many images each client holds, [S] float64 on the CPU."""
        return torch.tensor([len(part) for part in self.parts], dtype=torch.float64)

    def start(self, seed: int) -> Stack:
        """Return the initial global model of a run, a stack of one on the federation's device."""
        return self.architecture.start(seed).to(self.device, self.dtype)

    def train(self, *arguments, **options):
        """Train with the federation's kernel and precision; see `kernels.plain.train`."""
        with self._numerics():
            run = kernel(self.kernel).train
            return run(self.architecture, *arguments, precision=self.precision, **options)

    @contextlib.contextmanager
    def _numerics(self) -> Iterator[None]:
        """Let float32 mean float32 on CUDA: convolutions and products would silently be rounded to TF32."""
        cudnn, products = torch.backends.cudnn, torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("highest")
        try:
            with cudnn.flags(
                enabled=True, benchmark=cudnn.benchmark, deterministic=cudnn.deterministic, allow_tf32=False
            ):
                yield
        finally:
            torch.set_float32_matmul_precision(products)

    def predict(self, stack: Stack, data: Data) -> Tensor:
        """Return logits [M, N, C] of every member of a stack; see `kernels.plain.predict`."""
        if not len(stack):
            return stack.params.new_empty(0, len(data), self.architecture.classes)
        with self._numerics():
            return kernel(self.kernel).predict(self.architecture, stack, data, precision=self.precision)

    def recalibrate(self, stack: Stack) -> Stack:
        """Recompute BatchNorm statistics on the public images; see `kernels.plain.recalibrate`."""
        if not len(self.public):
            raise ValueError("recalibrating BatchNorm needs public images, the server has none")
        with self._numerics():
            run = kernel(self.kernel).recalibrate
            return run(self.architecture, stack, self.public, precision=self.precision)
