"""Posteriors over global models, from which further teachers are drawn.

FedBE (preprint section 3.3, appendix A) reads the clients' models as samples of a distribution of global
models and draws more of them. Every function here is a handful of operations on flat tensors.

Shapes: S clients, M members, P parameters, Q buffer entries.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from fedrepro.core.names import pick
from fedrepro.core.rng import Streams
from fedrepro.core.setting import CONCENTRATION, Option, Setting, at_least, declare
from fedrepro.core.stack import Stack, mix
from fedrepro.data.dirichlet import simplex
from fedrepro.federation.federation import Federation
from fedrepro.stages.round import Round, Teach

BUFFERS = ("average", "sample", "recalibrate")
TINY = 1e-12  # a sampled running variance is kept above this
declare(
    samples=Option("teachers drawn from the posterior", neutral=10, example=3, must=at_least(0)),
    posterior=Option(
        "a name of `POSTERIORS`",
        neutral="gaussian",
        example="dirichlet",
        formerly={
            "gaussian_fedbe_official": "gaussian_official",
            "dirichlet_fedbe_official": "dirichlet_official",
        },
    ),
    dirichlet_alpha=Option(
        "concentration of the Dirichlet posterior",
        neutral=1.0,
        example=2.0,
        where={"posterior": "dirichlet"},
        must=CONCENTRATION,
    ),
    posterior_buffers=Option(
        "BatchNorm statistics of a sample, see `Gaussian`", neutral="average", example="sample"
    ),
)


@dataclass(frozen=True, kw_only=True)
class Gaussian:
    """Teachers drawn from the Gaussian posterior: w = mu + sqrt(var) * eps (FedBE eq. 5 and 11).

    Args:
        samples: number of teachers M, >= 0; FedBE uses 10.
        buffers: BatchNorm statistics of a sample, on which the paper is silent: "average" (the weighted mean
            of the clients'), "sample" (drawn like the weights, as the released code does, but with variances kept
            positive) or "recalibrate" (recomputed on the public images).
    """

    samples: int
    buffers: str = "average"

    def __post_init__(self) -> None:
        """Check the ranges."""
        _check(self.samples, self.buffers)

    def check(self, federation: Federation) -> None:
        """Refuse to recalibrate where that is impossible; see `round.check`."""
        if self.buffers == "recalibrate":
            federation.check_recalibration()

    def __call__(self, round: Round, federation: Federation, streams: Streams) -> Stack:
        """Return M sampled models."""
        source = streams.torch("posterior")
        shares = round.shares[0].to(round.clients.params)
        mean, variance = gaussian_moments(round.clients.params, shares)
        noise = _normal((self.samples, len(mean)), mean, source)
        params = mean + variance.sqrt() * noise
        base = mix(round.shares[:1].expand(self.samples, -1), round.clients)
        buffers = base.buffers
        if self.buffers == "sample":
            middle, spread = gaussian_moments(round.clients.buffers, shares)
            buffers = middle + spread.sqrt() * _normal((self.samples, len(middle)), middle, source)
            buffers = _keep_variances_positive(Stack(base.layout, params, buffers, base.counters))
        drawn = Stack(base.layout, params, buffers, base.counters)
        return federation.recalibrate(drawn) if self.buffers == "recalibrate" else drawn


@dataclass(frozen=True, kw_only=True)
class GaussianOfficial:
    """The Gaussian of FedBE's released code, which is not the paper's.

    Tensor by tensor, with d_i = w_i - w_start and u_i = d_i / ||d_i||: mean and variance of u over the clients
    without weights, the variance at least 1e-5; u = mean + noise_scale sqrt(var) eps and
    w = w_start + step u mean_i ||d_i||. BatchNorm statistics are treated as weights;
    here, not in the code, drawn variances are kept positive.

    Args:
        samples: number of teachers M, >= 0.
        noise_scale: factor on the standard deviation; 0.1 in the code.
        step: factor on the length; 1 in the code.
    """

    samples: int
    noise_scale: float = 0.1
    step: float = 1.0

    def __post_init__(self) -> None:
        """Check the range."""
        _check(self.samples, "sample")

    def __call__(self, round: Round, federation: Federation, streams: Streams) -> Stack:
        """Return M sampled models."""
        source = streams.torch("posterior")
        base = mix(round.shares[:1].expand(self.samples, -1), round.clients)
        own = round.clients if len(round.shares) == 1 else round.clients.take(round.shares[0].nonzero()[:, 0])
        flats = []
        for name, entries in (("params", base.layout.params), ("buffers", base.layout.buffers)):
            start, ends = getattr(round.state.models, name)[:1], getattr(own, name)
            out = start.repeat(self.samples, 1)
            moves = dict(base.layout.views(ends - start, entries))
            for key, view in base.layout.views(out, entries):
                move = moves[key].flatten(1)  # [S, size of the tensor]
                length = move.norm(dim=1, keepdim=True)
                direction = move / length.clamp_min(TINY)
                variance = direction.var(0, unbiased=False).clamp_min(1e-5)
                noise = _normal((self.samples, move.shape[1]), move, source)
                drawn = direction.mean(0) + self.noise_scale * variance.sqrt() * noise
                view += (self.step * drawn * length.mean()).view(view.shape)
            flats.append(out)
        drawn_stack = Stack(base.layout, flats[0], flats[1], base.counters)
        return Stack(base.layout, flats[0], _keep_variances_positive(drawn_stack), base.counters)


@dataclass(frozen=True, kw_only=True)
class Dirichlet:
    """Teachers drawn as convex combinations of the clients, gamma ~ Dir(alpha 1) (FedBE eq. 7 and 12).

    Args:
        samples: number of teachers M, >= 0.
        dirichlet_alpha: concentration, in the range of `CONCENTRATION`; FedBE's Table 8 tries 0.1, 0.5, 1 and 2.
        buffers: "average" mixes the statistics by the clients' shares, "sample" by the sample's own gamma,
            "recalibrate" recomputes them on the public images.
        by_size: whether a client's images weigh beside its gamma (eq. 12); FedBE's released code ignores them
            and mixes the statistics like the parameters (buffers "sample").
    """

    samples: int
    dirichlet_alpha: float
    buffers: str = "average"
    by_size: bool = True

    def __post_init__(self) -> None:
        """Check the ranges."""
        _check(self.samples, self.buffers)
        _check_alpha(self.dirichlet_alpha)

    def check(self, federation: Federation) -> None:
        """Refuse to recalibrate where that is impossible; see `round.check`."""
        if self.buffers == "recalibrate":
            federation.check_recalibration()

    def __call__(self, round: Round, federation: Federation, streams: Streams) -> Stack:
        """Return M sampled models."""
        gammas = dirichlet_draws(
            self.samples, len(round.clients), dirichlet_alpha=self.dirichlet_alpha, streams=streams
        )
        sizes = round.shares[0].cpu().double()
        weights = dirichlet_weights(gammas, sizes) if self.by_size else gammas
        drawn = mix(weights, round.clients)
        if self.buffers == "recalibrate":
            return federation.recalibrate(drawn)
        if self.buffers == "average":
            base = mix(round.shares[:1].expand(self.samples, -1), round.clients)
            return Stack(drawn.layout, drawn.params, base.buffers, base.counters)
        return drawn


def _gaussian(setting: Setting) -> Gaussian:
    return Gaussian(samples=setting.samples, buffers=setting.posterior_buffers)


def _gaussian_official(setting: Setting) -> GaussianOfficial:
    return GaussianOfficial(samples=setting.samples)


def _dirichlet(setting: Setting) -> Dirichlet:
    return Dirichlet(
        samples=setting.samples, dirichlet_alpha=setting.dirichlet_alpha, buffers=setting.posterior_buffers
    )


def _dirichlet_official(setting: Setting) -> Dirichlet:
    return Dirichlet(
        samples=setting.samples, dirichlet_alpha=setting.dirichlet_alpha, buffers="sample", by_size=False
    )


# "official" are those of FedBE's released code.
POSTERIORS: dict[str, Callable[[Setting], Teach]] = {
    "gaussian": _gaussian,
    "gaussian_fedbe_official": _gaussian_official,
    "dirichlet": _dirichlet,
    "dirichlet_fedbe_official": _dirichlet_official,
}


def posterior(setting: Setting) -> Teach:
    """Return the sampled teachers of a setting.

    Raises:
        ValueError: for an unknown posterior.
    """
    return pick("posterior", setting.posterior, POSTERIORS)(setting)


def gaussian_moments(clients: Tensor, shares: Tensor) -> tuple[Tensor, Tensor]:
    """Fit a diagonal Gaussian to the clients' models.

    mu = sum_i p_i w_i and var = sum_i p_i (w_i - mu)^2 (FedBE eq. 11; with equal shares eq. 5, which divides
    by the number of clients, not by one less).

    Args:
        clients: [S, P] parameters.
        shares: [S], non-negative, summing to 1.

    Returns:
        mu [P] and var [P].
    """
    if not bool((own := shares > 0).all()):  # who weighs nothing plays no part, whatever its values
        clients, shares = clients[own], shares[own]
    mean = shares @ clients
    return mean, shares @ (clients - mean).square()


def dirichlet_weights(gammas: Tensor, sizes: Tensor) -> Tensor:
    """Turn Dirichlet draws into mixing weights: gamma_i n_i / sum_j gamma_j n_j (FedBE eq. 12; eq. 7 if equal).

    Args:
        gammas: [M, S] points of the simplex.
        sizes: [S] images or shares of the clients, any positive scale.

    Returns:
        [M, S], rows summing to 1.

    Raises:
        ValueError: if all of a draw lies on clients of size 0.
    """
    weighted = gammas * sizes
    total = weighted.sum(1, keepdim=True)
    if not bool((total > 0).all()):
        raise ValueError(
            "a draw of the Dirichlet posterior lies on clients alone that weigh nothing in the average"
        )
    return weighted / total


def dirichlet_draws(samples: int, clients: int, *, dirichlet_alpha: float, streams: Streams) -> Tensor:
    """Draw [M, S] float64 points of the simplex from Dir(alpha 1), the same on every device.

    Raises:
        ValueError: unless `dirichlet_alpha` is in the range of `CONCENTRATION`, or if a draw does not sum to 1.
    """
    _check_alpha(dirichlet_alpha)
    return torch.from_numpy(simplex(dirichlet_alpha, clients, samples, streams.numpy("posterior")))


def _normal(shape: tuple[int, ...], like: Tensor, source: torch.Generator) -> Tensor:
    return torch.randn(shape, generator=source, dtype=torch.float32).to(like)


def _check_alpha(alpha: float) -> None:
    if not CONCENTRATION.holds(alpha):
        raise ValueError(f"dirichlet_alpha must be {CONCENTRATION.text}, got {alpha}")


def _check(samples: int, buffers: str) -> None:
    if samples < 0:
        raise ValueError(f"samples must be >= 0, got {samples}")
    if buffers not in BUFFERS:
        raise ValueError(f"buffers must be one of {BUFFERS}, got {buffers!r}")


def _keep_variances_positive(stack: Stack) -> Tensor:
    """Return the buffers [M, Q] with running variances clamped above zero."""
    buffers = stack.buffers.clone()
    for name, view in stack.layout.views(buffers, stack.layout.buffers):
        if name.endswith("running_var"):
            view.clamp_(min=TINY)
    return buffers
