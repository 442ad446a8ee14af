"""`fedrepro run`: honest exit statuses, errors in one line."""

import dataclasses
import io
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from cli.cli_calls import BAD, FEDBE, GOOD, TABLE, Call
from fedrepro import papers
from fedrepro.core import paths
from fedrepro.runs import play as runs
from fedrepro.runs import record
from fedrepro.runs.store import Store


def test_run_plays_once_and_reads_after_that(call: Call, played: list[int], tmp_path: Path) -> None:
    for _ in range(2):
        answer = call("run", TABLE, *GOOD)
        assert (answer.code, answer.err) == (0, "")
        done, engine, runs, *table = answer.out.splitlines()
        assert (done, runs) == ("done: Step/FedAvg ConvNet, seed 0", f"runs: 2 done; store: {tmp_path / 'store'}")
        assert engine.startswith("engine plain: one model at a time: ")
        assert [line.split("  ")[0] for line in table] == [
            TABLE,
            "Step/FedAvg, ConvNet",
            "Dirichlet/FedAvg, ConvNet",
        ]
    assert played == [0]  # two cells share a run
    assert not (tmp_path / "figures").exists()


def test_bfloat16_is_named_where_the_cpu_has_it(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    told = "this CPU has bfloat16: --precision bfloat16 trains about half as fast again (float32 is used)"
    cpu = [*GOOD, "--device", "cpu"]
    assert told not in call("run", TABLE, *cpu).out
    monkeypatch.setattr("fedrepro.cli.runs.precision_of", lambda device: "bfloat16")
    first, *rest = call("run", TABLE, *cpu).out.splitlines()
    assert first == told
    assert told not in rest
    assert told not in call("run", TABLE, *cpu, "--list").out
    assert told not in call("run", TABLE, *cpu, "--precision", "bfloat16", "--budget", "0.000001s").out


def test_cells_with_and_without_a_target_share_one_run(
    call: Call, monkeypatch: pytest.MonkeyPatch, played: list[int]
) -> None:
    cells = type(FEDBE).cells
    targets = {"Step": 1.0, "Dirichlet": 101.0}  # reached at once, and never
    readings = {name: papers.Reading(at="first", target=target) for name, target in targets.items()}

    def aimed(paper: Any, *arguments: Any, **options: Any) -> Any:
        found = cells(paper, *arguments, **options)
        return [dataclasses.replace(cell, reading=readings[cell.labels["partition"]]) for cell in found]

    monkeypatch.setattr(type(FEDBE), "cells", aimed)
    assert call("run", TABLE, *GOOD, "--record").code == 0
    assert played == [0]
    table = record.read(paths.recorded_folder(), TABLE, "smoke").set_index("row")
    assert dict(table["rounds"]) == {"Step/FedAvg": 2, "Dirichlet/FedAvg": 2}
    assert dict(table["result"]) == {"Step/FedAvg": 1, "Dirichlet/FedAvg": 2}


def test_a_run_ends_early_at_its_cells_target(call: Call, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    cells, aim = type(FEDBE).cells, papers.Reading(at="first", target=1.0)
    monkeypatch.setattr(
        type(FEDBE), "cells", lambda *a, **b: [dataclasses.replace(cell, reading=aim) for cell in cells(*a, **b)]
    )
    assert call("run", TABLE, *GOOD).code == 0
    (path,) = tmp_path.glob("store/*/record.json")
    assert len(json.loads(path.read_text())["rows"]) == 1


def test_seeds_come_one_after_the_other(call: Call, played: list[int]) -> None:
    assert call("run", TABLE, "--only", "ConvNet,FedAvg,1-Ensemble", "--seeds", "2").code == 0
    assert played == [0, 0, 1, 1]


def test_a_failed_run_makes_the_status_one(call: Call, tmp_path: Path) -> None:
    answer = call("run", TABLE, *BAD)
    assert answer.code == 1
    first, second, engine, runs, *_ = answer.out.splitlines()
    assert (first, second) == ("done: Step/FedAvg ConvNet, seed 0", "failed: Step/FedBE ConvNet, seed 0")
    assert engine.startswith("engine plain: ")  # of the run that ended well
    assert runs == f"runs: 1 done, 1 failed; store: {tmp_path / 'store'}"
    assert answer.err == (
        f"failed: {TABLE} Step/FedBE, ConvNet, seed 0: "
        "ValueError: distillation needs public images, the server has none\n"
    )
    (mark,) = tmp_path.glob("store/*/failed.json")
    assert json.loads(mark.read_text())["label"] == "Step/FedBE ConvNet"


def test_a_failed_run_is_told_with_its_seed(call: Call) -> None:
    answer = call("run", TABLE, *BAD, "--seeds", "2")
    assert [line.count("seed") for line in answer.err.splitlines()] == [1, 1]


def test_a_spent_budget_makes_the_status_one_and_the_next_call_goes_on(call: Call) -> None:
    answer = call("run", TABLE, *GOOD, "--budget", "0.000001s")
    assert answer.code == 1
    assert answer.out.startswith("runs: 2 paused;")
    assert answer.out.endswith("the budget is spent; nothing was done in it, it needs more time\n")
    assert call("run", TABLE, *GOOD, "--budget", "5m").code == 0


def test_a_run_of_another_process_makes_the_status_one(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (line,) = call("run", TABLE, "--only", "ConvNet,Step,FedAvg", "--list").out.splitlines()
    with Store(tmp_path / "store").claim(line.split()[0]):
        answer = call("run", TABLE, *GOOD, "--budget", "0.2s")
    assert answer.code == 1
    assert re.search(r"^runs: 2 (busy|paused);", answer.out, re.MULTILINE)


def test_a_label_with_a_comma_stands_in_quotes(call: Call) -> None:
    numbers = "fedbe/text_numbers"
    answer = call("run", numbers, "--scale", "smoke", "--only", '"Step/FedAvg, 100 rounds"', "--list")
    assert answer.code == 0, answer.err
    assert "Step/FedAvg, 100 rounds" in answer.out
    assert "has no 'Step/FedAvg'" in call("run", numbers, "--only", "Step/FedAvg, 100 rounds", "--list").err


def test_list_shows_what_is_done_and_plays_nothing(call: Call, played: list[int], tmp_path: Path) -> None:
    def states() -> dict[str, str]:
        answer = call("run", TABLE, *BAD, "--list")
        assert answer.code == 0
        lines = [re.split(r"\s{2,}", line) for line in answer.out.splitlines()]
        assert all(re.fullmatch("[0-9a-f]{12}", line[0]) and line[2] == TABLE for line in lines)
        return {line[3]: line[1] for line in lines}

    assert states() == {"Step/FedAvg, ConvNet, seed 0": "-", "Step/FedBE, ConvNet, seed 0": "-"}
    assert not played
    call("run", TABLE, "--only", "ConvNet,Step,FedAvg")
    assert states()["Step/FedAvg, ConvNet, seed 0"] == "done"
    for path in tmp_path.glob("store/*/record.json"):
        path.unlink()
    assert states()["Step/FedAvg, ConvNet, seed 0"] == "begun"


def test_list_shows_what_failed(call: Call) -> None:
    call("run", TABLE, *BAD)
    (line,) = [line for line in call("run", TABLE, *BAD, "--list").out.splitlines() if "FedBE" in line]
    assert "failed" in line


def test_precision_is_another_run_of_the_same_cell(call: Call) -> None:
    one, other = (call("run", TABLE, *GOOD, "--list", *more).out for more in ([], ["--precision", "bfloat16"]))
    assert one.splitlines()[0].split()[0] != other.splitlines()[0].split()[0]
    assert [line[12:] for line in one.splitlines()] == [line[12:] for line in other.splitlines()]


def test_everything_of_a_paper_leaves_out_what_a_notebook_computes(call: Call) -> None:
    out = call("run", "fedbe", "--list").out
    played = {item.key: item for item in FEDBE.items.values() if item.batch}
    assert set(re.findall(r"fedbe/\w+", out)) == set(played) < {item.key for item in FEDBE.items.values()}
    assert len(out.splitlines()) == sum(len(FEDBE.cells(item.name, "smoke")) for item in played.values())
    assert call("run", "fedbe", TABLE, "--list").out == out


def test_an_item_of_a_notebook_has_nothing_to_run(call: Call) -> None:
    answer = call("run", "fedbe/figure1_simplex")
    assert answer.code == 0
    assert "no runs needed" in answer.out


def test_asking_for_what_a_scale_leaves_out_is_not_done(call: Call) -> None:
    answer = call("run", TABLE, "--scale", "short", "--only", "ResNet-56", "--list")
    assert answer.code == 2
    assert "ResNet-56" in answer.err


def test_records_are_written_when_asked(call: Call, tmp_path: Path) -> None:
    answer = call("run", TABLE, *BAD, "--record")
    assert answer.code == 1  # one failed, the other is recorded all the same
    table = record.read(tmp_path / "figures", TABLE, "smoke")
    assert list(zip(table["row"], table["column"], table["seed"])) == [("Step/FedAvg", "ConvNet", 0)]
    assert answer.out.count("wrote ") == 4
    before = {path: path.read_bytes() for path in (tmp_path / "figures").rglob("smoke*")}
    call("run", TABLE, *GOOD, "--record")
    call("run", TABLE, *BAD, "--record")
    assert list(record.read(tmp_path / "figures", TABLE, "smoke")["row"]) == ["Dirichlet/FedAvg", "Step/FedAvg"]
    assert len(before) == 4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (f"run {TABLE[:-2]}x", f"unknown item 'fedbe/table1_methox' (did you mean '{TABLE}'?)"),
        ("run table1_methods", f"unknown item 'table1_methods' (did you mean '{TABLE}'?)"),
        (f"run {TABLE} --only ConvNt", f"{TABLE} has no 'ConvNt' (did you mean 'ConvNet'?)"),
        (f"run {TABLE} --only Step,fedavg", f"{TABLE} has no 'fedavg' (did you mean 'FedAvg'?)"),
        ("data prepare digits", "digits needs no preparing: a dependency ships it"),
        ("data prepare cifar11", "unknown data set 'cifar11' (did you mean 'cifar10'?)"),
        ("data prepare cifar10 --archive none.tgz", "the archive of cifar10 must be a file, got none.tgz"),
        ("data prepare cifar10 --from-folder none", "the folder of images must be a folder, got none"),
    ],
)  # fmt: skip
def test_an_error_is_one_line(arguments: str, message: str, call: Call) -> None:
    answer = call(*arguments.split())
    assert answer.code == 2
    assert not answer.out
    assert answer.err.splitlines()[-1] == f"fedrepro: {message}"


def test_cuda_that_is_not_there(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    answer = call("run", TABLE, *GOOD, "--device", "cuda")
    assert answer.code == 2
    assert answer.err.startswith("fedrepro: device cuda was asked for, but this torch sees no CUDA device")


def test_an_interrupt_keeps_what_is_finished(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as hand:
        hand.setattr(runs, "evaluate", interrupt)
        answer = call("run", TABLE, *GOOD)
    assert answer.code == 130
    assert answer.err.endswith("fedrepro: interrupted; finished rounds are kept, the same command goes on\n")
    assert call("run", TABLE, *GOOD).code == 0


def test_labels_pick_among_the_items_of_a_paper(call: Call) -> None:
    lines = call("run", "fedbe", "--only", "Step,ConvNet,FedBE w/o SWA", "--list").out.splitlines()
    assert len(lines) == 1  # Table 8 has no axis with Step and is left out, not refused
    assert all(" fedbe/table1_methods " in line for line in lines)
    assert call("run", "fedbe", "--only", "Stepp", "--list").code == 2


def test_a_terminal_of_ascii_gets_a_question_mark(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", out)
    assert call("run", TABLE, *GOOD).code == 0
    out.seek(0)
    assert "seeds  mean ? std" in out.read()


def test_another_item_with_another_result_of_the_same_run_takes_over_the_new_one(
    call: Call, tmp_path: Path
) -> None:
    other, figures = "fedbe/table7_stragglers", tmp_path / "figures"
    call("run", other, "--only", "ConvNet,Normal,FedAvg", "--record")
    made = record.read(figures, other, "smoke")
    cells = papers.load("fedbe").cells("table7_stragglers", "smoke")
    (cell,) = [cell for cell in cells if (cell.row, cell.column) == ("Normal/FedAvg", "ConvNet")]
    store = Store()
    (key,) = made["key"]
    known = store.record(key)
    assert known is not None
    changed = known | {"rows": [row | {"accuracy": 1.25} for row in known["rows"]], "result": 1.25}
    record.write(figures, other, "smoke", [(cell, key, changed)])  # as another machine would have made it
    assert list(record.read(figures, other, "smoke")["result"]) == [1.25]
    answer = call("run", TABLE, *GOOD, "--record")
    assert f"{other} has 1 of these runs with other results, which give way: draw its figures anew\n" in answer.out
    assert list(record.read(figures, other, "smoke")["result"]) == list(made["result"])
    again = call("run", TABLE, *GOOD, "--record")
    assert "give way" not in again.out
    assert other not in again.out
