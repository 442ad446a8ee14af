"""Partitions: which images go to the server and which to each client.

Every index array that leaves this module is int64 and sorted, every decision is drawn from the generator that
the caller passes, no function can loop for ever, and an argument out of its range is a ValueError.

Shapes: S clients, N images, C classes, D draws.
"""

import hashlib
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from fedrepro.data.dirichlet import dirichlet_counts

Index = NDArray[np.int64]
Labels = NDArray[np.integer]


def _checked(labels: Labels, clients: int = 1) -> tuple[Index, Index]:
    """Return the labels [N] as int64 and the images per class [C] after checking both arguments."""
    array = np.asarray(labels)
    if array.ndim != 1 or not np.issubdtype(array.dtype, np.integer) or array.size == 0:
        raise ValueError(f"labels must be a non-empty 1-D integer array, got {array.dtype} {array.shape}")
    if array.min() < 0:
        raise ValueError(f"labels must be >= 0, got {array.min()}")
    if not 1 <= clients <= array.size:
        raise ValueError(f"clients must be in [1, {array.size}] (the images), got {clients}")
    return array.astype(np.int64), np.bincount(array).astype(np.int64)


def _deal(labels: Index, counts: Index, rng: np.random.Generator) -> list[Index]:
    """Deal counts [S, C] images, shuffled inside each class, to S parts; what is left over stays unused."""
    dealt: list[list[Index]] = [[] for _ in counts]
    for c, column in enumerate(counts.T):
        shuffled = rng.permutation(np.flatnonzero(labels == c))
        cuts = np.concatenate(([0], np.cumsum(column)))
        for pieces, (start, stop) in zip(dealt, pairwise(cuts)):
            pieces.append(shuffled[start:stop])
    return [np.sort(np.concatenate(pieces)).astype(np.int64) for pieces in dealt]


def apportion(counts: Index, size: int) -> Index:
    """Share a size over classes in proportion to their images, by the largest remainder.

    Args:
        counts: images per class, int64 [C].
        size: images to share out, 0 to the sum of the counts.

    Returns:
        Images per class, int64 [C], summing to `size`; equal remainders favour the lower class.
    """
    total = int(counts.sum())
    if not 0 <= size <= total:
        raise ValueError(f"size must be in [0, {total}] (the number of images), got {size}")
    quota, remainder = np.divmod(size * counts, total)
    quota[np.argsort(-remainder, kind="stable")[: size - int(quota.sum())]] += 1
    return quota


def stratified_split(labels: Labels, size: int, *, rng: np.random.Generator) -> tuple[Index, Index]:
    """Hold out a stratified random part, as the server's unlabelled data or a validation set.

    Args:
        labels: class of each image, integers [N].
        size: images to hold out, 0 to N; equal classes give exactly size / C each when that is whole.
        rng: source of the choice inside each class.

    Returns:
        (held [size], rest [N - size]): disjoint, together all images.
    """
    labels, available = _checked(labels)
    quota = apportion(available, size)
    held, rest = _deal(labels, np.stack([quota, available - quota]), rng)
    return held, rest


def step(
    labels: Labels,
    *,
    clients: int,
    major_classes: int,
    major_images: int,
    minor_images: int,
    rng: np.random.Generator,
) -> list[Index]:
    """Partition in steps: each client holds many images of its major classes and few of all others.

    FedBE, section 5.1: 10 clients with 1,960 images of 2 major classes and 10 of the 8 others use up 4,000
    images per class exactly if every class is major for the same number of clients, so that is the rule here.

    Args:
        labels: class of each image, integers [N], with every class from 0 to C - 1 present.
        clients: number of clients S.
        major_classes: distinct major classes per client, 1 to C.
        major_images: images per client of each major class, >= 1.
        minor_images: images per client of each other class, >= 0.
        rng: source of the major classes and of the images.

    Returns:
        S disjoint index arrays; images beyond the counts stay unused.

    Raises:
        ValueError: if the major classes cannot be shared evenly, or a class has too few images.
    """
    labels, available = _checked(labels, clients)
    classes = available.size
    if not 1 <= major_classes <= classes:
        raise ValueError(f"major_classes must be in [1, {classes}] (the classes), got {major_classes}")
    if major_images < 1 or minor_images < 0:
        raise ValueError(f"need major_images >= 1 and minor_images >= 0, got {major_images}, {minor_images}")
    if clients * major_classes % classes:
        raise ValueError(
            "clients * major_classes must be a multiple of the classes (each is major for equally many"
            f" clients), got {clients} * {major_classes} for {classes} classes"
        )
    holders = clients * major_classes // classes
    needed = holders * major_images + (clients - holders) * minor_images
    if available.min() < needed:
        raise ValueError(
            f"class {available.argmin()} needs {needed} images ({holders} clients x {major_images} major +"
            f" {clients - holders} x {minor_images} minor), got {available.min()}"
        )
    major = _major_classes(clients, classes, major_classes, rng)
    return _deal(labels, np.where(major, major_images, minor_images).astype(np.int64), rng)


def step_shards(
    labels: Labels, *, clients: int, shards_each: int, minor_images: int, rng: np.random.Generator
) -> list[Index]:
    """Partition in steps as FedBE's released code does: shards of the images sorted by class.

    The sorted images are cut into clients * shards_each equal shards, dealt out at random: a client may get the
    same class twice. On top comes a fixed number of images of every class, different for each client but still in
    the shards as well, so clients share images, and one may hold an image twice. The code draws its
    server's images at random and takes them out of the shards afterwards; here they are gone before.

    Args:
        labels: class of each image, integers [N].
        clients: number of clients S.
        shards_each: shards per client, 1 to N // S; 2 in the code.
        minor_images: further images per client of every class, >= 0; 10 in the code.
        rng: source of the shards and of the images.

    Returns:
        S index arrays of N // (S * shards_each) * shards_each + minor_images * C images each, not disjoint.

    Raises:
        ValueError: if an argument is out of its range or a class has too few images.
    """
    labels, available = _checked(labels, clients)
    if not 1 <= shards_each <= labels.size // clients:
        raise ValueError(f"shards_each must be in [1, {labels.size // clients}], got {shards_each}")
    if minor_images < 0 or available.min() < clients * minor_images:
        raise ValueError(
            f"minor_images must be in [0, {available.min() // clients}] (the smallest class has"
            f" {available.min()} images), got {minor_images}"
        )
    counts = np.full((clients, available.size), minor_images, dtype=np.int64)
    minor = _deal(labels, counts, rng)
    by_class = rng.permutation(labels.size)  # inside a class the order is random
    by_class = by_class[np.argsort(labels[by_class], kind="stable")]
    number = clients * shards_each
    shards = by_class[: labels.size // number * number].reshape(number, -1)
    major = shards[rng.permutation(number)].reshape(clients, -1)
    return [np.sort(np.concatenate(pair)).astype(np.int64) for pair in zip(major, minor)]


def _major_classes(clients: int, classes: int, each: int, rng: np.random.Generator) -> NDArray[np.bool_]:
    """Draw which classes are major, bool [S, C], uniformly among all tables with equal rows and columns.

    Rejection would need thousands of draws for 100 clients with 5 classes. Instead two random clients pool
    the classes that only one of them has and share them out again at random: each such trade keeps every row
    and column sum, and its stationary distribution is uniform (Strona et al. 2014; Carstens 2015).
    """
    table = np.zeros((clients, classes), dtype=np.bool_)
    start = (np.arange(clients * each) % classes).reshape(clients, each)
    np.put_along_axis(table, start, True, axis=1)
    if clients == 1:
        return table
    first = rng.integers(clients, size=10 * clients)
    second = (first + rng.integers(1, clients, size=10 * clients)) % clients
    for one, other in ((table[a], table[b]) for a, b in zip(first, second)):
        pool = rng.permutation(np.flatnonzero(one ^ other))
        # Rows have equal sums, so each of the two gives half of the pool and gets half of it back.
        half = pool[: pool.size // 2]
        one[pool], other[pool] = False, True
        one[half], other[half] = True, False
    return table


def classwise(
    labels: Labels,
    *,
    clients: int,
    partition_alpha: float,
    min_size: int = 10,
    balance: bool = False,
    rng: np.random.Generator,
    max_draws: int = 50_000,
) -> list[Index]:
    """Partition each class over the clients in Dirichlet proportions (FedBE, section 5.1).

    For every class c: p ~ Dir(partition_alpha * 1_S), cut at floor(cumsum(p) * n_c); all are drawn again
    until the smallest client holds `min_size` images.

    Args:
        labels: class of each image, integers [N].
        clients: number of clients S.
        partition_alpha: concentration, in the range of `CONCENTRATION`; small values give each class to few
            clients.
        min_size: images that the smallest client must hold, >= 0; the text of FedBE states none, its code 10.
        balance: the rule of FedBE's and FedMA's released code: a client that holds N / S images already gets
            nothing of the classes still to come, and the proportions of the others are scaled up.
        rng: source of the proportions and of the images.
        max_draws: draws of all proportions before giving up, >= 1.

    Returns:
        S disjoint index arrays that cover all images.

    Raises:
        ValueError: if no draw of `max_draws` reaches `min_size`.
    """
    labels, available = _checked(labels, clients)
    counts = dirichlet_counts(
        available,
        clients=clients,
        partition_alpha=partition_alpha,
        min_size=min_size,
        full=labels.size / clients if balance else np.inf,
        rng=rng,
        max_draws=max_draws,
    )
    return _deal(labels, counts, rng)


def classwise_with_least(
    labels: Labels,
    *,
    clients: int,
    partition_alpha: float,
    least: int = 2,
    full: float,
    min_size: int = 10,
    rng: np.random.Generator,
    max_draws: int = 50_000,
) -> list[Index]:
    """Partition each class in Dirichlet proportions as FedBE's released code does: no client lacks a class.

    A few images of each class are set aside for each client first, the others shared out as by `classwise`.

    Args:
        labels, clients, partition_alpha, rng, max_draws: see `classwise`; the code's concentration is 0.1.
        least: images of each class that are set aside for each client, >= 0; 2 in the code.
        full: drawn images of a client that gets no more; in the code all training images, the server's too, / S.
        min_size: images that the smallest client must hold without those set aside, >= 0; 10 in the code.

    Returns, Raises:
        As `classwise`; also a ValueError if a class has too few images to set aside.
    """
    labels, available = _checked(labels, clients)
    if least < 0 or available.min() < clients * least:
        raise ValueError(
            f"class {available.argmin()} needs {clients * least} images ({least} for each of {clients} clients),"
            f" got {available.min()}"
        )
    counts = dirichlet_counts(
        available - clients * least,
        clients=clients,
        partition_alpha=partition_alpha,
        min_size=min_size,
        full=full,
        rng=rng,
        max_draws=max_draws,
    )
    return _deal(labels, counts + least, rng)


def iid(labels: Labels | int, *, clients: int, rng: np.random.Generator) -> list[Index]:
    """Partition N images (labels [N], or just N) at random into S parts whose sizes differ by at most one."""
    labels, _ = _checked(np.zeros(labels, np.int64) if isinstance(labels, int) else labels, clients)
    return [np.sort(part).astype(np.int64) for part in np.array_split(rng.permutation(labels.size), clients)]


def split_hash(parts: Sequence[Index]) -> str:
    """Return the SHA-256 (hex) of a partition: the order of clients counts, that inside a client does not."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(np.array([len(part), *np.sort(part)], dtype="<i8").tobytes())
    return digest.hexdigest()


def class_counts(labels: Labels, parts: Sequence[Index], classes: int) -> Index:
    """Return the images of each of S clients in each of C classes, int64 [S, C]; labels as above."""
    labels, available = _checked(labels)
    if available.size > classes:
        raise ValueError(f"labels must be in [0, {classes}), got {available.size - 1}")
    return np.stack([np.bincount(labels[part], minlength=classes) for part in parts]).astype(np.int64)
