"""The runners of peers: plain torch does our work to the bit or nearly so, absent peers are skipped."""

import importlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

PEERS = Path(__file__).parents[1] / "peers"
TINY = ["--clients", "2", "--images", "8", "--batch", "4", "--rounds", "1", "--threads", "1"]
Ask = Callable[..., dict[str, Any]]


@pytest.fixture
def ask(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Ask:
    monkeypatch.syspath_prepend(str(PEERS))
    monkeypatch.setitem(sys.modules, "pfl", None)  # as if neither were installed
    monkeypatch.setitem(sys.modules, "fedlab", None)
    common = importlib.import_module("peer_common")

    def call(name: str, *more: str) -> dict[str, Any]:
        runner = importlib.import_module(name)
        threads = torch.get_num_threads()
        common.main(name, runner.prepare, [*TINY, *more])
        torch.set_num_threads(threads)
        answer: dict[str, Any] = json.loads(capsys.readouterr().out)
        return answer

    return call


@pytest.mark.parametrize("name", ["torch_memory", "torch_channels_last", "torch_vmap", "ours"])
def test_the_same_work_as_the_plain_loop(name: str, ask: Ask) -> None:
    answer = ask(name)
    assert answer["skipped"] == ""
    assert len(answer["images_per_s"]) == 1
    assert answer["images_per_s"][0] > 0
    # Another layout rounds differently, which max-pooling and ReLU turn into larger steps.
    assert answer["max_abs_difference"] < (1e-6 if name in ("torch_channels_last", "ours") else 1e-3)


def test_vmap_does_a_whole_round_with_batchnorm(ask: Ask) -> None:
    common, runner = importlib.import_module("peer_common"), importlib.import_module("torch_vmap")
    work = common.Work(
        common.parser().parse_args([*TINY, "--model", "resnet20", "--images", "40", "--batch", "20"])
    )
    round, model = work.federated("plain", "float32")
    module = work.module()
    start = {name: value.detach().clone() for name, value in module.state_dict().items()}
    found = runner.rounds(work, module)(0, dict(start))
    round(0)
    expected = {name: values[0] for name, values in (model().named_params() | model().named_buffers()).items()}
    counters = set(found) - set(expected)
    assert {int(found[name]) for name in counters} == {2}  # steps
    for name, value in expected.items():
        assert torch.allclose(found[name].to(value.dtype), value, rtol=1e-3, atol=1e-4), name
    moved = [name for name in expected if "running" in name and not torch.equal(found[name], start[name])]
    assert len(moved) == 2 * 19  # mean and variance of every norm


def test_pictures_one_by_one(ask: Ask) -> None:
    answer = ask("torch_pil")
    assert answer["skipped"] == ""
    assert answer["images_per_s"][0] > 0
    assert answer["max_abs_difference"] is None  # it draws its own crops


@pytest.mark.parametrize(
    ("name", "more", "reason"),
    [
        ("run_pfl", [], "pfl"),
        ("run_fedlab", [], "fedlab"),
        ("run_fedbe", [], "needs --path"),
        ("run_fedbe", ["--path", "nowhere"], "needs --path"),
        ("run_fedlab", ["--precision", "bfloat16"], "bfloat16|mixed precision"),
        ("torch_vmap", ["--images", "6"], "multiple of the batch"),
    ],
)
def test_what_is_absent_is_skipped_with_a_reason(name: str, more: list[str], reason: str, ask: Ask) -> None:
    answer = ask(name, *more)
    assert answer["images_per_s"] == []
    assert any(part in answer["skipped"] for part in reason.split("|"))


def test_rounds_of_all_passes_are_one_line(ask: Ask) -> None:
    run = importlib.import_module("run")
    answers = [{"images_per_s": rates, "skipped": "", "warm_up_s": 1.0} for rates in ([1.0, 4.0], [2.0])]
    row = run.summary("run_pfl", "float32", answers)
    assert (row["peer"], row["value"], row["min"], row["max"], row["repeats"]) == ("pfl", 2.0, 1.0, 4.0, 3)
    assert set(row) <= set(run.COLUMNS)


def test_every_runner_is_run(ask: Ask) -> None:
    run = importlib.import_module("run")
    helpers = {"peer_common", "torch_loops", "pil", "run"}
    assert {script for script, _ in run.PEERS} == {path.stem for path in PEERS.glob("*.py")} - helpers
