"""One suite that every method must pass, and what sets each of them apart."""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import Any

import pytest
import tiny
import torch
from torch import Tensor

from fedrepro import papers
from fedrepro.core.rng import Streams
from fedrepro.core.setting import OPTIONS, Setting
from fedrepro.core.stack import Stack, mix
from fedrepro.core.state import Memory, State
from fedrepro.federation.federation import Federation
from fedrepro.kernels.batches import Augment
from fedrepro.kernels.trained import Carried
from fedrepro.methods import catalogue as methods
from fedrepro.methods.compose import Method, compose
from fedrepro.methods.measures import measured
from fedrepro.stages.combine import MeanOfProbabilities
from fedrepro.stages.distill import DistillSgd, DistillSwa, Keep
from fedrepro.stages.plan import Sample
from fedrepro.stages.posterior import Dirichlet, Gaussian, GaussianOfficial, posterior
from fedrepro.stages.rates import Constant, Cyclical
from fedrepro.stages.round import Round
from fedrepro.stages.server import Replace
from fedrepro.stages.teach import Clients, Nobody, Union
from fedrepro.stages.train import LocalSgd, local_batches, local_sgd
from fedrepro.stages.weigh import BySize

FEDERATED = [name for name in methods.METHODS if name != "centralized"]
NETWORKS = ["mlp", "resnet8"]
SEED = 1


def setting(name: str, **changes: Any) -> Setting:
    return tiny.setting(**{"method": name, "participation": 0.75} | changes)


def world(name: str, network: str, **options: Any) -> Federation:
    """Return four clients of unequal size, of which three take part; centralised training has only one."""
    sizes = (20,) if name == "centralized" else (5, 8, 3, 4)
    return tiny.federation(network, **{"sizes": sizes, "precision": "float32"} | options)


def share(right: Tensor) -> float:
    return float(100 * right.double().mean())


Play = list[tuple[State, Round]]


def cloned(memory: Memory) -> Memory:
    return {name: tiny.copied(held) if isinstance(held, Stack) else held.clone() for name, held in memory.items()}


def equal(one: Memory, other: Memory) -> bool:
    """Return whether two memories are the same to the bit."""
    if one.keys() != other.keys():
        return False
    for name, held in one.items():
        twin = other[name]
        if isinstance(held, Stack) or isinstance(twin, Stack):
            if not (isinstance(held, Stack) and isinstance(twin, Stack) and tiny.same(held, twin)):
                return False
        elif not torch.equal(held, twin):
            return False
    return True


@lru_cache
def played(name: str, network: str) -> Play:
    """Play two rounds of a method and check on the way that nothing handed in is changed."""
    here = world(name, network)
    method = methods.build(setting(name))
    state = method.init(here, SEED)
    images = here.data.images.clone(), here.public.images.clone(), here.test.images.clone()
    rounds = []
    for r in range(2):
        models, memory = tiny.copied(state.models), cloned(state.memory)
        after, trace = method.round(state, here, Streams(SEED, r))
        assert tiny.same(state.models, models)
        assert equal(state.memory, memory)
        assert torch.equal(here.data.images, images[0])
        assert torch.equal(here.public.images, images[1])
        assert torch.equal(here.test.images, images[2])
        rounds.append((after, trace))
        state = after
    return rounds


def finite(stack: Stack) -> bool:
    return bool(stack.params.isfinite().all() and stack.buffers.isfinite().all())


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("name", methods.METHODS)
class TestEveryMethod:
    def test_the_state(self, name: str, network: str) -> None:
        here = world(name, network)
        before = methods.build(setting(name)).init(here, SEED)
        assert before.round == 0
        assert tiny.same(before.models, here.start(SEED))
        for number, (state, _) in enumerate(played(name, network)):
            assert state.round == number + 1
            assert len(state.models) == 1
            assert state.models.layout == before.models.layout
            assert state.models.params.dtype == state.models.buffers.dtype == torch.float32
            assert state.models.counters.dtype == torch.int64
            assert finite(state.models)
            assert not torch.equal(state.models.params, before.models.params)
            for key, view in state.models.named_buffers().items():
                assert bool((view > 0).all()) or not key.endswith("running_var")

    def test_the_trace(self, name: str, network: str) -> None:
        here = world(name, network)
        for _, trace in played(name, network):
            count = len(trace.who.clients)
            assert count == (1 if name == "centralized" else 3)
            assert list(trace.who.clients) == sorted(set(trace.who.clients))
            assert len(trace.who.models) == len(trace.who.epochs) == count
            assert len(trace.start) == len(trace.clients) == count
            assert len(trace.average) == 1
            assert trace.shares.shape == (1, count)
            assert float(trace.shares.sum()) == pytest.approx(1)
            assert finite(trace.clients)
            assert finite(trace.average)
            assert finite(trace.teacher.members)
            assert math.isfinite(trace.train_loss)
            assert trace.targets.shape[1] == tiny.CLASSES
            assert len(trace.targets) in (0, len(here.public))
            assert math.isfinite(trace.distill_loss) == (len(trace.targets) > 0)
            if len(trace.targets):
                torch.testing.assert_close(trace.targets.sum(1), torch.ones(len(here.public)))
            assert all(seconds >= 0 for seconds in trace.seconds.values())
            assert "train" in trace.seconds

    def test_again_and_from_a_checkpoint_to_the_bit(self, name: str, network: str) -> None:
        here = world(name, network)
        method = methods.build(setting(name))
        begin = method.init(here, SEED)
        once, trace = method.round(begin, here, Streams(SEED, 0))
        first, first_trace = played(name, network)[0]
        assert tiny.same(once.models, first.models)
        assert tiny.same(trace.clients, first_trace.clients)
        assert torch.equal(trace.targets, first_trace.targets)
        # Round 1 needs nothing but the state, its seed and its number.
        saved = State(1, tiny.copied(first.models), cloned(first.memory))
        resumed, _ = methods.build(setting(name)).round(saved, world(name, network), Streams(SEED, 1))
        second, _ = played(name, network)[1]
        assert tiny.same(resumed.models, second.models)
        assert equal(resumed.memory, second.memory)

    def test_it_shows_its_stages(self, name: str, network: str) -> None:
        method = methods.build(setting(name))
        lines = str(method).splitlines()
        names = [stage for stage, _ in method.stages]
        assert [line.split()[0] for line in lines] == names
        assert ("Scaffold(lr=0.01" if "scaffold" in name else "LocalSgd(lr=0.01") in str(method)
        if name != "centralized":
            assert names == ["plan", "train", "weigh", "server", "teach", "combine", "distill"]

    def test_the_answer(self, name: str, network: str) -> None:
        answer = methods.build(setting(name)).answer
        assert answer == ("ensemble" if name in ("one_ensemble", "fedavg_ensemble") else "student")


@pytest.mark.parametrize("name", methods.METHODS)
def test_the_seed_changes_the_result(name: str) -> None:
    here = world(name, "mlp")
    method = methods.build(setting(name))
    same_start = method.init(here, SEED)
    found = [method.round(same_start, here, Streams(seed, 0))[0].models.params for seed in (SEED, SEED + 1)]
    assert not torch.equal(found[0], found[1])
    assert not torch.equal(method.init(here, SEED).models.params, method.init(here, SEED + 1).models.params)


@pytest.mark.parametrize("name", methods.METHODS)
def test_the_global_random_state_plays_no_part(name: str) -> None:
    here, method = world(name, "mlp"), methods.build(setting(name))
    torch.manual_seed(0)
    state = torch.get_rng_state()
    found = method.round(method.init(here, SEED), here, Streams(SEED, 0))[0]
    assert torch.equal(torch.get_rng_state(), state)
    assert tiny.same(found.models, played(name, "mlp")[0][0].models)


class TestAllMethodsSeeTheSame:
    """At one seed all methods of a table have the same initial model, participants and batches."""

    @pytest.mark.parametrize("network", NETWORKS)
    def test_the_first_round_of_training(self, network: str) -> None:
        first = played("fedavg", network)[0][1]
        for name in FEDERATED:
            trace = played(name, network)[0][1]
            assert trace.who == first.who
            assert tiny.same(trace.start, first.start)
            assert tiny.same(trace.clients, first.clients)
            assert torch.equal(trace.shares, first.shares)
            assert trace.train_loss == first.train_loss
            if "fedavgm" in name:  # its w - (w - average) is rounded
                torch.testing.assert_close(trace.average.params, first.average.params)
            else:
                assert tiny.same(trace.average, first.average)

    def test_the_participants_of_later_rounds(self) -> None:
        drawn, many = set(), tiny.federation("mlp", sizes=(1,) * 100)
        for name in FEDERATED:
            plan = dict(methods.build(setting(name, participation=0.1)).stages)["plan"]
            assert isinstance(plan, Sample)
            begun = tiny.round_of(many, State(0, many.start(SEED)))
            drawn.add(tuple(plan(begun, many, Streams(SEED, r)).clients for r in range(20)))
        assert len(drawn) == 1

    @pytest.mark.parametrize("posterior", ["gaussian", "dirichlet", "gaussian_fedbe_official"])
    def test_more_samples_do_not_move_the_next_round(self, posterior: str) -> None:
        here = world("fedbe", "mlp")
        traces = []
        for samples in (0, 2, 7):
            method = methods.build(setting("fedbe", posterior=posterior, samples=samples))
            method.round(method.init(here, SEED), here, Streams(SEED, 0))
            again = method.init(here, SEED)  # the same models, so that only the draws could differ
            traces.append(method.round(again, here, Streams(SEED, 1))[1])
        for trace in traces[1:]:
            assert trace.who == traces[0].who
            assert tiny.same(trace.clients, traces[0].clients)

    def test_the_partition_of_a_round_follows_client_numbers(self) -> None:
        trace = played("fedavg", "mlp")[0][1]
        sizes = [(5, 8, 3, 4)[client] for client in trace.who.clients]
        assert trace.shares[0].tolist() == pytest.approx([size / sum(sizes) for size in sizes])


class TestTeachers:
    @pytest.mark.parametrize(
        ("name", "count"),
        [
            *(("fedavg", 0), ("fedprox", 0), ("fedavgm", 0), ("scaffold", 0), ("fedbe_ground_truth", 0)),
            *(("one_ensemble", 3), ("v_distillation", 3), ("fedavg_ensemble", 6), ("fedbe", 6)),
            *(("fedbe_without_swa", 6), ("fedbe_fedprox", 6), ("fedbe_fedavgm", 6), ("fedbe_scaffold", 6)),
        ],
    )
    def test_how_many(self, name: str, count: int) -> None:
        for _, trace in played(name, "resnet8"):
            assert len(trace.teacher.members) == count

    @pytest.mark.parametrize("name", ["fedbe", "fedbe_without_swa"])
    def test_fedbe_has_the_average_then_the_clients_then_the_samples(self, name: str) -> None:
        here = world(name, "resnet8")
        for number, (_, trace) in enumerate(played(name, "resnet8")):
            members = trace.teacher.members
            assert tiny.same(members.take([0]), trace.average)
            assert tiny.same(members.take([1, 2, 3]), trace.clients)
            samples = Gaussian(samples=2)(trace, here, Streams(SEED, number))
            assert tiny.same(members.take([4, 5]), samples)
            # Noise on the weights, none on the statistics.
            assert not torch.equal(samples.params[0], trace.average.params[0])
            torch.testing.assert_close(samples.buffers, trace.average.buffers.expand(2, -1))

    @pytest.mark.parametrize(
        ("teachers", "count"),
        [("average", 1), ("average+clients", 4), ("clients+samples", 5), ("samples", 2), ("samples+average", 3)],
    )
    def test_teachers_by_name(self, teachers: str, count: int) -> None:
        here = world("fedbe", "mlp")
        method = methods.build(setting("fedbe", teachers=teachers))
        trace = method.round(method.init(here, SEED), here, Streams(SEED, 0))[1]
        assert len(trace.teacher.members) == count
        first = {"average": trace.average, "clients": trace.clients}.get(teachers.split("+")[0])
        if first is not None:
            assert tiny.same(trace.teacher.members.take(slice(0, len(first))), first)

    def test_the_clients_alone_teach_v_distillation(self) -> None:
        for _, trace in played("v_distillation", "resnet8"):
            assert tiny.same(trace.teacher.members, trace.clients)

    @pytest.mark.parametrize("name", ["v_distillation", "fedbe", "fedbe_without_swa"])
    def test_the_targets_are_the_sharpened_mean_of_the_members(self, name: str) -> None:
        here = world(name, "resnet8")
        _, trace = played(name, "resnet8")[0]
        stack = trace.teacher.members
        members = [here.predict(stack.take([m]), here.public)[0] for m in range(len(stack))]
        squared = torch.stack([logits.softmax(-1) for logits in members]).mean(0) ** 2
        torch.testing.assert_close(trace.targets, squared / squared.sum(1, keepdim=True))

    @pytest.mark.parametrize(
        ("name", "kind"),
        [
            ("gaussian", Gaussian),
            ("dirichlet", Dirichlet),
            ("gaussian_fedbe_official", GaussianOfficial),
            ("dirichlet_fedbe_official", Dirichlet),
        ],
    )
    def test_posteriors_by_name(self, name: str, kind: type) -> None:
        made = posterior(setting("fedbe", posterior=name, samples=7, dirichlet_alpha=0.1))
        assert isinstance(made, kind)
        assert made.samples == 7  # type: ignore[attr-defined]


class TestLimits:
    @pytest.mark.parametrize("network", NETWORKS)
    def test_fedavg_is_the_weighted_average(self, network: str) -> None:
        for state, trace in played("fedavg", network):
            assert tiny.same(state.models, trace.average)
            literal = torch.zeros_like(trace.average.params[0], dtype=torch.float64)
            for share, client in zip(trace.shares[0], trace.clients.params):
                literal += share * client.double()
            torch.testing.assert_close(state.models.params[0].double(), literal, rtol=1e-6, atol=1e-6)
            buffers = mix(trace.shares, trace.clients).buffers
            assert torch.equal(state.models.buffers, buffers)

    @pytest.mark.parametrize("network", NETWORKS)
    def test_fedavg_with_one_client_is_that_client(self, network: str) -> None:
        here = tiny.federation(network, sizes=(9,))
        method = methods.build(setting("fedavg"))
        state, trace = method.round(method.init(here, SEED), here, Streams(SEED, 0))
        assert tiny.same(state.models, trace.clients)
        plan = local_batches(here, trace.who, Streams(SEED, 0), batch_size=4, augment=Augment(pad=1, flip=True))
        assert plan.index.shape == (1, 2, 5)  # [4, 5] images: 9 with batches of 4
        assert float(trace.shares) == 1

    @pytest.mark.parametrize("name", ["v_distillation", "fedbe_without_swa", "fedbe"])
    def test_the_student_starts_from_the_average(self, name: str) -> None:
        here = world(name, "mlp", precision="float64")
        # A learning rate that moves nothing that could be seen; 1e-30 is > 0.
        still = setting(name, distill_lr=1e-30, swa_lr_low=1e-30, client_lr=0.5)
        method = methods.build(still)
        state, trace = method.round(method.init(here, SEED), here, Streams(SEED, 0))
        torch.testing.assert_close(state.models.params, trace.average.params, rtol=1e-14, atol=1e-14)
        assert float((trace.average.params - trace.start.params[:1]).abs().max()) > 1e-3

    def test_one_ensemble_tells_what_other_combinations_are_worth(self) -> None:
        here = world("one_ensemble", "mlp", precision="float64")
        method = methods.build(setting("one_ensemble", client_lr=0.5))
        state, trace = method.round(method.init(here, SEED), here, Streams(SEED, 0))
        logits, labels = trace.teacher.logits(here.test), here.test.labels
        chosen = logits.argmax(-1)  # [M, N]
        most = torch.stack([(chosen == c).sum(0) for c in range(logits.shape[-1])])
        voted = (most + logits.softmax(-1).mean(0).T / 10).argmax(0)
        found = measured(method, state, trace, here)
        assert found == {
            "accuracy by mean of logits": share(logits.sum(0).argmax(-1) == labels),
            "accuracy by mean at temperature 2": share((logits / 2).softmax(-1).sum(0).argmax(-1) == labels),
            "accuracy by vote": share(voted == labels),
            "accuracy by vote, ties in order": share(most.argmax(0) == labels),
            "accuracy of a member alone": pytest.approx(share(chosen == labels)),
        }
        assert measured(methods.build(setting("fedavg_ensemble")), state, trace, here) == {}

    def test_one_ensemble_leaves_the_average_alone(self) -> None:
        for state, trace in played("one_ensemble", "resnet8"):
            assert tiny.same(state.models, trace.average)
            assert len(trace.targets) == 0

    @pytest.mark.parametrize("network", NETWORKS)
    @pytest.mark.parametrize("name", ["fedprox", "fedbe_fedprox", "fedavgm", "fedbe_fedavgm"])
    def test_without_strength_a_variant_is_the_method_itself(self, name: str, network: str) -> None:
        base = "fedbe" if "fedbe" in name else "fedavg"
        for (state, trace), (same, _) in zip(played(name, network), played(base, network)):
            torch.testing.assert_close(state.models.params, same.models.params)
            assert set(state.memory) == ({"server_velocity"} if "fedavgm" in name else set())
            assert finite(trace.average)

    @pytest.mark.parametrize(
        ("name", "strength"),
        [("fedprox", {"proximal_mu": 1.0}), ("fedavgm", {"server_momentum": 0.5}), ("scaffold", {})],
    )
    def test_with_strength_it_is_another(self, name: str, strength: dict[str, float]) -> None:
        here = world(name, "mlp", precision="float64")
        method = methods.build(setting(name, client_lr=0.5, **strength))
        plain = methods.build(setting("fedavg", client_lr=0.5))
        state, same = method.init(here, SEED), plain.init(here, SEED)
        for r in range(2):
            state, same = (m.round(s, here, Streams(SEED, r))[0] for m, s in ((method, state), (plain, same)))
        assert float((state.models.params - same.models.params).abs().max()) > 1e-4

    def test_fedprox_stays_nearer(self) -> None:
        here, moved = world("fedprox", "mlp", precision="float64"), []
        for mu in (0.0, 1.0, 10.0):
            method = methods.build(setting("fedprox", client_lr=0.1, proximal_mu=mu))
            trace = method.round(method.init(here, SEED), here, Streams(SEED, 0))[1]
            moved.append(float((trace.clients.params - trace.start.params).norm()))
        assert moved[0] > moved[1] > moved[2]

    def test_true_labels_are_the_targets_where_asked_for(self) -> None:
        here = world("fedbe_ground_truth", "resnet8")
        for _, trace in played("fedbe_ground_truth", "resnet8"):
            assert torch.equal(trace.targets.argmax(1), here.public.labels)
            assert torch.equal(trace.targets.sum(1), torch.ones(len(here.public)))
        other = replace(here, public=replace(here.public, classes=("x", "y", "z")))
        method = methods.build(setting("fedbe_ground_truth"))
        with pytest.raises(ValueError, match="public images of the clients' classes"):
            method.round(method.init(other, SEED), other, Streams(SEED, 0))

    def test_swa_and_sgd_differ_only_after_the_targets(self) -> None:
        with_it, without = played("fedbe", "resnet8")[0], played("fedbe_without_swa", "resnet8")[0]
        assert torch.equal(with_it[1].targets, without[1].targets)
        assert not torch.equal(with_it[0].models.params, without[0].models.params)

    def test_the_official_loss_is_a_tenth_for_ten_classes(self) -> None:
        for name in ("v_distillation", "fedbe"):
            scales = [
                dict(methods.build(setting(name, loss_scale=scale)).stages)["distill"]
                for scale in ("cross_entropy", "fedbe_official")
            ]
            assert isinstance(scales[0], DistillSgd)
            assert isinstance(scales[1], DistillSgd)
            assert scales[0].loss_scale == 1.0
            assert scales[1].loss_scale == 0.1


class TestCentralized:
    def test_two_rounds_are_one_training_of_two_epochs(self) -> None:
        here = world("centralized", "resnet8")
        stage = local_sgd(setting("centralized"))
        state, held = here.start(SEED), None
        for r in range(2):
            after, account = played("centralized", "resnet8")[r]
            plan = local_batches(here, account.who, Streams(SEED, r), batch_size=4, augment=stage.augment)
            begun = tiny.round_of(here, State(r, state), start=state, who=account.who)
            carried = None
            if held is not None:
                carried = Carried.living_on(
                    state, stage.step.rule, held[:, None], torch.ones(1, dtype=torch.int64)
                )
            trained = stage.run(begun, here, Streams(SEED, r), plan, carried)
            state, held = trained.stack, trained.carried.slots[:, 0]
            assert tiny.same(after.models, state)
            assert equal(after.memory, {"velocity": held})
        loss = float(trained.carried.total) / 5  # five batches; the step that was only said to be done has no loss
        assert account.train_loss == pytest.approx(loss, rel=1e-6)
        first = played("centralized", "resnet8")[0][0].models
        forgotten = stage.run(replace(begun, start=first), here, Streams(SEED, 1), plan)
        assert not torch.equal(forgotten.stack.params, state.params)

    def test_every_image_is_used_in_every_epoch(self) -> None:
        here = world("centralized", "mlp")
        trace = played("centralized", "mlp")[0][1]
        plan = local_batches(here, trace.who, Streams(SEED, 0), batch_size=4, augment=Augment(pad=1, flip=True))
        assert sorted(plan.index[plan.mask].tolist()) == list(range(20))

    def test_several_clients_are_refused(self) -> None:
        # It says that it trains on all images; with three clients it would see those of the first alone.
        here = world("fedavg", "mlp")
        method = methods.build(setting("centralized"))
        with pytest.raises(ValueError, match="client"):
            method.round(method.init(here, SEED), here, Streams(SEED, 0))


@lru_cache
def cells() -> dict[tuple[str, str], Setting]:
    """Return the settings of FedBE's Table 1 at the paper's scale, by row and column."""
    found = papers.load("fedbe").cells("table1_methods", "paper")
    return {(cell.row, cell.column): cell.setting for cell in found}


def stages(row: str, column: str) -> dict[str, Any]:
    return dict(methods.build(cells()[row, column]).stages)


class TestPaperScale:
    """The stages at FedBE's scale, against the preprint's sections 5.1, 5.2 and B.1."""

    @pytest.mark.parametrize("partition", ["Step", "Dirichlet"])
    @pytest.mark.parametrize(("column", "decay"), [("ConvNet", 1e-3), ("ResNet-20", 2e-4), ("ResNet-56", 2e-4)])
    def test_fedbe(self, partition: str, column: str, decay: float) -> None:
        found = stages(f"{partition}/FedBE", column)
        augment = Augment(pad=2, flip=True)
        assert found["plan"] == Sample(participation=1.0, local_epochs=20)
        assert found["train"] == LocalSgd(
            lr=0.01,
            lr_schedule="fedbe",
            rounds=40,
            batch_size=40,
            momentum=0.9,
            weight_decay=decay,
            augment=augment,
        )
        assert found["weigh"] == BySize()
        assert found["server"] == Replace(bn_buffers="average")
        assert isinstance(found["teach"], Union)
        assert len(found["teach"].sources) == 3
        assert found["teach"].sources[2] == Gaussian(samples=10)
        assert found["combine"] == MeanOfProbabilities(sharpen=2.0)
        assert found["distill"] == DistillSwa(
            epochs=20,
            batch_size=128,
            schedule=Cyclical(high=1e-3, low=4e-4, cycle=25),
            momentum=0.9,
            weight_decay=1e-5,
            augment=augment,
            swa_start=250,
            cycle=25,
        )

    def test_the_baselines(self) -> None:
        assert stages("Step/FedAvg", "ConvNet")["distill"] == Keep()
        vanilla = stages("Step/v-Distillation", "ConvNet")
        assert vanilla["teach"] == Clients()
        assert vanilla["distill"] == DistillSgd(
            epochs=20,
            batch_size=128,
            schedule=Constant(lr=1e-3),
            momentum=0.9,
            weight_decay=1e-5,
            augment=Augment(pad=2, flip=True),
        )
        without = stages("Step/FedBE w/o SWA", "ConvNet")
        assert without["distill"] == vanilla["distill"]
        assert without["teach"] == stages("Step/FedBE", "ConvNet")["teach"]
        once = cells()["Step/1-Ensemble", "ConvNet"]
        assert (once.rounds, once.local_epochs) == (1, 200)
        assert methods.build(once).answer == "ensemble"

    def test_the_same_clients_for_all_methods(self) -> None:
        shared = [name for name in OPTIONS if name not in ("method", "rounds", "local_epochs")]
        for partition in ("Step", "Dirichlet"):
            rows = [s for (row, column), s in cells().items() if row.startswith(partition) and column == "ConvNet"]
            assert len(rows) == 5
            values = {tuple(getattr(s, name) for name in shared) for s in rows}
            assert len(values) == 1


class TestGroups:
    """Clients that nobody needs after training are averaged group by group."""

    @pytest.mark.parametrize("network", NETWORKS)
    @pytest.mark.parametrize("name", ["fedavg", "fedprox", "fedavgm"])
    def test_the_average_is_the_same(self, name: str, network: str, monkeypatch: pytest.MonkeyPatch) -> None:
        options = {"proximal_mu": 0.1, "server_momentum": 0.5, "participation": 1.0}
        here, method = world(name, network, precision="float64"), methods.build(setting(name, **options))
        found = []
        for clients in (4, 3, 1):
            size = here.start(0).params.shape[1] * 8
            monkeypatch.setattr("fedrepro.methods.compose.GROUP_BYTES", 4 * size * clients + size)
            state = method.init(here, SEED)
            for r in range(2):
                state, trace = method.round(state, here, Streams(SEED, r))
            assert len(trace.clients) == len(trace.start) == (4 if clients == 4 else 0)
            assert trace.shares.shape == (1, 4)
            found.append((state, trace))
        for state, trace in found[1:]:
            torch.testing.assert_close(state.models.params, found[0][0].models.params, rtol=1e-12, atol=1e-12)
            torch.testing.assert_close(state.models.buffers, found[0][0].models.buffers, rtol=1e-12, atol=1e-12)
            assert torch.equal(state.models.counters, found[0][0].models.counters)
            assert trace.train_loss == pytest.approx(found[0][1].train_loss, rel=1e-12)

    @pytest.mark.parametrize("name", ["fedbe", "v_distillation", "scaffold"])
    def test_who_needs_all_clients_keeps_them(self, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("fedrepro.methods.compose.GROUP_BYTES", 1)
        here, method = world(name, "mlp"), methods.build(setting(name))
        state, trace = method.round(method.init(here, SEED), here, Streams(SEED, 0))
        assert tiny.same(state.models, played(name, "mlp")[0][0].models)
        assert len(trace.clients) == 3


class TestComposition:
    def parts(self) -> dict[str, Any]:
        return {
            "plan": Sample(participation=1.0, local_epochs=1),
            "train": local_sgd(tiny.setting()),
            "weigh": BySize(),
            "server": Replace(),
            "teach": Nobody(),
            "combine": MeanOfProbabilities(sharpen=1.0),
            "distill": Keep(),
        }

    def test_an_unknown_answer_is_refused(self) -> None:
        with pytest.raises(ValueError, match='answer must be "student" or "ensemble", got \'teacher\''):
            compose(**self.parts(), answer="teacher")

    def test_stages_run_in_their_order(self) -> None:
        calls: list[str] = []

        def noted(name: str, stage: Callable[..., Any]) -> Callable[..., Any]:
            def call(*arguments: Any) -> Any:
                calls.append(name)
                return stage(*arguments)

            return call

        parts: dict[str, Any] = {name: noted(name, stage) for name, stage in self.parts().items()}
        method = compose(**parts)
        here = world("fedavg", "mlp")
        method.round(method.init(here, 0), here, Streams(0))
        assert calls == ["plan", "train", "weigh", "server", "teach", "distill"]  # nobody was asked to combine
        assert [name for name, _ in method.stages] == [*parts]

    def test_printing_names_every_stage_and_what_is_not_its_default(self) -> None:
        lines = str(compose(**self.parts())).splitlines()
        assert "plan     Sample(participation=1.0, local_epochs=1)" in lines
        assert "server   Replace()" in lines
        parts = self.parts() | {
            "server": Replace(bn_buffers="recalibrate"),
            "teach": Union((Clients(), Gaussian(samples=2, buffers="sample"))),
        }
        lines = str(compose(**parts)).splitlines()
        assert "server   Replace(bn_buffers='recalibrate')" in lines
        assert "teach    Union(sources=(Clients(), Gaussian(samples=2, buffers='sample')))" in lines
        assert str(Method(lambda f, s: State(0, f.start(s)), lambda s, f, r: (s, None), "student")) == ""  # type: ignore[arg-type, return-value]

    def test_unknown_names_are_refused_with_the_nearest(self) -> None:
        with pytest.raises(ValueError, match=r"unknown method 'fedbee' \(did you mean 'fedbe'"):
            methods.build(setting("fedbee"))
        with pytest.raises(ValueError, match=r"unknown posterior 'gausian' \(did you mean 'gaussian'"):
            methods.build(setting("fedbe", posterior="gausian"))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
class TestGpu:
    def there(self, precision: str) -> Federation:
        here = world("fedbe", "resnet8", precision=precision)
        data, public, test = (d.to("cuda") for d in (here.data, here.public, here.test))
        return replace(here, data=data, public=public, test=test)

    def once(self, here: Federation) -> tuple[State, Round]:
        method = methods.build(setting("fedbe"))
        return method.round(method.init(here, SEED), here, Streams(SEED, 0))

    def test_a_round_of_fedbe_agrees_with_the_cpu(self) -> None:
        ours, theirs = self.once(world("fedbe", "resnet8", precision="float64")), self.once(self.there("float64"))
        assert theirs[0].models.params.device.type == "cuda"
        assert theirs[1].who == ours[1].who
        assert torch.equal(theirs[1].shares, ours[1].shares)

        def close(found: Tensor, expected: Tensor) -> None:
            torch.testing.assert_close(found.cpu(), expected, rtol=1e-7, atol=1e-7)

        close(theirs[1].targets, ours[1].targets)
        close(theirs[1].teacher.members.params, ours[1].teacher.members.params)
        close(theirs[0].models.params, ours[0].models.params)
        close(theirs[0].models.buffers, ours[0].models.buffers)
        assert torch.equal(theirs[0].models.counters.cpu(), ours[0].models.counters)

    @pytest.mark.parametrize("precision", ["float32", "bfloat16"])
    def test_a_round_of_fedbe_runs(self, precision: str) -> None:
        state, trace = self.once(self.there(precision))
        assert state.models.params.dtype == torch.float32
        assert finite(state.models)
        assert len(trace.teacher.members) == 6
        torch.testing.assert_close(trace.targets.sum(1).cpu(), torch.ones(10))
