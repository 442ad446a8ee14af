"""Posteriors against the equations of FedBE (preprint section 3.3 and appendix A), worked out by hand."""

import re
from math import sqrt

import numpy as np
import pytest
import tiny
import torch
from torch import Tensor

from fedrepro.core.rng import Streams
from fedrepro.core.stack import Layout, Stack
from fedrepro.stages.posterior import (
    Dirichlet,
    Gaussian,
    GaussianOfficial,
    dirichlet_draws,
    dirichlet_weights,
    gaussian_moments,
)
from fedrepro.stages.round import Round, Teach
from fedrepro.stages.teach import Average, Clients, Nobody, Union

WORLD = tiny.federation("mlp")  # asked only to recalibrate, which the stacks by hand do not
STREAMS = Streams(0, 3)
MANY = 20_000
ERRORS = 4.5  # standard errors that a sample moment may lie away from its expectation


def vector(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def close(found: Tensor, expected: Tensor, tolerance: float = 1e-14) -> None:
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


def assert_moments(samples: Tensor, mean: Tensor, variance: Tensor) -> None:
    """Check mean and variance of Gaussian samples [M, ...] within their standard errors."""
    count = len(samples)
    assert bool(((samples.mean(0) - mean).abs() <= ERRORS * (variance / count).sqrt()).all())
    assert bool(((samples.var(0) - variance).abs() <= ERRORS * variance * sqrt(2 / (count - 1))).all())


class TestGaussianMoments:
    clients = torch.tensor([[1.0, 2.0], [3.0, 6.0]], dtype=torch.float64)

    def test_equation_5(self) -> None:
        mean, variance = gaussian_moments(self.clients, vector(0.5, 0.5))
        # Distances 1 and 2 from the middle: divided by |S| = 2, not by 1.
        assert mean.tolist() == [2, 4]
        assert variance.tolist() == [1, 4]

    def test_equation_11(self) -> None:
        mean, variance = gaussian_moments(self.clients, vector(0.25, 0.75))
        # 1/4 * 1 + 3/4 * 3 = 2.5 and 1/4 * 2 + 3/4 * 6 = 5;
        # 1/4 * 1.5^2 + 3/4 * 0.5^2 = 0.75 and 1/4 * 3^2 + 3/4 * 1^2 = 3.
        assert mean.tolist() == [2.5, 5]
        assert variance.tolist() == [0.75, 3]

    def test_equal_sizes_make_equation_11_equation_5(self) -> None:
        clients = torch.randn(7, 5, generator=tiny.seeded(0), dtype=torch.float64)
        mean, variance = gaussian_moments(clients, torch.full((7,), 1 / 7, dtype=torch.float64))
        close(mean, clients.mean(0))
        close(variance, clients.var(0, correction=0))


class TestGaussian:
    clients = tiny.stack([[1, 2], [3, 6]], [[0, 1], [4, 3]], [5, 9])

    def test_samples_have_the_moments_of_equation_11(self) -> None:
        round = tiny.aggregation(self.clients, [1, 3])
        samples = Gaussian(samples=MANY)(round, WORLD, STREAMS).params
        assert samples.shape == (MANY, 2)
        mean, variance = vector(2.5, 5), vector(0.75, 3)
        assert_moments(samples, mean, variance)
        # A diagonal Gaussian: no correlation, and a fourth moment of 3 (standard error sqrt(96 / M)).
        scaled = (samples - mean) / variance.sqrt()
        assert abs(float((scaled[:, 0] * scaled[:, 1]).mean())) < ERRORS / sqrt(MANY)
        assert bool(((scaled**4).mean(0) - 3).abs().max() < ERRORS * sqrt(96 / MANY))

    def test_every_sample_and_weight_has_its_own_noise(self) -> None:
        round = tiny.aggregation(self.clients)
        noise = Gaussian(samples=50)(round, WORLD, STREAMS).params - vector(2, 4)
        standard = (noise / vector(1, 2)).flatten()
        assert len(standard.unique()) == 100

    def test_one_client_is_that_client(self) -> None:
        alone = tiny.stack([[0.3, -0.7]], [[0.1, 0.2]], [4])
        assert tiny.same(Gaussian(samples=3)(tiny.aggregation(alone), WORLD, STREAMS), alone.take([0, 0, 0]))

    def test_statistics_get_no_noise_by_default(self) -> None:
        samples = Gaussian(samples=10)(tiny.aggregation(self.clients, [1, 3]), WORLD, STREAMS)
        # 1/4 * 0 + 3/4 * 4 = 3 and 1/4 * 1 + 3/4 * 3 = 2.5 in every sample; the larger count.
        assert samples.buffers.tolist() == [[3, 2.5]] * 10
        assert samples.counters.tolist() == [[9]] * 10
        assert samples.counters.dtype == torch.int64

    def test_sampled_statistics(self) -> None:
        round = tiny.aggregation(self.clients, [1, 3])
        samples = Gaussian(samples=MANY, buffers="sample")(round, WORLD, STREAMS)
        # Means: 1/4 * 0 + 3/4 * 4 = 3, variance 1/4 * 9 + 3/4 * 1 = 3. The running variance 2.5 has a standard
        # deviation of sqrt(1/4 * 1.5^2 + 3/4 * 0.5^2) = 0.87, so one in 500 samples had to be lifted above zero.
        assert_moments(samples.buffers[:, 0], vector(3), vector(3))
        variances = samples.buffers[:, 1]
        assert bool((variances > 0).all())
        lifted = int((variances < 1e-9).sum())
        # P(normal < -2.5 / 0.866) = 0.0019: 39 +- 6.2 of 20,000.
        assert abs(lifted - 38.9) < ERRORS * 6.2
        assert samples.counters.tolist() == [[9]] * MANY
        same = Gaussian(samples=MANY)(round, WORLD, STREAMS)
        assert torch.equal(samples.params, same.params)

    def test_recalibrated_statistics(self) -> None:
        world = tiny.federation("resnet8")
        round = tiny.trained_clients(world)
        plain = Gaussian(samples=2)(round, world, STREAMS)
        fresh = Gaussian(samples=2, buffers="recalibrate")(round, world, STREAMS)
        assert tiny.same(fresh, world.recalibrate(plain))
        assert torch.equal(fresh.params, plain.params)
        assert not torch.equal(fresh.buffers, plain.buffers)

    def test_the_default_touches_no_statistic_of_a_real_network(self) -> None:
        world = tiny.federation("resnet8")
        round = tiny.trained_clients(world)
        samples = Gaussian(samples=3)(round, world, STREAMS)
        assert torch.equal(samples.buffers, round.average.buffers.expand(3, -1))
        assert len(samples.params.unique(dim=0)) == 3
        variances = [view for name, view in samples.named_buffers().items() if name.endswith("var")]
        assert len(variances) == 7
        assert all(bool((view > 0).all()) for view in variances)

    def test_seed_and_round_decide(self) -> None:
        round = tiny.aggregation(self.clients)

        def draw(streams: Streams) -> Tensor:
            return Gaussian(samples=4)(round, WORLD, streams).params

        assert torch.equal(draw(Streams(0, 3)), draw(Streams(0, 3)))
        assert not torch.equal(draw(Streams(0, 3)), draw(Streams(0, 4)))
        assert not torch.equal(draw(Streams(0, 3)), draw(Streams(1, 3)))


class TestGaussianOfficial:
    """The Gaussian of the released code: tensor by tensor, directions and lengths apart, sizes ignored."""

    layout = Layout((("a", (2,)), ("b", (1,))), (("norm.running_mean", (1,)), ("norm.running_var", (1,))), ())

    def round(self, sizes: list[float] | None = None) -> Round:
        def make(params: list[list[float]], buffers: list[list[float]]) -> Stack:
            none = torch.zeros(len(params), 0, dtype=torch.int64)
            return Stack(self.layout, torch.tensor(params).double(), torch.tensor(buffers).double(), none)

        start = make([[10, 20, 5]], [[1, 2]])
        clients = make([[13, 24, 4], [10, 30, 7]], [[2, 2.5], [5, 3]])
        return tiny.aggregation(clients, sizes, start.take([0, 0]))

    def test_without_noise_by_hand(self) -> None:
        drawn = GaussianOfficial(samples=2, noise_scale=0.0)(self.round(), WORLD, STREAMS)
        # a: moves (3, 4) of length 5 and (0, 10) of length 10; directions (0.6, 0.8) and (0, 1), their mean
        #    (0.3, 0.9) times the mean length 7.5 is (2.25, 6.75).
        # b: moves -1 and 2; directions -1 and 1 cancel.
        # running mean: moves 1 and 4, direction 1, mean length 2.5. running variance: moves 0.5 and 1: 0.75.
        close(drawn.params, vector(12.25, 26.75, 5).expand(2, 3))
        close(drawn.buffers, vector(3.5, 2.75).expand(2, 2))

    def test_the_step_scales_the_length(self) -> None:
        drawn = GaussianOfficial(samples=1, noise_scale=0.0, step=2.0)(self.round(), WORLD, STREAMS)
        close(drawn.params, vector(14.5, 33.5, 5)[None])

    def test_the_clients_sizes_are_ignored(self) -> None:
        equal, unequal = (
            GaussianOfficial(samples=5)(self.round(sizes), WORLD, STREAMS) for sizes in (None, [1.0, 99.0])
        )
        assert torch.equal(equal.params, unequal.params)
        assert torch.equal(equal.buffers, unequal.buffers)

    def test_noise_by_hand(self) -> None:
        drawn = GaussianOfficial(samples=MANY)(self.round(), WORLD, STREAMS)
        # a: the directions' variances over two clients are 0.3^2 and 0.1^2, so the standard deviation is
        #    0.1 * 0.3 * 7.5 = 0.225 and 0.1 * 0.1 * 7.5 = 0.075. b: 0.1 * 1 * 1.5 = 0.15.
        deviation = vector(0.225, 0.075, 0.15)
        assert_moments(drawn.params, vector(12.25, 26.75, 5), deviation**2)
        # Directions 1 and 1 have no variance; the floor 1e-5 gives 0.1 * sqrt(1e-5) * 2.5 and * 0.75.
        floor = 0.1 * sqrt(1e-5) * vector(2.5, 0.75)
        assert_moments(drawn.buffers, vector(3.5, 2.75), floor**2)

    def test_a_tensor_that_nobody_moved_stays(self) -> None:
        clients = tiny.stack([[1, 2], [1, 2]], [[0, 1], [0, 1]], [3, 4])
        drawn = GaussianOfficial(samples=2)(tiny.aggregation(clients), WORLD, STREAMS)
        assert drawn.params.tolist() == [[1, 2], [1, 2]]
        assert drawn.counters.tolist() == [[4], [4]]

    def test_running_variances_stay_positive(self) -> None:
        start = tiny.stack([[0, 0]], [[0, 0.1]])
        clients = tiny.stack([[1, 0], [0, 1]], [[1, 5.1], [1, -4.9]])
        round = tiny.aggregation(clients, None, start.take([0, 0]))
        drawn = GaussianOfficial(samples=200)(round, WORLD, STREAMS)
        # Directions +1 and -1, mean length 5: 0.1 +- 0.1 * 1 * 5, so many draws would be negative.
        assert bool((drawn.buffers[:, 1] > 0).all())
        assert bool((drawn.buffers[:, 1] < 1e-9).any())


class TestDirichletWeights:
    def test_equation_12(self) -> None:
        gammas = torch.tensor([[0.5, 0.5], [0.2, 0.8], [1.0, 0.0]], dtype=torch.float64)
        # (1, 3): 0.5 and 1.5 of 2; 0.2 and 2.4 of 2.6; 1 and 0.
        expected = torch.tensor([[0.25, 0.75], [1 / 13, 12 / 13], [1, 0]], dtype=torch.float64)
        close(dirichlet_weights(gammas, vector(1, 3)), expected)
        close(dirichlet_weights(gammas, vector(250, 750)), expected)  # the scale of the sizes cancels

    def test_equal_sizes_make_equation_12_equation_7(self) -> None:
        gammas = torch.rand(6, 5, generator=tiny.seeded(0), dtype=torch.float64)
        gammas /= gammas.sum(1, keepdim=True)
        close(dirichlet_weights(gammas, torch.full((5,), 7.0, dtype=torch.float64)), gammas)

    def test_a_draw_on_clients_that_weigh_nothing(self) -> None:
        with pytest.raises(ValueError, match="weigh nothing in the average"):
            dirichlet_weights(torch.tensor([[0.0, 1.0], [0.5, 0.5]]), vector(1, 0))


class TestDirichletDraws:
    @pytest.mark.parametrize("alpha", [0.1, 0.5, 1.0, 2.0])
    def test_moments(self, alpha: float) -> None:
        clients = 4
        drawn = dirichlet_draws(MANY, clients, dirichlet_alpha=alpha, streams=STREAMS)
        assert drawn.shape == (MANY, clients)
        assert drawn.dtype == torch.float64
        close(drawn.sum(1), torch.ones(MANY, dtype=torch.float64), 1e-12)
        assert float(drawn.min()) >= 0
        # Mean 1/4; variance 1/4 * 3/4 / (4 alpha + 1); covariance -1/16 / (4 alpha + 1).
        variance = 3 / 16 / (clients * alpha + 1)
        assert bool(((drawn.mean(0) - 0.25).abs() < ERRORS * sqrt(variance / MANY)).all())
        square = (drawn - 0.25).square()
        assert bool(((square.mean(0) - variance).abs() < ERRORS * square.std(0) / sqrt(MANY)).all())
        product = (drawn[:, 0] - 0.25) * (drawn[:, 1] - 0.25)
        error = ERRORS * float(product.std()) / sqrt(MANY)
        assert abs(float(product.mean()) + variance / 3) < error

    def test_seed_and_round_decide(self) -> None:
        def draw(streams: Streams) -> Tensor:
            return dirichlet_draws(3, 4, dirichlet_alpha=1.0, streams=streams)

        assert torch.equal(draw(Streams(0, 1)), draw(Streams(0, 1)))
        assert not torch.equal(draw(Streams(0, 1)), draw(Streams(0, 2)))
        assert not torch.equal(draw(Streams(0, 1)), draw(Streams(1, 1)))

    @pytest.mark.parametrize("alpha", [0.0, -1.0, float("nan"), float("inf"), 1e308, 1e-300])
    def test_the_concentration_must_be_in_its_range(self, alpha: float) -> None:
        message = re.escape(f"dirichlet_alpha must be in [1e-06, 1e+12], got {alpha}")
        with pytest.raises(ValueError, match=message):
            dirichlet_draws(3, 4, dirichlet_alpha=alpha, streams=STREAMS)
        with pytest.raises(ValueError, match=message):
            Dirichlet(samples=1, dirichlet_alpha=alpha)

    @pytest.mark.parametrize("alpha", [1e-6, 1e12])
    @pytest.mark.parametrize("clients", [1, 2, 10, 300])
    def test_the_ends_of_the_range_sum_to_one(self, alpha: float, clients: int) -> None:
        drawn = dirichlet_draws(50, clients, dirichlet_alpha=alpha, streams=STREAMS)
        close(drawn.sum(1), torch.ones(50, dtype=torch.float64), 1e-12)

    @pytest.mark.parametrize("wrong", [0.0, 0.5, float("nan")])
    def test_draws_that_do_not_sum_to_one(self, wrong: float, monkeypatch: pytest.MonkeyPatch) -> None:
        class Broken:
            def dirichlet(self, alpha: np.ndarray, size: int) -> np.ndarray:
                return np.full((size, len(alpha)), wrong / len(alpha))

        monkeypatch.setattr(Streams, "numpy", lambda self, purpose: Broken())
        with pytest.raises(ValueError, match=r"concentration 2\.0 for 4 clients do not sum to 1"):
            dirichlet_draws(3, 4, dirichlet_alpha=2.0, streams=STREAMS)


class TestDirichlet:
    clients = tiny.stack([[1, 2], [3, 6], [5, -4]], [[0, 1], [4, 3], [2, 5]], [5, 9, 7])

    def test_samples_are_the_mixtures_of_equation_12(self) -> None:
        round = tiny.aggregation(self.clients, [10, 30, 60])
        samples = Dirichlet(samples=6, dirichlet_alpha=0.5)(round, WORLD, STREAMS)
        gammas = dirichlet_draws(6, 3, dirichlet_alpha=0.5, streams=STREAMS)
        for gamma, found in zip(gammas.tolist(), samples.params):
            weights = [g * n for g, n in zip(gamma, (10, 30, 60))]
            literal = [
                sum(w * p for w, p in zip(weights, column)) / sum(weights)
                for column in self.clients.params.T.tolist()
            ]
            close(found, vector(*literal), 1e-13)

    def test_the_released_code_mixes_everything_by_gamma_alone(self) -> None:
        round = tiny.aggregation(self.clients, [10, 30, 60])
        official = Dirichlet(samples=4, dirichlet_alpha=0.5, buffers="sample", by_size=False)
        found = official(round, WORLD, STREAMS)
        gammas = dirichlet_draws(4, 3, dirichlet_alpha=0.5, streams=STREAMS)
        for gamma, params, buffers in zip(gammas.tolist(), found.params, found.buffers):
            for values, ends in ((params, self.clients.params), (buffers, self.clients.buffers)):
                close(values, vector(*(sum(g * x for g, x in zip(gamma, column)) for column in ends.T.tolist())))

    def test_a_large_concentration_is_the_average(self) -> None:
        round = tiny.aggregation(self.clients, [10, 30, 60])
        samples = Dirichlet(samples=5, dirichlet_alpha=1e10, buffers="sample")(round, WORLD, STREAMS)
        # Relative deviations of the weights are about 1 / sqrt(alpha) = 1e-5.
        close(samples.params, round.average.params.expand(5, -1), 1e-3)
        close(samples.buffers, round.average.buffers.expand(5, -1), 1e-3)

    def test_a_small_concentration_is_a_client(self) -> None:
        round = tiny.aggregation(self.clients)
        samples = Dirichlet(samples=20, dirichlet_alpha=1e-4)(round, WORLD, STREAMS).params
        distance = (samples[:, None] - self.clients.params).abs().amax(2).amin(1)
        assert int((distance < 1e-6).sum()) >= 18
        assert len(samples.round(decimals=3).unique(dim=0)) >= 3

    def test_one_client_is_that_client(self) -> None:
        alone = tiny.stack([[0.3, -0.7]], [[0.1, 0.2]], [4])
        found = Dirichlet(samples=3, dirichlet_alpha=0.5)(tiny.aggregation(alone), WORLD, STREAMS)
        assert tiny.same(found, alone.take([0, 0, 0]))

    def test_statistics(self) -> None:
        round = tiny.aggregation(self.clients, [10, 30, 60])
        average, own = (
            Dirichlet(samples=4, dirichlet_alpha=0.5, buffers=buffers)(round, WORLD, STREAMS)
            for buffers in ("average", "sample")
        )
        assert torch.equal(average.params, own.params)
        assert torch.equal(average.buffers, round.average.buffers.expand(4, -1))
        gammas = dirichlet_draws(4, 3, dirichlet_alpha=0.5, streams=STREAMS)
        close(own.buffers, dirichlet_weights(gammas, vector(10, 30, 60)) @ self.clients.buffers)
        assert bool((own.buffers[:, 1] > 0).all())
        assert own.counters.tolist() == average.counters.tolist() == [[9]] * 4

    def test_recalibrated_statistics(self) -> None:
        world = tiny.federation("resnet8")
        round = tiny.trained_clients(world)
        plain, fresh = (
            Dirichlet(samples=2, dirichlet_alpha=1.0, buffers=buffers)(round, world, STREAMS)
            for buffers in ("average", "recalibrate")
        )
        assert tiny.same(fresh, world.recalibrate(plain))


class TestMembers:
    round = tiny.aggregation(tiny.stack([[1, 2], [3, 6], [5, -4]], [[0, 1], [4, 3], [2, 5]], [5, 9, 7]), [1, 1, 2])

    def test_average_clients_and_nobody(self) -> None:
        assert tiny.same(Average()(self.round, WORLD, STREAMS), self.round.average)
        assert tiny.same(Clients()(self.round, WORLD, STREAMS), self.round.clients)
        nobody = Nobody()(self.round, WORLD, STREAMS)
        assert len(nobody) == 0
        assert nobody.layout == self.round.clients.layout

    @pytest.mark.parametrize("sampler", [Gaussian(samples=10), Dirichlet(samples=10, dirichlet_alpha=0.5)])
    def test_fedbe_has_the_average_then_the_clients_then_the_samples(self, sampler: Teach) -> None:
        found = Union((Average(), Clients(), sampler))(self.round, WORLD, STREAMS)
        assert len(found) == 1 + 3 + 10
        assert tiny.same(found.take([0]), self.round.average)
        assert tiny.same(found.take([1, 2, 3]), self.round.clients)
        assert tiny.same(found.take(slice(4, None)), sampler(self.round, WORLD, STREAMS))

    @pytest.mark.parametrize(
        "sampler",
        [
            Gaussian(samples=0),
            Gaussian(samples=0, buffers="sample"),
            GaussianOfficial(samples=0),
            Dirichlet(samples=0, dirichlet_alpha=0.5),
            Dirichlet(samples=0, dirichlet_alpha=0.5, buffers="sample"),
        ],
    )
    def test_no_samples_are_allowed(self, sampler: Teach) -> None:
        found = Union((Average(), Clients(), sampler))(self.round, WORLD, STREAMS)
        assert len(found) == 4

    @pytest.mark.parametrize(
        "sampler",
        [
            Gaussian(samples=0, buffers="recalibrate"),
            Dirichlet(samples=0, dirichlet_alpha=0.5, buffers="recalibrate"),
        ],
    )
    def test_no_samples_are_allowed_with_recalibration(self, sampler: Teach) -> None:
        world = tiny.federation("resnet8")
        assert len(sampler(tiny.trained_clients(world), world, STREAMS)) == 0

    def test_what_goes_in_stays_as_it_was(self) -> None:
        kept = (
            [tiny.copied(s) for s in (self.round.start, self.round.clients, self.round.average)],
            self.round.shares.clone(),
        )
        for sampler in (
            Gaussian(samples=2, buffers="sample"),
            GaussianOfficial(samples=2),
            Dirichlet(samples=2, dirichlet_alpha=0.5, buffers="sample"),
        ):
            sampler(self.round, WORLD, STREAMS)
        assert tiny.same(self.round.start, kept[0][0])
        assert tiny.same(self.round.clients, kept[0][1])
        assert tiny.same(self.round.average, kept[0][2])
        assert torch.equal(self.round.shares, kept[1])

    def test_refusals(self) -> None:
        with pytest.raises(ValueError, match="samples must be >= 0, got -1"):
            Gaussian(samples=-1)
        with pytest.raises(ValueError, match="samples must be >= 0, got -1"):
            GaussianOfficial(samples=-1)
        with pytest.raises(ValueError, match="samples must be >= 0, got -1"):
            Dirichlet(samples=-1, dirichlet_alpha=1.0)
        with pytest.raises(ValueError, match=r"buffers must be one of .*, got 'mean'"):
            Gaussian(samples=1, buffers="mean")
        with pytest.raises(ValueError, match=r"buffers must be one of .*, got 'mean'"):
            Dirichlet(samples=1, dirichlet_alpha=1.0, buffers="mean")
        with pytest.raises(ValueError, match=r"dirichlet_alpha must be in \[1e-06, 1e\+12\], got 0"):
            Dirichlet(samples=1, dirichlet_alpha=0.0)


def test_a_client_that_weighs_nothing_plays_no_part_in_the_moments() -> None:
    clients = torch.tensor([[1.0, 2.0], [float("nan"), float("inf")], [3.0, 6.0]], dtype=torch.float64)
    mean, variance = gaussian_moments(clients, torch.tensor([0.5, 0.0, 0.5], dtype=torch.float64))
    assert mean.tolist() == [2.0, 4.0]
    assert variance.tolist() == [1.0, 4.0]
