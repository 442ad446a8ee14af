"""The Swiss-roll toy behind FedBE's Figures 1 and 8: a whole run, and the simplex spanned by its clients.

Shapes: S clients, O points of the simplex, M members, N images, C classes.
"""

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from math import comb

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from fedrepro.core.metrics import accuracy, confidence_histogram
from fedrepro.core.rng import Streams
from fedrepro.core.setting import Setting
from fedrepro.core.stack import Stack, mix
from fedrepro.core.state import State
from fedrepro.data.data import Data
from fedrepro.federation.assemble import assemble
from fedrepro.federation.federation import Federation
from fedrepro.methods import catalogue as methods
from fedrepro.stages.combine import Ensemble, MeanOfProbabilities
from fedrepro.stages.posterior import posterior
from fedrepro.stages.round import Round

AFTERWARDS = ("dirichlet_alpha", "samples", "sharpen")  # settings that are read after the training alone
VARIED = ("FedAvg", "ensemble of samples", "clients, mean", "best mixture")  # as `measured` sorts them


def play(setting: Setting, seed: int, device: str = "cpu") -> tuple[Federation, State, Round]:
    """Play all rounds of a setting without a store; returns the last state and trace."""
    federation = assemble(setting, seed, device)
    method = methods.build(setting)
    state = method.init(federation, seed)
    for round in range(setting.rounds):
        state, trace = method.round(state, federation, Streams(seed, round))
    return federation, state, trace


def simplex_grid(resolution: int, clients: int = 3) -> Tensor:
    """Return all points of the simplex whose coordinates are multiples of 1/resolution, [O, S] float64.

    The first three are not special; corners and, if S divides the resolution, the centre are among them.
    """
    if min(resolution, clients) < 1:
        raise ValueError(f"resolution and clients must be >= 1, got {resolution} and {clients}")
    return torch.tensor(list(_shares(resolution, clients)), dtype=torch.float64) / resolution


def _shares(whole: int, parts: int) -> Iterator[tuple[int, ...]]:
    """Yield all ways to share a whole number among parts, in order."""
    if parts == 1:
        yield (whole,)
        return
    for first in range(whole + 1):
        yield from ((first, *rest) for rest in _shares(whole - first, parts - 1))


def resolution_of(clients: int, most: int = 500) -> int:
    """Return the finest resolution, at least 1, whose grid has at most so many points; 30 for three clients."""
    fits = (n for n in range(most, 1, -1) if comb(n + clients - 1, clients - 1) <= most)
    return next(fits, 1)


def simplex_accuracy(federation: Federation, trace: Round, points: Tensor) -> np.ndarray:
    """Return the test accuracy in percent of sum_i gamma_i w_i for each point gamma [O, S] (FedBE eq. 6)."""
    logits = federation.predict(mix(points, trace.clients), federation.test)
    right = logits.argmax(-1) == federation.test.labels
    return 100 * right.double().mean(1).cpu().numpy()


def sampled(setting: Setting, federation: Federation, trace: Round, seed: int) -> Stack:
    """Draw a setting's posterior samples from the clients of the last round, a stack [samples]."""
    return posterior(setting)(trace, federation, Streams(seed, setting.rounds))


def spread(setting: Setting, seeds: Iterable[int], *, resolution: int | None = None) -> pd.DataFrame:
    """Play the toy for several seeds and measure what section 3.3 speaks of, in percent.

    Args:
        setting: the toy's.
        seeds: one run each.
        resolution: of the grid of the simplex; `resolution_of` the clients if left out.

    Returns:
        One line per seed and name (name, seed, accuracy): "FedAvg"; "Ensemble of 10 Dirichlet samples";
        "Clients, mean"; "Best of the simplex".
    """
    rows = []
    for seed in seeds:
        found = measured(setting, *play(setting, seed), seed, resolution=resolution)
        rows += [{"name": name, "seed": seed, "accuracy": value} for name, value in found.items()]
    return pd.DataFrame(rows)


def measured(
    setting: Setting,
    federation: Federation,
    state: State,
    trace: Round,
    seed: int,
    *,
    resolution: int | None = None,
) -> dict[str, float]:
    """Measure one toy that was played; see `spread`."""
    labels = federation.test.labels
    ensemble = Ensemble.of(
        sampled(setting, federation, trace, seed),
        MeanOfProbabilities(sharpen=setting.sharpen),
        federation,
    )
    clients = federation.predict(trace.clients, federation.test)
    points = simplex_grid(resolution or resolution_of(setting.clients), setting.clients)
    return {
        "FedAvg": accuracy(federation.predict(state.models, federation.test)[0], labels),
        f"Ensemble of {setting.samples} Dirichlet samples": accuracy(ensemble(federation.test), labels),
        "Clients, mean": float(np.mean([accuracy(one, labels) for one in clients])),
        "Best of the simplex": simplex_accuracy(federation, trace, points).max(),
    }


def vary(setting: Setting, name: str, values: Iterable[float], seeds: Iterable[int]) -> pd.DataFrame:
    """Play the toy for several values of one setting and several seeds.

    Args:
        setting: the toy's.
        name: of the setting; what is read after the training alone (`AFTERWARDS`) costs no training of its own.
        values: of it.
        seeds: one run each, for each value.

    Returns:
        One line per value, seed and name: varied (the setting's name), value, seed, name, accuracy in percent;
        the names are `VARIED`, the best mixture that of a grid of at most 66 points.
    """
    # A coarse grid: each of its points is a model that is run.
    rows, changed = [], [setting.with_(**{name: value}) for value in values]
    for seed in seeds:
        for one in changed:
            coarse = resolution_of(one.clients, 66)
            found = measured(one, *_played(_before(one), seed), seed, resolution=coarse)
            value = getattr(one, name)
            for key, percent in zip(VARIED, found.values()):
                rows.append({"varied": name, "value": value, "seed": seed, "name": key, "accuracy": percent})
    return pd.DataFrame(rows)


def _before(setting: Setting) -> Setting:
    """Return a setting of which the training is the same; it is the same for all that differ afterwards alone."""
    return setting.with_(**dict.fromkeys(AFTERWARDS, 1))


@lru_cache(maxsize=16)
def _played(setting: Setting, seed: int) -> tuple[Federation, State, Round]:
    return play(setting, seed)


def mixtures(federation: Federation, trace: Round, sampled: Tensor) -> pd.DataFrame:
    """Measure convex combinations of the clients: how far from FedAvg each is, and its test accuracy.

    The distance of gamma [S] is half of sum_i |gamma_i - p_i|, with FedAvg's shares p: 0 at the average, below 1.

    Args:
        federation: of the round.
        trace: of the last round.
        sampled: gamma [M, S] of sampled models.

    Returns:
        One line per model: kind ("grid", "sample", "client", "FedAvg"), distance, accuracy in percent.
    """
    count, shares = len(trace.clients), trace.shares[:1].double().cpu()
    groups = {
        "grid": simplex_grid(resolution_of(count), count),
        "sample": sampled.double(),
        "client": torch.eye(count, dtype=torch.float64),
        "FedAvg": shares,
    }
    tables = [
        pd.DataFrame(
            {
                "kind": kind,
                "distance": ((points - shares).abs().sum(1) / 2).numpy(),
                "accuracy": simplex_accuracy(federation, trace, points),
            }
        )
        for kind, points in groups.items()
    ]
    return pd.concat(tables, ignore_index=True)


def regions(federation: Federation, models: Mapping[str, Stack], *, side: int = 80) -> dict[str, np.ndarray]:
    """Return the class that models predict at each point of a square grid of the plane.

    Args:
        federation: its training data fill the square [-r, r] x [-r, r], see `edge`.
        models: stacks by name; the members of one predict together, by the mean of their probabilities.
        side: points on each side.

    Returns:
        Name -> classes [side, side] int64, the first row at the bottom.
    """
    line = torch.linspace(-1, 1, side) * edge(federation)
    x, y = torch.meshgrid(line, line, indexing="xy")
    points = torch.stack([x.flatten(), y.flatten()], dim=1).to(federation.test.images)
    labels = torch.zeros(len(points), dtype=torch.int64, device=points.device)
    data = Data("plane", points, labels, federation.test.classes)
    together = MeanOfProbabilities(sharpen=1.0)
    return {
        name: together(federation.predict(stack, data)).argmax(-1).reshape(side, side).cpu().numpy()
        for name, stack in models.items()
    }


def edge(federation: Federation) -> float:
    """Return half the side of the square around all training points."""
    return 1.05 * float(federation.data.images.abs().max())


def confidences(setting: Setting, seeds: Iterable[int], *, bins: int = 10, device: str = "cpu") -> pd.DataFrame:
    """Histogram the confidence of clients' and of sampled models, averaged over models (FedBE Figure 8).

    Args:
        setting: the toy's, or any other with one round of clients at the end.
        seeds: one run each.
        bins: K, of equal width.
        device: a torch device name.

    Returns:
        One line per seed, group ("Clients", "Samples") and bin: seed, group, low, high, correct, incorrect;
        the last two in test images per model.
    """
    tables = []
    for seed in seeds:
        federation, _, trace = play(setting, seed, device)
        groups = {"Clients": trace.clients, "Samples": sampled(setting, federation, trace, seed)}
        for group, stack in groups.items():
            logits = federation.predict(stack, federation.test)
            found = confidence_histogram(logits, federation.test.labels, bins=bins)
            tables.append(
                pd.DataFrame(
                    {
                        "seed": seed,
                        "group": group,
                        "low": found.edges[:-1].numpy(),
                        "high": found.edges[1:].numpy(),
                        "correct": found.correct.numpy(),
                        "incorrect": found.incorrect.numpy(),
                    }
                )
            )
    return pd.concat(tables, ignore_index=True)


def overconfidence(histograms: pd.DataFrame, *, above: float = 0.9) -> pd.DataFrame:
    """Summarise histograms: the share of wrong among confident predictions, in percent, by seed and group.

    Args:
        histograms: as `confidences` returns them.
        above: predictions in bins that begin at this confidence or higher count as confident.
    """
    sure = histograms[histograms["low"] >= above - 1e-9].groupby(["seed", "group"])[["correct", "incorrect"]].sum()
    everything = histograms.groupby(["seed", "group"])[["correct", "incorrect"]].sum()
    return pd.DataFrame(
        {
            "confident": sure.sum(axis=1),
            "wrong_among_confident_pct": 100 * sure["incorrect"] / sure.sum(axis=1),
            "accuracy_pct": 100 * everything["correct"] / everything.sum(axis=1),
        }
    ).reset_index()
