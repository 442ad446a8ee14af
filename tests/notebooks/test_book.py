"""What notebooks work with, beyond what running the notebooks shows."""

from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from fedrepro.notebooks.book import Book
from fedrepro.papers import Reading
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
        return pd.DataFrame(made[scale], columns=["row", "seed", "result"]).assign(column="ConvNet")

    monkeypatch.setattr("fedrepro.notebooks.book.verdict.records", records)
    scale, found = book.differences({"SWA": "base", "loss": "base"}, "ConvNet")
    assert scale == "short"  # at paper scale there is no baseline
    assert found.values.tolist() == [["SWA", 0, 2.0], ["SWA", 1, -1.0]]
    with pytest.raises(ValueError, match="nothing of fedbe/paper_vs_code in 'ResNet-20' has been run beside"):
        book.differences({"SWA": "base"}, "ResNet-20")


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
