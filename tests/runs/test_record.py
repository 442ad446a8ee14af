"""Records: one line per run and per round, merged by name, the same bytes from the same runs."""

import errno
import json
import random
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from fedrepro import papers
from fedrepro.core.files import StoreError
from fedrepro.core.setting import Setting
from fedrepro.papers import SCALES, Cell
from fedrepro.runs import record

ITEM = "fedbe/table1_methods"
CELLS = papers.load("fedbe").cells("table1_methods", "smoke")
WHERE: dict[str, Any] = {
    **{"device": "cpu: a processor, of 2 cores", "threads": 2, "torch": "2.14", "python": "3.11.7"},
    **{"fedrepro": "0.1", "commit": "0123456789", "date": "2026-01-31"},
}

Found = tuple[Cell, str, dict[str, Any]]


def run(cell: Cell = CELLS[0], *, seed: int = 0, rounds: int = 2, accuracy: float = 50.0) -> Found:
    """Return a cell with the key and the record of a run, whose accuracy grows by one point a round."""
    rows = [
        {
            **{"round": float(r), "accuracy": accuracy + r, "average_accuracy": 100 / 3, "teacher_accuracy": None},
            **{"ensemble_accuracy": 60.0 if r == rounds - 1 else None, "ensemble_size": 5.0},
            **{"train_loss": 0.123456, "distill_loss": None, "train_seconds": 1.0, "seconds": 2.0},
        }
        for r in range(rounds)
    ]
    made = {
        **{"setting": cell.setting.asdict(), "setting_key": cell.setting.key, "seed": seed, "rows": rows},
        **{"result": rows[-1]["accuracy"], "best_accuracy": 99.0, "split": "0123456789abcdef" * 4},
        **{"seconds": 2.0 * rounds, "provenance": WHERE},
    }
    return cell, f"{seed:012d}", made


def without_precision(setting: Setting) -> dict[str, Any]:
    """Return a setting's values but the precision, which stands in the lines: its key does not depend on it."""
    return {name: value for name, value in setting.asdict().items() if name != "precision"}


def texts(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (folder / ITEM).iterdir()}


def settings_of(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text())
    digests = found.pop("files")
    assert set(digests) == {other.name for other in path.parent.glob(f"{path.name.partition('_')[0]}*")}
    return found


def before_digests(place: Path) -> None:
    """Make of records what versions wrote that kept no digests."""
    for path in place.glob("*_settings.json"):
        found = json.loads(path.read_text())
        del found["files"]
        path.write_text(json.dumps(found))


def test_one_line_per_run_and_per_round(tmp_path: Path) -> None:
    names = record.write(tmp_path, ITEM, "smoke", [run(), run(seed=1, accuracy=70.0)])
    place = tmp_path / "fedbe" / "table1_methods"
    assert names == [place / f"smoke{end}" for end in (".csv", "_rounds.csv", "_settings.json")]
    head, *lines = names[0].read_text().splitlines()
    assert len(lines) == 2
    assert head.split(",") == record.RUN_COLUMNS
    table = record.read(tmp_path, ITEM, "smoke")
    assert table.loc[0].to_dict() == {
        **{"row": "Step/FedAvg", "column": "ConvNet", "seed": 0, "result": 51.0, "accuracy": 51.0},
        **{"best_accuracy": 99.0, "ensemble_accuracy": 60.0, "average_accuracy": 33.3333, "rounds": 2},
        **{"teacher_accuracy": pytest.approx(float("nan"), nan_ok=True), "setting_key": CELLS[0].setting.key},
        **{"key": "000000000000", "scale": "smoke", "precision": "float32", "engine": "plain", "seconds": 4.0},
        **{"device": "cpu: a processor, of 2 cores", "threads": 2, "torch": "2.14", "commit": "0123456789"},
        **{"date": "2026-01-31", "split": "0123456789ab"},
    }
    assert list(table["result"]) == [51.0, 71.0]
    rounds = record.read(tmp_path, ITEM, "smoke", rounds=True)
    assert list(rounds.columns) == record.ROUND_COLUMNS
    assert list(rounds["seed"]) == [0, 0, 1, 1]
    assert list(rounds["accuracy"]) == [50.0, 51.0, 70.0, 71.0]
    assert list(rounds["train_loss"]) == [0.1235] * 4
    assert settings_of(names[2]) == {CELLS[0].setting.key: without_precision(CELLS[0].setting)}


def test_rounds_are_whole_numbers(tmp_path: Path) -> None:
    record.write(tmp_path, ITEM, "smoke", [run()])
    lines = (tmp_path / ITEM / "smoke_rounds.csv").read_text().splitlines()
    assert [line.split(",")[:4] for line in lines[1:]] == [
        ["Step/FedAvg", "ConvNet", "0", "0"],
        ["Step/FedAvg", "ConvNet", "0", "1"],
    ]


def test_nothing_recorded_is_an_empty_table(tmp_path: Path) -> None:
    assert list(record.read(tmp_path, ITEM, "paper").columns) == record.RUN_COLUMNS
    assert list(record.read(tmp_path, ITEM, "paper", rounds=True).columns) == record.ROUND_COLUMNS
    record.write(tmp_path, ITEM, "paper", [])
    assert record.read(tmp_path, ITEM, "paper").empty


def test_runs_are_merged_by_row_column_and_seed(tmp_path: Path) -> None:
    record.write(tmp_path, ITEM, "smoke", [run(seed=0), run(seed=1)])
    record.write(tmp_path, ITEM, "smoke", [run(seed=1, accuracy=80.0), run(seed=2), run(CELLS[1], seed=0)])
    table = record.read(tmp_path, ITEM, "smoke")
    found = list(zip(table["row"], table["column"], table["seed"], table["result"]))
    assert found == [
        *[("Step/FedAvg", "ConvNet", seed, result) for seed, result in ((0, 51.0), (1, 81.0), (2, 51.0))],
        ("Step/FedBE", "ConvNet", 0, 51.0),
    ]
    rounds = record.read(tmp_path, ITEM, "smoke", rounds=True)
    assert list(rounds["accuracy"]) == [50.0, 51.0, 80.0, 81.0, 50.0, 51.0, 50.0, 51.0]


def test_a_run_in_another_precision_replaces_none(tmp_path: Path) -> None:
    cell = CELLS[0]
    half = Cell(ITEM, cell.labels, cell.row, cell.column, cell.setting.with_(precision="bfloat16"))
    record.write(tmp_path, ITEM, "smoke", [run(cell), run(cell, seed=1)])
    record.write(tmp_path, ITEM, "smoke", [run(half, accuracy=30.0)])
    table = record.read(tmp_path, ITEM, "smoke")
    found = sorted(zip(table["precision"], table["seed"], table["result"]))
    assert found == [("bfloat16", 0, 31.0), ("float32", 0, 51.0), ("float32", 1, 51.0)]
    rounds = record.read(tmp_path, ITEM, "smoke", rounds=True)
    assert len(rounds) == 6
    for lines in (table, rounds, table[table["seed"] == 0]):
        assert set(record.in_one_precision(lines)["precision"]) == {"float32"}
    alone = table[table["precision"] == "bfloat16"]
    assert record.in_one_precision(alone)["result"].tolist() == [31.0]


def test_files_from_before_precisions_were_told_apart_are_float32(tmp_path: Path) -> None:
    record.write(tmp_path, ITEM, "smoke", [run(), run(seed=1)])
    path = tmp_path / ITEM / "smoke_rounds.csv"
    pd.read_csv(path).drop(columns="precision").to_csv(path, index=False)
    before_digests(tmp_path / ITEM)
    assert list(record.read(tmp_path, ITEM, "smoke", rounds=True)["precision"]) == ["float32"] * 4
    record.write(tmp_path, ITEM, "smoke", [run()])
    assert list(record.read(tmp_path, ITEM, "smoke", rounds=True)["precision"]) == ["float32"] * 4


def test_the_rounds_of_a_replaced_run_all_go(tmp_path: Path) -> None:
    record.write(tmp_path, ITEM, "smoke", [run(rounds=4), run(seed=1, rounds=3)])
    record.write(tmp_path, ITEM, "smoke", [run(rounds=2)])
    rounds = record.read(tmp_path, ITEM, "smoke", rounds=True)
    assert list(zip(rounds["seed"], rounds["round"])) == [(0, 0), (0, 1), (1, 0), (1, 1), (1, 2)]


def test_the_same_run_found_twice_is_one_line(tmp_path: Path) -> None:
    record.write(tmp_path, ITEM, "smoke", [run(), run()])
    assert len(record.read(tmp_path, ITEM, "smoke")) == 1
    assert len(record.read(tmp_path, ITEM, "smoke", rounds=True)) == 2


def test_only_the_settings_in_use_are_kept(tmp_path: Path) -> None:
    changed = Cell(ITEM, CELLS[0].labels, CELLS[0].row, CELLS[0].column, CELLS[0].setting.with_(rounds=7))
    record.write(tmp_path, ITEM, "smoke", [run(), run(CELLS[1])])
    record.write(tmp_path, ITEM, "smoke", [run(changed)])
    settings = settings_of(tmp_path / ITEM / "smoke_settings.json")
    assert set(settings) == {changed.setting.key, CELLS[1].setting.key}
    assert settings[changed.setting.key]["rounds"] == 7


def test_scales_have_files_of_their_own(tmp_path: Path) -> None:
    for scale, accuracy in zip(SCALES, (10.0, 20.0, 30.0)):
        record.write(tmp_path, ITEM, scale, [run(accuracy=accuracy)])
    results = [list(record.read(tmp_path, ITEM, scale)["result"]) for scale in SCALES]
    assert results == [[11.0], [21.0], [31.0]]
    assert len(texts(tmp_path)) == 9
    with pytest.raises(ValueError, match=r"scale must be one of .* got 'medium'"):
        record.write(tmp_path, ITEM, "medium", [run()])


@pytest.mark.parametrize(
    "again",
    [lambda found: [], lambda found: found, lambda found: found[:1]],
    ids=["nothing", "everything", "a part"],
)
def test_writing_again_changes_no_byte(again: Callable[[list[Found]], list[Found]], tmp_path: Path) -> None:
    found = [run(cell, seed=seed, accuracy=100 / 7 * seed) for cell in CELLS[:5] for seed in range(3)]
    record.write(tmp_path, ITEM, "smoke", found)
    first = texts(tmp_path)
    record.write(tmp_path, ITEM, "smoke", again(found))
    assert texts(tmp_path) == first


def test_writing_at_once_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    true = record._merge

    def slow(path: Path, fresh: pd.DataFrame, by: list[str]) -> pd.DataFrame:
        merged = true(path, fresh, by)
        time.sleep(0.02)  # long enough for all others to read the file that this one is about to replace
        return merged

    monkeypatch.setattr(record, "_merge", slow)
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(lambda seed: record.write(tmp_path, ITEM, "smoke", [run(seed=seed)]), range(6)))
    assert list(record.read(tmp_path, ITEM, "smoke")["seed"]) == list(range(6))
    assert not [path for path in tmp_path.rglob("*") if "lock" in path.name]


def test_the_order_of_writing_does_not_matter(tmp_path: Path) -> None:
    found = [run(cell, seed=seed) for cell in CELLS[:5] for seed in range(3)]
    record.write(tmp_path / "one", ITEM, "smoke", found)
    random.Random(0).shuffle(found)
    for one in found:
        record.write(tmp_path / "other", ITEM, "smoke", [one])
    assert texts(tmp_path / "one") == texts(tmp_path / "other")
    assert b"\r" not in texts(tmp_path / "one")["smoke.csv"]


@pytest.mark.parametrize("name", ["012345678901", "12e456789012", "123456789012", "1e9999999999"])
def test_names_that_look_like_numbers_stay_names(name: str, tmp_path: Path) -> None:
    cell, _, made = run()
    made |= {"setting_key": name, "split": name, "provenance": WHERE | {"commit": name}}
    for _ in range(2):
        record.write(tmp_path, ITEM, "smoke", [(cell, name, made)])
        record.write(tmp_path, ITEM, "smoke", [])
    line = record.read(tmp_path, ITEM, "smoke").loc[0]
    assert [line[column] for column in ("setting_key", "key", "split", "commit")] == [name] * 4
    assert list(settings_of(tmp_path / ITEM / "smoke_settings.json")) == [name]


def test_records_from_before_engines_were_named_are_the_plain_kernels(tmp_path: Path) -> None:
    cell, key, made = run(seed=1)
    (path, *_) = record.write(tmp_path, ITEM, "smoke", [run()])
    old = record.read(tmp_path, ITEM, "smoke").drop(columns="engine")
    old.to_csv(path, index=False)
    before_digests(tmp_path / ITEM)
    made["provenance"] = WHERE | {"engine": "fused"}
    record.write(tmp_path, ITEM, "smoke", [(cell, key, made)])
    table = record.read(tmp_path, ITEM, "smoke")
    assert list(table.columns) == record.RUN_COLUMNS
    assert list(table["engine"]) == ["plain", "fused"]
    assert list(table["result"]) == [51.0, 51.0]


def test_a_full_disk_keeps_the_earlier_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    record.write(tmp_path, ITEM, "smoke", [run()])
    before = texts(tmp_path)
    monkeypatch.setattr("fedrepro.core.files.os.replace", full)
    with pytest.raises(StoreError, match=r"smoke\.csv: No space left on device"):
        record.write(tmp_path, ITEM, "smoke", [run(seed=1)])
    assert texts(tmp_path) == before


# -- items whose notebook computes its numbers itself ---------------------------------------------------------

TOY = papers.load("fedbe").cells("figure1_simplex", "smoke")[0].setting


def values(*results: float, row: str = "FedAvg") -> pd.DataFrame:
    return pd.DataFrame({"row": row, "column": "Swiss roll", "seed": range(len(results)), "result": list(results)})


def test_values_of_a_notebook_are_recorded_like_runs(tmp_path: Path) -> None:
    item = "fedbe/figure1_simplex"
    for _ in range(2):
        names = record.write_values(tmp_path, item, "paper", values(60.0, 200 / 3), TOY, WHERE)
    assert [name.name for name in names] == ["paper.csv", "paper_settings.json"]
    table = record.read(tmp_path, item, "paper")
    assert list(table.columns) == record.RUN_COLUMNS
    assert list(table["result"]) == [60.0, 66.6667]
    assert set(table["setting_key"]) == {TOY.key}
    assert set(table["commit"]) == {"0123456789"}
    assert set(table["scale"]) == {"paper"}
    assert settings_of(names[1]) == {TOY.key: without_precision(TOY)}


def test_every_line_of_a_notebook_keeps_its_setting(tmp_path: Path) -> None:
    item, other = "fedbe/figure1_simplex", TOY.with_(noise=0.2)
    record.write_values(tmp_path, item, "paper", values(60.0), TOY, WHERE)
    (_, path) = record.write_values(tmp_path, item, "paper", values(70.0, row="Ensemble"), other, WHERE)
    assert set(record.read(tmp_path, item, "paper")["setting_key"]) == {TOY.key, other.key}
    assert set(settings_of(path)) == {TOY.key, other.key}


def test_hits_have_a_file_of_their_own(tmp_path: Path) -> None:
    cell, key, made = run()
    told = made | {"hits": "g0A=", "images": 10}
    record.write(tmp_path, ITEM, "short", [(cell, key, told), run(seed=1)])
    path = tmp_path / ITEM / "short_hits.csv"
    assert (
        path.read_text() == f"row,column,seed,images,hits,precision\n{cell.row},{cell.column},0,10,g0A=,float32\n"
    )
    record.write(tmp_path, ITEM, "short", [run()])  # played again by a version that kept none
    assert path.read_text() == "row,column,seed,images,hits,precision\n"


def test_lines_of_other_runs_keep_their_bytes(tmp_path: Path) -> None:
    record.write(tmp_path, ITEM, "short", [run(accuracy=45.35)])
    before = texts(tmp_path)["short.csv"].decode().splitlines()[1]
    assert ",60.0000," in before
    cell, key, made = run(seed=1)
    rows = [{**row, "ensemble_accuracy": None} for row in made["rows"]]  # a method without an ensemble
    record.write(tmp_path, ITEM, "short", [(cell, key, made | {"rows": rows})])
    assert before in texts(tmp_path)["short.csv"].decode().splitlines()


def test_what_could_not_be_read_again_is_not_written(tmp_path: Path) -> None:
    record.write(tmp_path, ITEM, "smoke", [run()])
    before = texts(tmp_path)
    cell, key, made = run(seed=1)
    made["provenance"] = WHERE | {"device": "cpu: a\rb"}
    with pytest.raises(ValueError, match=r"smoke\.csv, line \d: "):
        record.write(tmp_path, ITEM, "smoke", [(cell, key, made)])
    assert texts(tmp_path) == before
