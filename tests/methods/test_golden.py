"""FedBE's cells and rounds as they were before the round was made for four papers: nothing of them may move.

The keys and numbers in `tests/golden` were made with commit dc34ab2975. Numbers are compared in float64; where
processor and torch are those of then, float32 is compared to the bit.
"""

import hashlib
import json
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
import torch

from fedrepro import papers
from fedrepro.core.rng import Streams
from fedrepro.core.setting import Setting
from fedrepro.core.stack import Stack
from fedrepro.federation.assemble import assemble
from fedrepro.methods import catalogue as methods

GOLDEN = Path(__file__).parents[1] / "golden"
KEYS: dict[str, dict[str, str]] = json.loads((GOLDEN / "fedbe_keys.json").read_text("utf-8"))
FOUND: dict[str, Any] = json.loads((GOLDEN / "fedbe_rounds.json").read_text("utf-8"))
CELLS: dict[str, Any] = FOUND["cells"]
TOLERANCE = 1e-9  # relative


@pytest.fixture(autouse=True)
def one_thread() -> Any:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@lru_cache(maxsize=1)
def same_machine() -> bool:
    """Return whether processor, instructions and torch are those that made the numbers."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    models = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    here = {"processor": models[0] if models else "", "torch": str(torch.__version__)}
    return here | {"capability": torch.backends.cpu.get_cpu_capability()} == FOUND["machine"]


def rounds(setting: Setting) -> list[tuple[Any, Any]]:
    world = assemble(setting, 0)
    method = methods.build(setting)
    state, played = method.init(world, 0), []
    for number in range(min(2, setting.rounds)):
        state, trace = method.round(state, world, Streams(0, number))
        played.append((state, trace))
    return played


def summary(stack: Stack) -> list[float]:
    numbers = []
    for flat in (stack.params.double().flatten(), stack.buffers.double().flatten()):
        wave = torch.arange(len(flat), dtype=torch.float64).mul(0.7).cos()
        numbers += [float(flat.sum()), float(flat.square().sum()), float(flat @ wave)]
    return numbers


def bits(stack: Stack) -> str:
    digest = hashlib.sha256()
    for tensor in (stack.params, stack.buffers, stack.counters):
        digest.update(tensor.contiguous().numpy().tobytes())
    return digest.hexdigest()[:16]


def setting_of(name: str) -> Setting:
    entry = CELLS[name]
    cells = papers.load("fedbe").cells(entry["item"], "smoke")
    return next(c.setting for c in cells if (c.row, c.column) == (entry["row"], entry["column"]))


@pytest.mark.parametrize("place", KEYS)
def test_every_cell_keeps_its_key(place: str) -> None:
    item, scale = place.split("/")
    found = {f"{c.row} | {c.column}": c.setting.key for c in papers.load("fedbe").cells(item, scale)}
    assert found == KEYS[place]


def test_every_method_of_then_is_among_the_rounds() -> None:
    assert len({entry["method"] for entry in CELLS.values()}) == 14


@pytest.mark.parametrize("name", CELLS)
def test_the_first_rounds_are_the_same_numbers(name: str) -> None:
    played = rounds(setting_of(name).with_(precision="float64"))
    assert len(played) == len(CELLS[name]["float64"])
    for (state, trace), then in zip(played, CELLS[name]["float64"]):
        expected = [*then["params"], *then["buffers"]]
        assert summary(state.models) == pytest.approx(expected, rel=TOLERANCE, abs=TOLERANCE)
        assert trace.train_loss == pytest.approx(then["train_loss"], rel=TOLERANCE)
        assert float(trace.targets.square().sum()) == pytest.approx(then["targets"], rel=TOLERANCE)
        if then["distill_loss"] is not None:
            assert trace.distill_loss == pytest.approx(then["distill_loss"], rel=TOLERANCE)


@pytest.mark.parametrize("name", CELLS)
def test_the_first_rounds_are_the_same_bits(name: str) -> None:
    if not same_machine():
        pytest.skip("another processor or torch than the bits were made with")
    assert [bits(state.models) for state, _ in rounds(setting_of(name))] == CELLS[name]["float32"]
