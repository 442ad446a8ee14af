"""Lanes: fixed memory in which one member trains, and its training step, recorded once and replayed.

A CUDA graph replays a whole step with one launch, but it reads and writes the addresses that it was recorded
with. So a lane owns weights, statistics and batch plan of one member at a time: members are copied in, trained
and copied out. Lanes run side by side, each on its own stream.

Shapes: T steps, B batch, N images, C classes, P parameters, P' places in a lane, Q buffer entries, R counters.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor
from torch.func import functional_call

from fedrepro.core.stack import Layout, Stack
from fedrepro.data.data import Data
from fedrepro.kernels.batches import BatchPlan
from fedrepro.kernels.graph.places import autocast, places, state_views
from fedrepro.kernels.inputs import Pixels, crop_and_flip
from fedrepro.kernels.plain import TINY
from fedrepro.kernels.step import Adam, AdamW, Sgd, Step
from fedrepro.kernels.trained import Carried
from fedrepro.models.architecture import Architecture

WARM_UPS = 2  # eager steps before a recording, in which libraries choose algorithms and take workspaces
KEPT = 32  # recordings that a lane keeps
CLIP_EPS = 1e-6  # as in torch's clip_grad_norm_


@dataclass(frozen=True)
class Form:
    """Everything that a recorded step depends on, apart from what is copied into a lane.

    images: shape [N, ...]; targets: shape and dtype of each term's; augmented: whether images are cropped and
    flipped; steps and batch: room for the plan, T and B at most; step: the rule and the loss; numerics: the global
    switches that change how torch computes.
    """

    architecture: Architecture
    device: torch.device
    dtype: torch.dtype
    precision: str
    images: tuple[int, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    targets: tuple[tuple[tuple[int, ...], torch.dtype], ...]
    augmented: bool
    pad: int
    steps: int
    batch: int
    step: Step
    corrected: bool
    numerics: tuple[bool | str, ...]

    @classmethod
    def of(
        cls,
        architecture: Architecture,
        start: Stack,
        data: Data,
        targets: Sequence[Tensor],
        plan: BatchPlan,
        step: Step,
        precision: str,
        corrected: bool,
    ) -> "Form":
        """Return the form of a call of `train`."""
        steps, batch = plan.room, plan.index.shape[2]
        return cls(
            architecture=architecture,
            device=start.params.device,
            dtype=start.params.dtype,
            precision=precision,
            images=tuple(data.images.shape),
            mean=tuple(data.mean),
            std=tuple(data.std),
            targets=tuple((tuple(target.shape), target.dtype) for target in targets),
            augmented=data.images.ndim == 4 and bool(plan.pad or plan.flip.any()),
            pad=plan.pad,
            # Rounded up, so that rounds of somewhat different length share their recordings.
            steps=max(8, 1 << (steps - 1).bit_length()),
            batch=8 * (batch // 8 + 1),
            step=step,
            corrected=corrected,
            numerics=_numerics(),
        )


def _numerics() -> tuple[bool | str, ...]:
    cudnn = torch.backends.cudnn
    switches = (cudnn.enabled, cudnn.benchmark, cudnn.deterministic, cudnn.allow_tf32)
    return (*switches, torch.get_float32_matmul_precision(), torch.are_deterministic_algorithms_enabled())


class Ground:
    """What all lanes of a form share: the network, the images and the targets, at fixed addresses."""

    def __init__(self, form: Form) -> None:
        pixel = torch.uint8 if len(form.images) == 4 else torch.float32
        self.form = form
        # Its own weights are never read: a lane's take their places, so it may stay where it was made.
        self.module = form.architecture.make().train()
        self.layout = Layout.of(self.module)
        self.places = places(self.layout, form.device)
        images = torch.zeros(form.images, dtype=pixel, device=form.device)
        self.pixels = Pixels(images, form.mean, form.std, form.dtype)
        self.targets = [torch.zeros(shape, dtype=kind, device=form.device) for shape, kind in form.targets]
        # Weight decay acts on tensors of two or more axes.
        self.decay = torch.zeros(self.places.size, dtype=form.dtype, device=form.device)
        for _, shape, begin in self.places.entries:
            self.decay[begin : begin + prod(shape)] = form.step.rule.weight_decay if len(shape) > 1 else 0.0

    def fill(self, data: Data, targets: Sequence[Tensor]) -> None:
        """Copy a call's data in: an earlier call's can then neither be read by mistake nor be freed too soon."""
        self.pixels.images.copy_(data.images)
        for own, target in zip(self.targets, targets, strict=True):
            own.copy_(target)


class Lane:
    """One member's place to train; on the CPU, where `stream` is None, steps run directly."""

    def __init__(self, ground: Ground, stream: torch.cuda.Stream | None) -> None:
        form, layout = ground.form, ground.layout
        self.ground, self.stream = ground, stream

        def zeros(*shape: int, dtype: torch.dtype = form.dtype) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=form.device)

        self.weights, self.gradient, self.mean = (zeros(ground.places.size) for _ in range(3))
        self.slots = zeros(form.step.rule.slots, ground.places.size)
        self.buffers = zeros(Layout.size(layout.buffers))
        self.counters = zeros(Layout.size(layout.counters), dtype=torch.int64)
        self.rates, self.total = zeros(form.steps), zeros()
        self.clock = zeros(1, dtype=torch.int64)  # steps done of the plan
        self.age = zeros(
            dtype=torch.float64
        )  # steps done in all, those that an earlier part of the training took included
        self.index = zeros(form.steps, form.batch, dtype=torch.int64)
        self.shift = zeros(form.steps, form.batch, 2, dtype=torch.uint8)
        self.flip = zeros(form.steps, form.batch, dtype=torch.bool)
        self._leaves = ground.places.views(self.weights)
        self._gradients = list(ground.places.views(self.gradient).values())
        # Of the local rule: where the member started, and what is added to its gradients.
        self.anchor = zeros(ground.places.size if form.step.rule.proximal.mu else 0)
        self.correction = zeros(ground.places.size if form.corrected else 0)
        self._state = state_views(layout, self.buffers, self.counters)
        self._graphs: dict[int, torch.cuda.CUDAGraph | None] = {}
        self._pool = None if stream is None else torch.cuda.graph_pool_handle()

    def current(self) -> AbstractContextManager:
        """Return a context in which work goes to the lane's stream."""
        return nullcontext() if self.stream is None else torch.cuda.stream(self.stream)

    def holds(self, sizes: list[int]) -> bool:
        """Return whether steps of these sizes are recorded."""
        return all(size in self._graphs for size in sizes)

    def prepare(self, sizes: list[int]) -> None:
        """Record the step for batches of these sizes; whatever member the lane held is lost."""
        fresh = [size for size in sizes if size not in self._graphs]
        if fresh and self.stream is not None:
            self.stream.wait_stream(torch.cuda.current_stream())  # on which the lane's tensors were made
        with self.current():
            for size in fresh:
                self.clock.zero_()
                for _ in range(WARM_UPS):
                    self._step(size)
            for size in fresh:
                self._graphs[size] = None if self.stream is None else self._record(size)
        # Only now, since a memory pool ends with the last of its recordings.
        idle = [size for size in self._graphs if size not in sizes]
        for size in idle[: max(0, len(self._graphs) - KEPT)]:
            del self._graphs[size]

    def _record(self, size: int) -> torch.cuda.CUDAGraph:
        graph = torch.cuda.CUDAGraph()
        # One pool serves all sizes: a lane replays one at a time, and nothing in the pool outlives a step.
        with torch.cuda.graph(graph, pool=self._pool, stream=self.stream, capture_error_mode="thread_local"):
            self._step(size)
        return graph

    def load(
        self,
        start: Stack,
        member: int,
        carried: Carried,
        correction: Tensor | None,
        plan: BatchPlan,
        rates: Tensor,
    ) -> None:
        """Copy a member in; `plan` and `rates` [S, T] have the steps that it takes first."""
        position = self.ground.places.position
        for held in (self.weights, self.gradient, self.slots, self.mean):
            held.zero_()  # the gaps between tensors too: what a diverged member left there would enter the norm
        self.weights.index_copy_(0, position, start.params[member])
        self.buffers.copy_(start.buffers[member])
        self.counters.copy_(start.counters[member])
        self.slots.index_copy_(1, position, carried.slots[member])
        self.mean.index_copy_(0, position, carried.mean[member])
        self.total.copy_(carried.total[member])
        self.age.copy_(carried.steps[member])
        self.clock.zero_()
        if correction is not None:
            self.correction.index_copy_(0, position, correction[member])
        if self.ground.form.step.rule.proximal.mu:
            self.anchor.index_copy_(0, position, carried.anchor[member])
        steps, batch = plan.index.shape[1:]
        self.rates[:steps].copy_(rates[member])
        self.index[:steps, :batch].copy_(plan.index[member])
        if self.ground.form.augmented:
            if plan.pad:
                self.shift[:steps, :batch].copy_(plan.shift[member])
            self.flip[:steps, :batch].copy_(plan.flip[member])

    def step(self, size: int) -> None:
        """Take the member's next step, on a batch of `size` images; replayed where that was recorded."""
        graph = self._graphs.get(size)
        if graph is None:
            self._step(size)
        else:
            graph.replay()

    def collect(self, count: int) -> None:
        """Take the weights into their running mean, as the `count`-th."""
        self.mean.add_((self.weights - self.mean) / count)

    def unload(self, stack: Stack, carried: Carried, member: int, *, steps: int, collected: int) -> None:
        """Copy the member out into its row of a stack and of what is carried, after so many more steps."""
        position = self.ground.places.position
        stack.params[member].copy_(self.weights[position])
        stack.buffers[member].copy_(self.buffers)
        stack.counters[member].copy_(self.counters)
        carried.slots[member].copy_(self.slots[:, position])
        carried.mean[member].copy_(self.mean[position])
        carried.total[member].copy_(self.total)
        carried.steps[member] += steps
        carried.collected[member] = collected

    def _step(self, size: int) -> None:
        ground, form = self.ground, self.ground.form
        index, shift, flip = (
            plan.index_select(0, self.clock)[0, :size] for plan in (self.index, self.shift, self.flip)
        )
        images = ground.pixels.images[index]
        if form.augmented:
            images = crop_and_flip(images, shift, flip, pad=form.pad)
        x = ground.pixels(images)
        # New leaves at every step: what autograd keeps for a leaf is tied to the stream that it first met.
        leaves = {name: view.detach().requires_grad_() for name, view in self._leaves.items()}
        with torch.enable_grad():
            with autocast(form.device, form.precision):
                logits = functional_call(ground.module, leaves | self._state, (x,), strict=True)
            loss = form.step.loss(logits.to(form.dtype), [target[index] for target in ground.targets])
            gradients = torch.autograd.grad(loss * form.step.loss.scale, list(leaves.values()))
        with torch.no_grad():
            torch._foreach_copy_(self._gradients, list(gradients))
            self._pull()
            if form.corrected:
                self.gradient.add_(self.correction)
            if form.step.rule.clip:
                self.gradient.mul_((form.step.rule.clip / (self.gradient.norm() + CLIP_EPS)).clamp_max(1.0))
            self._move()
            self.total.add_(loss.detach())
            self.clock.add_(1)
            self.age.add_(1)

    def _move(self) -> None:
        """Move the weights by the gradient; see `kernels.step`."""
        rule, rate = self.ground.form.step.rule, self.rates.index_select(0, self.clock)
        if isinstance(rule, AdamW):
            self.weights.sub_(self.weights * self.ground.decay * rate)
        elif rule.weight_decay:
            self.gradient.addcmul_(self.weights, self.ground.decay)
        if isinstance(rule, Sgd):
            change = self.slots[0].mul_(rule.momentum).add_(self.gradient) if rule.momentum else self.gradient
        else:
            assert isinstance(rule, Adam)  # `takes` has refused all others
            first, second, nth = self.slots[0], self.slots[1], self.age + 1
            first.lerp_(self.gradient, 1 - rule.beta1)
            second.mul_(rule.beta2).addcmul_(self.gradient, self.gradient, value=1 - rule.beta2)
            length = second.div(1 - rule.beta2**nth).sqrt_().add_(rule.eps)
            change = first.div(1 - rule.beta1**nth).div_(length)
        self.weights.addcmul_(change, rate, value=-1)

    def _pull(self) -> None:
        """Add the gradient of the proximal term; see `step.Proximal`."""
        mu, form = self.ground.form.step.rule.proximal.mu, self.ground.form.step.rule.proximal.form
        if mu and form == "squared":
            self.gradient.add_(self.weights - self.anchor, alpha=mu)
        elif mu:
            views = self.ground.places.views(self.weights - self.anchor)
            gradients = self.ground.places.views(self.gradient)
            for name in (name for name in views if "weight" in name):
                away = views[name]
                gradients[name].add_(away / away.norm().clamp_min(TINY), alpha=mu / 2)
