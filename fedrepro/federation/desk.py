"""Where a round's trainings are carried out: in one go, or part by part, so that a long one is not lost.

`Desk` carries everything out at once. One that keeps what is done (`runs.desk`) stands in its place when a run is
played; parts lead to the same bits.

Shapes: S members trained, T steps.
"""

from typing import Protocol

from torch import Tensor

from fedrepro.core.stack import Stack
from fedrepro.kernels.batches import BatchPlan
from fedrepro.kernels.step import Step
from fedrepro.kernels.trained import Carried, Trained

STOPPED = "stopped"  # begins what is told of a run that the budget stopped half way


class PausedError(Exception):
    """The time is over inside a round; what is done of it is kept."""


class Part(Protocol):
    """Trains the steps from `first` up to, not including, `last` of a plan."""

    def __call__(self, start: Stack, first: int, last: int, carried: Carried | None) -> Trained:
        """Go on from the models [S] that stand before step `first`, and what they carry."""


class Desk:
    """Carries trainings out in one go and keeps nothing."""

    def carry_out(
        self, part: Part, start: Stack, plan: BatchPlan, step: Step, rates: Tensor, carried: Carried | None
    ) -> Trained:
        """Train all steps of a plan.

        Args:
            part: does the work.
            start: the models [S] before the first step.
            plan, step, rates: what is trained; only looked at, to tell one training from another.
            carried: what an earlier training handed on, if its rule lives on.
        """
        return part(start, 0, len(plan), carried)

    def before_predicting(self, images: int) -> None:
        """Take note that so many images are about to pass through a network, each member's counted."""


AT_ONCE = Desk()
