"""Record files are read strictly: cut, merged by hand or damaged, they are named, and nothing is changed."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from test_record import CELLS, ITEM, TOY, WHERE, run, texts, values

from fedrepro.core.files import StoreError
from fedrepro.runs import record

PLACE = Path("fedbe", "table1_methods")
Change = Callable[[list[str]], list[str]]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Write the records of four runs of two rounds, with hits and measures."""
    found = []
    for cell in CELLS[:2]:
        for seed in range(2):
            _, key, made = run(cell, seed=seed)
            made = made | {"hits": "g0A=", "images": 10}
            made["rows"] = [row | {"measured": {"steps": 7.0}} for row in made["rows"]]
            found.append((cell, key, made))
    record.write(tmp_path, ITEM, "short", found)
    return tmp_path


def refused(folder: Path) -> str:
    """Return in what words reading and writing are refused; both are, in the same words, and change nothing."""
    before = texts(folder)
    said = []
    for attempt in (
        lambda: record.read(folder, ITEM, "short"),
        lambda: record.read(folder, ITEM, "short", rounds=True),
        lambda: record.write(folder, ITEM, "short", [run(CELLS[2])]),
        lambda: record.check(folder, [ITEM], "short"),
    ):
        with pytest.raises((ValueError, StoreError)) as caught:
            attempt()
        said.append(str(caught.value))
    assert texts(folder) == before
    assert len(set(said)) == 1
    assert "\n" not in said[0]
    return said[0]


MARKERS = ["<<<<<<< HEAD", "=======", ">>>>>>> other"]
CHANGES: dict[str, tuple[str, Change, str]] = {
    "a conflict": (
        "short.csv",
        lambda lines: [*lines[:2], MARKERS[0], lines[2], MARKERS[1], lines[2], MARKERS[2], *lines[3:]],
        r"short\.csv, line 3: a conflict marker of git: '<<<<<<< HEAD'",
    ),
    "a conflict at the top": ("short.csv", lambda lines: [MARKERS[0], *lines], r"short\.csv, line 1: a conflict"),
    "one line twice": (
        "short.csv",
        lambda lines: [*lines, lines[1]],
        r"line 6: the same row, .* line 2",
    ),
    "one seed twice": (
        "short.csv",
        lambda lines: [*lines, lines[1].replace("51.0000", "52.0000")],
        r"line 6: the same row, column, seed, precision as line 2: Step/FedAvg, ConvNet, 0, float32",
    ),
    "an unknown column": (
        "short.csv",
        lambda lines: [f"{lines[0]},more", *(f"{line},1" for line in lines[1:])],
        r"short\.csv, line 1: not the header of a record: with unknown 'more'",
    ),
    "a cut header": ("short.csv", lambda lines: ["row,column,seed,resu"], r"line 1: .*without result, accuracy"),
    "another header": ("short_rounds.csv", lambda lines: lines[1:], r"short_rounds\.csv, line 1: not the header"),
    "a column twice": (
        "short.csv",
        lambda lines: [f"{lines[0]},seed", *(f"{line},1" for line in lines[1:])],
        "a column twice",
    ),
    "a field too few": (
        "short.csv",
        lambda lines: [*lines[:2], lines[2].rpartition(",")[0], *lines[3:]],
        ": 21",
    ),
    "a field too many": (
        "short_hits.csv",
        lambda lines: [*lines[:2], f"{lines[2]},"],
        "line 3: 7",
    ),
    "no number": (
        "short.csv",
        lambda lines: [line.replace("51.0000", "51.0.0") for line in lines],
        r"short\.csv, line 2: result must be a finite number, got '51\.0\.0'",
    ),
    "a seed that is none": (
        "short.csv",
        lambda lines: [line.replace(",0,", ",1e3,", 1) for line in lines],
        r"short\.csv, line 2: seed must be a whole number of at most 15 digits, got '1e3'",
    ),
    "no finite accuracy": (
        "short.csv",
        lambda lines: [line.replace("51.0000", "1e999") for line in lines],
        r"short\.csv, line 2: result must be a finite number, got '1e999'",
    ),
    "an endless seed": (
        "short.csv",
        lambda lines: [line.replace(",0,", f",{10**20},", 1) for line in lines],
        r"short\.csv, line 2: seed must be a whole number of at most 15 digits",
    ),
    "more rounds than anybody has": (
        "short.csv",
        lambda lines: [re.sub(r",2,(?=\w{12},)", ",1000000000000,", line) for line in lines],
        r"short_rounds\.csv: 2 rounds of .*, not 1000000000000",
    ),
    "a cut date": (
        "short.csv",
        lambda lines: [line.replace("-01-31", "-0") for line in lines],
        "2: date",
    ),
    "another scale": (
        "short.csv",
        lambda lines: [line.replace(",short,", ",paper,") for line in lines],
        "a run of scale 'paper' among those of 'short'",
    ),
    "a run without rounds": (
        "short_rounds.csv",
        lambda lines: lines[:-2],
        r"_rounds\.csv: 0 rounds of",
    ),
    "a round less": ("short_rounds.csv", lambda lines: lines[:-1], r"short_rounds\.csv: 1 rounds of .*not 2"),
    "rounds without a run": (
        "short.csv",
        lambda lines: lines[:-1],
        r"no run 'Step/.*_rounds.csv has",
    ),
    "hits that are none": (
        "short_hits.csv",
        lambda lines: [lines[0], lines[1].replace("g0A=", "AAAA")],
        "hits of 10",
    ),
    "measures without a run": (
        "short_measures.csv",
        lambda lines: [*lines, lines[1].replace("FedAvg", "FedOther")],
        r"no run 'Step/FedOther', .*short_measures.csv has lines",
    ),
    "an open quote": ("short.csv", lambda lines: [*lines[:2], f'"{lines[2]}', *lines[3:]], r"short\.csv, line \d"),
    "settings with a conflict": (
        "short_settings.json",
        lambda lines: [lines[0], MARKERS[0], *lines[1:]],
        r"short_settings\.json, line 2: a conflict marker",
    ),
    "settings of half the runs": (
        "short_settings.json",
        lambda lines: [re.sub(r'^ "\w{12}"', ' "000000000000"', line) for line in lines],
        "short_settings.json",
    ),
    "settings that are a list": ("short_settings.json", lambda lines: ["[]"], "not an object of settings"),
    "a setting twice": (
        "short_settings.json",
        lambda lines: [*lines[:2], lines[2], *lines[2:]],
        r"short_settings\.json is damaged: 'augment_flip' stands there twice",
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_is_no_sound_record_is_named_and_left_as_it_is(change: str, folder: Path) -> None:
    name, function, words = CHANGES[change]
    path = folder / PLACE / name
    path.write_text("".join(f"{line}\n" for line in function(path.read_text().splitlines())))
    assert re.search(words, refused(folder))


def test_a_file_cut_anywhere_is_noticed(folder: Path) -> None:
    for name in ("short.csv", "short_rounds.csv", "short_settings.json"):
        path = folder / PLACE / name
        whole = path.read_bytes()
        last = len(whole) - (1 if name.endswith("json") else 0)  # only the end of the last line is missing there
        step = 13 if name == "short_rounds.csv" else 97
        for size in {*range(0, last, step), *(m.end() for m in re.finditer(b"\n", whole[: last - 1]))}:
            path.write_bytes(whole[:size])
            with pytest.raises(ValueError, match="short"):
                record.read(folder, ITEM, "short")
        path.write_bytes(whole)
    assert len(record.read(folder, ITEM, "short")) == 4


def test_a_line_that_is_lost_or_changed_anywhere_is_noticed(folder: Path) -> None:
    names = [path.name for path in (folder / PLACE).glob("short*")]
    assert {"short.csv", "short_rounds.csv", "short_measures.csv", "short_hits.csv"} < set(names)
    for name in names:
        path = folder / PLACE / name
        whole = path.read_bytes()
        ends = [m.end() for m in re.finditer(b"\n", whole)]
        harmed = [whole[:end] for end in ends[:-1]] + [whole[: ends[0]] + whole[ends[1] :]]
        digits = [m.start() for m in re.finditer(rb"[0-8]", whole)]
        harmed += [
            whole[:at] + bytes([whole[at] + 1]) + whole[at + 1 :] for at in digits[:: max(1, len(digits) // 40)]
        ]
        for content in harmed:
            path.write_bytes(content)
            with pytest.raises(ValueError, match=r"short"):
                record.read(folder, ITEM, "short")
        path.unlink()
        if name != "short_settings.json":
            assert name in refused(folder)
        path.write_bytes(whole)
    (folder / PLACE / "short_measures.csv").rename(folder / PLACE / "kept")
    assert re.search(r"short_measures\.csv is missing, which short_settings\.json knows", refused(folder))
    (folder / PLACE / "kept").rename(folder / PLACE / "short_measures.csv")
    assert len(record.read(folder, ITEM, "short")) == 4


def test_other_files_that_are_cut_inside_a_line_or_lack_their_text(folder: Path) -> None:
    path = folder / PLACE / "short_hits.csv"
    path.write_bytes(path.read_bytes()[:-3])
    assert re.search(r"short_hits\.csv, line 5: cut off", refused(folder))
    path.write_bytes(b"row,\xff\n")
    assert re.search(r"short_hits\.csv, line 1: not UTF-8", refused(folder))
    path.unlink()
    path.mkdir()
    with pytest.raises(StoreError, match=r"cannot read .*short_hits\.csv: Is a directory"):
        record.read(folder, ITEM, "short")


def test_other_scales_and_items_are_not_concerned(folder: Path) -> None:
    record.write(folder, ITEM, "paper", [run()])
    record.write(folder, "fedbe/table2_targets", "short", [run()])
    (folder / PLACE / "short.csv").write_text("")
    assert len(record.read(folder, ITEM, "paper")) == 1
    assert len(record.read(folder, "fedbe/table2_targets", "short")) == 1
    assert record.write(folder, ITEM, "paper", [run(seed=1)])


def test_a_record_whose_runs_were_removed_is_named(folder: Path) -> None:
    (folder / PLACE / "short.csv").unlink()
    assert re.search(r"short\.csv is missing, of which .*short_rounds\.csv has lines", refused(folder))


def test_the_committed_records_are_sound() -> None:
    figures = Path(record.__file__).parents[2] / "figures"
    found = sorted(figures.glob("*/*/*_settings.json"))
    assert found
    for path in found:
        scale = path.name.removesuffix("_settings.json")
        assert "files" in json.loads(path.read_text()), path  # and so each file is held against its digest
        assert len(record.read(figures, f"{path.parts[-3]}/{path.parts[-2]}", scale))


@pytest.mark.parametrize(
    "label", ["None", "NA", "nan", "null", "N/A", "", "1e5", "007", "True", 'a "b", c', "ü", "<<<<<<< x"]
)
def test_texts_stay_texts(label: str, tmp_path: Path) -> None:
    cell, key, made = run()
    named = replace(cell, row=label, column=label)
    made["rows"] = [row | {"measured": {label or "m": 1.0}} for row in made["rows"]]
    for seed in range(2):
        record.write(tmp_path, ITEM, "smoke", [(named, key, made | {"seed": seed, "hits": "g0A=", "images": 10})])
    table = record.read(tmp_path, ITEM, "smoke")
    assert list(zip(table["row"], table["column"], table["seed"])) == [(label, label, 0), (label, label, 1)]
    assert set(record.read(tmp_path, ITEM, "smoke", rounds=True)["row"]) == {label}
    assert len((tmp_path / PLACE / "smoke_measures.csv").read_text().splitlines()) == 5


def test_values_of_a_notebook_in_place_of_runs_leave_no_rounds_behind(folder: Path) -> None:
    fresh = values(60.0, 70.0, row=CELLS[0].row).assign(column=CELLS[0].column)
    record.write_values(folder, ITEM, "short", fresh, TOY, WHERE)
    assert sorted(record.read(folder, ITEM, "short")["result"]) == [51.0, 51.0, 60.0, 70.0]
    rounds = record.read(folder, ITEM, "short", rounds=True)
    assert list(zip(rounds["seed"], rounds["round"])) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert list(rounds["accuracy"]) == [50.0, 51.0] * 2
    assert ",50.0000," in (folder / PLACE / "short_rounds.csv").read_text()


class Killed(BaseException):
    """Ends a call as a kill would."""


@pytest.mark.parametrize("after", [0, 3, 5, 6, 8, 10])
def test_a_kill_while_records_are_written_leaves_old_or_new_ones(
    after: int, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    true, calls = os.replace, 0

    def stop(source: Any, target: Any) -> None:
        nonlocal calls
        calls += 1
        if calls > after:
            raise Killed
        true(source, target)

    with monkeypatch.context() as process:
        process.setattr("fedrepro.core.files.os.replace", stop)
        with pytest.raises(Killed):
            record.write(folder, ITEM, "short", [run(CELLS[0], rounds=3, accuracy=80.0)])
    table = record.read(folder, ITEM, "short")
    line = table[(table["row"] == CELLS[0].row) & (table["seed"] == 0)].iloc[0]
    rounds = record.read(folder, ITEM, "short", rounds=True)
    mine = rounds[(rounds["row"] == CELLS[0].row) & (rounds["seed"] == 0)]
    expected = (82.0, 3) if after > 5 else (51.0, 2)  # five contents, the journal, five names
    assert (line["result"], len(mine)) == expected
    record.write(folder, ITEM, "short", [run(CELLS[2])])
    assert len(record.read(folder, ITEM, "short")) == 5
    assert all(name.startswith("short") for name in texts(folder))


WRITE = """
import json, sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from test_record import ITEM, run
from fedrepro.runs import record
for seed in range(int(sys.argv[3]), int(sys.argv[3]) + 8):
    record.write(Path(sys.argv[1]), ITEM, "smoke", [run(seed=seed)])
"""


def test_two_processes_with_other_temporary_folders_keep_all_lines(tmp_path: Path) -> None:
    processes = []
    for first_seed in (0, 8):
        temporary = tmp_path / f"temporary {first_seed}"
        temporary.mkdir()
        command = [sys.executable, "-c", WRITE, str(tmp_path), str(Path(__file__).parent), str(first_seed)]
        processes.append(subprocess.Popen(command, env=os.environ | {"TMPDIR": str(temporary)}))
    assert [process.wait(timeout=120) for process in processes] == [0, 0]
    assert sorted(record.read(tmp_path, ITEM, "smoke")["seed"]) == list(range(16))


def test_whether_a_folder_can_be_written_is_asked_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record.check(tmp_path / "figures", [ITEM], "short")
    assert not list(tmp_path.iterdir())  # nothing is made
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match=r"cannot write into .*figures: Not a directory$"):
        record.check(tmp_path / "file" / "figures", [ITEM], "short")

    def refuse(**_: Any) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr("tempfile.TemporaryFile", refuse)
    with pytest.raises(StoreError, match=r"cannot write into .*: Read-only file system$"):
        record.check(tmp_path, [ITEM], "short")


def test_what_is_returned_may_be_changed(folder: Path) -> None:
    table = record.read(folder, ITEM, "short")
    table["result"] = 0.0
    assert list(record.read(folder, ITEM, "short")["result"]) == [51.0] * 4
    assert isinstance(json.loads((folder / PLACE / "short_settings.json").read_text()), dict)
    assert pd.api.types.is_integer_dtype(record.read(folder, ITEM, "short")["seed"])


def test_labels_that_are_numbers_alike_are_two(tmp_path: Path) -> None:
    cell, key, made = run()
    for label in ("1", "1.0", "01"):
        record.write(tmp_path, ITEM, "smoke", [(replace(cell, row=label), key, made)])
    assert sorted(record.read(tmp_path, ITEM, "smoke")["row"]) == ["01", "1", "1.0"]
