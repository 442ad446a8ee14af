import pytest
import torch
import torch.nn.functional as F
from network_cases import seeded
from torch import Tensor, nn

from fedrepro.core.rng import derive
from fedrepro.core.stack import Layout, Stack
from fedrepro.models import build, initialise
from fedrepro.models.architecture import Architecture, draws
from fedrepro.models.trial import attempt

# The first weights of two starts with seed 3, as they were before there were several models to a run.
CONVNET = [-0.11301620, -0.02302632, -0.03655789]
RESNET = [-0.04958286, 0.05946255, -0.07225721]


class Functional(nn.Module):
    """Dropout that no layer shows."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.output = nn.Linear(12, 3)
        self.rate = rate

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.output(F.dropout(x.flatten(1), self.rate, self.training))
        return logits


class TestRandom:
    @pytest.mark.parametrize(
        ("architecture", "random"),
        [
            (Architecture("vgg9", 10), True),
            (Architecture("vgg9_slim", 10), False),
            (Architecture("resnet20", 10), False),
            (Architecture("mlp", 10, (("features", 48),)), False),
            (Architecture("shufflenetv2", 10), False),
            (Architecture("torchvision/efficientnet_b0", 10), True),
        ],
    )
    def test_networks(self, architecture: Architecture, random: bool) -> None:
        before = torch.get_rng_state()
        assert architecture.random == draws(architecture) == random
        assert torch.equal(torch.get_rng_state(), before)

    def test_it_is_asked_once(self) -> None:
        assert Architecture("resnet8", 10).random == Architecture("resnet8", 10).random
        hits = draws.cache_info().hits
        assert not Architecture("resnet8", 10).random
        assert draws.cache_info().hits == hits + 1

    def test_functional_dropout(self) -> None:
        assert attempt("mine", Functional(0.5), (3, 2, 2)).drew
        assert not attempt("mine", Functional(0.0), (3, 2, 2)).drew

    def test_drop_path(self) -> None:
        timm = pytest.importorskip("timm")
        assert attempt("mine", timm.create_model("test_convnext", drop_path_rate=0.2), (3, 32, 32)).drew
        assert not Architecture("timm/test_convnext", 10).random

    def test_other_sizes_are_tried(self) -> None:
        def model(side: int) -> nn.Module:
            return nn.Sequential(nn.Flatten(), nn.Linear(3 * side * side, 2))

        assert attempt("mine", model(32), (3, 32, 32)).shape == (3, 32, 32)
        assert attempt("mine", model(64), (3, 32, 32)).shape == (3, 64, 64)
        assert attempt("mine", model(224), (3, 32, 32)).shape == (3, 224, 224)
        message = (
            r"^mine does not take inputs \[2, 3, 32, 32\], \[2, 3, 64, 64\], \[2, 3, 224, 224\]: RuntimeError"
        )
        with pytest.raises(ValueError, match=message):
            attempt("mine", model(16), (3, 32, 32))
        with pytest.raises(ValueError, match=r"does not take inputs \[2, 5\]: RuntimeError"):
            attempt("mine", model(1), (5,))

    def test_a_failing_pass_keeps_the_global_state(self) -> None:
        model = nn.Sequential(nn.Dropout(), nn.Linear(3, 3))
        before = torch.get_rng_state()
        with pytest.raises(ValueError, match="does not take inputs"):
            attempt("mine", model, (2,))
        assert torch.equal(torch.get_rng_state(), before)


class TestStart:
    @pytest.mark.parametrize("scheme", ["xavier", "kaiming", "own"])
    @pytest.mark.parametrize("name", ["mlp", "resnet8", "shufflenetv2"])
    def test_seed_and_model_decide(self, name: str, scheme: str) -> None:
        before = torch.get_rng_state()
        architecture = Architecture(name, 10, (), scheme)
        one, same = architecture.start(3), architecture.start(3, model=0)
        assert torch.equal(one.params, same.params)
        assert not torch.equal(one.params, architecture.start(3, model=1).params)
        assert not torch.equal(one.params, architecture.start(4).params)
        assert torch.equal(torch.get_rng_state(), before)

    def test_the_first_model_has_the_run_s_first_stream(self) -> None:
        module = build("resnet8", classes=10)
        initialise(module, seeded(derive(3, "initial model")), scheme="xavier")
        assert torch.equal(Architecture("resnet8", 10).start(3).params, Stack.of(module).params)

    def test_values_from_before(self) -> None:
        start = Architecture("convnet", 10).start(3).named_params()
        assert start["conv1.weight"].flatten()[:3].tolist() == pytest.approx(CONVNET, abs=1e-7)
        start = Architecture("resnet8", 10, (), "kaiming").start(3).named_params()
        assert start["stem.weight"].flatten()[:3].tolist() == pytest.approx(RESNET, abs=1e-6)

    def test_own_is_what_the_constructor_draws(self) -> None:
        start = Architecture("mlp", 3, (("hidden", 100),), "own").start(0).named_params()
        assert start["output.bias"].any()  # uniform within 1 / sqrt(100), PyTorch's default
        assert start["output.weight"].abs().max().item() == pytest.approx(0.1, rel=0.02)

    def test_unknown_scheme(self) -> None:
        with pytest.raises(ValueError, match="unknown scheme 'mine'"):
            Architecture("mlp", 3, (), "mine").start(0)


class TestValue:
    def test_layout(self) -> None:
        architecture = Architecture("resnet8", 10)
        assert architecture.layout == Layout.of(architecture.make())
        assert architecture.layout is Architecture("resnet8", 10).layout
        assert architecture.layout == architecture.start(0).layout

    def test_equal_and_hashable(self) -> None:
        one = Architecture("resnet8", 10, (("norm", "batch"),))
        assert one == Architecture("resnet8", 10, (("norm", "batch"),))
        assert len({one, Architecture("resnet8", 10), Architecture("resnet8", 9)}) == 3
        assert repr(Architecture("mlp", 3)) == "Architecture(name='mlp', classes=3, options=(), scheme='xavier')"

    def test_batch_norm(self) -> None:
        assert Architecture("wrn16_2", 10).batch_norm
        assert not Architecture("vgg9", 10).batch_norm

    def test_unknown_names_are_refused_when_made(self) -> None:
        with pytest.raises(ValueError, match="unknown network 'resnet9'"):
            Architecture("resnet9", 10).make()
