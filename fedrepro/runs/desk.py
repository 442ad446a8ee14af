"""A desk that keeps what is done of a long round: trainings are cut into parts, which lead to the same bits.

Shapes: S members trained, T steps.
"""

import time
from collections.abc import Callable

import torch
from tqdm import tqdm

from fedrepro.core.stack import Stack
from fedrepro.federation.desk import STOPPED, Desk, Part, PausedError
from fedrepro.kernels.batches import BatchPlan
from fedrepro.kernels.step import Carried, Trained
from fedrepro.runs.store import Begun, Inside

PART_SECONDS = 8.0  # that a part takes, about; so often the progress bar moves
KEEP_SECONDS = 60.0  # between two writes; so much is lost at most
FIRST_IMAGES = {"cpu": 2_000, "cuda": 2_000_000}  # of the first part of all, when nothing has been timed yet


class KeepingDesk(Desk):
    """Cuts the trainings of one run's rounds, writes down what is done, and stops where the time is over.

    Args:
        device: on which the run is played.
        keep: writes down what is done of a round.
        deadline: `time.monotonic()` value before which to stop; None for no limit.
        show: is told the progress inside a round, in words.
    """

    def __init__(
        self,
        device: torch.device,
        keep: Callable[[Inside], None],
        *,
        deadline: float | None = None,
        show: Callable[[str], object] = lambda text: None,
    ) -> None:
        self._keep, self._deadline, self._show = keep, deadline, show
        self._first = FIRST_IMAGES.get(device.type, FIRST_IMAGES["cpu"])
        self._rate = 0.0  # images per second of the last part
        self.begin(Inside(0, 0.0, {}))

    def begin(self, inside: Inside) -> None:
        """Begin a round of which something may be done already."""
        self._inside = inside
        self._calls = 0
        self._begun = self._kept = time.monotonic()

    @property
    def seconds(self) -> float:
        """Seconds of the round that earlier processes spent on it."""
        return self._inside.seconds

    def carry_out(self, part: Part, start: Stack, plan: BatchPlan, carried: Carried | None) -> Trained:
        """Train all steps of a plan, part by part, going on from what is done of it.

        Raises:
            PausedError: where the next part would end after the deadline; what is done is kept.
        """
        number, self._calls = self._calls, self._calls + 1
        images = plan.mask.sum((0, 2)).tolist()  # of each step
        first, done, trained = 0, 0, None
        if number in self._inside.trainings:
            saved = self._inside.trainings[number]
            first, start, carried = saved.first, saved.stack, saved.carried
            trained, done = Trained.of(start, carried), sum(images[:first])
        try:
            while first < len(images):
                last = self._until(images, first)
                self._look_at_the_clock(sum(images[first:last]), first, len(images))
                began = time.monotonic()
                trained = part(start, first, last, carried)
                self._rate = sum(images[first:last]) / max(time.monotonic() - began, 1e-9)
                done, first, start, carried = done + sum(images[first:last]), last, trained.stack, trained.carried
                self._inside.trainings[number] = Begun(first, start, carried)
                self._tell(done, sum(images))
                if time.monotonic() - self._kept > KEEP_SECONDS:
                    self._write()
        except KeyboardInterrupt:
            self._write()
            raise
        assert trained is not None  # a plan has a step
        return trained

    def _until(self, images: list[int], first: int) -> int:
        """Return the step before which the next part ends."""
        left = self._rate * PART_SECONDS if self._rate else float(self._first)
        last = first
        while last < len(images) and (last == first or left >= images[last]):
            left -= images[last]
            last += 1
        return last

    def _look_at_the_clock(self, images: int, first: int, steps: int) -> None:
        expected = images / self._rate if self._rate else 0.0
        if self._deadline is not None and time.monotonic() + expected > self._deadline:
            self._write()
            place = f"after step {first} of {steps} of training {self._calls}"
            raise PausedError(f"{STOPPED} inside round {self._inside.round + 1}, {place} in it")

    def _tell(self, done: int, all: int) -> None:
        left = tqdm.format_interval((all - done) / self._rate)
        self._show(f"{done:,} of {all:,} images, {self._rate:,.0f}/s, {left} left of this training")

    def _write(self) -> None:
        """Write down what is done, unless nothing is."""
        if not self._inside.trainings:
            return
        now = time.monotonic()
        spent = self._inside.seconds + now - self._begun
        self._inside = Inside(self._inside.round, spent, self._inside.trainings, self._inside.places)
        self._keep(self._inside)
        self._begun = self._kept = now
