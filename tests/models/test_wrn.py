import math

import pytest
import torch
import torch.nn.functional as F
from network_cases import seeded
from torch import nn

from fedrepro.models import build
from fedrepro.models.wrn import Block, WideResNet


def test_shortcut_after_norm_and_activation() -> None:
    block = Block(8, 12, stride=2).eval()  # fresh statistics: the norm only divides
    nn.init.zeros_(block.conv2.weight)  # the residual branch is off
    assert block.projection is not None
    x = torch.randn(2, 8, 6, 6, generator=seeded(0))
    a = F.relu(x[:, :, ::2, ::2]) / math.sqrt(1 + 1e-5)
    torch.testing.assert_close(block(x), torch.einsum("oi,nihw->nohw", block.projection.weight[:, :, 0, 0], a))


def test_identity_without_norm_or_activation() -> None:
    block = Block(8, 8, stride=1)
    nn.init.zeros_(block.conv2.weight)
    x = torch.randn(2, 8, 6, 6, generator=seeded(0))
    assert torch.equal(block(x), x)


def test_block_by_hand() -> None:
    block = Block(1, 1, stride=1).eval()
    with torch.no_grad():
        block.conv1.weight.zero_()[0, 0, 1, :2] = torch.tensor([1.0, 2.0])  # left and centre
        block.conv2.weight.zero_()[0, 0, 1, 1] = -1.0
    block.norm1.eps = block.norm2.eps = 0.0
    # [1, -2, 4]: activated (1, 0, 4); filtered (2, 1, 8); activated and times -1; plus x.
    assert block(torch.tensor([[[[1.0, -2.0, 4.0]]]])).flatten().tolist() == [-2 + 1, -1 - 2, -8 + 4]


@pytest.mark.parametrize("side", [32, 64])
def test_stages(side: int) -> None:
    model = build("wrn16_2", classes=7)
    shapes = []
    for block in model.get_submodule("blocks").children():
        block.register_forward_hook(lambda _module, _inputs, output: shapes.append(tuple(output.shape[1:])))
    assert model(torch.zeros(2, 3, side, side)).shape == (2, 7)
    stages = [(32, side, side), (64, side // 2, side // 2), (128, side // 4, side // 4)]
    assert shapes == [stage for stage in stages for _ in range(2)]


def test_projections_where_the_width_changes() -> None:
    blocks = build("wrn16_2", classes=7).get_submodule("blocks").children()
    assert ["projection" in dict(block.named_children()) for block in blocks] == [True, False] * 3


def test_bad_values() -> None:
    with pytest.raises(ValueError, match=r"depth must be 6n \+ 4 with n at least 1, got 18"):
        WideResNet(classes=10, depth=18, factor=2)
    with pytest.raises(ValueError, match="factor must be at least 1, got 0"):
        WideResNet(classes=10, depth=16, factor=0)
