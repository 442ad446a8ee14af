"""The fused engine's buffers and its step, recorded once and replayed.

Shapes: S members, B images, T steps, N images of the data, P packed parameters, Q normalised channels.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from fedrepro.kernels.fused import gpu
from fedrepro.kernels.fused import plan as tiles
from fedrepro.kernels.fused.plan import CONV, CONV_BACK, ELEMENTS, GRAD, WRITTEN, Conv, Network, Norm

COMPUTE = {"bfloat16": torch.bfloat16, "float32": torch.float32, "float64": torch.float64}


@dataclass(frozen=True)
class Size:
    """The sizes that a session is made for."""

    members: int
    steps: int
    batch: int
    height: int
    width: int


class Session:
    """Activations, weights and statistics of S members at fixed addresses.

    Args:
        net: the network.
        size: members, steps, batch and image size.
        images: [N, H, W, 3] uint8 on the device; held, since recorded kernels point into it.
        mean, std: of the data set, in [0, 1].
        pad: crop padding, or None for no augmentation.
        precision: compute dtype; statistics and weights are float32 (float64 for "float64").
        training: whether gradients are needed.
        momentum: of SGD.
        mu: strength of the proximal term; 0 for none.
        corrected: whether a correction is added to the gradients.
        loss_scale: factor on the loss.
    """

    def __init__(
        self,
        net: Network,
        size: Size,
        images: Tensor,
        mean: tuple[float, ...],
        std: tuple[float, ...],
        *,
        pad: int | None,
        precision: str,
        training: bool,
        momentum: float = 0.0,
        mu: float = 0.0,
        corrected: bool = False,
        loss_scale: float = 1.0,
    ) -> None:
        """Allocate everything; nothing is computed yet."""
        if size.height % 4 or size.width % 4 or not images.is_contiguous():
            raise ValueError(
                "images must be contiguous, with sides that are multiples of 4 pixels, got "
                f"{size.height} x {size.width}, strides {images.stride()}"
            )
        self.net, self.size, self.images, self.pad = net, size, images, pad
        self.mean, self.std = [m * 255 for m in mean], [d * 255 for d in std]
        self.training, self.momentum, self.loss_scale = training, momentum, loss_scale
        self.mu, self.corrected = mu, corrected
        device = self.device = images.device
        compute = COMPUTE[precision]
        exact = torch.float64 if precision == "float64" else torch.float32
        self.acc = tl.float64 if precision == "float64" else tl.float32
        self.dot = "tf32x3" if precision == "float32" and device.type == "cuda" else "ieee"
        members, steps, batch = size.members, size.steps, size.batch

        def zeros(*shape: int, dtype: torch.dtype = exact) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        def pixels(shrink: int, channels: int) -> Tensor:
            return zeros(members, batch, size.height // shrink, size.width // shrink, channels, dtype=compute)

        self.index = zeros(members, steps, batch, dtype=torch.int64)
        self.shift = zeros(members, steps, batch, 2, dtype=torch.uint8)
        self.flip = zeros(members, steps, batch, dtype=torch.uint8)
        self.counts = zeros(members, steps, dtype=torch.int32)
        self.rates = zeros(steps)
        self.stat_rates = zeros(steps)
        self.step = zeros(1, dtype=torch.int64)
        self.weights, self.compute = zeros(members, net.size), zeros(members, net.size, dtype=compute)
        self.sums, self.stats = zeros(members, 2, net.channels), zeros(members, 2, net.channels)
        self.area = torch.cat(
            [torch.full((n.channels,), (size.height // n.shrink) * (size.width // n.shrink)) for n in net.norms]
        ).to(device)
        self.loss = zeros(members)
        self.features = zeros(members, batch, net.features)
        self.logits = zeros(members, batch, net.classes)
        self.inputs = pixels(1, 4)
        outputs = [net.stem, *(conv for block in net.blocks for conv in block)]
        self.outputs = [pixels(conv.norm.shrink, conv.cout) for conv in outputs]  # before each norm
        self.middles = {  # relu(norm(y)) of a block's first convolution, where readers do not redo it
            2 * i + 1: pixels(one.norm.shrink, one.cout)
            for i, (one, _) in enumerate(net.blocks)
            if WRITTEN[one.cout]
        }
        ends = [net.stem, *(block[1] for block in net.blocks)]
        self.ends = [pixels(conv.norm.shrink, conv.cout) for conv in ends]  # the residual stream
        self.targets = zeros(0, net.classes)
        self.velocity, self.grads, self.decay = zeros(0, 0), zeros(0, 0), zeros(0)
        self.anchor = zeros(members, net.size if mu else 0)
        self.correction = zeros(members, net.size if corrected else 0)
        if training:
            self.velocity, self.grads, self.decay = (
                zeros(members, net.size),
                zeros(members, net.size),
                zeros(net.size),
            )
            self.dfeatures = zeros(members, batch, net.features)
            self.targets = zeros(len(images), net.classes)
            self.before = [
                torch.empty_like(y) for y in self.outputs
            ]  # gradients of the norms' outputs, after ReLU
            self.after = [torch.empty_like(y) for y in self.outputs]  # gradients of the convolutions' outputs
        self.side: torch.cuda.Stream | None = torch.cuda.Stream(device) if device.type == "cuda" else None
        self.graph: torch.cuda.CUDAGraph | None = None

    @property
    def bytes(self) -> int:
        """Memory that the session holds, its share of a recording not counted."""
        held = [x for v in vars(self).values() for x in (v if isinstance(v, list) else [v])]
        held += self.middles.values()
        return sum(x.nbytes for x in held if isinstance(x, Tensor) and x is not self.images)

    # -- pieces of a step ------------------------------------------------------------------------------------

    def _norm(self, norm: Norm, *, evaluate: bool) -> tuple[Tensor, Tensor, Tensor]:
        source = self.stats if evaluate else self.sums
        return (
            source.view(-1)[norm.q :],
            self.weights.view(-1)[norm.gamma :],
            self.weights.view(-1)[norm.beta :],
        )

    def _grads(self, norm: Norm) -> tuple[Tensor, Tensor]:
        return self.grads.view(-1)[norm.gamma :], self.grads.view(-1)[norm.beta :]

    def _sizes(self, shrink: int) -> tuple[int, int]:
        return self.size.height // shrink, self.size.width // shrink

    @property
    def _clock(self) -> tuple[Tensor, Tensor, int]:
        return self.counts, self.step, self.size.steps

    def _gather(self) -> None:
        size, (m0, m1, m2), (s0, s1, s2) = self.size, self.mean, self.std
        gpu.gather[(size.batch, size.members)](
            self.images, self.index, self.shift, self.flip, *self._clock[:2], self.inputs, size.steps,
            B=size.batch, H=size.height, W=size.width, PAD=self.pad or 0, AUGMENT=self.pad is not None,
            M0=m0, M1=m1, M2=m2, S0=s0, S1=s1, S2=s2,
            PIXELS=triton.next_power_of_2(size.height * size.width), ACC=self.acc,
        )  # fmt: skip

    def _conv(self, conv: Conv, x: Tensor, y: Tensor, before: Norm | None, *, evaluate: bool) -> None:
        height, width = self._sizes(conv.shrink)
        rows = self.size.batch * (height // conv.stride) * (width // conv.stride)
        tile = CONV[conv.cout].narrowed(self.compute.itemsize).fitted(rows, self.size.members)
        norm = before or conv.norm
        gpu.conv[(triton.cdiv(rows, tile.pixels), self.size.members)](
            x, self.compute.view(-1)[conv.offset :], y, self.sums.view(-1)[conv.norm.q :],
            *self._norm(norm, evaluate=evaluate), *self._clock, self.net.size, self.net.channels,
            B=self.size.batch, H=height, W=width, XC=x.shape[-1], CIN=conv.cin, COUT=conv.cout,
            STRIDE=conv.stride, NORM=before is not None, EVAL=evaluate, EPS=self.net.eps,
            PIXELS=tile.pixels, KB=max(tile.inner, conv.cin) if conv.cin >= 16 else 32, ACC=self.acc, DOT=self.dot,
            num_warps=tile.warps, num_stages=tile.stages,
        )  # fmt: skip

    def _join(self, norm: Norm, y: Tensor, x: Tensor, z: Tensor, shortcut: int, *, evaluate: bool) -> None:
        height, width = self._sizes(norm.shrink)
        pixels = ELEMENTS // norm.channels
        gpu.join[(triton.cdiv(self.size.batch * height * width, pixels), self.size.members)](
            y, x, z, *self._norm(norm, evaluate=evaluate), *self._clock, self.net.size, self.net.channels,
            B=self.size.batch, H=height, W=width, C=norm.channels, SHORTCUT=shortcut, EVAL=evaluate,
            EPS=self.net.eps, PIXELS=pixels, ACC=self.acc,
        )  # fmt: skip

    def _norm_back(self, place: int, norm: Norm) -> None:
        height, width = self._sizes(norm.shrink)
        pixels = ELEMENTS // norm.channels
        gpu.norm_back[(triton.cdiv(self.size.batch * height * width, pixels), self.size.members)](
            self.before[place], self.outputs[place], self.after[place], *self._norm(norm, evaluate=False),
            *self._grads(norm), *self._clock, self.net.size, self.net.channels,
            B=self.size.batch, H=height, W=width, C=norm.channels, EPS=self.net.eps, PIXELS=pixels, ACC=self.acc,
        )  # fmt: skip

    def _conv_grad(self, conv: Conv, x: Tensor, place: int, before: Norm | None) -> None:
        if self.side is None:
            self._conv_grad_here(conv, x, place, before)
            return
        # Weight gradients wait for nothing but their inputs: they fill the gaps of the chain of input gradients.
        self.side.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self.side):
            self._conv_grad_here(conv, x, place, before)

    def _conv_grad_here(self, conv: Conv, x: Tensor, place: int, before: Norm | None) -> None:
        height, width = self._sizes(conv.shrink)
        pixels = self.size.batch * (height // conv.stride) * (width // conv.stride)
        tile = GRAD[conv.cout].narrowed(self.compute.itemsize)
        rows = tile.rows if conv.cin >= 16 else 32
        grid = (triton.cdiv(pixels, tile.chunk), triton.cdiv(9 * conv.cin, rows), self.size.members)
        gpu.conv_grad[grid](
            x, self.after[place], self.grads.view(-1)[conv.offset :],
            *self._norm(before or conv.norm, evaluate=False), *self._clock, self.net.size, self.net.channels,
            B=self.size.batch, H=height, W=width, XC=x.shape[-1], CIN=conv.cin, COUT=conv.cout,
            STRIDE=conv.stride, NORM=before is not None, EPS=self.net.eps,
            ROWS=rows, CHUNK=tile.chunk, PIXELS=tile.pixels, ACC=self.acc, DOT=self.dot,
            num_warps=tile.warps, num_stages=tile.stages,
        )  # fmt: skip

    def _conv_back(self, conv: Conv, place: int, target: int, norm: Norm, end: int | None, shortcut: int) -> None:
        """Take the gradient after[place] to before[target], whose norm is `norm`."""
        height, width = self._sizes(conv.shrink)
        tile = (
            CONV_BACK[conv.cin]
            .narrowed(self.compute.itemsize)
            .fitted(self.size.batch * height * width, self.size.members)
        )
        z = self.ends[end] if end is not None else self.outputs[target]
        extra = self.before[place + 1] if shortcut >= 0 else self.after[place]
        gpu.conv_back[(triton.cdiv(self.size.batch * height * width, tile.pixels), self.size.members)](
            self.after[place], self.compute.view(-1)[conv.offset :], self.before[target], extra,
            z, self.outputs[target], *self._norm(norm, evaluate=False), *self._grads(norm), *self._clock,
            self.net.size, self.net.channels,
            B=self.size.batch, H=height, W=width, CIN=conv.cin, COUT=conv.cout, STRIDE=conv.stride,
            SHORTCUT=shortcut, EPS=self.net.eps, PIXELS=tile.pixels, KB=max(tile.inner, conv.cout), ACC=self.acc,
            DOT=self.dot, num_warps=tile.warps, num_stages=tile.stages,
        )  # fmt: skip

    # -- whole passes ----------------------------------------------------------------------------------------

    def forward(self, *, evaluate: bool) -> None:
        """Gather a step's images and compute their pooled features."""
        net = self.net
        self._gather()
        self._conv(net.stem, self.inputs, self.outputs[0], None, evaluate=evaluate)
        self._join(net.stem.norm, self.outputs[0], self.outputs[0], self.ends[0], 0, evaluate=evaluate)
        for i, (one, two) in enumerate(net.blocks):
            first, second = self.outputs[2 * i + 1], self.outputs[2 * i + 2]
            self._conv(one, self.ends[i], first, None, evaluate=evaluate)
            middle = self.middles.get(2 * i + 1)
            if middle is None:
                self._conv(two, first, second, one.norm, evaluate=evaluate)
            else:
                self._join(one.norm, first, first, middle, 0, evaluate=evaluate)
                self._conv(two, middle, second, None, evaluate=evaluate)
            shortcut = 2 if one.stride == 2 else 1
            self._join(two.norm, second, self.ends[i], self.ends[i + 1], shortcut, evaluate=evaluate)
        height, width = self._sizes(net.blocks[-1][1].norm.shrink)
        gpu.pool[(self.size.batch, self.size.members)](
            self.ends[-1], self.features, *self._clock, B=self.size.batch, AREA=height * width,
            ROWS=triton.next_power_of_2(height * width), C=net.features, ACC=self.acc,
        )  # fmt: skip

    def head(self, *, train: bool) -> None:
        """Compute logits, or the loss and the gradients of features and linear layer."""
        net, size = self.net, self.size
        height, width = self._sizes(net.blocks[-1][1].norm.shrink)
        weights = self.weights.view(-1)
        grads = self.grads.view(-1) if train else weights
        gpu.head[(triton.cdiv(size.batch, 16), size.members)](
            self.features, weights[net.weight :], weights[net.bias :], self.logits,
            self.targets, self.index, self.loss, grads[net.weight :], grads[net.bias :],
            self.dfeatures if train else self.features, *self._clock, net.size, self.loss_scale,
            B=size.batch, C=net.features, CLASSES=net.classes, WIDE=max(16, triton.next_power_of_2(net.classes)),
            AREA=height * width, TRAIN=train, IMAGES=16, ACC=self.acc,
        )  # fmt: skip

    def backward(self) -> None:
        """Compute all gradients."""
        net = self.net
        last = net.blocks[-1][1].norm
        height, width = self._sizes(last.shrink)
        pixels = ELEMENTS // last.channels
        gpu.spread[(triton.cdiv(self.size.batch * height * width, pixels), self.size.members)](
            self.dfeatures, self.ends[-1], self.outputs[-1], self.before[-1], *self._norm(last, evaluate=False),
            *self._grads(last), *self._clock, net.size, net.channels,
            B=self.size.batch, H=height, W=width, C=last.channels, EPS=net.eps, PIXELS=pixels, ACC=self.acc,
        )  # fmt: skip
        for i in reversed(range(len(net.blocks))):
            one, two = net.blocks[i]
            first, second = 2 * i + 1, 2 * i + 2
            self._norm_back(second, two.norm)
            if first in self.middles:
                self._conv_grad(two, self.middles[first], second, None)
            else:
                self._conv_grad(two, self.outputs[first], second, one.norm)
            self._conv_back(two, second, first, one.norm, None, -1)
            self._norm_back(first, one.norm)
            self._conv_grad(one, self.ends[i], first, None)
            below = net.blocks[i - 1][1].norm if i else net.stem.norm
            self._conv_back(one, first, 2 * i, below, i, 2 if one.stride == 2 else 1)
        self._norm_back(0, net.stem.norm)
        self._conv_grad(net.stem, self.inputs, 0, None)
        if self.side is not None:
            torch.cuda.current_stream(self.device).wait_stream(self.side)

    def _running(self) -> None:
        grid = (triton.cdiv(self.net.channels, 256), self.size.members)
        gpu.running[grid](
            self.sums, self.stats, self.area, self.stat_rates, *self._clock, self.net.channels,
            BLOCK=256, ACC=self.acc,
        )  # fmt: skip

    def train_step(self) -> None:
        """One step of every member, from images to new weights."""
        self.forward(evaluate=False)
        self.head(train=True)
        self.backward()
        self._running()
        gpu.update[(triton.cdiv(self.net.size, tiles.UPDATE), self.size.members)](
            self.weights, self.velocity, self.grads, self.compute, self.decay, self.anchor, self.correction,
            self.rates, *self._clock, self.net.size, self.momentum, self.mu,
            PULL=self.mu > 0, CORRECT=self.corrected, BLOCK=tiles.UPDATE,
        )  # fmt: skip
        self.step += 1

    def statistics_step(self) -> None:
        """One batch of recomputing BatchNorm statistics."""
        self.forward(evaluate=False)
        self._running()
        self.step += 1

    def predict_step(self) -> None:
        """One batch of logits."""
        self.forward(evaluate=True)
        self.head(train=False)
        self.step += 1

    def record(self, step: Callable[[], None]) -> Callable[[], None]:
        """Compile a step, and on CUDA capture it; returns what runs it.

        All counts must be zero: then the trial that compiles the kernels changes nothing but the step number.
        """
        if self.device.type != "cuda":
            return step
        step()
        torch.cuda.synchronize(self.device)
        graph = self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step()
        self.step.zero_()
        return graph.replay
