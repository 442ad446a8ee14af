"""The graph kernel against the plain one: on the CPU its steps run without recording, but are the same steps."""

import importlib
import sys
import warnings
from collections.abc import Iterator
from dataclasses import replace
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import recordings
import tiny
import torch
from test_kernels import close, plans, rates, soft, start
from torch import Tensor, nn

from fedrepro.core.stack import Layout
from fedrepro.data.data import Data
from fedrepro.kernels import plain, stacked
from fedrepro.kernels.batches import Augment, BatchPlan, batch_plan, share_out
from fedrepro.kernels.graph import graph, lanes, sessions
from fedrepro.kernels.graph.places import Places
from fedrepro.kernels.registry import KERNELS, kernel
from fedrepro.kernels.step import FREE, Adam, Loss, Proximal, Sgd, Step, Term
from fedrepro.kernels.trained import Trained
from fedrepro.models.architecture import Architecture, draws

CUDA, CPU = torch.device("cuda"), torch.device("cpu")


@pytest.fixture(autouse=True)
def no_session_of_another_test() -> Iterator[None]:
    sessions.forget()
    yield
    sessions.forget()


def images_for(architecture: Architecture, count: int, seed: int = 0) -> Data:
    if architecture.name == "mlp":
        return tiny.points(count, seed=seed)
    side = 32 if architecture.name == "convnet" else 8
    return tiny.images(count, height=side, width=side, seed=seed)


def agree(found: Trained, expected: Trained, tolerance: float = 1e-9) -> None:
    for name in ("stack", "average"):
        one, other = getattr(found, name), getattr(expected, name)
        close(one.params, other.params, tolerance)
        close(one.buffers, other.buffers, tolerance)
        assert torch.equal(one.counters, other.counters)
        assert one.counters.dtype == torch.int64
    close(tiny.velocity(found), tiny.velocity(expected), tolerance)
    close(found.loss, expected.loss, tolerance)
    assert found.stack.params.data_ptr() != found.average.params.data_ptr()


def both(
    architecture: Architecture,
    sizes: tuple[int, ...] = (4, 9, 3),
    *,
    epochs: int | list[int] = 2,
    pad: int = 0,
    flip: bool = False,
    targets: str = "labels",
    momentum: float = 0.9,
    decay: float = 0.1,
    seed: int = 0,
    proximal: Proximal = FREE,
    other: ModuleType = graph,
    **options: Any,
) -> Trained:
    """Train with the plain kernel and another one, compare, and return what the other found."""
    data, models = images_for(architecture, sum(sizes), seed), start(architecture, len(sizes))
    plan = batch_plan(
        list(tiny.cut(sizes)),
        [tiny.seeded(10 + member) for member in range(len(sizes))],
        epochs=[epochs] * len(sizes) if isinstance(epochs, int) else epochs,
        batch_size=4,
        augment=Augment(pad=pad, flip=flip),
    )
    steps = plan.index.shape[1]
    sgd = tiny.Sgd(lr=rates(steps), momentum=momentum, weight_decay=decay, proximal=proximal)
    truth = data.labels if targets == "labels" else soft(len(data)).roll(seed, 0)
    chunk: dict[str, Any] = {"chunk": options.pop("chunk")} if "chunk" in options else {}
    if options.pop("collect", False):
        options["collect"] = torch.arange(steps) % 3 == 1
    if options.pop("moving", False):
        options["velocity"] = torch.randn(models.params.shape, generator=tiny.seeded(3), dtype=torch.float64)
    if options.pop("corrected", False):
        options["correction"] = torch.randn(models.params.shape, generator=tiny.seeded(4), dtype=torch.float64)
    options["precision"] = "float64"
    expected = tiny.train(plain, architecture, models, data, truth, plan, sgd, **options)
    found = tiny.train(other, architecture, models, data, truth, plan, sgd, **options, **chunk)
    agree(found, expected)
    return found


class TestTrain:
    @pytest.mark.parametrize("name", ["mlp", "resnet8", "group"])
    def test_agrees_with_plain(self, name: str) -> None:
        both(tiny.network(name))

    def test_convnet(self) -> None:
        both(Architecture("convnet", tiny.CLASSES), (4, 6), epochs=1, pad=2, flip=True)

    def test_shortcut_b(self) -> None:
        both(Architecture("resnet8", tiny.CLASSES, (("shortcut", "B"),)), (4, 6), epochs=1)

    @pytest.mark.parametrize(("momentum", "decay"), [(0.9, 0.0), (0.0, 0.1), (0.0, 0.0)])
    @pytest.mark.parametrize("moving", [False, True])
    @pytest.mark.parametrize("targets", ["labels", "probabilities"])
    def test_momentum_decay_and_targets(self, momentum: float, decay: float, moving: bool, targets: str) -> None:
        found = both(tiny.network("mlp"), momentum=momentum, decay=decay, moving=moving, targets=targets)
        assert bool(tiny.velocity(found).any()) == bool(momentum)

    @pytest.mark.parametrize(("pad", "flip"), [(2, True), (1, False), (0, True)])
    def test_augmentation(self, pad: int, flip: bool) -> None:
        both(tiny.network("resnet8"), (5, 4), epochs=1, pad=pad, flip=flip)

    @pytest.mark.parametrize("proximal", [FREE, Proximal(mu=0.5), Proximal(mu=0.5, form="fedbe_official")])
    @pytest.mark.parametrize("corrected", [False, True])
    def test_local_rules(self, proximal: Proximal, corrected: bool) -> None:
        both(tiny.network("resnet8"), (5, 4), epochs=2, proximal=proximal, corrected=corrected)

    @pytest.mark.parametrize("name", ["mlp", "resnet8"])
    def test_everything_at_once(self, name: str) -> None:
        options: dict[str, Any] = {"collect": True, "moving": True, "loss_scale": 0.1, "targets": "probabilities"}
        both(tiny.network(name), pad=0 if name == "mlp" else 1, epochs=[3, 2, 1], **options)

    def test_members_that_never_collect_have_their_last_model_as_average(self) -> None:
        found = both(tiny.network("mlp"), (4, 9), epochs=[1, 2], collect=True)
        assert torch.equal(found.average.params[0], found.stack.params[0])
        assert not torch.equal(found.average.params[1], found.stack.params[1])

    def test_masked_steps_in_between_and_members_without_steps(self) -> None:
        data, architecture = tiny.images(9), tiny.network("resnet8")
        plan, models = plans((9,), epochs=1), start(architecture, 2)

        def spread_out(t: Tensor) -> Tensor:
            nothing = torch.zeros_like(t[:, :1])
            wide = torch.cat([nothing, t[:, :1], nothing, t[:, 1:]], 1)
            return torch.cat([wide, torch.zeros_like(wide)])

        spread, sgd = tiny.replanned(plan, spread_out), tiny.Sgd(lr=rates(4), momentum=0.9, weight_decay=0.01)
        velocity, flags = torch.ones_like(models.params), torch.tensor([True, False, True, True])
        found, expected = (
            tiny.train(
                k,
                architecture,
                models,
                data,
                data.labels,
                spread,
                sgd,
                precision="float64",
                collect=flags,
                velocity=velocity,
            )
            for k in (graph, plain)
        )
        agree(found, expected)
        assert torch.equal(found.stack.params[1], models.params[1])
        assert float(found.loss[1]) == 0.0

    def test_what_goes_in_stays_as_it_was(self) -> None:
        data, architecture = tiny.images(9), tiny.network("resnet8")
        models, plan, targets = start(architecture, 1), plans((9,), pad=1), soft(9)
        velocity = torch.ones_like(models.params)
        kept = tiny.copied(models), data.images.clone(), targets.clone(), plan.index.clone()
        sgd = tiny.Sgd(lr=rates(4), momentum=0.9, weight_decay=0.1)
        tiny.train(graph, architecture, models, data, targets, plan, sgd, precision="float64", velocity=velocity)
        graph.predict(architecture, models, data, precision="float64")
        graph.recalibrate(architecture, models, data, precision="float64")
        assert tiny.same(models, kept[0])
        assert torch.equal(data.images, kept[1])
        assert torch.equal(targets, kept[2])
        assert torch.equal(plan.index, kept[3])
        assert bool((velocity == 1).all())

    def test_bfloat16_is_that_of_plain(self) -> None:
        data, architecture = tiny.images(8), tiny.network("resnet8")
        models, plan = start(architecture, 2, torch.float32), plans((4, 4), epochs=1)
        sgd = tiny.Sgd(lr=rates(1), momentum=0.9, weight_decay=0.01)
        found, expected = (
            tiny.train(k, architecture, models, data, data.labels, plan, sgd, precision="bfloat16")
            for k in (graph, plain)
        )
        assert found.stack.params.dtype == torch.float32
        agree(found, expected, 1e-3)

    def test_the_first_member_without_a_finite_loss_is_named(self) -> None:
        data, architecture = tiny.points(12), tiny.network("mlp")
        broken = data.images.clone()
        broken[4:8] = float("inf")
        run = (data.labels, plans((4, 4, 4)), tiny.Sgd(lr=rates(2), momentum=0.9, weight_decay=0.0))
        models = start(architecture, 3)
        bad = replace(data, images=broken)
        found = tiny.train(graph, architecture, models, bad, *run, precision="float64", chunk=1)
        assert found.finite.tolist() == [True, False, True]
        # The lane that held it, and then the member after it, is as good as new.
        found = tiny.train(graph, architecture, models, data, *run, precision="float64", chunk=1)
        agree(found, tiny.train(plain, architecture, models, data, *run, precision="float64"))


class TestSessions:
    @pytest.mark.parametrize("chunk", [1, 2, 3, 50])
    def test_more_members_than_lanes(self, chunk: int) -> None:
        both(tiny.network("resnet8"), (4, 9, 3, 5, 4), epochs=1, pad=1, collect=True, chunk=chunk)

    def test_recorded_steps_leave_no_trace(self, monkeypatch: pytest.MonkeyPatch) -> None:
        # The CPU warms up as CUDA does, so weights, statistics and counters must be put right after it.
        recorded: list[int] = []
        record = lanes.Lane.prepare

        def spy(lane: lanes.Lane, sizes: list[int]) -> None:
            recorded.extend(sizes)
            record(lane, sizes)

        monkeypatch.setattr(lanes.Lane, "prepare", spy)
        monkeypatch.setattr(graph, "WORTH", 2)
        both(tiny.network("resnet8"), (9, 5, 4), epochs=[3, 2, 1])
        assert sorted(recorded) == [4, 5, 5]  # [4, 5] thrice, [5] twice (a single image merges), [4] once

    def test_later_calls_use_the_session_with_their_own_data(self) -> None:
        architecture, plan = tiny.network("resnet8"), plans((4, 9), epochs=4)
        sgd, made = tiny.Sgd(lr=rates(8) / 10, momentum=0.9, weight_decay=0.01), []
        for seed in (0, 1):
            data, models = tiny.images(13, seed=seed, offset=seed), start(architecture, 2)
            found, expected = (
                tiny.train(k, architecture, models, data, data.labels, plan, sgd, precision="float64")
                for k in (graph, plain)
            )
            agree(found, expected)
            made.append(list(sessions._kept.values()))
        assert made[0] == made[1]
        assert len(made[0]) == 1

    def test_other_plans_of_about_the_same_size_share_a_session(self) -> None:
        architecture = tiny.network("mlp")
        for sizes, epochs in (((4, 9), 2), ((6, 7), 1), ((5, 8), 3)):
            both(architecture, sizes, epochs=epochs)
        assert len(sessions._kept) == 1

    def test_what_a_recording_depends_on_makes_a_new_session(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sessions, "SESSIONS", 9)
        architecture = tiny.network("resnet8")
        both(architecture, (4, 4), epochs=1)
        both(architecture, (4, 4), epochs=1, momentum=0.5)
        both(architecture, (4, 4), epochs=1, decay=0.2)
        both(architecture, (4, 4), epochs=1, loss_scale=2.0)
        both(architecture, (4, 4), epochs=1, proximal=Proximal(mu=0.1))
        both(architecture, (4, 4), epochs=1, corrected=True)
        with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
            both(architecture, (4, 4), epochs=1)
        assert len(sessions._kept) == 7

    def test_the_newest_sessions_are_kept(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sessions, "SESSIONS", 2)
        architecture, seen = tiny.network("mlp"), []
        for momentum in (0.1, 0.2, 0.1, 0.3, 0.1):
            both(architecture, (4, 4), epochs=1, momentum=momentum)
            seen.append(list(sessions._kept.values()))
        assert [len(kept) for kept in seen] == [1, 2, 2, 2, 2]
        assert seen[0][0] is seen[2][1] is seen[4][1]

    def test_an_error_half_way_leaves_no_session(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def stop(lane: lanes.Lane, count: int) -> None:
            raise KeyboardInterrupt

        architecture = tiny.network("mlp")
        with monkeypatch.context() as patch:
            patch.setattr(lanes.Lane, "collect", stop)
            with pytest.raises(KeyboardInterrupt):
                both(architecture, collect=True)
        assert not sessions._kept
        both(architecture, collect=True)

    def test_memory_that_runs_out_tells_how_many_fit(self, monkeypatch: pytest.MonkeyPatch) -> None:
        room: list[None] = []

        def prepare(lane: lanes.Lane, sizes: list[int]) -> None:
            if not room:
                raise torch.OutOfMemoryError("CUDA out of memory")
            room.pop()

        monkeypatch.setattr(lanes.Lane, "prepare", prepare)
        for lanes_that_fit, advice in ((0, "not even one fits"), (2, "chunk=2 fits")):
            room[:] = [None] * lanes_that_fit
            with pytest.raises(graph.StackMemoryError, match=advice):
                both(tiny.network("mlp"))

    def test_other_forms_give_way_to_memory(self, monkeypatch: pytest.MonkeyPatch) -> None:
        architecture, tries = tiny.network("mlp"), []
        both(architecture, momentum=0.5)
        prepare = lanes.Lane.prepare

        def full(lane: lanes.Lane, sizes: list[int]) -> None:
            tries.append(len(sessions._kept))
            if len(sessions._kept) == 2:
                raise torch.OutOfMemoryError("CUDA out of memory")
            prepare(lane, sizes)

        monkeypatch.setattr(lanes.Lane, "prepare", full)
        both(architecture)
        assert tries[:2] == [2, 1]
        assert len(sessions._kept) == 1

    def test_lanes_that_fit_are_counted_by_what_one_holds(self, monkeypatch: pytest.MonkeyPatch) -> None:
        class Fake:
            """A lane that takes ten bytes for each image of the steps it has recorded."""

            def __init__(self, *_: object) -> None:
                self.sizes: set[int] = set()

            def holds(self, sizes: list[int]) -> bool:
                return self.sizes >= set(sizes)

            def prepare(self, sizes: list[int]) -> None:
                self.sizes |= set(sizes)

        def free(device: torch.device) -> int:
            held = sum(sum(getattr(lane, "sizes", ())) for lane in session.lanes)
            return 1000 - 10 * held - (300 if other in set(sessions._kept) else 0)

        class Place:
            def __init__(self, device: torch.device) -> None:
                self.device = device

        other = Place(torch.device("cuda"))
        session = sessions.Session.__new__(sessions.Session)
        session.lanes, session._cost = [], 0
        session.ground = SimpleNamespace(form=Place(torch.device("cuda")))  # type: ignore[assignment]
        monkeypatch.setattr(sessions, "Lane", Fake)
        monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
        monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
        monkeypatch.setattr(sessions, "_free", free)
        monkeypatch.setattr(sessions, "streams", lambda device: (None,) * sessions.LANES)
        monkeypatch.setattr(sessions, "_kept", {session.ground.form: session, other: object()})
        assert session.fit(4, 5) == 1 + int(0.8 * (1000 - 40 - 300) / 40)
        assert len(sessions._kept) == 2  # there was room beside the other
        assert session.fit(8, 6) == 1 + int(0.8 * (1000 - 120) / 120)  # 4 beside it, so it had to go
        assert list(sessions._kept.values()) == [session]
        assert session.fit(8, 99) == 6  # no more fit, and the own session stays
        session.lanes.clear()
        assert session.fit(4, 5) == 1 + int(0.8 * (1000 - 40) / 40)  # a lane made anew is not counted twice

    def test_images_of_a_new_form_make_others_give_way(self, monkeypatch: pytest.MonkeyPatch) -> None:
        architecture, tries = tiny.network("mlp"), []
        both(architecture, momentum=0.5)

        class Full(sessions.Ground):
            def __init__(self, form: lanes.Form) -> None:
                tries.append(len(sessions._kept))
                if sessions._kept:
                    raise torch.OutOfMemoryError("CUDA out of memory")
                super().__init__(form)

        monkeypatch.setattr(sessions, "Ground", Full)
        both(architecture)
        assert tries == [1, 0]
        assert len(sessions._kept) == 1

    def test_longest_training_is_shared_out_first(self) -> None:
        assert share_out([1, 5, 2, 3], 2) == [[1, 0], [3, 2]]
        assert share_out([], 0) == []


class TestRecording:
    @pytest.mark.parametrize("name", ["mlp", "resnet8", "group", "convnet"])
    def test_steps_never_wait_for_the_device(self, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        recordings.watched(monkeypatch)
        both(tiny.network(name), (4, 5), epochs=1, pad=0 if name == "mlp" else 1)

    def test_the_watch_sees_what_it_should(self) -> None:
        with pytest.raises(AssertionError, match="_local_scalar_dense"), recordings.NoHost():
            torch.ones(1).item()
        with pytest.raises(AssertionError, match="mask"), recordings.NoHost():
            _ = torch.ones(2)[torch.ones(2) > 0]

    @pytest.mark.parametrize("name", ["mlp", "resnet8"])
    def test_a_fixed_list_of_operations_does_every_step(self, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        replays = recordings.replayed(monkeypatch)
        for seed in (0, 1):
            both(
                tiny.network(name),
                (4, 9, 3),
                epochs=[3, 2, 1],
                pad=0 if name == "mlp" else 1,
                targets="probabilities",
                seed=seed,
                collect=True,
                moving=True,
                chunk=2,
            )
        assert len(replays) == 2 * (3 + 4 + 1)
        assert len(sessions._kept) == 1

    def test_places(self) -> None:
        layout = Layout((("a", (3,)), ("conv", (2, 3, 2, 2)), ("b", (4, 5))), (), ())
        places = Places(layout, CPU)
        rows = torch.randn(2, 3 + 24 + 20, generator=tiny.seeded(0))
        spread = places.spread(rows)
        assert torch.equal(spread[:, places.position], rows)
        views = places.views(spread[1])
        for name, view in Layout.views(rows[1], layout.params):
            assert torch.equal(views[name], view)
            assert views[name].storage_offset() % 64 == 0
        assert views["conv"].is_contiguous(memory_format=torch.channels_last)
        assert views["conv"].untyped_storage().data_ptr() == spread.untyped_storage().data_ptr()


class TestPredict:
    @pytest.mark.parametrize("name", ["mlp", "resnet8", "group"])
    @pytest.mark.parametrize("batch_size", [3, 1000])
    def test_agrees_with_plain(self, name: str, batch_size: int) -> None:
        members = tiny.trained_clients(tiny.federation(name)).clients
        architecture = tiny.network(name)
        data = images_for(architecture, 7)
        found = graph.predict(architecture, members, data, precision="float64", batch_size=batch_size)
        close(found, plain.predict(architecture, members, data, precision="float64"))
        assert not found.requires_grad

    def test_recalibration_agrees_with_plain(self) -> None:
        architecture, data = tiny.network("resnet8"), tiny.images(10)
        members = tiny.trained_clients(tiny.federation("resnet8")).clients
        for size in (4, 250):
            found, expected = (
                k.recalibrate(architecture, members, data, precision="float64", batch_size=size)
                for k in (graph, plain)
            )
            close(found.buffers, expected.buffers)
            assert torch.equal(found.params, members.params)
            assert torch.equal(found.counters, expected.counters)
        assert len(graph.recalibrate(architecture, members.take(slice(0, 0)), data, precision="float64")) == 0

    def test_nothing_to_recalibrate(self) -> None:
        architecture = tiny.network("group")
        members = start(architecture, 2)
        assert tiny.same(graph.recalibrate(architecture, members, tiny.images(4), precision="float64"), members)


class TestSupports:
    def test_all_networks_of_the_kit(self) -> None:
        for name in ("mlp", "resnet8", "group", "convnet"):
            for device in (CPU, CUDA):
                assert graph.takes(tiny.network(name), device, "bfloat16") == ""

    @pytest.mark.parametrize(
        ("layer", "reason"),
        [
            (nn.Dropout(), "mlp draws random numbers"),
            (nn.BatchNorm2d(2, momentum=None), "BatchNorm2d with momentum None"),
        ],
    )
    def test_what_it_refuses(self, layer: nn.Module, reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
        architecture = Architecture("mlp", 7)
        body = nn.Sequential(nn.Unflatten(1, (1, 1, 2)), layer, nn.Flatten(), nn.Linear(2, 7))
        if isinstance(layer, nn.BatchNorm2d):
            body[0] = nn.Unflatten(1, (2, 1, 1))
        monkeypatch.setattr(Architecture, "make", lambda self: body)
        draws.cache_clear()
        graph._layers.cache_clear()
        assert reason in graph.takes(architecture, CUDA, "float32")
        draws.cache_clear()
        graph._layers.cache_clear()

    def test_precision_and_device(self) -> None:
        assert "precision must be one of" in graph.takes(tiny.network("mlp"), CPU, "float16")
        assert "not on meta" in graph.takes(tiny.network("mlp"), torch.device("meta"), "float32")
        data, architecture = tiny.points(4), tiny.network("mlp")
        with pytest.raises(ValueError, match=r"precision must be one of .*, got 'float16'"):
            graph.predict(architecture, start(architecture, 1), data, precision="float16")


class TestStacked:
    architecture = tiny.network("resnet8")

    def fused(self, monkeypatch: pytest.MonkeyPatch, reason: str | None) -> None:
        module = None if reason is None else SimpleNamespace(takes=lambda *_: reason)
        monkeypatch.setattr(stacked, "fused", lambda: module)

    @pytest.mark.parametrize(
        ("device", "reason", "engine"),
        [(CUDA, "", "fused"), (CUDA, "no BatchNorm", "graph"), (CUDA, None, "graph")],
    )
    def test_choice(
        self, device: torch.device, reason: str | None, engine: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.fused(monkeypatch, reason)
        choice = stacked.choose(self.architecture, device, "bfloat16")
        assert choice.engine == engine
        assert str(choice).startswith(f"{engine}: ")
        assert len(str(choice).splitlines()) == 1
        if engine == "graph":
            assert (reason or "Triton") in choice.why

    def test_what_no_kernel_takes_goes_to_plain_and_is_said_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.fused(monkeypatch, None)
        monkeypatch.setattr(graph, "takes", lambda *_: "Dropout draws random numbers at every step")
        stacked._say.cache_clear()
        with pytest.warns(RuntimeWarning, match="resnet8 trains slowly: .*not graph: Dropout"):
            assert stacked._engine(self.architecture, CUDA, "float32", tiny.images(4)) is plain
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert stacked._engine(self.architecture, CUDA, "float32", tiny.images(4)) is plain

    def test_on_the_cpu_the_choice_depends_on_cores_and_network(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for cores, name, engine, why in (
            (2, "resnet8", "threads", "members side by side on 2 cores; "),
            (1, "resnet8", "plain", "one model at a time: there is one core; "),
            (2, "mlp", "plain", "one model at a time: mlp is so small"),
        ):
            monkeypatch.setattr(torch, "get_num_threads", lambda cores=cores: cores)
            choice = stacked.choose(tiny.network(name), CPU, "float32")
            assert choice.engine == engine
            assert choice.why.startswith(why)
            assert "memory" in choice.why

    @pytest.mark.parametrize(
        ("step", "engine"),
        [
            (Step(rule=Sgd(proximal=Proximal(mu=0.1))), "fused"),
            (Step(rule=Sgd(proximal=Proximal(mu=0.1, form="fedbe_official"))), "graph"),
            (Step(rule=Sgd(clip=1.0)), "graph"),
            (Step(rule=Adam()), "graph"),
            (Step(rule=Sgd(), loss=Loss(terms=(Term(), Term()))), "graph"),
        ],
    )
    def test_what_is_not_fused_goes_to_the_graph(
        self, step: Step, engine: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        fused = pytest.importorskip("fedrepro.kernels.fused", reason="needs Triton")
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
        data = tiny.images(4)
        choice = stacked.choose(self.architecture, CUDA, "bfloat16", step, data)
        assert choice.engine == engine
        if engine == "graph":
            assert "not fused: it does not know" in choice.why or "2 terms" in choice.why
            models, plan = start(self.architecture, 1), plans((4,), epochs=1)
            with pytest.raises(ValueError, match=r"it does not know|2 terms"):
                fused.train(self.architecture, models, data, [data.labels] * 2, plan, step, rates(1))

    def test_on_one_core_it_is_plain_to_the_bit(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
        data, models = tiny.images(9), start(self.architecture, 2)
        plan, sgd = plans((4, 5)), tiny.Sgd(lr=rates(2), momentum=0.9, weight_decay=0.1)
        one, other = (
            tiny.train(k, self.architecture, models, data, data.labels, plan, sgd, precision="float64")
            for k in (stacked, plain)
        )
        assert tiny.same(one.stack, other.stack)
        logits = [k.predict(self.architecture, models, data, precision="float64") for k in (stacked, plain)]
        assert torch.equal(*logits)
        fresh = [k.recalibrate(self.architecture, models, data, precision="float64") for k in (stacked, plain)]
        assert tiny.same(*fresh)

    def test_federations_tell_their_engine(self) -> None:
        assert tiny.federation("mlp").kernel == "stacked"
        assert tiny.federation("mlp").choice.engine == "plain"
        assert str(tiny.federation("mlp", kernel="graph").choice) == "graph: asked for"

    def test_kernels_by_name(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in KERNELS:
            module: ModuleType = kernel(name)
            assert all(hasattr(module, f) for f in ("train", "predict", "recalibrate", "takes"))
        with pytest.raises(ValueError, match="'threads', 'graph', 'stacked', 'fused'"):
            kernel("graf")
        for name in ("fedrepro.kernels.fused", "triton"):
            monkeypatch.setitem(sys.modules, name, None)
        with pytest.raises(ValueError, match="kernel 'fused' needs Triton, which cannot be imported"):
            kernel("fused")
        assert stacked.fused() is None

    def test_the_fused_kernel_is_found(self) -> None:
        pytest.importorskip("triton")
        assert kernel("fused") is importlib.import_module("fedrepro.kernels.fused")
        assert stacked.fused() is kernel("fused")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
class TestGpu:
    architecture = tiny.network("resnet8")

    def go(
        self, module: ModuleType, data: Data, plan: BatchPlan, precision: str, targets: Tensor | None = None
    ) -> Trained:
        dtype = torch.float64 if precision == "float64" else torch.float32
        models, steps = start(self.architecture, len(plan.index), dtype).to("cuda"), plan.index.shape[1]
        return tiny.train(
            module,
            self.architecture,
            models,
            data,
            data.labels if targets is None else targets.to("cuda"),
            plan,
            tiny.Sgd(lr=rates(steps) / 10, momentum=0.9, weight_decay=0.01),
            precision=precision,
            collect=torch.arange(steps) % 4 == 1,
        )

    def test_two_rounds_with_other_data_and_targets(self) -> None:
        # 4, 5 and 3 images; sizes that occur often enough are recorded, the others run as they are.
        plan = plans((9, 8, 15, 3), epochs=8, pad=1)
        for seed in (0, 1):
            data = tiny.images(35, seed=seed, offset=seed).to("cuda")
            found, expected = (self.go(k, data, plan, "float64") for k in (graph, plain))
            agree(found, expected)
            targets = soft(35).roll(seed, 0)
            found, expected = (self.go(k, data, plan, "float64", targets) for k in (graph, plain))
            agree(found, expected)
        assert len(sessions._kept) == 2

    def test_another_stream_is_current(self) -> None:
        data, plan = tiny.images(12).to("cuda"), plans((8, 4), epochs=7)
        expected = self.go(plain, data, plan, "float64")
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            found = self.go(graph, data, plan, "float64")
        torch.cuda.current_stream().wait_stream(side)
        agree(found, expected)

    @pytest.mark.parametrize("name", ["mlp", "group", "convnet"])
    def test_other_networks(self, name: str) -> None:
        architecture = tiny.network(name)
        data = images_for(architecture, 12).to("cuda")
        plan, models = plans((8, 4), epochs=7, pad=0 if name == "mlp" else 1), start(architecture, 2).to("cuda")
        sgd = tiny.Sgd(lr=rates(14) / 10, momentum=0.9, weight_decay=0.01)
        found, expected = (
            tiny.train(k, architecture, models, data, data.labels, plan, sgd, precision="float64")
            for k in (graph, plain)
        )
        agree(found, expected)

    def test_bfloat16_is_close_to_plain(self) -> None:
        data, plan = tiny.images(24).to("cuda"), plans((8, 16), epochs=2, batch_size=8)
        found, expected = (self.go(k, data, plan, "bfloat16") for k in (graph, plain))
        assert found.stack.params.dtype == torch.float32
        close(found.stack.params, expected.stack.params, 2e-2)
        close(found.loss, expected.loss, 2e-2)

    def test_prediction_and_recalibration(self) -> None:
        data, models = tiny.images(30).to("cuda"), start(self.architecture, 5).to("cuda")
        logits = [
            k.predict(self.architecture, models, data, precision="float64", batch_size=8) for k in (graph, plain)
        ]
        close(logits[0], logits[1], 1e-9)
        fresh = [
            k.recalibrate(self.architecture, models, data, precision="float64", batch_size=8)
            for k in (graph, plain)
        ]
        close(fresh[0].buffers, fresh[1].buffers, 1e-9)
        assert torch.equal(fresh[0].counters, fresh[1].counters)

    def test_more_members_than_lanes(self) -> None:
        data, plan = tiny.images(36).to("cuda"), plans((8, 4, 12, 7, 5), epochs=7)
        expected = self.go(plain, data, plan, "float64")
        models, steps = start(self.architecture, 5).to("cuda"), plan.index.shape[1]
        sgd = tiny.Sgd(lr=rates(steps) / 10, momentum=0.9, weight_decay=0.01)
        found = tiny.train(
            graph, self.architecture, models, data, data.labels, plan, sgd, precision="float64", chunk=2
        )
        close(found.stack.params, expected.stack.params, 1e-9)
        close(found.stack.buffers, expected.stack.buffers, 1e-9)

    def test_host_and_device_never_wait_for_each_other(self) -> None:
        data, plan = tiny.images(8).to("cuda"), plans((4, 4), epochs=8)
        self.go(graph, data, plan, "float32")  # records
        step = lanes.Lane.step

        def watched(lane: lanes.Lane, size: int) -> None:
            torch.cuda.set_sync_debug_mode("error")
            try:
                step(lane, size)
            finally:
                torch.cuda.set_sync_debug_mode("default")

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(lanes.Lane, "step", watched)
            patch.setattr(graph, "WORTH", 10**9)
            self.go(graph, data, plan, "float32")
            sessions.forget()
            self.go(graph, data, plan, "float32")  # nothing recorded: eager steps
