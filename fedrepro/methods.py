"""The catalogue of methods: each name with the stages that it is composed of."""

from collections.abc import Callable

import torch

from fedrepro.distill import Distill, DistillSgd, DistillSwa, Keep
from fedrepro.ensemble import Ensemble, MeanOfProbabilities
from fedrepro.federation import Federation
from fedrepro.local import LocalSgd, local_batches
from fedrepro.method import Method, State, Stopwatch, Trace, compose, one_global_model
from fedrepro.optim import Constant, Cyclical
from fedrepro.plan import Augment, Participants, Sample
from fedrepro.posterior import Average, Clients, Dirichlet, Gaussian, GaussianOfficial, Nobody, Teach, Union
from fedrepro.rng import Streams
from fedrepro.server import BySize, Replace
from fedrepro.setting import Setting, nearest

CLASSES = {"digits": 10, "cifar10": 10, "swiss_roll": 3}


def plan(setting: Setting) -> Sample:
    """Return the plan stage of a setting."""
    return Sample(participation=setting.participation, local_epochs=setting.local_epochs)


def augment(setting: Setting) -> Augment:
    """Return the augmentation of a setting, the same for clients and student."""
    return Augment(pad=setting.augment_pad, flip=setting.augment_flip)


def local_sgd(setting: Setting) -> LocalSgd:
    """Return the clients' training of a setting."""
    return LocalSgd(
        lr=setting.client_lr,
        lr_schedule=setting.lr_schedule,
        rounds=setting.rounds,
        batch_size=setting.client_batch,
        momentum=setting.client_momentum,
        weight_decay=setting.client_weight_decay,
        augment=augment(setting),
    )


def posterior(setting: Setting) -> Teach:
    """Return the sampled teachers of a setting.

    Raises:
        ValueError: for an unknown posterior.
    """
    choices: dict[str, Callable[[], Teach]] = {
        "gaussian": lambda: Gaussian(samples=setting.samples, buffers=setting.posterior_buffers),
        "gaussian_official": lambda: GaussianOfficial(samples=setting.samples),
        "dirichlet": lambda: Dirichlet(
            samples=setting.samples,
            dirichlet_alpha=setting.dirichlet_alpha,
            buffers=setting.posterior_buffers,
        ),
    }
    if setting.posterior not in choices:
        raise ValueError(f"unknown posterior {setting.posterior!r}{nearest(setting.posterior, list(choices))}")
    return choices[setting.posterior]()


def _loss_scale(setting: Setting) -> float:
    return 1.0 if setting.loss_scale == "paper" else 1.0 / CLASSES[setting.data]


def distill_sgd(setting: Setting) -> DistillSgd:
    """Return plain momentum distillation of a setting."""
    return DistillSgd(
        epochs=setting.distill_epochs,
        batch_size=setting.distill_batch,
        schedule=Constant(lr=setting.distill_lr),
        momentum=setting.distill_momentum,
        weight_decay=setting.distill_weight_decay,
        augment=augment(setting),
        loss_scale=_loss_scale(setting),
    )


def distill_swa(setting: Setting) -> DistillSwa:
    """Return stochastic weight averaging of a setting."""
    return DistillSwa(
        epochs=setting.distill_epochs,
        batch_size=setting.distill_batch,
        schedule=Cyclical(high=setting.distill_lr, low=setting.swa_lr_low, cycle=setting.swa_cycle),
        momentum=setting.distill_momentum,
        weight_decay=setting.distill_weight_decay,
        augment=augment(setting),
        loss_scale=_loss_scale(setting),
        swa_start=setting.swa_start,
        cycle=setting.swa_cycle,
    )


def _federated(setting: Setting, *, teach: Teach, distill: Distill, answer: str = "student") -> Method:
    """Compose the stages that all methods here share with those in which they differ."""
    return compose(
        plan=plan(setting),
        train=local_sgd(setting),
        weigh=BySize(),
        server=Replace(bn_buffers=setting.bn_buffers),
        teach=teach,
        combine=MeanOfProbabilities(sharpen=setting.sharpen),
        distill=distill,
        answer=answer,
    )


def fedavg(setting: Setting) -> Method:
    """FedAvg: the weighted average replaces the global model (FedBE section 3.1)."""
    return _federated(setting, teach=Nobody(), distill=Keep())


def one_ensemble(setting: Setting) -> Method:
    """1-Ensemble: one long round, then the clients' models predict together (FedBE 5.1, Baselines)."""
    return _federated(setting, teach=Clients(), distill=Keep(), answer="ensemble")


def v_distillation(setting: Setting) -> Method:
    """v-Distillation: the clients alone teach, plain SGD (FedBE 5.1, Baselines)."""
    return _federated(setting, teach=Clients(), distill=distill_sgd(setting))


def fedbe(setting: Setting) -> Method:
    """FedBE: average, clients and posterior samples teach, SWA distils (FedBE Algorithm 1)."""
    return _federated(
        setting, teach=Union((Average(), Clients(), posterior(setting))), distill=distill_swa(setting)
    )


def fedbe_without_swa(setting: Setting) -> Method:
    """FedBE with plain SGD in place of SWA (the dagger row of FedBE's Table 1)."""
    return _federated(
        setting, teach=Union((Average(), Clients(), posterior(setting))), distill=distill_sgd(setting)
    )


def centralized(setting: Setting) -> Method:
    """Centralised training on all images; a round is one epoch, and momentum lives on from round to round."""
    train = local_sgd(setting)
    who = Participants((0,), (0,), (1,))

    def round(state: State, federation: Federation, streams: Streams) -> tuple[State, Trace]:
        if federation.clients != 1:
            raise ValueError(
                'centralised training has one client with all images (partition "central"), '
                f"got {federation.clients}"
            )
        watch = Stopwatch(federation.device)
        plan = local_batches(federation, who, streams, batch_size=train.batch_size, augment=train.augment)
        velocity = state.memory.get("velocity")
        trained = train.steps(state.models, who, federation, streams, plan, velocity=velocity)
        watch.lap("train")
        alone = Ensemble(trained.stack.take(slice(0, 0)), MeanOfProbabilities(sharpen=setting.sharpen), federation)
        trace = Trace(
            who=who,
            start=state.models,
            clients=trained.stack,
            shares=torch.ones(1, 1, dtype=torch.float64),
            average=trained.stack,
            teacher=alone,
            targets=trained.stack.params.new_empty(0, federation.architecture.classes),
            train_loss=float(trained.loss[0]),
            distill_loss=float("nan"),
            seconds=watch.seconds,
        )
        return State(state.round + 1, trained.stack, {"velocity": trained.velocity}), trace

    return Method(one_global_model, round, "student", (("train", train),))


METHODS: dict[str, Callable[[Setting], Method]] = {
    "fedavg": fedavg,
    "one_ensemble": one_ensemble,
    "v_distillation": v_distillation,
    "fedbe": fedbe,
    "fedbe_without_swa": fedbe_without_swa,
    "centralized": centralized,
}


def build(setting: Setting) -> Method:
    """Build the method that a setting names.

    Raises:
        ValueError: for an unknown method, with the nearest real name.
    """
    if setting.method not in METHODS:
        raise ValueError(f"unknown method {setting.method!r}{nearest(setting.method, list(METHODS))}")
    return METHODS[setting.method](setting)
