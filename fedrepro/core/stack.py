"""Stacks: models of one architecture with a leading member axis.

Clients, posterior samples, teachers and global models are all stacks. The trainable parameters of all
members lie in one flat tensor, so an average, a posterior or a checkpoint is a single tensor operation.
Buffers (BatchNorm statistics) are kept apart: a momentum step or a Gaussian sample must not touch them.

Shapes: M members, O output members, P parameters, Q buffer entries, R integer counters.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Layout:
    """Names and shapes of an architecture's parameters, buffers and counters, in storage order."""

    params: tuple[tuple[str, tuple[int, ...]], ...]
    buffers: tuple[tuple[str, tuple[int, ...]], ...]
    counters: tuple[tuple[str, tuple[int, ...]], ...]

    @classmethod
    def of(cls, module: nn.Module) -> "Layout":
        """Read the layout of a module; integer buffers (`num_batches_tracked`) become counters."""
        buffers = [(n, b) for n, b in module.named_buffers() if b.is_floating_point()]
        counters = [(n, b) for n, b in module.named_buffers() if not b.is_floating_point()]
        return cls(
            tuple((name, tuple(p.shape)) for name, p in module.named_parameters()),
            tuple((name, tuple(b.shape)) for name, b in buffers),
            tuple((name, tuple(b.shape)) for name, b in counters),
        )

    @staticmethod
    def size(entries: tuple[tuple[str, tuple[int, ...]], ...]) -> int:
        """Return the number of scalars that a list of entries holds."""
        return sum(prod(shape) for _, shape in entries)

    @staticmethod
    def views(flat: Tensor, entries: tuple[tuple[str, tuple[int, ...]], ...]) -> Iterator[tuple[str, Tensor]]:
        """Yield (name, view [..., *shape]) of a flat tensor [..., size]; views share its memory."""
        offset = 0
        for name, shape in entries:
            yield name, flat.narrow(-1, offset, prod(shape)).unflatten(-1, shape or (1,))
            offset += prod(shape)


@dataclass(frozen=True)
class Stack:
    """M models of one architecture: params [M, P], buffers [M, Q], counters [M, R] (int64)."""

    layout: Layout
    params: Tensor
    buffers: Tensor
    counters: Tensor

    def __post_init__(self) -> None:
        """Check that the tensors fit the layout."""
        for name, entries in (("params", self.layout.params), ("buffers", self.layout.buffers)):
            tensor: Tensor = getattr(self, name)
            want = (len(self.params), Layout.size(entries))
            if tuple(tensor.shape) != want:
                raise ValueError(f"{name} must have shape [members, size] = {want}, got {tuple(tensor.shape)}")
        want = (len(self.params), Layout.size(self.layout.counters))
        if tuple(self.counters.shape) != want or self.counters.dtype != torch.int64:
            raise ValueError(
                f"counters must be int64 {want}, got {self.counters.dtype} {tuple(self.counters.shape)}"
            )

    @classmethod
    def of(cls, *modules: nn.Module) -> "Stack":
        """Copy modules of one architecture into a stack [len(modules)]."""
        layout = Layout.of(modules[0])
        params = [flat([p for _, p in m.named_parameters()]) for m in modules]
        buffers = [flat([b for _, b in m.named_buffers() if b.is_floating_point()]) for m in modules]
        counters = [flat([b for _, b in m.named_buffers() if not b.is_floating_point()]) for m in modules]
        reference = params[0]
        return cls(
            layout,
            torch.stack(params),
            torch.stack([b.to(reference.dtype) for b in buffers]).to(reference.device),
            torch.stack([c.to(torch.int64) for c in counters]).to(reference.device),
        )

    def __len__(self) -> int:
        """Return the number of members M."""
        return len(self.params)

    def take(self, index: Tensor | list[int] | slice) -> "Stack":
        """Return the members at `index`, as a copy unless it is a slice."""
        return Stack(self.layout, self.params[index], self.buffers[index], self.counters[index])

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> "Stack":
        """Move the stack to a device, or its parameters and buffers to another floating dtype."""
        return Stack(
            self.layout,
            self.params.to(device=device, dtype=dtype),
            self.buffers.to(device=device, dtype=dtype),
            self.counters.to(device=device),
        )

    def named_params(self) -> dict[str, Tensor]:
        """Return views of the parameters, name -> [M, *shape]."""
        return dict(Layout.views(self.params, self.layout.params))

    def named_buffers(self) -> dict[str, Tensor]:
        """Return views of the buffers, name -> [M, *shape]."""
        return dict(Layout.views(self.buffers, self.layout.buffers))

    def load(self, member: int, module: nn.Module) -> None:
        """Copy one member into a module of the same architecture, keeping the module's memory format."""
        with torch.no_grad():
            targets = dict(module.named_parameters()) | dict(module.named_buffers())
            for flat, entries in (
                (self.params, self.layout.params),
                (self.buffers, self.layout.buffers),
                (self.counters, self.layout.counters),
            ):
                for name, view in Layout.views(flat[member], entries):
                    targets[name].copy_(view.view(targets[name].shape))


def flat(tensors: Sequence[Tensor]) -> Tensor:
    """Join tensors into one vector, a copy without gradients."""
    if not tensors:
        return torch.zeros(0)
    return torch.cat([t.detach().reshape(-1) for t in tensors])


def concatenate(stacks: list[Stack]) -> Stack:
    """Join stacks of one architecture along the member axis; raises ValueError if layouts differ."""
    first = stacks[0]
    if any(s.layout != first.layout for s in stacks):
        raise ValueError("stacks of different architectures cannot be joined")
    return Stack(
        first.layout,
        torch.cat([s.params for s in stacks]),
        torch.cat([s.buffers for s in stacks]),
        torch.cat([s.counters for s in stacks]),
    )


def mix(weights: Tensor, stack: Stack) -> Stack:
    """Form linear combinations of the members: w'_o = sum_m weights[o, m] w_m.

    FedAvg (FedBE eq. 2 and 10), group averages and Dirichlet samples (eq. 7 and 12) are all of this form.
    Parameters and BatchNorm statistics are mixed with the same weights. Counters are integers that no
    average can hold: an output takes the largest count among the members that it uses. A member of weight 0 plays
    no part, whatever its values: one that diverged can be left out.

    Args:
        weights: [O, M], any real numbers; rows of an average sum to 1.
        stack: M members.

    Returns:
        A stack of O members.

    Raises:
        ValueError: if the weights do not have one column per member.
    """
    if weights.ndim != 2 or weights.shape[1] != len(stack):
        raise ValueError(f"weights must be [outputs, {len(stack)} members], got {list(weights.shape)}")
    weights = weights.to(stack.params)
    if not bool(stack.params.isfinite().all() & stack.buffers.isfinite().all()):
        rows = [_mixed(row[None], _only((row != 0)[:, None], stack)) for row in weights]
        return concatenate(rows) if rows else _mixed(weights, stack)
    return _mixed(weights, stack)


def _only(used: Tensor, stack: Stack) -> Stack:
    """Return a stack with zeros in place of the members that are not used."""
    params, buffers = (torch.where(used, tensor, 0.0) for tensor in (stack.params, stack.buffers))
    return Stack(stack.layout, params, buffers, stack.counters)


def _mixed(weights: Tensor, stack: Stack) -> Stack:
    used = (weights != 0).unsqueeze(-1)  # [O, M, 1]
    counts = torch.where(used, stack.counters, 0)
    return Stack(
        stack.layout,
        weights @ stack.params,
        weights @ stack.buffers,
        counts.amax(1) if len(stack) else stack.counters,
    )


def plus(one: Stack, other: Stack) -> Stack:
    """Add two stacks member by member, as parts of a `mix` that was formed in groups; counters: the larger.

    Args:
        one, other: stacks of one architecture with equally many members.
    """
    return Stack(
        one.layout,
        one.params + other.params,
        one.buffers + other.buffers,
        torch.maximum(one.counters, other.counters),
    )
