"""Killing the command: at any moment, and the same command goes on to the same record.

One chain: the command is killed at three moments, then it may end. A hook holds the process still at the
moment in question, so that the test kills it there on every machine, however fast.
"""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

from fedrepro.cli import main

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGKILL")

COMMAND = ["run", "fedbe/table1_methods", "--only", "ConvNet,Step,FedAvg", "--device", "cpu"]

# Loaded by the interpreter at its start: holds the process before or after a file of some name is put in place.
HOOK = """
import os, pathlib, time
replace = os.replace
moment, name = os.environ.get("HOLD", "never -").split()
def hold(source, target):
    here = pathlib.Path(target).name == name
    if not (here and moment == "before"):
        replace(source, target)
    if here:
        pathlib.Path(os.environ["HELD"]).touch()
        time.sleep(600)
if moment != "never":
    os.replace = hold
"""


@dataclass
class Story:
    """What was found after each kill, and how it ended."""

    store: Path
    killed: dict[str, tuple[set[str], list[dict[str, Any]]]] = field(default_factory=dict)
    codes: list[int] = field(default_factory=list)
    record: dict[str, Any] = field(default_factory=dict)


def found(store: Path) -> tuple[set[str], list[dict[str, Any]]]:
    """Return the names of the run's files, and the rows of its checkpoint."""
    names = {path.name for path in store.glob("*/*")}
    saved = [torch.load(path, weights_only=True)["rows"] for path in store.glob("*/checkpoint.pt")]
    return names, saved[0] if saved else []


def command(environment: dict[str, str]) -> subprocess.Popen[str]:
    arguments = [sys.executable, "-m", "fedrepro.cli", *COMMAND]
    pipe = subprocess.PIPE
    return subprocess.Popen(arguments, env=os.environ | environment, text=True, stdout=pipe, stderr=pipe)


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Story:
    room = tmp_path_factory.mktemp("kill")
    (room / "hook").mkdir()
    (room / "hook" / "sitecustomize.py").write_text(HOOK)
    told = Story(room / "store")
    base = {"FEDREPRO_RUNS": str(told.store), "PYTHONPATH": str(room / "hook"), "HELD": str(room / "held")}
    for moment in ("before checkpoint.pt", "after checkpoint.pt", "before record.json"):
        (room / "held").unlink(missing_ok=True)
        process = command(base | {"HOLD": moment})
        try:
            limit = time.monotonic() + 120
            while not (room / "held").exists() and process.poll() is None and time.monotonic() < limit:
                time.sleep(0.02)
            assert (room / "held").exists(), process.communicate(timeout=1) if process.poll() else "too slow"
        finally:
            process.send_signal(signal.SIGKILL)
            process.communicate()
        told.codes.append(process.returncode)
        told.killed[moment] = found(told.store)
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("FEDREPRO_RUNS", str(told.store))
        told.codes.append(main(COMMAND))
    for path in told.store.glob("*/record.json"):
        told.record = json.loads(path.read_text())
    return told


def test_the_kills_were_kills_and_the_last_call_ends_well(story: Story) -> None:
    assert story.codes == [-signal.SIGKILL] * 3 + [0]


def test_a_kill_in_the_first_checkpoint_leaves_none(story: Story) -> None:
    names, rows = story.killed["before checkpoint.pt"]
    assert not rows
    assert names >= {"setting.json", "lock"}
    assert not names & {"checkpoint.pt", "record.json", "failed.json"}


def test_a_kill_after_a_checkpoint_loses_nothing_that_it_holds(story: Story) -> None:
    names, rows = story.killed["after checkpoint.pt"]
    assert "record.json" not in names
    assert [row["round"] for row in rows] == [0]
    assert story.record["rows"][0]["seconds"] == rows[0]["seconds"]  # the round was not played again


def test_a_kill_in_the_record_plays_no_round_again(story: Story) -> None:
    names, rows = story.killed["before record.json"]
    assert "record.json" not in names
    assert [row["seconds"] for row in rows] == [row["seconds"] for row in story.record["rows"]]


def test_the_record_is_that_of_a_run_never_killed(
    story: Story, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDREPRO_RUNS", str(tmp_path))
    assert main(COMMAND) == 0
    (path,) = tmp_path.glob("*/record.json")
    assert facts(story.record) == facts(json.loads(path.read_text()))
    assert {path.name for path in tmp_path.glob("*")} == {path.name for path in story.store.glob("*")}


def facts(record: dict[str, Any]) -> dict[str, Any]:
    """Return a record without what may differ from one machine or moment to the next."""
    kept = {name: value for name, value in record.items() if name not in ("seconds", "provenance", "digest")}
    rows = [{name: row[name] for name in row if "seconds" not in name} for row in record["rows"]]
    return kept | {"rows": rows}


def test_nothing_half_written_stays_behind(story: Story) -> None:
    names, _ = found(story.store)
    assert names == {"setting.json", "checkpoint.pt", "record.json", "lock"}
