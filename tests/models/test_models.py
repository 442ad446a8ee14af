import math

import pytest
import tiny
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad, stack_module_state, vmap

from fedrepro.core.stack import Stack
from fedrepro.kernels import KERNELS
from fedrepro.kernels.batches import NO_AUGMENT, batch_plan
from fedrepro.kernels.step import Sgd
from fedrepro.models import NAMES, build, has_batch_norm, initialise, mobilenet, parameter_count
from fedrepro.models.architecture import Architecture
from fedrepro.models.resnet import Block, ResNet, subsample
from fedrepro.stages.rates import Constant

# Trainable parameters, counted from the papers' layer lists, for 10 and 100 classes.
RESNET_COUNTS = {
    ("resnet8", "A"): (75_290, 81_140),
    ("resnet20", "A"): (269_722, 275_572),
    ("resnet32", "A"): (464_154, 470_004),
    ("resnet44", "A"): (658_586, 664_436),
    ("resnet56", "A"): (853_018, 858_868),
    ("resnet8", "B"): (78_042, 83_892),
    ("resnet20", "B"): (272_474, 278_324),
    ("resnet32", "B"): (466_906, 472_756),
    ("resnet44", "B"): (661_338, 667_188),
    ("resnet56", "B"): (855_770, 861_620),
}
SMALL: list[tuple[str, dict[str, int | str]]] = [
    ("mlp", {}),
    ("convnet", {"extra_layers": 1}),
    ("resnet8", {"shortcut": "A"}),
    ("resnet8", {"shortcut": "B"}),
    ("resnet8", {"norm": "group", "groups": 2}),
]
# Larger, so only in those tests that stay quick with it.
MOBILE: tuple[str, dict[str, int | str]] = ("mobilenetv2", {})


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def example(name: str, images: int, dtype: torch.dtype = torch.float32) -> Tensor:
    shape = (images, 2) if name == "mlp" else (images, 3, 32, 32)
    return torch.randn(shape, generator=seeded(7), dtype=dtype)


def vector(module: nn.Module) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in module.parameters()])


class TestSizes:
    @pytest.mark.parametrize(("name", "shortcut"), RESNET_COUNTS)
    @pytest.mark.parametrize("norm", [{"norm": "batch"}, {"norm": "group", "groups": 2}])
    def test_resnet(self, name: str, shortcut: str, norm: dict[str, int | str]) -> None:
        counts = tuple(
            parameter_count(build(name, classes=classes, shortcut=shortcut, **norm)) for classes in (10, 100)
        )
        assert counts == RESNET_COUNTS[name, shortcut]

    def test_resnet20_for_tiny_imagenet(self) -> None:
        assert parameter_count(build("resnet20", classes=200, shortcut="A")) == 282_072

    @pytest.mark.parametrize(
        ("classes", "extra_layers", "count"),
        [(10, 0, 122_570), (100, 0, 128_420), (10, 1, 159_498), (10, 4, 270_282)],
    )
    def test_convnet(self, classes: int, extra_layers: int, count: int) -> None:
        assert parameter_count(build("convnet", classes=classes, extra_layers=extra_layers)) == count

    @pytest.mark.parametrize(
        ("classes", "options", "count"),
        [
            (10, {}, 2_296_922),
            (100, {"shortcut": "projection"}, 2_412_212),
            (200, {}, 2_540_312),
            (10, {"shortcut": "original"}, 2_236_682),
            (100, {"shortcut": "original"}, 2_351_972),
        ],
    )
    def test_mobilenetv2(self, classes: int, options: dict[str, int | str], count: int) -> None:
        assert parameter_count(build("mobilenetv2", classes=classes, **options)) == count

    def test_mlp(self) -> None:
        assert parameter_count(build("mlp", classes=3)) == 2 * 32 + 32 + 32 * 3 + 3
        assert parameter_count(build("mlp", classes=3, features=5, hidden=4)) == 5 * 4 + 4 + 4 * 3 + 3

    def test_frozen_parameters_do_not_count(self) -> None:
        model = build("mlp", classes=3)
        model.get_parameter("output.bias").requires_grad_(False)
        assert parameter_count(model) == 2 * 32 + 32 + 32 * 3


class TestForward:
    @pytest.mark.parametrize(("name", "options"), SMALL[2:])
    @pytest.mark.parametrize("side", [32, 64])
    def test_resnet_takes_any_image_size(self, name: str, options: dict[str, int | str], side: int) -> None:
        logits = build(name, classes=7, **options)(torch.randn(2, 3, side, side, generator=seeded(0)))
        assert logits.shape == (2, 7)
        assert logits.isfinite().all()

    def test_resnet_stages(self) -> None:
        model = build("resnet20", classes=10)
        shapes = []
        for block in model.get_submodule("blocks").children():
            block.register_forward_hook(lambda _module, _inputs, output: shapes.append(tuple(output.shape[1:])))
        model(torch.zeros(2, 3, 32, 32))
        assert shapes == [(16, 32, 32)] * 3 + [(32, 16, 16)] * 3 + [(64, 8, 8)] * 3

    @pytest.mark.parametrize("shortcut", mobilenet.SHORTCUTS)
    @pytest.mark.parametrize("side", [32, 64])
    def test_mobilenetv2_stages(self, shortcut: str, side: int) -> None:
        model = build("mobilenetv2", classes=7, shortcut=shortcut)
        shapes = []
        for block in model.get_submodule("blocks").children():
            block.register_forward_hook(lambda _module, _inputs, output: shapes.append(tuple(output.shape[1:])))
        with torch.no_grad():
            logits = model(torch.randn(2, 3, side, side, generator=seeded(0)))
        assert logits.shape == (2, 7)
        assert logits.isfinite().all()
        stages = [(16, 1, 1), (24, 2, 1), (32, 3, 2), (64, 4, 4), (96, 3, 4), (160, 3, 8), (320, 1, 8)]
        assert shapes == [(w, side // shrink, side // shrink) for w, count, shrink in stages for _ in range(count)]

    @pytest.mark.parametrize("extra_layers", [0, 2])
    def test_convnet(self, extra_layers: int) -> None:
        assert build("convnet", classes=7, extra_layers=extra_layers)(example("convnet", 2)).shape == (2, 7)

    def test_convnet_refuses_other_sizes(self) -> None:
        with pytest.raises(ValueError, match=r"takes images \[N, 3, 32, 32\], got \[2, 3, 64, 64\]"):
            build("convnet", classes=10)(torch.zeros(2, 3, 64, 64))

    def test_mlp_by_hand(self) -> None:
        model = build("mlp", classes=2, features=2, hidden=3)
        model.load_state_dict(
            {
                "hidden.weight": torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, -1.0]]),
                "hidden.bias": torch.tensor([0.0, 1.0, 0.5]),
                "output.weight": torch.tensor([[1.0, 2.0, 3.0], [0.0, -1.0, 1.0]]),
                "output.bias": torch.tensor([0.5, 0.0]),
            }
        )
        # [2, -3]: hidden (2, -2, 1.5) -> (2, 0, 1.5); [-1, 1]: hidden (-1, 2, 0.5) -> (0, 2, 0.5).
        logits = model(torch.tensor([[2.0, -3.0], [-1.0, 1.0]]))
        assert logits.tolist() == [[2 + 4.5 + 0.5, 1.5], [4 + 1.5 + 0.5, -2 + 0.5]]

    def test_mlp_flattens_images(self) -> None:
        assert build("mlp", classes=3, features=3 * 8 * 8)(torch.zeros(5, 3, 8, 8)).shape == (5, 3)

    def test_only_the_norms_depend_on_the_mode(self) -> None:
        images = example("resnet8", 4)
        grouped = build("resnet8", classes=10, norm="group", groups=4)
        assert torch.equal(grouped(images), grouped.eval()(images))
        batched = build("resnet8", classes=10)
        assert not torch.allclose(batched(images), batched.eval()(images))


class TestShortcut:
    def test_subsample_by_hand(self) -> None:
        x = torch.arange(1.0, 33.0).reshape(1, 2, 4, 4)  # channel 0: rows 1-4, 5-8, ...; channel 1: 17-20, ...
        zeros = [[0.0, 0.0], [0.0, 0.0]]
        expected = [[zeros, [[1.0, 3.0], [9.0, 11.0]], [[17.0, 19.0], [25.0, 27.0]], zeros]]
        assert subsample(x, padding=1).tolist() == expected

    def test_option_a_in_the_block(self) -> None:
        block = Block(16, 32, shortcut="A", groups=None)
        nn.init.zeros_(block.norm2.get_parameter("weight"))  # the residual branch is off
        x = torch.randn(2, 16, 8, 8, generator=seeded(0))
        y = block(x)
        assert torch.equal(y[:, 8:24], F.relu(x[:, :, ::2, ::2]))
        assert not y[:, :8].any()
        assert not y[:, 24:].any()

    def test_option_b_in_the_block(self) -> None:
        block = Block(16, 32, shortcut="B", groups=None).eval()  # fresh statistics: the norm only divides
        nn.init.zeros_(block.norm2.get_parameter("weight"))
        assert block.projection is not None
        x = torch.randn(2, 16, 8, 8, generator=seeded(0))
        weight = block.projection.weight[:, :, 0, 0]
        expected = F.relu(torch.einsum("oi,nihw->nohw", weight, x[:, :, ::2, ::2])) / math.sqrt(1 + 1e-5)
        torch.testing.assert_close(block(x), expected)

    def test_identity_where_the_width_stays(self) -> None:
        for shortcut in ("A", "B"):
            block = Block(16, 16, shortcut=shortcut, groups=None)
            nn.init.zeros_(block.norm2.get_parameter("weight"))
            x = torch.randn(2, 16, 8, 8, generator=seeded(0))
            assert torch.equal(block(x), F.relu(x))


class TestInvertedResidual:
    def block(
        self, width_in: int, width: int, *, stride: int = 1, shortcut: str = "projection"
    ) -> mobilenet.Block:
        block = mobilenet.Block(width_in, width, expansion=6, stride=stride, shortcut=shortcut)
        nn.init.zeros_(block.reduce_norm.weight)  # the residual branch is off
        return block.eval()  # fresh statistics: the norm only divides

    @pytest.mark.parametrize("shortcut", mobilenet.SHORTCUTS)
    def test_identity_where_the_width_stays(self, shortcut: str) -> None:
        x = torch.randn(2, 8, 6, 6, generator=seeded(0))
        assert torch.equal(self.block(8, 8, shortcut=shortcut)(x), x)  # no activation after the sum

    def test_projection_where_the_width_changes(self) -> None:
        block = self.block(8, 12)
        assert block.projection is not None
        x = torch.randn(2, 8, 6, 6, generator=seeded(0))
        expected = torch.einsum("oi,nihw->nohw", block.projection.weight[:, :, 0, 0], x) / math.sqrt(1 + 1e-5)
        torch.testing.assert_close(block(x), expected)

    @pytest.mark.parametrize(
        ("width", "stride", "shortcut"), [(8, 2, "projection"), (8, 2, "original"), (12, 1, "original")]
    )
    def test_no_shortcut(self, width: int, stride: int, shortcut: str) -> None:
        y = self.block(8, width, stride=stride, shortcut=shortcut)(torch.ones(2, 8, 6, 6))
        assert y.shape == (2, width, 6 // stride, 6 // stride)
        assert not y.any()

    def test_by_hand(self) -> None:
        block = mobilenet.Block(1, 1, expansion=2, stride=1, shortcut="original").eval()
        assert block.expand is not None
        with torch.no_grad():
            block.expand.weight.copy_(torch.tensor([3.0, -2.0]).view(2, 1, 1, 1))
            block.depthwise.weight.zero_()[:, 0, 1, :2] = torch.tensor([[1.0, 2.0], [5.0, 3.0]])  # left and centre
            block.reduce.weight.copy_(torch.tensor([-1.0, 0.5]).view(1, 2, 1, 1))
        for layer in block.children():
            if isinstance(layer, nn.BatchNorm2d):
                layer.eps = 0.0
        # [1, 2, 4]: widened (3, 6, 12) and 0; filtered (6, 3 + 12, 6 + 24); narrowed by -1, no activation; plus x.
        assert block(torch.tensor([[[[1.0, 2.0, 4.0]]]])).flatten().tolist() == [-6 + 1, -15 + 2, -30 + 4]
        # [-1, -3, 0]: widened 0 and (2, 6, 0); filtered (6, 10 + 18, 30); narrowed by 0.5; plus x.
        assert block(torch.tensor([[[[-1.0, -3.0, 0.0]]]])).flatten().tolist() == [3 - 1, 14 - 3, 15]

    @pytest.mark.parametrize(("shortcut", "convolutions"), [("projection", 3), ("original", 2)])
    def test_start_of_the_first_block(self, shortcut: str, convolutions: int) -> None:
        first = mobilenet.Block(32, 16, expansion=1, stride=1, shortcut=shortcut)
        branch = [name for name in dict(first.named_children()) if "norm" not in name and name != "projection"]
        assert branch == ["expand", "depthwise", "reduce"][-convolutions:]

    def test_relu_has_no_upper_end(self) -> None:
        model = build("mobilenetv2", classes=2)
        pooled: list[Tensor] = []
        model.get_submodule("output").register_forward_pre_hook(lambda _module, inputs: pooled.append(inputs[0]))
        nn.init.constant_(model.get_parameter("head_norm.bias"), 50.0)
        with torch.no_grad():
            model(example("mobilenetv2", 2))
        assert pooled[0].min() > 6


class TestNorms:
    def test_group_norm_has_no_state(self) -> None:
        grouped = build("resnet20", classes=10, norm="group", groups=2)
        assert not list(grouped.buffers())
        assert not has_batch_norm(grouped)
        groups = {layer.num_groups for layer in grouped.modules() if isinstance(layer, nn.GroupNorm)}
        assert groups == {2}

    def test_batch_norm_is_found(self) -> None:
        assert has_batch_norm(build("resnet20", classes=10))
        assert has_batch_norm(build("mobilenetv2", classes=10))
        assert not has_batch_norm(build("convnet", classes=10))
        assert not has_batch_norm(build("mlp", classes=10))


class TestMemoryFormat:
    @pytest.mark.parametrize(("name", "options"), [*SMALL[1:], MOBILE])
    def test_channels_last_is_kept(self, name: str, options: dict[str, int | str]) -> None:
        model = build(name, classes=10, **options).to(memory_format=torch.channels_last)
        activations: list[bool] = []
        gradients: list[bool] = []

        def watch(_module: nn.Module, _inputs: tuple[Tensor, ...], output: Tensor) -> None:
            if output.ndim == 4:
                activations.append(output.is_contiguous(memory_format=torch.channels_last))
                output.register_hook(
                    lambda gradient: gradients.append(gradient.is_contiguous(memory_format=torch.channels_last))
                )

        for layer in model.modules():
            layer.register_forward_hook(watch)
        x = example(name, 4)
        logits = model(x.to(memory_format=torch.channels_last))
        F.cross_entropy(logits, torch.tensor([0, 1, 2, 3])).backward()
        assert len(activations) == len(gradients) >= 4
        assert all(activations)
        assert all(gradients)
        torch.testing.assert_close(logits, build(name, classes=10, **options)(x), rtol=1e-4, atol=1e-5)

    def test_subsample_keeps_channels_last(self) -> None:
        x = torch.randn(2, 16, 8, 8, generator=seeded(0)).to(memory_format=torch.channels_last)
        y = subsample(x, padding=8)
        assert y.is_contiguous(memory_format=torch.channels_last)
        assert torch.equal(y, subsample(x.contiguous(), padding=8))


class TestTransforms:
    @pytest.mark.parametrize(("name", "options"), SMALL)
    @pytest.mark.parametrize("training", [True, False])
    def test_vmap_over_models(self, name: str, options: dict[str, int | str], training: bool) -> None:
        models = [build(name, classes=3, **options).double().train(training) for _ in range(2)]
        for seed, model in enumerate(models):
            initialise(model, seeded(seed), scheme="xavier")
        skeleton = build(name, classes=3, **options).double().train(training)
        params, buffers = stack_module_state(models)
        x = torch.stack([example(name, 4, torch.float64), 2 * example(name, 4, torch.float64)])
        targets = torch.tensor([0, 1, 2, 0])

        def loss(params: dict[str, Tensor], buffers: dict[str, Tensor], x: Tensor) -> Tensor:
            return F.cross_entropy(functional_call(skeleton, (params, buffers), (x,)), targets)

        grads = vmap(grad(loss))(params, buffers, x)
        for member, model in enumerate(models):
            F.cross_entropy(model(x[member]), targets).backward()
            for key, parameter in model.named_parameters():
                torch.testing.assert_close(grads[key][member], parameter.grad)
            for key, buffer in model.named_buffers():
                torch.testing.assert_close(buffers[key][member], buffer)

    @pytest.mark.parametrize(("name", "options"), SMALL)
    def test_one_graph_without_breaks(self, name: str, options: dict[str, int | str]) -> None:
        model = build(name, classes=3, **options).eval()
        x = example(name, 2)
        compiled = torch.compile(model, fullgraph=True, backend="eager")
        torch.testing.assert_close(compiled(x), model(x))


class TestKernels:
    def test_they_train_mobilenetv2_alike(self) -> None:
        architecture = Architecture("mobilenetv2", tiny.CLASSES)
        data = tiny.images(4)
        start = Stack.of(architecture.make()).to(dtype=torch.float64)
        plan = batch_plan([torch.arange(4)], [seeded(0)], epochs=[1], batch_size=4, augment=NO_AUGMENT)
        sgd = Sgd(lr=Constant(lr=0.1).steps(1), momentum=0.9, weight_decay=0.01)
        plain, *others = (
            KERNELS[name].train(architecture, start, data, data.labels, plan, sgd, precision="float64")
            for name in ("plain", "threads", "graph")
        )
        assert not torch.allclose(plain.stack.params, start.params)
        assert not torch.allclose(plain.stack.buffers, start.buffers)
        for other in others:
            torch.testing.assert_close(other.stack.params, plain.stack.params)
            torch.testing.assert_close(other.stack.buffers, plain.stack.buffers)
            torch.testing.assert_close(other.loss, plain.loss)


class TestInitialise:
    @pytest.mark.parametrize("scheme", ["xavier", "kaiming"])
    @pytest.mark.parametrize(("name", "options"), [*SMALL, MOBILE])
    def test_only_the_generator_decides(self, name: str, options: dict[str, int | str], scheme: str) -> None:
        before = torch.get_rng_state()
        first, second, third = (build(name, classes=5, **options) for _ in range(3))
        second.double().to(memory_format=torch.channels_last)
        torch.testing.assert_close(vector(first), vector(third), rtol=0, atol=0)
        initialise(first, seeded(1), scheme=scheme)
        initialise(second, seeded(1), scheme=scheme)
        initialise(third, seeded(2), scheme=scheme)
        assert torch.equal(torch.get_rng_state(), before)
        assert torch.equal(vector(first).double(), vector(second))
        for key, parameter in first.named_parameters():
            if parameter.ndim > 1:
                assert not torch.equal(parameter, third.get_parameter(key))

    @pytest.mark.parametrize("scheme", ["xavier", "kaiming"])
    def test_it_resets_everything(self, scheme: str) -> None:
        used, fresh = build("resnet8", classes=5, shortcut="B"), build("resnet8", classes=5, shortcut="B")
        with torch.no_grad():
            for parameter in used.parameters():
                parameter.fill_(math.nan)
        used(example("resnet8", 4))
        initialise(used, seeded(1), scheme=scheme)
        initialise(fresh, seeded(1), scheme=scheme)
        for key, value in used.state_dict().items():
            assert torch.equal(value, fresh.state_dict()[key]), key

    @pytest.mark.parametrize("scheme", ["xavier", "kaiming"])
    def test_norms_are_the_identity(self, scheme: str) -> None:
        model = build("resnet8", classes=5)
        initialise(model, seeded(0), scheme=scheme)
        layers = [layer for layer in model.modules() if isinstance(layer, nn.BatchNorm2d)]
        assert len(layers) == 7
        for layer in layers:
            assert layer.running_mean is not None
            assert layer.running_var is not None
            assert layer.num_batches_tracked is not None
            assert layer.weight.eq(1).all()
            assert layer.running_var.eq(1).all()
            assert not layer.bias.any()
            assert not layer.running_mean.any()
            assert layer.num_batches_tracked.item() == 0

    def test_xavier_bounds(self) -> None:
        model = build("convnet", classes=10)
        initialise(model, seeded(0), scheme="xavier")
        # conv2: fans 9 * 32 and 9 * 64; hidden: fans 1024 and 64.
        for key, fans in (("conv2", 9 * 96), ("hidden", 1088)):
            weight, bound = model.get_parameter(f"{key}.weight"), math.sqrt(6 / fans)
            assert 0.99 * bound < weight.abs().max().item() <= bound
            assert weight.var().item() == pytest.approx(bound**2 / 3, rel=0.05)
            assert abs(weight.mean().item()) < 0.02 * bound
            assert not model.get_parameter(f"{key}.bias").any()

    def test_kaiming_statistics(self) -> None:
        model = build("convnet", classes=10)
        initialise(model, seeded(0), scheme="kaiming")
        conv = model.get_parameter("conv2.weight")
        assert conv.std().item() == pytest.approx(math.sqrt(2 / (3 * 3 * 64)), rel=0.03)
        assert conv.abs().max().item() > 3 * conv.std().item()  # normal: a uniform draw ends at 1.73
        assert not model.get_parameter("conv2.bias").any()
        for key in ("hidden.weight", "hidden.bias"):
            bounded = model.get_parameter(key)
            assert 0.9 / 32 < bounded.abs().max().item() <= 1 / 32

    def test_refusals(self) -> None:
        model = build("mlp", classes=3)
        with pytest.raises(ValueError, match=r"unknown scheme 'he'.*available: xavier, kaiming"):
            initialise(model, seeded(0), scheme="he")
        with pytest.raises(ValueError, match="got Embedding"):
            initialise(nn.Sequential(nn.Embedding(3, 2)), seeded(0), scheme="xavier")


class TestNames:
    def test_every_name_builds(self) -> None:
        for name, label in NAMES.items():
            assert isinstance(build(name, classes=2), nn.Module)
            assert label.replace("-", "").lower() == name

    @pytest.mark.parametrize("name", ["resnet21", "ResNet-20", "RESNET20"])
    def test_unknown_name(self, name: str) -> None:
        with pytest.raises(
            ValueError, match="nearest match: 'resnet20'; available: mlp, convnet, resnet8, resnet20"
        ):
            build(name, classes=10)

    @pytest.mark.parametrize(
        ("name", "option", "nearest", "available"),
        [
            ("convnet", "extra_layer", "extra_layers", "extra_layers"),
            ("mlp", "width", "hidden", "features, hidden"),
            ("resnet20", "normalisation", "norm", "shortcut, norm, groups"),
            ("resnet20", "depth", "", "shortcut, norm, groups"),
            ("mobilenetv2", "norm", "shortcut", "shortcut"),
        ],
    )
    def test_unknown_option(self, name: str, option: str, nearest: str, available: str) -> None:
        with pytest.raises(ValueError) as caught:
            build(name, classes=10, **{option: 1})
        assert f"{name} has no option '{option}'" in str(caught.value)
        assert str(caught.value).endswith(f"available: {available}")
        assert f"nearest match: '{nearest}" in str(caught.value)

    @pytest.mark.parametrize(
        ("name", "options", "message"),
        [
            ("mlp", {"classes": 0}, "classes must be at least 1, got 0"),
            ("mlp", {"classes": 2, "hidden": 0}, "hidden must be at least 1, got 0"),
            ("convnet", {"classes": 2, "extra_layers": -1}, "extra_layers must be at least 0, got -1"),
            ("resnet8", {"classes": 0}, "classes must be at least 1, got 0"),
            ("resnet8", {"classes": 2, "shortcut": "C"}, "shortcut must be one of A, B, got 'C'"),
            ("resnet8", {"classes": 2, "norm": "layer"}, "norm must be one of batch, group, got 'layer'"),
            ("resnet8", {"classes": 2, "norm": "group"}, "groups goes with norm='group'"),
            ("resnet8", {"classes": 2, "groups": 2}, "groups goes with norm='group'"),
            ("resnet8", {"classes": 2, "norm": "group", "groups": 3}, "groups must divide 16, got 3"),
            ("mobilenetv2", {"classes": 0}, "classes must be at least 1, got 0"),
            (
                "mobilenetv2",
                {"classes": 2, "shortcut": "A"},
                "shortcut must be one of projection, original, got 'A'",
            ),
        ],
    )
    def test_bad_values(self, name: str, options: dict[str, int], message: str) -> None:
        with pytest.raises(ValueError, match=message):
            build(name, **options)

    @pytest.mark.parametrize("depth", [2, 18])
    def test_bad_depth(self, depth: int) -> None:
        with pytest.raises(ValueError, match=r"depth must be 6n \+ 2 with n at least 1"):
            ResNet(classes=10, depth=depth)
