"""ReLU after the pooling instead of before it, as networks are usually written: the same bits."""

import pytest
import torch
import torch.nn.functional as F
from network_cases import seeded
from torch import Tensor, nn

from fedrepro.models import build


def as_usually_written(model: nn.Module, x: Tensor) -> Tensor:
    conv1, conv2, conv3 = (model.get_submodule(f"conv{i}") for i in (1, 2, 3))
    x = F.max_pool2d(F.relu(conv1(x)), 2)
    x = F.max_pool2d(F.relu(conv2(x)), 2)
    x = F.relu(conv3(x)).flatten(1)
    logits: Tensor = model.get_submodule("output")(F.relu(model.get_submodule("hidden")(x)))
    return logits


@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
def test_logits_and_gradients_of_convnet(precision: torch.dtype) -> None:
    model = build("convnet", classes=10)
    torch.manual_seed(1)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.1)
    x = torch.randn(8, 3, 32, 32, generator=seeded(0))
    x[0] = 0.0  # ties, all of them positive, negative or zero
    labels = torch.arange(8)
    found = []
    for forward in (model, lambda x: as_usually_written(model, x)):
        model.zero_grad()
        with torch.autocast("cpu", precision, enabled=precision is not torch.float32):
            logits = forward(x)
        F.cross_entropy(logits.float(), labels).backward()
        found.append([logits.detach(), *(p.grad.clone() for p in model.parameters() if p.grad is not None)])
    assert len(found[0]) == 1 + len(list(model.parameters()))
    assert all(torch.equal(a, b) for a, b in zip(*found))
    assert all(gradient.any() for gradient in found[0])
