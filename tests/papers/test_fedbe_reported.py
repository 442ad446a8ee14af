"""The numbers of the FedBE preprint and poster: complete, well labelled, the same where printed twice."""

from collections import Counter
from pathlib import Path

import pandas as pd
import pytest

from fedrepro.papers import claims

COLUMNS = ["item", "source", "row", "column", "metric", "mean", "std", "runs", "status", "note"]
CELL = ["item", "row", "column"]
NETWORKS = ["ConvNet", "ResNet-20", "ResNet-32", "ResNet-44", "ResNet-56"]


@pytest.fixture(scope="module")
def printed() -> pd.DataFrame:
    """Every field as the text in the file."""
    path = Path(claims.__file__).parent / "fedbe" / "reported.csv"
    return pd.read_csv(path, dtype=str, keep_default_na=False)


@pytest.fixture(scope="module")
def means(printed: pd.DataFrame) -> dict[tuple[str, str, str], str]:
    """Printed mean by (item, row, column)."""
    return {(i, r, c): mean for i, r, c, mean in zip(*(printed[k] for k in [*CELL, "mean"]), strict=True)}


def test_every_row_of_both_documents_is_there(printed: pd.DataFrame) -> None:
    assert list(printed.columns) == COLUMNS
    assert printed["source"].str.startswith("preprint, ").sum() == 155
    assert printed["source"].str.startswith("poster, Table ").sum() == 119
    assert len(printed) == 274
    assert Counter(printed["item"]) == {
        "table1_methods": 110,
        "table2_targets": 10,
        "table3_public_data": 24,
        "table4_momentum": 56,
        "table5_cifar100": 6,
        "table6_tiny_imagenet": 8,
        "table7_stragglers": 36,
        "table8_dirichlet": 8,
        "figure1_simplex": 2,
        "figure4_public_size": 1,
        "figure9_distillation_epochs": 4,
        "text_numbers": 9,
    }
    assert not printed.duplicated(["source", *CELL]).any()


def test_statuses_are_known_and_explained(printed: pd.DataFrame) -> None:
    assert Counter(printed["status"]) == {
        "ok": 240,
        "repaired": 28,
        "inferred": 2,
        "lost": 2,
        "suspicious": 2,
    }
    assert (printed.loc[printed["status"] != "ok", "note"] != "").all()
    assert ((printed["status"] == "lost") == (printed["mean"] == "")).all()
    lost = printed[printed["status"] == "lost"]
    assert set(zip(lost["item"], lost["row"], lost["column"], strict=True)) == {
        ("table2_targets", "clients + samples", "ConvNet"),
        ("table2_targets", "clients + samples", "ResNet-20"),
    }


def test_poster_text_needed_no_repair(printed: pd.DataFrame) -> None:
    poster = printed["source"].str.startswith("poster")
    assert set(printed.loc[poster, "status"]) == {"ok"}


# How the cells look whose characters are damaged in the text: a sign read as a digit or a letter, a lost dot.
DAMAGED = {
    "Table 1": {
        ("Step/1-Ensemble", "ResNet-20"): "49.94+0.46",
        ("Step/FedBE w/o SWA", "ResNet-20"): "7494141",
        ("Dirichlet/FedAvg", "ResNet-56"): "62.24+0.45",
        ("Dirichlet/1-Ensemble", "ResNet-56"): "27.240.65",
        ("Dirichlet/v-Distillation", "ResNet-56"): "62.84+0.66",
        ("Dirichlet/FedBE w/o SWA", "ResNet-32"): "73.94+0.55",
        ("Dirichlet/FedBE w/o SWA", "ResNet-44"): "68.24+0.72",
    },
    "Table 2": {
        ("FedAvg", "ConvNet"): "72.61+0.28",
        ("Ground-truth labels", "ConvNet"): "76.6i0.21",
    },
    "Table 3": {
        ("Step/CIFAR-10 10K", "ConvNet"): "17454051",
        ("Step/CIFAR-100 50K", "ConvNet"): "74.440.45",
        ("Step/CIFAR-100 50K", "ResNet-20"): "78.24+0.58",
    },
    "Table 4": {
        ("Step/FedAvg", "ResNet-20"): "70.240.17",
        ("Step/FedAvg", "ResNet-32"): "66.51+0.36",
        ("Dirichlet/FedAvg", "ResNet-20"): "74.440.36",
        ("Dirichlet/FedAvg", "ResNet-32"): "73.440.23",
    },
    "Table 5": {
        ("Step/FedAvg", "ResNet-20"): "37.540.65",
        ("Step/FedAvg", "ResNet-32"): "33.340.55",
        ("Step/FedBE", "ResNet-32"): "37.740.69",
    },
    "Table 6": {
        ("i.i.d./FedAvg", "ResNet-20"): "32.440.68",
        ("Step/FedAvg", "ResNet-20"): "27.54+0.78",
        ("Step/FedBE", "ResNet-20"): "32.440.81",
    },
    "Table 7": {
        ("Stragglers/FedAvg", "ConvNet"): "70.64+0.46",
        ("Normal/FedAvg", "ResNet-20"): "70.24+0.17",
        ("Stragglers/FedBE", "ResNet-32"): "70.240.39",
        ("Normal/FedBE", "ConvNet"): "74.54+0.51",
    },
    "Table 8": {
        ("alpha=1", "ConvNet"): "742+0.51",
        ("alpha=2", "ResNet-20"): "76.84+0.55",
    },
}


def test_exactly_the_damaged_cells_are_called_repaired(printed: pd.DataFrame) -> None:
    repaired = printed[printed["status"] == "repaired"]
    named = {
        (f"preprint, {table}", *place, text) for table, cells in DAMAGED.items() for place, text in cells.items()
    }
    assert {(source, row, column) for source, row, column, _ in named} == set(
        zip(repaired["source"], repaired["row"], repaired["column"])
    )
    columns = ["source", "row", "column", "mean", "std"]
    values = {tuple(line[:3]): "".join(line[3:]) for line in repaired[columns].values.tolist()}
    for source, row, column, text in named - {("preprint, Table 3", "Step/CIFAR-10 10K", "ConvNet", "17454051")}:
        found = (character for character in text if character.isdigit())
        assert all(digit in found for digit in values[source, row, column] if digit != "."), text  # in this order


def test_the_poster_s_own_cells_say_that_five_runs_are_assumed(printed: pd.DataFrame) -> None:
    poster = printed["source"].str.startswith("poster")
    preprint = set(map(tuple, printed.loc[~poster, CELL].values.tolist()))
    own = [tuple(cell) not in preprint for cell in printed.loc[poster, CELL].values.tolist()]
    assert sum(own) == 32
    assert [
        note == "the poster does not say over how many runs; 5 as in the preprint"
        for note in printed.loc[poster, "note"]
    ] == own


def test_numbers_are_in_range(printed: pd.DataFrame) -> None:
    accuracies = printed[printed["metric"] == "test_acc_pct"]
    assert pd.to_numeric(accuracies["mean"]).dropna().between(20, 100).all()
    assert pd.to_numeric(accuracies["std"]).dropna().between(0.1, 1.5).all()
    assert set(printed["metric"]) == {"test_acc_pct", "acc_gain_pct", "seconds"}
    other = printed[printed["metric"] != "test_acc_pct"]
    assert set(other["item"]) == {"text_numbers"}
    assert list(other["mean"]) == ["0.7", "0.2", "2.4", "10.4"]


def test_runs_are_five_where_a_deviation_is_printed(printed: pd.DataFrame) -> None:
    assert ((printed["runs"] == "5") == (printed["std"] != "")).all()
    assert set(printed["runs"]) == {"5", ""}
    tables = printed["item"].str.startswith("table") & (printed["row"] != "Centralized/SGD")
    assert (printed.loc[tables & (printed["status"] != "lost"), "runs"] == "5").all()


def test_labels_are_ours(printed: pd.DataFrame) -> None:
    labels = printed["row"] + " " + printed["column"] + " " + printed["note"]
    assert not labels.str.contains(r"FedDistill|ResNet\d", regex=True).any()
    first = printed[printed["item"] == "table1_methods"]
    methods = ["FedAvg", "1-Ensemble", "v-Distillation", "FedBE w/o SWA", "FedBE"]
    rows = {f"{partition}/{method}" for partition in ("Step", "Dirichlet") for method in methods}
    assert set(first["row"]) == rows | {"Centralized/SGD"}
    assert set(first["column"]) == set(NETWORKS)
    tables = printed[printed["item"].str.startswith("table")]
    assert set(tables["column"]) == {*NETWORKS, "MobileNetV2"}
    eighth = printed[printed["item"] == "table8_dirichlet"]
    assert list(eighth["row"].unique()) == ["alpha=0.1", "alpha=0.5", "alpha=1", "alpha=2"]


def test_preprint_and_poster_print_the_same_numbers(printed: pd.DataFrame) -> None:
    preprint = printed[printed["source"].str.startswith("preprint")]
    poster = printed[printed["source"].str.startswith("poster")]
    both = preprint.merge(poster, on=CELL, suffixes=("_preprint", "_poster"))
    # Table 1 whole, Table 3 whole, FedAvgM without and with FedBE on two networks, the stragglers of Table 7.
    assert Counter(both["item"]) == {
        "table1_methods": 55,
        "table3_public_data": 12,
        "table4_momentum": 8,
        "table7_stragglers": 12,
    }
    assert list(both["mean_preprint"]) == list(both["mean_poster"])
    assert list(both["std_preprint"]) == list(both["std_poster"])


@pytest.mark.parametrize(
    ("item", "row", "column", "same_item", "same_row"),
    [
        *(("table7_stragglers", "Normal/FedAvg", n, "table1_methods", "Step/FedAvg") for n in NETWORKS[:3]),
        *(("table7_stragglers", "Normal/FedBE", n, "table1_methods", "Step/FedBE") for n in NETWORKS[:3]),
        *(("table7_stragglers", "Normal/FedProx", n, "table4_momentum", "Step/FedProx") for n in NETWORKS[:3]),
        *(
            ("table7_stragglers", "Normal/FedBE + FedProx", n, "table4_momentum", "Step/FedBE + FedProx")
            for n in NETWORKS[:3]
        ),
        *(
            ("table4_momentum", f"{partition}/{method}", n, "table1_methods", f"{partition}/{method}")
            for partition in ("Step", "Dirichlet")
            for method in ("FedAvg", "FedBE")
            for n in NETWORKS[1:3]
        ),
        *(
            ("table3_public_data", f"{partition}/CIFAR-10 10K", n, "table1_methods", f"{partition}/FedBE")
            for partition in ("Step", "Dirichlet")
            for n in NETWORKS[:2]
        ),
        ("figure9_distillation_epochs", "20 epochs/FedBE", "ResNet-20", "table1_methods", "Step/FedBE"),
        (
            "figure9_distillation_epochs",
            "20 epochs/FedBE w/o SWA",
            "ResNet-20",
            "table1_methods",
            "Step/FedBE w/o SWA",
        ),
    ],
)
def test_one_run_in_two_tables_has_one_number(
    means: dict[tuple[str, str, str], str], item: str, row: str, column: str, same_item: str, same_row: str
) -> None:
    assert means[item, row, column] == means[same_item, same_row, column]


def test_table8_against_the_page(printed: pd.DataFrame) -> None:
    eighth = printed[printed["item"] == "table8_dirichlet"]
    assert (eighth["row"] + " " + eighth["column"] + " " + eighth["mean"] + " " + eighth["std"]).tolist() == [
        "alpha=0.1 ConvNet 72.5 0.44",
        "alpha=0.1 ResNet-20 75.9 0.66",
        "alpha=0.5 ConvNet 73.6 0.73",
        "alpha=0.5 ResNet-20 77.3 0.86",
        "alpha=1 ConvNet 74.2 0.51",
        "alpha=1 ResNet-20 77.1 0.71",
        "alpha=2 ConvNet 73.2 0.83",
        "alpha=2 ResNet-20 76.8 0.55",
    ]


def test_the_fedprox_gains_outside_the_range_of_the_text_are_noted(printed: pd.DataFrame) -> None:
    seventh = printed[(printed["item"] == "table7_stragglers") & printed["source"].str.startswith("preprint")]
    accuracy = {(r, c): float(mean) for r, c, mean in zip(*(seventh[k] for k in ["row", "column", "mean"]))}
    outside = {
        (clients, network)
        for clients in ("Stragglers", "Normal")
        for network in NETWORKS[:3]
        if not 2.5
        <= round(accuracy[f"{clients}/FedBE + FedProx", network] - accuracy[f"{clients}/FedProx", network], 1)
        <= 5.7
    }
    marked = printed[printed["note"].str.contains("section 5.3 says 2.5 to 5.7")]
    assert {(row.split("/")[0], column) for row, column in zip(marked["row"], marked["column"])} == outside
    assert outside == {("Stragglers", "ResNet-20"), ("Normal", "ConvNet"), ("Normal", "ResNet-20")}
    assert set(marked["status"]) == {
        "ok"
    }  # the same numbers in Tables 4, 7, B and D: the sentence is wrong, not they


def test_suspicious_scaffold_pair_is_kept_as_printed(printed: pd.DataFrame) -> None:
    pair = printed[printed["status"] == "suspicious"]
    assert set(pair["row"]) == {"Normal/FedBE + SCAFFOLD"}
    assert dict(zip(pair["column"], pair["mean"])) == {"ResNet-20": "72.7", "ResNet-32": "76.4"}
