"""The command with a store of its own and runs that take a tenth of a second."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from cli.cli_calls import FEDBE, Answer, Call
from fedrepro import papers
from fedrepro.cli import main
from fedrepro.core import paths
from fedrepro.federation.assemble import assemble
from fedrepro.notebooks import batch
from fedrepro.report import report
from fedrepro.runs import play as runs


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
    monkeypatch.setattr("fedrepro.cli.beside.MANY", 10**9)  # helpers would not know these runs

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
