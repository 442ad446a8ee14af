"""Trainings carried out part by part lead to the same bits as in one go."""

from dataclasses import dataclass, field, replace

import pytest
import tiny
from torch import Tensor

from fedrepro.core.rng import Streams
from fedrepro.core.stack import Stack
from fedrepro.core.state import State
from fedrepro.federation.desk import AT_ONCE, Desk, Part
from fedrepro.federation.federation import Federation
from fedrepro.kernels.batches import BatchPlan
from fedrepro.kernels.step import Step
from fedrepro.kernels.trained import Carried, Trained
from fedrepro.methods import catalogue as methods


@dataclass
class Parts(Desk):
    """Carries out some steps at a time."""

    steps: int
    lengths: list[int] = field(default_factory=list)

    def carry_out(
        self, part: Part, start: Stack, plan: BatchPlan, step: Step, rates: Tensor, carried: Carried | None
    ) -> Trained:
        for first in range(0, len(plan), self.steps):
            last = min(first + self.steps, len(plan))
            self.lengths.append(last - first)
            done = part(start, first, last, carried)
            start, carried = done.stack, done.carried
        return done


def played(name: str, world: Federation) -> State:
    method = methods.build(tiny.setting(method=name, proximal_mu=0.1, local_epochs=3))
    state = method.init(world, 0)
    for number in range(2):  # clients of up to six steps, centralised five; distillation six
        state, _ = method.round(state, world, Streams(0, number))
    return state


@pytest.mark.parametrize("network", ["mlp", "resnet8"])
@pytest.mark.parametrize("name", methods.METHODS)
def test_the_same_bits(name: str, network: str) -> None:
    sizes = (20,) if name == "centralized" else (5, 8, 3, 4)
    world, desk = tiny.federation(network, sizes=sizes), Parts(4)
    assert world.desk is AT_ONCE
    whole, cut = played(name, world), played(name, replace(world, desk=desk))
    assert tiny.same(cut.models, whole.models)
    assert set(desk.lengths) == ({4, 1} if name == "centralized" else {4, 2})
