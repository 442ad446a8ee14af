"""Time: rounds are estimated before the first one, and of endless requests no more is asked for than is played."""

import itertools
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from test_runs import Clock, assert_same, checkpoint, digits, toy

from fedrepro.federation.assemble import assemble
from fedrepro.federation.desk import PausedError
from fedrepro.methods import catalogue as methods
from fedrepro.runs import play as runs
from fedrepro.runs.desk import KeepingDesk
from fedrepro.runs.expected import Expected, forward_seconds, work
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
    assert later.status == "paused"
    assert later.error == "stopped after round 0 of 3: one is thought to take 10 s"
    assert Expected(store).seconds(toy(2)) == 10.0
    assert Expected(store).seconds(toy(2, local_epochs=3)) > 12.0  # more of the same
    assert Expected(store).seconds(toy(2, method="centralized")) == 0.0  # another kind: nothing is known


def test_a_first_round_of_a_new_kind_is_estimated_from_a_few_images(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = digits("fedavg", rounds=1)
    monkeypatch.setattr(runs, "forward_seconds", lambda *_: 1000.0)  # an image takes as long
    (outcome,) = play_all([run], store, budget=20.0)
    assert outcome.status == "paused"
    assert outcome.error.startswith("stopped inside round 1, after step 0 of ")
    monkeypatch.undo()
    assert play_all([run], store, budget=600.0)[0].status == "done"


def test_how_fast_a_network_is_is_measured_and_harms_nothing(store: Store) -> None:
    run = digits("fedavg")
    federation = assemble(run.setting, 0)
    state = methods.build(run.setting).init(federation, 0)
    assert 0.0 < forward_seconds(federation, state) < 1.0
    play(run, store, deadline=time.monotonic() + 600.0)
    other = Store(store.root.parent / "other")
    play(run, other)
    assert_same(checkpoint(run, store), checkpoint(run, other))


def test_predictions_that_would_end_too_late_are_left_to_the_next_process(store: Store) -> None:
    drawer, here = store.drawer("run", 0, {}), KeepingDesk(deadline=time.monotonic() + 5.0, forward=1.0)
    here.begin(drawer)
    here.before_predicting(10)  # nothing has been written: stopping would lose what was trained
    here._worked = True
    here.before_predicting(4)
    with pytest.raises(PausedError, match="stopped inside round 1, before 10 images are predicted in it"):
        here.before_predicting(10)
    assert here._rate == 1 / 3  # images per second of training: three passes
    KeepingDesk().before_predicting(10**9)  # no deadline, no limit


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
