"""What notebooks work with, beyond what running the notebooks shows."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from fedrepro.notebooks import given, tables
from fedrepro.notebooks.book import Book
from fedrepro.papers import Reading
from fedrepro.runs.machine import UNKNOWN
from fedrepro.runs.record import write_values
from fedrepro.runs.request import Outcome, Run

NAN = float("nan")


@pytest.fixture
def book(monkeypatch: pytest.MonkeyPatch) -> Book:
    lines = [
        {"row": "FedAvg", "column": "ConvNet", "paper_mean": 72.6, "short_mean": NAN, "smoke_mean": 12.0},
        {
            "row": "FedAvg + clients",
            "column": "ConvNet",
            "paper_mean": 73.6,
            "short_mean": 40.0,
            "smoke_mean": NAN,
        },
        {"row": "unknown", "column": "ConvNet", "paper_mean": NAN, "short_mean": NAN, "smoke_mean": 13.0},
    ]
    numbers = {"recorded_mean": NAN, "paper_std": 0.5, "recorded_std": NAN, "paper_runs": 5.0}
    seeds = {f"{scale}_seeds": 1.0 for scale in ("recorded", "short", "smoke")}
    monkeypatch.setattr(Book, "comparison", lambda self: pd.DataFrame(lines).assign(**numbers, **seeds))
    return Book("fedbe/table2_targets", scale="smoke", seeds=1, device="cpu")


def test_points_have_their_cells_labels(book: Book) -> None:
    points = book.points()
    assert list(points["mean"]) == [72.6, 12.0, 73.6, 40.0, 13.0]  # cell by cell
    short, smoke = "recorded (short)", "this run (smoke)"
    assert list(points["source"]) == ["paper", smoke, "paper", short, smoke]
    assert list(points["targets"].fillna("")) == ["FedAvg", "FedAvg", "FedAvg + clients", "FedAvg + clients", ""]
    assert set(points["model"].dropna()) == {"ConvNet"}


def test_the_best_points_leave_smoke_out_unless_there_is_nothing_else(
    book: Book, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert list(book.points(best=True)["mean"]) == [72.6, 73.6, 40.0]
    only = book.comparison()
    only[["paper_mean", "short_mean"]] = NAN
    monkeypatch.setattr(Book, "comparison", lambda self: only)
    assert list(book.points(best=True)["mean"]) == [12.0, 13.0]


def test_a_point_has_the_setting_of_its_own_scale() -> None:
    book = Book("fedbe/figure4_public_size", scale="smoke", seeds=1, device="cpu")
    sources = ["paper", "recorded (short)", "this run (smoke)"]
    points = pd.DataFrame({"row": "Step/FedBE, 5K public images", "column": "ResNet-20", "source": sources})
    assert list(book.values(points, "public_images")) == [5000, 5000, 40]
    unknown = points.assign(row="Step/FedBE, 7K public images")
    assert book.values(unknown, "public_images").isna().all()


def test_differences_are_seed_by_seed_at_the_largest_scale(monkeypatch: pytest.MonkeyPatch) -> None:
    book = Book("fedbe/paper_vs_code", scale="smoke", seeds=1, device="cpu")
    lines = [("base", 0, 40.0), ("base", 1, 44.0), ("SWA", 0, 42.0), ("SWA", 1, 43.0), ("SWA", 2, 90.0)]
    made = {"short": lines, "smoke": [("base", 0, 1.0), ("SWA", 0, 2.0)], "paper": [("SWA", 0, 70.0)]}

    def records(paper: object, item: str, scale: str, folders: object) -> pd.DataFrame:
        table = pd.DataFrame(made[scale], columns=["row", "seed", "result"])
        return table.assign(column="ConvNet", precision="float32")

    monkeypatch.setattr("fedrepro.notebooks.book.verdict.records", records)
    scale, found = book.differences({"SWA": "base", "loss": "base"}, "ConvNet")
    assert scale == "short"  # at paper scale there is no baseline
    assert found.values.tolist() == [["SWA", 0, 2.0], ["SWA", 1, -1.0]]
    scale, found = book.differences({"SWA": "", "base": ""}, "ConvNet")
    assert (scale, found.values.tolist()) == ("paper", [["SWA", 0, 70.0]])
    with pytest.raises(ValueError, match="nothing of fedbe/paper_vs_code in 'ResNet-20' has been run beside"):
        book.differences({"SWA": "base"}, "ResNet-20")


def test_differences_are_of_one_precision() -> None:
    lines = [("base", 0, "float32", 40.0), ("SWA", 0, "bfloat16", 42.0), ("SWA", 1, "float32", 43.0)]
    lines += [("base", 1, "float32", 41.0)]
    made = pd.DataFrame(lines, columns=["row", "seed", "precision", "result"]).assign(column="x")
    assert tables.above(made, {"SWA": "base"}, "x").values.tolist() == [["SWA", 1, 2.0]]


def test_cells_that_share_a_run_play_it_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[Run] = []
    record = {"rows": [{"accuracy": 40.0}, {"accuracy": 60.0}], "answer": "student"}

    def play(runs: list[Run], store: object, **_: object) -> list[Outcome]:
        asked.extend(runs)
        return [Outcome(run.setting.key, "done", dict(record)) for run in runs]

    monkeypatch.setenv("FEDREPRO_RUNS", str(tmp_path))
    monkeypatch.setattr("fedrepro.notebooks.book.play_all", play)
    monkeypatch.setattr("fedrepro.notebooks.book.record.write", lambda *_: [])
    monkeypatch.setattr(Book, "results", property(lambda book: [cell.row for cell, _, _ in book._found()]))
    book = Book("fedbe/table2_targets", scale="smoke", seeds=2, device="cpu")
    one, other, *_ = book.cells
    aims = [("one", one, 50.0), ("all", one, 60.0), ("other", other, 70.0)]
    book.cells = [replace(cell, row=row, reading=Reading(at="first", target=target)) for row, cell, target in aims]
    assert book.run(progress=False) == ["one", "all", "other"] * 2
    assert [(run.setting, run.seed, run.until) for run in asked] == [
        (setting, seed, ("answer", target))
        for seed in (0, 1)
        for setting, target in ((one.setting, 60.0), (other.setting, 70.0))
    ]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seeds": "2"}, "seeds must be a whole number >= 1, got '2'"),
        ({"seeds": 2.0}, "seeds must be a whole number >= 1, got 2.0"),
        ({"seeds": True}, "seeds must be a whole number >= 1, got True"),
        ({"seeds": None}, "seeds must be a whole number >= 1, got None"),
        ({"seeds": 0}, "seeds must be a whole number >= 1, got 0"),
        ({"scale": "Smoke"}, "scale must be smoke or short or paper, got 'Smoke' (did you mean 'smoke'?)"),
        ({"scale": 1}, "scale must be smoke or short or paper, got 1"),
        ({"device": 0}, "device must be auto, cpu or cuda, got 0"),
        ({"device": "gpu"}, "device must be auto, cpu or cuda, got 'gpu'"),
        ({"item": 3}, 'item must be a text such as "fedbe/table1_methods", got 3'),
        ({"item": "fedbe"}, "item must be one of fedbe/table1_methods, "),
        ({"item": "fedbe/"}, "item must be one of fedbe/table1_methods, "),
        ({"item": "fedbe/table2_target"}, "unknown item 'fedbe/table2_target'"),
        ({"out": 3}, "out must be the name of a folder, got 3"),
        ({"out": None}, "out must be the name of a folder, got None"),
        ({"out": "~nosuchuser/x"}, "out must be the name of a folder, got '~nosuchuser/x'"),
        ({"out": __file__}, "out must be the name of a folder, "),
    ],
)
def test_every_parameter_is_checked(change: dict[str, Any], message: str) -> None:
    given: dict[str, Any] = {"item": "fedbe/table2_targets", "scale": "smoke", "seeds": 1, "device": "cpu"}
    with pytest.raises(ValueError) as caught:
        Book(**(given | change))
    assert str(caught.value).startswith(message)


def test_progress_is_checked_and_a_tilde_is_the_home_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    book = Book("fedbe/table2_targets", scale="smoke", seeds=1, device="cpu", out="~/mine")
    assert book.folder == tmp_path / "mine"
    with pytest.raises(ValueError, match="progress must be True or False, got 1"):
        book.run(progress=1)  # type: ignore[arg-type]


def test_labels_and_precision_of_the_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDREPRO_ONLY", '["Step", "ConvNet", "FedAvg", "FedBE"]')
    monkeypatch.setenv("FEDREPRO_PRECISION", "bfloat16")
    book = Book("fedbe/table1_methods", scale="smoke", seeds=1, device="cpu")
    assert len(book.cells) == 22  # all can be looked at
    assert {cell.setting.precision for cell in book.cells} == {"bfloat16"}
    played = [cell.row for cell in given.meant(book.item, "smoke", book.cells)]
    assert played == ["Step/FedAvg", "Step/FedBE"]
    for name in ("FEDREPRO_ONLY", "FEDREPRO_PRECISION"):
        monkeypatch.setenv(name, "")
    book = Book("fedbe/table1_methods", scale="smoke", seeds=1, device="cpu")
    assert given.meant(book.item, "smoke", book.cells) == book.cells
    assert {cell.setting.precision for cell in book.cells} == {"float32"}


def test_outside_a_checkout_nothing_is_recorded_or_judged(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    inside = Book("fedbe/table2_targets", scale="smoke", seeds=1, device="cpu", out=str(tmp_path))
    (cell, *_) = inside.cells
    values = pd.DataFrame([(cell.row, cell.column, seed, 72.0 + seed) for seed in range(3)])
    values.columns = pd.Index(["row", "column", "seed", "result"])
    for scale in ("paper", "short", "smoke"):
        write_values(tmp_path, "fedbe/table2_targets", scale, values, cell.setting, UNKNOWN)
    assert "recorded at paper scale" in inside.table().lines
    assert "not judged" not in set(inside.comparison()["verdict"])
    monkeypatch.setattr("fedrepro.core.paths.checkout", lambda: None)
    book = Book("fedbe/table2_targets", scale="smoke", seeds=1, device="cpu", out=str(tmp_path))
    every = book.comparison()
    (found,) = every[(every["row"] == cell.row) & (every["column"] == cell.column)].to_dict("records")
    assert found["verdict"] == "not judged"
    assert np.isnan(found["gap_points"])
    assert found["recorded_mean"] == 73.0
    assert set(book.points()["source"]) == {"paper", "this run (paper)", "this run (short)", "this run (smoke)"}
    assert "this run at paper scale" in book.table().lines
    assert "recorded at paper scale" not in book.table().lines
    assert set(book.claims()["paper scale"]) <= {"not run", "to be seen"}
    assert book.recorded("short").empty
    with pytest.raises(FileNotFoundError, match="recorded results are part of the repository"):
        book.stored("figure2")


def test_a_comparison_without_numbers_has_no_points(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("paper", "recorded", "short", "smoke")
    facts = {f"{name}_{what}": pd.Series([NAN]) for name in names for what in ("mean", "std", "seeds", "runs")}
    empty = pd.DataFrame({"row": ["a"], "column": ["b"]} | facts)
    assert tables.points(empty).empty
    assert tables.points(empty, best=True).empty
    assert list(tables.points(empty).columns) == ["row", "column", "mean", "std", "runs", "source"]


@pytest.mark.parametrize(
    ("sources", "scale", "expected"),
    [
        (["paper", "recorded (short)"], "paper", "short"),
        (["paper", "recorded (short)", "recorded (paper)"], "paper", "paper"),
        (["paper", "recorded (short)"], "smoke", "smoke"),
        (["paper", "this run (smoke)"], "short", "smoke"),
        (["paper", "this run (paper)"], "paper", "paper"),
        (["paper"], "short", "short"),
    ],
)
def test_a_picture_has_no_larger_scales_name(sources: list[str], scale: str, expected: str) -> None:
    assert given.scale_of(pd.DataFrame({"source": sources}), scale) == expected
    assert given.scale_of(pd.DataFrame({"mean": [1.0]}), scale) == scale
