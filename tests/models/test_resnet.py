import math

import pytest
import torch
import torch.nn.functional as F
from network_cases import SMALL, seeded
from torch import nn

from fedrepro.models import build
from fedrepro.models.resnet import Block, ResNet, subsample


class TestResNet:
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

    @pytest.mark.parametrize("depth", [2, 18])
    def test_bad_depth(self, depth: int) -> None:
        with pytest.raises(ValueError, match=r"depth must be 6n \+ 2 with n at least 1"):
            ResNet(classes=10, depth=depth)


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

    def test_a_shortcut_only_where_shapes_change(self) -> None:
        widens, stays = (Block(16, width, shortcut="where_shapes_change", groups=None) for width in (32, 16))
        for block in (widens, stays):
            nn.init.zeros_(block.norm2.get_parameter("weight"))  # the residual branch is off
        x = torch.randn(2, 16, 8, 8, generator=seeded(0))
        assert torch.equal(widens(x)[:, 8:24], F.relu(x[:, :, ::2, ::2]))  # option A
        assert not stays(x).any()

    def test_two_of_the_fifteen_blocks_of_resnet32_have_one(self) -> None:
        network = build("resnet32", classes=10, shortcut="where_shapes_change")
        blocks = [block for block in network.modules() if isinstance(block, Block)]
        assert [place for place, block in enumerate(blocks) if block.joined] == [5, 10]
        assert [block.padding for block in blocks if block.joined] == [8, 16]

    def test_subsample_keeps_channels_last(self) -> None:
        x = torch.randn(2, 16, 8, 8, generator=seeded(0)).to(memory_format=torch.channels_last)
        y = subsample(x, padding=8)
        assert y.is_contiguous(memory_format=torch.channels_last)
        assert torch.equal(y, subsample(x.contiguous(), padding=8))
