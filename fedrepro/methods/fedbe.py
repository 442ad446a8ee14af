"""FedBE (Chen and Chao 2021), its variants, and the ensembles that it is compared with."""

from collections.abc import Sequence

from fedrepro.core.setting import Setting
from fedrepro.methods.compose import Measure, Method, compose, method
from fedrepro.methods.measures import combined_otherwise
from fedrepro.stages.combine import combination
from fedrepro.stages.distill import Keep, distill_sgd, distill_swa
from fedrepro.stages.plan import sample
from fedrepro.stages.round import Distill, Server, Teach, Train
from fedrepro.stages.server import momentum, replace
from fedrepro.stages.teach import Clients, Nobody, teachers
from fedrepro.stages.train import local_proximal, local_scaffold, local_sgd
from fedrepro.stages.weigh import shares


@method
def fedbe(setting: Setting) -> Method:
    """FedBE: average, clients and posterior samples teach, SWA distils (FedBE Algorithm 1)."""
    return _taught(setting, teach=teachers(setting), distill=distill_swa(setting))


@method
def fedbe_without_swa(setting: Setting) -> Method:
    """FedBE with plain SGD in place of SWA (the dagger row of FedBE's Table 1)."""
    return _taught(setting, teach=teachers(setting), distill=distill_sgd(setting))


@method
def fedbe_ground_truth(setting: Setting) -> Method:
    """FedBE's distillation on the public images' true labels: a bound, not a method (FedBE Table 2)."""
    return _taught(setting, teach=Nobody(), distill=distill_swa(setting, targets="labels"))


@method
def fedbe_fedprox(setting: Setting) -> Method:
    """FedBE with FedProx's clients (FedBE 5.3 and Table 7)."""
    return _taught(setting, train=local_proximal(setting), teach=teachers(setting), distill=distill_swa(setting))


@method
def fedbe_fedavgm(setting: Setting) -> Method:
    """FedBE with FedAvgM's server: its model is the average that teaches and from which the student starts."""
    return _taught(setting, server=momentum(setting), teach=teachers(setting), distill=distill_swa(setting))


@method
def fedbe_scaffold(setting: Setting) -> Method:
    """FedBE with SCAFFOLD's clients (FedBE 5.3)."""
    return _taught(setting, train=local_scaffold(setting), teach=teachers(setting), distill=distill_swa(setting))


@method
def v_distillation(setting: Setting) -> Method:
    """v-Distillation: the clients alone teach, plain SGD (FedBE 5.1, Baselines)."""
    return _taught(setting, teach=Clients(), distill=distill_sgd(setting))


@method
def one_ensemble(setting: Setting) -> Method:
    """1-Ensemble: one long round, then the clients' models predict together (FedBE 5.1, Baselines)."""
    return _taught(setting, teach=Clients(), distill=Keep(), answer="ensemble", measures=(combined_otherwise,))


@method
def fedavg_ensemble(setting: Setting) -> Method:
    """FedAvg whose last round's clients, average and samples predict together (FedBE C.2)."""
    return _taught(setting, teach=teachers(setting), distill=Keep(), answer="ensemble")


def _taught(
    setting: Setting,
    *,
    teach: Teach,
    distill: Distill,
    train: Train | None = None,
    server: Server | None = None,
    answer: str = "student",
    measures: Sequence[Measure] = (),
) -> Method:
    """Compose a method whose clients and server are FedAvg's unless others are given."""
    return compose(
        plan=sample(setting),
        train=train or local_sgd(setting),
        weigh=shares(setting),
        server=server or replace(setting),
        teach=teach,
        combine=combination(setting),
        distill=distill,
        answer=answer,
        measures=measures,
    )
