"""Where each layer of a ResNet keeps its weights and statistics, and how its kernels are tiled.

Inside the engine a member's parameters lie in an order that suits the kernels: convolutions as [tap, channel in,
channel out], the linear layer as [channel, class], every tensor at a multiple of 16 elements.

Shapes: P parameters (packed, with gaps), Q normalised channels.
"""

from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod

import torch
from torch import Tensor, nn

from fedrepro.models.architecture import Architecture
from fedrepro.models.resnet import Block, ResNet

ALIGN = 16


@dataclass(frozen=True)
class Norm:
    """A BatchNorm: its first channel among all, its channels, pixels per side relative to the image's, eps."""

    q: int
    channels: int
    shrink: int
    gamma: int
    beta: int


@dataclass(frozen=True)
class Conv:
    """A 3x3 convolution: offset of its weight, channels, stride, shrink of its input, the norm after it."""

    offset: int
    cin: int
    cout: int
    stride: int
    shrink: int
    norm: Norm


@dataclass(frozen=True)
class Network:
    """A ResNet with BatchNorm and option-A shortcuts, as the fused kernels see it.

    name: of the architecture with all its options.
    pack [P]: for each packed place the parameter there, or the number of parameters where a gap is; unpack: for
    each parameter its packed place; decays [P]: 1 where weight decay acts; buffers [2 Q]: for each statistic
    (all means, then all variances) its place among the stack's buffers.
    """

    name: str
    stem: Conv
    blocks: tuple[tuple[Conv, Conv], ...]
    weight: int
    bias: int
    features: int
    classes: int
    eps: float
    momentum: float
    pack: Tensor
    unpack: Tensor
    decays: Tensor
    buffers: Tensor

    @property
    def size(self) -> int:
        """Packed parameters P."""
        return len(self.pack)

    @property
    def channels(self) -> int:
        """Normalised channels Q."""
        return len(self.buffers) // 2

    @property
    def norms(self) -> list[Norm]:
        """All norms in the order of their channels."""
        return [self.stem.norm] + [conv.norm for block in self.blocks for conv in block]


def bytes_of_an_image(net: Network, height: int, width: int, itemsize: int) -> int:
    """Return the memory that one image in flight takes for training: outputs, two gradients each, block ends."""
    values = sum(n.channels * (height // n.shrink) * (width // n.shrink) for n in net.norms)
    return 4 * values * itemsize


def _round_up(size: int) -> int:
    return -(-size // ALIGN) * ALIGN


@lru_cache(maxsize=256)
def why_not(architecture: Architecture) -> str:
    """Return why the fused kernels cannot run an architecture, or "" if they can."""
    module = architecture.make()
    if not isinstance(module, ResNet):
        return "only ResNets are fused"
    if not isinstance(module.norm, nn.BatchNorm2d):
        return "only BatchNorm is fused"
    if any(isinstance(b, Block) and (b.projection is not None or not b.joined) for b in module.blocks):
        return "only option-A shortcuts are fused"
    return ""


@lru_cache(maxsize=16)
def network(architecture: Architecture) -> Network:
    """Read a network's layers; raises ValueError if `why_not` has something to say."""
    reason = why_not(architecture)
    if reason:
        raise ValueError(reason)
    module = architecture.make()
    assert isinstance(module, ResNet)
    names = {id(layer): name for name, layer in module.named_modules()}
    shapes = {name: tuple(p.shape) for name, p in module.named_parameters()}
    count = sum(prod(shape) for shape in shapes.values())
    packed: list[Tensor] = []
    decays: list[Tensor] = []
    offsets: dict[str, int] = {}
    first = place = 0
    for name, shape in shapes.items():
        index = torch.arange(first, first + prod(shape)).view(shape)
        index = index.permute(2, 3, 1, 0) if len(shape) == 4 else index.t() if len(shape) == 2 else index
        gap = _round_up(prod(shape)) - prod(shape)
        packed += [index.reshape(-1), torch.full((gap,), count)]
        decays.append(torch.full((prod(shape) + gap,), float(len(shape) > 1)))
        offsets[name] = place
        first, place = first + prod(shape), place + prod(shape) + gap
    pack = torch.cat(packed)
    unpack = torch.empty(count, dtype=torch.int64)
    unpack[pack[pack < count]] = torch.arange(len(pack))[pack < count]

    buffer_places: dict[str, int] = {}
    place = 0
    for name, buffer in module.named_buffers():
        if buffer.is_floating_point():
            buffer_places[name] = place
            place += buffer.numel()
    means: list[Tensor] = []
    variances: list[Tensor] = []

    def norm_of(layer: nn.Module, shrink: int) -> Norm:
        assert isinstance(layer, nn.BatchNorm2d)
        name, channels = names[id(layer)], layer.num_features
        found = Norm(sum(map(len, means)), channels, shrink, offsets[f"{name}.weight"], offsets[f"{name}.bias"])
        means.append(torch.arange(channels) + buffer_places[f"{name}.running_mean"])
        variances.append(torch.arange(channels) + buffer_places[f"{name}.running_var"])
        return found

    def conv_of(layer: nn.Conv2d, norm: nn.Module, shrink: int) -> Conv:
        stride = int(layer.stride[0])
        offset = offsets[f"{names[id(layer)]}.weight"]
        after = norm_of(norm, shrink * stride)
        return Conv(offset, layer.in_channels, layer.out_channels, stride, shrink, after)

    stem = conv_of(module.stem, module.norm, 1)
    blocks: list[tuple[Conv, Conv]] = []
    shrink = 1
    for block in module.blocks:
        assert isinstance(block, Block)
        one = conv_of(block.conv1, block.norm1, shrink)
        shrink *= one.stride
        blocks.append((one, conv_of(block.conv2, block.norm2, shrink)))
    norm = module.norm
    assert isinstance(norm, nn.BatchNorm2d)
    return Network(
        repr(architecture),
        stem,
        tuple(blocks),
        offsets["output.weight"],
        offsets["output.bias"],
        module.output.in_features,
        module.output.out_features,
        norm.eps,
        float(norm.momentum or 0.1),
        pack,
        unpack,
        torch.cat(decays),
        torch.cat(means + variances),
    )


@dataclass(frozen=True)
class Tile:
    """How a kernel cuts its work.

    pixels: of a program, or of an inner block for weight gradients; inner: length of an inner product block (0:
    one tap's channels); rows and chunk: for weight gradients, taps x channels in and pixels of a program.
    """

    pixels: int
    warps: int = 4
    stages: int = 1
    inner: int = 0
    rows: int = 64
    chunk: int = 512

    def fitted(self, pixels: int, members: int) -> "Tile":
        """Return a tile of fewer pixels where the work would otherwise leave processors idle."""
        size = self.pixels
        while size > 64 and -(-pixels // size) * members < PROGRAMS:
            size //= 2
        return replace(self, pixels=size)

    def narrowed(self, itemsize: int) -> "Tile":
        """Return a tile without pipelining for values wider than two bytes: shared memory holds half as many."""
        return replace(self, stages=1) if itemsize > 2 else self


PROGRAMS = 132  # one for each multiprocessor of an H100 or H200
# By channels of the result; the best of those that were timed on an H200 (10 members, 40 images).
CONV = {16: Tile(256), 32: Tile(128), 64: Tile(128)}
CONV_BACK = {16: Tile(256, stages=3), 32: Tile(256, stages=3), 64: Tile(128, stages=3)}
GRAD = {16: Tile(128), 32: Tile(128, chunk=1024), 64: Tile(128)}
# Whether relu(norm(y)) inside a block is written once, or redone by each reader.
WRITTEN = {16: False, 32: False, 64: False}
ELEMENTS = 4096  # pixels x channels of an elementwise program
UPDATE = 1024  # parameters of a program of the update
