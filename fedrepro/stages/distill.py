"""The seventh stage, distill: from an ensemble back to global models, on the server's public images.

Shapes: K global models, N images, C classes, T steps.
"""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from fedrepro.core.rng import Streams
from fedrepro.core.setting import Option, Setting, among, at_least, declare
from fedrepro.data.data import spec_of
from fedrepro.data.datasets import DATASETS
from fedrepro.data.swiss_roll import ARMS
from fedrepro.federation.federation import Federation
from fedrepro.kernels.batches import NO_AUGMENT, Augment, BatchPlan, batch_plan, check_batches, cuts
from fedrepro.kernels.step import Loss, Sgd, Step
from fedrepro.kernels.trained import Trained
from fedrepro.stages.rates import Constant, Cyclical, Rates
from fedrepro.stages.round import Distilled, Round
from fedrepro.stages.train import DivergedError, augment

TARGETS = ("ensemble", "labels")
UNREACHED = ("refuse", "last")
declare(
    distill_epochs=Option("passes over the public images in a round", neutral=20, example=3),
    distill_batch=Option("images in a step of distillation", neutral=128, example=5, must=at_least(1)),
    distill_lr=Option("learning rate of distillation; with SWA the top of the cycle", neutral=1e-3, example=0.002),
    distill_momentum=Option("of distillation's SGD", neutral=0.0, example=0.8),
    distill_weight_decay=Option("of distillation's SGD, on weights only", neutral=0.0, example=0.01),
    distill_augment=Option("whether the student sees augmented images", neutral=True, example=False),
    swa_lr_low=Option("SWA: the bottom of the cycle", neutral=4e-4, example=1e-4),
    swa_start=Option("SWA: steps before the first collection", neutral=250, example=4, must=at_least(0)),
    swa_cycle=Option("SWA: steps of a cycle", neutral=25, example=3),
    swa_unreached=Option(
        'SWA that would collect no model: "refuse", or "last", the last model, as in FedBE\'s released code',
        neutral="refuse",
        example="last",
        must=among("refuse", "last"),
    ),
    loss_scale=Option(
        '"cross_entropy", or "fedbe_official", divided by the number of classes as in FedBE\'s released code',
        neutral="cross_entropy",
        example="fedbe_official",
        must=among("cross_entropy", "fedbe_official"),
        formerly={"cross_entropy": "paper", "fedbe_official": "official"},
    ),
)


@dataclass(frozen=True)
class Keep:
    """No distillation: the averages stay as they are, the ensemble is never asked."""

    needs_clients: ClassVar[bool] = False

    def __call__(self, round: Round, federation: Federation, streams: Streams) -> Distilled:
        """Return the averages unchanged."""
        return Distilled(round.average, float("nan"), round.targets)


@dataclass(frozen=True, kw_only=True)
class DistillSgd:
    """Plain momentum SGD on cross-entropy with fixed pseudo-labels, started from the average (FedBE 5.1).

    The targets are computed once per round without augmentation; the student sees augmented images. Where there
    are several global models, each is distilled from the same ensemble, on batches of its own.

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

    needs_clients: ClassVar[bool] = False

    epochs: int
    batch_size: int
    schedule: Rates
    momentum: float
    weight_decay: float
    augment: Augment
    loss_scale: float = 1.0
    targets: str = "ensemble"

    def __post_init__(self) -> None:
        """Check the option."""
        if self.targets not in TARGETS:
            raise ValueError(f"targets must be one of {TARGETS}, got {self.targets!r}")

    def check(self, federation: Federation) -> None:
        """Refuse a server that cannot distil, and rates and epochs out of their range; see `round.check`."""
        check_public(federation, self.batch_size)
        check_targets(self.targets, federation)
        if self.epochs < 1:
            raise ValueError(f"the epochs of distillation must be >= 1, got {self.epochs}")
        rates, _ = self.schedule.steps(self.count(federation)), self.step  # which checks its own ranges
        if not bool((rates >= 0).all() & rates.isfinite().all()):
            raise ValueError(
                f"the learning rates must be >= 0 and finite in distillation, got {float(rates.min()):g}"
            )

    def count(self, federation: Federation) -> int:
        """Return the number of steps T."""
        return self.epochs * len(cuts(len(federation.public), self.batch_size))

    @property
    def step(self) -> Step:
        """What every step does."""
        rule = Sgd(momentum=self.momentum, weight_decay=self.weight_decay)
        return Step(rule=rule, loss=Loss(scale=self.loss_scale))

    def __call__(self, round: Round, federation: Federation, streams: Streams) -> Distilled:
        """Return the students after the last step."""
        plan = self.batches(len(round.average), federation, streams)
        trained, targets = self.run(round, federation, streams, plan, None)
        return Distilled(trained.stack, float(trained.loss.mean()), targets)

    def batches(self, models: int, federation: Federation, streams: Streams) -> BatchPlan:
        """Plan the students' batches; see `public_batches`."""
        return public_batches(
            federation,
            streams,
            epochs=self.epochs,
            batch_size=self.batch_size,
            augment=self.augment,
            models=models,
        )

    def run(
        self, round: Round, federation: Federation, streams: Streams, plan: BatchPlan, collect: Tensor | None
    ) -> tuple[Trained, Tensor]:
        """Train the averages [K] on the targets, collecting models after some steps; also returns the targets."""
        targets = public_targets(self.targets, round, federation)
        rates = self.schedule.steps(len(plan))
        trained = federation.train(
            round.average, federation.public, (targets,), plan, self.step, rates, collect=collect
        )
        if not bool(trained.finite.all()):
            raise DivergedError(f"the loss of distillation in round {streams.round} is not finite")
        return trained, targets


@dataclass(frozen=True, kw_only=True)
class DistillSwa(DistillSgd):
    """Stochastic weight averaging: the mean of the models at the ends of learning-rate cycles (FedBE section 4).

    After `swa_start` steps the weights at every end of a cycle enter a running mean; BatchNorm statistics of
    the mean are recomputed on the public images. With fewer steps than that, nothing would be collected: the run
    is refused, since silently returning the last model, as FedBE's released code does, is SGD by another name.

    Args:
        swa_start: steps before the first collection; FedBE 250.
        cycle: steps between collections; FedBE 25. For the others see `DistillSgd`.
        unreached: a name of `UNREACHED`: what happens where nothing would be collected.
    """

    swa_start: int
    cycle: int
    unreached: str = "refuse"

    def __post_init__(self) -> None:
        """Check the ranges."""
        super().__post_init__()
        if self.swa_start < 0 or self.cycle < 1:
            raise ValueError(f"swa_start must be >= 0 and cycle >= 1, got {self.swa_start} and {self.cycle}")
        if self.unreached not in UNREACHED:
            raise ValueError(f"unreached must be one of {UNREACHED}, got {self.unreached!r}")

    def check(self, federation: Federation) -> None:
        """Refuse as `DistillSgd` does, and where nothing would be collected or normalised anew."""
        super().check(federation)
        federation.check_recalibration()
        steps = self.count(federation)
        if self.unreached == "refuse" and not bool(self.collects(steps).any()):
            raise ValueError(
                f"SWA collects no model: no end of a {self.cycle}-step cycle after step {self.swa_start}; distil"
                f' longer than {steps} steps, lower swa_start, or set swa_unreached to "last"'
            )

    def collects(self, steps: int) -> Tensor:
        """Return after which steps a model is collected, [T] bool."""
        done = torch.arange(1, steps + 1)
        return (done > self.swa_start) & (done % self.cycle == 0)

    def __call__(self, round: Round, federation: Federation, streams: Streams) -> Distilled:
        """Return the averaged students."""
        plan = self.batches(len(round.average), federation, streams)
        collect = self.collects(len(plan))
        if not bool(collect.any()):
            self.check(federation)
            trained, targets = self.run(round, federation, streams, plan, None)
            return Distilled(trained.stack, float(trained.loss.mean()), targets)
        trained, targets = self.run(round, federation, streams, plan, collect)
        return Distilled(federation.recalibrate(trained.average), float(trained.loss.mean()), targets)


def _distill(setting: Setting) -> dict[str, Any]:
    classes = len(spec_of(setting.data).classes) if setting.data in DATASETS else ARMS
    return {
        "epochs": setting.distill_epochs,
        "batch_size": setting.distill_batch,
        "momentum": setting.distill_momentum,
        "weight_decay": setting.distill_weight_decay,
        "augment": augment(setting) if setting.distill_augment else NO_AUGMENT,
        "loss_scale": 1.0 if setting.loss_scale == "cross_entropy" else 1.0 / classes,
    }


def distill_sgd(setting: Setting) -> DistillSgd:
    """Return plain momentum distillation of a setting."""
    return DistillSgd(**_distill(setting), schedule=Constant(lr=setting.distill_lr))


def distill_swa(setting: Setting, targets: str = "ensemble") -> DistillSwa:
    """Return stochastic weight averaging of a setting, on the ensemble's targets or on true labels."""
    return DistillSwa(
        **_distill(setting),
        schedule=Cyclical(high=setting.distill_lr, low=setting.swa_lr_low, cycle=setting.swa_cycle),
        swa_start=setting.swa_start,
        cycle=setting.swa_cycle,
        unreached=setting.swa_unreached,
        targets=targets,
    )


def public_batches(
    federation: Federation,
    streams: Streams,
    *,
    epochs: int,
    batch_size: int,
    augment: Augment,
    models: int = 1,
    steps: int = 0,
) -> BatchPlan:
    """Plan the batches [K, T, B] of the students on the public images, each from a stream of its own.

    Args:
        federation, streams: whose images, and the round's streams.
        epochs: passes over the images, >= 1; with `steps` it is not looked at.
        batch_size: images per step.
        augment: of the students' inputs.
        models: students K.
        steps: so many steps, in as many passes as they take; 0 for whole passes.

    Raises:
        ValueError: if the server has no public images, or a batch of one image would meet BatchNorm.
    """
    check_public(federation, batch_size)
    passes = -(-steps // max(1, len(federation.public) // batch_size)) if steps else epochs
    plan = batch_plan(
        [torch.arange(len(federation.public))] * models,
        [streams.torch("distillation batches", model) for model in range(models)],
        epochs=[passes] * models,
        batch_size=batch_size,
        augment=augment,
    )
    return replace(plan.steps(0, steps), room=steps) if steps else plan


def check_public(federation: Federation, batch_size: int) -> None:
    """Refuse a server that cannot distil.

    Raises:
        ValueError: if it has no public images, or a batch of one image would meet BatchNorm.
    """
    if not len(federation.public):
        raise ValueError("distillation needs public images, the server has none")
    if federation.architecture.batch_norm:
        remedy = "give the server two images or more, take batches of two or more, or use GroupNorm"
        check_batches("distillation", len(federation.public), batch_size, remedy)


def public_targets(kind: str, round: Round, federation: Federation) -> Tensor:
    """Return probabilities [N, C] for the public images: the ensemble's, or their true labels as such.

    Raises:
        ValueError: for true labels of other classes than the clients'.
    """
    check_targets(kind, federation)
    if kind == "ensemble":
        return round.teacher(federation.public)
    classes = federation.architecture.classes
    return F.one_hot(federation.public.labels, classes).to(round.average.params.dtype)


def check_targets(kind: str, federation: Federation) -> None:
    """Raise a ValueError for true labels of other classes than the clients'."""
    if kind == "labels" and federation.public.classes != federation.data.classes:
        raise ValueError("true labels as targets need public images of the clients' classes")
