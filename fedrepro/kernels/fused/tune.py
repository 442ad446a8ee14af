"""Time the fused kernels' tiles on this GPU, and print the best: `python -m fedrepro.kernels.fused.tune`.

    --compile I/N    only compile the I-th of N parts of the candidates for an H100 or H200, on any machine; Triton
                     keeps the results in its cache (TRITON_CACHE_DIR), which may be copied to a machine with the
                     GPU, the same Python and the same Triton. A GPU's time is then spent on measuring alone.

What wins goes by hand into `plan`: a choice that changes with every run could not be recorded.
"""

import argparse
import itertools
import time
from collections.abc import Callable
from typing import Any

import torch
import triton

from fedrepro.kernels.fused import plan
from fedrepro.kernels.fused.plan import Tile, network
from fedrepro.kernels.fused.session import Session, Size
from fedrepro.models.architecture import Architecture

TABLES = {"conv": plan.CONV, "conv_back": plan.CONV_BACK, "conv_grad": plan.GRAD}
BLOCKS = {16: 1, 32: 4, 64: 7}  # a block of ResNet-20 with these channels on both sides
Candidate = tuple[str, int, bool, Tile]  # kernel, channels, whether relu(norm(y)) is written, tile


def candidates() -> list[Candidate]:
    """Return what to time, in a fixed order."""
    found: list[Candidate] = []
    for channels in BLOCKS:
        for pixels, stages, inner in itertools.product((64, 128, 256), (1, 2, 3), sorted({channels, 64})):
            tile = Tile(pixels, stages=stages, inner=inner)
            found += [("conv", channels, written, tile) for written in (False, True)]
            found.append(("conv_back", channels, False, tile))
        rows = {16: (64, 128, 256), 32: (64, 128), 64: (64,)}[channels]
        for pixels, stages, row, chunk in itertools.product((64, 128), (1, 2), rows, (512, 1024)):
            tile = Tile(pixels, stages=stages, rows=row, chunk=chunk)
            found += [("conv_grad", channels, written, tile) for written in (False, True)]
    return found


def make(device: str, members: int, batch: int, *, training: bool = True, steps: int = 2000) -> Session:
    """Return a session of ResNet-20 on random images."""
    images = torch.randint(256, (100, 32, 32, 3), dtype=torch.uint8, device=device)
    size, net = Size(members, steps, batch, 32, 32), network(Architecture("resnet20", 10))
    options: dict[str, Any] = {"pad": 2, "precision": "bfloat16", "training": training, "momentum": 0.9}
    return Session(net, size, images, (0.5,) * 3, (0.25,) * 3, **options)


def launch(session: Session, candidate: Candidate) -> Callable[[], None]:
    """Return the call of one kernel, with the candidate's tile in force."""
    kernel, channels, written, tile = candidate
    TABLES[kernel][channels] = tile
    block = BLOCKS[channels]
    one, two = session.net.blocks[block]
    before = None if written else one.norm
    first, second = 2 * block + 1, 2 * block + 2
    if kernel == "conv":
        return lambda: session._conv(two, session.outputs[first], session.outputs[second], before, evaluate=False)
    if kernel == "conv_grad":
        return lambda: session._conv_grad_here(two, session.outputs[first], second, before)
    below = session.net.blocks[block - 1][1].norm
    return lambda: session._conv_back(one, first, first - 1, below, block, 1)


def compile_only() -> None:
    """Let kernels be compiled for compute capability 9.0 instead of being launched."""
    from triton.backends.compiler import GPUTarget
    from triton.runtime import driver
    from triton.runtime.jit import JITFunction

    class Absent:
        """Stands for the driver of a GPU that is not here."""

        def get_current_target(self) -> GPUTarget:
            return GPUTarget("cuda", 90, 32)

        def get_current_device(self) -> int:
            return 0

        def set_current_device(self, device: int) -> None:
            pass

        def get_current_stream(self, device: int) -> int:
            return 0

    driver.set_active(Absent())
    run = JITFunction.run
    JITFunction.run = lambda self, *a, grid=None, warmup=False, **k: run(self, *a, grid=grid, warmup=True, **k)


def microseconds(call: Callable[[], None], times: int = 20) -> float:
    """Return the time of one call inside a recorded graph of many, the best of three replays."""
    call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(times):
            call()
    graph.replay()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    best = float("inf")
    for _ in range(3):
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        best = min(best, 1000 * begin.elapsed_time(end) / times)
    return best


def fill(session: Session) -> None:
    """Put random numbers everywhere: zeros run faster than real data would."""
    session.counts.fill_(session.size.batch)
    session.step.zero_()
    for tensor in session.outputs + session.ends + session.after + session.before:
        tensor.normal_()
    session.weights.normal_().mul_(0.05)
    session.compute.copy_(session.weights)


def calm(session: Session) -> None:
    """Set sums back: kernels that are timed alone add to them without end."""
    session.sums.zero_()
    session.sums[:, 1] = 1e5
    session.grads.zero_()


def whole_step(members: int, batch: int) -> str:
    """Return milliseconds and images/s of a whole training step."""
    session = make("cuda", members, batch)
    run = session.record(session.train_step)
    fill(session)
    calm(session)
    session.rates.fill_(0.001)
    session.stat_rates.fill_(0.1)
    session.targets.fill_(0.1)
    session.index.copy_(torch.randint(100, session.index.shape, device="cuda"))
    for _ in range(20):
        run()
    torch.cuda.synchronize()
    begun, steps = time.perf_counter(), 200
    for _ in range(steps):
        run()
    torch.cuda.synchronize()
    each = (time.perf_counter() - begun) / steps
    return f"{members} members, batch {batch}: {1000 * each:.3f} ms a step, {members * batch / each:,.0f} images/s"


def main() -> None:
    """Compile, or measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--compile", metavar="I/N", help="only compile part I (from 0) of N")
    options = parser.parse_args()
    if options.compile:
        part, parts = map(int, options.compile.split("/"))
        compile_only()
        session = make("cpu", 10, 40)
        if part == 0:
            session.train_step()
            session.predict_step()
        for candidate in candidates()[part::parts]:
            launch(session, candidate)()
        return
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, triton {triton.__version__}")
    session = make("cuda", 10, 40)
    fill(session)
    timed: list[tuple[float, Candidate]] = []
    for candidate in candidates():
        calm(session)
        timed.append((microseconds(launch(session, candidate)), candidate))
    for (kernel, channels, written), group in itertools.groupby(
        sorted(timed, key=lambda t: (*t[1][:3], t[0])), key=lambda t: t[1][:3]
    ):
        few = list(group)
        print(f"{kernel} {channels} {'written' if written else 'redone'}: worst {few[-1][0]:.1f} us")
        for us, (*_, tile) in few[:3]:
            print(f"    {us:6.1f} us  {tile}")
        if written == plan.WRITTEN[channels] or kernel == "conv_back":
            TABLES[kernel][channels] = few[0][1][3]
    for members, batch in ((10, 40), (10, 64), (20, 40), (1, 128)):
        print(whole_step(members, batch), flush=True)


if __name__ == "__main__":
    main()
