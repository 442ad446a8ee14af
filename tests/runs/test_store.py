"""The store: names of runs, files that are whole or not there, claims, and every damage named."""

import dataclasses
import errno
import io
import json
import math
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import fedrepro.runs.store
from fedrepro.core import paths
from fedrepro.core.files import StoreError, write_atomically
from fedrepro.core.setting import OPTIONS, REQUIRED, Setting
from fedrepro.core.stack import Stack, concatenate
from fedrepro.core.state import State
from fedrepro.federation import assemble as assemble
from fedrepro.kernels.step import Sgd
from fedrepro.kernels.trained import Carried
from fedrepro.methods import catalogue as catalogue
from fedrepro.models.architecture import Architecture
from fedrepro.runs.packed import sealed
from fedrepro.runs.store import NUMERICS, RECORD, Begun, Progress, Store

VALUES: dict[str, Any] = {
    **{
        "data": "digits",
        "test_images": 100,
        "model": "convnet",
        "shortcut": "A",
        "norm": "batch",
        "groups": 2,
    },
    **{"extra_layers": 0, "hidden": 32, "initialisation": "xavier", "partition": "step"},
    **{"partition_alpha": 0.1, "clients": 5, "major_classes": 2, "major_images": 8, "minor_images": 1},
    **{"public_images": 60, "client_images": 120, "noise": 0.1, "rounds": 2, "participation": 1.0},
    **{"local_epochs": 1, "client_batch": 12, "client_lr": 0.01, "client_momentum": 0.9},
    **{"client_weight_decay": 0.001, "lr_schedule": "paper", "augment_pad": 2, "augment_flip": True},
    **{"method": "fedbe", "bn_buffers": "average", "samples": 3, "posterior": "gaussian"},
    **{"dirichlet_alpha": 1.0, "posterior_buffers": "average", "sharpen": 2.0, "distill_epochs": 2},
    **{"distill_batch": 20, "distill_lr": 0.001, "distill_momentum": 0.9, "distill_weight_decay": 1e-5},
    **{"swa_lr_low": 4e-4, "swa_start": 2, "swa_cycle": 2, "loss_scale": "paper", "precision": "float32"},
}
SETTING = Setting.of(VALUES)
FIELDS = list(Setting.types())
CPU = torch.device("cpu")
MODEL = Architecture("resnet8", 10).start(0)  # has parameters, BatchNorm statistics and counters


def progress(rounds: int) -> Progress:
    models = dataclasses.replace(MODEL, params=MODEL.params + rounds, counters=MODEL.counters + rounds)
    rows = [{"round": float(r), "accuracy": 10.0 * r, "teacher_accuracy": math.nan} for r in range(rounds)]
    return Progress(State(rounds, models, {"velocity": torch.full((1, 3), float(rounds))}), rows)


def assert_same(one: Progress | None, other: Progress) -> None:
    assert one is not None
    assert one.state.round == other.state.round
    for name in ("params", "buffers", "counters"):
        assert torch.equal(getattr(one.state.models, name), getattr(other.state.models, name)), name
    assert one.state.memory.keys() == other.state.memory.keys()
    for name, expected in other.state.memory.items():
        held = one.state.memory[name]
        assert isinstance(held, torch.Tensor)
        assert isinstance(expected, torch.Tensor)
        assert torch.equal(held, expected)
    assert repr(one.rows) == repr(other.rows)


def files(folder: Path) -> set[str]:
    return {path.name for path in folder.rglob("*") if path.is_file()}


def another(name: str) -> Any:
    """Return another value of an option than the setting's."""
    option, value = OPTIONS[name], SETTING.asdict()[name]
    if option.example != value:
        return option.example
    return option.neutral if option.neutral is not REQUIRED else f"{value}x"


# -- names of runs --------------------------------------------------------------------------------------------


def test_a_key_is_the_same_on_every_machine_and_in_every_version_with_the_same_numerics(
    tmp_path: Path,
) -> None:
    assert NUMERICS == 1, "new numerics, new keys: write the new ones here"
    assert Store(tmp_path).key(SETTING, 3, "data") == "cddd7d45de68"
    assert SETTING.key == "51c4571ea386"


@pytest.mark.parametrize("name", FIELDS)
def test_every_setting_changes_the_key(name: str, tmp_path: Path) -> None:
    store, changed = Store(tmp_path), SETTING.with_(**{name: another(name)})
    assert store.key(changed, 3, "data") != store.key(SETTING, 3, "data")
    assert (changed.key == SETTING.key) == (name == "precision")  # a table's cell may be filled at either


def test_seed_data_and_numerics_change_the_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(tmp_path)
    keys = {store.key(SETTING, 3, "data"), store.key(SETTING, 4, "data"), store.key(SETTING, 3, "other data")}
    monkeypatch.setattr(fedrepro.runs.store, "NUMERICS", NUMERICS + 1)
    keys.add(store.key(SETTING, 3, "data"))
    assert len(keys) == 4


def test_order_and_spelling_of_the_values_do_not_change_the_key(tmp_path: Path) -> None:
    backwards = Setting.of({name: SETTING.asdict()[name] for name in reversed(FIELDS)} | {"sharpen": 2})
    assert Store(tmp_path).key(backwards, 3, "data") == Store(tmp_path).key(SETTING, 3, "data")


# -- the folder -----------------------------------------------------------------------------------------------


def test_the_environment_names_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDREPRO_RUNS", str(tmp_path / "mine"))
    assert Store().root == tmp_path / "mine"
    assert json.loads((tmp_path / "mine" / "store.json").read_text()) == {"numerics": NUMERICS}
    monkeypatch.delenv("FEDREPRO_RUNS")
    assert paths.runs_folder() == paths.results_folder() / "runs"


def test_a_store_of_other_numerics_is_refused_and_left_alone(tmp_path: Path) -> None:
    mark = tmp_path / "store.json"
    mark.write_text('{"numerics": 7}')
    with pytest.raises(StoreError) as caught:
        Store(tmp_path)
    for part in (str(tmp_path), "version 7", f"version {NUMERICS}", "FEDREPRO_RUNS"):
        assert part in str(caught.value)
    assert files(tmp_path) == {"store.json"}
    assert mark.read_text() == '{"numerics": 7}'


@pytest.mark.parametrize("content", ["", '{"numerics"', "[]"])
def test_a_damaged_mark_of_the_store_is_named(content: str, tmp_path: Path) -> None:
    (tmp_path / "store.json").write_text(content)
    with pytest.raises(StoreError, match=r"store\.json"):
        Store(tmp_path)


def test_a_file_in_place_of_the_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match=r"cannot write .*file"):
        Store(tmp_path / "file")


# -- checkpoints ----------------------------------------------------------------------------------------------


def test_a_checkpoint_comes_back_to_the_bit(tmp_path: Path) -> None:
    store = Store(tmp_path)
    assert store.restore("run", [MODEL.layout], CPU) is None
    store.save("run", progress(2))
    store.save("run", progress(3))
    assert_same(Store(tmp_path).restore("run", [MODEL.layout], CPU), progress(3))
    assert files(tmp_path / "run") == {"checkpoint.pt"}


def same_stack(one: Any, other: Stack) -> bool:
    assert isinstance(one, Stack)
    return all(torch.equal(getattr(one, n), getattr(other, n)) for n in ("params", "buffers", "counters"))


def test_a_checkpoint_from_before_there_were_several_architectures(tmp_path: Path) -> None:
    tensors = {"params": MODEL.params, "buffers": MODEL.buffers, "counters": MODEL.counters}
    facts = {"numerics": NUMERICS, "round": 4, "rows": [{"round": 3.0}], "memory": {"control": torch.ones(3)}}
    (tmp_path / "run").mkdir()
    torch.save(sealed(facts | tensors, key="run"), tmp_path / "run" / "checkpoint.pt")
    found = Store(tmp_path).restore("run", [MODEL.layout], CPU)
    assert found is not None
    assert (found.state.round, found.state.further, found.rows, found.places) == (4, (), [{"round": 3.0}], [])
    assert same_stack(found.state.models, MODEL)
    assert torch.equal(found.state.memory["control"], torch.ones(3))  # type: ignore[arg-type]


def test_a_state_of_several_models_and_architectures_that_remembers_stacks(tmp_path: Path) -> None:
    store, mlp = Store(tmp_path), Architecture("mlp", 3)
    two = concatenate([mlp.start(0), mlp.start(1)])
    other = State(2, MODEL, {"past": MODEL, "control": torch.ones(3)})
    state = State(2, two, {"past": concatenate([two, two]), "velocity": torch.ones(2, 4)}, (other,))
    store.save("run", Progress(state, [{"round": 0.0, "measured": {"steps": 7.0}}]))
    layouts = [mlp.layout, MODEL.layout]
    found = store.restore("run", layouts, CPU)
    assert found is not None
    assert found.rows == [{"round": 0.0, "measured": {"steps": 7.0}}]
    assert same_stack(found.state.models, two)
    assert same_stack(found.state.memory["past"], concatenate([two, two]))
    assert torch.equal(found.state.memory["velocity"], torch.ones(2, 4))  # type: ignore[arg-type]
    (also,) = found.state.further
    assert same_stack(also.models, MODEL)
    assert same_stack(also.memory["past"], MODEL)
    assert torch.equal(also.memory["control"], torch.ones(3))  # type: ignore[arg-type]


def begun(mark: str = "one", first: int = 7) -> Begun:
    carried = Carried.fresh(MODEL, Sgd(momentum=0.9))
    return Begun(mark, first, MODEL.params, MODEL.buffers, MODEL.counters, carried)


def test_what_is_done_of_a_round_comes_back_until_the_next_checkpoint(tmp_path: Path) -> None:
    store, here, there = Store(tmp_path), {"device": "here"}, {"device": "there"}
    drawer = store.drawer("run", 3, here)
    assert (drawer.seconds, drawer.places, drawer.take(0, "one", CPU)) == (0.0, [], None)
    drawer.put(0, begun(), 10.0)
    drawer.put(1, None, 2.5)  # nothing of it yet, but time has gone by
    again = store.drawer("run", 3, there)
    assert (again.round, again.seconds, again.places) == (3, 12.5, [here])
    found = again.take(0, "one", CPU)
    assert found is not None
    assert found.first == 7
    assert all(torch.equal(getattr(found, n), getattr(MODEL, n)) for n in ("params", "buffers", "counters"))
    assert all(torch.equal(a, b) for a, b in zip(vars(found.carried).values(), vars(begun().carried).values()))
    assert again.take(0, "another training", CPU) is None  # of which nothing is kept
    assert again.take(1, "one", CPU) is None
    again.put(1, begun("two"), 1.0)
    assert store.drawer("run", 3, here).places == [here, there]
    assert store.drawer("run", 3, here).seconds == 13.5
    assert store.drawer("run", 4, here).seconds == 0.0  # another round: what was left goes
    assert store.drawer("run", 3, here).take(1, "two", CPU) is None
    drawer.put(0, begun(), 1.0)
    store.save("run", progress(3))
    assert files(tmp_path / "run") == {"checkpoint.pt"}


def test_a_damaged_part_of_a_round_is_named(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.drawer("run", 3, {}).put(0, begun(), 1.0)
    path = tmp_path / "run" / "inside" / "0.pt"
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(StoreError, match=r"is damaged .*; remove its folder to play that round again") as caught:
        store.drawer("run", 3, {}).take(0, "one", CPU)
    assert str(path) in str(caught.value)


def full(*_: Any, **__: Any) -> Any:
    raise OSError(errno.ENOSPC, "No space left on device")


class FullFile(io.FileIO):
    def write(self, content: Any) -> int:
        super().write(content[:10])
        return full()


FULL_DISKS: dict[str, tuple[str, Callable[..., Any]]] = {
    "open": ("open", full),
    "write": ("open", FullFile),
    "fsync": ("os.fsync", full),
    "replace": ("os.replace", full),
}


@pytest.mark.parametrize("step", FULL_DISKS)
def test_a_full_disk_keeps_the_earlier_checkpoint(
    step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, path = Store(tmp_path), tmp_path / "run" / "checkpoint.pt"
    store.save("run", progress(1))
    with monkeypatch.context() as disk:
        disk.setattr(f"fedrepro.core.files.{FULL_DISKS[step][0]}", FULL_DISKS[step][1], raising=False)
        with pytest.raises(StoreError) as caught:
            store.save("run", progress(2))
    assert str(caught.value) == f"cannot write {path}: No space left on device; the version before is kept"
    assert files(tmp_path) == {"store.json", "checkpoint.pt"}
    assert_same(store.restore("run", [MODEL.layout], CPU), progress(1))
    store.save("run", progress(2))
    assert_same(store.restore("run", [MODEL.layout], CPU), progress(2))


def test_a_full_disk_at_the_first_checkpoint_leaves_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(tmp_path)
    monkeypatch.setattr("fedrepro.core.files.os.replace", full)
    with pytest.raises(StoreError, match="No space left"):
        store.save("run", progress(1))
    assert files(tmp_path) == {"store.json"}
    assert store.restore("run", [MODEL.layout], CPU) is None


def test_an_interrupt_while_writing_leaves_no_partial_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    (tmp_path / "file").write_text("old")
    monkeypatch.setattr("fedrepro.core.files.os.replace", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_atomically(tmp_path / "file", b"new")
    assert files(tmp_path) == {"file"}
    assert (tmp_path / "file").read_text() == "old"


def whole() -> bytes:
    buffer = io.BytesIO()
    models = MODEL
    content = {
        **{"numerics": NUMERICS, "round": 1, "memory": {}, "rows": []},
        **{"params": models.params, "buffers": models.buffers, "counters": models.counters},
    }
    torch.save(sealed(content, key="run"), buffer)
    return buffer.getvalue()


def saved(value: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


def without(name: str) -> bytes:
    content = torch.load(io.BytesIO(whole()), weights_only=True)
    del content[name], content["digest"]
    return saved(sealed(content))


DAMAGES: dict[str, Callable[[], bytes]] = {
    "empty": lambda: b"",
    "zeros": lambda: bytes(1000),
    "half": lambda: whole()[: len(whole()) // 2],
    "text": lambda: b"version https://git-lfs.github.com/spec/v1\n",
    "list": lambda: saved([1, 2]),
    "no parameters": lambda: without("params"),
    "no round": lambda: without("round"),
    "no memory": lambda: without("memory"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_is_named(damage: str, tmp_path: Path) -> None:
    store, path = Store(tmp_path), tmp_path / "run" / "checkpoint.pt"
    path.parent.mkdir()
    path.write_bytes(whole())
    assert store.restore("run", [MODEL.layout], CPU) is not None
    path.write_bytes(DAMAGES[damage]())
    with pytest.raises(StoreError, match=r"(?s)is damaged .*; remove it to start that run again") as caught:
        store.restore("run", [MODEL.layout], CPU)
    assert str(path) in str(caught.value)


def test_a_checkpoint_of_another_network_is_refused(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.save("run", progress(1))
    with pytest.raises(StoreError, match=r"checkpoint\.pt is damaged"):
        store.restore("run", [Architecture("mlp", 3).start(0).layout], CPU)


class Toucher:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self.path,))


def test_a_checkpoint_cannot_run_code(tmp_path: Path) -> None:
    store, path = Store(tmp_path), tmp_path / "run" / "checkpoint.pt"
    path.parent.mkdir()
    for content in (
        saved({"params": Toucher(tmp_path / "ran")}),
        pickle.dumps(Toucher(tmp_path / "ran"), protocol=2),
    ):
        path.write_bytes(content)
        with pytest.raises(StoreError, match="is damaged"):
            store.restore("run", [MODEL.layout], CPU)
    assert not (tmp_path / "ran").exists()


# -- records, failures, claims --------------------------------------------------------------------------------


def finished(**changes: Any) -> dict[str, Any]:
    """Return the record of a run of two rounds."""
    where = {"device": "cpu", "threads": 1, "torch": "2", "commit": "c", "date": "2026-01-31"}
    rows = [{"round": r, "accuracy": 50.0 + r, "seconds": 2.0, "distill_loss": None} for r in range(2)]
    record = {
        **{"setting": SETTING.asdict(), "setting_key": SETTING.key, "seed": 3, "rows": rows, "result": 51.0},
        **{"best_accuracy": 51.0, "seconds": 4.0, "split": "0" * 64, "provenance": where},
    }
    return record | changes


def test_a_finished_run_forgets_its_failure(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.describe("run", SETTING, 3)
    store.save("run", progress(1))
    store.fail("run", {"error": "why"})
    assert json.loads((tmp_path / "run" / "failed.json").read_text()) == {"error": "why"}
    assert_same(store.restore("run", [MODEL.layout], CPU), progress(1))
    assert store.record("run") is None
    record = finished()
    assert set(record) >= set(RECORD)
    store.finish("run", record)
    assert store.record("run") == record
    assert files(tmp_path / "run") == {"setting.json", "checkpoint.pt", "record.json"}
    assert json.loads((tmp_path / "run" / "setting.json").read_text()) == SETTING.asdict() | {"seed": 3}


@pytest.mark.parametrize("content", ["", '{"result": 5'])
def test_a_damaged_record_is_named(content: str, tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.finish("run", {"result": 50.0})
    (tmp_path / "run" / "record.json").write_text(content)
    with pytest.raises(StoreError, match=r"record\.json"):
        store.record("run")


def test_a_run_is_claimed_once(tmp_path: Path) -> None:
    one, other = Store(tmp_path), Store(tmp_path)
    with one.claim("run") as mine:
        assert mine
        with other.claim("run") as too:
            assert not too
        with other.claim("run") as again, other.claim("another run") as free:
            assert not again
            assert free
    with other.claim("run") as after:
        assert after


def test_an_error_gives_the_claim_back(tmp_path: Path) -> None:
    store = Store(tmp_path)
    with pytest.raises(ZeroDivisionError), store.claim("run"):
        raise ZeroDivisionError
    with store.claim("run") as mine:
        assert mine
