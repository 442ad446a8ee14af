"""What is known of a round."""

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from fedrepro.core.stack import Stack
from fedrepro.stages.combine import Ensemble
from fedrepro.stages.plan import Participants
from fedrepro.stages.teach import Aggregation


@dataclass(frozen=True)
class Trace:
    """What a reader may want to look at after a round.

    who: participants; start: the models sent out [S]; clients: those that came back [S] (both empty where clients
    were averaged as they finished); shares [K, S]; average: the aggregated model [K];
    teacher: the ensemble; targets [N, C]: its predictions on the public images, no rows when not asked;
    train_loss, distill_loss: means over steps; seconds: wall time by stage.
    """

    who: Participants
    start: Stack
    clients: Stack
    shares: Tensor
    average: Stack
    teacher: Ensemble
    targets: Tensor
    train_loss: float
    distill_loss: float
    seconds: Mapping[str, float]

    @property
    def aggregation(self) -> Aggregation:
        """What the server knew after local training, from which any posterior can be drawn again."""
        return Aggregation(self.start, self.clients, self.shares, self.average)
