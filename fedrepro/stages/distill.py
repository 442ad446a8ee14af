"""Knowledge distillation on the server's public images: from an ensemble back to one global model.

Shapes: N images, C classes, T steps.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from fedrepro.core.rng import Streams
from fedrepro.core.stack import Stack
from fedrepro.federation.federation import Federation
from fedrepro.kernels.batches import Augment, BatchPlan, batch_plan
from fedrepro.kernels.plain import NonFiniteLossError
from fedrepro.kernels.step import Sgd
from fedrepro.stages.combine import Ensemble
from fedrepro.stages.rates import Constant, Cyclical
from fedrepro.stages.train import DivergedError


@dataclass(frozen=True)
class Distilled:
    """The student [1], its mean loss, and the targets [N, C] it learnt from (no rows when it learnt nothing)."""

    student: Stack
    loss: float
    targets: Tensor


TARGETS = ("ensemble", "labels")
Distill = Callable[[Stack, Ensemble, Federation, Streams], Distilled]


@dataclass(frozen=True)
class Keep:
    """No distillation: the average stays as it is, the ensemble is never asked."""

    def __call__(self, average: Stack, teacher: Ensemble, federation: Federation, streams: Streams) -> Distilled:
        """Return the average unchanged."""
        return Distilled(average, float("nan"), average.params.new_empty(0, federation.architecture.classes))


def _plan(
    federation: Federation, streams: Streams, *, epochs: int, batch_size: int, augment: Augment
) -> BatchPlan:
    if not len(federation.public):
        raise ValueError("distillation needs public images, the server has none")
    return batch_plan(
        [torch.arange(len(federation.public))],
        [streams.torch("distillation batches")],
        epochs=[epochs],
        batch_size=batch_size,
        augment=augment,
    )


@dataclass(frozen=True, kw_only=True)
class DistillSgd:
    """Plain momentum SGD on cross-entropy with fixed pseudo-labels, started from the average (FedBE 5.1).

    The targets are computed once per round without augmentation; the student sees augmented images.

    Args:
        epochs: passes over the public images; FedBE 20.
        batch_size: FedBE 128.
        schedule: learning rate per step.
        momentum: in [0, 1).
        weight_decay: >= 0.
        augment: augmentation of the student's inputs.
        loss_scale: 1 is the paper's loss; 1/C that of the released code, which also averages over classes.
        targets: "ensemble", or "labels": the public images' true labels, which no server has; then the ensemble is
            never asked (FedBE's Table 2 and Figure 2, ground truth).
    """

    epochs: int
    batch_size: int
    schedule: Constant | Cyclical
    momentum: float
    weight_decay: float
    augment: Augment
    loss_scale: float = 1.0
    targets: str = "ensemble"

    def __post_init__(self) -> None:
        """Check the option."""
        if self.targets not in TARGETS:
            raise ValueError(f"targets must be one of {TARGETS}, got {self.targets!r}")

    def __call__(self, average: Stack, teacher: Ensemble, federation: Federation, streams: Streams) -> Distilled:
        """Return the student after the last step."""
        return self._run(average, teacher, federation, streams, start=None, every=1)[0]

    def _run(
        self,
        average: Stack,
        teacher: Ensemble,
        federation: Federation,
        streams: Streams,
        *,
        start: int | None,
        every: int,
    ) -> tuple[Distilled, Stack]:
        plan = _plan(federation, streams, epochs=self.epochs, batch_size=self.batch_size, augment=self.augment)
        steps = plan.index.shape[1]
        done = torch.arange(1, steps + 1)  # steps done after each step
        collect = (done > start) & (done % every == 0) if start is not None else torch.zeros_like(done).bool()
        if start is not None and not bool(collect.any()):
            raise ValueError(
                f"SWA collects no model: no end of a {every}-step cycle after step {start}; "
                "distil longer or lower swa_start"
            )
        if self.targets == "labels":
            if federation.public.classes != federation.data.classes:
                raise ValueError("true labels as targets need public images of the clients' classes")
            classes = federation.architecture.classes
            targets = F.one_hot(federation.public.labels, classes).to(average.params.dtype)
        else:
            targets = teacher(federation.public)
        sgd = Sgd(lr=self.schedule.steps(steps), momentum=self.momentum, weight_decay=self.weight_decay)
        try:
            trained = federation.train(
                average, federation.public, targets, plan, sgd, collect=collect, loss_scale=self.loss_scale
            )
        except NonFiniteLossError as error:
            raise DivergedError(f"the loss of distillation in round {streams.round} is not finite") from error
        student = Distilled(trained.stack, float(trained.loss[0]), targets)
        return student, trained.average


@dataclass(frozen=True, kw_only=True)
class DistillSwa(DistillSgd):
    """Stochastic weight averaging: the mean of the models at the ends of learning-rate cycles (FedBE section 4).

    After `swa_start` steps the weights at every end of a cycle enter a running mean; BatchNorm statistics of
    the mean are recomputed on the public images. With fewer steps than that, nothing would be collected: the
    run is refused, since silently returning the last model would be SGD under another name.

    Args:
        swa_start: steps before the first collection; FedBE 250.
        cycle: steps between collections; FedBE 25.
    """

    swa_start: int
    cycle: int

    def __post_init__(self) -> None:
        """Check the ranges."""
        super().__post_init__()
        if self.swa_start < 0 or self.cycle < 1:
            raise ValueError(f"swa_start must be >= 0 and cycle >= 1, got {self.swa_start} and {self.cycle}")

    def __call__(self, average: Stack, teacher: Ensemble, federation: Federation, streams: Streams) -> Distilled:
        """Return the averaged student."""
        last, mean = self._run(average, teacher, federation, streams, start=self.swa_start, every=self.cycle)
        return Distilled(federation.recalibrate(mean), last.loss, last.targets)
