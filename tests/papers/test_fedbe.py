"""FedBE: its tables are played as it says, its presets are the released code's way, its cells are all there."""

import math
import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pandas as pd
import pytest

from fedrepro import papers
from fedrepro.core import paths
from fedrepro.core.setting import Setting
from fedrepro.data.data import DATASETS
from fedrepro.federation.assemble import split
from fedrepro.methods import catalogue as methods
from fedrepro.papers import SCALES, Cell
from fedrepro.runs import record
from fedrepro.stages.rates import round_factor

FEDBE = papers.load("fedbe")
NETWORKS = ["ConvNet", "ResNet-20", "ResNet-32", "ResNet-44", "ResNet-56"]
METHODS = ["FedAvg", "FedBE", "v-Distillation", "FedBE w/o SWA", "1-Ensemble"]
FIELDS = Setting.types()


def cells(item: str, scale: str, *only: str) -> list[Cell]:
    return FEDBE.cells(item, scale, only=only)


def names(found: list[Cell]) -> list[tuple[str, str]]:
    return [(cell.row, cell.column) for cell in found]


def setting(row: str, column: str, scale: str = "paper", item: str = "table1_methods") -> Setting:
    (found,) = (cell for cell in cells(item, scale) if (cell.row, cell.column) == (row, column))
    return found.setting


def every_cell() -> Iterator[tuple[str, Cell]]:
    for item in FEDBE.items:
        for scale in SCALES:
            for cell in cells(item, scale):
                yield scale, cell


# -- settings -------------------------------------------------------------------------------------------------


def test_table_1_is_played_as_the_paper_says() -> None:
    paper = setting("Step/FedBE", "ResNet-20")
    wanted = {
        **{"data": "cifar10", "test_images": 0, "model": "resnet20", "clients": 10, "public_images": 10_000},
        **{"partition": "step", "major_classes": 2, "major_images": 1960, "minor_images": 10, "rounds": 40},
        **{"participation": 1.0, "local_epochs": 20, "client_batch": 40, "client_lr": 0.01, "samples": 10},
        **{"client_momentum": 0.9, "lr_schedule": "fedbe", "augment_pad": 2, "augment_flip": True},
        **{"method": "fedbe", "posterior": "gaussian", "sharpen": 2.0, "distill_epochs": 20},
        **{"distill_batch": 128, "distill_lr": 1e-3, "swa_lr_low": 4e-4, "swa_start": 250, "swa_cycle": 25},
    }
    assert {name: paper.asdict()[name] for name in wanted} == wanted
    dirichlet = setting("Dirichlet/FedBE", "ResNet-20")
    assert dirichlet == paper.with_(partition="dirichlet")
    assert dirichlet.partition_alpha == 0.1


# -- presets: the released code's way -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", FEDBE.presets)
def test_every_preset_changes_what_it_names_and_can_be_built(name: str) -> None:
    fedbe = setting("Step/FedBE", "ResNet-20")
    changed = fedbe.with_(**FEDBE.preset(name))
    assert {key for key, value in changed.asdict().items() if value != fedbe.asdict()[key]} == set(
        FEDBE.preset(name)
    )
    methods.build(changed)


def test_the_released_code_is_its_five_differences() -> None:
    five = ("official-schedule", "official-swa", "official-augmentation", "official-gaussian", "official-loss")
    together: dict[str, Any] = {}
    for name in five:
        together |= FEDBE.preset(name)
    assert FEDBE.preset("official-code") == together
    assert len(together) == 7


def test_an_unknown_preset_names_the_nearest() -> None:
    with pytest.raises(ValueError, match=r"unknown preset 'oficial-swa' of fedbe \(did you mean 'official-swa'"):
        FEDBE.preset("oficial-swa")


@pytest.mark.parametrize("cell", cells("paper_vs_code", "paper"), ids=lambda cell: f"{cell.row}-{cell.column}")
def test_a_row_of_paper_vs_code_is_its_preset(cell: Cell) -> None:
    presets = {
        "learning rate over rounds": "official-schedule",
        "SWA": "official-swa",
        "augmentation": "official-augmentation",
        "Gaussian": "official-gaussian",
        "loss": "official-loss",
        "all five together": "official-code",
        "Step by shards": "official-step",
        "FedBE repeated draws": "official-draws",
    }
    of_fedavg = {
        "FedAvg repeated draws": "official-fedavg-draws",
        "FedAvg Dirichlet of the code": "official-dirichlet-partition",
        "FedAvg shortcuts where shapes change": "official-shortcut",
    }
    base = setting("Step/FedBE", cell.column)
    if cell.row in presets:
        assert cell.setting == base.with_(**FEDBE.preset(presets[cell.row]))
    elif cell.row in of_fedavg:
        fedavg = setting("Step/FedAvg", cell.column)
        assert cell.setting == fedavg.with_(**FEDBE.preset(of_fedavg[cell.row]))
    elif cell.row == "1-Ensemble rate falls":
        alone = setting("Step/1-Ensemble", cell.column)
        assert cell.setting == alone.with_(**FEDBE.preset("official-1-ensemble"))
    elif "1,000 public images" in cell.row:
        few = base.with_(public_images=1000)
        unreached = few.with_(**FEDBE.preset("official-swa-unreached"))
        assert cell.setting == (unreached if cell.row.endswith("unreached") else few.with_(swa_start=25))
    elif cell.row.startswith("FedBE"):
        assert (cell.setting == base) == ("recalibrated" not in cell.row)


@pytest.mark.parametrize("scale", SCALES)
def test_a_difference_has_a_baseline_that_differs_in_little(scale: str) -> None:
    item, found = FEDBE.items["paper_vs_code"], cells("paper_vs_code", scale)
    by_name = {(cell.row, cell.column): cell for cell in found}
    bases = {*item.baselines.values()}
    assert {cell.row for cell in found} <= {*item.baselines, *bases}
    for cell in found:
        if cell.row in item.baselines:
            base = by_name[item.baselines[cell.row], cell.column]
            one, other = cell.setting.asdict(), base.setting.asdict()
            changed = {name for name in one if one[name] != other[name]}
            assert (changed != set()) == (cell.reading == base.reading), cell.row
            assert len(changed) <= 7, (cell.row, changed)
        else:
            assert cell.row in bases, cell.row


def test_the_code_s_rate_of_1_ensemble() -> None:
    # Half of 0.01 in the one round, a tenth of it after every 30 of 200 epochs.
    found = setting("1-Ensemble rate falls", "ConvNet", item="paper_vs_code")
    assert round_factor(found.lr_schedule, round=0, rounds=found.rounds) * found.client_lr == 0.005
    assert (found.client_lr_decay_epochs, found.client_lr_decay_factor, found.local_epochs) == (30, 0.1, 200)


def test_grids_exist_at_their_scales_only() -> None:
    found = {scale: {cell.column for cell in cells("paper_vs_code", scale)} for scale in SCALES}
    assert found == {
        "smoke": {"ConvNet"},
        "short": {"ConvNet", "ResNet-20", "ResNet-32"},
        "paper": {"ConvNet", "ResNet-20", "ResNet-32", "ResNet-44", "ResNet-56"},
    }


@pytest.mark.parametrize("partition", ["Step", "Dirichlet"])
def test_methods_differ_in_nothing_but_the_method(partition: str) -> None:
    for network in NETWORKS:
        fedbe = setting(f"{partition}/FedBE", network)
        labels = {"FedAvg": "fedavg", "v-Distillation": "v_distillation", "FedBE w/o SWA": "fedbe_without_swa"}
        for label, method in labels.items():
            assert setting(f"{partition}/{label}", network) == fedbe.with_(method=method)
        alone = setting(f"{partition}/1-Ensemble", network)
        assert alone == fedbe.with_(method="one_ensemble", rounds=1, local_epochs=200)


def test_networks_differ_in_nothing_but_the_network() -> None:
    base = setting("Step/FedAvg", "ResNet-20")
    for depth in (32, 44, 56):
        assert setting("Step/FedAvg", f"ResNet-{depth}") == base.with_(model=f"resnet{depth}")
    assert setting("Step/FedAvg", "ConvNet") == base.with_(model="convnet", client_weight_decay=1e-3)


def test_centralised_training_sees_all_images() -> None:
    central = setting("Centralized/SGD", "ResNet-20")
    parts, server = split(central, np.repeat(np.arange(10), 50), 0)
    assert [len(part) for part in parts] == [500]
    assert not any(map(len, server.values()))
    assert (central.method, central.rounds, central.local_epochs, central.client_lr) == (
        "centralized",
        200,
        1,
        0.1,
    )
    assert setting("Centralized/SGD", "ConvNet").client_lr == 0.01


# -- cells ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("scale", "networks"), [("paper", NETWORKS), ("smoke", NETWORKS[:2])])
def test_table_1_has_all_cells(scale: str, networks: list[str]) -> None:
    expected = {
        (f"{partition}/{method}", network)
        for partition in ("Step", "Dirichlet")
        for method in METHODS
        for network in networks
    } | {("Centralized/SGD", network) for network in networks}
    found = names(cells("table1_methods", scale))
    assert len(found) == (2 * 5 + 1) * len(networks)
    assert set(found) == expected


def test_table_1_is_smaller_in_short() -> None:
    found = names(cells("table1_methods", "short"))
    assert found == [
        *((f"Step/{method}", network) for network in NETWORKS[:2] for method in METHODS[:4]),
        ("Step/1-Ensemble", "ConvNet"),
        *((f"Dirichlet/{method}", "ConvNet") for method in METHODS),
        ("Centralized/SGD", "ConvNet"),
    ]


def test_seeds() -> None:
    found = {name: dict(item.seeds) for name, item in FEDBE.items.items()}
    assert found.pop("table1_methods") == {"smoke": 1, "short": 5, "paper": 5}
    for toy in ("figure1_simplex", "figure8_confidence"):
        assert found.pop(toy) == {"smoke": 5, "short": 20, "paper": 20}
    assert all(seeds == {"smoke": 1, "short": 3, "paper": 5} for seeds in found.values())


@pytest.mark.parametrize("scale", SCALES)
def test_table_8_has_all_cells_at_every_scale(scale: str) -> None:
    found = cells("table8_dirichlet", scale)
    alphas = ["0.1", "0.5", "1", "2"]
    networks = NETWORKS[: 1 if scale == "short" else 2]
    assert names(found) == [(f"alpha={alpha}", net) for net in networks for alpha in alphas]
    assert [cell.setting.dirichlet_alpha for cell in found] == [0.1, 0.5, 1.0, 2.0] * len(networks)
    for cell in found:
        gaussian = setting("Step/FedBE", cell.column, scale)
        alpha = cell.setting.dirichlet_alpha
        assert cell.setting == gaussian.with_(posterior="dirichlet", dirichlet_alpha=alpha)


TABLES = ["1_methods", "2_targets", "3_public_data", "4_momentum", "5_cifar100", "6_tiny_imagenet", "7_stragglers"]


@pytest.mark.parametrize("item", [f"table{name}" for name in (*TABLES, "8_dirichlet")])
def test_cells_and_reported_numbers_have_the_same_names(item: str) -> None:
    reported = FEDBE.reported[FEDBE.reported["item"] == item]
    printed = set(zip(reported["row"], reported["column"]))
    assert printed == set(names(cells(item, "paper")))


@pytest.mark.parametrize("seed", range(3))
def test_the_paper_s_data_can_be_partitioned(seed: int) -> None:
    labels = np.repeat(np.arange(10), 5000)
    for row in ("Step/FedBE", "Dirichlet/FedBE", "Centralized/SGD"):
        parts, server = split(setting(row, "ConvNet"), labels, seed)
        held = server["public"]
        assert sum(map(len, parts)) + len(held) == 50_000  # the Step counts close, too
        assert len(set(np.concatenate([*parts, held]))) == 50_000
    parts, server = split(setting("Step/FedBE", "ConvNet", "short"), labels, seed)
    assert (len(parts), len(server["public"])) == (5, 1000)
    assert [len(part) for part in parts] == [2 * 230 + 8 * 5] * 5


def test_swa_collects_models_at_every_scale() -> None:
    for _, cell in every_cell():
        s = cell.setting
        if s.method.startswith("fedbe") and s.method != "fedbe_without_swa" and s.swa_unreached == "refuse":
            images = DATASETS[s.public_data].sizes["train"] if s.public_data else s.public_images
            steps = s.distill_epochs * math.ceil(images / s.distill_batch)
            assert steps // s.swa_cycle * s.swa_cycle > s.swa_start, cell


# -- asking for a part ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("only", "count", "labels"),
    [
        (("ConvNet",), 11, {"model": {"ConvNet"}, "partition": {"Step", "Dirichlet", "Centralized"}}),
        (("ConvNet", "ResNet-20"), 22, {"model": {"ConvNet", "ResNet-20"}}),
        (("Step",), 25, {"partition": {"Step"}}),
        (("ConvNet", "Step"), 5, {"model": {"ConvNet"}, "partition": {"Step"}, "method": set(METHODS)}),
        (("FedBE", "Dirichlet", "ResNet-56"), 1, {"method": {"FedBE"}}),
        (("FedBE w/o SWA",), 10, {"method": {"FedBE w/o SWA"}}),
        (("SGD",), 5, {"partition": {"Centralized"}}),
        (("Centralized", "ConvNet"), 1, {"method": {"SGD"}}),
        (("SGD", "FedAvg"), 15, {"method": {"SGD", "FedAvg"}}),
        ((), 55, {"model": set(NETWORKS)}),
    ],
)
def test_only(only: tuple[str, ...], count: int, labels: dict[str, set[str]]) -> None:
    found = cells("table1_methods", "paper", *only)
    assert len(found) == count
    for axis, wanted in labels.items():
        assert {cell.labels[axis] for cell in found} == wanted
    everything = names(cells("table1_methods", "paper"))
    assert names(found) == [name for name in everything if name in names(found)]  # same order


def test_a_label_that_a_scale_leaves_out_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"ResNet-56.*short"):
        cells("table1_methods", "short", "ResNet-56")


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda: papers.load("fedbee"), "unknown paper 'fedbee' (did you mean 'fedbe'?)"),
        (lambda: papers.load("xyz"), "unknown paper 'xyz'; there are "),
        (lambda: cells("table1", "smoke"), "unknown item 'table1' of fedbe (did you mean 'table1_methods'?)"),
        (lambda: cells("table1_methods", "smok"), "unknown scale 'smok' (did you mean 'smoke'?)"),
        (lambda: cells("table1_methods", "smoke", "ResNet20"), " has no 'ResNet20' (did you mean 'ResNet-20'?)"),
        (lambda: cells("table8_dirichlet", "smoke", "Step"), " has no 'Step'; there are 0.1, 0.5, 1, 2, "),
        (lambda: papers.find("fedbe/table8"), "item 'fedbe/table8' (did you mean 'fedbe/table8_dirichlet'?)"),
        (lambda: papers.find("table1_methods"), "item 'table1_methods' (did you mean 'fedbe/table1_methods'?)"),
    ],
)  # fmt: skip
def test_what_is_not_there_is_named_with_the_nearest(ask: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        ask()


def test_find() -> None:
    assert [item.key for item in papers.find("fedbe/table8_dirichlet")] == ["fedbe/table8_dirichlet"]
    assert papers.find("fedbe") == list(FEDBE.items.values())
    assert "fedbe" in papers.names()


# -- sources -------------------------------------------------------------------------------------------------


def test_sources_are_those_of_the_rules_that_set_the_values() -> None:
    def sources(item: str) -> dict[str, dict[str, Any]]:
        lines: list[dict[str, Any]] = papers.load("fedbe").sources(item).to_dict("records")  # type: ignore[assignment]
        return {line["name"]: line for line in lines}

    toy, table = sources("figure1_simplex"), sources("table1_methods")
    assert toy["client_lr"]["kind"] == "assumed"  # though Table 1's 0.01 is stated
    assert toy["clients"]["value"] == [3]
    assert toy["clients"]["source"].startswith("3.3")
    assert table["rounds"]["value"] == [40, 1, 200]
    assert table["rounds"]["kind"] == "stated, assumed"  # assumed for the centralised row
    assert table["model"]["kind"] == "stated"
    assert "weight decay" not in table["model"]["source"]  # a rule's reason is about what it sets
    assert "for 1-Ensemble stated: 5.1, Baselines" in table["rounds"]["source"]
    assert "for Centralized assumed: " in table["rounds"]["source"]
    said = sources("paper_vs_code")["local_epochs"]["source"]
    assert said.count("5.1, Baselines: one round, 200 local epochs") == 1  # of eleven rows with this value
    assert "1-Ensemble repeated draws" in said
    assert "generator" not in said  # that row's reason is about other values
    assert "for 0.1, 0.5, 1 and 2 stated: Table 8" in sources("table8_dirichlet")["dirichlet_alpha"]["source"]


@pytest.mark.parametrize("scale", ["short", "paper"])
def test_a_recorded_run_has_one_result_in_all_items(scale: str) -> None:
    tables = [record.read(paths.recorded_folder(), f"fedbe/{item}", scale) for item in papers.load("fedbe").items]
    runs = pd.concat([table[["key", "seed", "precision", "accuracy", "split"]] for table in tables if len(table)])
    several = runs.dropna(subset=["accuracy"]).groupby(["key", "seed", "precision"])["accuracy"].nunique()
    assert len(several) > 4
    assert list(several.index[several > 1]) == []
