"""Long rounds: cut into parts, kept, paused and killed inside, and the same bits in the end."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from test_runs import assert_same, checkpoint, digits, facts, key_of, toy

from fedrepro.runs import desk
from fedrepro.runs import play as runs
from fedrepro.runs.play import play, play_all
from fedrepro.runs.request import Run
from fedrepro.runs.store import Drawer, Store

LONG = ["fedbe", "scaffold", "fedprox", "centralized", "one_ensemble"]


def long(method: str) -> Run:
    """Return a run whose rounds have several steps of training and, where it distils, of distillation."""
    changes = {"rounds": 2, "local_epochs": 1 if method == "centralized" else 4, "client_batch": 4}
    return digits(method, **changes, distill_epochs=4, proximal_mu=0.1)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Let every part be one step, write after each, and list the steps that were really trained."""
    trained: list[tuple[int, int]] = []
    carry_out = desk.KeepingDesk.carry_out

    def watched(self: Any, part: Any, *rest: Any) -> Any:
        def count(start: Any, first: int, last: int, carried: Any) -> Any:
            trained.append((first, last))
            return part(start, first, last, carried)

        return carry_out(self, count, *rest)

    monkeypatch.setattr(desk.KeepingDesk, "carry_out", watched)
    monkeypatch.setattr(desk.KeepingDesk, "_until", lambda self, images, first: first + 1)
    monkeypatch.setattr(desk, "KEEP_SECONDS", -1.0)
    monkeypatch.setattr(desk, "SOON", -1.0)
    return trained


@pytest.mark.parametrize("method", LONG)
def test_in_parts_a_run_ends_in_the_same_bits(
    method: str, store: Store, tmp_path: Path, parts: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    cut = play(long(method), store)
    assert len(parts) > 4
    assert all(last == first + 1 for first, last in parts)
    monkeypatch.undo()
    other = Store(tmp_path / "other")
    whole = play(long(method), other)
    assert whole.status == "done"
    assert_same(checkpoint(long(method), store), checkpoint(long(method), other))
    assert facts(cut.record) == facts(whole.record)


class Killed(BaseException):
    """Ends a call as a kill would."""


@pytest.mark.parametrize("method", LONG)
def test_killed_after_any_part_it_goes_on_to_the_same_bits(
    method: str, store: Store, tmp_path: Path, parts: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    keep, kept = Drawer.put, 0

    def killed(self: Drawer, number: int, begun: Any, seconds: float) -> None:
        nonlocal kept
        keep(self, number, begun, seconds)
        kept += 1
        raise Killed

    with monkeypatch.context() as machine:
        machine.setattr(Drawer, "put", killed)
        for _ in range(200):
            try:
                outcome = play(long(method), Store(store.root))
                break
            except Killed:
                continue
    assert outcome.status == "done"
    assert kept == len(parts)  # no part was trained twice
    monkeypatch.undo()
    other = Store(tmp_path / "other")
    play(long(method), other)
    assert_same(checkpoint(long(method), store), checkpoint(long(method), other))
    assert not list(store.root.glob("*/inside"))


def test_a_budget_stops_inside_a_round_and_the_next_one_goes_on(
    store: Store, parts: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = SimpleNamespace(now=0.0)
    read = SimpleNamespace(monotonic=lambda: clock.now, perf_counter=lambda: clock.now, sleep=lambda _: None)
    monkeypatch.setattr(desk, "time", read)
    monkeypatch.setattr(runs, "time", read)
    run = long("fedavg")
    # Every part takes a second, as the clock has it.
    carry_out = desk.KeepingDesk.carry_out

    def slow(self: Any, part: Any, *rest: Any) -> Any:
        def tick(start: Any, first: int, last: int, carried: Any) -> Any:
            clock.now += 1.0
            return part(start, first, last, carried)

        return carry_out(self, tick, *rest)

    monkeypatch.setattr(desk.KeepingDesk, "carry_out", slow)
    (first,) = play_all([run], store, budget=2.5)
    assert first.status == "paused"
    assert first.error == "stopped inside round 1, after step 2 of 8 of training 1 in it"
    assert clock.now == 2.0
    assert (store.root / key_of(run, store) / "inside" / "0.pt").exists()
    (second,) = play_all([run], store, budget=1000.0)
    assert second.status == "done"
    assert second.record is not None
    assert second.record["rows"][0]["seconds"] == 8.0  # the first process's two seconds are in it
    assert [first for first, _ in parts] == [*range(8), *range(8)]


def test_it_tells_how_far_a_round_is(store: Store, parts: list[tuple[int, int]]) -> None:
    said: list[str] = []
    play(long("fedavg"), store, show=said.append)
    assert len(said) == len(parts)
    assert said[0].startswith("8 of 64 images, ")  # two clients, four images a step, eight steps
    assert said[-1].endswith("00:00 left of this training")


def test_a_part_takes_about_as_long_as_it_should() -> None:
    here = desk.KeepingDesk()
    assert here._until([100] * 10, 0) == 2  # 256 images before anything was timed
    here._rate = 100.0  # images per second: 800 in eight seconds
    assert here._until([300] * 10, 5) == 7
    assert here._until([900] * 10, 5) == 6  # at least one step
    assert here._until([300] * 10, 7) == 10  # three steps make no two parts
    assert desk.KeepingDesk("fused")._until([400] * 2000, 0) == 2000


def test_steps_that_nobody_takes_are_passed_over() -> None:
    here = desk.KeepingDesk()
    here._time(0, 1.0)
    here._tell(0, 10)  # no rate is known yet: nothing is told
    assert here._until([0, 0, 300], 0) == 3


def test_of_several_trainings_in_a_round_only_one_is_held(
    store: Store, parts: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedrepro.methods.compose.GROUP_BYTES", 1)
    run = digits("fedavg", clients=4, client_images=32, rounds=1)
    seen: list[set[str]] = []
    put = Drawer.put

    def look(self: Drawer, *rest: Any) -> None:
        put(self, *rest)
        seen.append({path.name for path in (store.root / key_of(run, store) / "inside").iterdir()})

    monkeypatch.setattr(Drawer, "put", look)
    assert play(run, store).status == "done"
    assert seen[-1] >= {"0.pt", "1.pt", "2.pt", "3.pt", "round.json"}


def test_another_training_in_the_place_of_one_that_is_kept_is_begun_anew(
    store: Store, tmp_path: Path, parts: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    run, kept = digits("fedavg", clients=4, client_images=32, rounds=1), 0
    put = Drawer.put

    def killed(self: Drawer, *rest: Any) -> None:
        nonlocal kept
        put(self, *rest)
        kept += 1
        if kept == 2:
            raise Killed

    with monkeypatch.context() as machine:
        machine.setattr("fedrepro.methods.compose.GROUP_BYTES", 1)  # clients one by one
        machine.setattr(Drawer, "put", killed)
        with pytest.raises(Killed):
            play(run, store)
    assert play(run, store).status == "done"  # all clients at once
    play(run, Store(tmp_path / "other"))
    assert_same(checkpoint(run, store), checkpoint(run, Store(tmp_path / "other")))


def test_a_round_longer_than_the_budget_is_begun_all_the_same(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcome = play(toy(), store, deadline=runs.time.monotonic() + 30.0, expected=runs.LONG + 1)
    assert outcome.status == "done"


def test_an_interrupt_keeps_what_is_done(
    store: Store, monkeypatch: pytest.MonkeyPatch, parts: list[tuple[int, int]]
) -> None:
    monkeypatch.setattr(desk, "KEEP_SECONDS", 1e9)
    tell: Callable[..., Any] = desk.KeepingDesk._tell

    def interrupt(self: Any, done: int, all: int) -> None:
        tell(self, done, all)
        if done > 16:
            raise KeyboardInterrupt

    with monkeypatch.context() as machine:
        machine.setattr(desk.KeepingDesk, "_tell", interrupt)
        with pytest.raises(KeyboardInterrupt):
            play(long("fedavg"), store)
    assert len(parts) == 3
    assert play(replace(long("fedavg")), store).status == "done"
    assert [first for first, _ in parts] == [*range(8), *range(8)]
