"""The Swiss-roll toy behind FedBE's Figures 1 and 8: a whole run, and the simplex spanned by its clients.

Shapes: S clients, O points of the simplex, M members, N images, C classes.
"""

from collections.abc import Iterable

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from fedrepro.core.metrics import accuracy, confidence_histogram
from fedrepro.core.rng import Streams
from fedrepro.core.setting import Setting
from fedrepro.core.stack import Stack, mix
from fedrepro.core.state import State
from fedrepro.federation.assemble import assemble
from fedrepro.federation.federation import Federation
from fedrepro.methods import catalogue as methods
from fedrepro.stages.combine import Ensemble, MeanOfProbabilities
from fedrepro.stages.posterior import posterior
from fedrepro.stages.round import Round


def play(setting: Setting, seed: int, device: str = "cpu") -> tuple[Federation, State, Round]:
    """Play all rounds of a setting without a store; returns the last state and trace."""
    federation = assemble(setting, seed, device)
    method = methods.build(setting)
    state = method.init(federation, seed)
    for round in range(setting.rounds):
        state, trace = method.round(state, federation, Streams(seed, round))
    return federation, state, trace


def simplex_grid(resolution: int) -> Tensor:
    """Return all points of the 2-simplex whose coordinates are multiples of 1/resolution, [O, 3] float64.

    The first three are not special; corners and, if 3 divides the resolution, the centre are among them.
    """
    points = [(i, j, resolution - i - j) for i in range(resolution + 1) for j in range(resolution + 1 - i)]
    return torch.tensor(points, dtype=torch.float64) / resolution


def simplex_accuracy(federation: Federation, trace: Round, points: Tensor) -> np.ndarray:
    """Return the test accuracy in percent of sum_i gamma_i w_i for each point gamma [O, S] (FedBE eq. 6)."""
    logits = federation.predict(mix(points, trace.clients), federation.test)
    right = logits.argmax(-1) == federation.test.labels
    return 100 * right.double().mean(1).cpu().numpy()


def sampled(setting: Setting, federation: Federation, trace: Round, seed: int) -> Stack:
    """Draw a setting's posterior samples from the clients of the last round, a stack [samples]."""
    return posterior(setting)(trace, federation, Streams(seed, setting.rounds))


def spread(setting: Setting, seeds: Iterable[int], *, resolution: int = 30) -> pd.DataFrame:
    """Play the toy for several seeds and measure what section 3.3 speaks of, in percent.

    Returns:
        One line per seed and name (name, seed, accuracy): "FedAvg"; "Ensemble of 10 Dirichlet samples";
        "Clients, mean"; "Best of the simplex".
    """
    rows = []
    for seed in seeds:
        federation, state, trace = play(setting, seed)
        labels = federation.test.labels
        ensemble = Ensemble.of(
            sampled(setting, federation, trace, seed),
            MeanOfProbabilities(sharpen=setting.sharpen),
            federation,
        )
        clients = federation.predict(trace.clients, federation.test)
        found = {
            "FedAvg": accuracy(federation.predict(state.models, federation.test)[0], labels),
            f"Ensemble of {setting.samples} Dirichlet samples": accuracy(ensemble(federation.test), labels),
            "Clients, mean": float(np.mean([accuracy(one, labels) for one in clients])),
            "Best of the simplex": simplex_accuracy(federation, trace, simplex_grid(resolution)).max(),
        }
        rows += [{"name": name, "seed": seed, "accuracy": value} for name, value in found.items()]
    return pd.DataFrame(rows)


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
