"""The toy problem of FedBE's Figures 1 and 8: a Swiss roll of three classes, shared by three clients.

Shapes: S clients, N images (here points of the plane), C classes (arms of the roll).
"""

import numpy as np
import torch
from numpy.typing import NDArray

from fedrepro.data.data import Data

ARMS = 3  # classes of FedBE's toy


def swiss_roll(
    *,
    clients: int = 3,
    client_images: int = 300,
    majority: float = 0.8,
    test_images: int = 300,
    arms: int = ARMS,
    turns: float,
    noise: float,
    rng: np.random.Generator,
) -> tuple[list[NDArray[np.int64]], Data, Data]:
    """Draw the Swiss roll: each class is one arm of a spiral, each client holds mostly one class.

    A point of arm c at u ~ Uniform(0, 1) has the angle 2 pi (turns u + c / arms) and the radius u + e with
    e ~ Normal(0, noise^2). FedBE states three classes, three clients and 80 % of one class per client
    (Figure 1); the spiral itself and the numbers of points are our assumptions.

    Args:
        clients: number of clients S, >= 1; client s has the majority class s modulo arms.
        client_images: points per client, >= 1.
        majority: share of a client's points in its majority class, in [0, 1]; the other classes share the
            rest equally, those next to it getting one more where that is not whole.
        test_images: points of the test set, >= 1, shared equally by all classes in the same way.
        arms: number of classes C, >= 2.
        turns: turns of each arm around the centre, > 0.
        noise: standard deviation of the radius, >= 0; the roll's outer radius is 1.
        rng: source of all points.

    Returns:
        (S index arrays of client_images positions each, train, test): the index arrays cut up `train`; the
        data have features float32 [N, 2].

    Raises:
        ValueError: if an argument is out of range.
    """
    if min(clients, client_images, test_images) < 1 or arms < 2:
        raise ValueError(
            "clients, client_images and test_images must be >= 1 and arms >= 2, got"
            f" {clients}, {client_images}, {test_images} and {arms}"
        )
    if not 0 <= majority <= 1:
        raise ValueError(f"majority must be in [0, 1], got {majority}")
    if not (0 < turns < np.inf and 0 <= noise < np.inf):
        raise ValueError(f"turns must be > 0 and noise >= 0, both finite, got {turns} and {noise}")
    major = round(majority * client_images)
    labels = np.concatenate(
        [
            np.repeat(np.roll(np.arange(arms), -s), [major, *_equally(client_images - major, arms - 1)])
            for s in range(clients)
        ]
    )
    test_labels = np.repeat(np.arange(arms), _equally(test_images, arms))
    parts = [np.arange(s * client_images, (s + 1) * client_images, dtype=np.int64) for s in range(clients)]
    train = _points(labels, arms, turns, noise, rng)
    return parts, train, _points(test_labels, arms, turns, noise, rng)


def _equally(images: int, classes: int) -> list[int]:
    """Share images over classes as equally as whole numbers allow, the first classes getting one more."""
    return [images // classes + (c < images % classes) for c in range(classes)]


def _points(labels: NDArray[np.int64], arms: int, turns: float, noise: float, rng: np.random.Generator) -> Data:
    """Draw one point of the plane for each label [N]."""
    along = rng.random(len(labels))
    angle = 2 * np.pi * (turns * along + labels / arms)
    radius = along + noise * rng.standard_normal(len(labels))
    features = np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1).astype(np.float32)
    classes = tuple(f"class {c + 1}" for c in range(arms))
    return Data("swiss_roll", torch.from_numpy(features), torch.from_numpy(labels.astype(np.int64)), classes)
