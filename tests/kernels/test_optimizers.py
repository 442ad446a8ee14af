"""torch's optimizers without its compiler: the same bits, and none of its modules."""

import subprocess
import sys
from typing import Any

import pytest
import torch

from fedrepro.kernels.optimizers import eager

KINDS: dict[str, tuple[type[torch.optim.Optimizer], dict[str, Any]]] = {
    "sgd": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9}),
    "adam": (torch.optim.Adam, {"lr": 0.01, "betas": (0.8, 0.99)}),
    "adamw": (torch.optim.AdamW, {"lr": 0.01}),
}


def trained(kind: type[torch.optim.Optimizer], options: dict[str, Any]) -> list[torch.Tensor]:
    """Return the weights of a small network after five steps on a fixed batch, and what its optimizer holds."""
    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2))
    weights, biases = ([p for p in network.parameters() if (p.ndim > 1) is big] for big in (True, False))
    optimizer = kind(
        [{"params": weights, "weight_decay": 0.1}, {"params": biases, "weight_decay": 0.0}], **options
    )
    images = torch.linspace(-1, 1, 12).view(4, 3)
    for _ in range(5):
        optimizer.zero_grad(set_to_none=True)
        network(images).square().sum().backward()
        optimizer.step()
    held = [value for p in network.parameters() for value in optimizer.state[p].values()]
    return [*(p.detach() for p in network.parameters()), *(value for value in held if torch.is_tensor(value))]


@pytest.mark.parametrize("name", KINDS)
def test_the_steps_are_those_of_torch_to_the_bit(name: str) -> None:
    kind, options = KINDS[name]
    own, theirs = trained(eager(kind), options), trained(kind, options)
    assert len(own) == len(theirs) > 4
    assert all(torch.equal(a, b) for a, b in zip(own, theirs))


def test_a_step_by_hand() -> None:
    # w = 2, loss = w^2 / 2 + decay w^2 / 2: gradient 2 + 0.5 * 2 = 3, then 1.7 + 0.85 with momentum 0.9
    w = torch.nn.Parameter(torch.tensor([2.0]))
    optimizer = eager(torch.optim.SGD)([{"params": [w], "weight_decay": 0.5}], lr=0.1, momentum=0.9)
    for wanted in (2 - 0.1 * 3, 1.7 - 0.1 * (0.9 * 3 + 1.7 + 0.85)):
        optimizer.zero_grad()
        (w.square() / 2).sum().backward()
        optimizer.step()
        assert w.item() == pytest.approx(wanted)
    assert w.requires_grad


def test_a_step_records_no_graph() -> None:
    w = torch.nn.Parameter(torch.ones(2))
    optimizer = eager(torch.optim.SGD)([w], lr=0.1)
    w.sum().backward()
    optimizer.step()
    assert (w.is_leaf, w.grad_fn) == (True, None)


def test_hooks_of_steps_stay() -> None:
    w = torch.nn.Parameter(torch.ones(2))
    optimizer, seen = eager(torch.optim.SGD)([w], lr=0.1), []
    optimizer.register_step_pre_hook(lambda *_: seen.append(w.sum().item()))
    w.sum().backward()
    optimizer.step()
    assert (seen, w.sum().item()) == ([2.0], pytest.approx(1.8))


def test_training_imports_neither_torch_s_compiler_nor_sympy() -> None:
    # A second and a half of every process: of each notebook's kernel and of each command that trains.
    code = """
import sys
from fedrepro import papers
from fedrepro.methods import catalogue
from fedrepro.federation.assemble import assemble
from fedrepro.core.rng import Streams
cells = papers.load("fedbe").cells("table1_methods", "smoke")
(setting,) = (cell.setting for cell in cells if (cell.row, cell.column) == ("Step/FedBE", "ConvNet"))
federation, method = assemble(setting, 0), catalogue.build(setting)
method.round(method.init(federation, 0), federation, Streams(0, 0))
print([name for name in ("torch._dynamo", "sympy") if name in sys.modules])
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout == "[]\n"
