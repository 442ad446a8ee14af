import math

import pytest
import torch
from network_cases import example, seeded
from torch import Tensor, nn

from fedrepro.models import build, mobilenet, parameter_count


class TestMobileNet:
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

    def test_the_libraries_have_another(self) -> None:
        pytest.importorskip("timm")
        for name in ("timm/mobilenetv2_100", "torchvision/mobilenet_v2"):
            theirs = build(name, classes=10, stem="small")
            # The paper's count, which ours has without projections only.
            assert (
                parameter_count(theirs) == 2_236_682 == parameter_count(build("mobilenetv2", classes=10)) - 60_240
            )
            kinds = {type(layer) for layer in theirs.modules()}
            assert nn.ReLU6 in kinds
            assert nn.ReLU6 not in {type(layer) for layer in build("mobilenetv2", classes=10).modules()}
            halvings = [
                layer for layer in theirs.modules() if isinstance(layer, nn.Conv2d) and layer.stride == (2, 2)
            ]
            assert len(halvings) == 4  # and one in the stem that they have for large images


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
