"""What training returns, and what it hands on to its next part.

Shapes: S members, P parameters.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from fedrepro.core.stack import Stack
from fedrepro.kernels.step import Rule


@dataclass(frozen=True)
class Carried:
    """What training hands on to its next part, so that a training cut into parts ends at the same bits.

    slots [S, slots, P]: what the rule carries; steps [S] int64: steps that each member has taken; total [S]: sum
    of its losses; mean [S, P] and collected [S] int64: the running mean of collected weights, and of how many;
    anchor [S, P]: the weights that the whole training started from, to which a proximal term pulls.
    """

    slots: Tensor
    steps: Tensor
    total: Tensor
    mean: Tensor
    collected: Tensor
    anchor: Tensor

    @classmethod
    def fresh(cls, start: Stack, rule: Rule) -> "Carried":
        """Return what there is before the first step."""
        members, size = start.params.shape
        count = torch.zeros(members, dtype=torch.int64, device=start.params.device)
        return cls(
            start.params.new_zeros(members, rule.slots, size),
            count,
            start.params.new_zeros(members),
            torch.zeros_like(start.params),
            count.clone(),
            start.params,
        )

    @classmethod
    def stacked(cls, members: "Sequence[Carried]") -> "Carried":
        """Join what single members carry, none of its tensors having an axis of members."""
        return cls(*(torch.stack([getattr(one, f.name) for one in members]) for f in fields(cls)))

    @classmethod
    def joined(cls, groups: "Sequence[Carried]") -> "Carried":
        """Join what groups of members carry."""
        return cls(*(torch.cat([getattr(one, f.name) for one in groups]) for f in fields(cls)))

    def copied(self) -> "Carried":
        """Return a copy to write to; the anchor, which nobody writes to, is shared."""
        kept = {f.name: getattr(self, f.name).clone() for f in fields(self) if f.name != "anchor"}
        return replace(self, **kept)

    def take(self, members: Sequence[int] | Tensor | slice) -> "Carried":
        """Return what belongs to some members."""
        return Carried(*(getattr(self, field.name)[members] for field in fields(self)))

    @classmethod
    def living_on(cls, start: Stack, rule: Rule, slots: Tensor, steps: Tensor) -> "Carried":
        """Return what a new training begins with whose rule lives on: with slots and a number of steps."""
        return replace(cls.fresh(start, rule), slots=slots, steps=steps)


@dataclass(frozen=True)
class Trained:
    """What training returns.

    stack: the final models [S]; average: the mean of each member's collected models [S] (as in `stack` where none
    was collected); loss: mean loss over all steps so far [S]; finite: whether loss, weights and statistics are,
    [S] bool, on the CPU; carried: what a next part of the same training needs.
    """

    stack: Stack
    average: Stack
    loss: Tensor
    finite: Tensor
    carried: Carried

    @classmethod
    def of(cls, stack: Stack, carried: Carried) -> "Trained":
        """Put together the final models and what they carry."""
        means = torch.where((carried.collected > 0)[:, None], carried.mean, stack.params)
        average = Stack(stack.layout, means, stack.buffers, stack.counters)
        loss = carried.total / carried.steps.clamp_min(1).to(carried.total)
        finite = stack.params.isfinite().all(1) & stack.buffers.isfinite().all(1) & carried.total.isfinite()
        return cls(stack, average, loss, finite.cpu(), carried)
