"""What runs cost, worked out by hand, and the rates that turn images into seconds."""

import json
import math
from pathlib import Path

import pytest

from fedrepro import papers
from fedrepro.bench.cost import Images, images, total
from fedrepro.bench.rates import Known, Rates, recorded, seconds
from fedrepro.core.setting import Setting

FEDBE = papers.load("fedbe")


def cell(*labels: str, item: str = "table1_methods", scale: str = "paper") -> Setting:
    (found,) = FEDBE.cells(item, scale, only=labels)
    return found.setting


def test_table_1_by_hand() -> None:
    # Ten clients of 2 x 1960 + 8 x 10 = 4000 images, 40 rounds of 20 epochs: 40 x 40,000 x 20 = 32 M.
    # Distillation: 40 x 20 x 10,000 = 8 M. FedBE's teachers: 10 clients, their average, 10 samples = 21.
    fedavg, fedbe = cell("Step", "ConvNet", "FedAvg"), cell("Step", "ConvNet", "FedBE")
    assert images(fedavg) == Images(32e6, 0, 40 * 10_000)
    assert images(fedbe) == Images(32e6, 8e6, 40 * (21 * 10_000 + 2 * 10_000) + 21 * 10_000)
    assert images(fedbe).trained == 40e6
    assert images(cell("Step", "ConvNet", "v-Distillation")).predicted == 40 * (10 + 2) * 10_000 + 10 * 10_000
    one = images(cell("Step", "ConvNet", "1-Ensemble"))  # one round of 200 epochs, of which all clients predict
    assert one == Images(40_000 * 200, 0, 10_000 + 10 * 10_000)
    assert total([fedavg, fedbe]) == Images(64e6, 8e6, 9_810_000)


def test_what_is_counted_of_other_methods() -> None:
    base = cell("Step", "ConvNet", "FedBE")
    # True labels: nobody teaches, the student and the average are looked at.
    assert images(base.with_(method="fedbe_ground_truth")) == Images(32e6, 8e6, 40 * 2 * 10_000)
    assert images(base.with_(participation=0.5)).clients == 16e6
    assert images(base.with_(participation=0.5)).predicted == 40 * (16 + 2) * 10_000 + 16 * 10_000
    assert images(base.with_(uneven_epochs=True)).clients == 32e6 * 10.5 / 20
    assert images(base.with_(samples=0, test_images=100)).predicted == 40 * (11 * 10_000 + 200) + 11 * 100
    iid = base.with_(partition="iid", client_images=500)
    assert images(iid).clients == 40 * 500 * 20
    assert images(iid.with_(client_images=0)).clients == 40 * 40_000 * 20  # 50,000 less the server's 10,000
    public = base.with_(public_data="cifar100", public_classes=50, public_fraction=0.1)
    assert images(public).students == 40 * 20 * 2500
    # A round of centralised training is an epoch, whatever the clients' number of epochs.
    central = base.with_(method="centralized", partition="central", clients=1, public_images=0)
    assert images(central) == Images(40 * 50_000, 0, 40 * 10_000)
    toy = (
        cell(item="figure1_simplex", scale="paper") if len(FEDBE.cells("figure1_simplex", "paper")) == 1 else None
    )
    if toy is not None:
        assert images(toy).clients == toy.rounds * 300 * toy.clients * toy.local_epochs


def test_seconds_are_images_over_rates() -> None:
    rates: Known = {"train": 100.0, "predict": 1000.0, "distill": 50.0}
    assert seconds(Images(200, 100, 3000), [rates]) == 2 + 3 + 2
    assert seconds(Images(200, 0, 0), [rates, rates | {"train": 50.0}]) == 1 + 2  # half of the images each
    assert math.isnan(seconds(Images(1, 1, 0), [{"train": 1.0}]))
    assert seconds(Images(1, 0, 0), [{"train": 1.0}]) == 1  # what is not needed need not be known


def test_rates_are_measured_once_for_a_machine(tmp_path: Path) -> None:
    path, asked = tmp_path / "rates.json", list[tuple[str, str, str]]()

    def measure(device: str, model: str, precision: str) -> Known:
        asked.append((device, model, precision))
        if model == "broken":
            raise RuntimeError("no such kernel")
        return {"train": 100.0, "predict": 200.0, "distill": 50.0}

    for _ in range(2):
        rates = Rates.here("cpu", path)
        rates.measure = measure
        assert rates.of("convnet", "float32")["train"] == 100
        assert rates.of("convnet", "bfloat16")["distill"] == 50
    assert asked == [("cpu", "convnet", "float32"), ("cpu", "convnet", "bfloat16")]
    assert all(math.isnan(rate) for rate in rates.of("broken", "float32").values())
    setting = cell("Step", "ConvNet", "FedAvg")
    assert rates.seconds(setting) == 32e6 / 100 + 4e5 / 200
    assert rates.seconds(setting.with_(model="broken")) == math.inf
    kept = json.loads(path.read_text())
    for change in ({"threads": 99}, {"torch": "1.0"}, {"device": "cpu: another"}):
        path.write_text(json.dumps(kept | {"machine": kept["machine"] | change}))
        assert Rates.here("cpu", path).known == {}  # measured anew
    for text in ("<<<<<<<", "[]", "{}", '{"machine": 1}', json.dumps(kept | {"rates": {"a": 1}})):
        path.write_text(text)
        assert Rates.here("cpu", path).known == {}


def test_recorded_devices(tmp_path: Path) -> None:
    lines = ["device,model,precision,metric,value", "a,convnet,float32,train_images_per_s,5"]
    lines += ["a,convnet,float32,train_images_per_s,7", "a,convnet,float32,kernel_us,99"]
    lines += ["a,convnet,bfloat16,predict_images_per_s,9"]
    (tmp_path / "throughput.csv").write_text("\n".join(lines) + "\n")
    assert recorded(tmp_path / "throughput.csv") == {
        "a, float32": {"convnet": {"train": 7.0}},
        "a, bfloat16": {"convnet": {"predict": 9.0}},
    }
    assert recorded(tmp_path / "none.csv") == {}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,b\n<<<<<<< HEAD\n", "line 2: a conflict marker of git: '<<<<<<< HEAD'"),
        ("device,model,value\na,b,1\n", "line 1: no column precision, metric"),
        ("device,device,model,precision,metric,value\n", "line 1: a column twice"),
        ("device,model,precision,metric,value\na,convnet,float32,train_images_per_s,5", "line 2: cut off"),
        (
            "device,model,precision,metric,value\na,convnet,float32,train_images_per_s,5x\n",
            "line 2: value must be a finite number",
        ),
        (
            "device,model,precision,metric,value\na,convnet,float32,train_images_per_s,\n",
            "line 2: value must be a finite number",
        ),
        ("device,model,precision,metric,value\na,b,c,d,5\na,b,c,d,5,6,7\n", "line 3: 7 fields, not 5"),
        ("", "line 1: cut off"),
    ],
)
def test_damaged_rates_are_named(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "throughput.csv").write_text(text)
    with pytest.raises(ValueError, match=rf"throughput\.csv, {message}"):
        recorded(tmp_path / "throughput.csv")


@pytest.mark.parametrize("model", ["mlp"])
def test_this_machine_can_be_measured(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from fedrepro.bench import rates

    monkeypatch.setattr(rates, "SECONDS", 0.01)
    found = rates.measured("cpu", model, "float32")
    assert set(found) == {"train", "predict", "distill"}
    assert min(found.values()) > 0
