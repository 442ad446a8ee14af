"""Runs the fused kernel on the CPU, through Triton's interpreter, and prints how far it is from the plain kernel.

A program of its own, since Triton reads TRITON_INTERPRET when it is imported.
"""

import json
import os
from typing import Any

os.environ["TRITON_INTERPRET"] = "1"

import tiny
import torch
from torch import Tensor

from fedrepro.core.stack import Stack, concatenate
from fedrepro.kernels import fused, plain
from fedrepro.kernels.batches import Augment, BatchPlan, batch_plan
from fedrepro.kernels.fused import plan as tiles
from fedrepro.kernels.fused.plan import Tile
from fedrepro.kernels.step import Loss, Proximal, Sgd, Step


def distance(found: Tensor, expected: Tensor) -> float:
    assert found.dtype == expected.dtype, (found.dtype, expected.dtype)
    assert found.shape == expected.shape, (found.shape, expected.shape)
    return float((found - expected).abs().max())


def between(found: Stack, expected: Stack) -> dict[str, float]:
    assert torch.equal(found.counters, expected.counters)
    return {name: distance(getattr(found, name), getattr(expected, name)) for name in ("params", "buffers")}


def main() -> None:
    architecture = tiny.network("resnet8")
    data = tiny.images(10)
    start = concatenate([architecture.start(seed).to(dtype=torch.float64) for seed in range(2)])
    noise = torch.randn(start.params.shape, generator=tiny.seeded(5), dtype=torch.float64)
    start = Stack(start.layout, start.params + 0.05 * noise, start.buffers, start.counters)
    # Three and two steps: members of other sizes, a short last batch, and a step that one member does not take.
    parts = [torch.arange(7), torch.arange(7, 10)]
    plan = batch_plan(
        parts, [tiny.seeded(1), tiny.seeded(2)], epochs=[1, 1], batch_size=3, augment=Augment(pad=1, flip=True),
        last_batch="keep",
    )  # fmt: skip
    plan.mask[0, -1] = False  # the single image left over; then member 0 has two steps, member 1 one
    rates = torch.tensor([0.1, 0.05, 0.02], dtype=torch.float64)
    sgd = tiny.Sgd(lr=rates, momentum=0.9, weight_decay=0.01, proximal=Proximal(mu=0.3))
    collect = torch.tensor([True, True, False])
    targets = torch.rand(10, 3, generator=tiny.seeded(3), dtype=torch.float64).softmax(1)
    velocity = 0.1 * noise
    # Tiles of several taps, intermediate results written or redone: every way through the kernels.
    # Few programs, since the interpreter is slow; only the first convolutions need several.
    tiles.CONV[16], tiles.CONV_BACK[16] = Tile(128, inner=64), Tile(128, inner=64)
    tiles.GRAD.update({16: Tile(64, chunk=128), 32: Tile(64, rows=128, chunk=64), 64: Tile(64, chunk=64)})
    tiles.UPDATE = 65536
    tiles.WRITTEN.update({16: True, 32: False, 64: False})
    found: dict[str, object] = {}
    options: dict[str, Any] = {"precision": "float64", "collect": collect, "velocity": velocity, "loss_scale": 0.5}
    options["correction"] = 0.01 * noise.flip(1)
    one, two = (tiny.train(k, architecture, start, data, targets, plan, sgd, **options) for k in (fused, plain))
    for name in ("stack", "average"):
        found[name] = between(getattr(one, name), getattr(two, name))
    found["velocity"] = distance(tiny.velocity(one), tiny.velocity(two))
    found["loss"] = distance(one.loss, two.loss)
    found["moved"] = float((two.stack.params - start.params).abs().max())
    for name, call in (("predict", lambda k: k.predict), ("recalibrate", lambda k: k.recalibrate)):
        size = 3 if name == "recalibrate" else 6  # 3 + 3 + 4 images: the last one does not stay alone
        a, b = (
            call(k)(architecture, two.stack, data, precision="float64", batch_size=size) for k in (fused, plain)
        )
        found[name] = between(a, b) if name == "recalibrate" else distance(a, b)
    one_step = BatchPlan(plan.index[:, :1], plan.mask[:, :1], plan.shift[:, :1], plan.flip[:, :1], plan.pad)
    # Statistics that were broken before must not matter, and broken weights must show.
    broken = tiny.copied(two.stack)
    broken.buffers.fill_(float("inf"))
    fresh = fused.recalibrate(architecture, broken, data, precision="float64", batch_size=10)
    found["recalibrated"] = bool(fresh.buffers.isfinite().all())
    broken.buffers.fill_(1.0)
    broken.params[1, 0] = float("nan")
    logits = fused.predict(architecture, broken, data, precision="float64", batch_size=10)
    found["nan"] = logits.isnan().any(2).any(1).tolist()
    found["nothing"] = list(fused.predict(architecture, broken, data.subset(torch.arange(0))).shape)
    first = tiny.Sgd(lr=torch.tensor([float("inf")], dtype=torch.float64), momentum=0.0, weight_decay=0.0)
    done = tiny.train(fused, architecture, start, data, data.labels, one_step, first, precision="float64")
    found["finite"] = done.finite.tolist()
    # In two parts with what the first one carries: the same as in one.
    rule = Sgd(momentum=0.9, weight_decay=0.01, proximal=Proximal(mu=0.3))
    step, carried, here = Step(rule=rule, loss=Loss(scale=0.5)), None, start
    for first_step, last_step in ((0, 1), (1, 3)):
        part = plan.steps(first_step, last_step)
        taken = collect[first_step:last_step]
        done = fused.train(
            architecture, here, data, (targets,), part, step, rates[first_step:last_step],
            precision="float64", collect=taken, carried=carried, correction=options["correction"],
        )  # fmt: skip
        here, carried = done.stack, done.carried
    whole = plain.train(
        architecture, start, data, (targets,), plan, step, rates,
        precision="float64", collect=collect, correction=options["correction"],
    )  # fmt: skip
    found["parts"] = between(done.average, whole.average) | {"loss": distance(done.loss, whole.loss)}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
