"""What local rules add to a gradient: by hand, and against autograd on the literal loss."""

import pytest
import tiny
import torch
import torch.nn.functional as F
from test_kernels import close, plans, rates, soft, start
from torch.func import functional_call

from fedrepro.core.stack import Layout
from fedrepro.kernels import plain
from fedrepro.kernels.inputs import inputs
from fedrepro.kernels.step import Proximal

MU = 0.7


def test_two_steps_by_hand() -> None:
    # With a loss of no weight, w moves by the rules alone. Learning rate 0.1, mu 2, correction 1:
    # w1 = w0 - 0.1 (1 + 2 * 0) = w0 - 0.1;  w2 = w1 - 0.1 (1 + 2 * (-0.1)) = w0 - 0.18.
    data, architecture = tiny.points(8), tiny.network("mlp")
    models = start(architecture, 1)
    sgd = tiny.Sgd(lr=torch.full((2,), 0.1), momentum=0.0, weight_decay=0.0, proximal=Proximal(mu=2.0))
    ones = torch.ones_like(models.params)
    done = tiny.train(
        plain,
        architecture, models, data, data.labels, plans((8,), epochs=1), sgd,
        precision="float64", correction=ones, loss_scale=0.0,
    )  # fmt: skip
    close(done.stack.params, models.params - 0.18, 1e-8)  # 0.1 is a float32 number


def test_the_official_form_pulls_with_a_constant_force() -> None:
    # Away from w0 by the first step's correction, each weight matrix is pulled back by mu/2 in all: the direction
    # has length one. The bias is not pulled.
    data, architecture = tiny.points(8), tiny.network("mlp")
    models = start(architecture, 1)
    rate = torch.full((2,), 0.5, dtype=torch.float64)
    sgd = tiny.Sgd(lr=rate, momentum=0.0, weight_decay=0.0, proximal=Proximal(mu=MU, form="fedbe_official"))
    ones = torch.ones_like(models.params)
    done = tiny.train(
        plain,
        architecture, models, data, data.labels, plans((8,), epochs=1), sgd,
        precision="float64", correction=ones, loss_scale=0.0,
    )  # fmt: skip
    for (name, before), after in zip(models.named_params().items(), done.stack.named_params().values()):
        pull = MU / 2 / before.numel() ** 0.5 if name.endswith("weight") else 0.0
        close(after, before - 0.5 - 0.5 * (1 - pull))


@pytest.mark.parametrize("form", ["squared", "fedbe_official"])
@pytest.mark.parametrize("name", ["mlp", "resnet8"])
def test_gradients_are_those_of_the_literal_loss(name: str, form: str) -> None:
    data = tiny.points(9) if name == "mlp" else tiny.images(9)
    architecture, targets = tiny.network(name), soft(9)
    models, plan, lr = start(architecture, 1), plans((9,), epochs=2), rates(4)
    noise = torch.randn(models.params.shape, generator=tiny.seeded(1), dtype=torch.float64)
    sgd = tiny.Sgd(lr=lr, momentum=0.9, weight_decay=0.0, proximal=Proximal(mu=MU, form=form))
    found = tiny.train(
        plain,
        architecture,
        models,
        data,
        targets,
        plan,
        sgd,
        precision="float64",
        correction=noise,
        loss_scale=0.5,
    )
    module = architecture.make().double().train()
    models.load(0, module)
    first = {n: p.detach().clone() for n, p in module.named_parameters()}
    shift = {n: v[0] for n, v in Layout.views(noise, models.layout.params)}
    weights, velocity = dict(first), {n: torch.zeros_like(p) for n, p in first.items()}
    buffers = {n: b.clone() for n, b in module.named_buffers()}
    for step, count in enumerate(plan.mask.sum(2)[0].tolist()):
        index = plan.index[0, step, :count]
        x = inputs(
            data, index, dtype=torch.float64, shift=plan.shift[0, step, :count], flip=plan.flip[0, step, :count]
        )

        leaves = {n: w.detach().requires_grad_() for n, w in weights.items()}
        entropy = F.cross_entropy(functional_call(module, leaves | buffers, (x,)), targets[index])
        away = {n: leaves[n] - first[n] for n in leaves}
        if form == "squared":
            term = sum((difference**2).sum() for difference in away.values()) / 2
        else:
            term = sum(difference.norm() for n, difference in away.items() if "weight" in n) / 2
        total = 0.5 * entropy + MU * term + sum((shift[n] * leaves[n]).sum() for n in leaves)
        slopes = dict(zip(leaves, torch.autograd.grad(total, list(leaves.values()))))
        velocity = {n: 0.9 * velocity[n] + slopes[n] for n in weights}
        weights = {n: weights[n] - lr[step] * velocity[n] for n in weights}
    close(found.stack.params[0], torch.cat([w.reshape(-1) for w in weights.values()]), 1e-10)


@pytest.mark.parametrize(
    ("mu", "form", "rule"), [(-1.0, "squared", "mu must be >= 0"), (1.0, "cubed", "form must")]
)
def test_wrong_terms_are_refused(mu: float, form: str, rule: str) -> None:
    with pytest.raises(ValueError, match=rule):
        Proximal(mu=mu, form=form)
    with pytest.raises(ValueError, match="mu must"):
        Proximal(mu=float("nan"))
