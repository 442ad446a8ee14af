"""The threads kernel: the members of a stack side by side on the CPU's cores, each trained by `plain`.

A small network cannot keep several cores busy with one batch: threads that share every operation wait for each
other at its end. Here each thread trains members of its own, and torch's operations run meanwhile without Python's
lock. Nothing else differs from `plain`, and a member trained by one thread ends at the same bits on any machine of
its kind, however many cores that has.

Shapes: S members trained, M members, N images, C classes, T steps, B batch, P parameters.
"""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import TypeVar

import torch
from torch import Tensor, nn

from fedrepro.architecture import Architecture
from fedrepro.data import Data
from fedrepro.kernels import plain
from fedrepro.kernels.plain import NonFiniteLossError, Trained
from fedrepro.optim import Sgd
from fedrepro.plan import BatchPlan
from fedrepro.stack import Stack, concatenate

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


def _each(members: list[int], work: Callable[[int, Callable[[], None]], Made], lanes: int, own: int) -> list[Made]:
    """Do some work for each member, in the order given; returns results in the order of the members' numbers.

    `work` gets a member and a function to call now and then, which raises once the work is no longer wanted.
    """
    stop = threading.Event()

    def go_on() -> None:
        if stop.is_set():
            raise _StoppedError

    def job(member: int) -> Made:
        try:
            return work(member, go_on)
        except ArithmeticError:
            raise  # the others go on, so that which of several is named does not depend on who was first
        except BaseException:
            stop.set()
            raise

    # torch.set_num_threads counts for the thread that calls it, so the caller's own number stays.
    with ThreadPoolExecutor(lanes, "fedrepro", initializer=torch.set_num_threads, initargs=(own,)) as pool:
        futures = {member: pool.submit(job, member) for member in members}
        try:
            for future in futures.values():
                future.exception()
        finally:
            stop.set()  # an interrupt arrives here, in the main thread
    errors = {member: error for member in sorted(futures) if (error := futures[member].exception()) is not None}
    for error in errors.values():
        if not isinstance(error, _StoppedError):
            raise error
    return [futures[member].result() for member in sorted(futures)]


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
    steps = (plan.mask.any(2)).sum(1).tolist()
    longest_first = sorted(range(len(start)), key=lambda member: -steps[member])

    def one(member: int, go_on: Callable[[], None]) -> Trained:
        part = slice(member, member + 1)
        own = BatchPlan(plan.index[part], plan.mask[part], plan.shift[part], plan.flip[part], plan.pad)
        try:
            return plain.train(
                architecture,
                start.take(part),
                data,
                targets,
                own,
                sgd,
                precision=precision,
                collect=collect,
                velocity=None if velocity is None else velocity[part],
                correction=None if correction is None else correction[part],
                loss_scale=loss_scale,
                before_step=go_on,
            )
        except NonFiniteLossError:
            raise NonFiniteLossError(member) from None

    done = _each(longest_first, one, *side_by_side(len(start)))
    return Trained(
        concatenate([d.stack for d in done]),
        concatenate([d.average for d in done]),
        torch.cat([d.velocity for d in done]),
        torch.cat([d.loss for d in done]),
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

    def one(member: int, go_on: Callable[[], None]) -> Tensor:
        go_on()
        alone = stack.take(slice(member, member + 1))
        return plain.predict(architecture, alone, data, precision=precision, batch_size=batch_size)

    return torch.cat(_each(list(range(len(stack))), one, *side_by_side(len(stack))))


def recalibrate(
    architecture: Architecture, stack: Stack, data: Data, *, precision: str = "float32", batch_size: int = 250
) -> Stack:
    """Recompute the BatchNorm statistics of every member by one pass over data; see `plain.recalibrate`."""
    _check(architecture, stack.params.device, precision)
    if not len(stack):
        return stack

    def one(member: int, go_on: Callable[[], None]) -> Stack:
        go_on()
        alone = stack.take(slice(member, member + 1))
        return plain.recalibrate(architecture, alone, data, precision=precision, batch_size=batch_size)

    return concatenate(_each(list(range(len(stack))), one, *side_by_side(len(stack))))
