"""Seconds of the work that an ensemble adds to a round, at a paper's sizes: measured, and beside the paper's.

FedBE's appendix D.1 gives seconds for an RTX 2080 Ti. Drawing samples takes so little that it is timed where it
is asked for; predicting and distilling are sizes over the images/s that `fedrepro bench` recorded.

Shapes: S clients, M samples, P parameters.
"""

import statistics
from dataclasses import replace
from pathlib import Path

import pandas as pd
import torch

from fedrepro.bench.report import read
from fedrepro.bench.timing import repeated
from fedrepro.core.rng import Streams
from fedrepro.core.setting import Setting
from fedrepro.core.state import State
from fedrepro.federation.federation import Federation
from fedrepro.stages.combine import combination
from fedrepro.stages.posterior import posterior
from fedrepro.stages.round import Round

BUILD, PREDICT, DISTILL = "build the posterior and sample", "predictions of one model", "distillation"


def posterior_seconds(setting: Setting, federation: Federation, *, repeats: int = 5) -> float:
    """Time fitting the posterior to the clients' models and drawing its samples.

    The models are random: their values do not matter to the time, their sizes do.

    Args:
        setting: its clients S, samples M and posterior are used.
        federation: whose network and device are used; its clients are not.
        repeats: timed calls, after one that is not timed.

    Returns:
        The median, in seconds.
    """
    start = federation.start(0)
    clients = start.take([0] * setting.clients)
    clients.params.add_(torch.randn_like(clients.params), alpha=0.01)
    shares = torch.full((1, setting.clients), 1 / setting.clients, dtype=torch.float64)
    begun = Round.begin(State(0, start), federation, combination(setting))
    ends = replace(begun, start=start.take([0] * setting.clients), clients=clients, shares=shares)
    draw, device = posterior(setting), federation.device.type
    _, *found = repeated(
        lambda: lambda: draw(ends, federation, Streams(0, 0)), repeats=repeats, left=float("inf"), device=device
    )
    return statistics.median(found)


def recorded_seconds(setting: Setting, throughput: Path) -> pd.DataFrame:
    """Turn recorded images/s into the seconds of one round.

    Args:
        setting: its network, public images and epochs of distillation are used.
        throughput: a file of `fedrepro bench`. Of several measurements of a device the fastest counts.

    Returns:
        Columns what (`PREDICT`, `DISTILL`), device (with the precision of its convolutions, which is not asked
        to be the setting's) and seconds; no line where nothing was recorded.
    """
    work = {  # images of a round, and the rate at which they are done
        PREDICT: (setting.public_images, "predict_images_per_s"),
        DISTILL: (setting.public_images * setting.distill_epochs, "distill_images_per_s"),
    }
    table = read(throughput).query("model == @setting.model")
    table = table.assign(device=table["device"] + ", " + table["precision"])
    lines = []
    for what, (images, metric) in work.items():
        fastest = table[table["metric"] == metric].groupby("device")["value"].max()
        lines += [(what, device, images / rate) for device, rate in fastest.items()]
    return pd.DataFrame(lines, columns=["what", "device", "seconds"])
