"""MobileNetV2 (Sandler et al. 2018) for small images, whose sides are divided by 8 and not by 32.

timm's and torchvision's are not taken: they have ReLU6, no projections, and five strides of 2 for 224x224 images.
"""

import torch.nn.functional as F
from torch import Tensor, nn

STEM = 32
# Expansion, channels, number of blocks and the first one's stride (Table 2 of the paper; its strides for 224x224
# images are 2 in the stem and in the stage with 24 channels as well).
STAGES = (
    (1, 16, 1, 1),
    (6, 24, 2, 1),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)
FEATURES = 1280
SHORTCUTS = ("projection", "original")


class Block(nn.Module):
    """An inverted residual: widen by a 1x1 convolution, filter each channel by itself, narrow without activation.

    The sum with the shortcut is not followed by an activation either. Blocks with stride 2 have no shortcut.

    Args:
        width_in: number of input channels.
        width: number of output channels.
        expansion: channels between, relative to `width_in`.
        stride: of the 3x3 convolution, 1 or 2.
        shortcut: what a block with stride 1 has where the width changes, and one with expansion 1 at its start:
            "projection" (a 1x1 convolution and norm in both places) or "original" (neither).
    """

    def __init__(self, width_in: int, width: int, *, expansion: int, stride: int, shortcut: str) -> None:
        """Make the layers; their starting point comes from `fedrepro.models.initialise`."""
        super().__init__()
        between = expansion * width_in
        self.expand: nn.Conv2d | None = None
        self.expand_norm: nn.BatchNorm2d | None = None
        if expansion > 1 or shortcut == "projection":
            self.expand = nn.Conv2d(width_in, between, 1, bias=False)
            self.expand_norm = nn.BatchNorm2d(between)
        self.depthwise = nn.Conv2d(between, between, 3, stride, padding=1, groups=between, bias=False)
        self.depthwise_norm = nn.BatchNorm2d(between)
        self.reduce = nn.Conv2d(between, width, 1, bias=False)
        self.reduce_norm = nn.BatchNorm2d(width)
        self.identity = stride == 1 and width == width_in
        self.projection: nn.Conv2d | None = None
        self.projection_norm: nn.BatchNorm2d | None = None
        if stride == 1 and width != width_in and shortcut == "projection":
            self.projection = nn.Conv2d(width_in, width, 1, bias=False)
            self.projection_norm = nn.BatchNorm2d(width)

    def forward(self, x: Tensor) -> Tensor:
        """Return `[N, width, H / stride, H / stride]`, rounded up, for `x` `[N, width_in, H, H]`."""
        y = x
        if self.expand is not None and self.expand_norm is not None:
            y = F.relu(self.expand_norm(self.expand(y)), inplace=True)
        y = F.relu(self.depthwise_norm(self.depthwise(y)), inplace=True)
        y = self.reduce_norm(self.reduce(y))
        if self.identity:
            y = y + x
        elif self.projection is not None and self.projection_norm is not None:
            y = y + self.projection_norm(self.projection(x))
        return y


class MobileNetV2(nn.Module):
    """A stem, 17 inverted residuals, a 1x1 convolution to 1280 channels and a linear layer; ReLU, not ReLU6.

    The variant for CIFAR that FedDF's released code uses; FedBE names MobileNetV2 for Tiny-ImageNet, but its
    released code does not contain it. The last layer takes the global average, so images of any size work.

    Args:
        classes: number of classes C, at least 1.
        shortcut: "projection" (FedDF's released code: 1x1 convolution and norm as the shortcut of blocks with
            stride 1 that change the width, and at the start of the first block) or "original" (Sandler et al.:
            identity shortcuts only, and a first block that starts with its 3x3 convolution).

    Raises:
        ValueError: if an argument breaks one of these rules.
    """

    def __init__(self, *, classes: int, shortcut: str = "projection") -> None:
        """Make the layers; their starting point comes from `fedrepro.models.initialise`."""
        super().__init__()
        if classes < 1:
            raise ValueError(f"classes must be at least 1, got {classes}")
        if shortcut not in SHORTCUTS:
            raise ValueError(f"shortcut must be one of {', '.join(SHORTCUTS)}, got {shortcut!r}")
        self.stem = nn.Conv2d(3, STEM, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(STEM)
        self.blocks = nn.ModuleList()
        width_in = STEM
        for expansion, width, count, first in STAGES:
            for stride in (first, *[1] * (count - 1)):
                block = Block(width_in, width, expansion=expansion, stride=stride, shortcut=shortcut)
                self.blocks.append(block)
                width_in = width
        self.head = nn.Conv2d(width_in, FEATURES, 1, bias=False)
        self.head_norm = nn.BatchNorm2d(FEATURES)
        self.output = nn.Linear(FEATURES, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits `[N, C]` of images `[N, 3, H, H]`."""
        x = F.relu(self.norm(self.stem(x)), inplace=True)
        for block in self.blocks:
            x = block(x)
        x = F.relu(self.head_norm(self.head(x)), inplace=True)
        # Not x.mean((2, 3)), whose gradient loses the memory format (see `resnet.subsample`).
        logits: Tensor = self.output(F.avg_pool2d(x, x.shape[2:]).flatten(1))
        return logits
