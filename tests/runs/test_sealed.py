"""What was kept of a run is its own and unharmed, or refused by name: digests, keys, seeds, rounds, memory."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from test_runs import Stop, digits, key_of, stop_after, toy
from test_store import CPU, MODEL, begun, finished, progress

from fedrepro.core.files import StoreError
from fedrepro.core.state import State
from fedrepro.runs.packed import digest_of
from fedrepro.runs.play import play, play_all
from fedrepro.runs.request import Run
from fedrepro.runs.store import NUMERICS, DamagedError, Progress, Store


def stopped(run: Run, store: Store, rounds: int = 1) -> Path:
    """Play some rounds of a run; return its checkpoint."""
    with pytest.raises(Stop):
        play(run, store, tick=stop_after(rounds))
    return store.root / key_of(run, store) / "checkpoint.pt"


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def test_a_digest_sees_every_kind_of_change() -> None:
    base: dict[str, Any] = {"a": torch.arange(4.0), "b": [1, 2.0, None], "c": {"d": "x"}, "e": torch.tensor(3)}
    changes: list[dict[str, Any]] = [
        {"a": torch.arange(4.0) + torch.tensor([0, 0, 0, 1e-6])},
        {"a": torch.arange(4.0).double()},
        {"a": torch.arange(4.0)[None]},
        {"a": torch.tensor([-0.0, 1, 2, 3])},
        *({"b": value} for value in ([1, 2.0], [1, 2, None], [[1], 2.0, None], [1.0, 2.0, None])),
        {"c": {"d": "y"}},
        {"e": torch.tensor(2)},
        {"f": 1},
    ]
    assert len({digest_of(base | change) for change in [{}, *changes]}) == len(changes) + 1
    assert digest_of(dict(reversed(base.items()))) == digest_of(base)
    assert digest_of({"a": torch.zeros(0, dtype=torch.bfloat16)}) != digest_of({"a": torch.zeros(0)})


@pytest.mark.parametrize("name", ["checkpoint.pt", "inside/0.pt"])
def test_no_flipped_bit_in_a_tensor_goes_unnoticed(name: str, tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.save("run", progress(2))
    store.drawer("run", 3, {}).put(0, begun(), 1.0)
    path = tmp_path / "run" / name

    def read() -> Any:
        if name == "checkpoint.pt":
            return store.restore("run", [MODEL.layout], CPU)
        return store.drawer("run", 3, {}).take(0, "one", CPU)

    content = path.read_bytes()
    place = content.index(MODEL.params.numpy().tobytes()[4000:4100]) if name != "checkpoint.pt" else 20_000
    for bit in np.random.default_rng(0).integers(8 * 20_000, size=30).tolist():
        harmed = bytearray(content)
        harmed[place + bit // 8] ^= 1 << bit % 8
        path.write_bytes(harmed)
        with pytest.raises(DamagedError, match=r"is damaged \(its content is not what was written\)"):
            read()
    path.write_bytes(content)
    assert read() is not None


def test_a_flipped_bit_anywhere_is_noticed_or_changes_nothing(tmp_path: Path) -> None:
    store = Store(tmp_path)
    small = torch.arange(6.0)[None]
    layout = MODEL.layout
    state = State(1, MODEL.take([0]), {"velocity": small})
    store.save("run", Progress(state, [{"round": 0.0, "accuracy": 50.0, "seconds": 1.0}]), seed=3)
    path = tmp_path / "run" / "checkpoint.pt"
    content = path.read_bytes()
    expected = store.restore("run", [layout], CPU)
    assert expected is not None
    for bit in np.random.default_rng(1).integers(8 * 3000, size=60).tolist():  # where names and values stand
        harmed = bytearray(content)
        harmed[bit // 8] ^= 1 << bit % 8
        path.write_bytes(harmed)
        try:
            found = store.restore("run", [layout], CPU, seed=3)
        except DamagedError:
            continue
        assert found is not None
        assert torch.equal(found.state.models.params, expected.state.models.params)
        assert repr(found.rows) == repr(expected.rows)
        assert torch.equal(found.state.memory["velocity"], small)  # type: ignore[arg-type]


def changed(path: Path, sealed: bool = True, **changes: Any) -> None:
    """Change values of a file of tensors, and seal it anew or not; those that become None are left out."""
    content = torch.load(path, weights_only=True) | changes
    content = {name: value for name, value in content.items() if value is not None and name != "digest"}
    torch.save(content | ({"digest": digest_of(content)} if sealed else {}), path)


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "another numerics": ({"numerics": NUMERICS + 1}, f"it is of numerics {NUMERICS + 1}, not {NUMERICS}"),
    "another key": ({"key": "000000000000"}, "it is of key 000000000000, not "),
    "another seed": ({"seed": 5}, "it is of seed 5, not 0"),
    "no numerics": ({"numerics": None}, "it does not say of which numerics it is"),
    "no key": ({"key": None}, "it does not say of which key it is"),
    "no seed": ({"seed": None}, "it does not say of which seed it is"),
    "fewer rounds": ({"round": 0}, "0 rounds and rows of 1, of a run of 3"),
    "more rounds": ({"round": 3}, "3 rounds and rows of 1, of a run of 3"),
    "no rows": ({"rows": []}, "1 rounds and rows of 0"),
    "rows of other rounds": ({"rows": [{"round": 1.0}]}, "row 0 is that of round 1.0"),
    "rows that are none": ({"rows": [5]}, "its rows are none"),
    "no memory of momentum": ({"memory": {}}, "without 'velocity', which its method remembers"),
    "something unknown": ({"digets": "0"}, "unknown 'digets'"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_checkpoint_that_is_not_the_runs_own_is_refused_by_name(wrong: str, store: Store) -> None:
    run = toy(method="centralized")
    path = stopped(run, store)
    changes, words = WRONG[wrong]
    changed(path, **changes)
    before = path.read_bytes()
    outcome = play(run, store)
    assert outcome.status == "failed"
    assert outcome.error.startswith(f"{path} is damaged (")
    assert words in outcome.error
    assert outcome.error.endswith("; remove it to start that run again")
    assert path.read_bytes() == before


def test_a_checkpoint_of_another_seed_in_its_place(store: Store) -> None:
    path, other = stopped(toy(0), store), stopped(toy(1), store)
    path.write_bytes(other.read_bytes())
    outcome = play(toy(0), store)
    assert outcome.status == "failed"
    assert "it is of seed 1, not 0" in outcome.error


@pytest.mark.parametrize(
    "changes", [{}, {"rows": [{"round": 0.0, "accuracy": 99.0}]}, {"seed": None, "key": None}]
)
def test_a_checkpoint_without_a_digest_is_refused(changes: dict[str, Any], store: Store) -> None:
    run = toy(method="centralized")
    changed(stopped(run, store), sealed=False, **changes)
    outcome = play(run, store)
    assert outcome.status == "failed"
    assert "checkpoint.pt is damaged (its content is not what was written); remove it" in outcome.error


def resealed(content: dict[str, Any]) -> dict[str, Any]:
    """Return changed content with a digest of its own."""
    own = {name: value for name, value in content.items() if name != "digest"}
    return own | {"digest": digest_of(own)}


ROUND_JSON: dict[str, Callable[[dict[str, Any]], Any]] = {
    "seconds": lambda held: held | {"seconds": held["seconds"] + 1.0},
    "places": lambda held: held | {"places": []},
    "key": lambda held: held | {"key": "another"},
    "text": lambda held: {name: held[name] for name in held if name != "digest"} | {"seconds": "5"},
    "endless": lambda held: {name: held[name] for name in held if name != "digest"} | {"seconds": float("inf")},
    "list": lambda held: {name: held[name] for name in held if name != "digest"} | {"places": [5]},
    "no digest": lambda held: {name: held[name] for name in held if name != "digest"},
    "no key": lambda held: resealed({name: held[name] for name in held if name != "key"}),
    "none": lambda held: [held],
}


@pytest.mark.parametrize("change", ROUND_JSON)
def test_a_damaged_account_of_a_round_is_named(change: str, tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.drawer("run", 3, {"device": "here"}).put(0, begun(), 1.0)
    path = tmp_path / "run" / "inside" / "round.json"
    path.write_text(json.dumps(ROUND_JSON[change](json.loads(path.read_text()))))
    with pytest.raises(
        DamagedError, match=r"round\.json is damaged .*; remove its folder to play that round again"
    ):
        store.drawer("run", 3, {})


RECORDS: dict[str, tuple[dict[str, Any], str]] = {
    "rows": ({"rows": [1]}, "rows: not what a record holds"),
    "no rows": ({"rows": []}, "rows: not"),
    "a row of texts": ({"rows": [{"round": 0, "accuracy": "x", "seconds": 1.0}]}, "rows: not"),
    "a measure": ({"rows": [{"round": 0, "accuracy": 51.0, "seconds": 4.0, "measured": [1]}]}, "rows: not"),
    "setting": ({"setting": 5}, "setting: not"),
    "provenance": ({"provenance": {"device": "cpu"}}, "provenance: not"),
    "earlier places": ({"provenance": finished()["provenance"] | {"earlier": "x"}}, "provenance: not"),
    "several": ({"seed": "0", "split": 5}, "seed, split: not"),
    "seconds": ({"seconds": 5.0}, "its seconds are not the sum of its rounds'"),
    "best": ({"best_accuracy": 99.0}, "its best accuracy is not that of its rounds"),
    "hits": ({"hits": "g0A=", "images": 10}, "its result 51.0 is not that of its hits, 40.0"),
    "hits that are none": ({"hits": "g0A=", "images": 100}, "its hits: hits of 100 images need"),
    "rounds": ({"rows": [row | {"round": 5} for row in finished()["rows"]]}, "row 0 is that of round 5"),
}


@pytest.mark.parametrize("wrong", RECORDS)
def test_a_record_with_wrong_values_is_named(wrong: str, tmp_path: Path) -> None:
    changes, words = RECORDS[wrong]
    store = Store(tmp_path)
    store.finish("run", finished(**changes))
    with pytest.raises(
        DamagedError, match=r"record\.json is damaged .*; remove it to finish that run again"
    ) as caught:
        store.record("run")
    assert words in str(caught.value)


def test_another_runs_record_in_its_place_is_named(store: Store) -> None:
    one, other = play(toy(0), store), play(toy(1), store)
    path = store.root / one.key / "record.json"
    path.write_bytes((store.root / other.key / "record.json").read_bytes())
    outcome = play(toy(0), store)
    assert outcome.status == "failed"
    assert f"{path} is damaged (it is of key {other.key}, not {one.key})" in outcome.error
    held = json.loads(path.read_text())
    path.write_text(json.dumps(resealed(held | {"key": one.key})))
    assert f"{path} is damaged (of seed 1, not 0)" in play(toy(0), store).error
    del held["digest"], held["key"]  # as earlier versions wrote it
    path.write_text(json.dumps(held))
    assert f"{path} is damaged (of seed 1, not 0)" in play(toy(0), store).error
    path.write_text(json.dumps(held | {"seed": 0}))
    assert play(toy(0), store).status == "done"


def test_no_flipped_bit_in_a_record_goes_unnoticed(store: Store) -> None:
    outcome = play(toy(0), store)
    path = store.root / outcome.key / "record.json"
    content, expected = path.read_bytes(), store.record(outcome.key)
    assert expected == outcome.record
    for bit in np.random.default_rng(0).integers(8 * len(content), size=300).tolist():
        harmed = bytearray(content)
        harmed[bit // 8] ^= 1 << bit % 8
        path.write_bytes(harmed)
        try:
            found = store.record(outcome.key)
        except DamagedError:
            continue
        assert found == expected  # such as a blank that became another one


UNSEALED: dict[str, tuple[Callable[[dict[str, Any]], dict[str, Any]], str]] = {
    "setting": (lambda held: {"setting": held["setting"] | {"client_lr": 0.07}}, "its setting is not that of"),
    "an option that there is not": (lambda held: {"setting": held["setting"] | {"x": 1}}, "unknown setting 'x'"),
    "result": (lambda held: {"result": 99.5}, "its result 99.5 is none of its last round's accuracies"),
    "unknown": (lambda held: {"digets": "0"}, "unknown 'digets'"),
}


@pytest.mark.parametrize("change", UNSEALED)
def test_a_record_without_a_digest_must_agree_with_itself(change: str, store: Store) -> None:
    outcome = play(toy(0), store)
    path = store.root / outcome.key / "record.json"
    held = {name: value for name, value in json.loads(path.read_text()).items() if name not in ("digest", "key")}
    path.write_text(json.dumps(held))
    assert store.record(outcome.key) == outcome.record
    changes, words = UNSEALED[change]
    path.write_text(json.dumps(held | changes(held)))
    with pytest.raises(DamagedError, match=re.escape(words)):
        store.record(outcome.key)


# -- one run's files, and everybody's ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["checkpoint.pt", "record.json", "setting.json", "lock"])
def test_a_folder_in_place_of_a_file_fails_that_run_alone(name: str, store: Store) -> None:
    (store.root / key_of(toy(), store) / name).mkdir(parents=True)
    outcomes = play_all([toy(), toy(1)], store)
    assert [outcome.status for outcome in outcomes] == ["failed", "done"]
    assert name in outcomes[0].error
    assert "\n" not in outcomes[0].error


@pytest.mark.parametrize(
    "error", [MemoryError(), IndexError("x"), IsADirectoryError(21, "a folder"), RecursionError()]
)
def test_any_error_before_a_run_begins_is_its_own(
    error: Exception, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fedrepro.runs import play as runs

    asked = 0
    true = runs.fingerprint

    def fails_first(setting: Any) -> str:
        nonlocal asked
        asked += 1
        if asked == 1:
            raise error
        return true(setting)

    monkeypatch.setattr(runs, "fingerprint", fails_first)
    outcomes = play_all([toy(), toy(1)], store)
    assert [outcome.status for outcome in outcomes] == ["failed", "done"]
    assert outcomes[0].error


@pytest.mark.parametrize("error", [KeyboardInterrupt(), BrokenPipeError()])
def test_an_interrupt_and_a_closed_pipe_end_everything(error: BaseException, store: Store) -> None:
    def report(*_: Any) -> None:
        raise error

    with pytest.raises(type(error)):
        play_all([toy(), toy(1)], store, report=report)


def test_a_lock_that_is_a_link_fails_that_run_alone(store: Store, tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("precious")
    folder = store.root / key_of(toy(), store)
    folder.mkdir()
    (folder / "lock").symlink_to(tmp_path / "precious")
    outcomes = play_all([toy(), toy(1)], store)
    assert [outcome.status for outcome in outcomes] == ["failed", "done"]
    assert "remove it" in outcomes[0].error
    assert (tmp_path / "precious").read_text() == "precious"


def test_a_full_disk_still_ends_the_command(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("fedrepro.core.files.os.fsync", full)
    with pytest.raises(StoreError, match="No space left on device"):
        play_all([digits("fedavg", rounds=1), toy()], store)
