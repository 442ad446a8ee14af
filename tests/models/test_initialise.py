import math

import pytest
import torch
from network_cases import LARGE, SMALL, example, seeded, vector
from torch import nn

from fedrepro.models import build, initialise


class TestInitialise:
    @pytest.mark.parametrize("scheme", ["xavier", "kaiming"])
    @pytest.mark.parametrize(("name", "options"), [*SMALL, *LARGE])
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

    @pytest.mark.parametrize("scheme", ["xavier", "kaiming"])
    def test_embeddings_and_layer_norms(self, scheme: str) -> None:
        model = nn.Sequential(nn.Embedding(200, 50, padding_idx=3), nn.LayerNorm(50), nn.LayerNorm(50, bias=False))
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.fill_(math.nan)
        initialise(model, seeded(0), scheme=scheme)
        rows = model.get_parameter("0.weight")
        assert not rows[3].any()
        assert rows[rows != 0].std().item() == pytest.approx(0.02, rel=0.03)
        assert rows.abs().max().item() > 3 * 0.02
        assert model.get_parameter("1.weight").eq(1).all()
        assert model.get_parameter("2.weight").eq(1).all()
        assert not model.get_parameter("1.bias").any()

    def test_refusals(self) -> None:
        model = build("mlp", classes=3)
        with pytest.raises(ValueError, match=r"unknown scheme 'he'; there are xavier, kaiming, own"):
            initialise(model, seeded(0), scheme="he")
        with pytest.raises(ValueError, match=r"makes the network anew, with Architecture\.start"):
            initialise(model, seeded(0), scheme="own")

    @pytest.mark.parametrize(
        ("layer", "held"),
        [
            (nn.Conv1d(2, 2, 1), "Conv1d with bias, weight"),
            (nn.MultiheadAttention(4, 2), "MultiheadAttention with in_proj_bias, in_proj_weight"),
            (nn.PReLU(), "PReLU with weight"),
        ],
    )
    def test_other_layers_need_their_own_start(self, layer: nn.Module, held: str) -> None:
        with pytest.raises(ValueError, match=f"got {held}; the scheme 'own'"):
            initialise(nn.Sequential(layer), seeded(0), scheme="xavier")

    def test_a_known_layer_with_more_on_it_is_another(self) -> None:
        layer = nn.Linear(2, 2)
        layer.register_parameter("gain", nn.Parameter(torch.ones(2)))
        with pytest.raises(ValueError, match="got Linear with bias, gain, weight"):
            initialise(layer, seeded(0), scheme="kaiming")
