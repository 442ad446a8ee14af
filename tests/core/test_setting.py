"""Settings: checked, hashed, and every one of them read."""

import ast
import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch

import fedrepro
from fedrepro.core.rng import Streams
from fedrepro.core.setting import NEUTRAL, OPTIONS, Setting, declare, digest, nearest
from fedrepro.federation.assemble import assemble
from fedrepro.federation.federation import Federation
from fedrepro.methods import catalogue as methods

TYPES: dict[str, Any] = Setting.types()
FIELDS = list(TYPES)
ALL_NEUTRAL = {**NEUTRAL, **OPTIONS}


def test_the_shared_values_are_all_values() -> None:
    assert set(tiny.VALUES) == set(FIELDS)


class TestOf:
    def test_values_arrive(self) -> None:
        assert tiny.setting().asdict() == tiny.VALUES
        assert Setting.of(dict(reversed(tiny.VALUES.items()))) == tiny.setting()

    def test_whole_numbers_are_real_numbers(self) -> None:
        found = tiny.setting(sharpen=2, participation=1)
        assert found == tiny.setting(sharpen=2.0, participation=1.0)
        assert type(found.sharpen) is float

    def test_an_unknown_name(self) -> None:
        with pytest.raises(ValueError, match=r"unknown setting 'client_l' \(did you mean 'client_lr'\?\)"):
            tiny.setting(client_l=0.1)

    @pytest.mark.parametrize("name", ["data", "precision"])
    def test_a_missing_value(self, name: str) -> None:
        with pytest.raises(ValueError, match=f"settings without a value: {name}$"):
            Setting.of({key: value for key, value in tiny.VALUES.items() if key != name})

    def test_later_values_may_be_left_out(self) -> None:
        old = {key: value for key, value in tiny.VALUES.items() if key not in ALL_NEUTRAL}
        assert Setting.of(old) == tiny.setting(**ALL_NEUTRAL)
        assert Setting.of(old).hashed() == old

    @pytest.mark.parametrize("name", FIELDS)
    def test_a_value_of_the_wrong_type(self, name: str) -> None:
        wrong: dict[type, list[Any]] = {
            str: [1, None],
            int: [1.0, "1", True],
            float: ["1", True],
            bool: [1, "yes"],
        }
        for value in wrong[TYPES[name]]:
            with pytest.raises(ValueError, match=f"{name} must be of type {TYPES[name].__name__}, got {value!r}"):
                tiny.setting(**{name: value})

    @pytest.mark.parametrize(
        ("name", "value", "rule"),
        [
            ("rounds", 0, ">= 1"),
            ("clients", 0, ">= 1"),
            ("local_epochs", 0, ">= 1"),
            ("client_batch", 0, ">= 1"),
            ("distill_batch", 0, ">= 1"),
            ("test_images", -1, ">= 0"),
            ("public_images", -1, ">= 0"),
            ("client_images", -1, ">= 0"),
            ("samples", -1, ">= 0"),
            ("swa_start", -1, ">= 0"),
            ("participation", 0.0, r"in \(0, 1\]"),
            ("participation", 1.4, r"in \(0, 1\]"),
            ("participation", float("nan"), r"in \(0, 1\]"),
            ("partition_alpha", 0.0, "> 0"),
            ("dirichlet_alpha", -1.0, "> 0"),
            ("client_lr", 0.0, "> 0"),
            ("client_lr", float("nan"), "> 0"),
            ("loss_scale", "mean", '"paper" or "official"'),
        ],
    )
    def test_a_value_out_of_range(self, name: str, value: Any, rule: str) -> None:
        with pytest.raises(ValueError, match=f"{name} must be {rule}, got {value!r}"):
            tiny.setting(**{name: value})
        with pytest.raises(ValueError, match=f"{name} must be {rule}, got {value!r}"):
            tiny.setting().with_(**{name: value})
        with pytest.raises(ValueError, match=f"{name} must be {rule}, got {value!r}"):
            dataclasses.replace(tiny.setting(), **{name: value})

    def test_changes_leave_the_original_alone(self) -> None:
        one = tiny.setting()
        other = one.with_(rounds=7)
        assert (one.rounds, other.rounds) == (tiny.VALUES["rounds"], 7)
        with pytest.raises(dataclasses.FrozenInstanceError):
            one.rounds = 3  # type: ignore[misc]


def world(setting: Setting) -> Federation:
    """Return a federation for a setting's stages, of random images."""
    return tiny.federation("resnet8", sizes=(4, 4), public=8, precision=setting.precision)


def play(setting: Setting, here: Federation) -> None:
    method = methods.build(setting)
    method.round(method.init(here, 0), here, Streams(0))


class TestRefusals:
    """A value that a stage refuses is a ValueError that names it, at the latest within the first round."""

    @pytest.mark.parametrize(
        ("changes", "named"),
        [
            ({"client_momentum": 1.0}, "momentum"),
            ({"client_weight_decay": -1.0}, "weight_decay"),
            ({"distill_momentum": -0.1}, "momentum"),
            ({"distill_weight_decay": -1.0}, "weight_decay"),
            ({"distill_epochs": 0}, "epochs"),
            ({"distill_lr": -1.0}, "lr"),
            ({"swa_lr_low": -1.0}, "lr"),
            ({"swa_cycle": 0}, "cycle"),
            ({"swa_cycle": -2}, "cycle"),
            ({"swa_start": 10_000}, "swa_start"),
            ({"sharpen": 0.0}, "sharpen"),
            ({"augment_pad": 17}, "pad"),
            ({"lr_schedule": "linear"}, "lr_schedule"),
            ({"bn_buffers": "mean"}, "bn_buffers"),
            ({"posterior": "laplace"}, "posterior"),
            ({"posterior_buffers": "mean"}, "buffers"),
            ({"method": "fedbox"}, "method"),
            ({"method": "fedprox", "proximal_mu": -1.0}, "mu"),
            ({"method": "fedprox", "proximal_form": "cubed"}, "proximal form"),
            ({"method": "fedavgm", "server_momentum": 1.0}, "beta"),
            ({"method": "fedavgm", "momentum_form": "nesterov"}, "form"),
            ({"method": "scaffold", "scaffold_length": "long"}, "length"),
            ({"client_lr_decay": 0.0}, "lr_decay"),
            ({"teachers": "average+strangers"}, "teachers"),
            ({"teachers": "samples+samples"}, "teachers"),
            ({"teachers": ""}, "teachers"),
            ({"precision": "float16"}, "precision"),
        ],
    )
    def test_stages(self, changes: dict[str, Any], named: str) -> None:
        setting = tiny.setting(**changes)
        here = world(setting)
        with pytest.raises(ValueError, match=named):
            play(setting, here)

    @pytest.mark.parametrize(
        ("changes", "named"),
        [
            ({"data": "mnist"}, "data set"),
            ({"model": "resnet21"}, "network"),
            ({"shortcut": "C"}, "shortcut"),
            ({"norm": "layer"}, "norm"),
            ({"norm": "group", "groups": 3}, "groups"),
            ({"model": "convnet", "extra_layers": -1}, "extra_layers"),
            ({"model": "mlp", "hidden": 0}, "hidden"),
            ({"initialisation": "zeros"}, "scheme"),
            ({"partition": "shards"}, "partition"),
            ({"partition": "step", "major_images": 0}, "major_images"),
            ({"partition": "step", "major_classes": 11}, "major_classes"),
            ({"public_images": 2000}, "size"),
            ({"public_data": "imagenet"}, "data set"),
            ({"data": "swiss_roll", "test_images": 30, "noise": -0.1}, "noise"),
            ({"data": "swiss_roll", "test_images": 30, "turns": 0.0}, "turns"),
        ],
    )
    def test_the_federation(self, changes: dict[str, Any], named: str) -> None:
        with pytest.raises(ValueError, match=named):
            assemble(tiny.setting(**changes), 0).start(0)


class TestKeys:
    def test_form(self) -> None:
        key = tiny.setting().key
        assert len(key) == 12
        assert set(key) <= set("0123456789abcdef")
        assert key == tiny.setting().key

    def test_every_value_but_the_precision_counts(self) -> None:
        other: dict[type, Any] = {str: "other", int: 1234, float: 0.123}
        keys = {tiny.setting().key}
        for name in FIELDS:
            value = not tiny.VALUES[name] if TYPES[name] is bool else other[TYPES[name]]
            if name == "loss_scale":
                value = "official"
            changed = tiny.setting(**{name: value})
            if name == "precision":
                assert changed.key in keys
            else:
                assert changed.key not in keys, name
                keys.add(changed.key)

    def test_a_neutral_value_does_not_count(self) -> None:
        for name, value in ALL_NEUTRAL.items():
            assert name not in tiny.setting(**{name: value}).hashed()
            other = (
                not value if isinstance(value, bool) else f"{value}s" if isinstance(value, str) else value + 0.1
            )
            assert name in tiny.setting(**{name: other}).hashed()

    def test_digest_is_a_sha256_of_canonical_json(self) -> None:
        # printf '{"a": 2, "b": [1, 0.5]}' | sha256sum
        assert digest({"b": [1, 0.5], "a": 2}) == "145364b54516"

    def test_nearest(self) -> None:
        assert nearest("fedav", ["fedavg", "fedbe"]) == " (did you mean 'fedavg'?)"
        assert nearest("zzz", ["fedavg", "fedbe"]) == "; there are fedavg, fedbe"


class TestOptions:
    def test_a_stage_declares_its_own(self, monkeypatch: pytest.MonkeyPatch) -> None:
        before = tiny.setting()
        monkeypatch.setitem(OPTIONS, "warm_start", False)  # what declare() does
        assert tiny.setting() == before
        assert tiny.setting().key == before.key  # old runs keep their keys
        changed = tiny.setting(warm_start=True)
        assert changed.option("warm_start") is True
        assert changed.options == (("warm_start", True),)
        assert changed.with_(samples=9).option("warm_start") is True
        assert Setting.of(changed.asdict()) == changed
        assert changed.key != before.key
        with pytest.raises(ValueError, match="warm_start must be of type bool, got 1"):
            tiny.setting(warm_start=1)

    def test_declaring_twice(self) -> None:
        declare(proximal_mu=0.0)  # a module may be read again
        for name in ("proximal_mu", "client_lr"):
            with pytest.raises(ValueError, match=f"the option '{name}' is declared already"):
                declare(**{name: 0.5})
        assert OPTIONS["proximal_mu"] == 0.0

    def test_declaring_is_all_or_nothing_and_keeps_the_type(self) -> None:
        with pytest.raises(ValueError, match="'rounds' is declared already"):
            declare(another=1, rounds=3)
        assert "another" not in OPTIONS
        with pytest.raises(ValueError, match="'proximal_mu' is declared already"):
            declare(proximal_mu=0)

    def test_options_are_known_where_only_settings_are_read(self) -> None:
        text = json.dumps(tiny.setting(proximal_mu=0.1).asdict())
        code = f"import json; from fedrepro.setting import Setting; print(Setting.of(json.loads({text!r})).key)"
        found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert found.stdout.strip() == tiny.setting(proximal_mu=0.1).key

    def test_an_unknown_option(self) -> None:
        with pytest.raises(ValueError, match=r"unknown option 'proximal_my' \(did you mean 'proximal_mu'"):
            tiny.setting().option("proximal_my")


def attributes_of_settings() -> set[str]:
    """Return the names x of all expressions `setting.x`, `….setting.x` or `setting.option("x")` of the library."""
    folder = Path(fedrepro.__file__).parent
    found = set()
    for path in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
                owner = node.value
                name = owner.id if isinstance(owner, ast.Name) else getattr(owner, "attr", None)
                if name == "setting":
                    found.add(node.attr)
            match node:
                case ast.Call(ast.Attribute(ast.Name("setting"), "option"), [ast.Constant(str(option))]):
                    found.add(option)
    return found


def test_every_setting_is_read_somewhere() -> None:
    assert set(FIELDS) - attributes_of_settings() == set()


def describe(setting: Setting) -> dict[str, Any]:
    """Return everything that a setting decides, before any training."""
    here = assemble(setting, 0)
    return {
        "method": str(methods.build(setting)),
        "answer": methods.build(setting).answer,
        "architecture": here.architecture,
        "start": here.start(0).params,
        "parts": [part.tolist() for part in here.parts],
        "images": here.data.images,
        "public": here.public.images,
        "test": here.test.images,
        "precision": here.precision,
    }


def differ(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return any(
        not torch.equal(one[key], other[key]) if isinstance(one[key], torch.Tensor) else one[key] != other[key]
        for key in one
    )


STEP = {"partition": "step", "client_images": 0}
ROLL = {"data": "swiss_roll", "model": "mlp", "test_images": 30}
# For each setting a context in which it matters, and another value.
CHANGES: dict[str, tuple[dict[str, Any], Any]] = {
    "data": ({"model": "mlp", "test_images": 30}, "swiss_roll"),
    "test_images": ({}, 50),
    "model": ({}, "convnet"),
    "shortcut": ({}, "B"),
    "norm": ({}, "group"),
    "groups": ({"norm": "group"}, 4),
    "extra_layers": ({"model": "convnet"}, 1),
    "hidden": (ROLL, 5),
    "initialisation": ({}, "kaiming"),
    "partition": ({}, "iid"),
    "partition_alpha": ({}, 0.3),
    "clients": ({}, 4),
    "major_classes": (STEP | {"clients": 10, "major_classes": 2}, 3),
    "major_images": (STEP, 4),
    "minor_images": (STEP | {"clients": 10, "major_classes": 2}, 0),
    "public_images": ({}, 30),
    "public_data": ({}, "photos"),
    "client_images": ({}, 90),
    "noise": (ROLL, 0.2),
    "turns": (ROLL, 1.5),
    "rounds": ({}, 5),
    "participation": ({}, 0.5),
    "local_epochs": ({}, 2),
    "uneven_epochs": ({}, True),
    "client_batch": ({}, 5),
    "client_lr": ({}, 0.02),
    "client_lr_decay": ({}, 0.99),
    "client_momentum": ({}, 0.8),
    "client_weight_decay": ({}, 0.0),
    "proximal_mu": ({"method": "fedprox"}, 0.1),
    "proximal_form": ({"method": "fedbe_fedprox", "proximal_mu": 0.1}, "official"),
    "scaffold_length": ({"method": "scaffold"}, "plain"),
    "lr_schedule": ({}, "paper"),
    "augment_pad": ({}, 2),
    "augment_flip": ({}, False),
    "method": ({}, "fedavg"),
    "client_shares": ({}, "uniform"),
    "server_momentum": ({"method": "fedavgm"}, 0.5),
    "momentum_form": ({"method": "fedbe_fedavgm", "server_momentum": 0.5}, "ema"),
    "bn_buffers": ({}, "last_client"),
    "teachers": ({}, "average"),
    "samples": ({}, 3),
    "posterior": ({}, "dirichlet"),
    "dirichlet_alpha": ({"posterior": "dirichlet"}, 2.0),
    "posterior_buffers": ({}, "sample"),
    "sharpen": ({}, 1.0),
    "distill_epochs": ({}, 3),
    "distill_batch": ({}, 5),
    "distill_lr": ({}, 0.002),
    "distill_momentum": ({}, 0.8),
    "distill_weight_decay": ({}, 0.0),
    "distill_augment": ({}, False),
    "swa_lr_low": ({}, 0.0001),
    "swa_start": ({}, 4),
    "swa_cycle": ({}, 3),
    "loss_scale": ({}, "official"),
    "precision": ({}, "bfloat16"),
}


@pytest.mark.parametrize("name", FIELDS)
def test_every_setting_changes_something(name: str) -> None:
    context, value = CHANGES[name]
    one = tiny.setting(**context)
    assert not differ(describe(one), describe(one))
    assert differ(describe(one), describe(one.with_(**{name: value})))
