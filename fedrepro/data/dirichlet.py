"""How many images of each class each client gets, in Dirichlet proportions.

Shapes: S clients, C classes, D draws.
"""

import numpy as np
from numpy.typing import NDArray

from fedrepro.core.setting import CONCENTRATION

_BATCH_SCALARS = 1_000_000  # Dirichlet proportions drawn at once: 8 MB, a tenth of a second
_ROUNDING = 1e-9  # by so much the shares of a class may miss a sum of 1


def dirichlet_counts(
    available: NDArray[np.int64],
    *,
    clients: int,
    partition_alpha: float,
    min_size: int,
    full: float,
    rng: np.random.Generator,
    max_draws: int,
) -> NDArray[np.int64]:
    """Draw p ~ Dir(partition_alpha * 1_S) for every class until the smallest client holds `min_size` images.

    Args:
        available: images of each class, [C].
        clients: number of clients S.
        partition_alpha: concentration, in the range of `CONCENTRATION`.
        min_size: images that the smallest client must hold, >= 0.
        full: a client that holds so many images gets nothing of the classes still to come; infinity for no limit.
        rng: source of the proportions.
        max_draws: draws of all proportions before giving up, >= 1.

    Returns:
        Images of each client and class, [S, C], that use up all that are available.

    Raises:
        ValueError: if an argument is out of its range, or no draw of `max_draws` reaches `min_size`.
    """
    images = int(available.sum())
    if not CONCENTRATION.holds(partition_alpha):
        raise ValueError(f"partition_alpha must be {CONCENTRATION.text}, got {partition_alpha}")
    if min_size < 0 or max_draws < 1:
        raise ValueError(f"min_size must be >= 0 and max_draws >= 1, got {min_size} and {max_draws}")
    if min_size * clients > images:
        raise ValueError(f"min_size * clients must be <= {images} images, got {min_size} * {clients}")
    limit = max(1, _BATCH_SCALARS // (available.size * clients))
    drawn, batch = 0, 1
    while drawn < max_draws:
        batch = min(batch, limit, max_draws - drawn)
        counts = _drawn(available, clients, partition_alpha, full, batch, rng)
        good = np.flatnonzero(counts.sum(axis=2).min(axis=1) >= min_size)
        if good.size:
            return counts[good[0]]
        drawn += batch
        batch *= 4  # the first draw nearly always does; the batches grow only where it does not
    raise ValueError(
        f"no partition in {max_draws} draws gave every client {min_size} images (partition_alpha"
        f" {partition_alpha}, {clients} clients, {images} images): raise partition_alpha or max_draws,"
        " or lower min_size or clients"
    )


def simplex(alpha: float, clients: int, size: int | tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    """Draw from Dir(alpha * 1_S), float64 [*size, S].

    Raises:
        ValueError: if a draw does not sum to 1.
    """
    drawn = rng.dirichlet(np.full(clients, alpha), size=size)
    if not (np.abs(drawn.sum(axis=-1) - 1) <= _ROUNDING).all():  # not so for NaN either
        raise ValueError(f"Dirichlet draws of concentration {alpha} for {clients} clients do not sum to 1")
    return drawn


def _drawn(
    available: NDArray[np.int64], clients: int, alpha: float, full: float, draws: int, rng: np.random.Generator
) -> NDArray[np.int64]:
    """Draw the images of each client and class D times, int64 [D, S, C]; an impossible draw is all -1."""
    proportions = simplex(alpha, clients, (draws, available.size), rng)  # [D, C, S]
    counts = np.zeros((draws, clients, available.size), dtype=np.int64)
    possible = np.ones(draws, dtype=np.bool_)
    for c, images in enumerate(available):
        shares = proportions[:, c] * (counts.sum(axis=2) < full)
        upto = np.cumsum(shares, axis=1)
        total = upto[:, -1:]
        possible &= total[:, 0] > 0  # all of the mass may lie on full clients when alpha is tiny
        # Dividing makes the last cut n_c exactly, so rounding gives no image to a client without a share.
        cuts = np.floor(upto / np.where(total > 0, total, 1.0) * images).astype(np.int64)
        counts[:, :, c] = np.diff(cuts, axis=1, prepend=0)
    counts[~possible] = -1
    return counts
