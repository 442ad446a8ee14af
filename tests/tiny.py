"""Tiny federations, data and stacks that the tests share: a few images, networks of a few weights.

Shapes: S clients, M members, N images, H x W pixels, P parameters, Q buffer entries.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedrepro.core.rng import Streams
from fedrepro.core.setting import Setting
from fedrepro.core.stack import Layout, Stack, mix
from fedrepro.core.state import State
from fedrepro.data.data import Data
from fedrepro.federation import assemble as assemble  # declares settings
from fedrepro.federation.federation import Federation
from fedrepro.kernels import step
from fedrepro.kernels.batches import BatchPlan
from fedrepro.kernels.step import FREE, Loss, Proximal, Step
from fedrepro.kernels.trained import Carried, Trained
from fedrepro.models.architecture import Architecture
from fedrepro.stages.combine import Ensemble, MeanOfProbabilities
from fedrepro.stages.round import Participants, Round
from fedrepro.stages.weigh import BySize

Array = NDArray[np.float64]

MEAN, STD = (0.5, 0.4, 0.3), (0.25, 0.2, 0.3)
CLASSES = 3

# A setting of small numbers, everything switched on; options that are not here have their neutral value.
SMALL: dict[str, Any] = {
    "data": "digits",
    "model": "resnet8",
    "hidden": 8,
    "initialisation": "xavier",
    "partition": "dirichlet",
    "partition_alpha": 1.0,
    "clients": 3,
    "major_classes": 10,
    "major_images": 3,
    "minor_images": 1,
    "public_images": 20,
    "client_images": 60,
    "rounds": 4,
    "local_epochs": 1,
    "client_batch": 4,
    "client_lr": 0.01,
    "client_momentum": 0.9,
    "client_weight_decay": 0.001,
    "augment_pad": 1,
    "augment_flip": True,
    "method": "fedbe",
    "samples": 2,
    "dirichlet_alpha": 0.5,
    "sharpen": 2.0,
    "distill_epochs": 2,
    "distill_batch": 4,
    "distill_momentum": 0.9,
    "distill_weight_decay": 1e-05,
    "swa_start": 2,
    "swa_cycle": 2,
}

# Two weights; a BatchNorm's statistics; its counter.
LAYOUT = Layout(
    (("weight", (2,)),),
    (("norm.running_mean", (1,)), ("norm.running_var", (1,))),
    (("norm.num_batches_tracked", ()),),
)


def setting(**changes: Any) -> Setting:
    return Setting.of(SMALL | changes)


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def images(
    count: int, *, classes: int = CLASSES, height: int = 8, width: int = 8, seed: int = 0, offset: int = 0
) -> Data:
    """Return random images, labelled in turn."""
    pixels = torch.randint(256, (count, height, width, 3), dtype=torch.uint8, generator=seeded(seed))
    names = tuple(f"class {c}" for c in range(classes))
    return Data("tiny", pixels, (torch.arange(count) + offset) % classes, names, MEAN, STD)


def points(count: int, *, classes: int = CLASSES, seed: int = 0) -> Data:
    """Return random points of the plane, labelled in turn."""
    features = torch.randn(count, 2, generator=seeded(seed))
    return Data("points", features, torch.arange(count) % classes, tuple("abcdefghij"[:classes]))


def cut(sizes: Sequence[int]) -> tuple[Tensor, ...]:
    """Return consecutive positions for clients of the given sizes."""
    return torch.arange(sum(sizes)).split(list(sizes))


def network(name: str, classes: int = CLASSES) -> Architecture:
    options = {"mlp": (("features", 2), ("hidden", 4)), "group": (("groups", 2), ("norm", "group"))}
    return Architecture("resnet8" if name == "group" else name, classes, options.get(name, ()))


def federation(
    name: str = "mlp",
    *,
    sizes: Sequence[int] = (5, 8, 6),
    public: int = 10,
    test: int = 9,
    precision: str = "float64",
    **options: Any,
) -> Federation:
    """Return clients of the given sizes: points for "mlp", images for "resnet8" and "group" (GroupNorm)."""
    make = points if name == "mlp" else images
    return Federation(
        network(name),
        make(sum(sizes), seed=1),
        cut(sizes),
        make(public, seed=2),
        make(test, seed=3),
        precision=precision,
        **options,
    )


def stack(
    params: Sequence[Sequence[float]],
    buffers: Sequence[Sequence[float]] | None = None,
    counters: Sequence[int] | None = None,
) -> Stack:
    """Return members with two weights, a running mean and variance (0, 1 unless given), and a counter."""
    count = len(params)
    return Stack(
        LAYOUT,
        torch.tensor(params, dtype=torch.float64),
        torch.tensor(buffers if buffers is not None else [[0.0, 1.0]] * count, dtype=torch.float64),
        torch.tensor(counters if counters is not None else [0] * count, dtype=torch.int64)[:, None],
    )


class Sgd(NamedTuple):
    """Rates [T] and plain SGD in one value."""

    lr: Tensor
    momentum: float
    weight_decay: float
    proximal: Proximal = FREE


def train(
    kernel: ModuleType,
    architecture: Architecture,
    start: Stack,
    data: Data,
    targets: Tensor,
    plan: BatchPlan,
    sgd: Sgd,
    *,
    loss_scale: float = 1.0,
    velocity: Tensor | None = None,
    **options: Any,
) -> Trained:
    """Train with a kernel by SGD on one kind of targets, from a velocity [S, P] if there is one."""
    rule = step.Sgd(momentum=sgd.momentum, weight_decay=sgd.weight_decay, proximal=sgd.proximal)
    if velocity is not None:
        begun = torch.ones(len(start), dtype=torch.int64, device=start.params.device)
        options["carried"] = Carried.living_on(start, rule, velocity[:, None], begun)
    done: Trained = kernel.train(
        architecture,
        start,
        data,
        (targets,),
        plan,
        Step(rule=rule, loss=Loss(scale=loss_scale)),
        sgd.lr,
        **options,
    )
    if velocity is None:
        return done
    steps = (done.carried.steps - 1).clamp_min(1).to(done.loss)  # the step that was only said to be done
    return replace(done, loss=done.carried.total / steps)


def velocity(done: Trained) -> Tensor:
    """Return the momentum that SGD carries [S, P]."""
    return done.carried.slots[:, 0]


def replanned(plan: BatchPlan, change: Callable[[Tensor], Tensor]) -> BatchPlan:
    """Return a plan with the same change made to each of its tensors."""
    return BatchPlan(change(plan.index), change(plan.mask), change(plan.shift), change(plan.flip), plan.pad)


def everyone(clients: int, *, epochs: int = 1) -> Participants:
    return Participants(tuple(range(clients)), (0,) * clients, (epochs,) * clients)


def round_of(
    world: Federation,
    state: State,
    *,
    clients: Stack | None = None,
    shares: Tensor | None = None,
    average: Stack | None = None,
    start: Stack | None = None,
    who: Participants | None = None,
    teacher: Ensemble | None = None,
) -> Round:
    """Return a round of which some things are known."""
    begun = Round.begin(state, world, MeanOfProbabilities(sharpen=1.0))
    given = {"clients": clients, "shares": shares, "average": average, "start": start, "who": who}
    known: dict[str, Any] = {
        name: value for name, value in (given | {"teacher": teacher}).items() if value is not None
    }
    return replace(begun, **known)


def aggregation(clients: Stack, sizes: Sequence[float] | None = None, start: Stack | None = None) -> Round:
    """Return what the server knows when clients of the given sizes (equal ones by default) come back."""
    weights = torch.tensor(sizes if sizes is not None else [1.0] * len(clients), dtype=torch.float64)
    shares = (weights / weights.sum())[None]
    begin = start if start is not None else clients.take([0] * len(clients))
    state = State(0, begin.take([0]))
    return round_of(federation(), state, start=begin, clients=clients, shares=shares, average=mix(shares, clients))


def trained_clients(world: Federation, seed: int = 0) -> Round:
    """Return clients that differ in every parameter and statistic, without training any."""
    begin = world.start(seed)
    source = seeded(seed + 100)
    copies = begin.take([0] * world.clients)
    params = copies.params + 0.1 * torch.randn(copies.params.shape, generator=source).to(copies.params)
    buffers = copies.buffers * (0.5 + torch.rand(copies.buffers.shape, generator=source).to(copies.buffers))
    counters = copies.counters + torch.arange(1, world.clients + 1)[:, None]
    clients = Stack(begin.layout, params, buffers, counters)
    round = round_of(world, State(0, begin), start=copies, clients=clients, who=everyone(world.clients))
    shares = BySize()(round, world, Streams(seed))
    return replace(round, shares=shares, average=mix(shares, clients))


def same(one: Stack, other: Stack) -> bool:
    """Return whether two stacks agree bit for bit."""
    return (
        one.layout == other.layout
        and torch.equal(one.params, other.params)
        and torch.equal(one.buffers, other.buffers)
        and torch.equal(one.counters, other.counters)
    )


def copied(one: Stack) -> Stack:
    return Stack(one.layout, one.params.clone(), one.buffers.clone(), one.counters.clone())


def slow_crop_and_flip(image: NDArray[np.uint8], down: int, right: int, flip: bool, pad: int) -> NDArray[np.uint8]:
    """Pad, crop and mirror one image [H, W, 3] pixel by pixel."""
    height, width, _ = image.shape
    out = np.zeros_like(image)
    for y in range(height):
        for x in range(width):
            source_y, source_x = y + down - pad, x + right - pad
            if 0 <= source_y < height and 0 <= source_x < width:
                out[y, width - 1 - x if flip else x] = image[source_y, source_x]
    return out


def slow_inputs(image: NDArray[np.uint8]) -> NDArray[np.float64]:
    """Normalise one image [H, W, 3] into [3, H, W] channel by channel."""
    channels = [(image[:, :, c] / 255 - MEAN[c]) / STD[c] for c in range(3)]
    return np.stack(channels)


@dataclass
class Literal:
    """A one-hidden-layer perceptron with gradients written out, and momentum SGD."""

    weights: list[Array]  # hidden.weight, hidden.bias, output.weight, output.bias
    velocity: list[Array]

    @classmethod
    def of(cls, stack: Stack, member: int) -> "Literal":
        weights = [view[member].numpy().copy() for view in stack.named_params().values()]
        return cls(weights, [np.zeros_like(w) for w in weights])

    def step(
        self, x: Array, targets: Array, lr: float, momentum: float, decay: float, scale: float = 1.0
    ) -> float:
        w1, b1, w2, b2 = self.weights
        before = x @ w1.T + b1
        hidden = np.where(before > 0, before, 0.0)
        logits = hidden @ w2.T + b2
        q = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
        loss = float(-(targets * np.log(q)).sum(1).mean())
        d_logits = scale * (q - targets) / len(x)  # d(-sum p log q)/dz = q - p for probabilities p
        d_before = (d_logits @ w2) * (before > 0)
        gradients = [d_before.T @ x, d_before.sum(0), d_logits.T @ hidden, d_logits.sum(0)]
        for place, (weight, gradient) in enumerate(zip(self.weights, gradients)):
            decayed = gradient + (decay * weight if weight.ndim == 2 else 0.0)  # not on biases
            self.velocity[place] = momentum * self.velocity[place] + decayed
            self.weights[place] = weight - lr * self.velocity[place]
        return loss

    def flat(self) -> Tensor:
        return torch.from_numpy(np.concatenate([w.ravel() for w in self.weights]))

    def flat_velocity(self) -> Tensor:
        return torch.from_numpy(np.concatenate([v.ravel() for v in self.velocity]))
