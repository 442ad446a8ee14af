import sys

import pytest
import torch
from torch import Tensor, nn

from fedrepro.models import build, parameter_count, sources
from fedrepro.models.architecture import Architecture


def side_before_pooling(model: nn.Module, layer: str) -> int:
    """Return the side of the last feature map that a layer gives for 32x32 images."""
    sides: list[int] = []

    def note(_module: nn.Module, _inputs: tuple[Tensor, ...], output: Tensor) -> None:
        sides.append(output.shape[-1])

    model.get_submodule(layer).register_forward_hook(note)
    with torch.no_grad():
        logits = model.eval()(torch.zeros(2, 3, 32, 32))
    assert logits.shape == (2, 7)
    return sides[0]


class TestStem:
    @pytest.mark.parametrize(
        ("name", "layer", "own", "small"),
        [
            ("torchvision/resnet18", "layer4", 1, 4),
            ("torchvision/shufflenet_v2_x1_0", "conv5", 1, 4),
            ("timm/resnet18", "layer4", 1, 4),
            ("timm/test_convnext", "stages", 1, 4),
        ],
    )
    def test_small(self, name: str, layer: str, own: int, small: int) -> None:
        if name.startswith("timm/"):
            pytest.importorskip("timm")
        assert side_before_pooling(build(name, classes=7), layer) == own
        assert side_before_pooling(build(name, classes=7, stem="small"), layer) == small

    def test_resnet18_is_the_usual_one(self) -> None:
        model = build("torchvision/resnet18", classes=10, stem="small")
        assert parameter_count(model) == 11_173_962  # 11 181 642 with a 7x7 stem: 64 * 3 * (49 - 9) = 7 680 less
        assert isinstance(model.get_submodule("maxpool"), nn.Identity)
        conv = model.get_submodule("conv1")
        assert isinstance(conv, nn.Conv2d)
        assert (conv.kernel_size, conv.stride, conv.padding, conv.bias) == ((3, 3), (1, 1), (1, 1), None)

    def test_a_3x3_convolution_keeps_its_weights(self) -> None:
        model = nn.Sequential(nn.Conv2d(3, 2, 3, stride=2, padding=1), nn.MaxPool2d(2), nn.MaxPool2d(2))
        weight = model.get_parameter("0.weight").clone()
        x = torch.zeros(1, 3, 8, 8)
        assert (model(x).shape, sources.small_stem(model)(x).shape) == ((1, 2, 1, 1), (1, 2, 4, 4))
        assert torch.equal(model.get_parameter("0.weight"), weight)

    def test_the_class_of_the_convolution_stays(self) -> None:
        class Scaled(nn.Conv2d):
            pass

        model = sources.small_stem(nn.Sequential(Scaled(3, 2, 7, stride=2, padding=3, bias=False)))
        assert type(model.get_submodule("0")) is Scaled
        assert model.get_submodule("0").bias is None

    def test_where_no_convolution_is_found(self) -> None:
        with pytest.raises(ValueError, match="no convolution of Sequential takes three channels"):
            sources.small_stem(nn.Sequential(nn.Conv2d(4, 2, 3), nn.Linear(3, 2)))

    def test_where_it_does_not_fit(self) -> None:
        pytest.importorskip("timm")
        for _ in range(2):
            with pytest.raises(
                ValueError, match=r"^timm/repvgg_a0 has no small stem: RuntimeError: .*size of tensor"
            ):
                build("timm/repvgg_a0", classes=2, stem="small")


class TestSources:
    def test_the_nearest_name(self) -> None:
        with pytest.raises(
            ValueError, match=r"'torchvision/resnet19' \(did you mean 'resnet1[08]'\?\) in torchvision"
        ):
            build("torchvision/resnet19", classes=2)
        pytest.importorskip("timm")
        with pytest.raises(
            ValueError, match=r"'timm/resnet19' \(did you mean 'resnet1[08]'\?\) in timm\.list_models"
        ):
            build("timm/resnet19", classes=2)

    @pytest.mark.parametrize(
        "name", ["timm/resnet18.a1_in1k", "timm/hf-hub:timm/resnet18", "timm/", "hub/resnet18"]
    )
    def test_nothing_is_fetched(self, name: str) -> None:
        pytest.importorskip("timm")
        with pytest.raises(ValueError, match="unknown network"):
            build(name, classes=2)

    def test_without_timm(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "timm", None)
        told = r"^timm/resnet18 needs timm, .*: pip install -e '\.\[notebooks\]'$"
        with pytest.raises(ValueError, match=told):
            build("timm/resnet18", classes=2)

    @pytest.mark.parametrize("name", ["torchvision/googlenet", "torchvision/mnasnet0_5"])
    def test_one_tensor_in_training(self, name: str) -> None:
        assert build(name, classes=7)(torch.zeros(2, 3, 64, 64)).shape == (2, 7)

    def test_starts_and_global_state(self) -> None:
        before = torch.get_rng_state()
        architecture = Architecture("torchvision/resnet18", 10, (("stem", "small"),), "own")
        one, same, other, second = (
            architecture.start(seed, model) for seed, model in ((0, 0), (0, 0), (1, 0), (0, 1))
        )
        assert torch.equal(one.params, same.params)
        assert not torch.equal(one.params, other.params)
        assert not torch.equal(one.params, second.params)
        assert torch.equal(torch.get_rng_state(), before)
        first, again = (architecture.make().get_parameter("conv1.weight") for _ in range(2))
        assert torch.equal(first, again)

    def test_tables_are_made_and_not_left_empty(self) -> None:
        index = build("torchvision/swin_t", classes=2).get_buffer("features.1.0.attn.relative_position_index")
        assert (index.min().item(), index.max().item()) == (0, 13 * 13 - 1)

    def test_parameters_on_a_module_itself_need_the_own_start(self) -> None:
        pytest.importorskip("timm")
        with pytest.raises(ValueError, match="got VisionTransformer with cls_token, pos_embed; the scheme 'own'"):
            Architecture("timm/test_vit", 3).start(0)
        assert Architecture("timm/test_vit", 3, scheme="own").start(0).params.isfinite().all()
