"""Networks for the tests in this folder, and inputs for them."""

import torch
from torch import Tensor, nn

SMALL: list[tuple[str, dict[str, int | str]]] = [
    ("mlp", {}),
    ("convnet", {"extra_layers": 1}),
    ("resnet8", {"shortcut": "A"}),
    ("resnet8", {"shortcut": "B"}),
    ("resnet14", {"shortcut": "where_shapes_change"}),
    ("resnet8", {"norm": "group", "groups": 2}),
]
# Larger, so only in those tests that stay quick with them.
LARGE: list[tuple[str, dict[str, int | str]]] = [
    ("mobilenetv2", {}),
    ("wrn16_2", {}),
    ("vgg9", {}),
    ("vgg9_slim", {}),
]


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def example(name: str, images: int, dtype: torch.dtype = torch.float32) -> Tensor:
    shape = (images, 2) if name == "mlp" else (images, 3, 32, 32)
    return torch.randn(shape, generator=seeded(7), dtype=dtype)


def vector(module: nn.Module) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in module.parameters()])
