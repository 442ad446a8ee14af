"""From a setting and a seed to the federation that they describe.

A new partition is an entry in `PARTITIONS`: a function from a setting, labels and a generator to the clients'
images.

Shapes: N images, S clients.
"""

from collections.abc import Callable

import numpy as np
import torch

from fedrepro.core.names import pick
from fedrepro.core.rng import numpy_generator
from fedrepro.core.setting import CONCENTRATION, REQUIRED, Option, Setting, at_least, declare
from fedrepro.data import partition
from fedrepro.data.data import Data, spec_of
from fedrepro.data.partition import Index, Labels
from fedrepro.data.swiss_roll import swiss_roll
from fedrepro.federation.federation import Federation
from fedrepro.federation.loaded import datasets
from fedrepro.federation.public import public_data
from fedrepro.models import settings as settings
from fedrepro.models.architecture import Architecture
from fedrepro.models.registry import options_of

STEP = {"partition": "step", "client_images": 0}
ROLL = {"data": "swiss_roll", "model": "mlp", "test_images": 30}
declare(
    data=Option(
        'data set of clients, server and test: a name of `DATASETS`, or "swiss_roll"',
        neutral=REQUIRED,
        example="swiss_roll",
        where={"model": "mlp", "test_images": 30},
    ),
    test_images=Option(
        "size of the test set used, stratified; 0 for all", neutral=0, example=50, must=at_least(0)
    ),
    validation_images=Option(
        "labelled images set aside, stratified, for the server to choose by",
        neutral=0,
        example=20,
        must=at_least(0),
    ),
    core_images=Option(
        "labelled images set aside, stratified, on which the server trains",
        neutral=0,
        example=20,
        must=at_least(0),
    ),
    client_images=Option(
        "images of all clients together, stratified; 0 for all that the server leaves. The Step partition sets "
        "its own number",
        neutral=0,
        example=90,
        must=at_least(0),
    ),
    clients=Option("number of clients S", neutral=REQUIRED, example=4, must=at_least(1)),
    partition=Option(
        "who holds what: a name of `PARTITIONS`",
        neutral=REQUIRED,
        example="iid",
        formerly={"step_fedbe_official": "step_official"},
    ),
    partition_alpha=Option(
        "concentration of the Dirichlet partition", neutral=0.1, example=0.3, must=CONCENTRATION
    ),
    major_classes=Option(
        "Step: classes of a client with many images",
        neutral=2,
        example=3,
        where=STEP | {"clients": 10, "major_classes": 2},
    ),
    major_images=Option("Step: images of each of those", neutral=1960, example=4, where=STEP),
    minor_images=Option(
        "Step: images of every other class",
        neutral=10,
        example=0,
        where=STEP | {"clients": 10, "major_classes": 2},
    ),
    split_seed=Option(
        "the seed of the split, for every run: public images and who holds what; -1 for the run's own",
        neutral=-1,
        example=1,
        must=at_least(-1),
    ),
    noise=Option("radius noise of the Swiss roll", neutral=0.1, example=0.2, where=ROLL),
    turns=Option("turns of each arm of the Swiss roll", neutral=0.6, example=1.5, where=ROLL),
    precision=Option('"float32" or "bfloat16" convolutions', neutral="float32", example="bfloat16"),
)

Partition = Callable[[Setting, Labels, np.random.Generator], list[Index]]


def step(setting: Setting, labels: Labels, rng: np.random.Generator) -> list[Index]:
    """Step, exact counts (FedBE 5.1)."""
    return partition.step(
        labels,
        clients=setting.clients,
        major_classes=setting.major_classes,
        major_images=setting.major_images,
        minor_images=setting.minor_images,
        rng=rng,
    )


def step_fedbe_official(setting: Setting, labels: Labels, rng: np.random.Generator) -> list[Index]:
    """Step by overlapping shards (FedBE's released code)."""
    return partition.step_shards(
        labels,
        clients=setting.clients,
        shards_each=setting.major_classes,
        minor_images=setting.minor_images,
        rng=rng,
    )


def dirichlet(setting: Setting, labels: Labels, rng: np.random.Generator) -> list[Index]:
    """Each class over the clients in Dirichlet proportions (FedBE 5.1)."""
    return partition.classwise(labels, clients=setting.clients, partition_alpha=setting.partition_alpha, rng=rng)


def dirichlet_fedbe_official(setting: Setting, labels: Labels, rng: np.random.Generator) -> list[Index]:
    """Dirichlet proportions with two images of each class for each client, and a limit (FedBE's released code)."""
    return partition.classwise_with_least(
        labels,
        clients=setting.clients,
        partition_alpha=setting.partition_alpha,
        full=(len(labels) + setting.public_images) / setting.clients,
        rng=rng,
    )


def iid(setting: Setting, labels: Labels, rng: np.random.Generator) -> list[Index]:
    """Equal parts at random."""
    return partition.iid(labels, clients=setting.clients, rng=rng)


def central(setting: Setting, labels: Labels, rng: np.random.Generator) -> list[Index]:
    """One client holds everything."""
    return [np.arange(len(labels))]


def swiss_roll_own(setting: Setting, labels: Labels, rng: np.random.Generator) -> list[Index]:
    """Refuse: the toy's points are drawn client by client, no partition follows."""
    raise ValueError('the partition "swiss_roll" goes with data = "swiss_roll" and with nothing else')


PARTITIONS: dict[str, Partition] = {
    **{
        made.__name__: made
        for made in (step, step_fedbe_official, dirichlet, dirichlet_fedbe_official, iid, central)
    },
    "swiss_roll": swiss_roll_own,
}


def architectures(setting: Setting, classes: int) -> list[Architecture]:
    """Return the networks of a setting, each with the options that it reads."""
    names, values = setting.model.split("+"), setting.asdict()
    return [
        Architecture(name, classes, tuple(sorted(options_of(name, values).items())), setting.initialisation)
        for name in names
    ]


def split(setting: Setting, labels: np.ndarray, seed: int) -> tuple[list[Index], dict[str, Index]]:
    """Divide training images among clients and server.

    The parts are drawn one after the other, each from a stream of its own and from what those before it left:
    public, validation, core, clients.

    Args:
        setting: the partition and its sizes.
        labels: [N] labels of the training images.
        seed: of the split, which depends on nothing else of the run.

    Returns:
        For each client the positions of its images, and those of the server's: "public", "validation", "core".

    Raises:
        ValueError: for an unknown partition, or counts that the data cannot fill.
    """
    classes = spec_of(setting.data).classes
    for label in set(range(len(classes))) - set(labels.tolist()):
        raise ValueError(f"class {label} ({classes[label]}) has no training images")
    rest, server = np.arange(len(labels)), {}
    # The first stream's name is older than the others.
    for name, stream in (("public", "server split"), ("validation", "validation split"), ("core", "core split")):
        size = getattr(setting, f"{name}_images")
        held, left = partition.stratified_split(labels[rest], size, rng=numpy_generator(seed, stream))
        server[name], rest = rest[held], rest[left]
    if setting.client_images:
        kept, _ = partition.stratified_split(
            labels[rest], setting.client_images, rng=numpy_generator(seed, "client images")
        )
        rest = rest[kept]
    deal = pick("partition", setting.partition, PARTITIONS)
    return [rest[part] for part in deal(setting, labels[rest], numpy_generator(seed, "partition"))], server


def assemble(setting: Setting, seed: int, device: str = "cpu") -> Federation:
    """Build the federation of a run.

    All methods see the same split, test images and initial model for the same seed: nothing here reads the
    setting's method. The test images are the same for all seeds, but for the Swiss roll's, which are drawn
    anew. With a `split_seed` runs of several seeds share the split, and differ in first model and batches alone.

    Args:
        setting: the run's setting.
        seed: the run's seed.
        device: a torch device name on which data and networks live.
    """
    split_seed = seed if setting.split_seed < 0 else setting.split_seed
    if setting.data == "swiss_roll":
        parts, train, test = _roll(setting, split_seed, device)
        server = dict.fromkeys(("public", "validation", "core"), np.arange(0))
    else:
        train, test = datasets(setting.data, device)
        parts, server = split(setting, train.labels.cpu().numpy(), split_seed)
        if setting.test_images:
            chosen, _ = partition.stratified_split(
                test.labels.cpu().numpy(), setting.test_images, rng=numpy_generator(0, "test images")
            )
            test = test.subset(chosen)
    first, *others = architectures(setting, train.class_count)
    kinds = 1 + len(others)
    own = [tuple(range(kind, len(parts), kinds)) for kind in range(kinds)]
    return Federation(
        first,
        train,
        tuple(torch.from_numpy(part) for part in parts),
        public_data(setting, split_seed, server["public"], train),
        test,
        precision=setting.precision,
        validation=train.subset(server["validation"]),
        core=train.subset(server["core"]),
        own=own[0] if others else (),
        further=tuple(zip(others, own[1:])),
    )


def _roll(setting: Setting, seed: int, device: str) -> tuple[list[Index], Data, Data]:
    parts, train, test = swiss_roll(
        clients=setting.clients,
        test_images=setting.test_images,
        turns=setting.turns,
        noise=setting.noise,
        rng=numpy_generator(seed, "swiss roll"),
    )
    return parts, train.to(torch.device(device)), test.to(torch.device(device))
