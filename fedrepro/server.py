"""What the server does with the clients' models: weigh them and form the next average.

Shapes: K global models, S clients, P parameters.
"""

from dataclasses import dataclass

from torch import Tensor

from fedrepro.federation import Federation
from fedrepro.plan import Participants
from fedrepro.stack import Stack, mix

BN_BUFFERS = ("average", "last_client", "recalibrate")


@dataclass(frozen=True)
class BySize:
    """Weigh each participant by its number of images: p_i = n_i / sum_j n_j (FedBE eq. 10)."""

    def __call__(self, federation: Federation, who: Participants) -> Tensor:
        """Return shares [1, S] float64 in the order of the participants; they sum to 1."""
        sizes = federation.sizes[list(who.clients)]
        return (sizes / sizes.sum())[None]


@dataclass(frozen=True, kw_only=True)
class Replace:
    """The average of the clients becomes the global model (FedAvg; FedBE eq. 2 and 10).

    Args:
        bn_buffers: where BatchNorm statistics come from: "average" (weighted like the parameters),
            "last_client" (those of the participant with the highest number, as FedDF's released code does) or
            "recalibrate" (recomputed on the public images).
    """

    bn_buffers: str = "average"

    def __post_init__(self) -> None:
        """Check the option."""
        if self.bn_buffers not in BN_BUFFERS:
            raise ValueError(f"bn_buffers must be one of {BN_BUFFERS}, got {self.bn_buffers!r}")

    def __call__(self, shares: Tensor, clients: Stack, federation: Federation) -> Stack:
        """Return the aggregated model, a stack of one, from shares [1, S] and clients [S]."""
        average = mix(shares, clients)
        if self.bn_buffers == "last_client":
            return Stack(average.layout, average.params, clients.buffers[-1:], clients.counters[-1:])
        if self.bn_buffers == "recalibrate":
            return federation.recalibrate(average)
        return average
