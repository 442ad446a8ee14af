"""Distillation: what teaches, where the student starts, which models SWA averages."""

from dataclasses import fields
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tiny
import torch
from torch import Tensor

from fedrepro.core.rng import Streams
from fedrepro.core.stack import Stack
from fedrepro.core.state import State
from fedrepro.data.data import Data
from fedrepro.federation.federation import Federation
from fedrepro.kernels import plain
from fedrepro.kernels.batches import NO_AUGMENT, Augment, BatchPlan, batch_plan
from fedrepro.kernels.registry import KERNELS
from fedrepro.kernels.step import Step
from fedrepro.kernels.trained import Carried, Trained
from fedrepro.stages.combine import Ensemble, MeanOfProbabilities
from fedrepro.stages.distill import DistillSgd, DistillSwa, Keep, public_batches
from fedrepro.stages.rates import Constant, Cyclical
from fedrepro.stages.round import Distill, Distilled

STREAMS = Streams(0, 2)


def sgd(**changes: Any) -> DistillSgd:
    values: dict[str, Any] = {
        "epochs": 3,
        "batch_size": 4,
        "schedule": Constant(lr=0.3),
        "momentum": 0.9,
        "weight_decay": 0.01,
        "augment": Augment(pad=1, flip=True),
    }
    return DistillSgd(**(values | changes))


def swa(**changes: Any) -> DistillSwa:
    values: dict[str, Any] = {
        "epochs": 3,
        "batch_size": 4,
        "schedule": Cyclical(high=0.3, low=0.1, cycle=2),
        "momentum": 0.9,
        "weight_decay": 0.01,
        "augment": Augment(pad=1, flip=True),
        "swa_start": 2,
        "cycle": 2,
    }
    return DistillSwa(**(values | changes))


def teacher(world: Federation) -> Ensemble:
    return Ensemble.of(tiny.trained_clients(world, 5).clients, MeanOfProbabilities(sharpen=2.0), world)


def distilled(
    stage: Distill, average: Stack, asked: Ensemble, world: Federation, streams: Streams = STREAMS
) -> Distilled:
    """Return what a stage makes of averages and an ensemble."""
    return stage(tiny.round_of(world, State(0, world.start(0)), average=average, teacher=asked), world, streams)


def close(found: Tensor, expected: Tensor, tolerance: float = 1e-12) -> None:
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


class Silent(Ensemble):
    """An ensemble that must not be asked."""

    def __call__(self, data: Data) -> Tensor:
        raise AssertionError("the ensemble was asked")


def test_keep_leaves_the_average_alone() -> None:
    world = tiny.federation("resnet8", public=0)
    average = tiny.trained_clients(world).average
    found = distilled(Keep(), average, Silent((), MeanOfProbabilities(sharpen=1.0)), world)
    assert tiny.same(found.student, average)
    assert found.targets.shape == (0, tiny.CLASSES)
    assert np.isnan(found.loss)


class TestAgainstALiteralLoop:
    """An MLP on ten points: three epochs of [4, 4, 2], nine steps."""

    world = tiny.federation("mlp", public=10)

    def literal(self, rates: list[float], scale: float = 1.0) -> tuple[list[Tensor], Tensor, float]:
        """Return the weights after each step, the targets, and the mean loss."""
        members = teacher(self.world).members
        public = self.world.public
        plan = batch_plan(
            [torch.arange(10)],
            [STREAMS.torch("distillation batches")],
            epochs=[3],
            batch_size=4,
            augment=Augment(pad=1, flip=True),
        )
        assert plan.mask[0].sum(1).tolist() == [4, 4, 2] * 3
        total = torch.zeros(10, tiny.CLASSES, dtype=torch.float64)
        for member in range(len(members)):
            hidden, bias, output, offset = (view[member] for view in members.named_params().values())
            logits = (public.images.double() @ hidden.T + bias).clamp_min(0) @ output.T + offset
            total += logits.softmax(-1)
        squared = (total / len(members)) ** 2
        targets = squared / squared.sum(1, keepdim=True)
        student = tiny.Literal.of(tiny.trained_clients(self.world).average, 0)
        after, losses = [], []
        for step, rate in enumerate(rates):
            index = plan.index[0, step][plan.mask[0, step]]
            x = public.images[index].double().numpy()
            losses.append(student.step(x, targets[index].numpy(), rate, 0.9, 0.01, scale))
            after.append(student.flat())
        return after, targets, sum(losses) / len(losses)

    @pytest.mark.parametrize("scale", [1.0, 0.1])
    def test_sgd(self, scale: float) -> None:
        after, targets, loss = self.literal([0.3] * 9, scale)
        average = tiny.trained_clients(self.world).average
        found = distilled(sgd(loss_scale=scale), average, teacher(self.world), self.world)
        close(found.student.params[0], after[-1])
        close(found.targets, targets)
        assert found.loss == pytest.approx(loss, rel=1e-12)

    def test_swa(self) -> None:
        after, targets, loss = self.literal([0.3, 0.1] * 4 + [0.3])
        average = tiny.trained_clients(self.world).average
        found = distilled(swa(), average, teacher(self.world), self.world)
        # Cycles end after steps 2, 4, 6 and 8; collected are those after step 2.
        close(found.student.params[0], (after[3] + after[5] + after[7]) / 3)
        close(found.targets, targets)
        assert found.loss == pytest.approx(loss, rel=1e-12)


class Spy:
    """The plain kernel, with a note of every call."""

    def __init__(self, *, train: bool = True) -> None:
        self.really = train
        self.trained: list[dict[str, Any]] = []
        self.predicted: list[Data] = []
        self.recalibrated: list[Data] = []

    def kernel(self) -> SimpleNamespace:
        return SimpleNamespace(train=self.train, predict=self.predict, recalibrate=self.recalibrate)

    def train(
        self,
        architecture: Any,
        start: Stack,
        data: Data,
        targets: tuple[Tensor],
        plan: BatchPlan,
        step: Step,
        rates: Tensor,
        **options: Any,
    ) -> Trained:
        seen = {"start": start, "data": data, "targets": targets[0], "plan": plan, "step": step, "rates": rates}
        self.trained.append(seen | options)
        if self.really:
            return plain.train(architecture, start, data, targets, plan, step, rates, **options)
        return Trained.of(start, Carried.fresh(start, step.rule))

    def predict(self, architecture: Any, stack: Stack, data: Data, **options: Any) -> Tensor:
        self.predicted.append(data)
        return plain.predict(architecture, stack, data, **options)

    def recalibrate(self, architecture: Any, stack: Stack, data: Data, **options: Any) -> Stack:
        self.recalibrated.append(data)
        return plain.recalibrate(architecture, stack, data, **options)


class TestFedbeAtFullSize:
    """10,000 public points, batches of 128, 20 epochs: 79 steps each, 1,580 in all."""

    @pytest.fixture
    def call(self, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
        spy = Spy(train=False)
        monkeypatch.setitem(KERNELS, "spy", spy.kernel())
        world = tiny.federation("mlp", public=10_000, kernel="spy")
        stage = swa(
            epochs=20,
            batch_size=128,
            schedule=Cyclical(high=1e-3, low=4e-4, cycle=25),
            swa_start=250,
            cycle=25,
        )
        distilled(stage, world.start(0), teacher(world), world)
        assert len(spy.trained) == 1
        return spy.trained[0]

    def test_steps(self, call: dict[str, Any]) -> None:
        counts = call["plan"].mask[0].sum(1)
        assert counts.tolist() == ([128] * 78 + [16]) * 20

    def test_53_models_are_collected(self, call: dict[str, Any]) -> None:
        after = (call["collect"].nonzero().flatten() + 1).tolist()
        assert after == list(range(275, 1576, 25))
        assert len(after) == 53

    def test_models_are_collected_at_the_bottom_of_the_cycle(self, call: dict[str, Any]) -> None:
        lr = call["rates"]
        assert len(lr) == 1580
        bottoms = torch.full((53,), 4e-4, dtype=torch.float64)
        torch.testing.assert_close(lr[call["collect"]], bottoms, rtol=1e-12, atol=0)
        assert lr[0] == lr[25] == 1e-3


class TestTargets:
    def test_they_are_made_once_without_augmentation_in_evaluation_mode(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        spy = Spy()
        monkeypatch.setitem(KERNELS, "spy", spy.kernel())
        world = tiny.federation("resnet8", kernel="spy")
        members = tiny.trained_clients(world, 5).clients
        average = tiny.trained_clients(world).average
        found = distilled(sgd(), average, teacher(world), world)
        total = torch.zeros(10, tiny.CLASSES, dtype=torch.float64)
        x = torch.stack([torch.from_numpy(tiny.slow_inputs(image.numpy())) for image in world.public.images])
        for member in range(3):
            module = world.architecture.make().double().eval()
            members.load(member, module)
            total += module(x).softmax(-1).detach()
        squared = (total / 3) ** 2
        close(found.targets, squared / squared.sum(1, keepdim=True))
        # One call of each kind: the targets are fixed while the student trains, on augmented images.
        assert [data is world.public for data in spy.predicted] == [True]
        assert len(spy.trained) == 1
        call = spy.trained[0]
        assert call["targets"] is found.targets
        assert call["data"] is world.public
        assert call["plan"].pad == 1
        assert call["plan"].flip.any()
        assert tiny.same(call["start"], average)

    def test_a_new_round_brings_new_batches(self) -> None:
        world = tiny.federation("mlp")
        average = tiny.trained_clients(world).average
        found = [distilled(sgd(), average, teacher(world), world, Streams(0, r)).student.params for r in (0, 1, 0)]
        assert torch.equal(found[0], found[2])
        assert not torch.equal(found[0], found[1])

    def test_what_goes_in_stays_as_it_was(self) -> None:
        world = tiny.federation("resnet8")
        average, asked = tiny.trained_clients(world).average, teacher(world)
        kept = tiny.copied(average), tiny.copied(asked.members)
        distilled(swa(), average, asked, world)
        assert tiny.same(average, kept[0])
        assert tiny.same(asked.members, kept[1])


class TestStudent:
    @pytest.mark.parametrize("stage", [sgd(schedule=Constant(lr=0.0)), swa(schedule=Constant(lr=0.0))])
    def test_it_starts_from_the_average(self, stage: DistillSgd) -> None:
        world = tiny.federation("resnet8")
        average = tiny.trained_clients(world).average
        found = distilled(stage, average, teacher(world), world)
        # With a learning rate of zero it stays there; a running mean of equal models may round.
        close(found.student.params, average.params, 1e-15)

    def test_it_learns_the_targets(self) -> None:
        world = tiny.federation("mlp", public=30)
        average, asked = tiny.trained_clients(world).average, teacher(world)

        def distance(student: Stack) -> float:
            q = world.predict(student, world.public)[0].log_softmax(-1)
            p = asked(world.public)
            return float((p * (p.log() - q)).sum(1).mean())

        stage = sgd(epochs=30, weight_decay=0.0, schedule=Constant(lr=0.03))
        found = distilled(stage, average, asked, world)
        assert distance(found.student) < 0.1 * distance(average)

    def test_sgd_keeps_the_statistics_of_its_own_training(self) -> None:
        world = tiny.federation("resnet8")
        average = tiny.trained_clients(world).average
        found = distilled(sgd(), average, teacher(world), world).student
        assert (found.counters - average.counters).tolist() == [[9] * 7]  # three epochs of [4, 4, 2]
        assert found.counters.dtype == torch.int64
        assert not torch.equal(found.buffers, average.buffers)

    def test_swa_recomputes_the_statistics_without_augmentation(self) -> None:
        world = tiny.federation("resnet8")
        average = tiny.trained_clients(world).average
        found = distilled(swa(), average, teacher(world), world).student
        assert tiny.same(found, world.recalibrate(found))
        assert found.counters.tolist() == [[1] * 7]  # ten public images are one batch
        variances = [view for name, view in found.named_buffers().items() if name.endswith("var")]
        assert all(bool((view > 0).all()) for view in variances)

    def test_a_single_left_over_image_joins_the_batch_before(self) -> None:
        world = tiny.federation("resnet8", public=9)
        average = tiny.trained_clients(world).average
        found = distilled(sgd(epochs=1), average, teacher(world), world).student
        assert (found.counters - average.counters).tolist() == [[2] * 7]  # [4, 5]


class TestRefusals:
    world = tiny.federation("mlp")

    @pytest.mark.parametrize("stage", [sgd(), swa()])
    def test_without_public_images(self, stage: DistillSgd) -> None:
        world = tiny.federation("mlp", public=0)
        with pytest.raises(ValueError, match="distillation needs public images, the server has none"):
            distilled(stage, world.start(0), teacher(self.world), world)

    @pytest.mark.parametrize(("start", "cycle"), [(8, 2), (9, 2), (0, 10), (1000, 25)])
    def test_swa_that_would_collect_nothing(self, start: int, cycle: int) -> None:
        stage = swa(swa_start=start, cycle=cycle, augment=NO_AUGMENT)
        with pytest.raises(ValueError, match=f"no end of a {cycle}-step cycle after step {start}; distil longer"):
            distilled(stage, self.world.start(0), teacher(self.world), self.world)

    def test_or_the_last_model_where_that_is_asked_for(self) -> None:
        stage = swa(swa_start=1000, unreached="last")
        same = {f.name: getattr(stage, f.name) for f in fields(DistillSgd)}
        found, expected = (
            distilled(one, self.world.start(0), teacher(self.world), self.world)
            for one in (stage, DistillSgd(**same))
        )
        assert tiny.same(found.student, expected.student)
        reached = [swa(swa_start=7, unreached=name) for name in ("last", "refuse")]
        once, twice = (distilled(one, self.world.start(0), teacher(self.world), self.world) for one in reached)
        assert tiny.same(once.student, twice.student)
        with pytest.raises(ValueError, match=r"unreached must be one of .*, got 'first'"):
            swa(unreached="first")

    def test_swa_that_collects_once(self) -> None:
        once = distilled(swa(swa_start=7), self.world.start(0), teacher(self.world), self.world)
        assert bool(once.student.params.isfinite().all())

    @pytest.mark.parametrize(("start", "cycle"), [(2, 0), (2, -1), (-1, 2)])
    def test_swa_out_of_range(self, start: int, cycle: int) -> None:
        with pytest.raises(ValueError, match=f"cycle >= 1, got {start} and {cycle}"):
            swa(swa_start=start, cycle=cycle)


@pytest.mark.parametrize(("steps", "passes"), [(1, 1), (2, 1), (3, 2), (7, 4)])
def test_batches_may_be_so_many_steps_instead_of_passes(steps: int, passes: int) -> None:
    world = tiny.federation("mlp", public=9)  # two steps a pass: 4 and 5 images
    options = {"batch_size": 4, "augment": NO_AUGMENT, "models": 2}
    plan = public_batches(world, STREAMS, epochs=1, steps=steps, **options)  # type: ignore[arg-type]
    assert len(plan) == plan.room == steps
    whole = public_batches(world, STREAMS, epochs=passes, **options)  # type: ignore[arg-type]
    assert torch.equal(plan.index, whole.index[:, :steps])
