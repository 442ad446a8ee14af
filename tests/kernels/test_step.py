"""Steps as values: rules by hand and against torch, losses of several terms, trainings cut anywhere, refusals."""

from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any, ClassVar

import pytest
import recordings
import tiny
import torch
import torch.nn.functional as F
from test_kernels import plans, soft, start
from torch import Tensor, nn

from fedrepro import models
from fedrepro.core.stack import Stack
from fedrepro.data.data import Data
from fedrepro.kernels import plain, threads
from fedrepro.kernels.batches import BatchPlan
from fedrepro.kernels.graph import graph, sessions
from fedrepro.kernels.step import EVERYTHING, Adam, AdamW, Loss, Proximal, Rule, Sgd, Step, Term, unknown
from fedrepro.kernels.trained import Carried, Trained
from fedrepro.models.architecture import Architecture

CPU = torch.device("cpu")
KERNELS = [plain, threads, graph]
PROXIMAL = Proximal(mu=0.3)
RULES: list[Rule] = [
    Sgd(),
    Sgd(momentum=0.9, weight_decay=0.1),
    Sgd(momentum=0.5, clip=0.05, proximal=PROXIMAL),
    Adam(),
    Adam(weight_decay=0.1, clip=0.05, beta1=0.8, beta2=0.95, eps=1e-3),
    AdamW(weight_decay=0.1, proximal=PROXIMAL),
]
LOSSES = [
    Loss(),
    Loss(terms=(Term(temperature=4.0, weight=16.0),), scale=0.5),
    Loss(terms=(Term(), Term(weight=4.0, temperature=2.0), Term(weight=-0.25, temperature=2.0))),
]


@pytest.fixture(autouse=True)
def no_session_of_another_test() -> Any:
    sessions.forget()
    yield
    sessions.forget()


def targets_for(loss: Loss, data: Data) -> list[Tensor]:
    """Return labels for the first term, and different probabilities for the others."""
    return [data.labels if not term else soft(len(data)).roll(term, 0) for term in range(len(loss.terms))]


def train(
    kernel: ModuleType,
    step: Step,
    name: str = "mlp",
    *,
    sizes: tuple[int, ...] = (4, 9, 3),
    cuts: tuple[int, ...] = (),
    correct: bool = False,
    **options: Any,
) -> Trained:
    """Train members with two, four and two steps, in one go or cut before some steps."""
    data = tiny.points(sum(sizes)) if name == "mlp" else tiny.images(sum(sizes))
    architecture, plan = tiny.network(name), plans(sizes, pad=0 if name == "mlp" else 1)
    begin, carried = start(architecture, len(sizes)), None
    rates = torch.linspace(0.1, 0.02, len(plan), dtype=torch.float64)
    collect = torch.arange(len(plan)) % 2 == 0
    if correct:
        noise = torch.randn(begin.params.shape, generator=tiny.seeded(4), dtype=torch.float64)
        options["correction"] = 0.1 * noise
    for first, last in zip((0, *cuts), (*cuts, len(plan))):
        part = plan.steps(first, last)
        done: Trained = kernel.train(
            architecture,
            begin,
            data,
            targets_for(step.loss, data),
            part,
            step,
            rates[first:last],
            precision="float64",
            collect=collect[first:last],
            carried=carried,
            **options,
        )
        begin, carried = done.stack, done.carried
    return done


def far(found: Trained, expected: Trained) -> float:
    """Return the largest difference of anything that training returns."""
    pairs = [(found.stack, expected.stack), (found.average, expected.average)]
    gaps = [getattr(a, part) - getattr(b, part) for a, b in pairs for part in ("params", "buffers")]
    assert all(torch.equal(a.counters, b.counters) for a, b in pairs)
    assert torch.equal(found.finite, expected.finite)
    for name in ("steps", "collected"):
        assert torch.equal(getattr(found.carried, name), getattr(expected.carried, name))
    gaps += [getattr(found.carried, name) - getattr(expected.carried, name) for name in ("slots", "total", "mean")]
    return max(float(gap.abs().max()) if gap.numel() else 0.0 for gap in (*gaps, found.loss - expected.loss))


class TestRules:
    """One weight, gradients of a loss that is switched off but for a correction, worked out by hand."""

    def moved(self, rule: Rule, gradients: list[float], rate: float = 0.1) -> list[float]:
        """Return the difference that each of some steps makes to every weight, its gradient being the same."""
        architecture, data = tiny.network("mlp"), tiny.points(4)
        begin = start(architecture, 1)
        plan, found, carried = plans((4,), epochs=1), [], None
        for gradient in gradients:
            shift = torch.full_like(begin.params, gradient)
            step = Step(rule=rule, loss=Loss(scale=0.0))
            rates = torch.tensor([rate], dtype=torch.float64)
            done = plain.train(
                architecture,
                begin,
                data,
                (data.labels,),
                plan,
                step,
                rates,
                precision="float64",
                carried=carried,
                correction=shift,
            )
            change = done.stack.params - begin.params
            torch.testing.assert_close(change, change[:, :1].expand_as(change), rtol=1e-9, atol=1e-12)
            found.append(float(change[0, 0]))
            begin, carried = done.stack, done.carried
        return found

    def test_sgd(self) -> None:
        # v: 2, then 0.5 * 2 + 4 = 5
        assert self.moved(Sgd(momentum=0.5), [2.0, 4.0]) == pytest.approx([-0.2, -0.5])

    def test_adam(self) -> None:
        # m: 1, 0.5 + 2 = 2.5 (beta1 0.5); v: 0.4 (beta2 0.9), 0.36 + 1.6 = 1.96
        # corrected: 1/0.5 = 2, 0.4/0.1 = 4; then 2.5/0.75 = 10/3, 1.96/0.19
        steps = [2.0 / (4.0**0.5 + 0.1), (10 / 3) / ((1.96 / 0.19) ** 0.5 + 0.1)]
        found = self.moved(Adam(beta1=0.5, beta2=0.9, eps=0.1), [2.0, 4.0])
        assert found == pytest.approx([-0.1 * step for step in steps], rel=1e-12)

    def test_clipping(self) -> None:
        size = start(tiny.network("mlp"), 1).params.shape[1]
        length = 2.0 * size**0.5
        assert self.moved(Sgd(clip=length / 4), [2.0]) == pytest.approx([-0.1 * 2.0 / 4], rel=1e-5)
        assert self.moved(Sgd(clip=2 * length), [2.0]) == pytest.approx([-0.2])

    @pytest.mark.parametrize(("rule", "kept"), [(AdamW(weight_decay=0.5), 0.95), (Adam(weight_decay=0.0), 1.0)])
    def test_adamw_shrinks_weights_only(self, rule: Rule, kept: float) -> None:
        architecture, data = tiny.network("mlp"), tiny.points(4)
        begin = start(architecture, 1)
        rates = torch.tensor([0.1], dtype=torch.float64)
        done = plain.train(
            architecture,
            begin,
            data,
            (data.labels,),
            plans((4,), epochs=1),
            Step(rule=rule, loss=Loss(scale=0.0)),
            rates,
            precision="float64",
        )
        for name, view in done.stack.named_params().items():
            factor = kept if "weight" in name else 1.0
            torch.testing.assert_close(view, factor * begin.named_params()[name], rtol=1e-12, atol=1e-12)

    @pytest.mark.parametrize(
        ("make", "rule"),
        [
            (lambda: Sgd(momentum=1.0), r"momentum must be in \[0, 1\), got 1.0"),
            (lambda: Sgd(weight_decay=-1.0), "weight_decay must be >= 0, got -1.0"),
            (lambda: Sgd(clip=-1.0), "clip must be >= 0, got -1.0"),
            (lambda: Adam(beta1=1.0), r"beta1 must be in \[0, 1\), got 1.0"),
            (lambda: Adam(eps=0.0), "eps must be > 0, got 0.0"),
            (lambda: Term(temperature=0.0), "temperature must be > 0, got 0.0"),
            (lambda: Term(weight=float("nan")), "weight of a term must be finite, got nan"),
            (lambda: Loss(terms=()), "at least one term"),
        ],
    )
    def test_values_out_of_range(self, make: Any, rule: str) -> None:
        with pytest.raises(ValueError, match=rule):
            make()


class TestLoss:
    def test_several_terms_by_hand(self) -> None:
        logits = torch.tensor([[2.0, 0.0, -2.0], [0.0, 0.0, 0.0]], dtype=torch.float64)
        labels = torch.tensor([0, 2])
        soft = torch.tensor([[0.5, 0.5, 0.0], [0.0, 0.0, 1.0]], dtype=torch.float64)
        loss = Loss(terms=(Term(), Term(weight=3.0, temperature=2.0)))
        first = -torch.log_softmax(logits, 1)[[0, 1], labels].mean()
        second = -(soft * torch.log_softmax(logits / 2, 1)).sum(1).mean()
        assert float(loss(logits, (labels, soft))) == pytest.approx(float(first + 3 * second), rel=1e-14)

    def test_its_gradient_is_that_of_the_divergence(self) -> None:
        logits = torch.randn(5, 3, generator=tiny.seeded(0), dtype=torch.float64, requires_grad=True)
        teacher = torch.randn(5, 3, generator=tiny.seeded(1), dtype=torch.float64)
        target = (teacher / 4).softmax(1)
        (mine,) = torch.autograd.grad(Loss(terms=(Term(weight=16.0, temperature=4.0),))(logits, (target,)), logits)
        divergence = 16 * F.kl_div((logits / 4).log_softmax(1), target, reduction="batchmean")
        (theirs,) = torch.autograd.grad(divergence, logits)
        torch.testing.assert_close(mine, theirs, rtol=1e-12, atol=1e-14)

    def test_as_many_targets_as_terms(self) -> None:
        with pytest.raises(ValueError, match="a loss of 1 terms needs as many targets, got 2"):
            Loss()(torch.zeros(1, 3), [torch.zeros(1, dtype=torch.int64)] * 2)


@pytest.mark.parametrize("kernel", [threads, graph], ids=["threads", "graph"])
class TestEveryKernelAgreesWithPlain:
    @pytest.mark.parametrize("rule", RULES, ids=repr)
    @pytest.mark.parametrize("name", ["mlp", "resnet8"])
    def test_rules(self, kernel: ModuleType, rule: Rule, name: str) -> None:
        step = Step(rule=rule, loss=LOSSES[1])
        assert far(train(kernel, step, name, correct=True), train(plain, step, name, correct=True)) < 1e-9

    @pytest.mark.parametrize("loss", LOSSES)
    def test_losses(self, kernel: ModuleType, loss: Loss) -> None:
        step = Step(rule=Sgd(momentum=0.9), loss=loss)
        found = train(kernel, step)
        assert far(found, train(plain, step)) < 1e-9
        assert not torch.equal(found.stack.params, start(tiny.network("mlp"), 3).params)


@pytest.mark.parametrize("kernel", KERNELS, ids=["plain", "threads", "graph"])
class TestCut:
    """A training may be cut before any step: the same bits come out."""

    @pytest.mark.parametrize("cuts", [(1,), (2,), (3,), (1, 2, 3)])
    @pytest.mark.parametrize("rule", [RULES[2], RULES[4], RULES[5]], ids=repr)
    def test_to_the_bit(self, kernel: ModuleType, rule: Rule, cuts: tuple[int, ...]) -> None:
        step = Step(rule=rule, loss=LOSSES[2])
        whole, parts = train(kernel, step, correct=True), train(kernel, step, cuts=cuts, correct=True)
        assert far(parts, whole) == 0.0

    def test_with_batchnorm_and_augmentation(self, kernel: ModuleType) -> None:
        step = Step(rule=Adam(clip=1.0))
        assert far(train(kernel, step, "resnet8", cuts=(1, 3)), train(kernel, step, "resnet8")) == 0.0

    def test_what_was_handed_in_is_not_written_to(self, kernel: ModuleType) -> None:
        data, architecture = tiny.points(8), tiny.network("mlp")
        begin, plan, step = start(architecture, 2), plans((4, 4), epochs=1), Step(rule=Adam())
        carried = Carried.fresh(begin, step.rule)
        carried = replace(carried, slots=carried.slots + 0.1, steps=carried.steps + 3)
        before = [tensor.clone() for tensor in vars(carried).values()]
        rates = torch.full((1,), 0.1, dtype=torch.float64)
        kernel.train(
            architecture, begin, data, (data.labels,), plan, step, rates, precision="float64", carried=carried
        )
        assert all(torch.equal(a, b) for a, b in zip(before, vars(carried).values()))


class TestRecorded:
    """A recording of a step does every step, whatever the rule and the loss, and in every part of a training."""

    @pytest.mark.parametrize("rule", RULES, ids=repr)
    def test_a_fixed_list_of_operations_follows_every_rule(
        self, rule: Rule, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        step = Step(rule=rule, loss=LOSSES[2])
        expected = train(plain, step, correct=True)
        replays = recordings.replayed(monkeypatch)
        assert far(train(graph, step, correct=True, cuts=(2,)), expected) < 1e-9
        assert len(replays) == 2 + 4 + 2
        assert len(sessions._kept) == 1  # both parts have one recording

    @pytest.mark.parametrize("rule", RULES, ids=repr)
    def test_steps_never_wait_for_the_device(self, rule: Rule, monkeypatch: pytest.MonkeyPatch) -> None:
        recordings.watched(monkeypatch)
        train(graph, Step(rule=rule, loss=LOSSES[2]), correct=True)


class TestDiverged:
    @pytest.mark.parametrize("rule", [Sgd(momentum=0.9, clip=1.0), Adam(clip=1.0)], ids=repr)
    def test_a_lane_that_held_one_is_as_good_as_new(self, rule: Rule) -> None:
        # The norm of a gradient looks at all places of a lane, those between tensors too.
        data, architecture, step = tiny.points(12), tiny.network("mlp"), Step(rule=rule)
        begin, plan = start(architecture, 3), plans((4, 4, 4))
        begin.params[0] = float("nan")
        rates = torch.full((len(plan),), 0.1, dtype=torch.float64)
        for members in ([0, 1, 2], [1, 2]):
            arguments = (
                architecture,
                begin.take(members),
                data,
                (data.labels,),
                plan.members(members),
                step,
                rates,
            )
            found = graph.train(*arguments, precision="float64", chunk=1)
            assert found.finite.tolist() == [member > 0 for member in members]
            expected = plain.train(*arguments, precision="float64")
            torch.testing.assert_close(found.stack.params, expected.stack.params, equal_nan=True)


def test_adam_in_float32_is_no_worse_in_the_graph() -> None:
    # 1 - beta2^t loses half of its digits when it is formed in float32.
    data, architecture = tiny.points(8), tiny.network("mlp")
    plan, step = plans((8,), epochs=10), Step(rule=Adam())
    rates = torch.full((len(plan),), 0.01, dtype=torch.float64)
    begin = start(architecture, 1)
    exact = plain.train(architecture, begin, data, (data.labels,), plan, step, rates, precision="float64")
    arguments = (architecture, begin.to(dtype=torch.float32), data, (data.labels,), plan, step, rates)
    gaps = [
        float((k.train(*arguments).stack.params.double() - exact.stack.params).abs().max()) for k in (plain, graph)
    ]
    assert max(gaps) < 2e-6


class TestRefusals:
    def test_a_rule_of_somebody_else_is_refused_by_name_and_runs_nowhere(self) -> None:
        @dataclass(frozen=True, kw_only=True)
        class Lion(Rule):
            slots: ClassVar[int] = 1

        step = Step(rule=Lion())
        for kernel in KERNELS:
            assert "it does not know Lion" in kernel.takes(tiny.network("resnet8"), CPU, "float32", step)
        with pytest.raises(ValueError, match="does not know Lion"):
            train(plain, step)

    def test_an_option_that_a_kernel_does_not_know_must_be_at_its_default(self) -> None:
        known = {**EVERYTHING, Term: {"weight"}, Sgd: {"momentum", "proximal", "weight_decay"}}
        assert unknown(Step(rule=Sgd(momentum=0.5)), known) == ""
        assert unknown(Step(rule=Sgd(clip=1.0)), known) == "it does not know Sgd's clip = 1.0"
        warm = Step(rule=Sgd(), loss=Loss(terms=(Term(temperature=2.0),)))
        assert unknown(warm, known) == "it does not know Term's temperature = 2.0"


class Dropping(nn.Module):
    """A network that drops out, in a layer or by a function."""

    def __init__(self, *, classes: int, functional: bool) -> None:
        super().__init__()
        self.hidden, self.output = nn.Linear(2, 16), nn.Linear(16, classes)
        self.dropout = nn.Dropout(0.5)
        self.functional = functional

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.hidden(x.flatten(1)))
        y = F.dropout(y, 0.5, self.training) if self.functional else self.dropout(y)
        logits: Tensor = self.output(y)
        return logits


@pytest.mark.parametrize("functional", [False, True])
class TestDropout:
    """Masks come from the plan's seeds, one for each step: the same in every run, and no global state moves."""

    @pytest.fixture
    def architecture(self, functional: bool, monkeypatch: pytest.MonkeyPatch) -> Any:
        name = f"dropping{int(functional)}"
        models.register(name, lambda *, classes: Dropping(classes=classes, functional=functional), input=(2,))
        yield Architecture(name, tiny.CLASSES, (), "own")
        del models.registry.NETWORKS[name], models.NAMES[name]

    def run(
        self, architecture: Architecture, plan: BatchPlan, begin: Stack, data: Data, carried: Carried | None = None
    ) -> Trained:
        rates = torch.full((len(plan),), 0.1, dtype=torch.float64)
        step = Step(rule=Sgd(momentum=0.9))
        return plain.train(
            architecture, begin, data, (data.labels,), plan, step, rates, precision="float64", carried=carried
        )

    def test_the_plan_decides(self, architecture: Architecture) -> None:
        data, plan = tiny.points(8), plans((4, 4))
        begin = start(architecture, 2)
        state = torch.get_rng_state()
        first, again = self.run(architecture, plan, begin, data), self.run(architecture, plan, begin, data)
        assert tiny.same(first.stack, again.stack)
        assert torch.equal(torch.get_rng_state(), state)
        other = replace(plan, noise=plan.noise + 1)
        assert not tiny.same(first.stack, self.run(architecture, other, begin, data).stack)
        half = self.run(architecture, plan.steps(0, 1), begin, data)
        rest = self.run(architecture, plan.steps(1, 2), half.stack, data, half.carried)
        assert far(rest, first) == 0.0
        alone = self.run(architecture, plan.members([1]), begin.take([1]), data)
        assert tiny.same(alone.stack, first.stack.take([1]))

    def test_other_kernels_refuse_it_by_name(self, architecture: Architecture) -> None:
        step = Step(rule=Sgd())
        assert "draws random numbers" in graph.takes(architecture, CPU, "float32", step)
        assert "draws random numbers" in threads.takes(architecture, CPU, "float32", step)
        assert plain.takes(architecture, CPU, "float32", step) == ""
