"""The command line: short help, honest exit statuses, errors in one line."""

import argparse
import dataclasses
import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import fedrepro
from fedrepro import papers
from fedrepro.cli import budget_seconds, main, parser
from fedrepro.core import paths
from fedrepro.data.datasets import DATASETS
from fedrepro.federation.assemble import assemble
from fedrepro.notebooks import batch
from fedrepro.report import report
from fedrepro.runs import play as runs
from fedrepro.runs import record
from fedrepro.runs.store import Store

FEDBE = papers.load("fedbe")
TABLE = "fedbe/table1_methods"
# Two cells of one run (the toy has its own partition), another run, and one that cannot be played.
GOOD, BAD = ["--only", "ConvNet,FedAvg"], ["--only", "ConvNet,Step,FedAvg,FedBE"]
COMMANDS = ["", "run", "reproduce", "report", "list", "bench", "new", "data", "data prepare", "data list"]


@dataclasses.dataclass
class Answer:
    code: int
    out: str
    err: str


Call = Callable[..., Answer]


@pytest.fixture
def call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    """Return the command with a store of its own, and smoke runs that take a tenth of a second."""
    values = {
        **{"data": "swiss_roll", "model": "mlp", "partition": "swiss_roll", "clients": 3, "public_images": 0},
        **{"client_images": 0, "client_batch": 100, "local_epochs": 1, "rounds": 2, "test_images": 30},
        **{"partition_alpha": 0.1},
    }
    quick = dataclasses.replace(FEDBE, rules=(*FEDBE.rules, {"when": {"scale": "smoke"}, "set": values}))
    monkeypatch.setattr(papers, "load", lambda name: quick)
    monkeypatch.setattr(paths, "recorded_folder", lambda: tmp_path / "figures")
    monkeypatch.setattr(paths, "results_folder", lambda: tmp_path / "results")
    monkeypatch.setenv("FEDREPRO_RUNS", str(tmp_path / "store"))
    monkeypatch.setattr("fedrepro.cli.runs.precision_of", lambda device: "float32")  # as most CPUs

    def ask(*arguments: str) -> Answer:
        try:
            code: Any = main(arguments)
        except SystemExit as end:  # argparse
            code = end.code or 0
        said = capsys.readouterr()
        assert "Traceback" not in said.err
        return Answer(code, said.out, said.err)

    return ask


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """List the seeds of the runs that were really played."""
    seeds: list[int] = []

    def watch(setting: Any, seed: int, device: str) -> Any:
        seeds.append(seed)
        return assemble(setting, seed, device)

    monkeypatch.setattr(runs, "assemble", watch)
    return seeds


# -- help -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", COMMANDS)
def test_help_fits_a_terminal_and_has_an_example_that_works(
    command: str, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    answer = call(*command.split(), "--help")
    assert answer.code == 0
    lines = answer.out.rstrip().splitlines()
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 100
    example = re.search(r"^example: fedrepro (.*)", answer.out, re.MULTILINE)
    assert example, f"no example in\n{answer.out}"
    options = parser().parse_args(shlex.split(example[1]))
    assert example[1].startswith(command)
    for name in getattr(options, "items", []):
        assert papers.find(name)
    for item in [item for name in getattr(options, "items", []) for item in papers.find(name)]:
        FEDBE.cells(item.name, options.scale, only=getattr(options, "only", ()))


def test_every_command_is_in_the_help(call: Call) -> None:
    out = call("--help").out
    assert all(re.search(rf"^    {name}\b", out, re.MULTILINE) for name in COMMANDS if name and " " not in name)


def test_version(call: Call) -> None:
    assert call("--version").out == f"fedrepro {fedrepro.__version__}\n"


@pytest.mark.parametrize(
    "arguments",
    [
        "",
        "run",
        "data",
        "data prepare",
        "runn",
        "run x --scale huge",
        "run x --seeds 0",
        "data prepare cifar10 --archive x --from-folder y",
    ],
)
def test_a_wrong_call_is_explained(arguments: str, call: Call) -> None:
    answer = call(*arguments.split())
    assert answer.code == 2
    assert answer.err.startswith("usage: fedrepro")
    assert not answer.out


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("8m", 480), ("1.5h", 5400), ("0.5s", 0.5), (" 2 m ", 120)]
)
def test_budgets(text: str, seconds: float) -> None:
    assert budget_seconds(text) == seconds


@pytest.mark.parametrize(
    "text", ["", "8", "m", "0s", "0.0h", "-1m", "5d", "1e3s", "8 minutes", "nan s", "1,5h", "8m8s"]
)
def test_no_budgets(text: str, call: Call) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=r"must be a time such as 90s, 8m or 1\.5h, got"):
        budget_seconds(text)
    answer = call("run", TABLE, f"--budget={text}")
    assert answer.code == 2
    assert f"got {text!r}" in answer.err


# -- run ------------------------------------------------------------------------------------------------------


def test_run_plays_once_and_reads_after_that(call: Call, played: list[int], tmp_path: Path) -> None:
    for _ in range(2):
        answer = call("run", TABLE, *GOOD)
        assert (answer.code, answer.err) == (0, "")
        done, engine, runs = answer.out.splitlines()
        assert (done, runs) == ("done: Step/FedAvg ConvNet, seed 0", f"runs: 2 done; store: {tmp_path / 'store'}")
        assert engine.startswith("engine plain: one model at a time: ")
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
    first, second, engine, runs = answer.out.splitlines()
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
    assert "the same command goes on from here" in answer.out
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
    before = {path: path.read_bytes() for path in (tmp_path / "figures").rglob("*.*")}
    call("run", TABLE, *GOOD, "--record")
    call("run", TABLE, *BAD, "--record")
    assert list(record.read(tmp_path / "figures", TABLE, "smoke")["row"]) == ["Dirichlet/FedAvg", "Step/FedAvg"]
    assert len(before) == 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (f"run {TABLE[:-2]}x", f"unknown item 'fedbe/table1_methox' (did you mean '{TABLE}'?)"),
        ("run table1_methods", f"unknown item 'table1_methods' (did you mean '{TABLE}'?)"),
        (f"run {TABLE} --only ConvNt", f"{TABLE} has no 'ConvNt' (did you mean 'ConvNet'?)"),
        (f"run {TABLE} --only Step,fedavg", f"{TABLE} has no 'fedavg' (did you mean 'FedAvg'?)"),
        ("data prepare digits", "digits needs no preparing: a dependency ships it"),
        ("data prepare cifar11", f"data set must be one of {', '.join(DATASETS)}, got 'cifar11'"),
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


# -- list, data, new, report, reproduce ------------------------------------------------------------------------


def test_list(call: Call, tmp_path: Path) -> None:
    answer = call("list")
    assert answer.code == 0
    for item in FEDBE.items.values():
        assert item.key in answer.out
        assert item.title in answer.out
    assert "smoke: 22 cells x 1 seeds" in answer.out
    assert f"store: {tmp_path / 'store'}" in answer.out
    assert not (tmp_path / "store").exists()  # looking makes nothing


def test_data_list(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDREPRO_DATA", str(tmp_path / "data"))
    answer = call("data", "list")
    assert answer.code == 0
    digits, photos, cifar10, cifar100, tiny_imagenet, root = answer.out.splitlines()
    assert photos.split()[:3] == ["photos", "ready", "120"]
    assert cifar100.split()[:3] == ["cifar100", "missing", "60000"]
    assert tiny_imagenet.split()[:3] == ["tiny_imagenet", "missing", "110000"]
    assert digits.split()[:3] == ["digits", "ready", "1797"]
    assert cifar10.split()[:3] == ["cifar10", "missing", "60000"]
    assert root == f"data root: {tmp_path / 'data'}"


def test_new_writes_into_the_checkout(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, Path]] = []

    def write(item: str, *, root: Path) -> list[Path]:
        asked.append((item, root))
        return [root / "notebooks" / f"{item}.ipynb", root / "items.toml"]

    monkeypatch.setattr("fedrepro.notebooks.new.new", write)
    monkeypatch.setattr(paths, "checkout", lambda: tmp_path)
    answer = call("new", "fedbe/table9_mine")
    assert asked == [("fedbe/table9_mine", tmp_path)]
    notebook = tmp_path / "notebooks" / "fedbe" / "table9_mine.ipynb"
    assert (answer.code, answer.out) == (0, f"wrote {notebook}\nwrote {tmp_path / 'items.toml'}\n")
    monkeypatch.setattr(paths, "checkout", lambda: None)
    answer = call("new", "fedbe/table9_mine")
    assert answer.code == 2
    assert answer.err == "fedrepro: a new item is part of the repository: install it with pip install -e .\n"
    assert len(asked) == 1


def test_report(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[Path, list[Path]]] = []

    def write(folder: Path, *, folders: list[Path]) -> tuple[Path, Path]:
        asked.append((folder, folders))
        return folder / "report.md", folder / "report.html"

    monkeypatch.setattr(report, "write_report", write)
    figures, made = tmp_path / "figures", tmp_path / "results" / "figures"
    answer = call("report")
    assert (answer.code, answer.out) == (0, f"{made / 'report.md'}\n{made / 'report.html'}\n")
    assert call("report", "--record").code == 0
    assert asked == [(made, [figures, made]), (figures, [figures])]  # the committed report is of committed records


@pytest.fixture
def jobs(monkeypatch: pytest.MonkeyPatch) -> list[batch.Job]:
    """List the notebooks that would be executed; those of Figure 8 fail."""
    asked: list[batch.Job] = []

    def execute(wanted: list[batch.Job], **_: Any) -> list[batch.Result]:
        asked.extend(wanted)
        return [batch.Result("figure8" not in job.notebook.name, 1.0, "KeyError: why") for job in wanted]

    monkeypatch.setattr(batch, "execute_all", execute)
    monkeypatch.setattr(
        report, "write_report", lambda folder, folders: (folder / "report.md", folder / "report.html")
    )
    return asked


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


def test_reproduce_of_everything(call: Call, jobs: list[batch.Job]) -> None:
    answer = call("reproduce")  # the toy's FedBE runs fail: no public images
    assert answer.code == 1
    assert [job.notebook.stem for job in jobs] == list(FEDBE.items)


def test_reproduce_stops_when_the_budget_is_spent(call: Call, jobs: list[batch.Job]) -> None:
    answer = call("reproduce", TABLE, "--budget", "0.000001s")
    assert answer.code == 1
    assert not jobs  # a notebook would play all that the budget left out


def test_labels_pick_among_the_items_of_a_paper(call: Call) -> None:
    lines = call("run", "fedbe", "--only", "Step,ConvNet,FedBE w/o SWA", "--list").out.splitlines()
    assert len(lines) == 1  # Table 8 has no axis with Step and is left out, not refused
    assert all(" fedbe/table1_methods " in line for line in lines)
    assert call("run", "fedbe", "--only", "Stepp", "--list").code == 2
