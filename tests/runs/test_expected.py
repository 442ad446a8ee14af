"""Time: rounds are estimated before the first one, and of endless requests no more is asked for than is played."""

import itertools
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from test_runs import Clock, digits, toy

from fedrepro.runs.expected import Expected, work
from fedrepro.runs.play import play, play_all
from fedrepro.runs.request import Run, in_turn, merged
from fedrepro.runs.store import Store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def test_endless_requests_are_asked_for_one_by_one(store: Store) -> None:
    run, asked = toy(rounds=1), 0

    def endless() -> Iterator[Run]:
        nonlocal asked
        for seed in itertools.count():
            asked += 1
            yield Run(run.setting, seed)

    begun = time.monotonic()
    outcomes = play_all(in_turn(endless()), store, budget=1.0)
    assert time.monotonic() - begun < 30
    assert outcomes
    assert len(outcomes) <= asked <= len(outcomes) + 2
    assert outcomes[0].status in ("done", "paused")


def test_requests_are_merged_seed_by_seed_as_all_at_once() -> None:
    cells = [toy().setting, toy(method="centralized").setting]
    requests = [
        Run(setting, seed, until=("answer", target))
        for seed in range(3)
        for target in (50.0, 70.0)
        for setting in cells
    ]
    assert list(in_turn(requests)) == list(merged(requests).values())
    assert next(in_turn(Run(cells[0], seed // 4) for seed in itertools.count())).seed == 0


def test_a_first_round_is_not_begun_that_records_of_like_runs_say_is_too_long(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    Clock(monkeypatch)  # ten seconds a round
    assert play_all([toy(0)], store)[0].status == "done"
    (later,) = play_all([toy(1)], store, budget=9.0)  # as another process would
    assert (later.status, later.error) == ("paused", "stopped after round 0 of 3")
    assert Expected(store).seconds(toy(2)) == 10.0
    assert Expected(store).seconds(toy(2, local_epochs=3)) > 12.0  # more of the same
    assert Expected(store).seconds(toy(2, method="centralized")) == 0.0  # another kind: nothing is known


def test_damaged_records_do_not_harm_the_estimate(store: Store) -> None:
    for number, content in enumerate(["", "[]", '{"setting": 5, "rows": 3}', '{"setting": {}, "rows": [{}]}']):
        (store.root / f"{number}").mkdir()
        (store.root / f"{number}" / "record.json").write_text(content)
    assert Expected(store).seconds(toy()) == 0.0
    assert play(toy(), store).status == "done"


def test_work_grows_with_what_passes_the_network() -> None:
    base = digits("fedavg").setting
    less = work(base.asdict())
    assert work(base.with_(local_epochs=base.local_epochs + 1).asdict()) > less
    assert work(digits("fedbe").setting.asdict()) > less
