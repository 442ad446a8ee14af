"""Plain stacks of 3x3 convolutions (Simonyan and Zisserman 2015) with nine weighted layers, for 32x32 RGB images.

torchvision's `vgg` is not taken: its widths are fixed, and after a 7x7 pooling it has two layers of 4096 units.
"""

from itertools import pairwise

import torch.nn.functional as F
from torch import Tensor, nn

IMAGE_SHAPE = (3, 32, 32)
# Widths of the convolutions between two poolings.
FEDMA = ((32, 64), (128, 128), (256, 256))
SLIM = ((4,), (8,), (16, 16), (32, 32), (32, 32))  # times the width
HIDDEN = 512


def _convolutions(stages: tuple[tuple[int, ...], ...], *, bias: bool) -> nn.ModuleList:
    widths = [3, *(width for stage in stages for width in stage)]
    return nn.ModuleList(nn.Conv2d(a, b, 3, padding=1, bias=bias) for a, b in pairwise(widths))


def _check(name: str, x: Tensor) -> None:
    if x.shape[1:] != IMAGE_SHAPE:
        raise ValueError(f"{name} takes images [N, 3, 32, 32], got {list(x.shape)}")


class VGG9(nn.Module):
    """The network of FedMA (Wang et al. 2020): six convolutions, three poolings, three linear layers.

    Dropout: whole channels with probability 0.05 after the second pooling, units with 0.1 before the first and
    the last linear layer. FedDF's Table 3 names it.

    Args:
        classes: number of classes C, at least 1.
        bias: whether convolutions have biases (FedMA) or not (the network of this shape in FedDF's code).

    Raises:
        ValueError: if `classes` is below 1.
    """

    def __init__(self, *, classes: int, bias: bool = True) -> None:
        """Make the layers; their starting point comes from `fedrepro.models.initialise`."""
        super().__init__()
        if classes < 1:
            raise ValueError(f"classes must be at least 1, got {classes}")
        self.convolutions = _convolutions(FEDMA, bias=bias)
        self.channel_dropout = nn.Dropout2d(0.05)
        self.dropout = nn.Dropout(0.1)
        self.hidden1 = nn.Linear(FEDMA[-1][-1] * 4 * 4, HIDDEN)
        self.hidden2 = nn.Linear(HIDDEN, HIDDEN)
        self.output = nn.Linear(HIDDEN, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits `[N, C]` of images `[N, 3, 32, 32]`; another shape is a ValueError."""
        _check("VGG9", x)
        for number, convolution in enumerate(self.convolutions, 1):
            x = convolution(x)
            if number % 2 == 0:
                x = F.max_pool2d(x, 2)
            x = F.relu(x, inplace=True)  # after the pooling: the same bits for a quarter of the work
            if number == 4:
                x = self.channel_dropout(x)
        x = F.relu(self.hidden1(self.dropout(x.flatten(1))))
        x = F.relu(self.hidden2(x))
        logits: Tensor = self.output(self.dropout(x))
        return logits


class SlimVGG9(nn.Module):
    """VGG-11's eight convolutions and five poolings, narrower, with one linear layer; no norm, no dropout.

    The other network of nine layers in FedDF's released code, whose paper does not say which one it uses.

    Args:
        classes: number of classes C, at least 1.
        width: factor w on (4, 8, 16, 16, 32, 32, 32, 32) channels, at least 1; 16 gives VGG-11's.

    Raises:
        ValueError: if an argument is below 1.
    """

    def __init__(self, *, classes: int, width: int = 8) -> None:
        """Make the layers; their starting point comes from `fedrepro.models.initialise`."""
        super().__init__()
        for name, size in (("classes", classes), ("width", width)):
            if size < 1:
                raise ValueError(f"{name} must be at least 1, got {size}")
        self.convolutions = _convolutions(tuple(tuple(width * w for w in stage) for stage in SLIM), bias=True)
        self.output = nn.Linear(width * SLIM[-1][-1], classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits `[N, C]` of images `[N, 3, 32, 32]`; another shape is a ValueError."""
        _check("SlimVGG9", x)
        layers = iter(self.convolutions)
        for stage in SLIM:
            for _ in stage[:-1]:
                x = F.relu(next(layers)(x), inplace=True)
            x = F.max_pool2d(next(layers)(x), 2)
            x = F.relu(x, inplace=True)  # after the pooling: the same bits for a quarter of the work
        logits: Tensor = self.output(x.flatten(1))
        return logits
