"""Apple's pfl (pip install pfl): FederatedAveraging on its simulated backend, images in memory.

It never shuffles a client's images, and BatchNorm's statistics leak from client to client: weights are not
compared. Crops and flips are ours, one batch at a time, inside the loss.
"""

import asyncio
import threading

import torch
import torch.nn.functional as F
from peer_common import LR, MOMENTUM, PAD, Work, cpu_only, main
from torch import Tensor, nn

from fedrepro.data.data import Data
from fedrepro.kernels.inputs import inputs


def prepare(work: Work):
    cpu_only(work)
    from importlib.metadata import version

    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.aggregate.weighting import WeightByUser
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.callback.base import TrainingProcessCallback
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.sampling import get_user_sampler
    from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
    from pfl.metrics import Metrics, Weighted
    from pfl.model.pytorch import PyTorchModel

    data = work.data

    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = work.module()

        def forward(self, x: Tensor) -> Tensor:
            count = len(x)
            batch = Data("batch", x, torch.zeros(count, dtype=torch.int64), data.classes, data.mean, data.std)
            shift = torch.randint(2 * PAD + 1, (count, 2), dtype=torch.uint8)
            flip = torch.rand(count) < 0.5
            every = torch.arange(count)
            out: Tensor = self.inner(inputs(batch, every, dtype=torch.float32, shift=shift, flip=flip, pad=PAD))
            return out

        def loss(self, x: Tensor, y: Tensor, is_eval: bool = False) -> Tensor:
            self.train(not is_eval)
            return F.cross_entropy(self(x), y)

        @torch.no_grad()
        def metrics(self, x: Tensor, y: Tensor) -> dict:
            return {"loss": Weighted(float(self.loss(x, y, is_eval=True)) * len(y), len(y))}

    network = Network()
    users = {str(client): (data.images[part], data.labels[part]) for client, part in enumerate(work.parts)}
    sampler = get_user_sampler("minimize_reuse", list(users))
    federated = FederatedDataset.from_slices(users, sampler)
    model = PyTorchModel(
        network,
        local_optimizer_create=lambda parameters, lr: torch.optim.SGD(parameters, lr=lr, momentum=MOMENTUM),
        central_optimizer=torch.optim.SGD(network.parameters(), lr=1.0),
        amp_dtype=torch.bfloat16 if work.amp else None,
    )
    ready, go = threading.Semaphore(0), threading.Semaphore(0)

    class Clock(TrainingProcessCallback):
        """Lets the rounds be timed one by one from outside."""

        def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
            ready.release()
            go.acquire()
            return False, Metrics()

    local = NNTrainHyperParams(local_num_epochs=1, local_learning_rate=LR, local_batch_size=work.batch)
    central = NNAlgorithmParams(
        central_num_iterations=work.options.rounds + 2,
        evaluation_frequency=10**6,
        train_cohort_size=work.clients,
        val_cohort_size=0,
    )
    backend = SimulatedBackend(training_data=federated, val_data=federated, postprocessors=[WeightByUser()])

    def play() -> None:
        asyncio.set_event_loop(asyncio.new_event_loop())
        torch.set_num_threads(work.options.threads)  # the setting belongs to a thread
        go.acquire()
        FederatedAveraging().run(
            algorithm_params=central,
            backend=backend,
            model=model,
            model_train_params=local,
            model_eval_params=NNEvalHyperParams(local_batch_size=work.batch),
            callbacks=[Clock()],
            send_metrics_to_platform=False,
        )

    thread = threading.Thread(target=play, daemon=True)
    thread.start()

    def round(number: int) -> None:
        go.release()
        while not ready.acquire(timeout=1.0):
            if not thread.is_alive():
                raise RuntimeError("its run ended early, see stderr")

    return round, None, {"pfl": version("pfl")}


if __name__ == "__main__":
    main("pfl", prepare)
