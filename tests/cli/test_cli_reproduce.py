"""`fedrepro reproduce`: runs, notebooks, report; what is unchanged is left."""

import argparse
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import torch

from cli.cli_calls import FEDBE, TABLE, Call
from fedrepro.cli import beside, needs, parser, reproduce, unchanged
from fedrepro.cli.unchanged import Traces
from fedrepro.core import paths
from fedrepro.core.files import write_atomically
from fedrepro.notebooks import batch
from fedrepro.report import report
from fedrepro.runs import record
from fedrepro.runs.record import RUN_COLUMNS
from fedrepro.runs.request import Outcome, Run

TUTORIALS = ["01_one_round_by_hand", "02_ensembles_on_a_swiss_roll"]


def test_reproduce_executes_the_notebook(call: Call, jobs: list[batch.Job], tmp_path: Path) -> None:
    answer = call("reproduce", "fedbe/figure1_simplex", "--seeds", "3", "--timeout", "2m", "--device", "cpu")
    assert answer.code == 0, answer.err
    (job,) = jobs
    assert job.notebook == tmp_path / "notebooks" / "fedbe" / "figure1_simplex.ipynb"
    assert job.output == tmp_path / "results" / "notebooks" / "fedbe" / "figure1_simplex.ipynb"
    assert job.timeout == 120
    made = tmp_path / "results" / "figures"
    assert job.parameters == {"scale": "smoke", "seeds": 3, "device": "cpu", "out": str(made)}
    for place in (job.output.parent.parent, made, made / "report.md", made / "report.html"):
        assert str(place) in answer.out


def test_reproduce_tells_which_notebook_failed(call: Call, jobs: list[batch.Job]) -> None:
    answer = call("reproduce", "fedbe/figure1_simplex", "fedbe/figure8_confidence")
    assert answer.code == 1
    assert len(jobs) == 2
    assert re.fullmatch(r"failed: .*figure8_confidence\.ipynb: KeyError: why\n", answer.err)


def test_reproduce_records_into_the_repository(call: Call, jobs: list[batch.Job], tmp_path: Path) -> None:
    assert call("reproduce", "fedbe/figure1_simplex", "--record").code == 0
    assert jobs[0].parameters["out"] == str(tmp_path / "figures")


def test_reproduce_of_everything(call: Call, jobs: list[batch.Job], monkeypatch: pytest.MonkeyPatch) -> None:
    def play_none(runs: Iterable[Run], store: object, **_: object) -> list[Outcome]:
        return [Outcome(run.setting.key, "failed", error="why") for run in runs]

    monkeypatch.setattr("fedrepro.cli.runs.play_all", play_none)
    answer = call("reproduce")
    assert answer.code == 1
    assert [job.notebook.stem for job in jobs] == [*FEDBE.items, "throughput", *TUTORIALS]


def test_reproduce_stops_when_the_budget_is_spent(call: Call, jobs: list[batch.Job]) -> None:
    answer = call("reproduce", TABLE, "--budget", "0.000001s")
    assert answer.code == 1
    assert not jobs  # a notebook would play all that the budget left out


@pytest.fixture
def made(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """List the notebooks that are executed: each writes a copy and a figure, that of Figure 8 fails."""
    names: list[str] = []

    def execute(wanted: list[batch.Job], **_: Any) -> list[batch.Result]:
        for job in wanted:
            names.append(job.output.stem)
            write_atomically(job.output, b"{}")
            if job.page:
                write_atomically(job.output.with_suffix(".html"), b"")
            place = Path(job.parameters["out"]) / "fedbe" / job.output.stem
            write_atomically(place / "figure_smoke.png", b"picture")
        return [batch.Result("figure8" not in job.notebook.name, 1.0, "KeyError: why") for job in wanted]

    def write(folder: Path, folders: list[Path]) -> None:
        names.append("report")
        for name in ("report.md", "report.html"):
            write_atomically(folder / name, b"")

    monkeypatch.setattr(batch, "execute_all", execute)
    monkeypatch.setattr(report, "write_report", write)
    for name in ("table1_methods", "table2_targets", "figure1_simplex", "figure8_confidence"):
        text: dict[str, Any] = {"cells": [{"cell_type": "code", "source": name, "metadata": {}, "outputs": []}]}
        write_atomically(tmp_path / "notebooks" / "fedbe" / f"{name}.ipynb", json.dumps(text).encode())
    return names


SHORT = ["reproduce", TABLE, "--only", "ConvNet,Step,FedAvg"]


def test_what_is_unchanged_is_not_made_again(
    call: Call, made: list[str], played: list[int], tmp_path: Path
) -> None:
    first = call(*SHORT)
    assert first.code == 0, first.err
    assert f"executed: {TABLE} (1 s)" in first.out
    assert made == ["table1_methods", "report"]
    begun = time.perf_counter()
    second = call(*SHORT)
    assert time.perf_counter() - begun < 5
    assert second.code == 0
    assert second.out.startswith(f"unchanged: {TABLE}\nunchanged: report\nnotebooks: ")
    assert "done" not in second.out
    assert made == ["table1_methods", "report"]
    assert played == [0]
    assert call(*SHORT, "--timeout", "3s").out.startswith("unchanged")  # it says nothing of what is made


@pytest.mark.parametrize(
    "change",
    [
        *("notebook", "outputs", "options", "run", "copy", "page", "figure", "records", "library", "versions"),
        *("damaged run", "damaged copy", "damaged page", "damaged figure", "damaged report"),
    ],
)
def test_what_a_notebook_comes_from(
    change: str, call: Call, made: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    call(*SHORT)
    made.clear()
    notebook, more = tmp_path / "notebooks" / f"{TABLE}.ipynb", list[str]()
    text = json.loads(notebook.read_text())
    if change in ("notebook", "outputs"):
        text["cells"][0] |= {"source": "other"} if change == "notebook" else {"outputs": [1], "execution_count": 3}
        notebook.write_text(json.dumps(text))
    if change == "options":
        more = ["--precision", "bfloat16"]
    left = {
        "run": next((tmp_path / "store").glob("*/record.json")),
        "copy": tmp_path / "results" / "notebooks" / f"{TABLE}.ipynb",
        "page": tmp_path / "results" / "notebooks" / f"{TABLE}.html",
        "figure": tmp_path / "results" / "figures" / TABLE / "figure_smoke.png",
        "report": tmp_path / "results" / "figures" / "report.html",
    }
    if change in left:
        left[change].unlink()
    if change.startswith("damaged"):
        path = left[change.removeprefix("damaged ")]
        path.write_bytes(b" " + path.read_bytes())
    if change == "records":
        head = ",".join(RUN_COLUMNS).encode()
        write_atomically(tmp_path / "figures" / "fedbe" / "table2_targets" / "short.csv", head + b"\n")
    if change in ("library", "versions"):
        monkeypatch.setattr(unchanged, change, lambda: {"torch": "1"} if change == "versions" else "other")
    answer = call(*SHORT, *more)
    assert answer.code == 0, answer.err
    assert ("table1_methods" in made) == (change not in ("outputs", "damaged report"))
    assert ("report" in made) == (change in ("library", "versions", "records", "options", "damaged report"))


def test_a_failed_notebook_is_made_again(call: Call, made: list[str]) -> None:
    for _ in range(2):
        answer = call("reproduce", "fedbe/figure1_simplex", "fedbe/figure8_confidence")
        assert answer.code == 1
    assert made.count("figure8_confidence") == 2
    assert made.count("figure1_simplex") == 1


def test_out_and_labels_reach_the_notebook(call: Call, jobs: list[batch.Job], tmp_path: Path) -> None:
    out = tmp_path / "elsewhere"
    answer = call(*SHORT, "--out", str(out), "--precision", "bfloat16")
    assert answer.code == 0, answer.err
    (job,) = jobs
    assert job.parameters["out"] == str(out)
    assert job.environment == {
        "FEDREPRO_ONLY": '["ConvNet", "Step", "FedAvg"]',
        "FEDREPRO_PRECISION": "bfloat16",
    }
    assert f"figures:   {out}" in answer.out
    table = record.read(out, TABLE, "smoke")
    assert list(zip(table["row"], table["column"], table["precision"])) == [("Step/FedAvg", "ConvNet", "bfloat16")]
    both = call(*SHORT, "--out", str(out), "--record")
    assert both.err == "fedrepro: --record writes into figures/ of the repository: leave out --out, or --record\n"
    jobs.clear()
    assert call("reproduce", "fedbe", "--only", "Step,ConvNet,FedBE w/o SWA").code == 1  # the toy cannot distil
    assert [job.notebook.stem for job in jobs] == ["table1_methods", "figure1_simplex", "figure8_confidence"]


def test_notebooks_of_no_paper_are_given_what_they_know(
    call: Call, jobs: list[batch.Job], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = call("reproduce", "performance", "tutorials")
    assert answer.code == 0, answer.err
    throughput, tutorial, _ = jobs
    assert throughput.notebook == tmp_path / "notebooks" / "performance" / "throughput.ipynb"
    assert (throughput.parameters, tutorial.parameters) == ({}, {})  # files that are not there have no parameters
    monkeypatch.setattr(paths, "recorded_folder", lambda: Path(paths.checkout() or "") / "figures")
    options = parser().parse_args(["reproduce"])
    job = reproduce._job("performance/throughput", Traces(options, tmp_path / "out"), options, None)
    assert job["parameters"] == {"out": str(tmp_path / "out" / "performance")}


def test_missing_data_put_notebooks_off(
    call: Call, jobs: list[batch.Job], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("FEDREPRO_DATA", str(tmp_path / "nothing"))
    answer = call("reproduce", TABLE, "fedbe/figure1_simplex", "--scale", "short")
    assert answer.code == 1
    assert answer.err == (
        "missing data: cifar10 (15 cells wait for it): fedrepro data prepare cifar10\n"
        f"put off: {TABLE} (its data are missing)\n"
    )
    assert [job.notebook.stem for job in jobs] == ["figure1_simplex"]
    assert "report:    " in answer.out


def test_missing_packages_are_told_before_any_run(
    call: Call, jobs: list[batch.Job], played: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "papermill", None)
    monkeypatch.setitem(sys.modules, "seaborn", None)
    answer = call("reproduce", TABLE)
    assert (answer.code, answer.out) == (2, "")
    told = (
        "fedrepro: fedrepro reproduce needs papermill, seaborn, not installed here; in the repository's folder: "
    )
    assert answer.err == f"{told}pip install -e '.[notebooks]'\n"
    assert not played
    monkeypatch.setattr(paths, "checkout", lambda: None)
    assert "fedrepro[" not in call("reproduce", TABLE).err
    assert needs.advice("sklearn") == ""


def options_of(*arguments: str) -> argparse.Namespace:
    return parser().parse_args(["reproduce", *arguments])


@pytest.mark.parametrize(
    ("arguments", "count", "device", "threads", "number"),
    [
        ([], 143, "cpu", 2, 1),
        ([], 143, "cpu", 16, 3),
        ([], 143, "cpu", 1, 0),
        ([], 143, "cuda", 2, 0),
        ([], 19, "cpu", 2, 0),
        (["--only", "ConvNet"], 143, "cpu", 2, 0),
        (["--scale", "short"], 143, "cpu", 2, 0),
    ],
)
def test_helpers_only_where_they_help(
    arguments: list[str], count: int, device: str, threads: int, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[Any] = []
    ended: list[int] = []
    process = SimpleNamespace(terminate=lambda: ended.append(1), wait=lambda: ended.append(2), stdin=None)

    def begin(command: list[str], *, env: dict[str, str], **_: object) -> SimpleNamespace:
        begun.append((command, env))
        return process

    monkeypatch.setattr("subprocess.Popen", begin)
    monkeypatch.setattr(beside, "MANY", 20)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        with beside.helpers(["fedbe/x"], options_of(*arguments), count, device) as found:
            assert torch.get_num_threads() == (1 if number else threads)
            assert (found, len(begun), ended) == (number, number, [])
        assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
    assert sorted(ended) == [1] * number + [2] * number
    for command, environment in begun:
        assert command[4:] == [
            *("run", "fedbe/x", "--scale", "smoke", "--device", "cpu", "--precision", "float32")
        ]
        assert environment["OMP_NUM_THREADS"] == "1"
        assert Path(environment["FEDREPRO_RUNS"]).is_absolute()


def test_a_helper_plays_runs_of_the_same_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDREPRO_RUNS", str(tmp_path / "runs"))
    monkeypatch.setattr(beside, "MANY", 20)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        with beside.helpers([TABLE], options_of("--seeds", "2"), 44, "cpu"):
            deadline = time.monotonic() + 60
            while not [*tmp_path.glob("runs/*/record.json")]:
                assert time.monotonic() < deadline
                time.sleep(0.1)
    finally:
        torch.set_num_threads(before)


PARENT = """
import argparse, time, torch
from fedrepro.cli import beside
torch.set_num_threads(2)
options = argparse.Namespace(scale="smoke", only=(), precision="float32", seeds=2000)
popen = beside.subprocess.Popen
def begin(*given, **named):
    process = popen(*given, **named)
    print(process.pid, flush=True)
    return process
beside.subprocess.Popen = begin
with beside.helpers(["fedbe/table1_methods"], options, 44, "cpu"):
    time.sleep(60)
"""


def test_a_helper_ends_with_a_command_that_is_killed(tmp_path: Path) -> None:
    environment = os.environ | {"FEDREPRO_RUNS": str(tmp_path)}
    command = [sys.executable, "-c", PARENT]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as parent:
        assert parent.stdout
        helper = int(parent.stdout.readline())
        parent.kill()
    deadline = time.monotonic() + 30
    while psutil.pid_exists(helper) and psutil.Process(helper).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_a_folder_inside_the_recorded_figures_is_refused(
    call: Call, jobs: list[batch.Job], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("fedrepro.core.paths.checkout", lambda: tmp_path)
    for folder in (tmp_path / "figures", tmp_path / "figures" / "x"):
        answer = call("reproduce", "fedbe/figure1_simplex", "--out", str(folder))
        assert (answer.code, jobs) == (2, [])
        assert "would write over the recorded figures: name another folder" in answer.err


@pytest.mark.parametrize(
    "held", [{"a": 1}, {"inputs": 1, "files": 5, "runs": []}, {"inputs": 1, "files": [], "runs": [1]}]
)
def test_a_damaged_trace_is_none(held: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unchanged, "_read", lambda path: held)
    traces = Traces(options_of("fedbe/figure1_simplex"), tmp_path)
    assert not traces.current("fedbe/figure1_simplex")
