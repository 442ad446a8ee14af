import pytest
import torch
from network_cases import seeded

from fedrepro.core.stack import Stack
from fedrepro.data.data import Data
from fedrepro.kernels.batches import NO_AUGMENT, batch_plan
from fedrepro.kernels.registry import KERNELS
from fedrepro.kernels.step import Sgd, Step
from fedrepro.models.architecture import Architecture

PIXELS = torch.randint(256, (4, 32, 32, 3), dtype=torch.uint8, generator=seeded(0))
DATA = Data("tiny", PIXELS, torch.tensor([0, 1, 2, 0]), ("a", "b", "c"), (0.5, 0.5, 0.5), (0.25, 0.25, 0.25))


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("mobilenetv2", ()),
        ("wrn16_2", ()),
        ("vgg9_slim", ()),
        ("shufflenetv2", ()),
        ("torchvision/squeezenet1_1", (("stem", "small"),)),
    ],
)
def test_kernels_train_networks_alike(name: str, options: tuple[tuple[str, str], ...]) -> None:
    architecture = Architecture(name, 3, options)
    start = Stack.of(architecture.make()).to(dtype=torch.float64)
    plan = batch_plan([torch.arange(4)], [seeded(0)], epochs=[1], batch_size=4, augment=NO_AUGMENT)
    step, rates = Step(rule=Sgd(momentum=0.9, weight_decay=0.01)), torch.tensor([0.1], dtype=torch.float64)
    takers = [
        kernel
        for kernel in (KERNELS["plain"], KERNELS["threads"], KERNELS["graph"])
        if not kernel.takes(architecture, torch.device("cpu"), "float64", step)
    ]
    assert len(takers) == (1 if architecture.random else 3)
    plain, *others = (
        kernel.train(architecture, start, DATA, [DATA.labels], plan, step, rates, precision="float64")
        for kernel in takers
    )
    assert not torch.allclose(plain.stack.params, start.params)
    assert torch.allclose(plain.stack.buffers, start.buffers) == (not architecture.batch_norm)
    for other in others:
        torch.testing.assert_close(other.stack.params, plain.stack.params)
        torch.testing.assert_close(other.stack.buffers, plain.stack.buffers)
        torch.testing.assert_close(other.loss, plain.loss)
