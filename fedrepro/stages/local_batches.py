"""Which images each client sees in a round.

Shapes: S participants, T steps, B batch.
"""

from fedrepro.core.rng import Streams
from fedrepro.federation.federation import Federation
from fedrepro.kernels.batches import Augment, BatchPlan, batch_plan
from fedrepro.stages.round import Participants

REPEATED = ("none", "clients", "rounds")


def local_batches(
    federation: Federation,
    who: Participants,
    streams: Streams,
    *,
    batch_size: int,
    augment: Augment,
    last_batch: str = "merge",
    repeated: str = "none",
) -> BatchPlan:
    """Plan every participant's batches of one round, [S, T, B].

    Each client has a stream of its own in each round. With `repeated` "clients" all begin from one state of the
    generator, new in each round; with "rounds" it is the same in all rounds too, as in FedAvg of FedBE's released
    code.

    Raises:
        ValueError: if a client has no images, or a batch of one image would meet BatchNorm, naming the client.
    """
    for client in who.clients:
        if not len(federation.parts[client]):
            raise ValueError(f"client {client} has no images to train on")
    drawn = Streams(streams.seed) if repeated == "rounds" else streams
    plan = batch_plan(
        [federation.parts[client] for client in who.clients],
        [drawn.torch("batches", client if repeated == "none" else 0) for client in who.clients],
        epochs=who.epochs,
        batch_size=batch_size,
        augment=augment,
        last_batch=last_batch,
    )
    if federation.architecture.batch_norm:
        alone = (plan.mask.sum(2) == 1).any(1).tolist()
        for client, single in zip(who.clients, alone):
            if single:
                size = len(federation.parts[client])
                raise ValueError(
                    f"client {client} ({size} images, batches of {batch_size}) would train on a batch of one "
                    'image, which BatchNorm cannot normalise: use last_batch="merge" or "drop", another batch '
                    "size or GroupNorm, or give every client two images or more"
                )
    return plan
