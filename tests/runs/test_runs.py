"""Runs: stopped anywhere they go on to the same bits, in any order, in any number of processes."""

import contextlib
import json
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import fedrepro
from fedrepro import papers
from fedrepro.core.files import StoreError
from fedrepro.core.metrics import unpacked
from fedrepro.core.rng import Streams
from fedrepro.core.setting import Setting
from fedrepro.core.state import State
from fedrepro.federation.assemble import assemble
from fedrepro.federation.federation import Federation
from fedrepro.federation.loaded import fingerprint
from fedrepro.methods import catalogue as methods
from fedrepro.runs import desk
from fedrepro.runs import play as runs
from fedrepro.runs.machine import choose_device
from fedrepro.runs.play import play, play_all
from fedrepro.runs.record import run_row
from fedrepro.runs.request import Outcome, Run, merged
from fedrepro.runs.store import Progress, Store

ROUNDS = 3
PAPER = papers.load("fedbe")


def toy(seed: int = 0, **changes: Any) -> Run:
    """Return a run on the Swiss roll that takes a tenth of a second; it has no public images."""
    values = {"rounds": ROUNDS, "local_epochs": 1, "client_batch": 100, "test_images": 30} | changes
    if values.get("method") == "centralized":
        values |= {"clients": 1}
    setting = PAPER.cells("figure1_simplex", "smoke")[0].setting.with_(**values)
    return Run(setting, seed, f"toy {setting.method}")


def digits(method: str, seed: int = 0, **changes: Any) -> Run:
    """Return a run on a few digits with a network that has BatchNorm."""
    values = {
        **{"model": "resnet8", "method": method, "rounds": ROUNDS, "partition": "iid", "clients": 2},
        **{"public_images": 12, "client_images": 16, "client_batch": 8, "test_images": 20, "samples": 2},
        **{"distill_epochs": 2, "distill_batch": 6, "swa_start": 1, "swa_cycle": 1},
    }
    if method == "centralized":
        values |= {"partition": "central", "clients": 1, "public_images": 0}
    return Run(
        PAPER.cells("table1_methods", "smoke")[0].setting.with_(**(values | changes)), seed, f"digits {method}"
    )


def key_of(run: Run, store: Store) -> str:
    return store.key(run.setting, run.seed, fingerprint(run.setting))


def checkpoint(run: Run, store: Store) -> Progress:
    layout = assemble(run.setting, run.seed).start(run.seed).layout
    found = store.restore(key_of(run, store), [layout], torch.device("cpu"))
    assert found is not None
    return found


def without_times(rows: list[dict[str, Any]]) -> str:
    return repr([{name: row[name] for name in sorted(row) if "seconds" not in name} for row in rows])


def assert_same(one: Progress, other: Progress) -> None:
    """Assert that two runs have come to the same state by the same rows, to the bit."""
    assert one.state.round == other.state.round
    for name in ("params", "buffers", "counters"):
        assert torch.equal(getattr(one.state.models, name), getattr(other.state.models, name)), name
    assert one.state.memory.keys() == other.state.memory.keys()
    for name in one.state.memory:
        held, expected = one.state.memory[name], other.state.memory[name]
        assert isinstance(held, torch.Tensor)
        assert isinstance(expected, torch.Tensor)
        assert torch.equal(held, expected), name
    assert without_times(one.rows) == without_times(other.rows)


def facts(record: dict[str, Any] | None) -> dict[str, Any]:
    """Return a record without what may differ from one machine or moment to the next."""
    assert record is not None
    kept = {name: value for name, value in record.items() if name not in ("seconds", "provenance", "rows")}
    return kept | {"rows": without_times(record["rows"])}


class Stop(BaseException):
    """Ends a call as Ctrl-C would."""


def stop_after(rounds: int) -> Callable[[int], None]:
    done = 0

    def tick(more: int) -> None:
        nonlocal done
        done += more
        if done >= rounds:
            raise Stop

    return tick


def play_in_pieces(run: Run, store: Store, stops: tuple[int, ...]) -> Outcome:
    for rounds in stops:
        with pytest.raises(Stop):
            play(run, Store(store.root), tick=stop_after(rounds))
        assert checkpoint(run, store).state.round == rounds
    return play(run, Store(store.root))


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


@pytest.fixture
def assembled(monkeypatch: pytest.MonkeyPatch) -> list[Setting]:
    """List the settings that were really played, not read from the store."""
    played: list[Setting] = []

    def watch(setting: Setting, *rest: Any) -> Any:
        played.append(setting)
        return assemble(setting, *rest)

    monkeypatch.setattr(runs, "assemble", watch)
    return played


# -- going on -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["fedavg", "fedbe", "centralized"])
def test_a_run_stopped_after_every_round_ends_in_the_same_bits(method: str, store: Store, tmp_path: Path) -> None:
    run, other = digits(method), Store(tmp_path / "other")
    straight, pieces = play(run, store), play_in_pieces(run, other, tuple(range(1, ROUNDS)))
    assert straight.status == pieces.status == "done"
    end = checkpoint(run, store)
    assert end.state.round == ROUNDS
    assert len(end.rows) == ROUNDS
    assert bool((end.state.models.counters > 0).all())  # there is something to forget
    assert_same(checkpoint(run, other), end)
    assert facts(pieces.record) == facts(straight.record)


@pytest.mark.parametrize("method", ["fedavg", "centralized", "one_ensemble"])
def test_a_run_stopped_after_any_one_round_ends_in_the_same_bits(
    method: str, store: Store, tmp_path: Path
) -> None:
    run = toy(method=method)
    straight = play(run, store)
    for rounds in range(1, ROUNDS + 1):  # the last: all rounds are done, only the record is missing
        other = Store(tmp_path / f"stopped after {rounds}")
        pieces = play_in_pieces(run, other, (rounds,))
        assert_same(checkpoint(run, other), checkpoint(run, store))
        assert facts(pieces.record) == facts(straight.record)


def test_partial_participation_and_learning_rates_go_on_as_well(store: Store, tmp_path: Path) -> None:
    run, other = toy(participation=0.5, lr_schedule="paper", rounds=5), Store(tmp_path / "other")
    play(run, store)
    play_in_pieces(run, other, (2, 3))
    assert_same(checkpoint(run, other), checkpoint(run, store))


def test_centralised_momentum_is_kept_and_matters(store: Store) -> None:
    run = digits("centralized", rounds=2)
    with pytest.raises(Stop):
        play(run, store, tick=stop_after(1))
    saved = checkpoint(run, store)
    velocity = saved.state.memory["velocity"]
    assert isinstance(velocity, torch.Tensor)
    assert float(velocity.abs().max()) > 0
    key = key_of(run, store)
    forgotten = State(1, saved.state.models)
    federation, method = assemble(run.setting, run.seed), methods.build(run.setting)
    after = [
        method.round(state, federation, Streams(run.seed, 1))[0].models.params
        for state in (saved.state, forgotten)
    ]
    assert not torch.equal(*after)
    store.save(key, Progress(forgotten, saved.rows), run.seed)
    outcome = play(run, store)
    assert outcome.status == "failed"  # it would go on to other numbers
    assert "without 'velocity'" in outcome.error
    store.save(key, saved, run.seed)
    assert play(run, store).status == "done"
    assert torch.equal(checkpoint(run, store).state.models.params, after[0])


GO_ON = """
import json, sys
from pathlib import Path
from fedrepro.runs.play import play
from fedrepro.runs.request import Run
from fedrepro.core.metrics import unpacked
from fedrepro.core.setting import Setting
from fedrepro.runs.store import Store
for values, seed in json.loads(sys.stdin.read()):
    print(play(Run(Setting.of(values), seed), Store(Path(sys.argv[1]))).status)
"""


def test_another_process_goes_on_to_the_same_bits(store: Store, tmp_path: Path) -> None:
    asked, other = [digits("fedbe", rounds=2), toy(method="centralized")], Store(tmp_path / "other")
    for run in asked:
        play(run, store)
        with pytest.raises(Stop):
            play(run, other, tick=stop_after(1))
    values = json.dumps([(run.setting.asdict(), run.seed) for run in asked])
    command = [sys.executable, "-c", GO_ON, str(other.root)]
    done = subprocess.run(command, input=values, text=True, capture_output=True, check=False, timeout=120)
    assert done.stdout.split() == ["done", "done"], done.stderr
    for run in asked:
        assert_same(checkpoint(run, other), checkpoint(run, store))
        assert checkpoint(run, other).rows[0]["round"] == 0.0


def test_a_finished_run_is_read_not_played(store: Store, assembled: list[Setting]) -> None:
    first = play(toy(), store)
    second = play(toy(), store)
    assert len(assembled) == 1
    assert (first.status, second.status) == ("done", "done")
    assert second.record == json.loads(json.dumps(first.record))


@pytest.mark.parametrize("played", [0, 1, ROUNDS])
def test_ticks_add_up_to_all_rounds(played: int, store: Store) -> None:
    if played == ROUNDS:
        play(toy(), store)
    elif played:
        with pytest.raises(Stop):
            play(toy(), store, tick=stop_after(played))
    ticks: list[int] = []
    play(toy(), store, tick=ticks.append)
    assert sum(ticks) == ROUNDS


def test_a_full_disk_in_the_middle_loses_one_round(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, written = fedrepro.runs.store.write_atomically, 0

    def fill_up(path: Path, content: bytes) -> None:
        nonlocal written
        written += path.name == "checkpoint.pt"
        if written == 2:
            raise StoreError(f"cannot write {path}: No space left on device")
        write(path, content)

    with monkeypatch.context() as disk:
        disk.setattr("fedrepro.runs.store.write_atomically", fill_up)
        with pytest.raises(StoreError, match="No space left"):
            play_all([toy(), toy(1)], store)
    assert checkpoint(toy(), store).state.round == 1
    assert not (store.root / key_of(toy(), store) / "failed.json").exists()  # the run is not to blame
    other = Store(tmp_path / "other")
    play(toy(), other)
    play(toy(), store)
    assert_same(checkpoint(toy(), store), checkpoint(toy(), other))


# -- order and processes --------------------------------------------------------------------------------------

MANY = [toy(seed, method=method) for method in ("fedavg", "centralized", "one_ensemble") for seed in (0, 1)]


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """The records of many runs, each played alone in a store of its own."""
    folder = tmp_path_factory.mktemp("alone")
    return [facts(play(run, Store(folder / str(place))).record) for place, run in enumerate(MANY)]


def test_the_order_of_runs_does_not_matter(store: Store, expected: list[dict[str, Any]]) -> None:
    outcomes = play_all(reversed(MANY), store)
    assert [facts(outcome.record) for outcome in reversed(outcomes)] == expected


TWO = """
import json, sys, time
from pathlib import Path
from fedrepro.runs import desk
from fedrepro.runs import play as runs
from fedrepro.core.metrics import unpacked
from fedrepro.core.setting import Setting
from fedrepro.runs.store import Store
root, me = Path(sys.argv[1]), sys.argv[2]
asked = [runs.Run(Setting.of(values), seed) for values, seed in json.loads(sys.stdin.read())]
assemble = runs.assemble
def watch(*arguments):
    played.append(1)
    return assemble(*arguments)
runs.assemble, played = watch, []
(root / f"ready {me}").touch()
while len(list(root.glob("ready *"))) < 2:
    time.sleep(0.01)
outcomes = runs.play_all(asked, Store(root / "store"))
print(json.dumps([len(played), [outcome.status for outcome in outcomes]]))
"""


def test_two_processes_share_a_store_and_no_run_is_played_twice(
    tmp_path: Path, expected: list[dict[str, Any]]
) -> None:
    processes = []
    for me, order in enumerate([MANY, MANY[::-1]]):
        command = [sys.executable, "-c", TWO, str(tmp_path), str(me)]
        process = subprocess.Popen(
            command, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        assert process.stdin is not None
        process.stdin.write(json.dumps([(run.setting.asdict(), run.seed) for run in order]))
        process.stdin.close()
        process.stdin = None
        processes.append(process)
    try:
        answers = [process.communicate(timeout=120) for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0, 0], answers
    (one, statuses), (other, more) = (json.loads(out) for out, _ in answers)
    assert statuses == more == ["done"] * len(MANY)
    assert one + other == len(MANY)
    found = [Store(tmp_path / "store").record(key_of(run, Store(tmp_path / "store"))) for run in MANY]
    assert [facts(record) for record in found] == expected


def test_a_run_of_another_process_is_left_alone(store: Store, assembled: list[Setting]) -> None:
    with store.claim(key_of(toy(), store)):
        outcome = play(toy(), store)
    assert (outcome.status, outcome.record) == ("busy", None)
    assert not assembled


def test_a_run_of_another_process_is_waited_for(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[int] = []
    with contextlib.ExitStack() as other_process:
        other_process.enter_context(store.claim(key_of(toy(0), store)))

        def sleep(_: float) -> None:
            assert told == [1]  # the other run was played meanwhile
            other_process.close()

        clock = SimpleNamespace(sleep=sleep, monotonic=time.monotonic, perf_counter=time.perf_counter)
        monkeypatch.setattr(runs, "time", clock)
        outcomes = play_all([toy(0), toy(1)], store, report=lambda run, outcome: told.append(run.seed))
    assert [outcome.status for outcome in outcomes] == ["done", "done"]
    assert [outcome.record["seed"] for outcome in outcomes if outcome.record] == [0, 1]
    assert told == [1, 0]


# -- time -----------------------------------------------------------------------------------------------------


class Clock:
    """A clock that only moves by ten seconds a round."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        measure = runs.evaluate

        def evaluate(*arguments: Any, **options: Any) -> Any:
            self.now += 10.0
            return measure(*arguments, **options)

        monkeypatch.setattr(runs, "evaluate", evaluate)
        read = SimpleNamespace(monotonic=lambda: self.now, perf_counter=lambda: self.now, sleep=time.sleep)
        monkeypatch.setattr(runs, "time", read)
        monkeypatch.setattr(desk, "time", read)


@pytest.mark.parametrize(("budget", "rounds"), [(5.0, 1), (19.9, 1), (20.0, 2), (29.9, 2)])
def test_no_round_is_begun_that_would_end_after_the_budget(
    budget: float, rounds: int, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    Clock(monkeypatch)
    (outcome,) = play_all([toy()], store, budget=budget)
    assert outcome.status == "paused"
    assert outcome.error == f"stopped after round {rounds} of {ROUNDS}"
    assert checkpoint(toy(), store).state.round == rounds
    (outcome,) = play_all([toy()], store, budget=1000.0)
    assert outcome.status == "done"
    assert outcome.record is not None
    assert outcome.record["seconds"] == 10.0 * ROUNDS


def test_a_spent_budget_still_reads_what_is_done(store: Store) -> None:
    play(toy(1), store)
    outcomes = play_all([toy(0), toy(1), toy(2)], store, budget=1e-9)
    assert [outcome.status for outcome in outcomes] == ["paused", "done", "paused"]
    assert not list(store.root.glob("*/failed.json"))


def test_a_spent_budget_assembles_no_further_run(
    store: Store, assembled: list[Setting], monkeypatch: pytest.MonkeyPatch
) -> None:
    Clock(monkeypatch)
    outcomes = play_all([toy(seed) for seed in range(4)], store, budget=10.0)
    assert [outcome.status for outcome in outcomes] == ["paused"] * 4
    assert len(assembled) == 1


def test_a_busy_run_does_not_outlast_the_budget(store: Store) -> None:
    with store.claim(key_of(toy(), store)):
        begun = time.monotonic()
        (outcome,) = play_all([toy()], store, budget=0.2)
    assert (outcome.status, outcome.error) == ("paused", "the budget was spent while another process had it")
    assert time.monotonic() - begun < 30


def fails_once(function: Callable[..., Any], error: Exception) -> Callable[..., Any]:
    """Return the function, but the second call raises the error."""
    asked = 0

    def call(*arguments: Any, **options: Any) -> Any:
        nonlocal asked
        asked += 1
        if asked == 2:
            raise error
        return function(*arguments, **options)

    return call


# -- failures -------------------------------------------------------------------------------------------------


def test_a_failure_is_marked_and_the_others_go_on(store: Store) -> None:
    bad = toy(client_lr=1e30)
    told: list[str] = []
    outcomes = play_all([bad, toy()], store, report=lambda run, outcome: told.append(outcome.status))
    assert [outcome.status for outcome in outcomes] == told == ["failed", "done"]
    error = "DivergedError: the loss of client 0 in round 0 is not finite (learning rate 1e+30)"
    assert outcomes[0].error == error
    mark = json.loads((store.root / outcomes[0].key / "failed.json").read_text())
    assert mark == {"label": "toy fedavg", "seed": 0, "error": error}
    assert store.record(outcomes[0].key) is None


def test_a_later_success_removes_the_mark_and_keeps_the_rounds(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as machine:
        error = torch.OutOfMemoryError("out of memory")
        machine.setattr(runs, "evaluate", fails_once(runs.evaluate, error))
        first = play(toy(), store)
    assert (first.status, first.error) == ("failed", "OutOfMemoryError: out of memory (round 1)")
    assert checkpoint(toy(), store).state.round == 1
    assert (store.root / first.key / "failed.json").exists()
    second, straight = play(toy(), store), play(toy(), Store(tmp_path / "other"))
    assert second.status == "done"
    assert not (store.root / first.key / "failed.json").exists()
    assert facts(second.record) == facts(straight.record)


def test_an_error_of_the_device_is_told_with_stage_and_round(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = RuntimeError("CUDA error: an illegal memory access was encountered")
    monkeypatch.setattr(Federation, "train", fails_once(Federation.train, error))
    outcome = play(toy(), store)
    assert outcome.status == "failed"
    assert outcome.error.endswith("an illegal memory access was encountered (stage train, round 1)")
    assert json.loads((store.root / outcome.key / "failed.json").read_text())["error"] == outcome.error
    assert checkpoint(toy(), store).state.round == 1
    assert play(toy(), store).status == "done"


def test_a_lost_device_pauses_the_runs_to_come(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    finished, bad, other = toy(1), toy(client_lr=1e30), toy(2)
    play(finished, store)
    monkeypatch.setattr(runs, "lost", lambda device: True)
    outcomes = play_all([bad, finished, other], store)
    assert [outcome.status for outcome in outcomes] == ["failed", "done", "paused"]
    assert outcomes[2].error == runs.LOST
    assert [path.parent.name for path in store.root.glob("*/failed.json")] == [outcomes[0].key]
    monkeypatch.undo()
    assert play_all([other], store)[0].status == "done"


def test_the_cpu_is_never_lost() -> None:
    assert not runs.lost("cpu")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        pytest.param({"client_lr": 1e30}, "client 0 in round 0", id="loss of a later step"),
        pytest.param(
            {"client_lr": 3e38, "client_weight_decay": 1e6, "client_batch": 300},
            "client 0 in round 0",
            id="weights after the only step",
        ),
        pytest.param({"client_lr": 1e38, "client_batch": 300}, "finite", id="predictions of finite weights"),
    ],
)
def test_a_client_that_diverges_fails_the_run(changes: dict[str, Any], words: str, store: Store) -> None:
    # Without a failure the share of one class would stand in the table as an accuracy.
    outcome = play(toy(rounds=1, **changes), store)
    assert outcome.status == "failed"
    assert words in outcome.error


def test_distillation_that_diverges_is_named(store: Store) -> None:
    outcome = play(digits("v_distillation", distill_lr=1e30, rounds=1), store)
    assert outcome.status == "failed"
    assert "distillation" in outcome.error
    assert "round 0" in outcome.error


@pytest.mark.parametrize("error", [KeyError("accuracy"), MemoryError("no room"), AttributeError("a bug")])
def test_any_error_fails_its_own_run_and_is_named(
    error: Exception, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "evaluate", fails_once(runs.evaluate, error))
    outcomes = play_all([toy(0), toy(1)], store)
    assert [outcome.status for outcome in outcomes] == ["failed", "done"]
    assert outcomes[0].error == f"{type(error).__name__}: {error} (round 1)"
    assert json.loads((store.root / outcomes[0].key / "failed.json").read_text())["error"] == outcomes[0].error


def test_a_data_set_that_is_not_there_fails_its_own_run(store: Store) -> None:
    outcomes = play_all([digits("fedavg", data="cifar10"), toy()], store)
    assert [outcome.status for outcome in outcomes] == ["failed", "done"]
    assert "cifar10" in outcomes[0].error
    assert "fedrepro data prepare cifar10" in outcomes[0].error


def test_a_record_without_its_rows_is_named(store: Store) -> None:
    first = play(toy(), store)
    path = store.root / first.key / "record.json"
    path.write_text('{"result": 5}')
    outcomes = play_all([toy(), toy(1)], store)
    assert [outcome.status for outcome in outcomes] == ["failed", "done"]
    assert f"{path} is damaged (without setting, setting_key, seed, rows" in outcomes[0].error


# -- an early end -----------------------------------------------------------------------------------------------


def test_a_run_may_end_with_the_round_that_reaches_its_target(store: Store, tmp_path: Path) -> None:
    whole = play(toy(rounds=5), Store(tmp_path / "whole")).record
    assert whole is not None
    seen = [row["accuracy"] for row in whole["rows"]]
    target = max(seen)
    first = seen.index(target) + 1
    asked = Run(toy(rounds=5).setting, 0, until=("answer", target))
    ticks: list[int] = []
    early = play(asked, store, tick=ticks.append)
    assert early.record is not None
    assert [row["accuracy"] for row in early.record["rows"]] == seen[:first]
    assert sum(ticks) == 5  # the bar is full
    again = play(asked, store)
    assert again.record == json.loads(json.dumps(early.record))
    # Somebody who needs all rounds goes on from there, to the same numbers.
    full = play(toy(rounds=5), store)
    assert full.record is not None
    assert facts(full.record) == facts(whole)
    # And after that the early end is served by the whole.
    assert play(asked, store).record == json.loads(json.dumps(full.record))


def test_a_target_that_is_never_reached_takes_all_rounds(store: Store) -> None:
    outcome = play(Run(toy().setting, 0, until=("accuracy", 101.0)), store)
    assert outcome.record is not None
    assert len(outcome.record["rows"]) == ROUNDS


def test_requests_for_one_run_are_merged_so_that_all_are_served() -> None:
    run = toy()
    one, other = Run(run.setting, 0, until=("answer", 50.0)), Run(run.setting, 0, until=("answer", 70.0))
    measure, seed = Run(run.setting, 0, until=("train_loss", 1.0)), Run(run.setting, 1, until=("answer", 5.0))
    for requests, until in (([one, other], ("answer", 70.0)), ([one, run], None), ([one, measure], None)):
        found = merged([*requests, seed])
        assert list(found) == [(run.setting, 0), (run.setting, 1)]
        assert found[run.setting, 0].until == until
        assert found[run.setting, 1].until == ("answer", 5.0)


# -- what is recorded -----------------------------------------------------------------------------------------


def test_the_record_tells_the_run(store: Store) -> None:
    run = toy(2, method="one_ensemble", rounds=2)
    outcome = play(run, store)
    record = outcome.record
    assert record is not None
    assert Setting.of(record["setting"]) == run.setting
    assert (record["seed"], record["setting_key"]) == (2, run.setting.key)
    first, last = record["rows"]
    assert [row["round"] for row in record["rows"]] == [0, 1]
    assert first["ensemble_accuracy"] is None  # the ensemble is only asked at the end
    assert record["result"] == last["ensemble_accuracy"]
    assert record["best_accuracy"] == max(first["accuracy"], last["accuracy"])
    assert record["seconds"] == first["seconds"] + last["seconds"]
    where = record["provenance"]
    assert set(where) == {
        *("device", "threads", "torch", "python", "fedrepro", "commit", "date", "engine", "engine_why")
    }
    assert where["engine"] == "plain"
    assert where["device"].startswith("cpu: ")
    assert where["torch"] == torch.__version__
    described = json.loads((store.root / outcome.key / "setting.json").read_text())
    assert described == run.setting.asdict() | {"seed": 2}
    strict = json.loads((store.root / outcome.key / "record.json").read_text(), parse_constant=pytest.fail)
    assert strict.pop("key") == outcome.key
    assert re.fullmatch(r"[0-9a-f]{32}", strict.pop("digest"))
    assert strict == record


def test_a_record_names_every_place_that_played_rounds(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, asked = toy(rounds=4), runs.provenance
    for rounds, commit in enumerate(("aaa", "bbb", "bbb", "ccc"), start=1):
        monkeypatch.setattr(runs, "provenance", lambda device, commit=commit: asked(device) | {"commit": commit})
        with contextlib.suppress(Stop):
            play(run, store, tick=stop_after(rounds))
    outcome = play(run, store)
    assert outcome.record is not None
    where = outcome.record["provenance"]
    assert where["commit"] == "ccc"
    assert [place["commit"] for place in where["earlier"]] == ["aaa", "bbb"]
    (cell, *_) = papers.load("fedbe").cells("table1_methods", "smoke")
    line = run_row(cell, "smoke", outcome.key, outcome.record)
    assert line["commit"] == "aaa + bbb + ccc"
    assert (line["device"], line["engine"]) == (where["device"], "plain")


def test_rounds_of_a_checkpoint_that_names_no_place_are_of_an_unknown_one(store: Store) -> None:
    run = toy(rounds=2)
    with contextlib.suppress(Stop):
        play(run, store, tick=stop_after(1))
    saved = checkpoint(run, store)
    store.save(key_of(run, store), Progress(saved.state, saved.rows), run.seed)
    record = play(run, store).record
    assert record is not None
    assert record["provenance"]["earlier"] == [runs.UNKNOWN]


def test_a_record_of_unknown_places_alone_can_be_written(store: Store) -> None:
    run = toy(rounds=1)
    outcome = play(run, store)
    saved = checkpoint(run, store)
    store.save(outcome.key, Progress(saved.state, saved.rows), run.seed)
    (store.root / outcome.key / "record.json").unlink()  # killed after the last round
    record = play(run, store).record
    assert record is not None
    (cell, *_) = papers.load("fedbe").cells("table1_methods", "smoke")
    line = run_row(cell, "smoke", outcome.key, record)
    assert (line["commit"], line["threads"]) == ("unknown", 0)


def test_a_library_copied_without_its_history_can_name_its_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fedrepro, "__file__", str(tmp_path / "fedrepro" / "__init__.py"))
    assert runs.provenance("cpu")["commit"] == "unknown"
    monkeypatch.setenv("FEDREPRO_COMMIT", "0123456789")
    assert runs.provenance("cpu")["commit"] == "0123456789"


def test_a_student_stands_for_itself(store: Store) -> None:
    record = play(toy(), store).record
    assert record is not None
    assert record["result"] == record["rows"][-1]["accuracy"]
    assert record["rows"][-1]["distill_loss"] is None


def test_methods_share_split_and_start(store: Store) -> None:
    splits, starts = set(), set()
    for method in ("fedavg", "fedbe", "v_distillation", "one_ensemble"):
        run = digits(method)
        federation = assemble(run.setting, 5)
        splits.add(repr([part.tolist() for part in federation.parts] + federation.public.labels.tolist()))
        starts.add(repr(federation.start(5).params.tolist()))
    assert len(splits) == len(starts) == 1


def test_the_data_are_part_of_the_key(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    first = play(toy(), store)
    monkeypatch.setattr(runs, "fingerprint", lambda setting: "other data")
    second = play(toy(), store)
    assert first.key != second.key
    assert fingerprint(toy().setting) == "generated"
    assert fingerprint(digits("fedavg").setting).split("-")[0] == "72c4a22d4dee7fd6"


# -- devices --------------------------------------------------------------------------------------------------


def test_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert choose_device("auto") == choose_device("cpu") == "cpu"
    with pytest.raises(ValueError, match="device cuda was asked for, but this torch sees no CUDA device"):
        choose_device("cuda")
    with pytest.raises(ValueError, match="device must be auto, cpu or cuda, got 'tpu'"):
        choose_device("tpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert choose_device("auto") == choose_device("cuda") == "cuda"
    assert choose_device("cpu") == "cpu"


def test_a_run_is_not_begun_that_like_ones_say_would_take_too_long(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    Clock(monkeypatch)  # ten seconds a round
    first, second = play_all([toy(0), toy(1)], store, budget=10.0 * ROUNDS + 5.0)
    assert (first.status, second.status) == ("done", "paused")
    assert "after round 0" in second.error


def test_a_new_try_takes_the_mark_of_failure_away(store: Store) -> None:
    run = toy()
    store.fail(key_of(run, store), {"error": "an earlier one"})
    (outcome,) = play_all([run], store, budget=3600.0)
    assert outcome.status == "done"
    assert not (store.root / outcome.key / "failed.json").exists()


def test_hits_are_those_of_the_recorded_accuracy(tmp_path: Path) -> None:
    for method in ("fedavg", "one_ensemble"):
        outcome = play(digits(method, rounds=1), Store(tmp_path))
        assert outcome.record is not None
        hits = unpacked(outcome.record["hits"], outcome.record["images"])
        assert 100 * hits.mean() == pytest.approx(outcome.record["result"])
