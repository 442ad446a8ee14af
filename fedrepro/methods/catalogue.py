"""The catalogue of methods: each name with the stages that it is composed of."""

from collections.abc import Callable
from typing import Any

import torch

from fedrepro.core.rng import Streams
from fedrepro.core.setting import Setting, pick
from fedrepro.core.state import State
from fedrepro.data.data import spec_of
from fedrepro.data.swiss_roll import ARMS
from fedrepro.federation.federation import Federation
from fedrepro.kernels.batches import NO_AUGMENT, Augment
from fedrepro.kernels.step import Proximal
from fedrepro.methods.compose import Method, Stopwatch, Train, compose, one_global_model
from fedrepro.stages.combine import Ensemble, MeanOfProbabilities
from fedrepro.stages.distill import Distill, DistillSgd, DistillSwa, Keep
from fedrepro.stages.plan import Participants, Sample
from fedrepro.stages.posterior import Dirichlet, Gaussian, GaussianOfficial
from fedrepro.stages.rates import Constant, Cyclical
from fedrepro.stages.round import Trace
from fedrepro.stages.server import Momentum, Replace
from fedrepro.stages.teach import Average, Clients, Nobody, Teach, Union
from fedrepro.stages.train import LocalSgd, Scaffold, local_batches
from fedrepro.stages.weigh import BySize, Uniform


def plan(setting: Setting) -> Sample:
    """Return the plan stage of a setting."""
    return Sample(
        participation=setting.participation, local_epochs=setting.local_epochs, uneven=setting.uneven_epochs
    )


def augment(setting: Setting) -> Augment:
    """Return the augmentation of a setting's clients, and of its student unless that has none."""
    return Augment(pad=setting.augment_pad, flip=setting.augment_flip)


def _local(setting: Setting) -> dict[str, Any]:
    return {
        "lr": setting.client_lr,
        "lr_schedule": setting.lr_schedule,
        "rounds": setting.rounds,
        "batch_size": setting.client_batch,
        "momentum": setting.client_momentum,
        "weight_decay": setting.client_weight_decay,
        "augment": augment(setting),
        "lr_decay": setting.client_lr_decay,
    }


def local_sgd(setting: Setting) -> LocalSgd:
    """Return the clients' training of a setting: plain SGD."""
    return LocalSgd(**_local(setting))


def local_proximal(setting: Setting) -> LocalSgd:
    """Return the clients' training of a setting with FedProx's term."""
    return LocalSgd(
        **_local(setting),
        proximal=Proximal(mu=setting.option("proximal_mu"), form=setting.option("proximal_form")),
    )


def local_scaffold(setting: Setting) -> Scaffold:
    """Return the clients' training of a setting with SCAFFOLD's control variates."""
    return Scaffold(**_local(setting), length=setting.option("scaffold_length"))


def weigh(setting: Setting) -> BySize | Uniform:
    """Return how a setting weighs its clients.

    Raises:
        ValueError: for unknown shares.
    """
    choices: dict[str, BySize | Uniform] = {"by_size": BySize(), "uniform": Uniform()}
    return pick("client_shares", setting.option("client_shares"), choices)


def replace(setting: Setting) -> Replace:
    """Return the server of a setting: the average becomes the global model."""
    return Replace(bn_buffers=setting.bn_buffers)


def momentum(setting: Setting) -> Momentum:
    """Return the server of a setting with FedAvgM's momentum."""
    return Momentum(
        beta=setting.option("server_momentum"), form=setting.option("momentum_form"), bn_buffers=setting.bn_buffers
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
        "dirichlet_official": lambda: Dirichlet(
            samples=setting.samples, dirichlet_alpha=setting.dirichlet_alpha, buffers="sample", by_size=False
        ),
    }
    return pick("posterior", setting.posterior, choices)()


def teachers(setting: Setting) -> Teach:
    """Return FedBE's teachers of a setting.

    Raises:
        ValueError: unless `teachers` names some of average, clients and samples, each once.
    """
    sources: dict[str, Callable[[], Teach]] = {
        "average": Average,
        "clients": Clients,
        "samples": lambda: posterior(setting),
    }
    chosen = setting.teachers.split("+")
    if sorted(chosen) != sorted(set(chosen) & set(sources)):
        raise ValueError(f"teachers must be some of {list(sources)} joined by +, got {setting.teachers!r}")
    return Union(tuple(sources[name]() for name in chosen))


def _classes(setting: Setting) -> int:
    return ARMS if setting.data == "swiss_roll" else len(spec_of(setting.data).classes)


def _distill(setting: Setting) -> dict[str, Any]:
    return {
        "epochs": setting.distill_epochs,
        "batch_size": setting.distill_batch,
        "momentum": setting.distill_momentum,
        "weight_decay": setting.distill_weight_decay,
        "augment": augment(setting) if setting.distill_augment else NO_AUGMENT,
        "loss_scale": 1.0 if setting.loss_scale == "paper" else 1.0 / _classes(setting),
    }


def distill_sgd(setting: Setting) -> DistillSgd:
    """Return plain momentum distillation of a setting."""
    return DistillSgd(**_distill(setting), schedule=Constant(lr=setting.distill_lr))


def distill_swa(setting: Setting, targets: str = "ensemble") -> DistillSwa:
    """Return stochastic weight averaging of a setting, on the ensemble's targets or on true labels."""
    return DistillSwa(
        **_distill(setting),
        schedule=Cyclical(high=setting.distill_lr, low=setting.swa_lr_low, cycle=setting.swa_cycle),
        swa_start=setting.swa_start,
        cycle=setting.swa_cycle,
        targets=targets,
    )


def _federated(
    setting: Setting,
    *,
    train: Train,
    server: Replace,
    teach: Teach,
    distill: Distill,
    answer: str = "student",
) -> Method:
    """Compose the stages that all methods here share with those in which they differ."""
    return compose(
        plan=plan(setting),
        train=train,
        weigh=weigh(setting),
        server=server,
        teach=teach,
        combine=MeanOfProbabilities(sharpen=setting.sharpen),
        distill=distill,
        answer=answer,
    )


def _averaging(setting: Setting, *, train: Train, server: Replace) -> Method:
    """Compose a method without an ensemble."""
    return _federated(setting, train=train, server=server, teach=Nobody(), distill=Keep())


def _taught(setting: Setting, *, teach: Teach, distill: Distill, answer: str = "student") -> Method:
    """Compose a method whose clients and server are FedAvg's, and which differs in what an ensemble is for."""
    return _federated(
        setting,
        train=local_sgd(setting),
        server=replace(setting),
        teach=teach,
        distill=distill,
        answer=answer,
    )


def _fedbe(setting: Setting, *, train: Train, server: Replace) -> Method:
    """Compose FedBE on top of some local training and server (FedBE 5.3)."""
    return _federated(setting, train=train, server=server, teach=teachers(setting), distill=distill_swa(setting))


def fedavg(setting: Setting) -> Method:
    """FedAvg: the weighted average replaces the global model (FedBE section 3.1)."""
    return _averaging(setting, train=local_sgd(setting), server=replace(setting))


def fedprox(setting: Setting) -> Method:
    """FedProx: FedAvg whose clients are held near the model sent out (Li et al. 2020, eq. 2)."""
    return _averaging(setting, train=local_proximal(setting), server=replace(setting))


def fedavgm(setting: Setting) -> Method:
    """FedAvgM: FedAvg with momentum on the server (Hsu et al. 2019)."""
    return _averaging(setting, train=local_sgd(setting), server=momentum(setting))


def scaffold(setting: Setting) -> Method:
    """SCAFFOLD: FedAvg with control variates against client drift (Karimireddy et al. 2020, option II)."""
    return _averaging(setting, train=local_scaffold(setting), server=replace(setting))


def one_ensemble(setting: Setting) -> Method:
    """1-Ensemble: one long round, then the clients' models predict together (FedBE 5.1, Baselines)."""
    return _taught(
        setting,
        teach=Clients(),
        distill=Keep(),
        answer="ensemble",
    )


def fedavg_ensemble(setting: Setting) -> Method:
    """FedAvg whose last round's clients, average and samples predict together (FedBE C.2)."""
    return _taught(
        setting,
        teach=teachers(setting),
        distill=Keep(),
        answer="ensemble",
    )


def v_distillation(setting: Setting) -> Method:
    """v-Distillation: the clients alone teach, plain SGD (FedBE 5.1, Baselines)."""
    return _taught(
        setting,
        teach=Clients(),
        distill=distill_sgd(setting),
    )


def fedbe(setting: Setting) -> Method:
    """FedBE: average, clients and posterior samples teach, SWA distils (FedBE Algorithm 1)."""
    return _fedbe(setting, train=local_sgd(setting), server=replace(setting))


def fedbe_without_swa(setting: Setting) -> Method:
    """FedBE with plain SGD in place of SWA (the dagger row of FedBE's Table 1)."""
    return _taught(
        setting,
        teach=teachers(setting),
        distill=distill_sgd(setting),
    )


def fedbe_ground_truth(setting: Setting) -> Method:
    """FedBE's distillation on the public images' true labels: a bound, not a method (FedBE Table 2)."""
    return _taught(
        setting,
        teach=Nobody(),
        distill=distill_swa(setting, targets="labels"),
    )


def fedbe_fedprox(setting: Setting) -> Method:
    """FedBE with FedProx's clients (FedBE 5.3 and Table 7)."""
    return _fedbe(setting, train=local_proximal(setting), server=replace(setting))


def fedbe_fedavgm(setting: Setting) -> Method:
    """FedBE with FedAvgM's server: its model is the average that teaches and from which the student starts."""
    return _fedbe(setting, train=local_sgd(setting), server=momentum(setting))


def fedbe_scaffold(setting: Setting) -> Method:
    """FedBE with SCAFFOLD's clients (FedBE 5.3)."""
    return _fedbe(setting, train=local_scaffold(setting), server=replace(setting))


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
        with watch.stage("train"):
            plan = local_batches(federation, who, streams, batch_size=train.batch_size, augment=train.augment)
            velocity = state.memory.get("velocity")
            trained = train.steps(state.models, who, federation, streams, plan, velocity=velocity)
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
    method.__name__: method
    for method in (
        *(fedavg, fedprox, fedavgm, scaffold, one_ensemble, fedavg_ensemble, v_distillation),
        *(fedbe, fedbe_without_swa, fedbe_ground_truth, fedbe_fedprox, fedbe_fedavgm, fedbe_scaffold),
        centralized,
    )
}


def build(setting: Setting) -> Method:
    """Build the method that a setting names.

    Raises:
        ValueError: for an unknown method, with the nearest real name.
    """
    return pick("method", setting.method, METHODS)(setting)
