"""Which images each client sees in a round.

Shapes: S participants, T steps, B batch.
"""

from collections.abc import Iterable

from fedrepro.core.rng import Streams
from fedrepro.federation.federation import Federation
from fedrepro.kernels.batches import Augment, BatchPlan, batch_plan, check_batches
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
    check_clients(federation, who.clients, batch_size=batch_size, last_batch=last_batch)
    drawn = Streams(streams.seed) if repeated == "rounds" else streams
    return batch_plan(
        [federation.parts[client] for client in who.clients],
        [drawn.torch("batches", client if repeated == "none" else 0) for client in who.clients],
        epochs=who.epochs,
        batch_size=batch_size,
        augment=augment,
        last_batch=last_batch,
    )


def check_clients(
    federation: Federation, clients: Iterable[int], *, batch_size: int, last_batch: str = "merge"
) -> None:
    """Refuse clients that cannot train.

    Raises:
        ValueError: if a client has no images, or a batch of one image would meet BatchNorm, naming the client.
    """
    for client in clients:
        size = len(federation.parts[client])
        if not size:
            raise ValueError(f"client {client} has no images to train on")
        if federation.architecture.batch_norm:
            helps = "give every client two images or more" if size == 1 else _larger(batch_size)
            remedy = f"{helps}, or use GroupNorm"
            check_batches(f"client {client}", size, batch_size, remedy, last_batch)


def _larger(batch_size: int) -> str:
    if batch_size == 1:
        return "take batches of two images or more"
    return 'use last_batch="merge" or "drop", or another batch size'
