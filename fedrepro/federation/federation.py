"""A federation: who holds which images, what the server holds, and which kernel runs the networks.

Shapes: S clients, N images, C classes, M members, P parameters, T steps.
"""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import Tensor

from fedrepro.core.stack import Stack, concatenate
from fedrepro.data.data import Data
from fedrepro.federation.desk import AT_ONCE, Desk
from fedrepro.kernels import stacked
from fedrepro.kernels.batches import BatchPlan
from fedrepro.kernels.registry import kernel
from fedrepro.kernels.step import Sgd, Step
from fedrepro.kernels.trained import Carried, Trained
from fedrepro.models.architecture import Architecture


@dataclass(frozen=True)
class Federation:
    """The world that a method acts on; it never changes during a run.

    Mostly all clients have one architecture. Where they have several, `worlds` are ordinary federations of one
    architecture each, with the same clients, data and server, in which only `own` clients take part.

    Args:
        architecture: the network of the clients and of the server; the first one where there are several.
        data: the images of all clients together.
        parts: for each client the positions of its images in `data`, int64 vectors.
        public: the server's unlabelled images (labels are kept for diagnosis only); empty if it has none.
        test: the held-out images.
        precision: "float32" or "bfloat16" for the convolutions; "float64" for exact comparisons.
        kernel: name of the kernel that trains and predicts; "stacked" takes the fastest that can.
        validation: labelled images of the server for early stopping, for dropping clients and for tuning.
        core: labelled images on which the server trains.
        own: numbers of the clients that have this architecture, ascending; empty for all.
        further: where there are several architectures, those after the first, each with its clients.
        desk: where trainings are carried out.
    """

    architecture: Architecture
    data: Data
    parts: tuple[Tensor, ...]
    public: Data
    test: Data
    precision: str = "float32"
    kernel: str = "stacked"
    validation: Data = field(default=None, kw_only=True)  # type: ignore[assignment]  # empty unless given
    core: Data = field(default=None, kw_only=True)  # type: ignore[assignment]  # empty unless given
    own: tuple[int, ...] = field(default=(), kw_only=True)
    further: tuple[tuple[Architecture, tuple[int, ...]], ...] = field(default=(), kw_only=True)
    desk: Desk = field(default=AT_ONCE, kw_only=True, compare=False, repr=False)

    def __post_init__(self) -> None:
        """Check that there are clients, and that their images and their numbers exist."""
        if not self.parts:
            raise ValueError("a federation needs at least one client, got none")
        for client, part in enumerate(self.parts):
            if len(part) and not 0 <= int(part.min()) <= int(part.max()) < len(self.data):
                raise ValueError(f"client {client} points outside the data of {len(self.data)} images")
        groups = [self.numbers, *(own for _, own in self.further)]
        owned = [client for own in groups for client in own]
        every = set(range(self.clients))
        whole = set(owned) == every if self.further else set(owned) <= every
        if len(set(owned)) < len(owned) or not whole or not all(groups):
            raise ValueError(f"each client has one architecture and each architecture a client, got {groups}")
        for name in ("validation", "core"):
            if getattr(self, name) is None:
                object.__setattr__(self, name, self.data.subset(torch.arange(0)))

    @property
    def clients(self) -> int:
        """The number of clients S, of whatever architecture."""
        return len(self.parts)

    @cached_property
    def numbers(self) -> tuple[int, ...]:
        """The clients that have this architecture."""
        return self.own or tuple(range(self.clients))

    @cached_property
    def worlds(self) -> "tuple[Federation, ...]":
        """One federation for each architecture, the first one's first; itself where there is only one."""
        if not self.further:
            return (self,)
        every = ((self.architecture, self.numbers), *self.further)
        return tuple(replace(self, architecture=one, own=own, further=()) for one, own in every)

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
        """The kernel that trains in the end, by SGD, where "stacked" chooses one, and why."""
        if self.kernel != "stacked":
            return stacked.Choice(self.kernel, "asked for")
        return stacked.choose(self.architecture, self.device, self.precision, Step(rule=Sgd()))

    @cached_property
    def sizes(self) -> Tensor:
        """How many images each client holds, [S] float64 on the CPU."""
        return torch.tensor([len(part) for part in self.parts], dtype=torch.float64)

    def start(self, seed: int, models: int = 1) -> Stack:
        """Return the first global models of a run [models], each from a stream of its own, on the device."""
        drawn = [self.architecture.start(seed, model) for model in range(models)]
        return concatenate(drawn).to(self.device, self.dtype)

    def train(
        self,
        start: Stack,
        data: Data,
        targets: Sequence[Tensor],
        plan: BatchPlan,
        step: Step,
        rates: Tensor,
        *,
        collect: Tensor | None = None,
        carried: Carried | None = None,
        correction: Tensor | None = None,
    ) -> Trained:
        """Train models [S] with the federation's kernel and precision; see `kernels.plain.train`."""
        run = kernel(self.kernel).train

        def part(start: Stack, first: int, last: int, carried: Carried | None) -> Trained:
            taken = (plan, rates, collect)
            if (first, last) != (0, len(plan)):
                flags = None if collect is None else collect[first:last]
                taken = (plan.steps(first, last), rates[first:last], flags)
            own, lrs, flags = taken
            with self._numerics():
                trained: Trained = run(
                    self.architecture,
                    start,
                    data,
                    targets,
                    own,
                    step,
                    lrs,
                    precision=self.precision,
                    collect=flags,
                    carried=carried,
                    correction=correction,
                )
            return trained

        return self.desk.carry_out(part, start, plan, step, rates, carried)

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
        self.desk.before_predicting(len(stack) * len(data))
        with self._numerics():
            logits: Tensor = kernel(self.kernel).predict(self.architecture, stack, data, precision=self.precision)
        return logits

    def check_recalibration(self) -> None:
        """Raise a ValueError unless there are public images to recompute BatchNorm statistics on."""
        if not len(self.public):
            raise ValueError("recalibrating BatchNorm needs public images, the server has none")
        if len(self.public) == 1 and self.architecture.batch_norm:
            raise ValueError(
                "recalibrating BatchNorm needs two public images or more, the server has one: raise public_images"
            )

    def recalibrate(self, stack: Stack) -> Stack:
        """Recompute BatchNorm statistics on the public images; see `kernels.plain.recalibrate`."""
        self.check_recalibration()
        with self._numerics():
            fresh: Stack = kernel(self.kernel).recalibrate(
                self.architecture, stack, self.public, precision=self.precision
            )
        return fresh
