"""A perceptron with one hidden layer, for toy data such as FedBE's Swiss roll."""

import torch.nn.functional as F
from torch import Tensor, nn


class MLP(nn.Module):
    """One hidden layer with ReLU: `output(relu(hidden(x)))`.

    Args:
        classes: number of classes C, at least 1.
        features: number of input features D, at least 1.
        hidden: width of the hidden layer, at least 1 (FedBE does not state it).

    Raises:
        ValueError: if a size is below 1.
    """

    def __init__(self, *, classes: int, features: int = 2, hidden: int = 32) -> None:
        """Make the layers; their starting point comes from `fedrepro.models.initialise`."""
        super().__init__()
        for name, size in (("classes", classes), ("features", features), ("hidden", hidden)):
            if size < 1:
                raise ValueError(f"{name} must be at least 1, got {size}")
        self.hidden = nn.Linear(features, hidden)
        self.output = nn.Linear(hidden, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits `[N, C]` of `x` `[N, ...]` with D entries per example."""
        logits: Tensor = self.output(F.relu(self.hidden(x.flatten(1))))
        return logits
