"""Wide residual networks of depth 6n + 4 for small images (Zagoruyko and Komodakis 2016), activations first.

Those of timm and torchvision are not taken: they have bottlenecks and activations last, for 224x224 images.
"""

import torch.nn.functional as F
from torch import Tensor, nn

STEM = 16
WIDTHS = (16, 32, 64)  # times the factor


class Block(nn.Module):
    """Two 3x3 convolutions, each after its norm and activation, around a shortcut: `F(a) + shortcut(a)`.

    `a = relu(norm1(x))`. Where the width changes, the shortcut is a 1x1 convolution of `a`, otherwise `x` itself.

    Args:
        width_in: number of input channels.
        width: number of output channels.
        stride: of the first convolution and the shortcut's.
    """

    def __init__(self, width_in: int, width: int, *, stride: int) -> None:
        """Make the layers; their starting point comes from `fedrepro.models.initialise`."""
        super().__init__()
        self.norm1 = nn.BatchNorm2d(width_in)
        self.conv1 = nn.Conv2d(width_in, width, 3, stride, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.projection: nn.Conv2d | None = None
        if width != width_in:
            self.projection = nn.Conv2d(width_in, width, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return `[N, width, H / stride, H / stride]`, rounded up, for `x` `[N, width_in, H, H]`."""
        a = F.relu(self.norm1(x), inplace=True)
        y: Tensor = self.conv2(F.relu(self.norm2(self.conv1(a)), inplace=True))
        return y + (x if self.projection is None else self.projection(a))


class WideResNet(nn.Module):
    """A stem, three stages of n blocks with 16, 32 and 64 times `factor` channels, and a linear layer; no dropout.

    The last layer takes the global average, so images of any size work.

    Args:
        classes: number of classes C, at least 1.
        depth: number of weighted layers 6n + 4: 10, 16, 22, ...
        factor: how much wider than a ResNet, at least 1; 1 keeps the stem's width in the first stage.

    Raises:
        ValueError: if an argument breaks one of these rules.
    """

    def __init__(self, *, classes: int, depth: int, factor: int) -> None:
        """Make the layers; their starting point comes from `fedrepro.models.initialise`."""
        super().__init__()
        for name, size in (("classes", classes), ("factor", factor)):
            if size < 1:
                raise ValueError(f"{name} must be at least 1, got {size}")
        if depth < 10 or depth % 6 != 4:
            raise ValueError(f"depth must be 6n + 4 with n at least 1, got {depth}")
        self.stem = nn.Conv2d(3, STEM, 3, padding=1, bias=False)
        self.blocks = nn.ModuleList()
        width_in = STEM
        for width, first in zip(WIDTHS, (1, 2, 2)):
            for stride in (first, *[1] * ((depth - 4) // 6 - 1)):
                self.blocks.append(Block(width_in, factor * width, stride=stride))
                width_in = factor * width
        self.norm = nn.BatchNorm2d(width_in)
        self.output = nn.Linear(width_in, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits `[N, C]` of images `[N, 3, H, H]`."""
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        x = F.relu(self.norm(x), inplace=True)
        # Not x.mean((2, 3)), whose gradient loses the memory format (see `resnet.subsample`).
        logits: Tensor = self.output(F.avg_pool2d(x, x.shape[2:]).flatten(1))
        return logits
