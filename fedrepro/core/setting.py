"""Every choice that a run's numbers depend on, in one frozen, checked, hashable value."""

import dataclasses
import difflib
import hashlib
import importlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

T = TypeVar("T")

# A setting that came later than others has here the value that stands for "as before it existed". It then does
# not count in the hash, so runs and records from before keep their keys.
NEUTRAL: Mapping[str, Any] = {
    "turns": 0.6,
    "public_data": "",
    "uneven_epochs": False,
    "client_lr_decay": 1.0,
    "teachers": "average+clients+samples",
    "distill_augment": True,
}

# Options of single stages, each with its neutral value. The stage's module declares them.
OPTIONS: dict[str, Any] = {}


def declare(**neutral: Any) -> None:
    """Declare options that one stage reads, beside the fields of `Setting`; called by the stage's module.

    Args:
        neutral: for each option the value that stands for "without it"; it fixes the type, and where a
            setting has it, the option does not count in the hash.

    Raises:
        ValueError: for the name of a field, or an option that was declared with another value.
    """
    fields = {f.name for f in dataclasses.fields(Setting)}
    for name, value in neutral.items():
        known = OPTIONS.get(name, value)
        if name in fields or type(known) is not type(value) or known != value:
            raise ValueError(f"the option {name!r} is declared already")
    OPTIONS.update(neutral)


def options() -> dict[str, Any]:
    """Return the options that the stages of all methods declared, with their neutral values."""
    importlib.import_module(
        "fedrepro.methods.catalogue"
    )  # whoever only reads settings has not imported the stages
    return OPTIONS


@dataclass(frozen=True, kw_only=True)
class Setting:
    """The setting of a run; together with a seed and the data it determines every number.

    Values and their sources are in `papers/<paper>/settings.toml`; nothing has a default here.

    Args:
        data: data set of clients, server and test: "digits", "cifar10" or "swiss_roll".
        test_images: size of the test set used, stratified; 0 for all.
        model: name of a network, see `models.NAMES`.
        shortcut: ResNet option, "A" or "B"; ignored by other networks.
        norm: "batch" or "group"; ignored by networks without normalisation.
        groups: groups of GroupNorm.
        extra_layers: further convolutions of the ConvNet (FedBE's Figure 2).
        hidden: width of the toy's MLP.
        initialisation: "xavier" or "kaiming".
        partition: "step", "step_official" (overlapping shards, as in FedBE's released code), "dirichlet", "iid",
            "central" (one client holds everything) or "swiss_roll" (the toy's own).
        partition_alpha: concentration of the Dirichlet partition, > 0.
        clients: number of clients S.
        major_classes, major_images, minor_images: the Step partition's classes per client with many images,
            images of each of those, and images of every other class.
        public_images: images set aside, stratified, for the server.
        public_data: data set whose training images the server distils on instead, all of them; "" for none.
        client_images: images of all clients together, stratified; 0 for all that the server leaves. The Step
            partition sets its own number.
        noise, turns: radius noise and turns of each arm of the Swiss roll.
        rounds: communication rounds; epochs of centralised training.
        participation: share of clients per round, in (0, 1].
        local_epochs: passes over a client's images per round.
        uneven_epochs: whether each client makes from 1 to `local_epochs` passes, drawn for each round.
        client_batch, client_lr, client_momentum, client_weight_decay: local SGD.
        client_lr_decay: factor on the learning rate from step to step within a round.
        lr_schedule: learning rate over rounds, a name of `optim.ROUND_SCHEDULES`.
        augment_pad, augment_flip: crops after padding by so many pixels; mirroring.
        method: name of a method, see `methods.METHODS`.
        teachers: FedBE's teachers: some of "average", "clients" and "samples", joined by "+".
        bn_buffers: where the average's BatchNorm statistics come from, see `server.Replace`.
        samples: teachers drawn from the posterior.
        posterior: "gaussian", "dirichlet", or as FedBE's released code has them "gaussian_official" and
            "dirichlet_official".
        dirichlet_alpha: concentration of the Dirichlet posterior, > 0.
        posterior_buffers: see `posterior.Gaussian`.
        sharpen: exponent on the ensemble's probabilities.
        distill_epochs, distill_batch, distill_momentum, distill_weight_decay: distillation's SGD.
        distill_lr: its constant learning rate without SWA, and the top of the cycle with SWA.
        distill_augment: whether the student sees augmented images.
        swa_lr_low, swa_start, swa_cycle: the bottom of the cycle, first collection and cycle in steps.
        loss_scale: "paper" (cross-entropy) or "official" (divided by the number of classes).
        precision: "float32" or "bfloat16" convolutions.
        options: what stages declared for themselves (`declare`), as (name, value) in order of their names;
            values that are neutral are left out. `option` reads them.
    """

    data: str
    test_images: int
    model: str
    shortcut: str
    norm: str
    groups: int
    extra_layers: int
    hidden: int
    initialisation: str
    partition: str
    partition_alpha: float
    clients: int
    major_classes: int
    major_images: int
    minor_images: int
    public_images: int
    public_data: str
    client_images: int
    noise: float
    turns: float
    rounds: int
    participation: float
    local_epochs: int
    uneven_epochs: bool
    client_batch: int
    client_lr: float
    client_lr_decay: float
    client_momentum: float
    client_weight_decay: float
    lr_schedule: str
    augment_pad: int
    augment_flip: bool
    method: str
    bn_buffers: str
    teachers: str
    samples: int
    posterior: str
    dirichlet_alpha: float
    posterior_buffers: str
    sharpen: float
    distill_epochs: int
    distill_batch: int
    distill_lr: float
    distill_momentum: float
    distill_weight_decay: float
    distill_augment: bool
    swa_lr_low: float
    swa_start: int
    swa_cycle: int
    loss_scale: str
    precision: str
    options: tuple[tuple[str, Any], ...] = ()

    @classmethod
    def types(cls) -> dict[str, Any]:
        """Return the type of every value by its name: the fields, then the options that stages declared."""
        fields = {f.name: f.type for f in dataclasses.fields(cls) if f.name != "options"}
        return fields | {name: type(value) for name, value in options().items()}

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> "Setting":
        """Build a setting from plain values; those of `NEUTRAL` and declared options may be left out.

        Raises:
            ValueError: for an unknown name (with the nearest real one), a missing one, or a value of the wrong
                type or out of its range.
        """
        types = cls.types()
        names = list(types)
        for name in values:
            if name not in names:
                raise ValueError(f"unknown setting {name!r}{nearest(name, names)}")
        values = {**NEUTRAL, **options(), **values}
        missing = [name for name in names if name not in values]
        if missing:
            raise ValueError(f"settings without a value: {', '.join(missing)}")
        typed = {}
        for name, kind in types.items():
            value = values[name]
            if kind is float and isinstance(value, int) and not isinstance(value, bool):
                value = float(value)
            if type(value) is not kind:
                raise ValueError(f"{name} must be of type {kind.__name__}, got {value!r}")
            typed[name] = value
        chosen = {name: typed.pop(name) for name in sorted(OPTIONS)}
        return cls(**typed, options=tuple(item for item in chosen.items() if item[1] != OPTIONS[item[0]]))

    def __post_init__(self) -> None:
        """Check the ranges that no stage checks for itself."""
        for name in ("rounds", "clients", "local_epochs", "client_batch", "distill_batch"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be >= 1, got {getattr(self, name)}")
        for name in ("test_images", "public_images", "client_images", "samples", "swa_start"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must be >= 0, got {getattr(self, name)}")
        if not 0 < self.participation <= 1:
            raise ValueError(f"participation must be in (0, 1], got {self.participation}")
        for name in ("partition_alpha", "dirichlet_alpha", "client_lr"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be > 0, got {getattr(self, name)}")
        if self.loss_scale not in ("paper", "official"):
            raise ValueError(f'loss_scale must be "paper" or "official", got {self.loss_scale!r}')

    def with_(self, **changes: Any) -> "Setting":
        """Return a copy with some values changed, checked like a new one."""
        return Setting.of(self.asdict() | changes)

    def option(self, name: str) -> Any:
        """Return the value of an option that a stage declared.

        Raises:
            ValueError: for an option that no stage declared, with the nearest real one.
        """
        return dict(self.options).get(name, pick("option", name, options()))

    def asdict(self) -> dict[str, Any]:
        """Return the plain values, name -> value."""
        values = dict(vars(self))
        chosen = dict(values.pop("options"))
        return values | options() | chosen

    def hashed(self) -> dict[str, Any]:
        """Return the values that a run's key depends on: all but those that are at their neutral value."""
        neutral = {**NEUTRAL, **options()}
        return {n: v for n, v in self.asdict().items() if n not in neutral or v != neutral[n]}

    @property
    def key(self) -> str:
        """A 12-digit hash of all values but the precision: what the cell of a table is about."""
        values = self.hashed()
        del values["precision"]
        return digest(values)


def pick(what: str, name: str, choices: Mapping[str, T]) -> T:
    """Return the choice of a name.

    Raises:
        ValueError: for an unknown name, with the nearest real one.
    """
    if name not in choices:
        raise ValueError(f"unknown {what} {name!r}{nearest(name, list(choices))}")
    return choices[name]


def nearest(name: str, names: list[str] | tuple[str, ...]) -> str:
    """Return " (did you mean 'x'?)" for the nearest of some names, or nothing."""
    close = difflib.get_close_matches(name, names, n=1)
    return f" (did you mean {close[0]!r}?)" if close else f"; there are {', '.join(names)}"


def digest(value: Any) -> str:
    """Return the first 12 hex digits of the SHA-256 of a value's canonical JSON."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:12]
