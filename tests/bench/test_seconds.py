"""Seconds of an ensemble's work: sizes over rates by hand, and a posterior of the asked size that is timed."""

from pathlib import Path

import pandas as pd
import pytest
import tiny

from fedrepro import papers
from fedrepro.bench.seconds import BUILD, DISTILL, PREDICT, posterior_seconds, recorded_seconds
from fedrepro.core.rng import Streams
from fedrepro.core.stack import Stack
from fedrepro.federation.federation import Federation
from fedrepro.notebooks.book import Book
from fedrepro.stages.posterior import posterior
from fedrepro.stages.round import Round

PAPER = papers.load("fedbe").cells("text_numbers", "paper")[0].setting


def test_images_over_images_per_second(tmp_path: Path) -> None:
    lines = [
        ("card", "bfloat16", "resnet20", "predict_images_per_s", 4000.0),
        ("card", "bfloat16", "resnet20", "predict_images_per_s", 5000.0),  # the fastest counts
        ("card", "bfloat16", "resnet20", "distill_images_per_s", 1000.0),
        ("card", "bfloat16", "resnet20", "train_images_per_s", 1.0),
        ("card", "bfloat16", "convnet", "distill_images_per_s", 9999.0),
        ("old", "float32", "resnet20", "distill_images_per_s", 100.0),
    ]
    file = tmp_path / "throughput.csv"
    pd.DataFrame(lines, columns=["device", "precision", "model", "metric", "value"]).to_csv(file)
    # 10,000 public images once; 20 epochs of them.
    assert recorded_seconds(PAPER, file).values.tolist() == [
        [PREDICT, "card, bfloat16", 2.0],
        [DISTILL, "card, bfloat16", 200.0],
        [DISTILL, "old, float32", 2000.0],
    ]


def test_what_is_timed_is_the_posterior_of_the_settings_size(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    true = posterior(PAPER)

    def watched(ends: Round, federation: Federation, streams: Streams) -> Stack:
        drawn = true(ends, federation, streams)
        seen.append((len(ends.clients), len(drawn), bool((ends.clients.params != ends.start.params).all())))
        return drawn

    monkeypatch.setattr("fedrepro.bench.seconds.posterior", lambda setting: watched)
    assert 0 < posterior_seconds(PAPER, tiny.federation("convnet"), repeats=2) < 60
    assert seen == [(10, 10, True)] * 3


def test_the_paper_and_the_recorded_devices_stand_side_by_side() -> None:
    table = Book("fedbe/text_numbers", scale="smoke", seeds=1, device="cpu").seconds(
        "Normal/FedBE + SCAFFOLD", "ResNet-20"
    )
    assert list(table.index) == [BUILD, PREDICT, DISTILL]
    assert list(table["RTX 2080 Ti"]) == [0.2, 2.4, 10.4]
    assert table["here (cpu)"].notna().tolist() == [True, False, False]
    assert table.shape[1] > 2
