"""How fast one engine is: clients' training, teachers' predictions, distillation, a whole round.

All work is synthetic (random 32x32 images on the device) and goes through `Federation`, as in a run. Data and
batch plans are made outside the timer, a new plan for every repeat. Sizes adapt to a first timing, so that a slow
machine measures less of the same work rather than nothing.

Shapes: S clients, T steps, B batch, N images, M teachers.
"""

import dataclasses
import statistics
import time
from collections.abc import Callable
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from fedrepro import papers
from fedrepro.bench.profile import profile
from fedrepro.bench.roofline import wait
from fedrepro.bench.timing import DISTILL_BATCH, LeftOutError, Series, Sizes, rate, seconds_of
from fedrepro.core.rng import Streams, generator
from fedrepro.core.stack import Stack
from fedrepro.data.data import Data
from fedrepro.federation.federation import Federation
from fedrepro.kernels.batches import NO_AUGMENT, Augment, BatchPlan, batch_plan
from fedrepro.kernels.step import Sgd
from fedrepro.methods import catalogue as methods
from fedrepro.models.architecture import Architecture
from fedrepro.stages.rates import Constant

CLASSES = 10
SCANS: dict[str, tuple[int, ...]] = {
    "clients": (2, 4, 8, 16, 32, 64),
    "batch": (16, 32, 64, 128, 256),
    "depth": (8, 20, 32, 44, 56),
    "distill": (2, 5, 10, 21, 43),
}


def _client_sgd(steps: int) -> Sgd:
    """Return the clients' optimizer."""
    return Sgd(lr=Constant(lr=0.01).steps(steps), momentum=0.9, weight_decay=2e-4)


class Bench:
    """One engine at work; see the module."""

    def __init__(self, sizes: Sizes, engine: str) -> None:
        self.sizes = sizes
        self.engine = engine
        self.architecture = Architecture(sizes.model, CLASSES)
        self.drawn = 0  # plans made so far
        self.features = sizes.model == "mlp"
        self.augment = NO_AUGMENT if self.features else Augment(pad=2, flip=True)

    def data(self, count: int, seed: int) -> Data:
        """Return random images on the device (points of the plane for the MLP)."""
        source = torch.Generator().manual_seed(seed)
        labels = torch.randint(CLASSES, (count,), generator=source)
        names = tuple(map(str, range(CLASSES)))
        if self.features:
            return Data("synthetic", torch.randn(count, 2, generator=source), labels, names).to(self.sizes.device)
        pixels = torch.randint(256, (count, 32, 32, 3), dtype=torch.uint8, generator=source)
        return Data("synthetic", pixels, labels, names, (0.5,) * 3, (0.25,) * 3).to(self.sizes.device)

    def world(self, clients: int, images: int, public: int, **changes: Any) -> Federation:
        """Return a federation of so many clients and images that runs on the engine."""
        parts = torch.arange(clients * images).split(images)
        options = {"precision": self.sizes.precision, "kernel": self.engine} | changes
        train, held = self.data(clients * images, 1), self.data(public, 2)
        return Federation(self.architecture, train, parts, held, held, **options)

    @cached_property
    def federation(self) -> Federation:
        """The federation of the sizes asked for."""
        return self.world(self.sizes.clients, self.sizes.images, self.sizes.public)

    def models(self, world: Federation, count: int) -> Stack:
        """Return models near a common start, as after local training."""
        start = world.start(0).take([0] * count)
        noise = torch.randn(start.params.shape, generator=torch.Generator().manual_seed(3)).to(start.params)
        return Stack(start.layout, start.params + 1e-3 * noise, start.buffers, start.counters)

    def plan(self, parts: tuple[Tensor, ...], steps: int, *, batch: int, epochs: int) -> BatchPlan:
        """Return a fresh batch plan of at most so many steps."""
        self.drawn += 1
        streams = [generator(self.drawn, "bench", client=client) for client in range(len(parts))]
        plan = batch_plan(parts, streams, epochs=[epochs] * len(parts), batch_size=batch, augment=self.augment)
        index, mask, shift, flip = (
            getattr(plan, name)[:, :steps].contiguous() for name in ("index", "mask", "shift", "flip")
        )
        return BatchPlan(index, mask, shift, flip, plan.pad)

    def train(self, seconds: float, left: float) -> Series:
        """Measure the clients' training in images/s of all clients together."""
        s, world = self.sizes, self.federation
        start = world.start(0).take([0] * s.clients)
        batch = min(s.batch, s.images)

        def call(steps: int) -> Callable[[], object]:
            plan = self.plan(world.parts, steps, batch=batch, epochs=s.epochs)
            sgd = _client_sgd(steps)
            return lambda: world.train(start, world.data, world.data.labels, plan, sgd)

        full = s.epochs * max(1, s.images // batch)
        return rate(
            call,
            unit=s.clients * batch,
            full=full,
            seconds=seconds,
            left=left,
            repeats=s.repeats,
            device=s.device,
        )

    def predict(self, seconds: float, left: float) -> Series:
        """Measure the teachers' predictions in images/s, counting an image once for each teacher."""
        s, world = self.sizes, self.federation
        teachers, chunk = self.models(world, s.teachers), min(250 if s.device == "cuda" else 100, s.public)

        def call(steps: int) -> Callable[[], object]:
            data = world.public.subset(torch.arange(steps * chunk))
            return lambda: world.predict(teachers, data)

        return rate(
            call,
            unit=s.teachers * chunk,
            full=max(1, s.public // chunk),
            seconds=seconds,
            left=left,
            repeats=s.repeats,
            device=s.device,
        )

    def student(self, world: Federation, steps: int, epochs: int) -> Callable[[], object]:
        """Return the training of one student on fixed probabilities, weights averaged every 25 steps."""
        data, batch = world.public, min(DISTILL_BATCH, len(world.public))
        noise = torch.randn(len(data), CLASSES, generator=torch.Generator().manual_seed(4))
        targets = noise.softmax(1).to(world.device, world.dtype)
        plan = self.plan((torch.arange(len(data)),), steps, batch=batch, epochs=epochs)
        count = plan.index.shape[1]
        sgd = Sgd(lr=Constant(lr=1e-3).steps(count), momentum=0.9, weight_decay=1e-5)
        collect, start = torch.arange(1, count + 1) % 25 == 0, world.start(0)
        return lambda: world.train(start, data, targets, plan, sgd, collect=collect)

    def distill(self, seconds: float, left: float) -> Series:
        """Measure the training of one student in images/s."""
        s, world = self.sizes, self.federation
        batch = min(DISTILL_BATCH, s.public)
        full = s.epochs * max(1, s.public // batch)
        return rate(
            lambda steps: self.student(world, steps, s.epochs),
            unit=batch,
            full=full,
            seconds=seconds,
            left=left,
            repeats=s.repeats,
            device=s.device,
        )

    def profile(self, steps: int = 4) -> dict[str, float]:
        """Return where the time of the clients' steps goes; see `bench_profile.profile`.

        On the CPU it is one client on one core, as each core has one in the `threads` kernel.
        """
        s = self.sizes
        clients, batch = 1 if s.device == "cpu" else s.clients, min(s.batch, s.images)
        world = self.world(clients, batch * steps, 2)
        start, plan = world.start(0).take([0] * clients), self.plan(world.parts, steps, batch=batch, epochs=1)
        sgd = _client_sgd(steps)
        threads = torch.get_num_threads()
        try:
            if s.device == "cpu":
                torch.set_num_threads(1)
            return profile(lambda: world.train(start, world.data, world.data.labels, plan, sgd), s.device, steps)
        finally:
            torch.set_num_threads(threads)

    def difference(self, *, exact: bool) -> dict[str, float]:
        """Compare a few steps with the plain float64 loop on the same plan: largest |difference| of a weight.

        Args:
            exact: also compare the engine's own float64, if it has one.
        """
        clients, steps, batch = 2, 3, 8
        ends: dict[str, Tensor] = {}
        plan = self.plan(torch.arange(clients * 24).split(24), steps, batch=batch, epochs=1)
        sgd = _client_sgd(steps)
        runs = [("plain", "plain", "float64"), ("own", self.engine, self.sizes.precision)]
        runs += [("float64", self.engine, "float64")] if exact else []
        for name, kernel, precision in runs:
            world = self.world(clients, 24, 8, precision=precision, kernel=kernel)
            start = world.start(0).take([0] * clients)
            ends["start"] = start.params.double()
            ends[name] = world.train(start, world.data, world.data.labels, plan, sgd).stack.params.double()
        names = {"max_difference": "own", "max_difference_float64": "float64", "largest_change": "start"}
        plain = ends["plain"]
        return {key: float((ends[at] - plain).abs().max()) for key, at in names.items() if at in ends}

    def round(self, left: float, costs: dict[str, float]) -> dict[str, Any]:
        """Play whole FedBE rounds (Table 1's, on CUDA) and return seconds, by stage as well, and sizes.

        Args:
            left: seconds that may be spent.
            costs: seconds per image of "train", "predict" and "distill", as measured.

        Raises:
            LeftOutError: if a round would by these costs take longer.
        """
        (cell, *_) = papers.load("fedbe").cells("table1_methods", "paper", only=("Step", "FedBE", "ResNet-20"))
        setting = cell.setting.with_(model=self.sizes.model, precision=self.sizes.precision)
        images = 4000
        if self.sizes.device != "cuda":
            images = 40
            setting = setting.with_(clients=4, local_epochs=1, public_images=64, samples=2, client_batch=40)
            setting = setting.with_(distill_epochs=1, distill_batch=32, swa_start=0, swa_cycle=1)
        if self.features:
            setting = setting.with_(augment_pad=0, augment_flip=False)
        teachers = setting.clients + setting.samples + 1
        expected = setting.clients * images * setting.local_epochs * costs["train"]
        expected += setting.public_images * (
            setting.distill_epochs * costs["distill"] + teachers * costs["predict"]
        )
        if 2 * expected > left:
            raise LeftOutError(f"two rounds of about {expected:.2g} s do not fit into {max(left, 0):.2g} s")
        world, method = self.world(setting.clients, images, setting.public_images), methods.build(setting)
        state = method.init(world, 0)
        traces: list[Any] = []
        seconds: list[float] = []
        end = time.perf_counter() + left
        while len(seconds) < 4 and (len(seconds) < 2 or time.perf_counter() + seconds[-1] < end):
            begun = time.perf_counter()
            state, trace = method.round(state, world, Streams(0, len(seconds)))
            wait(self.sizes.device)
            seconds.append(time.perf_counter() - begun)
            traces.append(trace.seconds)
        sizes = {name: getattr(setting, name) for name in ("clients", "local_epochs", "client_batch")}
        sizes |= {"images": images, "public_images": setting.public_images, "teachers": teachers}
        sizes |= {"distill_epochs": setting.distill_epochs, "distill_batch": setting.distill_batch}
        stages = {name: statistics.median(t[name] for t in traces[1:]) for name in traces[0]}
        return {"round_s": Series.of(seconds[1:], first=seconds[0]), "stages_s": stages, "sizes": sizes}

    def scan(self, kind: str, value: int, seconds: float, left: float) -> tuple[str, Series, Sizes]:
        """Measure one point of a scan: metric, series and sizes (for "distill", clients is the teachers)."""
        s = self.sizes
        if kind == "distill":
            public, epochs = (s.public, 20) if s.device == "cuda" else (min(s.public, 128), 1)
            world = self.world(1, 2, public)
            done: list[float] = []
            teachers, end = self.models(world, value), time.perf_counter() + left
            while len(done) <= s.repeats and (len(done) < 2 or time.perf_counter() + done[-1] < end):
                student = self.student(world, 10**9, epochs)
                done.append(seconds_of(lambda: world.predict(teachers, world.public), s.device))
                done[-1] += seconds_of(student, s.device)
            at = dataclasses.replace(s, clients=value, batch=DISTILL_BATCH, teachers=value)
            return "teach_and_distill_s", Series.of(done[1:], public * (value + epochs), done[0]), at
        images = min(s.images, 1000)
        if kind == "batch":
            images = max(images, value)
        changes = {"clients": {"clients": value}, "batch": {"batch": value}, "depth": {"model": f"resnet{value}"}}
        at = dataclasses.replace(s, images=images, **changes[kind])  # type: ignore[arg-type]
        return "train_images_per_s", Bench(at, self.engine).train(seconds, left), at
