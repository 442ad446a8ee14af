"""Methods that average and use no ensemble: FedAvg, and what changes its clients or its server."""

from fedrepro.core.setting import Setting
from fedrepro.methods.compose import Method, compose, method
from fedrepro.stages.combine import combination
from fedrepro.stages.distill import Keep
from fedrepro.stages.plan import sample
from fedrepro.stages.round import Server, Train
from fedrepro.stages.server import momentum, replace
from fedrepro.stages.teach import Nobody
from fedrepro.stages.train import local_proximal, local_scaffold, local_sgd
from fedrepro.stages.weigh import shares


@method
def fedavg(setting: Setting) -> Method:
    """FedAvg: the weighted average replaces the global model (FedBE section 3.1)."""
    return _averaging(setting, train=local_sgd(setting), server=replace(setting))


@method
def fedprox(setting: Setting) -> Method:
    """FedProx: FedAvg whose clients are held near the model sent out (Li et al. 2020, eq. 2)."""
    return _averaging(setting, train=local_proximal(setting), server=replace(setting))


@method
def fedavgm(setting: Setting) -> Method:
    """FedAvgM: FedAvg with momentum on the server (Hsu et al. 2019)."""
    return _averaging(setting, train=local_sgd(setting), server=momentum(setting))


@method
def scaffold(setting: Setting) -> Method:
    """SCAFFOLD: FedAvg with control variates against client drift (Karimireddy et al. 2020, option II)."""
    return _averaging(setting, train=local_scaffold(setting), server=replace(setting))


def _averaging(setting: Setting, *, train: Train, server: Server) -> Method:
    return compose(
        plan=sample(setting),
        train=train,
        weigh=shares(setting),
        server=server,
        teach=Nobody(),
        combine=combination(setting),
        distill=Keep(),
    )
