"""The threads kernel: the members of a stack side by side on the CPU's cores, each trained by `plain`.

A small network cannot keep several cores busy with one batch: threads that share every operation wait for each
other at its end. Here each thread trains members of its own, and torch's operations run meanwhile without Python's
lock. Nothing else differs from `plain`, and a member trained by one thread ends at the same bits on any machine of
its kind, however many cores that has.

Shapes: S members trained, M members, N images, C classes, T steps, B batch, P parameters.
"""

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import lru_cache
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from fedrepro.core.stack import Stack
from fedrepro.data.data import Data
from fedrepro.kernels import plain
from fedrepro.kernels.batches import BatchPlan
from fedrepro.kernels.graph.sessions import share_out
from fedrepro.kernels.plain import NonFiniteLossError, Trained
from fedrepro.kernels.step import Sgd
from fedrepro.models.architecture import Architecture

Made = TypeVar("Made")


class _StoppedError(Exception):
    """Another member failed, or the user interrupted: this one need not end."""


def supports(architecture: Architecture, device: torch.device, precision: str) -> str:
    """Return "" if this kernel can run here, otherwise the reason why it cannot."""
    if device.type != "cpu":
        return f"threads runs on the CPU, not on {device.type}"
    if not torch.backends.openmp.is_available():
        return "this torch has no OpenMP, so threads cannot share the cores out"
    if precision not in plain.PRECISIONS:
        return f"precision must be one of {plain.PRECISIONS}, got {precision!r}"
    return ""


def not_worth(architecture: Architecture, device: torch.device, precision: str) -> str:
    """Return "" if this kernel is the faster one, otherwise the reason why `plain` is."""
    reason = supports(architecture, device, precision)
    if not reason and torch.get_num_threads() == 1:
        return "there is one core"
    if not reason and not _convolves(architecture):
        return f"{architecture.name} is so small that Python's lock would be its bound"
    return reason


@lru_cache(maxsize=256)
def _convolves(architecture: Architecture) -> bool:
    return any(isinstance(layer, nn.Conv2d) for layer in architecture.make().modules())


def side_by_side(members: int) -> tuple[int, int]:
    """Return how many members run at once, and on how many of torch's threads each."""
    total = torch.get_num_threads()
    lanes = max(1, min(members, total))
    return lanes, total // lanes


@lru_cache(maxsize=4)
def _pool(lanes: int, own: int) -> ThreadPoolExecutor:
    """Return threads that stay for later calls, as what torch prepares for a thread is lost with it."""
    # torch.set_num_threads counts for the thread that calls it, so the caller's own number stays.
    return ThreadPoolExecutor(lanes, "fedrepro", initializer=torch.set_num_threads, initargs=(own,))


def _each(
    steps: list[int], work: Callable[[list[int], Callable[[], None]], Made]
) -> tuple[list[list[int]], list[Made]]:
    """Share members out by their steps, and do some work for each group, side by side.

    `work` gets the members and a function to call now and then, which raises once the work is no longer wanted.

    Returns:
        The members of each group, ascending, and what was made of them.
    """
    lanes, own = side_by_side(len(steps))
    groups = [sorted(members) for members in share_out(steps, lanes)]
    stop = threading.Event()

    def go_on() -> None:
        if stop.is_set():
            raise _StoppedError

    def job(members: list[int]) -> Made:
        try:
            return work(members, go_on)
        except ArithmeticError:
            raise  # the others go on, so that which of several is named does not depend on who was first
        except BaseException:
            stop.set()
            raise

    if len(groups) == 1:
        return groups, [work(groups[0], lambda: None)]
    futures: list[Future[Made]] = []
    cores = torch.get_num_threads()
    try:
        for members in groups:
            futures.append(_pool(len(groups), own).submit(job, members))
        wait(futures)
    finally:
        stop.set()  # an interrupt arrives here, in the main thread
        wait(futures)  # so that nothing goes on in the background
        torch.set_num_threads(cores)  # for threads still to come: the pool's own number became their default
    errors = [error for future in futures if (error := future.exception()) is not None]
    if errors:
        named = [error for error in errors if isinstance(error, NonFiniteLossError)]
        first = min(named, key=lambda error: error.member) if named else None
        others = [error for error in errors if not isinstance(error, _StoppedError | ArithmeticError)]
        raise (others or [first or errors[0]])[0]
    return groups, [future.result() for future in futures]


def _together(groups: list[list[int]], tensors: list[Tensor]) -> Tensor:
    """Join what the groups made, in the order of the members' numbers."""
    order = torch.tensor([member for members in groups for member in members]).argsort()
    return torch.cat(tensors)[order]


def _joined(groups: list[list[int]], stacks: list[Stack]) -> Stack:
    names = ("params", "buffers", "counters")
    return Stack(stacks[0].layout, *(_together(groups, [getattr(s, name) for s in stacks]) for name in names))


def train(
    architecture: Architecture,
    start: Stack,
    data: Data,
    targets: Tensor,
    plan: BatchPlan,
    sgd: Sgd,
    *,
    precision: str = "float32",
    collect: Tensor | None = None,
    velocity: Tensor | None = None,
    correction: Tensor | None = None,
    loss_scale: float = 1.0,
) -> Trained:
    """Train every member of a stack on its own batches; see `kernels.plain.train`.

    Raises:
        NonFiniteLossError: as `plain.train`.
        ValueError: off the CPU, or for a torch without OpenMP.
    """
    _check(architecture, start.params.device, precision)

    def some(members: list[int], go_on: Callable[[], None]) -> Trained:
        index, mask, shift, flip = (part[members] for part in (plan.index, plan.mask, plan.shift, plan.flip))
        try:
            return plain.train(
                architecture,
                start.take(members),
                data,
                targets,
                BatchPlan(index, mask, shift, flip, plan.pad),
                sgd,
                precision=precision,
                collect=collect,
                velocity=None if velocity is None else velocity[members],
                correction=None if correction is None else correction[members],
                loss_scale=loss_scale,
                before_step=go_on,
            )
        except NonFiniteLossError as error:
            raise NonFiniteLossError(members[error.member]) from None

    groups, done = _each(plan.mask.any(2).sum(1).clamp_min(1).tolist(), some)
    return Trained(
        _joined(groups, [d.stack for d in done]),
        _joined(groups, [d.average for d in done]),
        _together(groups, [d.velocity for d in done]),
        _together(groups, [d.loss for d in done]),
    )


def _check(architecture: Architecture, device: torch.device, precision: str) -> None:
    reason = supports(architecture, device, precision)
    if reason:
        raise ValueError(reason)


def predict(
    architecture: Architecture, stack: Stack, data: Data, *, precision: str = "float32", batch_size: int = 250
) -> Tensor:
    """Run every member over a data set in evaluation mode; see `kernels.plain.predict`."""
    _check(architecture, stack.params.device, precision)
    if not len(stack):
        return plain.predict(architecture, stack, data, precision=precision, batch_size=batch_size)

    def some(members: list[int], go_on: Callable[[], None]) -> Tensor:
        options: dict[str, Any] = {"precision": precision, "batch_size": batch_size, "before_step": go_on}
        return plain.predict(architecture, stack.take(members), data, **options)

    return _together(*_each([1] * len(stack), some))


def recalibrate(
    architecture: Architecture, stack: Stack, data: Data, *, precision: str = "float32", batch_size: int = 250
) -> Stack:
    """Recompute the BatchNorm statistics of every member by one pass over data; see `plain.recalibrate`."""
    _check(architecture, stack.params.device, precision)
    if not len(stack):
        return stack

    def some(members: list[int], go_on: Callable[[], None]) -> Stack:
        options: dict[str, Any] = {"precision": precision, "batch_size": batch_size, "before_step": go_on}
        return plain.recalibrate(architecture, stack.take(members), data, **options)

    return _joined(*_each([1] * len(stack), some))
