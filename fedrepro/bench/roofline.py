"""What a machine could do at best, measured, and what a network needs at least, counted.

The floor of a network, per image:

    forward    2 n k            operations of a convolution or linear layer with n outputs of k terms each
    training   3 x forward      the gradients of inputs and of weights each cost as much as the forward pass, but
                                for the first layer, whose input is the image
    bytes      2 v w            forward: each of the v outputs of convolution, norm and linear layers is written
                                once and read once, w bytes wide
               6 v w            training: and twice as often again in the backward pass
               + the image      read once, as stored

Weights, optimizer and everything that fits into caches are left out: no engine can do with less, unless it
fuses a norm into its convolution and never writes the value between them.
"""

import time
from dataclasses import dataclass
from math import prod

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedrepro.bench.timing import Call, seconds_of
from fedrepro.federation.federation import Federation
from fedrepro.models.architecture import Architecture

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float64": torch.float64}
_LAYERS = (nn.Conv2d, nn.Linear, nn.GroupNorm, nn.modules.batchnorm._BatchNorm)


@dataclass(frozen=True)
class Floor:
    """What one image needs at least: operations (a multiply-add is two) and bytes moved."""

    predict_flops: int
    train_flops: int
    predict_bytes: int
    train_bytes: int


def floor(architecture: Architecture, federation: Federation) -> Floor:
    """Count a network's floor for the images and the precision of a federation."""
    image = federation.data.images[:1].cpu().float()
    counted: list[tuple[int, int]] = []  # operations and outputs of each layer

    def count(layer: nn.Module, _: object, out: Tensor) -> None:
        terms = prod(layer.weight.shape[1:]) if isinstance(layer, nn.Conv2d | nn.Linear) else 0
        counted.append((2 * out[0].numel() * terms, out[0].numel()))

    module = architecture.make().eval()
    for layer in module.modules():
        if isinstance(layer, _LAYERS):
            layer.register_forward_hook(count)
    with torch.no_grad():
        module(image.permute(0, 3, 1, 2) if image.ndim == 4 else image)
    flops, values = (sum(column) for column in zip(*counted))
    width, stored = DTYPES[federation.precision].itemsize, federation.data.images[0].nbytes
    of_the_image = counted[0][0]  # whose gradient nobody needs
    return Floor(flops, 3 * flops - of_the_image, 2 * values * width + stored, 6 * values * width + stored)


@dataclass(frozen=True)
class Roofline:
    """What the machine does at best, each the fastest of several tries.

    matmul_flops: operations/s of a square matrix product of side `matmul_size`; conv_flops: the same of a 3x3
    convolution with 256 channels; bandwidth: bytes/s of a copy, read and written counted.
    """

    matmul_flops: float
    matmul_size: int
    conv_flops: float
    bandwidth: float


def measure(device: str, precision: str, *, seconds: float = 2.0) -> Roofline:
    """Measure the roofline of a device in the precision that the convolutions use.

    Args:
        device: "cpu" or "cuda".
        precision: "float32" (without TF32), "bfloat16" or "float64".
        seconds: about how long it may take.
    """
    cuda, channels = device == "cuda", 256

    def drawn(*shape: int) -> Tensor:
        return torch.randn(*shape, device=device).to(DTYPES[precision])

    def product(side: int) -> float:
        a, b = drawn(side, side), drawn(side, side)
        return 2 * side**3 / _fastest(lambda: a @ b, device, seconds / 3)

    with torch.no_grad(), torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        size = 8192 if cuda else 1024
        matmul = product(size)
        if not cuda and matmul > 2e11 and precision != "float64":  # a larger product still takes < 0.1 s
            size = 2048
            matmul = max(matmul, product(size))
        batch, side = (256, 32) if cuda else (40, 8)
        x = drawn(batch, channels, side, side).to(memory_format=torch.channels_last)
        w = drawn(channels, channels, 3, 3).to(memory_format=torch.channels_last)
        work = 2 * batch * side**2 * channels * channels * 9
        conv = work / _fastest(lambda: F.conv2d(x, w, padding=1), device, seconds / 3)
        source = torch.ones((1 << 30) if cuda else (1 << 27), dtype=torch.uint8, device=device)
        target = torch.empty_like(source)
        bandwidth = 2 * source.nbytes / _fastest(lambda: target.copy_(source), device, seconds / 3)
    return Roofline(matmul, size, conv, bandwidth)


def _fastest(call: Call, device: str, seconds: float) -> float:
    """Return the seconds of one call, the fastest of at least three tries after a warm-up."""
    count = 10 if device == "cuda" else 1  # a single call on CUDA is of the order of its launch
    seconds_of(call, device)
    end, tries = time.perf_counter() + seconds, 0
    fastest = float("inf")
    while tries < 3 or (time.perf_counter() < end and tries < 50):
        fastest = min(fastest, seconds_of(lambda: [call() for _ in range(count)], device) / count)
        tries += 1
    return fastest
