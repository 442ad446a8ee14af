"""Settings: declared by whoever reads them, checked, hashed, and every one of them read."""

import ast
import copy
import dataclasses
import json
import pickle
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import torch

import fedrepro
from fedrepro.core.setting import ANY, COUNTED, OPTIONS, REQUIRED, Option, Setting, among, declare, digest
from fedrepro.federation.assemble import assemble, split
from fedrepro.federation.federation import Federation
from fedrepro.methods import catalogue as methods
from fedrepro.models.registry import NETWORKS, find
from fedrepro.models.sources import SOURCES

NAMES = list(OPTIONS)
NEUTRAL = {name: option.neutral for name, option in OPTIONS.items() if option.neutral is not REQUIRED}
NEEDED = [name for name in NAMES if name not in NEUTRAL]
LIMITED = [name for name in NAMES if OPTIONS[name].must is not ANY]


def test_the_shared_values_are_settings() -> None:
    assert set(NEEDED) <= set(tiny.SMALL) <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_every_option_is_whole(name: str) -> None:
    option = OPTIONS[name]
    assert option.text
    assert option.type in (str, int, float, bool)
    assert option.neutral is REQUIRED or type(option.neutral) is option.type
    assert option.example != option.neutral
    assert option.must.holds(option.example)
    assert option.neutral is REQUIRED or option.must.holds(option.neutral)
    assert set(option.where) <= set(OPTIONS)


class TestOf:
    def test_values_arrive(self) -> None:
        assert tiny.setting().asdict() == NEUTRAL | tiny.SMALL
        assert Setting.of(dict(reversed(tiny.SMALL.items()))) == tiny.setting()
        assert all(getattr(tiny.setting(), name) == value for name, value in (NEUTRAL | tiny.SMALL).items())

    def test_whole_numbers_are_real_numbers(self) -> None:
        found = tiny.setting(sharpen=2, participation=1)
        assert found == tiny.setting(sharpen=2.0, participation=1.0)
        assert type(found.sharpen) is float

    def test_an_unknown_name(self) -> None:
        with pytest.raises(ValueError, match=r"unknown setting 'client_l' \(did you mean 'client_lr'\?\)"):
            tiny.setting(client_l=0.1)

    @pytest.mark.parametrize("name", NEEDED)
    def test_a_missing_value(self, name: str) -> None:
        with pytest.raises(ValueError, match=f"settings without a value: {name}$"):
            Setting.of({key: value for key, value in tiny.SMALL.items() if key != name})

    def test_neutral_values_may_be_left_out(self) -> None:
        few = {name: tiny.SMALL[name] for name in NEEDED}
        assert Setting.of(few) == Setting.of(NEUTRAL | few)
        assert Setting.of(few).key == Setting.of(NEUTRAL | few).key
        assert Setting.of(few).asdict() == NEUTRAL | few

    @pytest.mark.parametrize("name", NAMES)
    def test_a_value_of_the_wrong_type(self, name: str) -> None:
        wrong: dict[type, list[Any]] = {
            str: [1, None],
            int: [1.0, "1", True],
            float: ["1", True],
            bool: [1, "yes"],
        }
        kind = OPTIONS[name].type
        assert Setting.types()[name] is kind
        for value in wrong[kind]:
            with pytest.raises(ValueError, match=f"{name} must be of type {kind.__name__}, got {value!r}"):
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
            ("validation_images", -1, ">= 0"),
            ("core_images", -1, ">= 0"),
            ("client_images", -1, ">= 0"),
            ("samples", -1, ">= 0"),
            ("swa_start", -1, ">= 0"),
            ("participation", 0.0, r"in \(0, 1\]"),
            ("participation", 1.4, r"in \(0, 1\]"),
            ("participation", float("nan"), r"in \(0, 1\]"),
            ("public_fraction", 0.0, r"in \(0, 1\]"),
            ("partition_alpha", 0.0, r"in \[1e-06, 1e\+12\]"),
            ("distill_lr", 1e308, "a number that float32 holds"),
            ("client_weight_decay", float("inf"), "a number that float32 holds"),
            ("dirichlet_alpha", 1e308, r"in \[1e-06, 1e\+12\]"),
            ("client_lr", 0.0, "> 0"),
            ("client_lr", float("nan"), "> 0"),
            ("loss_scale", "mean", '"cross_entropy" or "fedbe_official"'),
        ],
    )
    def test_a_value_out_of_range(self, name: str, value: Any, rule: str) -> None:
        with pytest.raises(ValueError, match=f"{name} must be {rule}, got {re.escape(repr(value))}"):
            tiny.setting(**{name: value})
        with pytest.raises(ValueError, match=f"{name} must be {rule}, got {re.escape(repr(value))}"):
            tiny.setting().with_(**{name: value})

    @pytest.mark.parametrize("name", LIMITED)
    def test_every_declared_range_is_held(self, name: str) -> None:
        option = OPTIONS[name]
        tried: dict[type, list[Any]] = {
            int: [-2, -1, 0, 1],
            float: [-1.0, 0.0, 1.0, 1.5, float("nan")],
            str: ["", "x"],
            bool: [False, True],
        }
        refused = [value for value in tried[option.type] if not option.must.holds(value)]
        assert refused
        for value in refused:
            with pytest.raises(ValueError) as caught:
                tiny.setting(**{name: value})
            assert str(caught.value) == f"{name} must be {option.must.text}, got {value!r}"

    def test_a_range_of_names(self) -> None:
        rule = among("left", "right")
        assert rule.text == '"left" or "right"'
        assert [rule.holds(value) for value in ("left", "right", "up")] == [True, True, False]


class TestOneValue:
    """A setting is one immutable value, whatever way it was made."""

    def test_changes_leave_the_original_alone(self) -> None:
        one = tiny.setting()
        other = one.with_(rounds=7)
        assert (one.rounds, other.rounds) == (tiny.SMALL["rounds"], 7)
        with pytest.raises(dataclasses.FrozenInstanceError):
            one.rounds = 3
        assert one.rounds == tiny.SMALL["rounds"]

    def test_back_to_the_neutral_value(self) -> None:
        one = tiny.setting()
        for name, value in NEUTRAL.items():
            assert getattr(one.with_(**{name: OPTIONS[name].example}).with_(**{name: value}), name) == value
        assert one.with_(proximal_mu=0.5).with_(proximal_mu=0.0) == one

    def test_equality_and_hash(self) -> None:
        one, same, other = tiny.setting(), tiny.setting(proximal_mu=0.0), tiny.setting(proximal_mu=0.5)
        assert one == same
        assert hash(one) == hash(same)
        assert one != other
        assert len({one, same, other}) == 2
        assert one != one.asdict()

    @pytest.mark.parametrize("travel", [copy.copy, copy.deepcopy, lambda s: pickle.loads(pickle.dumps(s))])
    def test_copies(self, travel: Any) -> None:
        one = tiny.setting(proximal_mu=0.5)
        assert travel(one) == one
        assert travel(one).key == one.key

    def test_it_shows_what_is_not_neutral(self) -> None:
        assert "proximal_mu=0.5" in repr(tiny.setting(proximal_mu=0.5))
        assert "proximal_mu" not in repr(tiny.setting())

    def test_plain_values_make_it_again(self) -> None:
        one = tiny.setting(proximal_mu=0.5)
        assert Setting.of(json.loads(json.dumps(one.asdict()))) == one


def world(setting: Setting) -> Federation:
    """Return a federation for a setting's stages, of random images."""
    return tiny.federation("resnet8", sizes=(4, 4), public=8, precision=setting.precision)


class TestRefusals:
    """A value that a stage refuses is a ValueError that names it, before anything is trained."""

    @pytest.mark.parametrize(
        ("changes", "named"),
        [
            ({"client_momentum": 1.0}, "momentum"),
            ({"client_weight_decay": -1.0}, "weight_decay"),
            ({"distill_momentum": -0.1}, "momentum"),
            ({"distill_weight_decay": -1.0}, "weight_decay"),
            ({"distill_epochs": 0}, "epochs"),
            ({"distill_lr": -1.0}, "learning rates must be"),
            ({"swa_lr_low": -1.0}, "learning rates must be"),
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
            ({"client_shares": "by_age"}, "client_shares"),
        ],
    )
    def test_stages(self, changes: dict[str, Any], named: str) -> None:
        setting = tiny.setting(**changes)
        here = world(setting)
        with pytest.raises(ValueError, match=named):
            methods.build(setting).init(here, 0)

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
            ({"initialisation": "zeros"}, "initialisation"),
            ({"partition": "shards"}, "partition"),
            ({"partition": "step", "major_images": 0}, "major_images"),
            ({"partition": "step", "major_classes": 11}, "major_classes"),
            ({"public_images": 2000}, "size"),
            ({"validation_images": 2000}, "size"),
            ({"core_images": 2000}, "size"),
            ({"public_data": "imagenet"}, "data set"),
            ({"public_data": "photos", "public_classes": 1000}, "public_classes"),
            ({"model": "resnet8+resnet21"}, "network"),
            ({"model": "resnet8+convnet", "clients": 1}, "each architecture a client"),
            ({"data": "swiss_roll", "test_images": 30, "noise": -0.1}, "noise"),
            ({"data": "swiss_roll", "test_images": 30, "turns": 0.0}, "turns"),
        ],
    )
    def test_the_federation(self, changes: dict[str, Any], named: str) -> None:
        with pytest.raises(ValueError, match=named):
            assemble(tiny.setting(**changes), 0).start(0)


def another(one: Setting, name: str) -> Setting:
    """Return a setting with another value of one option: its example, or the neutral one where it has that."""
    option = OPTIONS[name]
    return one.with_(**{name: option.example if getattr(one, name) != option.example else option.neutral})


class TestKeys:
    def test_form(self) -> None:
        key = tiny.setting().key
        assert len(key) == 12
        assert set(key) <= set("0123456789abcdef")
        assert key == tiny.setting().key

    def test_every_value_but_the_precision_counts(self) -> None:
        keys = {tiny.setting().key}
        for name in NAMES:
            changed = another(tiny.setting(), name)
            if name == "precision":
                assert changed.key in keys
            else:
                assert changed.key not in keys, name
                keys.add(changed.key)

    @pytest.mark.parametrize("name", NAMES)
    def test_a_neutral_value_counts_only_where_it_always_did(self, name: str) -> None:
        assert name in tiny.setting(**{name: OPTIONS[name].example}).hashed()
        if name in NEUTRAL:
            hashed, neutral = tiny.setting(**{name: NEUTRAL[name]}).hashed(), NEUTRAL[name]
            counts = OPTIONS[name].formerly.get(neutral, neutral)  # by the name that it had first
            assert (name in hashed) == (name in COUNTED)
            assert hashed.get(name, counts) == counts

    def test_what_always_counts_is_declared(self) -> None:
        assert set(NAMES) >= COUNTED
        assert set(tiny.setting().hashed()) >= COUNTED

    def test_digest_is_a_sha256_of_canonical_json(self) -> None:
        # printf '{"a": 2, "b": [1, 0.5]}' | sha256sum
        assert digest({"b": [1, 0.5], "a": 2}) == "145364b54516"


RENAMED = [(name, new, old) for name, option in OPTIONS.items() for new, old in option.formerly.items()]


class TestFormerNames:
    """A value that had another name before is still read by it, and counts by it in keys."""

    @pytest.mark.parametrize(("name", "new", "old"), RENAMED)
    def test_both_names_are_one_value(self, name: str, new: str, old: str) -> None:
        by_new, by_old = tiny.setting(**{name: new}), tiny.setting(**{name: old})
        assert by_old == by_new == tiny.setting().with_(**{name: old})
        assert getattr(by_old, name) == by_old.asdict()[name] == new
        assert by_old.key == by_new.key
        if name in COUNTED or new != OPTIONS[name].neutral:
            assert by_new.hashed()[name] == old

    def test_of_fedbe(self) -> None:
        found = {(name, old) for name, _, old in RENAMED}
        assert found >= {
            *(("lr_schedule", "paper"), ("lr_schedule", "official"), ("loss_scale", "paper")),
            *(("loss_scale", "official"), ("posterior", "gaussian_official"), ("posterior", "dirichlet_official")),
            *(("partition", "step_official"), ("proximal_form", "official")),
        }

    @pytest.mark.parametrize("name", NAMES)
    def test_no_name_means_two_values(self, name: str) -> None:
        formerly = OPTIONS[name].formerly
        assert len(set(formerly.values())) == len(formerly)
        assert not set(formerly) & set(formerly.values())


class TestOptions:
    def test_a_stage_declares_its_own(self, monkeypatch: pytest.MonkeyPatch) -> None:
        before = tiny.setting()
        option = Option("whether it begins warm", neutral=False, example=True)
        monkeypatch.setitem(OPTIONS, "warm_start", option)  # what declare() does
        assert before.warm_start is False
        assert tiny.setting() == before
        assert tiny.setting().key == before.key  # old runs keep their keys
        changed = tiny.setting(warm_start=True)
        assert changed.warm_start is True
        assert changed.with_(samples=9).warm_start is True
        assert Setting.of(changed.asdict()) == changed
        assert changed.key != before.key
        with pytest.raises(ValueError, match="warm_start must be of type bool, got 1"):
            tiny.setting(warm_start=1)

    def test_declaring_twice(self) -> None:
        known = OPTIONS["proximal_mu"]
        declare(proximal_mu=known)  # a module may be read again
        for name in ("proximal_mu", "client_lr"):
            with pytest.raises(ValueError, match=f"the option '{name}' is declared already"):
                declare(**{name: Option("another", neutral=0.25, example=0.75)})
        assert OPTIONS["proximal_mu"] is known

    def test_declaring_is_all_or_nothing_and_keeps_the_type(self) -> None:
        another = Option("new", neutral=1, example=2)
        with pytest.raises(ValueError, match="'rounds' is declared already"):
            declare(another=another, rounds=Option("other", neutral=3, example=4))
        with pytest.raises(ValueError, match="'proximal_mu' is declared already"):
            declare(another=another, proximal_mu=Option("whole", neutral=0, example=1))
        with pytest.raises(ValueError, match=r"mixed: 0 and 0\.5 must be of one type"):
            declare(another=another, mixed=Option("both", neutral=0, example=0.5))
        assert not {"another", "mixed"} & set(OPTIONS)

    @pytest.mark.parametrize("extra", [{}, {"proximal_mu": 0.1}, {"stem": "small", "public_fraction": 0.5}])
    def test_options_are_known_where_methods_and_federations_are(self, extra: dict[str, Any]) -> None:
        text = json.dumps(tiny.setting(**extra).asdict())
        code = (
            "import json, fedrepro.methods.catalogue, fedrepro.federation.assemble; "
            f"from fedrepro.core.setting import Setting; print(Setting.of(json.loads({text!r})).key)"
        )
        found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert found.stdout.strip() == tiny.setting(**extra).key

    def test_an_unknown_option(self) -> None:
        with pytest.raises(AttributeError, match=r"unknown setting 'proximal_my' \(did you mean 'proximal_mu'"):
            _ = tiny.setting().proximal_my
        assert not hasattr(tiny.setting(), "option")


def attributes_of_settings() -> set[str]:
    """Return the names x of all expressions `setting.x` or `….setting.x` of the library."""
    folder = Path(fedrepro.__file__).parent
    found = set()
    for path in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
                owner = node.value
                name = owner.id if isinstance(owner, ast.Name) else getattr(owner, "attr", None)
                if name == "setting":
                    found.add(node.attr)
    return found


def read_by_networks() -> set[str]:
    """Return the settings that networks take options from, the library's own and those of others."""
    networks = [*NETWORKS.values(), *(find(f"{source}/any") for source in SOURCES)]
    return {setting for network in networks for setting in network.reads.values()}


def read_by_the_split() -> set[str]:
    """Return the sizes of the server's parts, which `split` reads by name."""
    labels = np.repeat(np.arange(10), 10)
    _, server = split(tiny.setting(public_images=0, client_images=0), labels, 0)
    return {f"{part}_images" for part in server}


def test_every_setting_is_read_somewhere() -> None:
    read = attributes_of_settings() | read_by_networks() | read_by_the_split()
    assert set(NAMES) - read == set()


def describe(setting: Setting) -> dict[str, Any]:
    """Return everything that a setting decides, before any training."""
    here = assemble(setting, 0)
    return {
        "method": str(methods.build(setting)),
        "answer": methods.build(setting).answer,
        "architectures": [(world.architecture, world.own) for world in here.worlds],
        "start": [world.start(0).params.tolist() for world in here.worlds],
        "parts": [part.tolist() for part in here.parts],
        "images": here.data.images,
        "public": here.public.images,
        "validation": here.validation.images,
        "core": here.core.images,
        "test": here.test.images,
        "precision": here.precision,
    }


def differ(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return any(
        not torch.equal(one[key], other[key]) if isinstance(one[key], torch.Tensor) else one[key] != other[key]
        for key in one
    )


@pytest.mark.parametrize("name", NAMES)
def test_every_setting_changes_something(name: str) -> None:
    one = tiny.setting(**OPTIONS[name].where)
    assert not differ(describe(one), describe(one))
    assert differ(describe(one), describe(another(one, name)))
