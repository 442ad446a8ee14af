"""A paper's files that are damaged name themselves, with the line where there is one."""

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from fedrepro import papers
from fedrepro.papers import read

FEDBE = Path(papers.__file__).parent / "fedbe"
Change = Callable[[str], str]
CUT = len((FEDBE / "reported.csv").read_text())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(FEDBE, tmp_path / "fedbe"))


CHANGES: dict[str, tuple[str, Change, str]] = {
    "a conflict in numbers": (
        "reported.csv",
        lambda text: text.replace("\n", "\n<<<<<<< HEAD\n", 1),
        r"reported\.csv, line 2: 1 fields, not 10",
    ),
    "numbers cut inside a line": (
        "reported.csv",
        lambda text: text[: CUT // 2],
        r"d\.csv, line \d+: cut off",
    ),
    "a number that is none": (
        "reported.csv",
        lambda text: text.replace(",72.0,", ",72.0.0,", 1),
        r"reported\.csv, line 2: mean must be a number, got '72\.0\.0'",
    ),
    "another header": (
        "reported.csv",
        lambda text: text.replace("metric", "metrik", 1),
        r"reported\.csv, line 1: not the header of reported numbers, without metric",
    ),
    "no numbers at all": ("reported.csv", lambda text: "", r"reported\.csv, line 1: cut off"),
    "a conflict in settings": ("settings.toml", lambda text: f"<<<<<<< HEAD\n{text}", r"settings\.toml: .*line 1"),
    "items cut": (
        "items.toml",
        lambda text: text[: len(text) // 2 + 7] + '"',
        r"items\.toml: .*(line \d+|end of document)",
    ),
    "a conflict in claims": ("claims.toml", lambda text: f"<<<<<<< HEAD\n{text}", r"claims\.toml: .*line 1"),
    "a label of two lines": (
        "items.toml",
        lambda text: text.replace('"ConvNet"', '"Conv\\rNet"', 1),
        r"items\.toml: \w+: a label must be a text in one line, without spaces around it, got 'Conv\\rNet'",
    ),
    "an item without seeds": (
        "items.toml",
        lambda text: re.sub(r"^seeds = .*$", "", text, count=1, flags=re.MULTILINE),
        r"fedbe: settings\.toml or items\.toml lacks 'seeds'",
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_is_damaged_is_named(change: str, folder: Path) -> None:
    name, function, words = CHANGES[change]
    path = folder / name
    path.write_text(function(path.read_text("utf-8")), "utf-8")
    with pytest.raises(ValueError, match=words) as caught:
        read.paper(folder)
    assert f"{folder.name}/{name}" in str(caught.value) or "lacks 'seeds'" in str(caught.value)


@pytest.mark.parametrize("name", ["settings.toml", "items.toml", "reported.csv", "claims.toml"])
def test_what_is_no_utf8_is_named(name: str, folder: Path) -> None:
    content = (folder / name).read_bytes()
    (folder / name).write_bytes(content.replace(b"\n", b"\n\xff", 1))
    with pytest.raises(ValueError, match=rf"{re.escape(name)}, line 2: not UTF-8"):
        read.paper(folder)


def test_labels_stay_texts(folder: Path) -> None:
    path = folder / "reported.csv"
    with path.open("a") as file:
        file.write("t,Table 0,None,NA,test_acc_pct,70.0,,,ok,null\n")
    last = read.paper(folder).reported.iloc[-1]
    assert (last["row"], last["column"], last["note"]) == ("None", "NA", "null")
    assert last["std"] != last["std"]  # not printed
