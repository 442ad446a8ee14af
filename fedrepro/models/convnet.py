"""The small convolutional network of FedBE, for 32x32 RGB images."""

import torch.nn.functional as F
from torch import Tensor, nn

IMAGE_SHAPE = (3, 32, 32)

MOST = 1000  # further layers


class ConvNet(nn.Module):
    """Three unpadded 3x3 convolutions (32, 64, 64) and two linear layers, all with bias.

    FedBE names it after the convolutional network of the TensorFlow tutorial. Its Figure 2 deepens it by
    `extra_layers` padded 3x3 convolutions (64 to 64, ReLU) after the third one.

    Args:
        classes: number of classes C, at least 1.
        extra_layers: number of additional convolutions, at least 0.

    Raises:
        ValueError: if `classes` is below 1, or `extra_layers` below 0 or above `MOST`.
    """

    def __init__(self, *, classes: int, extra_layers: int = 0) -> None:
        """Make the layers; their starting point comes from `fedrepro.models.initialise`."""
        super().__init__()
        if classes < 1:
            raise ValueError(f"classes must be at least 1, got {classes}")
        if not 0 <= extra_layers <= MOST:
            raise ValueError(f"extra_layers must be at least 0 and at most {MOST}, got {extra_layers}")
        self.conv1 = nn.Conv2d(3, 32, 3)
        self.conv2 = nn.Conv2d(32, 64, 3)
        self.conv3 = nn.Conv2d(64, 64, 3)
        self.extra = nn.ModuleList(nn.Conv2d(64, 64, 3, padding=1) for _ in range(extra_layers))
        self.hidden = nn.Linear(64 * 4 * 4, 64)
        self.output = nn.Linear(64, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits `[N, C]` of images `[N, 3, 32, 32]`; another shape is a ValueError."""
        if x.shape[1:] != IMAGE_SHAPE:
            raise ValueError(f"ConvNet takes images [N, 3, 32, 32], got {list(x.shape)}")
        # ReLU may come after the pooling: the same bits, also of the gradients, for a quarter of the work.
        x = F.relu(F.max_pool2d(self.conv1(x), 2))
        x = F.relu(F.max_pool2d(self.conv2(x), 2))
        x = F.relu(self.conv3(x))
        for conv in self.extra:
            x = F.relu(conv(x))
        logits: Tensor = self.output(F.relu(self.hidden(x.flatten(1))))
        return logits
