"""A desk that keeps what is done of a long round: trainings are cut into parts, which lead to the same bits.

Shapes: S members trained, T steps.
"""

import hashlib
import time
from collections.abc import Callable

import torch
from torch import Tensor
from tqdm import tqdm

from fedrepro.core.stack import Stack
from fedrepro.federation.desk import STOPPED, Desk, Part, PausedError
from fedrepro.kernels.batches import BatchPlan
from fedrepro.kernels.step import Step
from fedrepro.kernels.trained import Carried, Trained
from fedrepro.runs.store import Begun, Drawer

PART_SECONDS = 8.0  # that a part takes, about; so often the progress bar moves
KEEP_SECONDS = 60.0  # between two writes of a training; so much is lost at most
SOON = 5.0  # seconds: a training that took as long is written when it ends, a shorter one is done again
FIRST_IMAGES = {"fused": 2_000_000, "graph": 500_000}  # of the first part, where nothing has been timed yet
FEW_IMAGES = 256  # the same on a CPU
BACKWARD = 3.0  # passes forward that a step of training takes as long as


class KeepingDesk(Desk):
    """Cuts the trainings of one run's rounds, writes down what is done, and stops where the time is over.

    Only the training at hand is held in memory.

    Args:
        engine: the kernel that trains.
        deadline: `time.monotonic()` value before which to stop; None for no limit.
        show: is told the progress inside a round, in words.
        forward: seconds that an image needs to pass through the network, as measured before; 0 if unknown.
    """

    def __init__(
        self,
        engine: str = "plain",
        *,
        deadline: float | None = None,
        show: Callable[[str], object] = lambda text: None,
        forward: float = 0.0,
    ) -> None:
        self._deadline, self._show, self._forward = deadline, show, forward
        self._first = FIRST_IMAGES.get(engine, FEW_IMAGES)
        self._worked = False
        self._rate = 1 / (BACKWARD * forward) if forward else 0.0  # images per second of the last part

    def begin(self, drawer: Drawer) -> None:
        """Begin a round, of which something may lie in the drawer already."""
        self._drawer = drawer
        self._calls = 0
        self._worked = False  # whether this process has put something into the drawer
        self._begun = self._kept = time.monotonic()

    def carry_out(
        self, part: Part, start: Stack, plan: BatchPlan, step: Step, rates: Tensor, carried: Carried | None
    ) -> Trained:
        """Train all steps of a plan, part by part, going on from what is done of it.

        Raises:
            PausedError: where the next part would end after the deadline; what is done is kept.
        """
        number, self._calls = self._calls, self._calls + 1
        images = plan.mask.sum((0, 2)).tolist()  # of each step
        began, first, trained, mark = time.monotonic(), 0, None, _mark(start, plan, step, rates)
        saved = self._drawer.take(number, mark, start.params.device)
        if saved is not None:
            first, carried = saved.first, saved.carried
            start = Stack(start.layout, saved.params, saved.buffers, saved.counters)
            trained = Trained.of(start, carried)
        try:
            while first < len(images):
                last = self._until(images, first)
                self._look_at_the_clock(number, trained, mark, images, first, last)
                begun = time.monotonic()
                trained = part(start, first, last, carried)
                self._time(sum(images[first:last]), time.monotonic() - begun)
                first, start, carried = last, trained.stack, trained.carried
                self._tell(sum(images[:first]), sum(images))
                if time.monotonic() - self._kept > KEEP_SECONDS and first < len(images):
                    self._write(number, first, trained, mark)
        except KeyboardInterrupt:
            self._write(number, first, trained, mark)
            raise
        assert trained is not None  # a plan has a step
        fresh = saved is None or saved.first < len(images)
        if fresh and time.monotonic() - began >= SOON:
            self._write(number, first, trained, mark)
        return trained

    def before_predicting(self, images: int) -> None:
        """Stop before images pass through a network if that would end after the deadline.

        Only where a training of this round was written down here: the next process then has more time for it.

        Raises:
            PausedError: then; what is done is kept.
        """
        late = self._deadline is not None and time.monotonic() + images * self._forward > self._deadline
        if self._worked and late:
            self._drawer.put(self._calls, None, time.monotonic() - self._begun)
            what = f"before {images:,} images are predicted in it"
            raise PausedError(f"{STOPPED} inside round {self._drawer.round + 1}, {what}")

    def _until(self, images: list[int], first: int) -> int:
        """Return the step before which the next part ends; a rest not worth a part of its own goes along."""
        left = self._rate * PART_SECONDS if self._rate else float(self._first)
        if sum(images[first:]) < 1.5 * left:
            return len(images)
        last = first
        while last < len(images) and (last == first or left >= images[last]):
            left -= images[last]
            last += 1
        return last

    def _look_at_the_clock(
        self, number: int, trained: Trained | None, mark: str, images: list[int], first: int, last: int
    ) -> None:
        expected = sum(images[first:last]) / self._rate if self._rate else 0.0
        if self._deadline is not None and time.monotonic() + expected > self._deadline:
            self._write(number, first, trained, mark)
            place = f"after step {first} of {len(images)} of training {number + 1}"
            raise PausedError(f"{STOPPED} inside round {self._drawer.round + 1}, {place} in it")

    def _time(self, images: int, seconds: float) -> None:
        if images:
            self._rate = images / max(seconds, 1e-9)

    def _tell(self, done: int, all: int) -> None:
        if self._rate:
            left = tqdm.format_interval((all - done) / self._rate)
            self._show(f"{done:,} of {all:,} images, {self._rate:,.0f}/s, {left} left of this training")

    def _write(self, number: int, first: int, trained: Trained | None, mark: str) -> None:
        """Write down how far a training is, if it has begun, and the time that the round has taken."""
        now = time.monotonic()
        begun = None
        if trained is not None:
            own = trained.stack
            begun = Begun(mark, first, own.params, own.buffers, own.counters, trained.carried)
            self._worked = True
        self._drawer.put(number, begun, now - self._begun)
        self._begun = self._kept = now


def _mark(start: Stack, plan: BatchPlan, step: Step, rates: Tensor) -> str:
    """Return a digest of everything that a training's result depends on, but for its data and targets."""
    digest = hashlib.sha256(repr((start.layout, plan.pad, step)).encode())
    parts = (plan.index, plan.mask, plan.shift, plan.flip, plan.noise, rates, start.params, start.buffers)
    for tensor in parts:
        digest.update(repr(tuple(tensor.shape)).encode())
        digest.update(tensor.detach().cpu().contiguous().view(torch.uint8).numpy().data)
    return digest.hexdigest()
