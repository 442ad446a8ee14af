"""Every choice that a run's numbers depend on, in one frozen, checked, hashable value.

Whoever reads a setting declares it: the federation what it is made of, a stage its own options. This module knows
none of them, but for `COUNTED`, which keeps old keys as they are.
"""

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import FrozenInstanceError, dataclass, field
from typing import Any

from fedrepro.core.names import nearest


@dataclass(frozen=True)
class Range:
    """Which values are allowed: a rule in words, and whether a value keeps it."""

    text: str
    holds: Callable[[Any], bool]


def at_least(least: float) -> Range:
    """Allow values of `least` or more."""
    return Range(f">= {least}", lambda value: value >= least)


def above(bound: float) -> Range:
    """Allow values of more than `bound`."""
    return Range(f"> {bound}", lambda value: value > bound)


def among(*names: str) -> Range:
    """Allow some names."""
    return Range(" or ".join(f'"{name}"' for name in names), lambda value: value in names)


LARGEST = (2 - 2**-23) * 2.0**127  # of float32
ANY = Range("anything", lambda value: True)
SHARE = Range("in (0, 1]", lambda value: 0 < value <= 1)
# Of a Dirichlet distribution: far outside, its draws are zero or all of one, whatever is asked for.
CONCENTRATION = Range("in [1e-06, 1e+12]", lambda value: 1e-6 <= value <= 1e12)
REQUIRED: Any = type("Required", (), {"__repr__": lambda self: "REQUIRED"})()


@dataclass(frozen=True)
class Option:
    """One value of a setting.

    Args:
        text: what it is, with its unit or its names, for people.
        neutral: the value that stands for "without it", which then does not count in keys; it fixes the type.
            `REQUIRED` for what every setting must give.
        example: another value, for which something changes; of the type of all values.
        where: other settings in whose company the example changes something.
        must: which values are allowed; what a stage checks for itself need not be said here.
        formerly: names of values that had another one before: new -> old. The old ones are still read, and
            count in keys.
    """

    text: str
    neutral: Any
    example: Any
    where: Mapping[str, Any] = field(default_factory=dict)
    must: Range = ANY
    formerly: Mapping[str, str] = field(default_factory=dict)

    @property
    def type(self) -> type:
        """The type of all values."""
        return type(self.example)


OPTIONS: dict[str, Option] = {}  # filled by `declare`

# These count in keys whatever their value: they were there before options knew a neutral one.
COUNTED = frozenset(
    (
        *(
            "data",
            "test_images",
            "model",
            "shortcut",
            "norm",
            "groups",
            "extra_layers",
            "hidden",
            "initialisation",
        ),
        *("partition", "partition_alpha", "clients", "major_classes", "major_images", "minor_images"),
        *("public_images", "client_images", "noise", "rounds", "participation", "local_epochs", "client_batch"),
        *("client_lr", "client_momentum", "client_weight_decay", "lr_schedule", "augment_pad", "augment_flip"),
        *("method", "bn_buffers", "samples", "posterior", "dirichlet_alpha", "posterior_buffers", "sharpen"),
        *("distill_epochs", "distill_batch", "distill_lr", "distill_momentum", "distill_weight_decay"),
        *("swa_lr_low", "swa_start", "swa_cycle", "loss_scale", "precision"),
    )
)


def declare(**options: Option) -> None:
    """Declare options; called by the module that reads them, when it is imported.

    Raises:
        ValueError: for an option that was declared with another neutral value or example, or whose neutral value
            is not of the example's type; then nothing is declared.
    """
    for name, option in options.items():
        known = OPTIONS.get(name, option)
        if repr((known.neutral, known.example)) != repr((option.neutral, option.example)):
            raise ValueError(f"the option {name!r} is declared already")
        if option.neutral is not REQUIRED and type(option.neutral) is not option.type:
            raise ValueError(f"{name}: {option.neutral!r} and {option.example!r} must be of one type")
    OPTIONS.update(options)


class Setting:
    """The setting of a run; together with a seed and the data it determines every number.

    Every declared option is an attribute. Values and their sources are in `papers/<paper>/settings.toml`.
    """

    __slots__ = ("_given",)
    _given: dict[str, Any]  # values that differ from the neutral one

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> "Setting":
        """Build a setting from plain values; options with a neutral value may be left out.

        Raises:
            ValueError: for an unknown name (with the nearest real one), a missing one, or a value of the wrong
                type or out of its range.
        """
        for name in values:
            if name not in OPTIONS:
                raise ValueError(f"unknown setting {name!r}{nearest(name, OPTIONS)}")
        missing = [name for name, option in OPTIONS.items() if option.neutral is REQUIRED and name not in values]
        if missing:
            raise ValueError(f"settings without a value: {', '.join(missing)}")
        given = {}
        for name in sorted(values):
            option, value = OPTIONS[name], values[name]
            if option.type is float and isinstance(value, int) and not isinstance(value, bool):
                value = float(value)
            value = value + 0.0 if type(value) is float else value  # -0.0 is 0.0
            if type(value) is not option.type:
                raise ValueError(f"{name} must be of type {option.type.__name__}, got {value!r}")
            value = next((new for new, old in option.formerly.items() if old == value), value)
            if not option.must.holds(value):
                raise ValueError(f"{name} must be {option.must.text}, got {value!r}")
            if type(value) is float and not abs(value) <= LARGEST:
                raise ValueError(f"{name} must be a number that float32 holds, got {value!r}")
            if value != option.neutral:
                given[name] = value
        made = cls.__new__(cls)
        object.__setattr__(made, "_given", given)
        return made

    @classmethod
    def types(cls) -> dict[str, type]:
        """Return the type of every value by its name."""
        return {name: option.type for name, option in OPTIONS.items()}

    def with_(self, **changes: Any) -> "Setting":
        """Return a copy with some values changed, checked like a new one."""
        return Setting.of(self._given | changes)

    def asdict(self) -> dict[str, Any]:
        """Return the plain values, name -> value."""
        return {name: self._given.get(name, option.neutral) for name, option in OPTIONS.items()}

    def hashed(self) -> dict[str, Any]:
        """Return the values that a run's key depends on: all but those that are at their neutral value."""
        counted = {name: option.neutral for name, option in OPTIONS.items() if name in COUNTED}
        values = counted | self._given
        return {name: OPTIONS[name].formerly.get(value, value) for name, value in values.items()}

    @property
    def key(self) -> str:
        """A 12-digit hash of all values but the precision: what the cell of a table is about."""
        values = self.hashed()
        del values["precision"]
        return digest(values)

    def __getattr__(self, name: str) -> Any:
        """Return the value of an option."""
        given: dict[str, Any] = object.__getattribute__(self, "_given")
        if name in given:
            return given[name]
        if name not in OPTIONS:
            raise AttributeError(f"unknown setting {name!r}{nearest(name, OPTIONS)}")
        return OPTIONS[name].neutral

    def __setattr__(self, name: str, value: Any) -> None:
        """Refuse to be changed; `with_` makes a changed copy."""
        raise FrozenInstanceError(f"cannot assign to {name!r}: a setting never changes, with_ makes another")

    def __reduce__(self) -> tuple[Any, ...]:
        """Let copies and other processes be made of the plain values."""
        return Setting.of, (self._given,)

    def __eq__(self, other: object) -> bool:
        """Whether all values are the same."""
        return isinstance(other, Setting) and self._given == other._given

    def __hash__(self) -> int:
        """Return a hash of all values."""
        return hash(tuple(self._given.items()))

    def __repr__(self) -> str:
        """Show what differs from the neutral values."""
        return f"Setting({', '.join(f'{name}={value!r}' for name, value in self._given.items())})"


def digest(value: Any) -> str:
    """Return the first 12 hex digits of the SHA-256 of a value's canonical JSON."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:12]
