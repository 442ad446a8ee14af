"""What is asked for: runs made one by one, shared, ordered by cost, and without the data that are missing."""

import itertools
import re
import time
from argparse import Namespace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest

from cli.cli_calls import BAD, GOOD, TABLE, Call
from fedrepro import papers
from fedrepro.bench.cost import images
from fedrepro.cli.planned import Wanted, named, needs, planned
from fedrepro.cli.state import recorded
from fedrepro.core.files import StoreError
from fedrepro.core.setting import Setting
from fedrepro.papers import Cell, Reading
from fedrepro.runs import record
from fedrepro.runs.request import merged

FEDBE = papers.load("fedbe")
ONE, OTHER = (cell.setting for cell in FEDBE.cells("table1_methods", "smoke", only=("ConvNet", "Step"))[:2])


def cell(item: str, row: str, setting: Setting = ONE, target: float = 0.0) -> Cell:
    read = Reading(at="first", target=target) if target else Reading()
    return Cell(item, {"method": row}, row, "x", setting, read)


def test_runs_come_seed_by_seed_and_each_once() -> None:
    cells = ((cell("a", "1"), 2), (cell("a", "2", OTHER), 2), (cell("b", "3"), 3))
    wanted = Wanted(cells)
    order = [(ONE, 0), (OTHER, 0), (ONE, 1), (OTHER, 1), (ONE, 2)]
    assert [(run.setting, run.seed) for run in wanted.runs()] == order
    assert wanted.count == 7
    assert [one.row for one in wanted.asking(ONE, 1)] == ["1", "3"]
    assert [one.row for one in wanted.asking(ONE, 2)] == ["3"]


def test_one_run_ends_when_all_its_cells_are_served() -> None:
    wanted = Wanted(((cell("a", "1", target=50.0), 1), (cell("b", "2", target=60.0), 1)))
    assert [run.until for run in wanted.runs()] == [("answer", 60.0)]
    assert [run.until for run in Wanted((*wanted.cells, (cell("b", "3"), 1))).runs()] == [None]


def test_the_least_cost_comes_first() -> None:
    wanted = Wanted(((cell("a", "1"), 2), (cell("a", "2", OTHER), 3)))
    cheap = [(run.setting, run.seed) for run in wanted.cheapest({ONE: 2.0, OTHER: 1.0}.__getitem__)]
    assert cheap == [(OTHER, 0), (OTHER, 1), (OTHER, 2), (ONE, 0), (ONE, 1)]
    alike = [(run.setting, run.seed) for run in wanted.cheapest(lambda setting: 1.0)]
    assert alike == [(ONE, 0), (OTHER, 0), (ONE, 1), (OTHER, 1), (OTHER, 2)]


def test_any_number_of_seeds_is_planned_at_once() -> None:
    begun = time.perf_counter()
    options = Namespace(only=(), precision="float32", scale="smoke", seeds=10**9)
    wanted = planned(named([TABLE]), options)
    first = list(itertools.islice(wanted.runs(), 50))
    assert time.perf_counter() - begun < 2
    assert wanted.count == 22 * 10**9
    assert len(merged(first)) == 50


def test_what_is_needed() -> None:
    needed: dict[str, set[str]] = {name: set() for name in papers.SCALES}
    for one in FEDBE.items.values():
        for scale, found in needed.items():
            found |= set().union(*(needs(c.setting) for c in FEDBE.cells(one.name, scale)))
    every = {"cifar10", "cifar100", "tiny_imagenet"}
    assert needed == {"smoke": set(), "short": every, "paper": every}


def test_missing_data_are_told_together_and_the_rest_is_played(
    call: Call, played: list[int], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    real = type(FEDBE).cells

    def cells(paper: papers.Paper, item: str, scale: str, **more: tuple[str, ...]) -> list[Cell]:
        found = real(paper, item, scale, **more)
        far = found[1].setting.with_(data="cifar100", public_data="tiny_imagenet")
        return [found[0], Cell(**vars(found[1]) | {"setting": far}), *found[2:]]

    monkeypatch.setattr(type(FEDBE), "cells", cells)
    answer = call("run", TABLE, *BAD)
    assert answer.code == 1
    assert played == [0]
    assert answer.err == (
        "missing data: cifar100, tiny_imagenet (1 cell waits for it): "
        "fedrepro data prepare cifar100 && fedrepro data prepare tiny_imagenet\n"
    )
    assert "runs: 1 done" in answer.out
    listed = call("run", TABLE, *BAD, "--list")
    assert listed.code == 0
    assert "(no cifar100, tiny_imagenet)" in listed.out


def test_no_data_at_all(call: Call, played: list[int], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FEDREPRO_DATA", str(tmp_path / "nothing"))
    answer = call("run", TABLE, "--scale", "short")
    assert answer.code == 1
    assert answer.err.startswith("missing data: cifar10 (15 cells wait for it): fedrepro data prepare cifar10\n")
    assert "no runs needed" in answer.out


def test_a_record_that_cannot_be_written_is_refused_first(
    call: Call, played: list[int], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setattr("fedrepro.core.paths.recorded_folder", lambda: tmp_path / "file" / "figures")
    for command in (["run", TABLE, *GOOD, "--record"], ["reproduce", TABLE, "--record"], ["report", "--record"]):
        answer = call(*command)
        assert (answer.code, answer.out) == (2, "")
        assert answer.err.startswith(f"fedrepro: cannot write into {tmp_path / 'file' / 'figures'}: ")
    assert not played


def test_accuracies_are_printed(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    out = call("run", TABLE, "--only", "ConvNet,Step,FedAvg", "--seeds", "2").out
    found = [line.split() for line in out.splitlines()[-2:]]
    assert found[0] == [TABLE, "seeds", "mean", "±", "std"]
    name, network, seeds, mean, sign, spread = found[1]
    assert (name, network, seeds, sign) == ("Step/FedAvg,", "ConvNet", "2", "±")
    assert 0 <= float(mean) <= 100
    assert float(spread) >= 0
    cheapest = call("run", TABLE, "--only", "ConvNet,Step,FedAvg", "--seeds", "2", "--cheapest")
    assert (cheapest.code, cheapest.out) == (0, out)


def test_the_cheapest_first_leaves_out_what_is_recorded(
    call: Call, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    figures = tmp_path / "figures"
    monkeypatch.setattr("fedrepro.core.paths.recorded_folder", lambda: figures)
    monkeypatch.setattr("fedrepro.core.paths.checkout", lambda: tmp_path)
    asked = ("run", TABLE, "--only", "ConvNet,Step,FedAvg", "--cheapest")
    assert "recorded already" not in call(*asked, "--record").out
    (line,) = (figures / TABLE / "smoke.csv").read_text("utf-8").splitlines()[1:]
    assert line.startswith("Step/FedAvg,ConvNet,")
    head, *listed = call(*asked, "--seeds", "2", "--list").out.splitlines()
    assert head == "recorded already, so left out: 1 of 2 runs"
    assert [line.rpartition(", ")[2] for line in listed] == ["seed 1"]
    answer = call(*asked, "--seeds", "2")
    assert answer.code == 0
    assert answer.out.startswith("recorded already, so left out: 1 of 2 runs\n")
    assert "runs: 1 done; store:" in answer.out
    assert "runs: no runs needed; store:" in call(*asked).out
    assert "runs: 2 done; store:" in call(*asked[:-1], "--seeds", "2").out  # both, whatever is recorded
    assert "recorded already" not in call(*asked, "--seeds", "2", "--precision", "bfloat16").out
    options = Namespace(only=(), precision="float32", scale="smoke", seeds=1)
    assert recorded(planned(named([TABLE]), options), "smoke") == set()  # Dirichlet/FedAvg lacks the same run


def test_the_cheapest_are_listed_in_their_order(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[list[str]] = []
    for sign in (1, -1):
        rates = SimpleNamespace(seconds=lambda setting, sign=sign: sign * images(setting).predicted)
        monkeypatch.setattr("fedrepro.bench.rates.Rates.here", lambda device, rates=rates: rates)
        out = call("run", TABLE, "--only", "ConvNet,Step,FedAvg,v-Distillation", "--cheapest", "--list").out
        found.append([line.split("  ")[-1] for line in out.splitlines()])
    assert found[0] == ["Step/FedAvg, ConvNet, seed 0", "Step/v-Distillation, ConvNet, seed 0"]
    assert found[1] == found[0][::-1]


def test_a_run_is_recorded_when_all_its_numbers_are(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("fedrepro.core.paths.checkout", lambda: tmp_path)
    lines = {"a": [("1", ONE), ("2", OTHER)], "b": [("3", ONE.with_(rounds=7))]}

    def read(folder: Path, item: str, scale: str) -> pd.DataFrame:
        if item == "c":
            raise ValueError("damaged")
        found = [(row, "x", setting.key, "float32", 0) for row, setting in lines[item]]
        return pd.DataFrame(found, columns=["row", "column", "setting_key", "precision", "seed"])

    monkeypatch.setattr("fedrepro.runs.record.read", read)
    one, two, other = (cell("a", "1"), 1), (cell("a", "2", OTHER), 2), (cell("b", "3"), 1)
    assert recorded(Wanted((one, two)), "short") == {(ONE, 0), (OTHER, 0)}  # but not its second seed
    assert recorded(Wanted((one, other)), "short") == set()  # of b there is a run with another setting
    assert recorded(Wanted((two, (cell("c", "1", OTHER), 1))), "short") == set()
    left = Wanted((one, two), frozenset({(ONE, 0)}))
    assert (left.count, [run.seed for run in left.runs()]) == (2, [0, 1])
    assert [(cell.row, seed) for cell, seed in left.numbers()] == [("2", 0), ("2", 1)]
    assert [run.setting for run in left.cheapest(lambda setting: 1.0)] == [OTHER, OTHER]


def test_a_damaged_record_is_told_before_anything_is_played(
    call: Call, played: list[int], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("fedrepro.core.paths.recorded_folder", lambda: tmp_path)
    (tmp_path / TABLE).mkdir(parents=True)
    (tmp_path / TABLE / "smoke.csv").write_text("<<<<<<< ours\n")
    answer = call("run", TABLE, *GOOD, "--record")
    assert (answer.code, answer.out, played) == (2, "", [])
    assert "smoke.csv" in answer.err


def test_the_cheapest_without_data_leave_out_what_is_recorded(
    call: Call, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked = ("run", TABLE, "--only", "ConvNet,Step,FedAvg")
    monkeypatch.setattr("fedrepro.core.paths.checkout", lambda: tmp_path)
    assert call(*asked, "--record").code == 0
    monkeypatch.setattr("fedrepro.cli.runs.absent", lambda: {"lost"})
    monkeypatch.setattr("fedrepro.cli.planned.needs", lambda setting: {"lost"})
    monkeypatch.setattr("fedrepro.cli.runs.needs", lambda setting: {"lost"})
    answer = call(*asked, "--cheapest")
    assert answer.code in (0, 1)
    assert "no runs needed" in answer.out


def test_labels_of_another_scale_leave_out_their_item_alone() -> None:
    options = Namespace(only=("ResNet-20",), precision="float32", scale="smoke", seeds=1)
    found = {cell.item for cell, _ in planned(named(["fedbe"]), options).cells}
    assert TABLE in found
    assert "fedbe/table2_targets" not in found
    with pytest.raises(ValueError, match="table2_targets has no cell with ResNet-20 at scale smoke"):
        planned(named(["fedbe/table2_targets"]), options)


def test_a_record_that_a_cell_cannot_read_is_that_run_s_failure(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = record.run_row

    def row(cell: Cell, scale: str, key: str, held: dict[str, Any]) -> dict[str, Any]:
        if held["seed"] == 0:
            raise KeyError("ensemble_accuracy")
        return real(cell, scale, key, held)

    monkeypatch.setattr(record, "run_row", row)
    answer = call("run", TABLE, "--only", "ConvNet,Step,FedAvg", "--seeds", "2")
    assert answer.code == 1
    assert re.search(rf"failed: .*, seed 0: {tmp_path}/store/\w+/record.json: 'ensemble_accuracy'", answer.err)
    assert "1 done, 1 failed" in answer.out


def test_an_item_that_cannot_be_recorded_keeps_no_other_away(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = record.write

    def write(folder: Path, item: str, *rest: Any) -> list[Path]:
        if item == TABLE:
            raise StoreError("cannot write x: no space left on device")
        return real(folder, item, *rest)

    monkeypatch.setattr(record, "write", write)
    answer = call("run", TABLE, "fedbe/table5_cifar100", "--only", "ConvNet,FedAvg", "--record")
    assert answer.code == 1
    assert f"not recorded: {TABLE}: cannot write x: no space left on device" in answer.err
    assert not (tmp_path / "figures" / TABLE / "smoke.csv").exists()
    assert (tmp_path / "figures" / "fedbe" / "table5_cifar100" / "smoke.csv").exists()


def test_the_cheapest_of_any_number_of_seeds(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedrepro.core.paths.checkout", lambda: tmp_path)
    asked = ("run", TABLE, "--only", "ConvNet,Step,FedAvg", "--cheapest", "--seeds")
    assert call(*asked, "1", "--record").code == 0
    begun = time.monotonic()
    answer = call(*asked, "9" * 9, "--budget", "1s")
    assert time.monotonic() - begun < 10
    assert answer.out.startswith("recorded already, so left out: 1 of 999999999 runs\n")
