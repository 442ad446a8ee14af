"""The threads kernel: the members of a stack side by side on the CPU's cores, each trained by `plain`.

A small network cannot keep several cores busy with one batch: threads that share every operation wait for each
other at its end. Here each thread trains members of its own, and torch's operations run meanwhile without Python's
lock. Nothing else differs from `plain`, and a member trained by one thread ends at the same bits on any machine of
its kind, however many cores that has.

Shapes: S members trained, M members, N images, C classes, T steps, B batch, P parameters.
"""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import lru_cache
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from fedrepro.core.stack import Stack, concatenate
from fedrepro.data.data import Data
from fedrepro.kernels import plain
from fedrepro.kernels.batches import BatchPlan, share_out
from fedrepro.kernels.step import Step
from fedrepro.kernels.trained import Carried, Trained
from fedrepro.models.architecture import Architecture

Made = TypeVar("Made")


class _StoppedError(Exception):
    """Another member failed, or the user interrupted: this one need not end."""


def takes(
    architecture: Architecture,
    device: torch.device,
    precision: str,
    step: Step | None = None,
    data: Data | None = None,
) -> str:
    """Return "" if this kernel can do the work, otherwise the reason why it cannot; see `kernels.plain.takes`."""
    if device.type != "cpu":
        return f"threads runs on the CPU, not on {device.type}"
    if not torch.backends.openmp.is_available():
        return "this torch has no OpenMP, so threads cannot share the cores out"
    if step is not None and architecture.random:
        return f"{architecture.name} draws random numbers, whose state all threads share"
    return plain.takes(architecture, device, precision, step, data)


def not_worth(architecture: Architecture) -> str:
    """Return "" if this kernel, where it can do the work, is the faster one, otherwise why `plain` is."""
    if torch.get_num_threads() == 1:
        return "there is one core"
    if not _convolves(architecture):
        return f"{architecture.name} is so small that Python's lock would be its bound"
    return ""


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
        raise next((error for error in errors if not isinstance(error, _StoppedError)), errors[0])
    return groups, [future.result() for future in futures]


def _order(groups: list[list[int]]) -> Tensor:
    """Return the places in the groups, one after the other, of the members in the order of their numbers."""
    return torch.tensor([member for members in groups for member in members]).argsort()


def train(
    architecture: Architecture,
    start: Stack,
    data: Data,
    targets: Sequence[Tensor],
    plan: BatchPlan,
    step: Step,
    rates: Tensor,
    *,
    precision: str = "float32",
    collect: Tensor | None = None,
    carried: Carried | None = None,
    correction: Tensor | None = None,
) -> Trained:
    """Train every member of a stack on its own batches; see `kernels.plain.train`.

    Raises:
        ValueError: as `plain.train`; off the CPU, for a torch without OpenMP or a network with dropout.
    """
    if reason := takes(architecture, start.params.device, precision, step, data):
        raise ValueError(reason)

    def some(members: list[int], go_on: Callable[[], None]) -> Trained:
        return plain.train(
            architecture,
            start.take(members),
            data,
            targets,
            plan.members(members),
            step,
            rates,
            precision=precision,
            collect=collect,
            carried=None if carried is None else carried.take(members),
            correction=None if correction is None else correction[members],
            before_step=go_on,
        )

    groups, done = _each(plan.mask.any(2).sum(1).clamp_min(1).tolist(), some)
    order = _order(groups)
    return Trained(
        concatenate([d.stack for d in done]).take(order),
        concatenate([d.average for d in done]).take(order),
        torch.cat([d.loss for d in done])[order],
        torch.cat([d.finite for d in done])[order],
        Carried.joined([d.carried for d in done]).take(order),
    )


def _check(architecture: Architecture, device: torch.device, precision: str) -> None:
    if reason := takes(architecture, device, precision):
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

    groups, found = _each([1] * len(stack), some)
    return torch.cat(found)[_order(groups)]


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

    groups, found = _each([1] * len(stack), some)
    return concatenate(found).take(_order(groups))
