"""The work that every peer does: the same images, clients, batches, steps and augmentation, and the same clock.

A round is: every client starts from the global model, makes one pass over its images in batches (SGD 0.01,
momentum 0.9, crop after padding by 2, flip), and the server takes the plain mean. The first round is warm-up.

Shapes: S clients, N images of all, B batch.
"""

import argparse
import json
import platform
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from fedrepro.bench.timing import precision_of
from fedrepro.core.rng import generator
from fedrepro.core.stack import Stack, mix
from fedrepro.data.data import Data
from fedrepro.federation.federation import Federation
from fedrepro.kernels.batches import Augment, BatchPlan, batch_plan
from fedrepro.kernels.step import Sgd, Step
from fedrepro.models.architecture import Architecture
from fedrepro.stages.rates import Constant

LR, MOMENTUM, PAD = 0.01, 0.9, 2
STEP = Step(rule=Sgd(momentum=MOMENTUM))
MEAN, STD = (0.4914, 0.4822, 0.4465), (0.247, 0.2435, 0.2616)
Round = Callable[[int], object]


class Skipped(Exception):
    """A peer that cannot run here, with the reason."""


class Work:
    """The work of one command line."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.device = options.device
        self.clients, self.images, self.batch = options.clients, options.images, options.batch
        self.architecture = Architecture(options.model, 10)
        self.data = self._data().to(self.device)
        self.parts = torch.arange(self.clients * self.images).split(self.images)
        self.amp = options.precision == "bfloat16"

    def _data(self) -> Data:
        source = torch.Generator().manual_seed(0)
        count = self.clients * self.images
        pixels = torch.randint(256, (count, 32, 32, 3), dtype=torch.uint8, generator=source)
        labels = torch.randint(10, (count,), generator=source)
        return Data("synthetic", pixels, labels, tuple("0123456789"), MEAN, STD)

    def start(self) -> Stack:
        """Return the global model before the first round, a stack of one."""
        return self.architecture.start(0).to(self.device)

    def module(self) -> nn.Module:
        """Return a network in training mode that holds the first global model."""
        module = self.architecture.make().to(self.device)
        self.start().load(0, module)
        return module.train()

    def plan(self, number: int) -> BatchPlan:
        """Return the batches of one round [S, T, B]."""
        streams = [generator(0, "peers", round=number, client=client) for client in range(self.clients)]
        crop = Augment(pad=PAD, flip=True)
        ones = [1] * self.clients
        return batch_plan(self.parts, streams, epochs=ones, batch_size=self.batch, augment=crop)

    def federated(self, kernel: str, precision: str) -> tuple[Round, Callable[[], Stack]]:
        """Return a round on one of our kernels, and what gives the global model."""
        world = Federation(
            self.architecture, self.data, self.parts, self.data, self.data, precision=precision, kernel=kernel
        )
        models = [world.start(0)]
        shares = torch.full((1, self.clients), 1 / self.clients)

        def round(number: int) -> None:
            plan = self.plan(number)
            rates = Constant(lr=LR).steps(len(plan))
            start = models[0].take([0] * self.clients)
            models[0] = mix(shares, world.train(start, self.data, (self.data.labels,), plan, STEP, rates).stack)

        return round, lambda: models[0]


def parser() -> argparse.ArgumentParser:
    """Return the command line that all runners share."""
    line = argparse.ArgumentParser()
    line.add_argument("--model", choices=("convnet", "resnet20"), default="convnet")
    for name, value in (("clients", 4), ("images", 400), ("batch", 40), ("rounds", 3), ("threads", 2)):
        line.add_argument(f"--{name}", type=int, default=value)
    line.add_argument("--precision", choices=("float32", "bfloat16"), default="float32")
    line.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    line.add_argument("--path", help="clone of the peer, if it is no package")
    return line


def cpu_only(work: Work) -> None:
    """Skip a peer that these runners drive on the CPU only."""
    if work.device != "cpu":
        raise Skipped("this runner drives it on the CPU only")


def float32_only(work: Work) -> None:
    """Skip a peer that has no mixed precision."""
    if work.amp:
        raise Skipped("it has no mixed precision")


def main(
    peer: str,
    prepare: Callable[[Work], tuple[Round, Callable[[], Tensor] | None, dict[str, str]]],
    arguments: Sequence[str] | None = None,
) -> None:
    """Measure one peer and print one JSON line; a peer that cannot run is skipped with the reason.

    Args:
        peer: its name.
        prepare: from the work to a round, what then gives the global parameters [P] if they can be compared
            with the plain loop's (same batches), and versions.
        arguments: of the command line.
    """
    options = parser().parse_args(arguments)
    torch.set_num_threads(options.threads)
    answer: dict[str, Any] = {"peer": peer, "images_per_s": [], "max_abs_difference": None, "skipped": ""}
    answer |= {name: getattr(options, name) for name in ("model", "precision", "clients", "images", "batch")}
    answer |= {"threads": options.threads, "device": options.device}
    answer["versions"] = {"torch": torch.__version__, "python": platform.python_version()}
    try:
        if options.device == "cuda" and not torch.cuda.is_available():
            raise Skipped("torch sees no CUDA device")
        if options.precision == "bfloat16" and precision_of(options.device) != "bfloat16":
            raise Skipped(f"this {options.device} has no bfloat16")
        work = Work(options)
        round, parameters, versions = prepare(work)
        answer["versions"] |= versions
        seconds = []
        for number in range(1 + options.rounds):
            begun = time.perf_counter()
            round(number)
            if work.device == "cuda":
                torch.cuda.synchronize()
            seconds.append(time.perf_counter() - begun)
        answer["warm_up_s"] = seconds[0]
        answer["images_per_s"] = [work.clients * work.images / second for second in seconds[1:]]
        if parameters is not None:
            repeat, model = work.federated("plain", "float32")
            for number in range(1 + options.rounds):
                repeat(number)
            answer["max_abs_difference"] = float((model().params[0] - parameters()).abs().max())
    except (Skipped, ImportError) as reason:
        answer["skipped"] = str(reason)
    except Exception as error:  # a peer's own trouble must not end a comparison
        answer["skipped"] = f"failed: {type(error).__name__}: {(str(error) or '-').splitlines()[0]}"
    print(json.dumps(answer))
    sys.stdout.flush()
