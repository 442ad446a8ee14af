from fractions import Fraction

import pytest
import tiny
import torch

from fedrepro.kernels.batches import NO_AUGMENT, batch_plan
from fedrepro.kernels.step import Sgd, Step
from fedrepro.stages.rates import Constant, Cosine, Cyclical, Decaying, Stepped, round_factor


def test_constant() -> None:
    assert Constant(lr=0.1).steps(3).tolist() == [0.1, 0.1, 0.1]


def test_decaying() -> None:
    assert Decaying(lr=0.8, decay=0.5).steps(4).tolist() == [0.8, 0.4, 0.2, 0.1]
    assert torch.equal(Decaying(lr=0.1, decay=1.0).steps(3), Constant(lr=0.1).steps(3))


class TestStepped:
    def test_by_hand(self) -> None:
        assert Stepped(lr=0.8, every=2, factor=0.5).steps(5).tolist() == [0.8, 0.8, 0.4, 0.4, 0.2]
        found = Stepped(lr=0.8, decay=0.5, every=2, factor=0.1).steps(4)
        assert found.tolist() == pytest.approx([0.8, 0.4, 0.02, 0.01], rel=1e-14)

    def test_without_a_factor_it_is_the_decay_to_the_bit(self) -> None:
        for decay in (1.0, 0.99):
            found = Stepped(lr=0.01, decay=decay, every=0, factor=0.1).steps(50)
            assert torch.equal(found, Decaying(lr=0.01, decay=decay).steps(50))


class TestCyclical:
    rates = Cyclical(high=1e-3, low=4e-4, cycle=25).steps(60)

    def test_a_cycle_falls_from_the_top_to_the_bottom_and_jumps_back(self) -> None:
        # Steps 1, 25, 26, 50 and 51 of FedBE's cycle.
        found = self.rates[[0, 24, 25, 49, 50]]
        expected = torch.tensor([1e-3, 4e-4, 1e-3, 4e-4, 1e-3], dtype=torch.float64)
        torch.testing.assert_close(found, expected, rtol=1e-14, atol=0)

    def test_it_is_linear_within_a_cycle(self) -> None:
        # 24 equal steps between 1e-3 and 4e-4: 2.5e-5 each; the 13th value is the middle, 7e-4.
        drops = -self.rates[:25].diff()
        torch.testing.assert_close(drops, torch.full((24,), 2.5e-5, dtype=torch.float64), rtol=1e-10, atol=0)
        assert self.rates[12] == pytest.approx(7e-4, rel=1e-12)
        assert torch.equal(self.rates[:25], self.rates[25:50])
        assert len(self.rates) == 60

    def test_a_cycle_of_one_step_stays_at_the_top(self) -> None:
        assert Cyclical(high=2.0, low=1.0, cycle=1).steps(3).tolist() == [2, 2, 2]

    @pytest.mark.parametrize("cycle", [0, -1])
    def test_an_empty_cycle_is_refused(self, cycle: int) -> None:
        with pytest.raises(ValueError, match=f"cycle must be >= 1 step, got {cycle}"):
            Cyclical(high=2.0, low=1.0, cycle=cycle).steps(3)


class TestRoundFactor:
    def test_fedbe_with_forty_rounds(self) -> None:
        # 0.3 R = 12 and 0.6 R = 24 already belong to the lower rate.
        factors = [round_factor("fedbe", round=r, rounds=40) for r in range(40)]
        assert factors == [1.0] * 12 + [0.1] * 12 + [0.01] * 16

    def test_fedbe_with_any_number_of_rounds(self) -> None:
        for rounds in range(1, 201):
            for r in range(rounds):
                progress = Fraction(r, rounds)  # exact: no rounding decides at a border
                expected = 1.0 if progress < Fraction(3, 10) else 0.1 if progress < Fraction(6, 10) else 0.01
                assert round_factor("fedbe", round=r, rounds=rounds) == expected

    def test_the_released_code(self) -> None:
        # Half at first; then full while r <= 12 = 30 %, a fifth while r <= 24, a tenth while r <= 36.
        factors = [round_factor("fedbe_official", round=r, rounds=40) for r in range(40)]
        assert factors == [0.5] + [1.0] * 12 + [0.2] * 12 + [0.1] * 12 + [0.01] * 3

    def test_centralised(self) -> None:
        factors = [round_factor("halves", round=r, rounds=200) for r in range(200)]
        assert factors == [1.0] * 100 + [0.1] * 50 + [0.01] * 50

    def test_constant(self) -> None:
        assert {round_factor("constant", round=r, rounds=40) for r in range(40)} == {1.0}

    def test_an_unknown_name_is_refused(self) -> None:
        with pytest.raises(ValueError, match=r"lr_schedule must be one of .*'fedbe'.*, got 'cosine'"):
            round_factor("cosine", round=0, rounds=1)


class TestSgd:
    @pytest.mark.parametrize("momentum", [-0.1, 1.0, float("nan")])
    def test_momentum(self, momentum: float) -> None:
        with pytest.raises(ValueError, match=r"momentum must be in \[0, 1\), got"):
            Sgd(momentum=momentum)

    def test_weight_decay(self) -> None:
        with pytest.raises(ValueError, match="weight_decay must be >= 0, got -1"):
            Sgd(weight_decay=-1.0)

    @pytest.mark.parametrize(
        "rates", [torch.ones(2, 2), torch.tensor([0.1, -0.1]), torch.ones(1), torch.ones(3)], ids=str
    )
    def test_learning_rates(self, rates: torch.Tensor) -> None:
        world = tiny.federation("mlp", sizes=(8,))
        plan = batch_plan(world.parts, [tiny.seeded(0)], epochs=[1], batch_size=4, augment=NO_AUGMENT)
        assert len(plan) == 2
        with pytest.raises(ValueError, match=r"learning rates must be \[2\] \(the steps\) values >= 0"):
            world.train(world.start(0), world.data, (world.data.labels,), plan, Step(rule=Sgd()), rates)


def test_cosine_is_torchs() -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 50)
    seen = []
    for _ in range(50):
        seen.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    assert Cosine(lr=0.3).steps(50).tolist() == pytest.approx(seen)
    assert Cosine(lr=0.3).steps(2).tolist() == pytest.approx([0.3, 0.15])
