"""FedLab (pip install fedlab): its serial trainer and synchronous server on PIL images.

Its trainer has no momentum of its own and keeps one optimizer for all clients, so momentum leaks from client to
client: weights are not compared.
"""

import logging

import torch
from peer_common import LR, MOMENTUM, Work, cpu_only, float32_only, main
from pil import Pictures, loader


def prepare(work: Work):
    cpu_only(work)
    float32_only(work)
    from importlib.metadata import version

    from fedlab.contrib.algorithm.basic_client import SGDSerialClientTrainer
    from fedlab.contrib.algorithm.basic_server import SyncServerHandler

    logging.disable(logging.INFO)
    pictures = Pictures(work)

    class Sets:
        def get_dataloader(self, client: int, batch_size: int):
            return loader(pictures, work, client)

    trainer = SGDSerialClientTrainer(work.module(), work.clients)
    trainer.setup_dataset(Sets())
    trainer.setup_optim(1, work.batch, LR)
    trainer.optimizer = torch.optim.SGD(trainer.model.parameters(), lr=LR, momentum=MOMENTUM)
    server = SyncServerHandler(work.module(), work.options.rounds + 2, 1.0)
    server.num_clients = work.clients

    def round(number: int) -> None:
        trainer.local_process(server.downlink_package, server.sample_clients())
        for pack in trainer.uplink_package:
            server.load(pack)

    return round, None, {"fedlab": version("fedlab")}


if __name__ == "__main__":
    main("fedlab", prepare)
