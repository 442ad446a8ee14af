"""Sessions: lanes kept between calls, and the streams on which work runs side by side."""

import contextlib
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import TypeVar

import torch

from fedrepro.kernels.graph.lanes import Form, Ground, Lane

Made = TypeVar("Made")

LANES = 16  # members side by side at most, unless the caller says otherwise
SESSIONS = 4  # forms whose recordings are kept, the newest ones


class StackMemoryError(RuntimeError):
    """The device has no memory to train as many members side by side; the message tells how many fit."""


class Session:
    """The lanes of one form, which later calls of that form use again."""

    def __init__(self, form: Form) -> None:
        self.ground = Ground(form)
        self.lanes: list[Lane] = []
        self._cost = 0  # bytes that the first lane and its recordings took

    def fit(self, size: int, wanted: int) -> int:
        """Return how many lanes there is memory for, measured by recording a step of `size` images in one.

        Sessions of other forms give way if fewer than `wanted` would fit beside them.
        """
        device = self.ground.form.device
        if device.type == "cpu":
            return LANES
        self.take([[size]])
        while True:
            # A fifth stays free for what else the caller does.
            room = len(self.lanes) + int(0.8 * _free(device) / max(self._cost, 1))
            if room >= wanted or not self._stay_alone():
                return room

    def take(self, sizes: list[list[int]]) -> list[Lane]:
        """Return one lane for each list of batch sizes, with steps of these sizes recorded.

        Sessions of other forms give way if the memory does not suffice beside them.

        Raises:
            StackMemoryError: if the device's memory does not suffice alone.
        """
        for place, wanted in enumerate(sizes):
            error = self._ready(place, wanted)
            if error is not None and self._stay_alone():
                error = None  # it holds on to what was made before memory ran out
                del self.lanes[place:]  # a lane that stopped half way is no place to start from
                error = self._ready(place, wanted)
            if error is not None:
                advice = f"chunk={place} fits" if place else "not even one fits: use smaller batches"
                raise StackMemoryError(
                    f"{self.ground.form.device} has no memory to train {len(sizes)} members side by side; {advice}"
                ) from error
        return self.lanes[: len(sizes)]

    def _ready(self, place: int, sizes: list[int]) -> RuntimeError | None:
        """Make a lane if it is not there, and record what it lacks; returns the error if memory ran out."""
        device = self.ground.form.device
        try:
            measured = place == 0 and not (self.lanes and self.lanes[0].holds(sizes))
            before = _free(device) if measured else 0
            if not self.lanes:
                self._cost = 0
            if place == len(self.lanes):
                self.lanes.append(Lane(self.ground, streams(device)[place % LANES]))
            self.lanes[place].prepare(sizes)
            if measured:
                self._cost += max(before - _free(device), 0)
        except RuntimeError as error:
            # Leaving a recording after the memory ran out may raise an error of its own.
            if not any(isinstance(e, torch.OutOfMemoryError) for e in (error, error.__context__)):
                raise
            return error
        return None

    def _stay_alone(self) -> bool:
        """Let go of the sessions of other forms on this device; returns whether there were any."""
        device = self.ground.form.device
        others = [form for form, kept in _kept.items() if kept is not self and form.device == device]
        _let_go(others, device)
        return bool(others)


def _free(device: torch.device) -> int:
    if device.type == "cpu":
        return 0
    torch.cuda.empty_cache()
    return torch.cuda.mem_get_info(device)[0]


_kept: dict[Form, Session] = {}  # the newest last


def session(form: Form) -> Session:
    """Return the session of a form: an earlier call's, or a new one in place of the oldest."""
    found = _kept.pop(form, None)
    while found is None and len(_kept) >= SESSIONS:
        del _kept[next(iter(_kept))]
    if found is None:
        others = [other for other in _kept if other.device == form.device]
        found = roomy(lambda: Session(form), lambda: _let_go(others, form.device))
    _kept[form] = found
    return found


def roomy(make: Callable[[], Made], give_way: Callable[[], object]) -> Made:
    """Make something; if memory runs out, once more after others gave way."""
    # Not inside `except`: the error holds on to what was made before memory ran out.
    with contextlib.suppress(torch.OutOfMemoryError):
        return make()
    give_way()
    return make()


def _let_go(forms: list[Form], device: torch.device) -> None:
    """Free the sessions of some forms and their memory, once nothing of theirs runs any more."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    for form in forms:
        del _kept[form]
    if device.type == "cuda":
        torch.cuda.empty_cache()


def forget() -> None:
    """Free all recordings and the memory that they hold; the next call records anew."""
    if torch.cuda.is_initialized():
        with contextlib.suppress(RuntimeError):  # an error that brought us here is told by who forgets
            torch.cuda.synchronize()  # recordings that still run must not be destroyed
    _kept.clear()


@lru_cache
def streams(device: torch.device) -> tuple[torch.cuda.Stream | None, ...]:
    """Return the streams of a device, one per lane; None on the CPU, where all work is in order."""
    return tuple(torch.cuda.Stream(device) if device.type == "cuda" else None for _ in range(LANES))


def here(device: torch.device) -> contextlib.AbstractContextManager:
    """Return a context in which a device is the current one."""
    return torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext()


@contextlib.contextmanager
def fork(device: torch.device) -> Iterator[None]:
    """Let the streams begin after the work queued so far, and let what comes later wait for them."""
    side = [stream for stream in streams(device) if stream is not None]
    for stream in side:
        stream.wait_stream(torch.cuda.current_stream(device))
    try:
        yield
    finally:
        # Also after an error: memory that the streams still use must not be handed out again before.
        for stream in side:
            torch.cuda.current_stream(device).wait_stream(stream)
