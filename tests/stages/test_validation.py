from dataclasses import replace

import pytest
import tiny
import torch

from fedrepro.core.stack import concatenate
from fedrepro.stages.validation import chance, validated

WORLD = replace(tiny.federation("mlp"), validation=tiny.points(8, seed=7))


def test_each_model_is_asked_and_a_diverged_one_knows_nothing() -> None:
    models = concatenate([WORLD.start(0), WORLD.start(1), WORLD.start(2)])
    models.params[2, 0] = float("nan")
    found = validated(models, WORLD)
    for place in range(2):
        guesses = WORLD.predict(models.take([place]), WORLD.validation)[0].argmax(1)
        right = [int(guess) == label % 3 for label, guess in enumerate(guesses)]  # labelled in turn
        assert float(found[place]) == pytest.approx(100 * sum(right) / 8)
    assert float(found[2]) == 0.0
    assert found.dtype == torch.float64
    assert chance(WORLD) == pytest.approx(100 / 3)


def test_a_server_without_validation_images() -> None:
    with pytest.raises(ValueError, match="needs validation images, the server has none"):
        validated(WORLD.start(0), tiny.federation("mlp"))
