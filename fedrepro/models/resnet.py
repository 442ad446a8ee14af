"""Residual networks of depth 6n + 2 for small images (He et al. 2016, section 4.2)."""

import torch.nn.functional as F
from torch import Tensor, nn

WIDTHS = (16, 32, 64)
SHORTCUTS = ("A", "B", "where_shapes_change")
NORMS = ("batch", "group")


def subsample(x: Tensor, *, padding: int) -> Tensor:
    """Return the parameter-free shortcut (He et al. 2016, option A) of an identity that shrinks and widens.

    Every second row and column is kept, starting with the first, and zero channels are added, half before
    and half after the old ones, so that old channel `c` becomes channel `c + padding`.

    Args:
        x: activations `[N, W, H, H]`; their memory format is kept.
        padding: zero channels on either side, at least 0.

    Returns:
        Activations `[N, W + 2 * padding, ceil(H / 2), ceil(H / 2)]`.
    """
    # A pooling window of one pixel picks the values exactly; a slice would, too, but its gradient is laid out
    # in the default memory format, which then costs a copy in every layer below.
    return F.pad(F.avg_pool2d(x, 1, stride=2), (0, 0, 0, 0, padding, padding))


def _norm(width: int, groups: int | None) -> nn.Module:
    return nn.BatchNorm2d(width) if groups is None else nn.GroupNorm(groups, width)


class Block(nn.Module):
    """Two 3x3 convolutions around a shortcut, the activation last: `relu(F(x) + shortcut(x))`.

    Args:
        width_in: number of input channels.
        width: number of output channels.
        shortcut: "A" (subsample and pad) or "B" (1x1 convolution and norm), used only if the width changes; where
            it stays, x itself is the shortcut. "where_shapes_change": "A" where the width changes, else none.
        groups: groups of GroupNorm; None means BatchNorm.
    """

    def __init__(self, width_in: int, width: int, *, shortcut: str, groups: int | None) -> None:
        """Make the layers; their starting point comes from `fedrepro.models.initialise`."""
        super().__init__()
        changes = width != width_in
        stride = 2 if changes else 1
        self.conv1 = nn.Conv2d(width_in, width, 3, stride, padding=1, bias=False)
        self.norm1 = _norm(width, groups)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm2 = _norm(width, groups)
        self.joined = changes or shortcut != "where_shapes_change"  # whether there is a shortcut at all
        self.padding = (width - width_in) // 2 if changes and shortcut != "B" else 0
        self.projection: nn.Conv2d | None = None
        self.projection_norm: nn.Module | None = None
        if changes and shortcut == "B":
            self.projection = nn.Conv2d(width_in, width, 1, stride, bias=False)
            self.projection_norm = _norm(width, groups)

    def forward(self, x: Tensor) -> Tensor:
        """Return `[N, width, H, H]` for `x` `[N, width_in, H, H]`; H halves where the width changes."""
        y = self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x)), inplace=True)))
        if not self.joined:
            return F.relu(y, inplace=True)
        if self.padding:
            x = subsample(x, padding=self.padding)
        elif self.projection is not None and self.projection_norm is not None:
            x = self.projection_norm(self.projection(x))
        return F.relu(y + x, inplace=True)


class ResNet(nn.Module):
    """A stem, three stages of n blocks with 16, 32 and 64 channels, and a linear layer: depth 6n + 2.

    The last layer takes the global average, so images of any size work (FedBE: 32x32 and 64x64).

    Args:
        classes: number of classes C, at least 1.
        depth: number of weighted layers 6n + 2: 8, 14, 20, 26, 32, ...
        shortcut: "A" (He et al. on CIFAR; no parameters), "B" (1x1 convolution with stride 2 and norm), or
            "where_shapes_change" (FedBE's released code: option A in the two blocks that widen, none elsewhere).
        norm: "batch" (He et al.) or "group".
        groups: groups of GroupNorm, a divisor of 16; to be given if and only if `norm` is "group".

    Raises:
        ValueError: if an argument breaks one of these rules.
    """

    def __init__(
        self,
        *,
        classes: int,
        depth: int,
        shortcut: str = "A",
        norm: str = "batch",
        groups: int | None = None,
    ) -> None:
        """Make the layers; their starting point comes from `fedrepro.models.initialise`."""
        super().__init__()
        if classes < 1:
            raise ValueError(f"classes must be at least 1, got {classes}")
        if depth < 8 or depth % 6 != 2:
            raise ValueError(f"depth must be 6n + 2 with n at least 1, got {depth}")
        if shortcut not in SHORTCUTS:
            raise ValueError(f"shortcut must be one of {', '.join(SHORTCUTS)}, got {shortcut!r}")
        if norm not in NORMS:
            raise ValueError(f"norm must be one of {', '.join(NORMS)}, got {norm!r}")
        if (norm == "group") != (groups is not None):
            raise ValueError(
                f"groups goes with norm='group' and with nothing else, got norm={norm!r}, groups={groups!r}"
            )
        if groups is not None and (groups < 1 or WIDTHS[0] % groups):
            raise ValueError(f"groups must divide {WIDTHS[0]}, got {groups}")
        self.stem = nn.Conv2d(3, WIDTHS[0], 3, padding=1, bias=False)
        self.norm = _norm(WIDTHS[0], groups)
        self.blocks = nn.ModuleList()
        width_in = WIDTHS[0]
        for width in WIDTHS:
            for _ in range((depth - 2) // 6):
                self.blocks.append(Block(width_in, width, shortcut=shortcut, groups=groups))
                width_in = width
        self.output = nn.Linear(width_in, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits `[N, C]` of images `[N, 3, H, H]`."""
        x = F.relu(self.norm(self.stem(x)), inplace=True)
        for block in self.blocks:
            x = block(x)
        # Not x.mean((2, 3)), whose gradient loses the memory format (see `subsample`).
        logits: Tensor = self.output(F.avg_pool2d(x, x.shape[2:]).flatten(1))
        return logits
