"""From a setting and a seed to the federation that they describe."""

from dataclasses import replace
from functools import lru_cache

import numpy as np
import torch

from fedrepro.core.rng import numpy_generator
from fedrepro.core.setting import Setting, pick
from fedrepro.data import partition
from fedrepro.data.data import Data, data_root, load, resized, spec_of
from fedrepro.data.swiss_roll import swiss_roll
from fedrepro.federation.federation import Federation
from fedrepro.models.architecture import Architecture


@lru_cache(maxsize=4)
def _public_data(name: str, like: str, root: str, device: str) -> Data:
    """Return the training images of one data set as public images for clients of another.

    They are brought to the clients' size and normalised like the clients' images, as the teachers expect it.
    """
    train, spec = _loaded(name, "train", root, device), spec_of(like)
    return replace(resized(train, spec.shape[:2]), mean=spec.mean, std=spec.std)


@lru_cache(maxsize=8)
def _loaded(name: str, split: str, root: str, device: str) -> Data:
    return load(name, "train" if split == "train" else "test").to(torch.device(device))


def datasets(name: str, device: str) -> tuple[Data, Data]:
    """Return train and test data on a device, read once per process."""
    root = str(data_root())
    return _loaded(name, "train", root, device), _loaded(name, "test", root, device)


def fingerprint(setting: Setting) -> str:
    """Return a hash of the data that a setting reads; the Swiss roll is made by code, not read."""
    if setting.data == "swiss_roll":
        return "generated"
    train, test = datasets(setting.data, "cpu")
    found = f"{train.fingerprint[:16]}-{test.fingerprint[:16]}"
    if setting.public_data:
        found += f"-{datasets(setting.public_data, 'cpu')[0].fingerprint[:16]}"
    return found


def architecture(setting: Setting, classes: int) -> Architecture:
    """Return the network of a setting with the options that its family takes."""
    options: dict[str, object] = {}
    if setting.model.startswith("resnet"):
        options = {"shortcut": setting.shortcut, "norm": setting.norm}
        if setting.norm == "group":
            options["groups"] = setting.groups
    elif setting.model == "convnet":
        options = {"extra_layers": setting.extra_layers}
    elif setting.model == "mlp":
        options = {"hidden": setting.hidden}
    return Architecture(setting.model, classes, tuple(sorted(options.items())), setting.initialisation)


def split(setting: Setting, labels: np.ndarray, seed: int) -> tuple[list[np.ndarray], np.ndarray]:
    """Divide training images among clients and server.

    Args:
        setting: the partition and its sizes.
        labels: [N] labels of the training images.
        seed: the run's seed; the split depends on it and on nothing else of the run.

    Returns:
        For each client the positions of its images, and the positions of the server's.

    Raises:
        ValueError: for an unknown partition, or counts that the data cannot fill.
    """
    classes = spec_of(setting.data).classes
    for label in set(range(len(classes))) - set(labels.tolist()):
        raise ValueError(f"class {label} ({classes[label]}) has no training images")
    held, rest = partition.stratified_split(
        labels, setting.public_images, rng=numpy_generator(seed, "server split")
    )
    if setting.client_images:
        kept, _ = partition.stratified_split(
            labels[rest], setting.client_images, rng=numpy_generator(seed, "client images")
        )
        rest = rest[kept]
    rng = numpy_generator(seed, "partition")
    choices = {
        "step": lambda: partition.step(
            labels[rest],
            clients=setting.clients,
            major_classes=setting.major_classes,
            major_images=setting.major_images,
            minor_images=setting.minor_images,
            rng=rng,
        ),
        "step_official": lambda: partition.step_shards(
            labels[rest],
            clients=setting.clients,
            shards_each=setting.major_classes,
            minor_images=setting.minor_images,
            rng=rng,
        ),
        "dirichlet": lambda: partition.classwise(
            labels[rest], clients=setting.clients, partition_alpha=setting.partition_alpha, rng=rng
        ),
        "iid": lambda: partition.iid(labels[rest], clients=setting.clients, rng=rng),
        "central": lambda: [np.arange(len(rest))],
    }
    return [rest[part] for part in pick("partition", setting.partition, choices)()], held


def assemble(setting: Setting, seed: int, device: str = "cpu") -> Federation:
    """Build the federation of a run.

    All methods see the same split, test images and initial model for the same seed: nothing here reads the
    setting's method. The test images are the same for all seeds, but for the Swiss roll's, which are drawn
    anew.

    Args:
        setting: the run's setting.
        seed: the run's seed.
        device: a torch device name on which data and networks live.
    """
    if setting.data == "swiss_roll":
        parts, train, test = swiss_roll(
            clients=setting.clients,
            test_images=setting.test_images,
            turns=setting.turns,
            noise=setting.noise,
            rng=numpy_generator(seed, "swiss roll"),
        )
        train, test = train.to(torch.device(device)), test.to(torch.device(device))
        held = np.arange(0)
    else:
        train, test = datasets(setting.data, device)
        parts, held = split(setting, train.labels.cpu().numpy(), seed)
        if setting.test_images:
            chosen, _ = partition.stratified_split(
                test.labels.cpu().numpy(), setting.test_images, rng=numpy_generator(0, "test images")
            )
            test = test.subset(chosen)
    public = train.subset(held)
    if setting.public_data:
        public = _public_data(setting.public_data, setting.data, str(data_root()), device)
    return Federation(
        architecture(setting, train.class_count),
        train,
        tuple(torch.from_numpy(part) for part in parts),
        public,
        test,
        precision=setting.precision,
    )
