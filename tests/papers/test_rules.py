"""A paper's files: what labels, rules, readings and scales make of a cell, and what is refused."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedrepro import papers
from fedrepro.papers import Cell, Paper, Reading, read
from fedrepro.papers.rules import rules

REPORTED = "item,source,row,column,metric,mean,std,runs,status,note\n"
ITEM = """
title = "A title"
source = "Table 1"
claim = "A claim."
row = "{method}"
column = "{alpha}"
seeds = { smoke = 1, short = 1, paper = 3 }
grids = [{ method = ["FedAvg", "FedBE"], alpha = ["0.1", "10"] }]
"""
Write = Callable[..., Paper]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write a paper with FedBE's values and one item, and read it."""

    def write(
        item: str = "", settings: str = "", reported: str = "", every: str = ITEM, title: str = "New"
    ) -> Paper:
        folder = tmp_path / "new"
        folder.mkdir(exist_ok=True)
        (folder / "settings.toml").write_text(f'title = "{title}"\n{settings}')
        (folder / "items.toml").write_text(f"[items.t]\n{every}{item}")
        (folder / "reported.csv").write_text(REPORTED + reported)
        return replace(read.paper(folder), settings=papers.load("fedbe").settings)

    return write


def cell(paper: Paper, row: str = "FedBE", column: str = "0.1", scale: str = "paper") -> Cell:
    return next(c for c in paper.cells("t", scale) if (c.row, c.column) == (row, column))


def values(paper: Paper, name: str, **cell_: str) -> Any:
    return cell(paper, **cell_).setting.asdict()[name]


def source(paper: Paper, name: str) -> str:
    return str(paper.sources("t").set_index("name").loc[name, "source"])


# -- labels -----------------------------------------------------------------------------------------------------


def test_one_line_a_label_with_its_source_and_what_it_sets_at_a_scale(write: Write) -> None:
    line = 'labels.method = { FedBE = { samples = 4, stated = "3", smoke = { samples = 1, rounds = 2 } } }'
    paper = write(line)
    assert [values(paper, "samples", scale=scale) for scale in papers.SCALES] == [1, 4, 4]
    assert [values(paper, "rounds", scale=scale) for scale in papers.SCALES] == [2, 40, 40]
    assert values(paper, "samples", row="FedAvg") == 10
    assert source(paper, "samples") == "5.1: M = 10; for FedBE stated: 3"


def test_each_label_is_the_value_of_one_setting(write: Write) -> None:
    paper = write('labels.alpha = { set = "partition_alpha", assumed = "ours", stated_for = { 10 = "Fig. 1" } }')
    assert [values(paper, "partition_alpha", column=column) for column in ("0.1", "10")] == [0.1, 10.0]
    line = paper.sources("t").set_index("name").loc["partition_alpha"]
    assert (line["kind"], line["value"]) == ("stated, assumed", [0.1, 10.0])
    assert source(paper, "partition_alpha").endswith("; for 0.1 assumed: ours; for 10 stated: Fig. 1")


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ('values = ["10"]', [100, 10]),  # the other keeps what it has
        ("values = { 10 = 7 }", [100, 7]),
        ('values = ["10"], smoke = { "0.1" = 3 }', [100, 10]),
    ],
)
def test_some_labels_or_their_values(write: Write, given: str, wanted: list[int]) -> None:
    paper = write(
        f'rule = [{{ set = {{ rounds = 100 }}, stated = "3" }}]\nlabels.alpha = {{ set = "rounds", {given} }}'
    )
    assert [values(paper, "rounds", column=column) for column in ("0.1", "10")] == wanted
    assert values(paper, "rounds", scale="smoke") == (3 if "smoke" in given else 100)


def test_a_preset_in_a_label_says_where_it_comes_from(write: Write) -> None:
    preset = '[presets.theirs]\nset = { samples = 3, sharpen = 1.0 }\npaper = "ten"\ncode = "three"\n'
    paper = write('labels.method = { FedBE = { preset = "theirs", sharpen = 4.0 } }', preset)
    assert (values(paper, "samples"), values(paper, "sharpen")) == (3, 4.0)
    assert source(paper, "samples").endswith("; for FedBE assumed: not the paper but the code: three")


# -- the order of rules ---------------------------------------------------------------------------------------


def test_what_is_general_gives_way_to_what_is_particular_and_all_to_a_scale(write: Write) -> None:
    settings = """
[labels.method]
FedBE = { rounds = 2, stated = "x" }
[[rule]]
when = { scale = "smoke" }
set = { rounds = 10 }
[[rule]]
when = { method = "FedBE", alpha = "0.1" }
set = { rounds = 3 }
[[rule]]
set = { rounds = 1 }
"""
    assert [values(write("", settings), "rounds", column=column) for column in ("0.1", "10")] == [3, 2]
    assert values(write("", settings), "rounds", row="FedAvg") == 1
    own = 'rule = [{ set = { rounds = 4 } }, { when = { alpha = "10" }, set = { rounds = 6 } }]\n'
    own += "labels.method = { FedBE = { rounds = 5 } }"
    paper = write(own, settings)  # an item's come after the paper's
    assert [values(paper, "rounds", column=column) for column in ("0.1", "10")] == [5, 6]
    assert values(paper, "rounds", row="FedAvg") == 4
    assert values(paper, "rounds", scale="smoke") == 10  # the paper's scale after the item's labels
    own = own.replace("rule = [", 'rule = [{ when = { scale = "smoke" }, set = { rounds = 11 } }, ')
    last = write(own, settings)
    assert values(last, "rounds", scale="smoke") == 11


def test_a_rule_can_be_about_any_of_several_labels(write: Write) -> None:
    when = '{ alpha = ["0.1", "10"], method = "FedBE", scale = ["smoke", "paper"] }'
    paper = write(f'rule = [{{ when = {when}, set = {{ rounds = 3 }}, stated = "4" }}]')
    assert [values(paper, "rounds", scale=scale) for scale in papers.SCALES] == [3, 40, 3]
    assert values(paper, "rounds", row="FedAvg") == 40
    assert source(paper, "rounds").endswith("; for 0.1, 10, FedBE stated: 4")


# -- readings -------------------------------------------------------------------------------------------------


def test_several_cells_read_one_run(write: Write) -> None:
    lines = '"0.1" = { read = { at = "first", target = 80.0 } }\n10 = { read = { at = 20 }, smoke.read.at = 2 }'
    paper = write(f'read = {{ measure = "accuracy" }}\n[items.t.labels.alpha]\n{lines}')
    assert cell(paper).setting == cell(paper, column="10").setting
    assert cell(paper).reading == Reading(measure="accuracy", at="first", target=80.0)
    assert cell(paper, column="10").reading == Reading(measure="accuracy", at=20)
    assert cell(paper, column="10", scale="smoke").reading == Reading(measure="accuracy", at=2)
    assert cell(write()).reading == Reading()


# -- what is refused ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            'labels.alpha = { set = "partition_alfa" }',
            "unknown setting 'partition_alfa' (did you mean 'partition_alpha'?)",
        ),
        ('labels.alpha = { set = "samples" }', "the label '0.1' of alpha is no int for samples: give its value"),
        ('labels.alpha = { set = "augment_flip" }', "as it is bool: give the values of alpha"),
        ('labels.alpha = { set = "rounds", values = { 1 = 1 } }', "the axis alpha has no label '1'"),
        ('labels.alpha = { set = "partition_alpha", stated_for = { 1 = "x" } }', "unknown label '1'"),
        ('labels.alpha = { set = "partition_alpha", state = "x" }', "unknown key 'state' of the labels of alpha"),
        (
            "labels.method = { FedAVG = { rounds = 1 } }",
            "the axis method has no label 'FedAVG' (did you mean 'FedAvg'?)",
        ),
        ('labels.method = { FedBE = { preset = "theirs" } }', "unknown preset 'theirs'"),
    ],
)
def test_labels_that_mean_nothing(write: Write, line: str, message: str) -> None:
    with pytest.raises(ValueError) as error:
        write(line)
    assert str(error.value).startswith("new/items.toml: ")
    assert message in str(error.value)


@pytest.mark.parametrize("name", read.TEXTS)
@pytest.mark.parametrize("value", ["", " "])
def test_a_text_that_was_left_empty(write: Write, name: str, value: str) -> None:
    lines = [f'{name} = "{value}"' if line.startswith(f"{name} =") else line for line in ITEM.splitlines()]
    with pytest.raises(ValueError, match=f"new/items.toml: the {name} of t must be filled in, got '{value}'"):
        write(every="\n".join(lines))


def test_grids_and_a_title_that_were_left_empty(write: Write) -> None:
    with pytest.raises(ValueError, match=r"new/items.toml: the grids of t must be filled in, got \[\]"):
        write(every=ITEM.replace(ITEM[ITEM.index("grids") :], "grids = []"))
    with pytest.raises(ValueError, match=r"new/settings.toml: the title of the paper must be filled in, got ''"):
        write(title="")


def test_a_metric_that_nobody_knows(write: Write) -> None:
    line = "t,Table 1,FedBE,0.1,test_acc,70.0,,,ok,\n"
    with pytest.raises(
        ValueError, match=r"new/reported.csv: unknown metric 'test_acc' \(did you mean 'test_acc_pct'"
    ):
        write(reported=line)


@pytest.mark.parametrize("entry", ["{ value = 1 }", '{ value = 1, stated = "5.1", assumed = "why" }'])
def test_a_value_without_one_source(write: Write, entry: str) -> None:
    with pytest.raises(ValueError, match="new: rounds must be either stated or assumed"):
        write(settings=f"[values]\nrounds = {entry}\n")


def test_a_paper_s_labels_are_of_no_item_yet() -> None:
    found = rules({"labels": {"model": {"ConvNet": {"model": "convnet"}}}}, {}, {})
    assert found == ({"when": {"model": "ConvNet"}, "set": {"model": "convnet"}},)
