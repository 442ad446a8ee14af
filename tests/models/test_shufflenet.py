import pytest
import torch
from network_cases import seeded
from torch import nn
from torchvision.models.shufflenetv2 import InvertedResidual, channel_shuffle

from fedrepro.models import build


def test_channel_shuffle_by_hand() -> None:
    x = torch.arange(6.0).view(1, 6, 1, 1)  # two groups: 0 1 2 and 3 4 5, dealt in turn
    assert channel_shuffle(x, 2).flatten().tolist() == [0, 3, 1, 4, 2, 5]


def test_one_half_passes_the_unit() -> None:
    unit = InvertedResidual(4, 4, 1).eval()
    x = torch.randn(2, 4, 3, 3, generator=seeded(0))
    with torch.no_grad():
        y = unit(x)
    assert torch.equal(y[:, ::2], x[:, :2])  # shuffled with what came of the other half
    assert torch.equal(y[:, 1::2], unit.branch2(x[:, 2:]))


def test_both_branches_of_a_unit_with_stride_see_all_channels() -> None:
    unit = InvertedResidual(4, 6, 2).eval()
    x = torch.randn(2, 4, 6, 6, generator=seeded(0))
    with torch.no_grad():
        y = unit(x)
    assert y.shape == (2, 6, 3, 3)
    assert torch.equal(y[:, ::2], unit.branch1(x))
    assert torch.equal(y[:, 1::2], unit.branch2(x))


@pytest.mark.parametrize("side", [32, 64])
def test_stages(side: int) -> None:
    model = build("shufflenetv2", classes=7)
    shapes = []
    for layer in ("conv1", "maxpool", "stage2", "stage3", "stage4", "conv5"):
        model.get_submodule(layer).register_forward_hook(
            lambda _module, _inputs, output: shapes.append(tuple(output.shape[1:3]))
        )
    assert model(torch.zeros(2, 3, side, side)).shape == (2, 7)
    assert shapes == [
        *((24, side), (24, side), (116, side // 2), (232, side // 4), (464, side // 8), (1024, side // 8))
    ]


def test_units() -> None:
    model = build("shufflenetv2", classes=7)
    units = [list(model.get_submodule(f"stage{n}").children()) for n in (2, 3, 4)]
    assert [[u.stride for u in stage if isinstance(u, InvertedResidual)] for stage in units] == [
        *([2] + [1] * 3, [2] + [1] * 7, [2] + [1] * 3)
    ]
    assert not any(isinstance(layer, nn.MaxPool2d) for layer in model.modules())
