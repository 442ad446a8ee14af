"""The benchmark: numbers that add up, honest exit statuses, engines that fail without taking others along."""

import csv
import json
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from fedrepro.bench import command as bench
from fedrepro.bench import report as bench_report
from fedrepro.bench import session
from fedrepro.bench.engine import Bench
from fedrepro.bench.profile import covered, kind
from fedrepro.bench.report import COLUMNS
from fedrepro.bench.roofline import Floor, Roofline, floor
from fedrepro.bench.timing import LeftOutError, Series, Sizes, Work, precision_of, rate, repeated
from fedrepro.cli import main
from fedrepro.kernels import plain
from fedrepro.kernels import registry as kernels
from fedrepro.models.architecture import Architecture

SMALL = ["bench", "--device", "cpu", "--model", "mlp", "--clients", "2", "--images", "16", "--batch", "8"]
SMALL += ["--precision", "float32", "--engine", "plain"]
KEYS = ["engine", "device", "train_images_per_s", "predict_images_per_s", "distill_images_per_s", "peak_fraction"]


def sizes(**changes: Any) -> Sizes:
    values: dict[str, Any] = {
        "device": "cpu",
        "model": "convnet",
        "precision": "float32",
        "clients": 2,
        "images": 16,
        "batch": 8,
    }
    return Sizes(**(values | {"epochs": 1, "public": 8, "teachers": 2} | changes))


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measure a roofline in no time."""
    monkeypatch.setattr(bench, "measure", lambda *_, **__: Roofline(1e11, 8, 2e11, 1e10))


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch, quick: None) -> ModuleType:
    """Return an engine that predicts, but cannot train."""

    def train(*_: Any, **__: Any) -> Any:
        raise RuntimeError("no such step\nand more lines")

    own = {name: getattr(plain, name) for name in ("takes", "predict", "recalibrate")}
    module: Any = SimpleNamespace(train=train, **own)
    monkeypatch.setitem(kernels.KERNELS, "broken", module)
    return module


def read(capsys: pytest.CaptureFixture[str]) -> tuple[Any, str]:
    said = capsys.readouterr()
    return json.loads(said.out), said.err


def test_one_json_object_and_a_csv(capsys: pytest.CaptureFixture[str], tmp_path: Path, quick: None) -> None:
    for _ in range(2):
        assert main([*SMALL, "--budget", "30s", "--json", "--out", str(tmp_path)]) == 0
    answer = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert all(answer[key] is not None for key in KEYS)
    assert answer["engine"] == "plain"
    assert answer["device"].startswith("cpu: ")
    own = answer["engines"]["plain"]["train_images_per_s"]
    assert own["min"] <= own["value"] == answer["train_images_per_s"] <= own["max"]
    assert answer["peak_fraction"] == pytest.approx(own["value"] * answer["floor"]["train_flops"] / 1e11)
    assert answer["max_difference_float64"] == 0
    assert 0 < answer["max_difference"] < 1e-4 < answer["largest_change"]
    assert json.loads((tmp_path / "bench.json").read_text()) == answer
    with (tmp_path / "throughput.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert tuple(rows[0]) == COLUMNS
    trained = [row for row in rows if row["metric"] == "train_images_per_s"]
    assert len(trained) == 2  # lines are added
    assert float(trained[1]["value"]) == answer["train_images_per_s"]
    assert {row["device"] for row in rows} == {answer["device"]}


def test_lines_of_processes_side_by_side_are_all_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While one process holds the lock another waits, and adds to what the first has written."""
    monkeypatch.setattr(bench_report, "rows", lambda facts: iter([facts]))
    names = ("device", "precision", "model")
    monkeypatch.setattr(bench_report, "COLUMNS", (*names, "metric", "value"))
    folder = tmp_path / "out"
    with ThreadPoolExecutor(8) as pool:
        list(
            pool.map(
                lambda k: bench_report.write(folder, dict.fromkeys(names, "x") | {"metric": "m", "value": k}),
                range(24),
            )
        )
    with (folder / "throughput.csv").open() as file:
        assert sorted(int(row["value"]) for row in csv.DictReader(file)) == list(range(24))
    content = (folder / "throughput.csv").read_bytes()
    (folder / "throughput.csv").write_bytes(content[:-3])
    with pytest.raises(ValueError, match=r"throughput\.csv, line 25: "):  # and nothing is added to it
        bench_report.write(folder, {"metric": "m", "value": 1})
    assert (folder / "throughput.csv").read_bytes() == content[:-3]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        *[("aten::mkldnn_convolution", "products"), ("aten::convolution_backward", "products")],
        *[("aten::addmm", "products"), ("aten::mm", "products"), ("aten::mul", "others")],
        *[("aten::native_batch_norm_backward", "norms"), ("aten::native_group_norm", "norms")],
        *[("aten::clamp_min", "activations"), ("aten::threshold_backward", "activations")],
        *[("sm90_xmma_fprop_implicit_gemm_bf16", "products"), ("_conv_grad", "products")],
        *[("nvjet_sm90_tst_128x64", "products"), ("cudnn::winograd_nonfused::winogradForwardData", "products")],
        *[("launch_clamp_scalar", "activations"), ("cudnn::ops::convertTensor_kernel", "others")],
        *[("cudnn::bn_fw_tr_1C11_kernel_NHWC", "norms"), ("_norm_back", "norms"), ("_update", "others")],
    ],
)
def test_kinds_of_operations(name: str, expected: str) -> None:
    assert kind(name) == expected


def test_a_profile_adds_up_to_the_step() -> None:
    threads = torch.get_num_threads()
    found = Bench(sizes(model="resnet8"), "plain").profile(2)
    assert torch.get_num_threads() == threads
    parts = {name: found[f"{name}_s"] for name in ("products", "norms", "activations", "others", "idle")}
    assert all(parts[name] > 0 for name in ("products", "norms", "activations", "others"))
    assert parts["idle"] > 0  # Python's own time; operators cannot take longer than the step
    assert sum(parts.values()) == pytest.approx(found["step_s"])
    # 9 convolutions, 9 norms and a linear layer forward, as many backward, each at least one operator.
    assert found["calls"] > 2 * 19


def test_kernels_side_by_side_are_covered_once() -> None:
    assert covered([(4.0, 6.0), (0.0, 2.0), (1.0, 3.0), (1.0, 1.5), (6.0, 7.0)]) == 6.0
    assert covered([]) == 0.0


def test_a_profile_is_printed_and_written(capsys: pytest.CaptureFixture[str], tmp_path: Path, quick: None) -> None:
    assert main([*SMALL, "--profile", "--budget", "30s", "--out", str(tmp_path)]) == 0
    assert "a step of one client on one core" in capsys.readouterr().out
    with (tmp_path / "throughput.csv").open() as file:
        found = {row["metric"]: row for row in csv.DictReader(file) if row["metric"].startswith("profile_")}
    assert {"profile_products_s", "profile_step_s", "profile_idle_s", "profile_calls"} <= set(found)
    assert {row["clients"] for row in found.values()} == {"1"}  # not the two that the other lines are of


def test_a_table_for_people(capsys: pytest.CaptureFixture[str], quick: None) -> None:
    assert main([*SMALL, "--budget", "30s"]) == 0
    out = capsys.readouterr().out
    assert all(word in out for word in ("images/s", "TFLOP/s", "GB/s", "MiB", "differs from the plain float64"))


def test_an_engine_that_fails_is_named_and_the_rest_measured(
    capsys: pytest.CaptureFixture[str], broken: ModuleType
) -> None:
    assert main([*SMALL, "--model", "convnet", "--engine", "broken", "--budget", "30s", "--json"]) == 1
    answer, err = read(capsys)
    assert answer["engine"] == "broken"
    assert answer["train_images_per_s"] is None
    assert answer["predict_images_per_s"] > 0
    assert "broken train: RuntimeError: no such step" in answer["failed"]
    assert "broken train: RuntimeError: no such step\n" in err


def test_what_a_budget_leaves_out_is_told_and_no_failure(
    capsys: pytest.CaptureFixture[str], quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_time(*_: Any) -> Work:
        raise LeftOutError("repeats of 9 s do not fit into 1 s")

    monkeypatch.setattr(Bench, "predict", no_time)
    assert main([*SMALL, "--budget", "30s", "--json"]) == 0
    answer, err = read(capsys)
    assert answer["left_out"] == ["plain predict left out: repeats of 9 s do not fit into 1 s"]
    assert answer["left_out"][0] in err
    assert answer["predict_images_per_s"] is None
    monkeypatch.setattr(Bench, "train", no_time)
    assert main([*SMALL, "--budget", "30s", "--json"]) == 1  # then nothing is known of the engine


def test_an_unknown_engine_is_not_everything_asked_for(capsys: pytest.CaptureFixture[str], quick: None) -> None:
    assert main([*SMALL, "--engine", "plaim,plain", "--budget", "30s", "--json"]) == 1
    answer, _ = read(capsys)
    assert "plaim" in answer["skipped"]
    assert answer["engine"] == "plain"
    assert answer["train_images_per_s"] > 0


def test_several_engines_are_put_together(
    capsys: pytest.CaptureFixture[str], quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = "threads" if torch.get_num_threads() > 1 else "plain"  # the automatic choice on a CPU

    def alone(engine: str, *_: Any, lead: bool, **__: Any) -> dict[str, Any]:
        assert lead == (engine == chosen)
        series = {"value": 10.0 if lead else 30.0, "first_call_s": 1.0, "warm_up_s": 0.0}
        found = {engine: {"train_images_per_s": series}} if engine != "stacked" else {}
        failed = [f"{engine}: crashed"] if engine == "stacked" else []
        return {"engines": found, "failed": failed, "left_out": [], "notes": []}

    monkeypatch.setattr(bench, "alone", alone)
    assert main([*SMALL, "--engine", f"{chosen},graph,stacked", "--json"]) == 1
    answer, _ = read(capsys)
    assert answer["engine"] == bench.choice(sizes()).engine == chosen
    assert [len(found) for found in answer["engines"].values()] == [1, 1, 0]
    assert answer["failed"] == ["stacked: crashed"]


def test_a_process_of_its_own() -> None:
    options = SimpleNamespace(scan=None, profile=False)
    answer = session.alone("nobody", sizes(), options, 0.0, lead=False)  # type: ignore[arg-type]
    assert answer["engines"] == {}
    assert answer["failed"][0].startswith("nobody: kernel must be one of")


def test_engines_in_processes_of_their_own(capsys: pytest.CaptureFixture[str], quick: None) -> None:
    assert main([*SMALL, "--engine", "plain,stacked", "--budget", "40s", "--json"]) == 0
    answer, err = read(capsys)
    assert "Traceback" not in err
    assert all(answer["engines"][name]["train_images_per_s"]["value"] > 0 for name in ("plain", "stacked"))


def test_a_process_that_dies_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    done = subprocess.CompletedProcess([], -11, stdout="")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: done)
    options = SimpleNamespace(scan=None, profile=False)
    answer = session.alone("graph", sizes(), options, 0.0, lead=True)  # type: ignore[arg-type]
    assert answer["failed"] == ["graph: its process ended with status -11"]
    assert answer["engines"] == {}


@pytest.mark.parametrize("text", ["--scan width", "--budget 5", "--clients 0", "--device tpu"])
def test_a_wrong_call_is_explained(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["bench", *text.split()])
    assert end.value.code == 2
    assert not capsys.readouterr().out


def test_an_unknown_model_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--model", "resnet21"]) == 2
    assert capsys.readouterr().err == "fedrepro: unknown model 'resnet21' (did you mean 'resnet20'?)\n"


def test_all_takes_every_engine_that_can_run_here() -> None:
    engines, skipped = bench.engines_of("all", sizes())
    assert engines[0] == bench.choice(sizes()).engine
    assert "plain" in engines
    assert not set(engines) & set(skipped)


def test_default_engines() -> None:
    lead = bench.choice(sizes()).engine
    assert bench.engines_of("", sizes())[0] == list(dict.fromkeys([lead, "plain"]))


def counted(name: str, **changes: Any) -> Floor:
    case = sizes(model=name, **changes)
    world = Bench(case, "plain").world(1, 2, 2)
    return floor(Architecture(name, 10), world)


def test_operations_and_bytes_of_known_networks() -> None:
    net = counted("convnet")
    # 3x3 convolutions 3-32 on 30x30, 32-64 on 13x13, 64-64 on 4x4 outputs; linear 1024-64 and 64-10.
    terms = [(30 * 30 * 32, 27), (13 * 13 * 64, 288), (4 * 4 * 64, 576), (64, 1024), (10, 64)]
    assert net.predict_flops == sum(2 * outputs * k for outputs, k in terms)
    assert net.train_flops == 3 * net.predict_flops - 2 * 30 * 30 * 32 * 27  # no gradient of the image
    values = sum(outputs for outputs, _ in terms)
    assert net.predict_bytes == 2 * values * 4 + 3072
    assert net.train_bytes == 6 * values * 4 + 3072
    half = counted("convnet", precision="bfloat16")
    assert half.train_bytes - 3072 == (net.train_bytes - 3072) // 2
    assert counted("resnet20").predict_flops == pytest.approx(81.1e6, rel=0.002)
    assert counted("mlp").predict_flops == 2 * (2 * 32 + 32 * 10)


def test_a_rate_adapts_to_the_first_timing() -> None:
    steps: list[int] = []

    def call(count: int) -> Any:
        steps.append(count)
        return lambda: torch.zeros(1)

    series = rate(Work(7, 5, call), seconds=10.0, left=10.0, repeats=3, device="cpu")
    assert steps == [1, 1, 5, 5, 5]
    assert (series.images, series.repeats) == (35, 3)
    with pytest.raises(LeftOutError, match="do not fit"):
        rate(Work(7, 5, call), seconds=0.0, left=0.0, repeats=3, device="cpu")


def test_whole_calls_are_repeated_while_they_fit() -> None:
    made: list[int] = []

    def prepare() -> Any:
        made.append(len(made))
        return lambda: None

    assert len(repeated(prepare, repeats=3, left=10.0, device="cpu")) == 4  # the first one warms up
    assert len(repeated(prepare, repeats=3, left=0.0, device="cpu")) == 2  # there is a median in any case
    assert made == list(range(6))


def test_a_series_is_median_and_spread() -> None:
    assert Series.of([3.0, 1.0, 2.0], 5, 0.5) == Series(2.0, 1.0, 3.0, 3, 5, 0.5)


def test_precision_of_the_cpu() -> None:
    assert precision_of("cpu") in ("float32", "bfloat16")
