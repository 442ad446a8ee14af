"""The judge judged: the words by simulation, where the true gap is known in margins."""

from pathlib import Path

import numpy as np
import pytest

from fedrepro.papers.judge import JUDGED, judge
from fedrepro.papers.judged import rates, rates_table, worst

CONTRIBUTING = Path(__file__).parents[2] / "CONTRIBUTING.md"


class TestRates:
    def test_false_words_stay_below_5_percent(self) -> None:
        passed, off = worst()
        assert 3 < passed < 5
        assert 3 < off < 5

    def test_seeds_help(self) -> None:
        for printed in (True, False):
            right = [rates(n, printed=printed, spread=0.25)[0.0]["reproduced"] for n in (2, 3, 5)]
            found = [rates(n, printed=printed, spread=0.5)[2.0]["off"] for n in (2, 3, 5, 10)]
            assert right == sorted(right)
            assert found == sorted(found)
            assert right[-1] > 0.9
            assert found[-1] > 0.99

    def test_every_cell_gets_one_word(self) -> None:
        for found in rates(3, printed=True, spread=0.5).values():
            assert list(found) == list(JUDGED)
            assert sum(found.values()) == pytest.approx(1.0)

    def test_they_are_the_words_of_the_judge(self) -> None:
        rng = np.random.default_rng(7)
        said = []
        for _ in range(600):
            theirs, ours = rng.normal(0.0, 0.25, 5), list(rng.normal(0.5, 0.25, 3))
            printed = {
                "mean": round(theirs.mean(), 1),
                "std": round(theirs.std(ddof=1), 2),
                "runs": 5,
                "status": "ok",
            }
            said.append(judge(printed, ours, scale="paper", margin=1.0, step=0.1).word)
        for word, share in rates(3, printed=True, spread=0.25)[0.5].items():
            assert said.count(word) / len(said) == pytest.approx(share, abs=0.06), word  # three standard errors


def test_contributing_shows_what_the_simulation_gives() -> None:
    table = rates_table(seeds=(1, 2, 3, 5))
    lines = [list(table.columns), ["---"] * len(table.columns), *map(list, table.values)]
    text = CONTRIBUTING.read_text(encoding="utf-8")
    for line in lines:
        assert f"| {' | '.join(map(str, line))} |" in text
    assert "at most {:.1f} % and {:.1f} %".format(*worst()) in " ".join(text.split())
