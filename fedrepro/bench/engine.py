"""How fast one engine is: clients' training, teachers' predictions, distillation, a whole round.

All work is synthetic (random 32x32 images on the device) and goes through `Federation`, as in a run. Data and
batch plans are made outside the timer, a new plan for every repeat. Sizes adapt to a first timing, so that a slow
machine measures less of the same work rather than nothing.

Shapes: S clients, T steps, B batch, N images, M teachers.
"""

import statistics
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from fedrepro import papers
from fedrepro.bench.profile import profile
from fedrepro.bench.timing import DISTILL_BATCH, Call, LeftOutError, Series, Sizes, Work, rate, repeated
from fedrepro.core.rng import Streams, generator
from fedrepro.data.data import Data
from fedrepro.federation.federation import Federation
from fedrepro.kernels.batches import NO_AUGMENT, Augment, BatchPlan, batch_plan
from fedrepro.kernels.registry import kernel
from fedrepro.kernels.step import Sgd, Step
from fedrepro.kernels.trained import Trained
from fedrepro.methods import catalogue as methods
from fedrepro.models.architecture import Architecture
from fedrepro.stages.rates import Constant

CLASSES = 10
CLIENT = Step(rule=Sgd(momentum=0.9, weight_decay=2e-4))
STUDENT = Step(rule=Sgd(momentum=0.9, weight_decay=1e-5))
KINDS = ("train", "predict", "distill")  # of work whose images/s are measured
SCANS: dict[str, tuple[int, ...]] = {
    "clients": (2, 4, 8, 16, 32, 64),
    "batch": (16, 32, 64, 128, 256),
    "depth": (8, 20, 32, 44, 56),
    "distill": (2, 5, 10, 21, 43),
}
SMALL_ROUND: dict[str, Any] = {  # what a round on a CPU has in place of Table 1's sizes
    **{"clients": 4, "local_epochs": 1, "client_batch": 40, "public_images": 64, "samples": 2},
    **{"distill_epochs": 1, "distill_batch": 32, "swa_start": 0, "swa_cycle": 1},
}


def reason(engine: str, sizes: Sizes, precision: str) -> str:
    """Return why an engine cannot be measured in a precision, or ""."""
    try:
        module = kernel(engine)
    except (ValueError, ImportError) as error:
        return str(error)
    return str(module.takes(Architecture(sizes.model, CLASSES), torch.device(sizes.device), precision, CLIENT))


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

    def plan(self, parts: tuple[Tensor, ...], steps: int, *, batch: int, epochs: int) -> BatchPlan:
        """Return a fresh batch plan of at most so many steps."""
        self.drawn += 1
        streams = [generator(self.drawn, "bench", client=client) for client in range(len(parts))]
        plan = batch_plan(parts, streams, epochs=[epochs] * len(parts), batch_size=batch, augment=self.augment)
        return plan.changed(lambda part: part[:, :steps].contiguous(), plan.noise[:, :steps])

    def training(self, world: Federation, plan: BatchPlan) -> Callable[[], Trained]:
        """Return the training of all clients of a federation on a plan, from its first model."""
        start, rates = world.start(0).take([0] * world.clients), Constant(lr=0.01).steps(len(plan))
        return lambda: world.train(start, world.data, (world.data.labels,), plan, CLIENT, rates)

    def train(self) -> Work:
        """Return the training of all clients."""
        s, world = self.sizes, self.federation
        batch = min(s.batch, s.images)

        def prepare(steps: int) -> Call:
            return self.training(world, self.plan(world.parts, steps, batch=batch, epochs=s.epochs))

        return Work(s.clients * batch, s.epochs * max(1, s.images // batch), prepare)

    def predict(self) -> Work:
        """Return the predictions of all teachers, an image being counted once for each teacher."""
        s, world = self.sizes, self.federation
        teachers, chunk = world.start(0).take([0] * s.teachers), min(250 if s.device == "cuda" else 100, s.public)

        def prepare(steps: int) -> Call:
            data = world.public.subset(torch.arange(steps * chunk))
            return lambda: world.predict(teachers, data)

        return Work(s.teachers * chunk, max(1, s.public // chunk), prepare)

    def distill(self) -> Work:
        """Return the training of one student on fixed probabilities, weights averaged every 25 steps."""
        s, world = self.sizes, self.federation
        batch, every = min(DISTILL_BATCH, s.public), (torch.arange(s.public),)
        noise = torch.randn(s.public, CLASSES, generator=torch.Generator().manual_seed(4))
        start, targets = world.start(0), (noise.softmax(1).to(world.device, world.dtype),)

        def prepare(steps: int) -> Call:
            plan = self.plan(every, steps, batch=batch, epochs=s.epochs)
            rates, collect = Constant(lr=1e-3).steps(len(plan)), torch.arange(1, len(plan) + 1) % 25 == 0
            return lambda: world.train(start, world.public, targets, plan, STUDENT, rates, collect=collect)

        return Work(batch, s.epochs * max(1, s.public // batch), prepare)

    def rate(self, kind: str, seconds: float, left: float) -> Series:
        """Measure the images/s of one of `KINDS`; see `timing.rate`."""
        work: Work = getattr(self, kind)()
        return rate(work, seconds=seconds, left=left, repeats=self.sizes.repeats, device=self.sizes.device)

    def profile(self, steps: int = 4) -> dict[str, float]:
        """Return where the time of the clients' steps goes; see `bench.profile.profile`.

        On the CPU it is one client on one core, as each core has one in the `threads` kernel.
        """
        s, cpu, threads = self.sizes, self.sizes.device == "cpu", torch.get_num_threads()
        batch = min(s.batch, s.images)
        few = replace(s, batch=batch, images=batch * steps, epochs=1, public=2, clients=1 if cpu else s.clients)
        call = Bench(few, self.engine).train().prepare(steps)
        try:
            if cpu:
                torch.set_num_threads(1)
            return profile(call, s.device, steps)
        finally:
            torch.set_num_threads(threads)

    def difference(self) -> dict[str, float]:
        """Compare a few steps with the plain float64 loop on the same plan: largest |difference| of a weight.

        The engine's own float64 is compared as well, if it has one.
        """
        clients, images = 2, 24
        plan = self.plan(torch.arange(clients * images).split(images), 3, batch=8, epochs=1)

        def trained(engine: str, precision: str) -> Tensor:
            world = self.world(clients, images, 8, precision=precision, kernel=engine)
            return self.training(world, plan)().stack.params.double()

        found = {"max_difference": trained(self.engine, self.sizes.precision)}
        if not reason(self.engine, self.sizes, "float64"):
            found["max_difference_float64"] = trained(self.engine, "float64")
        found["largest_change"] = self.architecture.start(0).params.double().to(self.sizes.device)
        plain = trained("plain", "float64")
        return {name: float((weights - plain).abs().max()) for name, weights in found.items()}

    def round(self, left: float, costs: Mapping[str, float]) -> dict[str, Any]:
        """Play whole FedBE rounds (Table 1's, on CUDA) and return seconds, by stage as well, and sizes.

        Args:
            left: seconds that may be spent.
            costs: seconds per image of each of `KINDS`, as measured.

        Raises:
            LeftOutError: if a round would by these costs take longer.
        """
        (cell, *_) = papers.load("fedbe").cells("table1_methods", "paper", only=("Step", "FedBE", "ResNet-20"))
        setting = cell.setting.with_(model=self.sizes.model, precision=self.sizes.precision)
        images = 4000
        if self.sizes.device != "cuda":
            setting, images = setting.with_(**SMALL_ROUND), 40
        if self.features:
            setting = setting.with_(augment_pad=0, augment_flip=False)
        teachers = setting.clients + setting.samples + 1
        expected = setting.clients * images * setting.local_epochs * costs["train"]
        public_costs = setting.distill_epochs * costs["distill"] + teachers * costs["predict"]
        expected += setting.public_images * public_costs
        if 2 * expected > left:
            raise LeftOutError(f"two rounds of about {expected:.2g} s do not fit into {max(left, 0):.2g} s")
        world, method = self.world(setting.clients, images, setting.public_images), methods.build(setting)
        state = method.init(world, 0)
        stages: list[Mapping[str, float]] = []  # seconds of each, round by round

        def play() -> None:
            nonlocal state
            state, played = method.round(state, world, Streams(0, len(stages)))
            stages.append(played.seconds)

        first, *seconds = repeated(lambda: play, repeats=3, left=left, device=self.sizes.device)
        names = ("clients", "local_epochs", "client_batch", "public_images", "distill_epochs", "distill_batch")
        return {
            "round_s": asdict(Series.of(seconds, first=first)),
            "stages_s": {name: statistics.median(spent[name] for spent in stages[1:]) for name in stages[0]},
            "sizes": {name: getattr(setting, name) for name in names} | {"images": images, "teachers": teachers},
        }

    def scan(self, kind: str, value: int, seconds: float, left: float) -> dict[str, Any]:
        """Measure one point of a scan: sizes (for "distill", clients is the teachers), series, scan and metric."""
        s = self.sizes
        if kind == "distill":
            public, epochs = (s.public, 20) if s.device == "cuda" else (min(s.public, 128), 1)
            small = Bench(replace(s, clients=1, images=2, public=public, epochs=epochs), self.engine)
            world, student = small.federation, small.distill()
            teachers = world.start(0).take([0] * value)

            def prepare() -> Call:
                learn = student.prepare(10**9)  # all there are
                return lambda: (world.predict(teachers, world.public), learn())

            first, *found = repeated(prepare, repeats=s.repeats, left=left, device=s.device)
            metric, series = "teach_and_distill_s", Series.of(found, public * (value + epochs), first)
            at = replace(s, clients=value, batch=DISTILL_BATCH, teachers=value)
        else:
            changes: dict[str, Any] = {"model": f"resnet{value}"} if kind == "depth" else {kind: value}
            images = max(min(s.images, 1000), value if kind == "batch" else 0)
            at = replace(s, images=images, **changes)
            metric, series = "train_images_per_s", Bench(at, self.engine).rate("train", seconds, left)
        return asdict(at) | asdict(series) | {"scan": kind, "metric": metric}
