"""`fedrepro list`, `data`, `new` and `report`."""

from pathlib import Path

import pytest

from cli.cli_calls import FEDBE, TABLE, Call
from fedrepro.core import paths
from fedrepro.core.files import write_atomically
from fedrepro.report import report


def test_list(call: Call, tmp_path: Path) -> None:
    answer = call("list")
    assert answer.code == 0
    for item in FEDBE.items.values():
        assert item.key in answer.out
        assert item.title in answer.out
    assert "smoke: 22 cells x 1 seeds; missing; " in answer.out
    assert (
        "short: 15 cells x 5 seeds; missing; cifar10 (missing); 12.9 M images to train, 6.02 M to predict"
        in answer.out
    )
    assert f"store: {tmp_path / 'store'}" in answer.out
    assert not (tmp_path / "store").exists()  # looking makes nothing


def test_data_list(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDREPRO_DATA", str(tmp_path / "data"))
    answer = call("data", "list")
    assert answer.code == 0
    digits, photos, cifar10, cifar100, tiny_imagenet, root = answer.out.splitlines()
    assert photos.split()[:3] == ["photos", "ready", "120"]
    assert cifar100.split()[:3] == ["cifar100", "missing", "60000"]
    assert tiny_imagenet.split()[:3] == ["tiny_imagenet", "missing", "110000"]
    assert digits.split()[:3] == ["digits", "ready", "1797"]
    assert cifar10.split()[:3] == ["cifar10", "missing", "60000"]
    assert root == f"data root: {tmp_path / 'data'}"


def test_new_writes_into_the_checkout(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, Path]] = []

    def write(item: str, *, root: Path) -> list[Path]:
        asked.append((item, root))
        return [root / "notebooks" / f"{item}.ipynb", root / "items.toml"]

    monkeypatch.setattr("fedrepro.notebooks.new.new", write)
    monkeypatch.setattr(paths, "checkout", lambda: tmp_path)
    answer = call("new", "fedbe/table9_mine")
    assert asked == [("fedbe/table9_mine", tmp_path)]
    notebook = tmp_path / "notebooks" / "fedbe" / "table9_mine.ipynb"
    assert (answer.code, answer.out) == (0, f"wrote {notebook}\nwrote {tmp_path / 'items.toml'}\n")
    monkeypatch.setattr(paths, "checkout", lambda: None)
    answer = call("new", "fedbe/table9_mine")
    assert answer.code == 2
    assert answer.err == "fedrepro: a new item is part of the repository: install it with pip install -e .\n"
    assert len(asked) == 1


def test_report(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[Path, list[Path]]] = []

    def write(folder: Path, *, folders: list[Path]) -> tuple[Path, Path]:
        asked.append((folder, folders))
        return folder / "report.md", folder / "report.html"

    monkeypatch.setattr(report, "write_report", write)
    figures, made = tmp_path / "figures", tmp_path / "results" / "figures"
    empty = f"no records in {figures} or {made}: the report has the papers' numbers alone\n"
    paths_ = f"{made / 'report.md'}\n{made / 'report.html'}\n"
    answer = call("report")
    assert (answer.code, answer.out) == (0, empty + paths_)
    write_atomically(made / TABLE / "smoke.csv", b"row,column,seed\n")
    assert call("report").out == paths_
    assert call("report", "--record").code == 0
    # The committed report is of committed records.
    assert asked[1:] == [
        (made, [figures, made]),
        (figures, [figures]),
    ]
