"""The plain kernel against literal loops: gradients by hand for an MLP, updates by hand for a ResNet."""

from dataclasses import replace

import numpy as np
import pytest
import tiny
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call

from fedrepro.core.stack import Stack
from fedrepro.data.data import Data
from fedrepro.kernels import plain, threads
from fedrepro.kernels.batches import NO_AUGMENT, Augment, BatchPlan, batch_plan
from fedrepro.kernels.graph import graph
from fedrepro.kernels.plain import predict, recalibrate
from fedrepro.kernels.registry import KERNELS, kernel
from fedrepro.models import initialise
from fedrepro.models.architecture import Architecture

Array = NDArray[np.float64]


def start(architecture: Architecture, members: int, dtype: torch.dtype = torch.float64) -> Stack:
    """Return members that differ from one another."""
    modules = [architecture.make() for _ in range(members)]
    for seed, module in enumerate(modules):
        initialise(module, tiny.seeded(seed), scheme="kaiming")
    return Stack.of(*modules).to(dtype=dtype)


def plans(sizes: tuple[int, ...], *, epochs: int = 2, batch_size: int = 4, pad: int = 0) -> BatchPlan:
    return batch_plan(
        list(tiny.cut(sizes)),
        [tiny.seeded(10 + member) for member in range(len(sizes))],
        epochs=[epochs] * len(sizes),
        batch_size=batch_size,
        augment=Augment(pad=pad, flip=True) if pad else NO_AUGMENT,
    )


def rates(steps: int) -> Tensor:
    """Return a different learning rate for every step."""
    return 0.05 + 0.02 * torch.arange(steps, dtype=torch.float64)


def soft(images: int, classes: int = tiny.CLASSES) -> Tensor:
    return torch.randn(images, classes, generator=tiny.seeded(5), dtype=torch.float64).softmax(-1)


def cut_steps(plan: BatchPlan, steps: slice) -> BatchPlan:
    return tiny.replanned(plan, lambda t: t[:, steps])


def one_hot(labels: Tensor) -> Array:
    return np.eye(tiny.CLASSES)[labels.numpy()]


def slow_batch(data: Data, plan: BatchPlan, member: int, step: int) -> tuple[list[int], Array]:
    """Return the positions and the inputs [B, D] of one step, image by image."""
    chosen = [b for b in range(plan.mask.shape[2]) if plan.mask[member, step, b]]
    positions = [int(plan.index[member, step, b]) for b in chosen]
    if data.images.ndim == 2:
        return positions, data.images[positions].double().numpy()
    rows = []
    for b, position in zip(chosen, positions):
        down, right = plan.shift[member, step, b].tolist()
        flip = bool(plan.flip[member, step, b])
        cropped = tiny.slow_crop_and_flip(data.images[position].numpy(), down, right, flip, plan.pad)
        rows.append(tiny.slow_inputs(cropped).ravel())
    return positions, np.stack(rows)


class TestAgainstHandWrittenGradients:
    @pytest.mark.parametrize("targets_are", ["labels", "probabilities"])
    @pytest.mark.parametrize(
        ("momentum", "decay", "scale"), [(0.9, 0.1, 1.0), (0.0, 0.0, 1.0), (0.0, 0.1, 1.0), (0.5, 0.2, 0.1)]
    )
    def test_points(self, targets_are: str, momentum: float, decay: float, scale: float) -> None:
        data = tiny.points(17)
        self.check(data, tiny.network("mlp"), targets_are, momentum, decay, scale, pad=0)

    def test_augmented_images(self) -> None:
        data = tiny.images(17, height=4, width=4)
        architecture = Architecture("mlp", tiny.CLASSES, (("features", 48), ("hidden", 5)))
        self.check(data, architecture, "probabilities", 0.9, 0.1, 1.0, pad=1)

    def check(
        self,
        data: Data,
        architecture: Architecture,
        targets_are: str,
        momentum: float,
        decay: float,
        scale: float,
        *,
        pad: int,
    ) -> None:
        plan = plans((4, 9, 3), pad=pad)  # one step, [4, 5] and one step in each of two epochs
        assert plan.mask.sum(2).tolist() == [[4, 4, 0, 0], [4, 5, 4, 5], [3, 3, 0, 0]]
        models = start(architecture, 3)
        targets = data.labels if targets_are == "labels" else soft(len(data))
        truth = one_hot(data.labels) if targets_are == "labels" else targets.numpy()
        lr = rates(4)
        sgd = tiny.Sgd(lr=lr, momentum=momentum, weight_decay=decay)
        trained = tiny.train(
            plain, architecture, models, data, targets, plan, sgd, precision="float64", loss_scale=scale
        )
        for member, steps in enumerate((2, 4, 2)):
            literal = tiny.Literal.of(models, member)
            losses = []
            for step in range(steps):
                positions, x = slow_batch(data, plan, member, step)
                losses.append(literal.step(x, truth[positions], float(lr[step]), momentum, decay, scale))
            close(trained.stack.params[member], literal.flat())
            assert float(trained.loss[member]) == pytest.approx(sum(losses) / steps, rel=1e-12)
            if momentum:
                close(tiny.velocity(trained)[member], literal.flat_velocity())
        assert trained.stack.params.dtype == torch.float64


def close(found: Tensor, expected: Tensor, tolerance: float = 1e-12) -> None:
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


def norms(module: nn.Module) -> dict[str, nn.BatchNorm2d]:
    return {name: m for name, m in module.named_modules() if isinstance(m, nn.BatchNorm2d)}


def plain_inputs(data: Data, index: Tensor) -> Tensor:
    return torch.stack([torch.from_numpy(tiny.slow_inputs(data.images[i].numpy())) for i in index])


class TestResNet:
    architecture = tiny.network("resnet8")

    def test_against_a_literal_loop(self) -> None:
        data, models = tiny.images(15), start(self.architecture, 2)
        plan, targets, lr = plans((9, 6), epochs=1), soft(15), rates(2)
        sgd = tiny.Sgd(lr=lr, momentum=0.9, weight_decay=0.05)
        trained = tiny.train(plain, self.architecture, models, data, targets, plan, sgd, precision="float64")
        for member in range(2):
            module = self.architecture.make().double().train()
            models.load(member, module)
            weights = {name: p.detach().clone().requires_grad_() for name, p in module.named_parameters()}
            statistics = {name: b.clone() for name, b in module.named_buffers()}
            velocity = {name: torch.zeros_like(p) for name, p in weights.items()}
            for step in range(2):
                index = plan.index[member, step][plan.mask[member, step]]
                logits = functional_call(module, (weights, statistics), (plain_inputs(data, index),))
                loss = -(targets[index] * logits.log_softmax(-1)).sum(1).mean()
                gradients = torch.autograd.grad(loss, list(weights.values()))
                for (name, weight), gradient in zip(weights.items(), gradients):
                    decays = name.endswith("weight") and "norm" not in name  # convolutions and the last layer
                    decay = 0.05 * weight.detach() if decays else torch.zeros(())
                    velocity[name] = 0.9 * velocity[name] + gradient + decay
                    weights[name] = (weight.detach() - lr[step] * velocity[name]).requires_grad_()
            close(trained.stack.params[member], flat(list(weights.values())))
            close(tiny.velocity(trained)[member], flat(list(velocity.values())))
            running = [b for name, b in statistics.items() if not name.endswith("tracked")]
            close(trained.stack.buffers[member], flat(running))

    def test_statistics_after_one_step_by_hand(self) -> None:
        data, models = tiny.images(6), start(self.architecture, 1)
        plan = plans((6,), epochs=1, batch_size=6)
        trained = tiny.train(
            plain,
            self.architecture,
            models,
            data,
            data.labels,
            plan,
            tiny.Sgd(lr=torch.ones(1), momentum=0.0, weight_decay=0.0),
            precision="float64",
        )
        stem = models.named_params()["stem.weight"][0]
        channels = F.conv2d(plain_inputs(data, torch.arange(6)), stem, padding=1).transpose(0, 1).flatten(1)
        found = trained.stack.named_buffers()
        # Momentum 0.1 from mean 0 and variance 1; the variance is the unbiased one. The step's own learning
        # rate (1, large) must not matter: statistics come from the forward pass alone.
        close(found["norm.running_mean"][0], 0.1 * channels.mean(1))
        close(found["norm.running_var"][0], 0.9 + 0.1 * channels.var(1, correction=1))

    def test_statistics_never_follow_a_gradient(self) -> None:
        data, models, plan = tiny.images(9), start(self.architecture, 1), plans((9,), epochs=1, batch_size=9)
        found = [
            tiny.train(
                plain,
                self.architecture,
                models,
                data,
                data.labels,
                plan,
                tiny.Sgd(lr=torch.tensor([lr]), momentum=0.9, weight_decay=0.5),
                precision="float64",
            ).stack
            for lr in (0.0, 0.1)
        ]
        assert torch.equal(found[0].buffers, found[1].buffers)
        assert torch.equal(found[0].params, models.params)
        assert not torch.equal(found[1].params, models.params)

    def test_counters_count_steps(self) -> None:
        data, plan = tiny.images(13), plans((4, 9), epochs=2)
        models = start(self.architecture, 2)
        models = Stack(models.layout, models.params, models.buffers, models.counters + 2**40)
        sgd = tiny.Sgd(lr=rates(4), momentum=0.0, weight_decay=0.0)
        trained = tiny.train(plain, self.architecture, models, data, data.labels, plan, sgd, precision="float64")
        counters = trained.stack.counters
        assert counters.dtype == torch.int64
        assert (counters - 2**40).tolist() == [[2] * 7, [4] * 7]


def flat(tensors: list[Tensor]) -> Tensor:
    return torch.cat([t.detach().flatten() for t in tensors])


class TestTraining:
    @pytest.mark.parametrize("name", ["mlp", "resnet8"])
    def test_velocity_goes_on_where_it_stopped(self, name: str) -> None:
        data = tiny.points(17) if name == "mlp" else tiny.images(17)
        architecture, plan = tiny.network(name), plans((8, 9), epochs=2, batch_size=4)
        models, lr = start(architecture, 2), rates(4)

        def go(begin: Stack, steps: slice, velocity: Tensor | None = None) -> tuple[Stack, Tensor]:
            sgd = tiny.Sgd(lr=lr[steps], momentum=0.9, weight_decay=0.01)
            part = cut_steps(plan, steps)
            done = tiny.train(
                plain, architecture, begin, data, data.labels, part, sgd, precision="float64", velocity=velocity
            )
            return done.stack, tiny.velocity(done)

        whole, whole_velocity = go(models, slice(0, 4))
        half, half_velocity = go(models, slice(0, 1))
        before = half_velocity.clone()
        rest, rest_velocity = go(half, slice(1, 4), half_velocity)
        assert tiny.same(rest, whole)
        assert torch.equal(rest_velocity, whole_velocity)
        assert torch.equal(half_velocity, before)  # what was handed in is not written to
        forgotten, _ = go(half, slice(1, 4))
        assert not torch.equal(forgotten.params, whole.params)

    def test_masked_steps_do_nothing(self) -> None:
        data, architecture = tiny.images(9), tiny.network("resnet8")
        plan, models, lr = plans((9,), epochs=1), start(architecture, 1), rates(2)

        def spread_out(t: Tensor) -> Tensor:
            nothing = torch.zeros_like(t[:, :1])
            return torch.cat([nothing, t[:, :1], nothing, t[:, 1:]], 1)

        spread = tiny.replanned(plan, spread_out)
        wide = torch.tensor([9.0, float(lr[0]), 9.0, float(lr[1])], dtype=torch.float64)
        one, other = (
            tiny.train(
                plain,
                architecture,
                models,
                data,
                data.labels,
                p,
                tiny.Sgd(lr=r, momentum=0.9, weight_decay=0.01),
                precision="float64",
            )
            for p, r in ((plan, lr), (spread, wide))
        )
        assert tiny.same(one.stack, other.stack)
        assert torch.equal(tiny.velocity(one), tiny.velocity(other))
        assert torch.equal(one.loss, other.loss)

    @pytest.mark.parametrize("name", ["mlp", "resnet8"])
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_neither_order_nor_company_matters(self, name: str, dtype: torch.dtype) -> None:
        data = tiny.points(17) if name == "mlp" else tiny.images(17)
        architecture, plan = tiny.network(name), plans((4, 9, 4), pad=0 if name == "mlp" else 1)
        models, sgd = start(architecture, 3, dtype), tiny.Sgd(lr=rates(4), momentum=0.9, weight_decay=0.01)
        precision = str(dtype).removeprefix("torch.")

        def go(members: list[int]) -> tuple[Stack, Tensor, Tensor]:
            chosen = tiny.replanned(plan, lambda t: t[members])
            done = tiny.train(
                plain, architecture, models.take(members), data, data.labels, chosen, sgd, precision=precision
            )
            return done.stack, tiny.velocity(done), done.loss

        stack, velocity, loss = go([0, 1, 2])
        for members in ([2, 0, 1], [1], [0, 0]):
            found, found_velocity, found_loss = go(members)
            assert tiny.same(found, stack.take(members))  # bit for bit
            assert torch.equal(found_velocity, velocity[members])
            assert torch.equal(found_loss, loss[members])

    def test_collected_models_are_averaged(self) -> None:
        data, architecture = tiny.images(9), tiny.network("resnet8")
        models, plan, lr = start(architecture, 1), plans((9,), epochs=3), rates(6)

        def go(steps: int, collect: list[int]) -> tuple[Stack, Stack]:
            wanted = torch.zeros(steps, dtype=torch.bool)
            wanted[collect] = True
            sgd = tiny.Sgd(lr=lr[:steps], momentum=0.9, weight_decay=0.01)
            done = tiny.train(
                plain,
                architecture,
                models,
                data,
                data.labels,
                cut_steps(plan, slice(0, steps)),
                sgd,
                precision="float64",
                collect=wanted,
            )
            return done.stack, done.average

        last, average = go(6, [1, 3, 5])  # after two, four and six steps
        after = [go(steps, [])[0].params for steps in (2, 4, 6)]
        close(average.params, torch.stack(after).mean(0))
        assert torch.equal(last.params, after[2])
        assert torch.equal(average.buffers, last.buffers)
        nothing, copy = go(6, [])
        assert tiny.same(nothing, copy)
        assert nothing.params.data_ptr() != copy.params.data_ptr()

    def test_the_loss_is_not_scaled(self) -> None:
        data, architecture = tiny.points(5), tiny.network("mlp")
        models, plan = start(architecture, 1), plans((5,), epochs=1, batch_size=5)
        logits = predict(architecture, models, data, precision="float64")[0]
        targets = soft(5)
        by_hand = float(-(targets * logits.log_softmax(-1)).sum(1).mean())
        for scale in (1.0, 0.1):
            sgd = tiny.Sgd(lr=torch.ones(1), momentum=0.0, weight_decay=0.0)
            done = tiny.train(
                plain, architecture, models, data, targets, plan, sgd, precision="float64", loss_scale=scale
            )
            assert float(done.loss[0]) == pytest.approx(by_hand, rel=1e-13)

    def test_a_target_of_zero_gives_a_finite_loss(self) -> None:
        data, architecture = tiny.points(3), tiny.network("mlp")
        hard = torch.eye(3, dtype=torch.float64)
        sgd = tiny.Sgd(lr=torch.ones(1), momentum=0.0, weight_decay=0.0)
        plan, models = plans((3,), epochs=1), start(architecture, 1)
        done = tiny.train(plain, architecture, models, data, hard, plan, sgd, precision="float64")
        same = tiny.train(plain, architecture, models, data, torch.arange(3), plan, sgd, precision="float64")
        close(done.stack.params, same.stack.params)  # certain pseudo-labels are labels

    def test_what_goes_in_stays_as_it_was(self) -> None:
        data, architecture = tiny.images(9), tiny.network("resnet8")
        models, plan, targets = start(architecture, 1), plans((9,), pad=1), soft(9)
        kept = tiny.copied(models), data.images.clone(), targets.clone(), plan.index.clone()
        sgd = tiny.Sgd(lr=rates(4), momentum=0.9, weight_decay=0.1)
        tiny.train(plain, architecture, models, data, targets, plan, sgd, precision="float64")
        predict(architecture, models, data, precision="float64")
        recalibrate(architecture, models, data, precision="float64")
        assert tiny.same(models, kept[0])
        assert torch.equal(data.images, kept[1])
        assert torch.equal(targets, kept[2])
        assert torch.equal(plan.index, kept[3])

    def test_the_global_random_state_does_not_matter(self) -> None:
        data, architecture = tiny.images(9), tiny.network("resnet8")
        models, plan = start(architecture, 1), plans((9,), pad=1)
        sgd = tiny.Sgd(lr=rates(4), momentum=0.9, weight_decay=0.1)
        found = []
        for seed in (0, 1):
            torch.manual_seed(seed)
            state = torch.get_rng_state()
            found.append(
                tiny.train(plain, architecture, models, data, data.labels, plan, sgd, precision="float64").stack
            )
            assert torch.equal(torch.get_rng_state(), state)
        assert tiny.same(*found)

    def test_members_that_are_not_finite_are_told(self) -> None:
        data, architecture = tiny.points(12), tiny.network("mlp")
        broken = data.images.clone()
        broken[4:8] = float("inf")  # member 1
        sgd = tiny.Sgd(lr=rates(2), momentum=0.0, weight_decay=0.0)
        bad, plan = replace(data, images=broken), plans((4, 4, 4))
        done = tiny.train(
            plain, architecture, start(architecture, 3), bad, data.labels, plan, sgd, precision="float64"
        )
        assert done.finite.tolist() == [True, False, True]
        assert bool(done.stack.params[[0, 2]].isfinite().all())


class TestPredict:
    @pytest.mark.parametrize("name", ["mlp", "resnet8", "group"])
    def test_every_member_in_evaluation_mode(self, name: str) -> None:
        data = tiny.points(7) if name == "mlp" else tiny.images(7)
        architecture, world = tiny.network(name), tiny.federation(name)
        members = tiny.trained_clients(world).clients
        found = predict(architecture, members, data, precision="float64", batch_size=3)
        assert found.shape == (3, 7, tiny.CLASSES)
        assert found.dtype == torch.float64
        assert not found.requires_grad
        x = data.images.double() if name == "mlp" else plain_inputs(data, torch.arange(7))
        for member in range(3):
            module = architecture.make().double().eval()
            members.load(member, module)
            close(found[member], module(x).detach())

    def test_the_batch_size_changes_only_the_rounding(self) -> None:
        data, architecture, world = tiny.images(7), tiny.network("resnet8"), tiny.federation("resnet8")
        members = tiny.trained_clients(world).clients
        found = [
            predict(architecture, members, data, precision="float64", batch_size=size) for size in (1, 5, 250)
        ]
        close(found[0], found[1])
        close(found[0], found[2])


class Moments:
    """A hook that notes mean and unbiased variance of each channel that enters a layer."""

    def __init__(self) -> None:
        self.means: list[Tensor] = []
        self.variances: list[Tensor] = []

    def __call__(self, module: nn.Module, entering: tuple[Tensor, ...]) -> None:
        channels = entering[0].detach().transpose(0, 1).flatten(1)
        self.means.append(channels.mean(1))
        self.variances.append(channels.var(1, correction=1))


class TestRecalibrate:
    architecture = tiny.network("resnet8")

    @pytest.mark.parametrize("name", ["plain", "threads", "graph"])
    def test_a_short_last_batch_by_hand(self, name: str) -> None:
        # Images of one grey pixel x: the stem gives w x, whose mean over a batch is w times the mean of x.
        # 4 + 4 + 2 images with batch means 1, 3 and 10: (4 + 12 + 20) / 10 = 3.6; counted alike they would give
        # 14 / 3. A 9th image alone joins the batch before it: 4 + 5 images.
        values = [1, 1, 1, 1, 3, 3, 3, 3, 10, 10]
        model = self.architecture.start(0, 0).to(torch.device("cpu"), torch.float64)
        weight = model.named_params()["stem.weight"][0][:, :, 1, 1].sum(1)  # [16], the middle tap
        for count, expected in ((10, 3.6), (9, (4 * 1 + 5 * (22 / 5)) / 9)):
            pixels = torch.tensor(values[:count], dtype=torch.uint8).reshape(-1, 1, 1, 1).expand(-1, 1, 1, 3)
            names = ("a", "b", "c")
            data = Data("grey", pixels.contiguous(), torch.arange(count) % 3, names, (0.0,) * 3, (1 / 255,) * 3)
            module = {"plain": plain, "threads": threads, "graph": graph}[name]
            fresh = module.recalibrate(self.architecture, model, data, precision="float64", batch_size=4)
            close(fresh.named_buffers()["norm.running_mean"][0], weight * expected)

    def test_statistics_are_the_mean_over_batches_by_their_size(self) -> None:
        data, members = tiny.images(10), tiny.trained_clients(tiny.federation("resnet8")).clients
        found = recalibrate(self.architecture, members, data, precision="float64", batch_size=4)
        batches = torch.arange(10).split(4)
        shares = torch.tensor([4.0, 4.0, 2.0], dtype=torch.float64) / 10
        for member in range(3):
            module = self.architecture.make().double().train()
            members.load(member, module)
            seen = {name: Moments() for name in norms(module)}
            for name, norm in norms(module).items():
                norm.register_forward_pre_hook(seen[name])
            for index in batches:
                module(plain_inputs(data, index))
            views = {name: view[member] for name, view in found.named_buffers().items()}
            for name, moments in seen.items():
                assert len(moments.means) == 3
                close(views[f"{name}.running_mean"], shares @ torch.stack(moments.means))
                close(views[f"{name}.running_var"], shares @ torch.stack(moments.variances))

    def test_parameters_stay_and_old_statistics_are_forgotten(self) -> None:
        data, members = tiny.images(10), tiny.trained_clients(tiny.federation("resnet8")).clients
        other = Stack(members.layout, members.params, members.buffers * 7 + 3, members.counters + 5)
        one, two = (recalibrate(self.architecture, m, data, precision="float64") for m in (members, other))
        assert tiny.same(one, two)
        assert torch.equal(one.params, members.params)
        assert one.counters.dtype == torch.int64
        assert one.counters.tolist() == [[1] * 7] * 3  # one batch of ten
        assert bool((one.named_buffers()["blocks.0.norm1.running_var"] > 0).all())

    def test_networks_without_batch_norm_come_back_unchanged(self) -> None:
        architecture = tiny.network("group")
        members = start(architecture, 2)
        assert tiny.same(recalibrate(architecture, members, tiny.images(4), precision="float64"), members)

    def test_no_members_stay_no_members(self) -> None:
        nobody = start(self.architecture, 1).take(slice(0, 0))
        assert len(recalibrate(self.architecture, nobody, tiny.images(4), precision="float64")) == 0


class TestPrecision:
    def test_bfloat16_runs_and_keeps_weights_in_float32(self) -> None:
        data, architecture = tiny.images(8), tiny.network("resnet8")
        models, plan = start(architecture, 1, torch.float32), plans((8,), epochs=1)
        sgd = tiny.Sgd(lr=rates(2), momentum=0.9, weight_decay=0.01)
        found = [
            tiny.train(plain, architecture, models, data, data.labels, plan, sgd, precision=precision)
            for precision in ("float32", "bfloat16")
        ]
        assert found[1].stack.params.dtype == found[1].stack.buffers.dtype == torch.float32
        assert found[1].loss.dtype == tiny.velocity(found[1]).dtype == torch.float32
        assert not torch.equal(found[0].stack.params, found[1].stack.params)  # convolutions were rounded
        # bfloat16 has 8 bits: losses agree to a few per cent.
        assert float(found[1].loss[0]) == pytest.approx(float(found[0].loss[0]), rel=0.1)
        logits = predict(architecture, models, data, precision="bfloat16")
        assert logits.dtype == torch.float32
        assert bool(recalibrate(architecture, models, data, precision="bfloat16").buffers.isfinite().all())

    def test_an_unknown_precision_is_refused(self) -> None:
        architecture, data = tiny.network("mlp"), tiny.points(4)
        with pytest.raises(ValueError, match=r"precision must be one of .*, got 'float16'"):
            predict(architecture, start(architecture, 1), data, precision="float16")

    def test_an_unknown_kernel_is_refused(self) -> None:
        assert kernel("plain") is KERNELS["plain"]
        with pytest.raises(ValueError, match=r"kernel must be one of \['plain'.*\], got 'plian'"):
            kernel("plian")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
class TestGpu:
    architecture = tiny.network("resnet8")

    def go(self, device: str, precision: str, models: Stack, data: Data) -> Stack:
        plan = plans((8, 9), epochs=1, pad=1)
        sgd = tiny.Sgd(lr=rates(2), momentum=0.9, weight_decay=0.01)
        here = data.to(device)
        done = tiny.train(
            plain, self.architecture, models.to(device), here, here.labels, plan, sgd, precision=precision
        )
        assert done.stack.params.device.type == device
        return done.stack

    def test_float32_agrees_with_the_cpu(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
        data, models = tiny.images(17), start(self.architecture, 2, torch.float32)
        ours, theirs = (self.go(device, "float32", models, data) for device in ("cpu", "cuda"))
        # Two steps of float32, summed in another order.
        close(theirs.params.cpu(), ours.params, 1e-3)
        close(theirs.buffers.cpu(), ours.buffers, 1e-3)
        assert torch.equal(theirs.counters.cpu(), ours.counters)

    def test_float64_agrees_with_the_cpu(self) -> None:
        data, models = tiny.images(17), start(self.architecture, 2)
        ours, theirs = (self.go(device, "float64", models, data) for device in ("cpu", "cuda"))
        close(theirs.params.cpu(), ours.params, 1e-9)
        close(theirs.buffers.cpu(), ours.buffers, 1e-9)
        images = data.to("cuda")
        logits = predict(self.architecture, models.to("cuda"), images, precision="float64").cpu()
        close(logits, predict(self.architecture, models, data, precision="float64"), 1e-9)
        fresh = recalibrate(self.architecture, models.to("cuda"), images, precision="float64")
        same = recalibrate(self.architecture, models, data, precision="float64")
        close(fresh.buffers.cpu(), same.buffers, 1e-9)

    def test_bfloat16_runs(self) -> None:
        models = start(self.architecture, 2, torch.float32)
        found = self.go("cuda", "bfloat16", models, tiny.images(17))
        assert found.params.dtype == torch.float32
        assert bool(found.params.isfinite().all())
