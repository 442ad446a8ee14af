"""Which settings a run reads, and at which stage: found by building its parts with a setting that takes notes.

No list is kept: what a method, network or partition reads tomorrow is seen tomorrow.
"""

import sys
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, cast

import numpy as np

from fedrepro.core.setting import Setting
from fedrepro.data.data import spec_of
from fedrepro.data.datasets import DATASETS
from fedrepro.federation.assemble import PARTITIONS
from fedrepro.methods import catalogue as methods
from fedrepro.models import registry
from fedrepro.stages.posterior import posterior

GROUPS = {  # the module that reads a setting -> what a table calls it, in the order of a round
    "data": "data",
    "partition": "partition",
    "public": "the server's images",
    "models": "network",
    "play": "rounds",
    "plan": "who takes part",
    "train": "clients' training",
    "rates": "learning rates",
    "weigh": "weights of clients",
    "server": "server",
    "teach": "teachers",
    "posterior": "teachers",
    "combine": "combining predictions",
    "distill": "distillation",
    "methods": "method",
}
ORDER = list(dict.fromkeys(GROUPS.values()))


class Noted(Setting):
    """A setting that notes which of its values are read, and by which module first."""

    __slots__ = ("_notes",)
    _notes: dict[str, str]

    def __getattr__(self, name: str) -> Any:
        """Return the value of an option, and note it."""
        value = super().__getattr__(name)
        self._notes.setdefault(name, sys._getframe(1).f_globals.get("__name__", "").rpartition(".")[2])
        return value


def noting(setting: Setting) -> tuple[Noted, dict[str, str]]:
    """Return a setting that takes notes, and its notes: option -> name of the module that read it first."""
    notes: dict[str, str] = {}
    noted = cast(Noted, Noted.of(setting.asdict()))
    object.__setattr__(noted, "_notes", notes)
    return noted, notes


def reads(setting: Setting) -> dict[str, str]:
    """Return the options that a run of a setting reads, each with its group, one of `ORDER`."""
    noted, notes = noting(setting)
    methods.build(noted)
    if setting.data == "swiss_roll":  # the toy's figures draw samples whatever the method
        posterior(noted)
    found = {name: GROUPS.get(module, GROUPS["methods"]) for name, module in notes.items()}
    found |= dict.fromkeys(("rounds", "precision"), GROUPS["play"])
    found |= dict.fromkeys(("data", "test_images"), GROUPS["data"])
    found |= dict.fromkeys(_network(setting), GROUPS["models"])
    found |= dict.fromkeys(_partition(setting), GROUPS["partition"])
    return found | dict.fromkeys(_public(setting), GROUPS["public"])


def _network(setting: Setting) -> Iterable[str]:
    """Return what the setting's networks read."""
    yield from ("model", "initialisation")
    for name in setting.model.split("+"):
        network = registry.find(name)
        for option, source in network.reads.items():
            other, wanted = network.when.get(option, (source, getattr(setting, source)))
            if getattr(setting, other) == wanted:
                yield source


def _partition(setting: Setting) -> Iterable[str]:
    """Return what the partition reads: it is carried out on a few labels."""
    if setting.data == "swiss_roll":
        return ("partition", "clients", "turns", "noise")
    noted, notes = noting(setting)
    labels = np.arange(1000) % len(spec_of(setting.data).classes)
    with suppress(ValueError):  # a thousand images may be too few: it has read its numbers all the same
        PARTITIONS[setting.partition](noted, labels, np.random.default_rng(0))
    return ("partition", "client_images", *notes)


def _public(setting: Setting) -> Iterable[str]:
    """Return what the server's images are made of."""
    if setting.data == "swiss_roll":
        return ()
    further = ("public_classes", "public_fraction") if setting.public_data in DATASETS else ()
    return ("public_images", "public_data", *further)
