"""Which images go into which step: batches, crops and flips, drawn before any kernel runs.

Every random choice of training (shuffles, crops, flips, dropout) is made here, before any kernel runs, so that all
kernels see the same batches and must agree.

Shapes: S clients of the round, T steps, B batch.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Augment:
    """Random crop after padding with black, and horizontal flip (FedBE App. B: 2 pixels on CIFAR).

    Args:
        pad: pixels added on each side before the crop, in [0, 16]; 0 crops nothing.
        flip: whether to mirror each image with probability 1/2.
    """

    pad: int
    flip: bool

    def __post_init__(self) -> None:
        """Check the range."""
        if not 0 <= self.pad <= 16:
            raise ValueError(f"pad must be in [0, 16] pixels, got {self.pad}")


NO_AUGMENT = Augment(pad=0, flip=False)


@dataclass(frozen=True)
class BatchPlan:
    """Which images each member sees at each step, and how they are augmented.

    index: [S, T, B] int64 positions in the data; mask: [S, T, B] bool, True for the first images of a step and
    False for the places left over (a member with fewer steps has whole steps masked); shift: [S, T, B, 2] uint8
    crop offsets (down, right) in [0, 2 pad]; flip: [S, T, B] bool; pad: pixels; noise: [S, T] int64, the seed of
    each step for networks that draw random numbers (dropout); zeros unless given; room: steps of the whole plan
    that this one is a part of, for which kernels that record make room, so that all parts share a recording.
    """

    index: Tensor
    mask: Tensor
    shift: Tensor
    flip: Tensor
    pad: int
    noise: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.int64))
    room: int = 0

    def __post_init__(self) -> None:
        """Fill in what was not given."""
        if not len(self.noise):
            object.__setattr__(self, "noise", torch.zeros(self.index.shape[:2], dtype=torch.int64))
        object.__setattr__(self, "room", max(self.room, len(self)))

    def __len__(self) -> int:
        """Return the number of steps T."""
        return self.index.shape[1]

    @property
    def images(self) -> int:
        """The images of all members and steps, an image counted as often as it is seen."""
        return int(self.mask.sum())

    def to(self, device: torch.device) -> "BatchPlan":
        """Move the plan to a device; the seeds, which the CPU reads, stay where they are."""
        return self.changed(lambda part: part.to(device), self.noise)

    def members(self, chosen: Sequence[int] | slice) -> "BatchPlan":
        """Return the plan of some members."""
        return self.changed(lambda part: part[chosen], self.noise[chosen])

    def steps(self, first: int, last: int) -> "BatchPlan":
        """Return the plan of the steps from `first` up to, not including, `last`."""
        return self.changed(lambda part: part[:, first:last], self.noise[:, first:last])

    def changed(self, change: Callable[[Tensor], Tensor], noise: Tensor) -> "BatchPlan":
        """Return a plan with the same change made to each of its tensors, and these seeds."""
        index, mask, shift, flip = (change(part) for part in (self.index, self.mask, self.shift, self.flip))
        return BatchPlan(index, mask, shift, flip, self.pad, noise, self.room)


def check_rates(rates: Tensor, plan: BatchPlan) -> None:
    """Raise a ValueError unless there is one learning rate >= 0 for each step of a plan."""
    if rates.shape != (len(plan),) or bool((rates < 0).any()):
        raise ValueError(f"learning rates must be [{len(plan)}] (the steps) values >= 0, got {rates.tolist()[:5]}")


LAST_BATCH = ("keep", "drop", "merge")


def cuts(images: int, batch_size: int, last_batch: str = "merge") -> list[int]:
    """Return the batch sizes of one pass, in order; see `batch_plan` for `last_batch`."""
    full, rest = divmod(images, batch_size)
    sizes = [batch_size] * full
    if rest and full and last_batch == "drop":
        return sizes
    if rest == 1 and full and last_batch == "merge":
        return [*sizes[:-1], batch_size + 1]
    return sizes + [rest] * (rest > 0)


def batch_plan(
    parts: Sequence[Tensor],
    generators: Sequence[torch.Generator],
    *,
    epochs: Sequence[int],
    batch_size: int,
    augment: Augment,
    last_batch: str = "merge",
) -> BatchPlan:
    """Shuffle each member's images anew for each epoch and cut them into batches.

    Args:
        parts: S int64 vectors, the positions of each member's images.
        generators: S CPU generators; a member's draws come from its own and from no other.
        epochs: S numbers of passes, >= 1.
        batch_size: images per step, >= 1.
        augment: how images are augmented.
        last_batch: what becomes of a last, shorter batch: "keep"; "drop"; or "merge", which keeps it but adds
            a single left-over image to the batch before it, since BatchNorm on one image is meaningless.

    Returns:
        A plan [S, T, B] on the CPU, T the largest number of steps and B the largest batch.

    Raises:
        ValueError: for a member without images, an unknown `last_batch` or a batch size below 1.
    """
    if batch_size < 1:
        raise ValueError(f"batch_size must be >= 1, got {batch_size}")
    if min(epochs, default=1) < 1:
        raise ValueError(f"epochs must be >= 1, got {list(epochs)}")
    if last_batch not in LAST_BATCH:
        raise ValueError(f"last_batch must be one of {LAST_BATCH}, got {last_batch!r}")
    for member, part in enumerate(parts):
        if len(part) == 0:
            raise ValueError(f"member {member} has no images to train on")
    orders, sizes = [], []
    for part, source, passes in zip(parts, generators, epochs, strict=True):
        each = torch.tensor(cuts(len(part), batch_size, last_batch))
        kept = int(each.sum())
        orders.append(torch.cat([part[torch.randperm(len(part), generator=source)][:kept] for _ in range(passes)]))
        sizes.append(each.repeat(passes))
    shape = (len(parts), max(map(len, sizes)), max(int(s.max()) for s in sizes))
    index = torch.zeros(shape, dtype=torch.int64)
    mask = torch.zeros(shape, dtype=torch.bool)
    shift = torch.zeros(*shape, 2, dtype=torch.uint8)
    flip = torch.zeros(shape, dtype=torch.bool)
    noise = torch.zeros(shape[:2], dtype=torch.int64)
    for member, (order, steps, source) in enumerate(zip(orders, sizes, generators)):
        filled = torch.arange(shape[2]) < steps[:, None]  # row by row, the places that the order fills
        mask[member, : len(steps)] = filled
        index[member, : len(steps)].masked_scatter_(filled, order)
        # The draws of a member depend on its own steps alone, not on the longest member's.
        own = (len(steps), int(steps.max()))
        if augment.pad:
            offsets = torch.randint(2 * augment.pad + 1, (*own, 2), generator=source, dtype=torch.uint8)
            shift[member, : own[0], : own[1]] = offsets
        if augment.flip:
            flip[member, : own[0], : own[1]] = torch.rand(own, generator=source) < 0.5
        noise[member, : own[0]] = torch.randint(
            2**63 - 1, own[:1], generator=source
        )  # last: it moves no other draw
    return BatchPlan(index, mask, shift, flip, augment.pad, noise)


def share_out(steps: list[int], lanes: int) -> list[list[int]]:
    """Return the members of each lane: longest training first, each to the lane that is free first."""
    queues: list[list[int]] = [[] for _ in range(lanes)]
    load = [0] * lanes
    for member in sorted(range(len(steps)), key=lambda m: -steps[m]):
        place = load.index(min(load))
        queues[place].append(member)
        load[place] += steps[member]
    return queues


def epochs_in_line(plan: BatchPlan, epochs: Sequence[int]) -> BatchPlan:
    """Return a plan in which all members begin their n-th epoch at the same step, those with fewer steps waiting.

    Args:
        plan: as `batch_plan` makes it: each member takes its own steps one after the other.
        epochs: S numbers of passes, >= 1.

    Returns:
        The same batches for each member in the same order, in max(epochs) parts of equally many steps, of which
        each member takes the first ones; the others are masked.
    """
    taken = plan.mask.any(2).sum(1)  # [S]
    own = taken // torch.tensor(epochs)  # steps of an epoch
    longest = int(own.max())
    number = torch.arange(longest * max(epochs))
    epoch, place = number // longest, number % longest
    steps = (epoch * own[:, None] + place).clamp_max(len(plan) - 1)  # [S, T]
    real = (place < own[:, None]) & (epoch < torch.tensor(epochs)[:, None])
    member = torch.arange(len(own))[:, None]
    moved = plan.changed(lambda part: part[member, steps], plan.noise[member, steps])
    return replace(moved, mask=moved.mask & real[..., None])


def check_batches(whose: str, images: int, batch_size: int, remedy: str, last_batch: str = "merge") -> None:
    """Refuse batches of one image, which BatchNorm cannot normalise in training.

    Args:
        whose: who trains, for the message.
        images: how many images.
        batch_size, last_batch: as for `batch_plan`.
        remedy: what helps.

    Raises:
        ValueError: if some batch would have one image.
    """
    if 1 in cuts(images, batch_size, last_batch):
        raise ValueError(
            f"{whose} ({images} images, batches of {batch_size}) would train on a batch of one image, which "
            f"BatchNorm cannot normalise: {remedy}"
        )
