import math

import pytest
import tiny
import torch

from fedrepro.core.metrics import accuracy, confidence_histogram, packed, right, unpacked
from fedrepro.core.rng import Streams
from fedrepro.methods import catalogue as methods
from fedrepro.methods.measures import evaluate


class TestAccuracy:
    def test_by_hand(self) -> None:
        scores = torch.tensor([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4], [0.3, 0.7]])
        assert accuracy(scores, torch.tensor([0, 1, 1, 1])) == 75.0
        assert accuracy(scores.log(), torch.tensor([0, 1, 1, 1])) == 75.0

    @pytest.mark.parametrize(("scores", "labels"), [(0, 0), (2, 3), (3, 2)])
    def test_refusals(self, scores: int, labels: int) -> None:
        with pytest.raises(ValueError, match=f"as many scores as labels, got {scores} and {labels}"):
            accuracy(torch.zeros(scores, 2), torch.zeros(labels, dtype=torch.int64))


class TestHits:
    def test_by_hand(self) -> None:
        scores = torch.tensor([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4], [0.3, 0.7]])
        assert right(scores, torch.tensor([0, 1, 1, 1])).tolist() == [True, True, False, True]

    def test_bits_as_text(self) -> None:
        hits = torch.tensor([1, 0, 0, 0, 0, 0, 1, 1, 0, 1], dtype=torch.bool)
        assert packed(hits) == "g0A="  # 0b10000011, 0b01000000
        assert unpacked("g0A=", 10).tolist() == hits.tolist()
        with pytest.raises(ValueError, match="hits of 17 images need 3 bytes, got 2"):
            unpacked("g0A=", 17)


class TestConfidence:
    def test_by_hand(self) -> None:
        p = torch.tensor([[[0.9, 0.1], [0.4, 0.6], [0.5, 0.5], [0.0, 1.0]]], dtype=torch.float64)
        found = confidence_histogram(p.log(), torch.tensor([0, 0, 0, 1]), bins=2)
        # Confidences 0.9 right, 0.6 wrong, 0.5 right (the first of equals), 1.0 right; bins 0.5-0.75-1.
        assert found.edges.tolist() == [0.5, 0.75, 1.0]
        assert found.correct.tolist() == [1, 2]
        assert found.incorrect.tolist() == [1, 0]

    def test_members_are_averaged(self) -> None:
        p = torch.tensor([[[0.9, 0.1]], [[0.2, 0.8]], [[0.4, 0.6]]], dtype=torch.float64)
        found = confidence_histogram(p.log(), torch.tensor([0]), bins=2)
        torch.testing.assert_close(found.correct, torch.tensor([0, 1 / 3], dtype=torch.float64))
        torch.testing.assert_close(found.incorrect, torch.tensor([1 / 3, 1 / 3], dtype=torch.float64))

    def test_against_a_loop(self) -> None:
        logits = 2 * torch.randn(4, 100, 5, generator=tiny.seeded(0), dtype=torch.float64)
        labels = torch.randint(5, (100,), generator=tiny.seeded(1))
        found = confidence_histogram(logits, labels, bins=8)
        counts = torch.zeros(2, 8, dtype=torch.float64)
        for member in logits.softmax(-1).tolist():
            for row, label in zip(member, labels.tolist()):
                place = math.floor((max(row) - 0.2) / 0.1)  # from 1/5 to 1 in eight steps of 0.1
                counts[int(row.index(max(row)) != label), place] += 1 / 4
        torch.testing.assert_close(found.correct, counts[0])
        torch.testing.assert_close(found.incorrect, counts[1])
        assert float(found.correct.sum() + found.incorrect.sum()) == pytest.approx(100)

    def test_one_bin_and_no_bin(self) -> None:
        logits = torch.randn(2, 6, 3, generator=tiny.seeded(0))
        found = confidence_histogram(logits, torch.zeros(6, dtype=torch.int64), bins=1)
        assert float(found.correct + found.incorrect) == 6
        with pytest.raises(ValueError, match="bins must be >= 1, got 0"):
            confidence_histogram(logits, torch.zeros(6, dtype=torch.int64), bins=0)


class TestEvaluate:
    @pytest.mark.parametrize("name", ["fedavg", "one_ensemble", "v_distillation"])
    @pytest.mark.parametrize("last", [False, True])
    def test_every_number(self, name: str, last: bool) -> None:
        world = tiny.federation("mlp", test=30, public=24)
        method = methods.build(tiny.setting(method=name, client_lr=0.5, distill_lr=0.5))
        state, trace = method.round(method.init(world, 0), world, Streams(0))
        row = evaluate(method, state, trace, world, last=last)
        labels = world.test.labels

        def right(scores: torch.Tensor, truth: torch.Tensor) -> float:
            guesses = [max(range(3), key=values.__getitem__) for values in scores.tolist()]
            return 100 * sum(g == t for g, t in zip(guesses, truth.tolist())) / len(truth)

        assert row["accuracy"] == pytest.approx(right(world.predict(state.models, world.test)[0], labels))
        average = right(world.predict(trace.average, world.test)[0], labels)
        assert row["average_accuracy"] == pytest.approx(average)
        if name == "v_distillation":
            assert row["teacher_accuracy"] == pytest.approx(right(trace.targets, world.public.labels))
            assert row["distill_loss"] == trace.distill_loss
        else:
            assert math.isnan(row["teacher_accuracy"])
            assert math.isnan(row["distill_loss"])
        if last and name != "fedavg":
            together = world.predict(trace.clients, world.test).softmax(-1).mean(0)
            assert row["ensemble_accuracy"] == pytest.approx(right(together, labels))
        else:
            assert math.isnan(row["ensemble_accuracy"])
        assert row["ensemble_size"] == (0 if name == "fedavg" else 3)
        assert row["train_loss"] == trace.train_loss
