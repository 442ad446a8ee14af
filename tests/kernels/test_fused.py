"""The fused kernel: its layout by hand, its arithmetic under Triton's interpreter in float64, and on a GPU."""

import json
import os
import subprocess
import sys
from collections import OrderedDict
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch

from fedrepro import models
from fedrepro.core.stack import Stack, concatenate
from fedrepro.kernels import plain, stacked
from fedrepro.kernels.batches import Augment, batch_plan
from fedrepro.kernels.graph import graph
from fedrepro.kernels.graph.sessions import StackMemoryError
from fedrepro.kernels.registry import kernel
from fedrepro.kernels.trained import Carried
from fedrepro.models.architecture import Architecture

pytest.importorskip("triton", reason="the fused kernel needs Triton")

from fedrepro.kernels import fused
from fedrepro.kernels.fused import kept
from fedrepro.kernels.fused.plan import ALIGN, Tile, bytes_of_an_image, network, why_not


class TestNetwork:
    def test_every_parameter_has_one_place_and_comes_back(self) -> None:
        net, architecture = network(Architecture("resnet20", 10)), Architecture("resnet20", 10)
        count = models.parameter_count(architecture.make())
        values = torch.arange(count + 1, dtype=torch.float64)
        packed = values[net.pack]
        assert torch.equal(packed[net.unpack], values[:count])
        assert int((net.pack == count).sum()) == net.size - count  # the gaps

    def test_convolutions_lie_as_tap_in_out_and_the_linear_layer_as_channel_class(self) -> None:
        net, start = network(Architecture("resnet8", 10)), Architecture("resnet8", 10).start(0)
        packed = torch.cat([start.params, torch.zeros(1, 1)], 1)[0, net.pack]
        weights = {name: view[0] for name, view in start.named_params().items()}
        one = net.blocks[1][0]
        place = one.offset + ((2 * 3 + 1) * 16 + 5) * 32 + 9  # row 2, column 1; channel 5 to channel 9
        assert packed[place] == weights["blocks.1.conv1.weight"][9, 5, 2, 1]
        assert packed[net.weight + 7 * 10 + 3] == weights["output.weight"][3, 7]
        assert packed[net.bias + 4] == weights["output.bias"][4]
        assert packed[one.norm.gamma + 2] == weights["blocks.1.norm1.weight"][2]

    def test_everything_begins_at_a_multiple_of_sixteen(self) -> None:
        net = network(Architecture("resnet20", 10))
        convs = [net.stem, *(conv for block in net.blocks for conv in block)]
        offsets = [x for c in convs for x in (c.offset, c.norm.gamma, c.norm.beta, c.norm.q)]
        assert {offset % ALIGN for offset in [*offsets, net.weight, net.bias]} == {0}

    def test_norms_know_their_statistics_and_their_pixels(self) -> None:
        net, start = network(Architecture("resnet8", 10)), Architecture("resnet8", 10).start(0)
        start.buffers.copy_(torch.arange(start.buffers.shape[1], dtype=torch.float32)[None])
        stats = start.buffers[0, net.buffers].view(2, -1)
        norm = net.blocks[2][1].norm
        views = start.named_buffers()
        assert torch.equal(stats[0, norm.q : norm.q + 64], views["blocks.2.norm2.running_mean"][0])
        assert torch.equal(stats[1, norm.q : norm.q + 64], views["blocks.2.norm2.running_var"][0])
        assert [n.shrink for n in net.norms] == [1, 1, 1, 2, 2, 4, 4]

    def test_weight_decay_spares_norms_and_biases(self) -> None:
        net = network(Architecture("resnet8", 10))
        assert bool((net.decays[net.stem.offset : net.stem.offset + 432] == 1).all())
        norm = net.stem.norm
        assert bool((net.decays[norm.gamma : norm.gamma + 16] == 0).all())
        assert bool((net.decays[net.bias : net.bias + 10] == 0).all())

    @pytest.mark.parametrize(
        ("architecture", "reason"),
        [
            (Architecture("convnet", 10), "only ResNets"),
            (Architecture("resnet8", 10, (("groups", 2), ("norm", "group"))), "only BatchNorm"),
            (Architecture("resnet8", 10, (("shortcut", "B"),)), "only option-A"),
            (Architecture("resnet8", 10, (("shortcut", "where_shapes_change"),)), "only option-A"),
        ],
    )
    def test_other_networks_are_refused_with_the_reason(self, architecture: Architecture, reason: str) -> None:
        assert reason in why_not(architecture)
        assert reason in fused.takes(architecture, torch.device("cuda"), "bfloat16")
        with pytest.raises(ValueError, match=reason):
            network(architecture)

    def test_the_cpu_and_float64_are_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("TRITON_INTERPRET", raising=False)
        architecture = Architecture("resnet8", 10)
        assert why_not(architecture) == ""
        assert fused.takes(architecture, torch.device("cpu"), "float32") == "needs a CUDA device"
        assert "float64" in fused.takes(architecture, torch.device("cuda"), "float64")
        assert fused.takes(architecture, torch.device("cuda"), "bfloat16") == ""


def test_tiles_shrink_until_all_processors_have_work() -> None:
    tile = Tile(256)
    assert tile.fitted(40 * 1024, 10).pixels == 256  # 1,600 programs
    assert tile.fitted(128 * 64, 1).pixels == 64  # 32 programs of 256 pixels, 128 of 64
    assert tile.fitted(100 * 256, 1).pixels == 128  # 100 programs, then 200


def test_wide_values_are_not_pipelined() -> None:
    assert Tile(256, stages=3).narrowed(2).stages == 3
    assert Tile(256, stages=3).narrowed(4).stages == 1


class TestImages:
    def test_images_that_do_not_halve_twice_go_to_another_kernel(self, monkeypatch: pytest.MonkeyPatch) -> None:
        even, odd = tiny.images(2, height=8, width=12), tiny.images(2, height=10, width=8)
        cuda, architecture = torch.device("cuda"), Architecture("resnet8", 3)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
        sideways = replace(even, images=even.images.transpose(1, 2))
        assert fused.takes(architecture, cuda, "bfloat16", None, even) == ""
        for other in (odd, tiny.points(3), sideways):
            assert "multiples of 4" in fused.takes(architecture, cuda, "bfloat16", None, other)
        assert stacked._engine(architecture, cuda, "bfloat16", even) is fused
        assert stacked._engine(architecture, cuda, "bfloat16", odd) is graph

    def test_a_session_refuses_them(self) -> None:
        architecture = Architecture("resnet8", 3)
        with pytest.raises(ValueError, match="multiples of 4 pixels, got 10 x 8"):
            fused.predict(architecture, architecture.start(0), tiny.images(2, height=10, width=8))


class TestMemory:
    def test_a_second_try_has_the_memory_of_the_first(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(kept, "sessions", OrderedDict({("old",): object()}))
        tries: list[int] = []

        def make() -> str:
            tries.append(len(kept.sessions))
            if len(tries) == 1:
                raise torch.OutOfMemoryError("full")
            return "made"

        assert kept.make_room(make) == "made"
        assert tries == [1, 0]

    def test_an_image_takes_its_outputs_their_gradients_and_the_residual_stream(self) -> None:
        net = network(Architecture("resnet8", 10))
        values = 3 * 16 * 32 * 32 + 2 * 32 * 16 * 16 + 2 * 64 * 8 * 8  # stem, then three blocks of two
        assert bytes_of_an_image(net, 32, 32, 2) == 4 * values * 2

    def test_members_that_do_not_fit_are_trained_in_turns(self, monkeypatch: pytest.MonkeyPatch) -> None:
        architecture, data = Architecture("resnet8", 3), tiny.images(10)
        start = concatenate([architecture.start(seed) for seed in range(5)])
        plan = batch_plan(
            [torch.arange(member + 1, member + 5) for member in range(5)],
            [tiny.seeded(seed) for seed in range(5)],
            epochs=[1] * 5,
            batch_size=2,
            augment=Augment(pad=1, flip=True),
        )
        velocity = torch.rand(start.params.shape)
        seen: list[int] = []

        def fake(
            net: Any, start: Any, data: Any, targets: Any, plan: Any, step: Any, rates: Any, *rest: Any
        ) -> tuple[Stack, Carried]:
            seen.append(len(start))
            assert len(plan.index) == len(plan.mask) == len(plan.shift) == len(plan.flip) == len(start)
            assert torch.equal(plan.mask.any(2), torch.ones(len(start), 2).bool())
            return start, replace(rest[2], total=plan.index[:, 0, 0].float())

        monkeypatch.setattr(fused, "_train", fake)
        monkeypatch.setattr(fused, "_width", lambda *_: 2)
        sgd = tiny.Sgd(lr=torch.tensor([0.1, 0.1], dtype=torch.float64), momentum=0.9, weight_decay=0.0)
        done = tiny.train(fused, architecture, start, data, data.labels, plan, sgd, velocity=velocity)
        assert seen == [2, 2, 1]
        assert tiny.same(done.stack, start)
        assert torch.equal(tiny.velocity(done), velocity)
        assert torch.equal(done.loss, plan.index[:, 0, 0].float())
        start.params[3, 0] = float("nan")
        broken = tiny.train(fused, architecture, start, data, data.labels, plan, sgd)
        assert broken.finite.tolist() == [True, True, True, False, True]
        monkeypatch.setattr(fused, "_width", lambda *_: 0)
        with pytest.raises(StackMemoryError, match="no memory to train one resnet8 on batches of 2 images"):
            tiny.train(fused, architecture, start, data, data.labels, plan, sgd)


def test_kernels_compile_for_an_h100_on_any_machine(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "fedrepro.kernels.fused.tune", "--compile", "11/60"],
        env={k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"} | {"TRITON_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert len(list(tmp_path.rglob("*.cubin"))) >= 2


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    """Distances of the fused kernel from the plain one in float64, found by a program of its own."""
    here = Path(__file__).parent
    paths = os.pathsep.join([str(here), str(here.parent), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(here / "fused_cases.py")],
        env=os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    cases: dict[str, Any] = json.loads(done.stdout)
    return cases


class TestArithmetic:
    @pytest.mark.parametrize("what", ["stack", "average"])
    def test_training_agrees_with_the_plain_kernel(self, found: dict[str, Any], what: str) -> None:
        assert found["moved"] > 0.01
        assert max(found[what].values()) < 1e-9

    @pytest.mark.parametrize("what", ["velocity", "loss", "predict"])
    def test_momentum_loss_and_predictions_agree(self, found: dict[str, Any], what: str) -> None:
        assert found[what] < 1e-9

    def test_recalibration_agrees(self, found: dict[str, Any]) -> None:
        assert found["recalibrate"]["params"] == 0
        assert found["recalibrate"]["buffers"] < 1e-9

    def test_broken_models_show(self, found: dict[str, Any]) -> None:
        assert found["nan"] == [False, True]
        assert found["recalibrated"]

    def test_no_images_give_no_predictions(self, found: dict[str, Any]) -> None:
        assert found["nothing"] == [2, 0, 3]

    def test_divergence_is_seen(self, found: dict[str, Any]) -> None:
        assert found["finite"] == [False, False]

    def test_in_two_parts_it_is_the_same_training(self, found: dict[str, Any]) -> None:
        assert max(found["parts"].values()) < 1e-9


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
class TestGpu:
    @pytest.mark.parametrize("precision", ["float32", "bfloat16"])
    def test_it_rounds_no_worse_than_the_plain_kernel(self, precision: str) -> None:
        architecture = Architecture("resnet20", 10)
        data = tiny.images(200, classes=10, height=32, width=32).to("cuda")
        start = concatenate([architecture.start(seed) for seed in range(3)]).to("cuda")
        plan = batch_plan(
            [torch.arange(80), torch.arange(80, 110), torch.arange(110, 200)],
            [tiny.seeded(seed) for seed in range(3)],
            epochs=[1, 2, 1],
            batch_size=40,
            augment=Augment(pad=2, flip=True),
        )
        rates = torch.full((plan.index.shape[1],), 0.01, dtype=torch.float64)
        sgd = tiny.Sgd(lr=rates, momentum=0.9, weight_decay=1e-3)
        exact = start.to(dtype=torch.float64)
        truth = tiny.train(plain, architecture, exact, data, data.labels, plan, sgd, precision="float64")
        change = truth.stack.params - exact.params
        far: dict[str, float] = {}
        for name in ("plain", "fused"):
            for _ in range(2):  # the second call replays what the first one recorded
                done = tiny.train(
                    kernel(name), architecture, start, data, data.labels, plan, sgd, precision=precision
                )
                assert torch.equal(done.stack.counters, truth.stack.counters)
                error = done.stack.params.double() - truth.stack.params
                far[name] = max(float(error.norm() / change.norm()), far.get(name, 0.0))
        assert far["fused"] < 2 * far["plain"] + 1e-5

    def test_predictions_and_statistics(self) -> None:
        architecture = Architecture("resnet8", 10)
        data = tiny.images(70, classes=10, height=32, width=32).to("cuda")
        models = concatenate([architecture.start(seed) for seed in range(3)]).to("cuda")
        ours, theirs = (
            kernel(name).predict(architecture, models, data, precision="float32", batch_size=30)
            for name in ("fused", "plain")
        )
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
        fresh, expected = (
            kernel(name).recalibrate(architecture, models, data, precision="float32", batch_size=30)
            for name in ("fused", "plain")
        )
        torch.testing.assert_close(fresh.buffers, expected.buffers, rtol=1e-4, atol=1e-4)
        assert torch.equal(fresh.counters, expected.counters)
