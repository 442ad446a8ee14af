import pytest
import tiny
import torch
from torch import Tensor

from fedrepro.kernels.inputs import inputs
from fedrepro.stages.combine import (
    Ensemble,
    MeanOfLogits,
    MeanOfProbabilities,
    combination,
    sharpen,
    vote,
    vote_in_order,
)


def rows(*values: list[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-13, atol=1e-13)


class TestSharpen:
    def test_squares_by_hand(self) -> None:
        # 0.25, 0.09 and 0.04 of 0.38; 1/2 and 1/2 stay.
        found = sharpen(rows([0.5, 0.3, 0.2], [0.5, 0.5, 0.0]), 2.0)
        close(found, rows([25 / 38, 9 / 38, 4 / 38], [0.5, 0.5, 0.0]))

    def test_an_exponent_of_one_changes_nothing(self) -> None:
        p = torch.rand(5, 10, generator=tiny.seeded(0), dtype=torch.float64).softmax(-1)
        close(sharpen(p, 1.0), p)

    def test_it_is_a_temperature(self) -> None:
        logits = torch.randn(5, 10, generator=tiny.seeded(0), dtype=torch.float64)
        close(sharpen(logits.softmax(-1), 2.0), (logits / 0.5).softmax(-1))

    def test_small_probabilities_do_not_underflow(self) -> None:
        p = torch.full((1, 10), 0.1)
        close(sharpen(p, 500.0).double(), rows([0.1] * 10).float().double())  # 0.1^500 is 0 in any float
        certain = sharpen(rows([1.0, 0.0, 1e-300]), 2.0)
        assert certain.tolist() == [[1, 0, 0]]

    @pytest.mark.parametrize("exponent", [0.0, -2.0, float("nan")])
    def test_the_exponent_must_be_positive(self, exponent: float) -> None:
        with pytest.raises(ValueError, match=f"sharpen must be > 0, got {exponent}"):
            sharpen(rows([0.5, 0.5]), exponent)


class TestCombine:
    # Two members, two images.
    logits = torch.stack([rows([0.8, 0.2], [0.5, 0.5]), rows([0.4, 0.6], [0.1, 0.9])]).log()

    def test_mean_of_probabilities(self) -> None:
        # (0.6, 0.4) and (0.3, 0.7), whatever constant a member adds to its logits.
        shifted = self.logits + torch.tensor([5.0, -3.0], dtype=torch.float64)[:, None, None]
        close(MeanOfProbabilities(sharpen=1.0)(shifted), rows([0.6, 0.4], [0.3, 0.7]))
        # Squares: 0.36 and 0.16 of 0.52; 0.09 and 0.49 of 0.58. First the mean, then the square.
        sharp = MeanOfProbabilities(sharpen=2.0)(shifted)
        close(sharp, rows([9 / 13, 4 / 13], [9 / 58, 49 / 58]))

    def test_members_at_a_temperature(self) -> None:
        # At temperature 2 twice the logits give the members' probabilities; then the mean, then the square.
        members = MeanOfProbabilities(sharpen=1.0, temperature=2.0)
        close(members(2 * self.logits), rows([0.6, 0.4], [0.3, 0.7]))
        # The first image's own logits: sqrt(0.8) and sqrt(0.2), 2 to 1; sqrt(0.4) and sqrt(0.6).
        second = 0.4**0.5 / (0.4**0.5 + 0.6**0.5)
        first = (2 / 3 + second) / 2
        close(members(self.logits[:, :1]), rows([first, 1 - first]))
        sharp = MeanOfProbabilities(sharpen=2.0, temperature=2.0)
        close(sharp(2 * self.logits), rows([9 / 13, 4 / 13], [9 / 58, 49 / 58]))

    def test_a_setting_says_what_is_averaged(self) -> None:
        one = tiny.setting(sharpen=2.0)
        assert combination(one) == MeanOfProbabilities(sharpen=2.0)
        assert combination(one.with_(member_temperature=4.0)) == MeanOfProbabilities(sharpen=2.0, temperature=4.0)
        logits = combination(one.with_(combination="logits", member_temperature=4.0))
        assert logits == MeanOfLogits(temperature=2.0)
        close(logits(2 * self.logits), sharpen(MeanOfLogits(temperature=4.0)(2 * self.logits), 2.0))

    def test_mean_of_logits(self) -> None:
        # Geometric means sqrt(0.32) and sqrt(0.12): a ratio of sqrt(8 / 3); sqrt(0.05) and sqrt(0.45): 1 to 3.
        ratio = (8 / 3) ** 0.5
        close(MeanOfLogits()(self.logits), rows([ratio / (1 + ratio), 1 / (1 + ratio)], [0.25, 0.75]))

    def test_mean_of_logits_at_a_temperature(self) -> None:
        # At temperature 1/2 the ratios sqrt(8 / 3) and 1 / 3 are squared.
        found = MeanOfLogits(temperature=0.5)(self.logits)
        close(found, rows([8 / 11, 3 / 11], [0.1, 0.9]))

    @pytest.mark.parametrize("combine", [MeanOfProbabilities(sharpen=2.0), MeanOfLogits()])
    def test_rows_sum_to_one_and_members_have_no_order(self, combine: MeanOfProbabilities | MeanOfLogits) -> None:
        logits = 5 * torch.randn(7, 20, 10, generator=tiny.seeded(1), dtype=torch.float64)
        found = combine(logits)
        assert found.shape == (20, 10)
        close(found.sum(1), torch.ones(20, dtype=torch.float64))
        close(combine(logits.flip(0)), found)

    @pytest.mark.parametrize("combine", [MeanOfProbabilities(sharpen=1.0), MeanOfLogits()])
    def test_equal_members_are_one(self, combine: MeanOfProbabilities | MeanOfLogits) -> None:
        logits = torch.randn(1, 4, 3, generator=tiny.seeded(1), dtype=torch.float64)
        close(combine(logits.expand(5, -1, -1)), logits[0].softmax(-1))


class TestVote:
    def test_shares_by_hand(self) -> None:
        # Three members: two choose class 0, one class 2; mean probabilities 0.6, 0.1, 0.3.
        p = torch.tensor([[[0.8, 0.1, 0.1]], [[0.9, 0.05, 0.05]], [[0.1, 0.15, 0.75]]], dtype=torch.float64)
        close(vote(p.log()), rows([2.3 / 3.5, 0.05 / 3.5, 1.15 / 3.5]))

    def test_the_surest_member_has_one_vote_and_a_tie_goes_to_the_larger_mean(self) -> None:
        sure, unsure = [0.0, 20.0, 0.0], [1.0, 0.0, 0.0]
        assert vote(torch.tensor([[sure], [unsure], [unsure]])).argmax(-1).tolist() == [0]
        assert vote(torch.tensor([[sure], [unsure]])).argmax(-1).tolist() == [1]
        assert vote(torch.tensor([[unsure], [sure]])).argmax(-1).tolist() == [1]

    def test_vote_in_order_gives_ties_to_the_first_class(self) -> None:
        # Two classes with a vote each and one with none: order 1/2, 1/3, 1/6, together 1.
        logits = torch.tensor([[[0.0, 1.0, 9.0]], [[0.0, 5.0, 1.0]]], dtype=torch.float64)
        close(vote_in_order(logits), rows([0.5 / 3, (1 + 1 / 3) / 3, (1 + 1 / 6) / 3]))
        third = torch.tensor([[[9.0, 1.0, 0.0]], [[0.0, 1.0, 9.0]], [[0.0, 1.0, 9.0]]])
        assert vote_in_order(third).argmax(-1).tolist() == [2]  # a majority is a majority


class TestEnsemble:
    @pytest.mark.parametrize("name", ["mlp", "resnet8"])
    def test_it_is_the_literal_mean_over_members(self, name: str) -> None:
        world = tiny.federation(name)
        members = tiny.trained_clients(world).clients
        found = Ensemble.of(members, MeanOfProbabilities(sharpen=2.0), world)(world.public)
        total = torch.zeros(len(world.public), tiny.CLASSES, dtype=torch.float64)
        for member in range(3):
            module = world.architecture.make().double().eval()  # stored statistics, not the batch's
            members.load(member, module)
            with torch.no_grad():
                x = inputs(world.public, torch.arange(len(world.public)), dtype=torch.float64)
                total += module(x).softmax(-1)
        squared = (total / 3) ** 2
        close(found, squared / squared.sum(1, keepdim=True))
        assert not found.requires_grad

    def test_nobody_cannot_predict(self) -> None:
        world = tiny.federation("mlp")
        nobody = world.start(0).take(slice(0, 0))
        with pytest.raises(ValueError, match="an ensemble without members cannot predict"):
            Ensemble.of(nobody, MeanOfLogits(), world)(world.test)
