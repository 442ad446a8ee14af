"""Bad input from end to end: each kind is refused, named with the rule and the value, and harms nothing else."""

import dataclasses
import errno
import hashlib
import json
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedrepro.data.data
from fedrepro import papers
from fedrepro.cli import main
from fedrepro.core.setting import Setting
from fedrepro.data.data import DATASETS, Split, files
from fedrepro.federation.assemble import split
from fedrepro.runs.machine import choose_device
from fedrepro.runs.play import play
from fedrepro.runs.request import Outcome, Run
from fedrepro.runs.store import NUMERICS, Store

FEDBE = papers.load("fedbe")
TABLE = "fedbe/table1_methods"
TOY = FEDBE.cells("figure1_simplex", "smoke")[0].setting.with_(client_batch=100, local_epochs=1, rounds=3)
DIGITS = FEDBE.cells("table1_methods", "smoke", only=("ConvNet", "FedAvg", "Step"))[0].setting.with_(
    **{"model": "resnet8", "partition": "iid", "clients": 2, "public_images": 20, "client_images": 24},
    **{"rounds": 1, "test_images": 20},
)


@dataclasses.dataclass
class Answer:
    code: int
    out: str
    err: str


Call = Callable[..., Answer]


@pytest.fixture
def call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    """Return `fedrepro run` with a store and a data root of its own; smoke runs are toys, with changes."""
    monkeypatch.setenv("FEDREPRO_RUNS", str(tmp_path / "store"))
    monkeypatch.setenv("FEDREPRO_DATA", str(tmp_path / "data"))

    def run(*arguments: str, **changes: Any) -> Answer:
        values = TOY.with_(**changes).asdict()
        quick = dataclasses.replace(FEDBE, rules=(*FEDBE.rules, {"when": {"scale": "smoke"}, "set": values}))
        monkeypatch.setattr(papers, "load", lambda name: quick)
        try:
            code: Any = main(["run", *arguments])
        except SystemExit as end:  # argparse
            code = end.code
        said = capsys.readouterr()
        return Answer(code, said.out, said.err)

    return run


@pytest.fixture
def outcome(tmp_path: Path) -> Callable[[Setting], Outcome]:
    """Return what becomes of a run in a store of its own."""
    return lambda setting: play(Run(setting, 0, "bad"), Store(tmp_path / "store"))


ONE = ["--only", "ConvNet,Step,FedAvg"]
TWO = ["--only", "ConvNet,Step,FedAvg", "--seeds", "2"]


# -- names ----------------------------------------------------------------------------------------------------


def test_a_misspelt_item(call: Call) -> None:
    answer = call("fedbe/table1_metods")
    assert answer.code == 2
    assert answer.err == f"fedrepro: unknown item 'fedbe/table1_metods' (did you mean '{TABLE}'?)\n"


def test_an_unknown_scale(call: Call) -> None:
    answer = call(TABLE, "--scale", "papr")
    assert answer.code == 2
    assert "'papr'" in answer.err
    assert all(scale in answer.err.splitlines()[-1] for scale in papers.SCALES)
    with pytest.raises(ValueError, match=r"unknown scale 'papr' \(did you mean 'paper'\?\)"):
        FEDBE.cells("table1_methods", "papr")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"round": 3}, "unknown setting 'round' (did you mean 'rounds'?)"),
        ({"rounds": 2.5}, "rounds must be of type int, got 2.5"),
        ({"rounds": "3"}, "rounds must be of type int, got '3'"),
        ({"clients": True}, "clients must be of type int, got True"),
        ({"augment_flip": 1}, "augment_flip must be of type bool, got 1"),
        ({"client_lr": "fast"}, "client_lr must be of type float, got 'fast'"),
        ({"rounds": 0}, "rounds must be >= 1, got 0"),
        ({"samples": -1}, "samples must be >= 0, got -1"),
        ({"loss_scale": "big"}, "loss_scale must be \"cross_entropy\" or \"fedbe_official\", got 'big'"),
    ],
)  # fmt: skip
def test_a_setting_that_is_none(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError) as caught:
        TOY.with_(**changes)
    assert str(caught.value) == message


def test_a_setting_left_out() -> None:
    values = TOY.asdict()
    del values["client_lr"], values["rounds"]
    with pytest.raises(ValueError, match="settings without a value: rounds, client_lr"):
        Setting.of(values)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model": "resnet21"}, ["resnet21", "resnet20"]),
        ({"method": "fedav"}, ["unknown method 'fedav' (did you mean 'fedavg'?)"]),
        ({"method": "fedbe", "posterior": "gausian"}, ["unknown posterior 'gausian' (did you mean 'gaussian'?)"]),
        ({"partition": "stepp"}, ["unknown partition 'stepp' (did you mean 'step'?)"]),
        ({"lr_schedule": "papr"}, ["lr_schedule must be one of", "'papr'"]),
        ({"precision": "float16"}, ["precision must be one of", "'float16'"]),
        ({"bn_buffers": "mean"}, ["bn_buffers must be one of", "'mean'"]),
        ({"client_shares": "by_siz"}, ["unknown client_shares 'by_siz' (did you mean 'by_size'?)"]),
        ({"public_data": "noize"}, ["source of public images 'noize'", "did you mean 'noise'"]),
    ],
)  # fmt: skip
def test_a_misspelt_choice(
    changes: dict[str, Any], words: list[str], outcome: Callable[[Setting], Outcome]
) -> None:
    end = outcome(DIGITS.with_(**changes))
    assert end.status == "failed"
    assert all(word in end.error for word in words), end.error


def test_a_misspelt_initialisation_is_no_setting() -> None:
    with pytest.raises(ValueError, match=r'initialisation must be "xavier" or "kaiming" or "own", got \'zero\''):
        DIGITS.with_(initialisation="zero")


# -- numbers out of range -------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [0.0, -0.1, 1.4, math.nan, math.inf])
def test_participation_outside_0_to_1(value: float) -> None:
    with pytest.raises(ValueError) as caught:
        TOY.with_(participation=value)
    assert str(caught.value) == f"participation must be in (0, 1], got {value}"


@pytest.mark.parametrize("name", ["partition_alpha", "dirichlet_alpha"])
@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf, 1e308, 1e-300])
def test_an_alpha_out_of_its_range(name: str, value: float) -> None:
    with pytest.raises(ValueError) as caught:
        TOY.with_(**{name: value})
    assert str(caught.value) == f"{name} must be in [1e-06, 1e+12], got {value}"


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"method": "fedbe", "distill_epochs": 0}, "epochs"),
        ({"method": "fedbe", "swa_cycle": 0}, "cycle"),
        ({"method": "fedbe", "swa_start": 1000}, "SWA collects no model"),
        ({"client_momentum": 1.0}, "momentum must be in [0, 1), got 1.0"),
        ({"client_weight_decay": -0.1}, "weight_decay must be >= 0, got -0.1"),
        ({"augment_pad": 17}, "pad must be in [0, 16] pixels, got 17"),
        ({"sharpen": 0.0, "method": "fedbe"}, "sharpen must be > 0, got 0.0"),
        ({"method": "fedbe", "distill_lr": -1.0}, "learning rates must be"),
    ],
)
def test_a_number_out_of_its_range(
    changes: dict[str, Any], name: str, outcome: Callable[[Setting], Outcome]
) -> None:
    try:
        end = outcome(DIGITS.with_(**changes))
    except ValueError as refused:  # as early as this is even better
        end = Outcome("", "failed", error=f"ValueError: {refused}")
    assert end.status == "failed"
    assert end.error.startswith("ValueError: ")
    assert name in end.error


# -- data that do not fill the partition ----------------------------------------------------------------------


@pytest.mark.parametrize("partition", ["iid", "dirichlet", "step"])
def test_more_clients_than_images(partition: str, outcome: Callable[[Setting], Outcome]) -> None:
    end = outcome(DIGITS.with_(partition=partition, clients=25))
    assert end.status == "failed"
    assert end.error == "ValueError: clients must be in [1, 24] (the images), got 25"


@pytest.mark.parametrize(
    ("name", "stop"),
    [
        ("public_images", 1297),
        ("validation_images", 1277),
        ("core_images", 1277),
        ("client_images", 1277),
        ("test_images", 500),
    ],
)
def test_more_images_than_there_are(name: str, stop: int, outcome: Callable[[Setting], Outcome]) -> None:
    end = outcome(DIGITS.with_(**{name: 5000}))
    assert end.status == "failed"
    assert f"[0, {stop}]" in end.error
    assert "got 5000" in end.error


@pytest.mark.parametrize("missing", [0, 4, 9])
def test_a_missing_class(missing: int) -> None:
    labels = np.repeat(np.delete(np.arange(10), missing), 50)
    setting = DIGITS.with_(partition="step", clients=5, public_images=0, client_images=0)
    with pytest.raises(ValueError, match=rf"class {missing}\b"):
        split(setting, labels, 0)


def test_a_class_that_the_images_kept_do_not_have(outcome: Callable[[Setting], Outcome]) -> None:
    end = outcome(DIGITS.with_(partition="step", clients=5, client_images=9, major_images=8, minor_images=1))
    assert end.status == "failed"
    assert end.error == "ValueError: class 8 needs 12 images (1 clients x 8 major + 4 x 1 minor), got 0"


def test_a_client_with_one_image_and_batch_norm(outcome: Callable[[Setting], Outcome]) -> None:
    one_each = {"partition": "step", "clients": 10, "major_classes": 1, "major_images": 1, "minor_images": 0}
    end = outcome(DIGITS.with_(**one_each))
    assert end.status == "failed"
    assert "client 0 (1 images, batches of " in end.error
    assert "BatchNorm" in end.error
    assert outcome(DIGITS.with_(**one_each, norm="group")).status == "done"  # as the message says


@pytest.mark.parametrize("method", ["fedbe", "fedbe_without_swa", "v_distillation"])
def test_distillation_without_public_images(method: str, outcome: Callable[[Setting], Outcome]) -> None:
    end = outcome(DIGITS.with_(method=method, public_images=0))
    assert end.status == "failed"
    assert "needs public images, the server has none" in end.error


# -- data files -----------------------------------------------------------------------------------------------


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a data root with a CIFAR-10 of forty images, with the checksums of another content."""
    sizes: dict[Split, int] = {"train": 20, "test": 20}
    small = dataclasses.replace(DATASETS["cifar10"], sizes=sizes)
    monkeypatch.setattr(fedrepro.data.data, "DATASETS", {**DATASETS, "cifar10": small})
    root = tmp_path / "data"
    (root / "cifar10").mkdir(parents=True)
    for part in fedrepro.data.data.SPLITS:
        images, labels = files("cifar10", part, root)
        np.save(images, np.zeros((20, 32, 32, 3), np.uint8))
        np.save(labels, np.arange(20) % 10)
    return root


SHORT = [TABLE, "--scale", "short", *TWO]
FAILED = f"failed: {TABLE} Step/FedAvg, ConvNet, seed 0: "


def no_run_was_begun(answer: Answer, store: Path) -> bool:
    """Return whether each run failed by itself, was named, and left nothing."""
    return (
        answer.code == 1
        and "runs: 2 failed" in answer.out
        and answer.err.startswith(FAILED)
        and len(answer.err.splitlines()) == 1  # the second run's words would be the same
        and {path.name for path in store.iterdir()} == {"store.json"}
    )


def test_a_missing_data_file(call: Call, data: Path, tmp_path: Path) -> None:
    path = data / "cifar10" / "train_labels.npy"
    path.unlink()
    answer = call(*SHORT)
    assert answer.code == 1
    assert not list((tmp_path / "store").glob("*/"))  # no run was begun
    assert answer.err == "missing data: cifar10 (1 cell waits for it): fedrepro data prepare cifar10\n"
    listed = call(*SHORT, "--list")
    assert listed.code == 0
    assert listed.out.endswith("(no cifar10)\n")


def test_damaged_data(call: Call, data: Path, tmp_path: Path) -> None:
    answer = call(*SHORT)
    assert no_run_was_begun(answer, tmp_path / "store")
    found = hashlib.sha256(b"uint8(20, 32, 32, 3)" + bytes(20 * 32 * 32 * 3) + b"int64(20,)")
    found.update(np.repeat(np.arange(10), 2).astype("<i8").tobytes())
    for word in (data / "cifar10" / "train_images.npy", DATASETS["cifar10"].checksums["train"], found.hexdigest()):
        assert str(word) in answer.err
    assert "run `fedrepro data prepare cifar10`" in answer.err


@pytest.mark.parametrize(
    ("array", "words"),
    [
        (np.zeros((20, 3, 32, 32), np.uint8), ["uint8 [20, 32, 32, 3]", "uint8 [20, 3, 32, 32]"]),
        (np.zeros((19, 32, 32, 3), np.uint8), ["uint8 [20, 32, 32, 3]", "uint8 [19, 32, 32, 3]"]),
        (np.zeros((20, 32, 32, 3), np.float32), ["uint8 [20, 32, 32, 3]", "float32 [20, 32, 32, 3]"]),
    ],
    ids=["channels first", "too few", "floats"],
)
def test_an_array_of_another_shape_or_type(
    array: np.ndarray, words: list[str], call: Call, data: Path, tmp_path: Path
) -> None:
    path = data / "cifar10" / "train_images.npy"
    np.save(path, array)
    answer = call(*SHORT)
    assert no_run_was_begun(answer, tmp_path / "store")
    assert answer.err == (
        f"{FAILED}{path} must hold {words[0]}, found {words[1]}; run `fedrepro data prepare cifar10`\n"
    )


def test_half_a_data_file(call: Call, data: Path, tmp_path: Path) -> None:
    path = data / "cifar10" / "train_images.npy"
    path.write_bytes(path.read_bytes()[:1000])
    answer = call(*SHORT)
    assert no_run_was_begun(answer, tmp_path / "store")
    assert f"{path} cannot be read" in answer.err


# -- the machine ----------------------------------------------------------------------------------------------


def test_cuda_without_cuda(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    answer = call(TABLE, *ONE, "--device", "cuda")
    assert answer.code == 2
    assert answer.err == (
        "fedrepro: device cuda was asked for, but this torch sees no CUDA device; use --device cpu\n"
    )
    with pytest.raises(ValueError, match="sees no CUDA device"):
        choose_device("cuda")


def test_a_disk_that_fills_up_during_a_checkpoint(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace, checkpoints = os.replace, 0

    def fill_up(source: Path, target: Path) -> None:
        nonlocal checkpoints
        checkpoints += target.name == "checkpoint.pt"
        if checkpoints == 2:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        replace(source, target)

    with monkeypatch.context() as disk:
        disk.setattr(os, "replace", fill_up)
        answer = call(TABLE, *TWO)
    assert answer.code == 2
    (folder,) = [path for path in (tmp_path / "store").iterdir() if path.is_dir()]
    reason = f"cannot write {folder / 'checkpoint.pt'}: {os.strerror(errno.ENOSPC)}; the version before is kept"
    assert answer.err == f"fedrepro: {reason}\n"
    assert {path.name for path in folder.iterdir()} == {"setting.json", "checkpoint.pt", "lock"}
    first = torch.load(folder / "checkpoint.pt", weights_only=True)["rows"]
    assert len(first) == 1
    assert call(TABLE, *TWO).code == 0  # the same command goes on
    rows = json.loads((folder / "record.json").read_text())["rows"]
    assert len(rows) == 3
    assert rows[0]["seconds"] == first[0]["seconds"]


def test_a_store_of_another_numerics_version(call: Call, tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "store.json").write_text('{"numerics": 0}')
    for more in ([], ["--list"]):
        answer = call(TABLE, *ONE, *more)
        assert answer.code == 2
        assert f"was written by numerics version 0, this is version {NUMERICS}" in answer.err
        assert str(tmp_path / "store") in answer.err
    assert [path.name for path in (tmp_path / "store").iterdir()] == ["store.json"]


def test_a_damaged_checkpoint(call: Call, tmp_path: Path) -> None:
    assert call(TABLE, *ONE).code == 0
    (path,) = tmp_path.glob("store/*/checkpoint.pt")
    (path.parent / "record.json").unlink()
    path.write_bytes(path.read_bytes()[:500])
    answer = call(TABLE, *TWO)
    assert answer.code == 1
    assert "runs: 1 done, 1 failed" in answer.out  # the other run goes on
    assert f"{path} is damaged" in answer.err
    assert "remove it to start that run again" in answer.err
    path.unlink()
    assert call(TABLE, *ONE).code == 0


def test_a_damaged_checkpoint_is_told_in_one_line_without_bad_advice(call: Call, tmp_path: Path) -> None:
    assert call(TABLE, *ONE).code == 0
    (path,) = tmp_path.glob("store/*/checkpoint.pt")
    (path.parent / "record.json").unlink()
    path.write_bytes(b"no checkpoint at all")
    answer = call(TABLE, *ONE)
    assert f"{path} is damaged" in answer.err
    assert len(answer.err.splitlines()) == 1
    assert "weights_only" not in answer.err  # torch would have it unpickled, whatever it holds


# -- training -------------------------------------------------------------------------------------------------


def test_a_loss_that_is_not_finite(call: Call, tmp_path: Path) -> None:
    answer = call(TABLE, *TWO, client_lr=1e30)
    assert answer.code == 1
    assert "runs: 2 failed" in answer.out
    assert "DivergedError: the loss of client 0 in round 0 is not finite (learning rate 1e+30)" in answer.err
    marks = [json.loads(path.read_text()) for path in tmp_path.glob("store/*/failed.json")]
    assert sorted(mark["seed"] for mark in marks) == [0, 1]
    assert {mark["label"] for mark in marks} == {"Step/FedAvg ConvNet"}
    assert not list(tmp_path.glob("store/*/record.json"))


def test_weights_that_are_not_finite(outcome: Callable[[Setting], Outcome], tmp_path: Path) -> None:
    # One step a round: its loss is finite, the weights that it leaves are not.
    end = outcome(TOY.with_(client_lr=3e38, client_weight_decay=1e6, client_batch=300, rounds=2))
    assert end.status == "failed"
    assert "client 0 in round 0" in end.error
    assert json.loads((tmp_path / "store" / end.key / "failed.json").read_text())["error"] == end.error
