"""What a run costs in images: those that clients and students train on, and those that are predicted.

Left out: the images on which BatchNorm statistics are recomputed, and the last look at which test images are
right.

Shapes: S participants, M members.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from fedrepro.core.setting import Setting
from fedrepro.data.data import spec_of
from fedrepro.data.datasets import DATASETS
from fedrepro.data.swiss_roll import swiss_roll
from fedrepro.federation.assemble import split
from fedrepro.methods import catalogue as methods
from fedrepro.stages.teach import Average, Clients, Union

# Options, by the beginning of their names, that do not say who holds how many images.
ELSEWHERE = (
    *("method", "model", "rounds", "precision", "samples", "teachers", "posterior", "sharpen", "dirichlet_alpha"),
    *("distill_", "swa_", "loss_scale", "local_epochs", "uneven_epochs", "participation", "augment_", "proximal_"),
    *("client_lr", "client_momentum", "client_weight", "client_batch", "client_shares", "lr_", "server_"),
    *("scaffold_", "bn_buffers", "shortcut", "norm", "groups", "extra_layers", "hidden", "initialisation"),
    *("test_images", "public_data", "public_classes", "public_fraction"),
)


@dataclass(frozen=True)
class Images:
    """Images of a run: trained on by clients and by students, each pass counted; predicted, each model counted."""

    clients: float = 0.0
    students: float = 0.0
    predicted: float = 0.0

    @property
    def trained(self) -> float:
        """All images that something is trained on."""
        return self.clients + self.students

    def __add__(self, other: "Images") -> "Images":
        """Return the images of both."""
        return Images(
            self.clients + other.clients, self.students + other.students, self.predicted + other.predicted
        )


def images(setting: Setting) -> Images:
    """Count the images of a run whose rounds are all played.

    Clients: of each round the images of the participants, as many as on average where not all take part, times
    their passes, the mean of them where they are uneven. Students: the public images times the passes of
    distillation. Predicted: in each round the teachers on the public images, if they are asked, the global model
    on the test images, and the average as well where it is distilled; in the last round the ensemble on the test
    images.
    """
    method = methods.build(setting)
    stages = dict(method.stages)
    plan, distill = stages.get("plan"), stages.get("distill")
    held = _held(tuple((name, v) for name, v in setting.asdict().items() if not name.startswith(ELSEWHERE)))
    share, passes, participants = 1.0, 1.0, setting.clients  # of a method that plays its own rounds
    if plan is not None:
        participants = max(1, int(getattr(plan, "participation", 1.0) * setting.clients + 0.5))
        share, passes = participants / setting.clients, float(getattr(plan, "local_epochs", 1))
        passes = (1 + passes) / 2 if getattr(plan, "uneven", False) else passes
    epochs = getattr(distill, "epochs", 0)
    asked = bool(epochs) and getattr(distill, "targets", "ensemble") == "ensemble"
    public, test = _public(setting), _test(setting)
    members = _members(stages.get("teach"), participants)
    looks = (2 if epochs else 1) * test
    return Images(
        clients=setting.rounds * share * held * passes,
        students=float(setting.rounds * public * epochs),
        predicted=float(setting.rounds * (members * public * asked + looks) + members * test),
    )


def total(settings: Iterable[Setting]) -> Images:
    """Return the images of several runs together."""
    return sum(map(images, settings), Images())


@lru_cache(maxsize=1024)
def _held(values: tuple[tuple[str, object], ...]) -> int:
    """Return how many images all clients hold together; labels are enough, no images are read."""
    setting: Any = _Values(dict(values))
    if setting.data == "swiss_roll":
        drawn = swiss_roll(
            clients=setting.clients, test_images=1, turns=1.0, noise=0.0, rng=np.random.default_rng(0)
        )
        return sum(map(len, drawn[0]))
    spec = spec_of(setting.data)
    # Of shipped sets the classes are not quite equally large, which is as good here.
    labels = np.sort(np.resize(np.arange(len(spec.classes)), spec.sizes["train"]))
    parts, _ = split(setting, labels, 0)
    return sum(map(len, parts))


class _Values:
    """Some values of a setting, read like a setting's."""

    def __init__(self, values: dict[str, object]) -> None:
        self.__dict__.update(values)

    def __getattr__(self, name: str) -> Any:
        """Refuse a value that was left out."""
        raise AttributeError(f"{name} was thought not to say who holds what: see ELSEWHERE")


def _public(setting: Setting) -> int:
    """Return how many public images the server holds."""
    if setting.public_data not in DATASETS:
        return int(setting.public_images)
    spec = spec_of(setting.public_data)
    kept = setting.public_classes / len(spec.classes) if setting.public_classes else 1.0
    return max(1, round(setting.public_fraction * kept * spec.sizes["train"]))


def _test(setting: Setting) -> int:
    """Return how many test images there are; 0 stands for all."""
    return int(setting.test_images or spec_of(setting.data).sizes["test"])


def _members(teach: object, participants: int) -> int:
    """Return how many models teach where so many clients take part."""
    if isinstance(teach, Union):
        return sum(_members(source, participants) for source in teach.sources)
    if isinstance(teach, Clients):
        return participants
    return 1 if isinstance(teach, Average) else int(getattr(teach, "samples", 0))
