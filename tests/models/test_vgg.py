import torch
import torch.nn.functional as F
from network_cases import seeded
from torch import Tensor, nn

from fedrepro.models import build


def pass_on(model: nn.Module) -> None:
    """Let each convolution hand on its first input channel as its first output channel, and nothing else."""
    for layer in model.modules():
        if isinstance(layer, nn.Conv2d):
            nn.init.zeros_(layer.weight)
            with torch.no_grad():
                layer.weight[0, 0, 1, 1] = 1.0
                if layer.bias is not None:
                    layer.bias.zero_()


def last_inputs(model: nn.Module, layer: str) -> list[Tensor]:
    found: list[Tensor] = []
    model.get_submodule(layer).register_forward_pre_hook(lambda _module, inputs: found.append(inputs[0]))
    return found


class TestVGG9:
    def test_three_poolings(self) -> None:
        model = build("vgg9", classes=2).eval()
        pass_on(model)
        found = last_inputs(model, "hidden1")
        x = torch.randn(2, 3, 32, 32, generator=seeded(0))
        model(x)
        assert torch.equal(found[0].view(2, 256, 4, 4)[:, 0], F.max_pool2d(x[:, 0], 8))
        assert not found[0].view(2, 256, 4, 4)[:, 1:].any()

    def test_linear_layers_by_hand(self) -> None:
        model = build("vgg9", classes=2).eval()
        pass_on(model)
        for name in ("hidden1", "hidden2", "output"):
            layer = model.get_submodule(name)
            assert isinstance(layer, nn.Linear)
            nn.init.zeros_(layer.weight)
            nn.init.zeros_(layer.bias)
        with torch.no_grad():
            model.get_parameter("hidden1.weight")[0, :16] = (
                0.5  # the sum of the first channel's 4x4 values, halved
            )
            model.get_parameter("hidden1.bias")[0] = -1.0
            model.get_parameter("hidden2.weight")[:2, 0] = torch.tensor([2.0, -1.0])
            model.get_parameter("output.weight")[:, :2] = torch.tensor([[1.0, 1.0], [-3.0, 1.0]])
        # All pixels 0.25: 16 * 0.25 / 2 - 1 = 1; then (2, -1) -> (2, 0); then 2 and -6.
        assert model(torch.full((1, 3, 32, 32), 0.25)).tolist() == [[2.0, -6.0]]

    def test_dropout(self) -> None:
        model = build("vgg9", classes=2)
        pass_on(model)
        found = last_inputs(model, "convolutions.4")
        model(torch.ones(400, 3, 32, 32))
        first = found[0][:, 0]  # a whole channel is dropped, or all of it is divided by 1 - 0.05
        assert set(first.amax((1, 2)).tolist()) == set(first.amin((1, 2)).tolist())
        dropped = first[:, 0, 0].eq(0).float().mean().item()
        assert 0.01 < dropped < 0.1  # 0.05 within four standard errors of 0.011
        torch.testing.assert_close(first.max(), torch.tensor(1 / 0.95))
        rates = [layer.p for layer in model.modules() if isinstance(layer, nn.Dropout | nn.Dropout2d)]
        assert rates == [0.05, 0.1]


class TestSlim:
    def test_five_poolings(self) -> None:
        model = build("vgg9_slim", classes=2)
        pass_on(model)
        found = last_inputs(model, "output")
        x = torch.randn(2, 3, 32, 32, generator=seeded(0))
        model(x)
        assert found[0].shape == (2, 256)
        assert torch.equal(found[0][:, 0], x[:, 0].amax((1, 2)))
        assert not found[0][:, 1:].any()

    def test_widths(self) -> None:
        layers = build("vgg9_slim", classes=2, width=2).get_submodule("convolutions").children()
        assert [layer.out_channels for layer in layers if isinstance(layer, nn.Conv2d)] == [
            *(8, 16, 32, 32, 64, 64, 64, 64)
        ]
