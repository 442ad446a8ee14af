"""From stored images to network inputs: gather, crop, flip, normalise, batched on the data's device.

Shapes: N images, B batch, H x W pixels, D features.
"""

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from fedrepro.data.data import Data
from fedrepro.kernels.batches import BatchPlan


class Pixels:
    """Images on a device and what normalises them; once made, it never waits for the device."""

    def __init__(
        self, images: Tensor, mean: tuple[float, ...], std: tuple[float, ...], dtype: torch.dtype
    ) -> None:
        self.images, self.dtype = images, dtype
        self.mean = torch.tensor(mean, dtype=dtype, device=images.device) * 255
        self.std = torch.tensor(std, dtype=dtype, device=images.device) * 255

    @classmethod
    def of(cls, data: Data, dtype: torch.dtype) -> "Pixels":
        """Wrap a data set without copying its images."""
        return cls(data.images, data.mean, data.std, dtype)

    def __call__(self, batch: Tensor) -> Tensor:
        """Return the network's input [B, 3, H, W] channels-last for uint8 [B, H, W, 3], or features [B, D]."""
        batch = batch.to(self.dtype)
        return batch if batch.ndim == 2 else batch.sub_(self.mean).div_(self.std).permute(0, 3, 1, 2)


def crop_and_flip(images: Tensor, shift: Tensor, flip: Tensor, *, pad: int) -> Tensor:
    """Crop each image out of its padded self, then mirror it where asked.

    Args:
        images: [B, H, W, 3] uint8.
        shift: [B, 2] crop offset (down, right) in [0, 2 pad]; (pad, pad) is the image itself.
        flip: [B] bool.
        pad: black pixels added on each side.

    Returns:
        [B, H, W, 3] uint8.
    """
    count, height, width, _ = images.shape
    device = images.device
    rows = shift[:, :1].long() + torch.arange(height, device=device)  # [B, H]
    columns = torch.arange(width, device=device).expand(count, width)
    columns = torch.where(flip[:, None], width - 1 - columns, columns) + shift[:, 1:].long()  # [B, W]
    padded = F.pad(images, (0, 0, pad, pad, pad, pad))
    member = torch.arange(count, device=device)[:, None, None]
    return padded[member, rows[:, :, None], columns[:, None, :]]


def inputs(
    data: Data,
    index: Tensor,
    *,
    dtype: torch.dtype,
    shift: Tensor | None = None,
    flip: Tensor | None = None,
    pad: int = 0,
) -> Tensor:
    """Return the network's input for some images, [B, 3, H, W] channels-last, or [B, D] for features.

    Pixels are scaled to [0, 1] and normalised with the data set's mean and standard deviation. Without
    `shift` and `flip` nothing is augmented.
    """
    batch = data.images[index]
    if batch.ndim == 4 and flip is not None and shift is not None:
        if pad == 0:
            shift = torch.zeros_like(shift)
        batch = crop_and_flip(batch, shift, flip, pad=pad)
    return Pixels.of(data, dtype)(batch)


def augmented(data: Data, plan: BatchPlan) -> tuple[Data, BatchPlan]:
    """Return the images that a plan sees, augmented as it sees them, and the plan that sees just these.

    An image that is seen twice is there twice, since it is cropped and flipped anew. Any model can then be run on
    what a training sees, and its answers be that training's targets: teachers that are asked live (FedDF).

    Args:
        data: N images, or features, which nothing augments.
        plan: batches [S, T, B] that point into them.

    Returns:
        V images in the order of the plan, and a plan [S, T, B] without augmentation, on the images' device.
    """
    plan = plan.to(data.images.device)
    seen = data.subset(plan.index[plan.mask])
    if seen.images.ndim == 4:
        shift = plan.shift[plan.mask] * (plan.pad > 0)
        seen = replace(seen, images=crop_and_flip(seen.images, shift, plan.flip[plan.mask], pad=plan.pad))
    places = torch.arange(len(seen), device=plan.index.device)
    index = torch.zeros_like(plan.index).masked_scatter_(plan.mask, places)
    nothing = torch.zeros_like(plan.shift), torch.zeros_like(plan.flip)
    return seen, BatchPlan(index, plan.mask, *nothing, 0, plan.noise, plan.room)
