"""The first screen of a notebook: what is recorded of its item, and the picture of it."""

import json
import re
from pathlib import Path

import pandas as pd
import pytest

from fedrepro import papers
from fedrepro.core import paths
from fedrepro.notebooks import recorded
from fedrepro.report import verdict
from fedrepro.runs import record
from fedrepro.runs.machine import provenance

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks" / "fedbe").glob("*.ipynb"))
PIXEL = (
    b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + (1520).to_bytes(4, "big") + (400).to_bytes(4, "big") + b"\x08\x02\0\0\0"
)  # the head of a picture of 1520 x 400 pixels
PIXEL += b"\0\0\0\0IEND\xaeB`\x82"  # and its end


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder that stands for the repository's records."""
    monkeypatch.setattr(recorded, "folders", lambda: [tmp_path])
    made = tmp_path / "fedbe" / "table5_cifar100"
    made.mkdir(parents=True)
    return made


def test_nothing_recorded_is_said_plainly(folder: Path) -> None:
    said = recorded.answer("fedbe/table5_cifar100").splitlines()
    assert said[0] == "Not run at paper scale: no number is judged against the paper's."
    assert said[1].startswith("Not run at short scale either")
    assert said[2] == "Claims about this item: 1. On the paper's own numbers 1 holds."
    assert len(recorded.gains("fedbe/table5_cifar100")) == 0
    assert recorded.picture("fedbe/table5_cifar100") is None


def test_a_short_record_is_said_with_its_seeds_and_gains(folder: Path) -> None:
    lines = [("Step/FedAvg", 0, 30.0), ("Step/FedAvg", 1, 32.0), ("Step/FedBE", 0, 31.0), ("Step/FedBE", 1, 35.0)]
    values = pd.DataFrame(lines, columns=["row", "seed", "result"]).assign(column="ConvNet")
    setting = papers.load("fedbe").cells("table5_cifar100", "short")[0].setting
    record.write_values(folder.parents[1], "fedbe/table5_cifar100", "short", values, setting, provenance("cpu"))
    said = recorded.answer("fedbe/table5_cifar100")
    wanted = {(cell.row, cell.column) for cell in papers.load("fedbe").cells("table5_cifar100", "short")}
    assert f"Recorded at short scale: 2 of {len(wanted)} cells, 2 seeds each." in said
    # gains 1 and 3: mean 2, standard error 1, and t with one degree of freedom at 5 % is 6.31
    assert (
        "At short scale, in points, paired by seed, with its 90 % interval: "
        "Step/FedBE − Step/FedAvg, ConvNet: +2.00 (−4.3 to +8.3, 2 seeds).\n"
    ) in said
    (line,) = recorded.gains("fedbe/table5_cifar100").itertuples()
    assert line[1:] == ("Step/FedBE, ConvNet", "Step/FedAvg, ConvNet", "+2.00", "−4.3 to +8.3", "2", "2")


def test_gains_are_of_the_largest_scale_that_has_both_sides(folder: Path) -> None:
    paper, folders = papers.load("fedbe"), folder.parents[1]
    setting = paper.cells("table5_cifar100", "short")[0].setting
    for scale, rows in (("short", {"Step/FedAvg": 30.0, "Step/FedBE": 31.0}), ("paper", {"Step/FedAvg": 33.0})):
        values = pd.DataFrame(rows.items(), columns=["row", "result"]).assign(column="ConvNet", seed=0)
        record.write_values(folders, "fedbe/table5_cifar100", scale, values, setting, provenance("cpu"))
    said = recorded.answer("fedbe/table5_cifar100")
    assert "Recorded at paper scale: 1 of 6 cells, 1 seed each." in said
    assert "Recorded at short scale: 2 of 2 cells, 1 seed each." in said
    assert "At short scale, in points, paired by seed: Step/FedBE − Step/FedAvg, ConvNet: +1.00 (1 seed)." in said
    (line,) = recorded.gains("fedbe/table5_cifar100").itertuples()
    assert line[1:] == (
        "Step/FedBE, ConvNet",
        "Step/FedAvg, ConvNet",
        "+1.00",
        "1",
        "1",
    )  # no interval of one seed


def test_a_claim_with_a_margin_has_the_difference_itself(folder: Path) -> None:
    folders, item = folder.parents[1], "fedbe/figure5_local_decay"
    setting = papers.load("fedbe").cells("figure5_local_decay", "short")[0].setting
    values = pd.DataFrame(
        {"row": ["FedAvg, no decay", "FedAvg, decay of 0.99 a step"], "result": [44.0, 42.5]},
    ).assign(column="learning rate 0.01", seed=0)
    record.write_values(folders, item, "short", values, setting, provenance("cpu"))
    (line,) = recorded.gains(item).itertuples()
    assert (line.Index, line[3], line[5]) == ("decay-within-a-round-hurts (by 2)", "+1.50", "0")
    assert "learning rate 0.01: +1.50 (1 seed)." in recorded.answer(item)


def test_ways_are_those_of_recorded_runs() -> None:
    rows = {"1-Ensemble trained as in the code": "code", "1-Ensemble as in the paper": "paper", "none": "none"}
    found = recorded.ways("fedbe/paper_vs_code", "paper", rows, "ConvNet")
    by = found[found["seed"] == 0].set_index(["name", "way"])["accuracy"]
    assert list(dict.fromkeys(found["name"])) == ["code", "paper"]
    assert (by["code", recorded.OWN], by["code", "vote, ties in order"]) == (53.90, 23.10)
    assert by["paper", "mean of logits"] == 63.82
    assert recorded.ways("fedbe/paper_vs_code", "paper", {"none": "none"}, "ConvNet").empty


def test_a_pair_of_two_machines_says_so(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paper, folders = papers.load("fedbe"), folder.parents[1]
    setting = paper.cells("table5_cifar100", "short")[0].setting
    values = pd.DataFrame({"row": ["Step/FedAvg", "Step/FedBE"], "result": [30.0, 31.0]})
    values = values.assign(column="ConvNet", seed=0)
    record.write_values(folders, "fedbe/table5_cifar100", "short", values, setting, provenance("cpu"))
    written = verdict.records
    monkeypatch.setattr(
        recorded.verdict,
        "records",
        lambda *given: written(*given).assign(device=lambda table: "machine of " + table["row"]),
    )
    (line,) = recorded.gains("fedbe/table5_cifar100").itertuples()
    assert line[4:] == ("1, on two machines", "1")


def test_the_picture_is_that_of_the_largest_scale(folder: Path) -> None:
    (folder / "table5_cifar100_smoke.png").write_bytes(PIXEL)
    assert recorded.picture("fedbe/table5_cifar100") is None
    (folder / "table5_cifar100_short.png").write_bytes(PIXEL)
    (folder / "table5_cifar100_short.alt.txt").write_text("A picture of short runs.\n", "utf-8")
    shown = recorded.picture("fedbe/table5_cifar100")
    assert shown is not None
    assert shown._repr_png_() == (PIXEL, {"width": 760, "height": 200, "alt": "A picture of short runs."})
    (folder / "table5_cifar100_paper.png").write_bytes(PIXEL)
    assert repr(recorded.picture("fedbe/table5_cifar100")) == "table5_cifar100_paper"


def test_a_damaged_picture_is_named(folder: Path) -> None:
    png = folder / "table5_cifar100_short.png"
    png.write_bytes(PIXEL[:30])
    with pytest.raises(ValueError, match=r"table5_cifar100_short\.png is no whole png"):
        recorded.picture("fedbe/table5_cifar100")
    png.write_bytes(PIXEL)
    png.with_suffix(".alt.txt").write_bytes(b"caf\xe9\n")
    with pytest.raises(ValueError, match=r"table5_cifar100_short\.alt\.txt, line 1: not UTF-8"):
        recorded.picture("fedbe/table5_cifar100")


def test_outside_of_a_checkout_nothing_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paths, "checkout", lambda: None)
    assert recorded.answer("fedbe/table1_methods").startswith("Nothing is recorded here")
    assert recorded.picture("fedbe/table1_methods") is None
    assert len(recorded.gains("fedbe/table1_methods")) == 0


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_record_of_its_own_item_is_the_first_code_of_a_notebook(path: Path) -> None:
    cells = json.loads(path.read_text("utf-8"))["cells"]
    first = next(place for place, cell in enumerate(cells) if cell["cell_type"] == "code")
    source = "".join(cells[first]["source"])
    assert re.findall(r"recorded\.(\w+)\(\"(.+?)\"", source) == [
        ("answer", f"fedbe/{path.stem}"),
        ("picture", f"fedbe/{path.stem}"),
    ]
    before = "".join("".join(cell["source"]) for cell in cells[:first])
    assert len(before) < 1200  # the title and the claim: what was recorded stands on the first screen
