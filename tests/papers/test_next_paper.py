"""Another paper, with a method, a stage and an option of its own, from data alone: no other module knows of it."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from fedrepro import papers
from fedrepro.cli import main
from fedrepro.core import paths
from fedrepro.core.setting import OPTIONS, Setting, declare
from fedrepro.core.stack import Stack
from fedrepro.core.state import Memory, State
from fedrepro.federation.federation import Federation
from fedrepro.methods import catalogue as methods
from fedrepro.methods.compose import Method, compose
from fedrepro.runs import record
from fedrepro.stages.combine import MeanOfProbabilities
from fedrepro.stages.distill import Keep
from fedrepro.stages.server import Replace
from fedrepro.stages.teach import Nobody

ITEMS = """
[items.table1]
title = "A server that goes part of the way"
source = "Table 1"
claim = "Going all of the way is best."
row = "{method}"
column = "{way}"
seeds = { smoke = 1, short = 1, paper = 3 }
grids = [
  { method = ["FedPart"], way = ["none", "half", "all"] },
  { method = ["FedAvg"], way = ["all"] },
]
[[items.table1.rule]]
when = { method = "FedPart" }
set = { method = "fedpart" }
[[items.table1.rule]]
when = { method = "FedAvg" }
set = { method = "fedavg" }
[[items.table1.rule]]
when = { way = "none" }
set = { server_way = 0.0 }
stated = "Table 1"
[[items.table1.rule]]
when = { way = "half" }
preset = "half"
"""
REPORTED = """item,source,row,column,metric,mean,std,runs,status,note
table1,Table 1,FedPart,all,test_acc_pct,90.0,1.0,3,ok,
table1,Table 1,FedPart,half,test_acc_pct,80.0,1.0,3,ok,
"""
CLAIMS = """
[[claim]]
id = "all-above-none"
text = "All of the way is better than none of it."
place = "section 5"
item = "table1"
kind = "greater"
left = { row = "FedPart", column = "all" }
right = { row = "FedPart", column = "none" }
"""


@dataclass(frozen=True, kw_only=True)
class PartOfTheWay(Replace):
    """The server's new stage: w_t + way (average - w_t)."""

    way: float

    def __call__(
        self, average: Stack, clients: Stack, state: State, federation: Federation
    ) -> tuple[Stack, Memory]:
        """Return the model between the one sent out and the average."""
        params = state.models.params.lerp(average.params, self.way)
        return Stack(average.layout, params, average.buffers, average.counters), {}


def fedpart(setting: Setting) -> Method:
    """Compose the new method."""
    return compose(
        plan=methods.plan(setting),
        train=methods.local_sgd(setting),
        weigh=methods.weigh(setting),
        server=PartOfTheWay(way=setting.option("server_way")),
        teach=Nobody(),
        combine=MeanOfProbabilities(sharpen=1.0),
        distill=Keep(),
    )


@pytest.fixture
def figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Put the new paper beside the others; returns where records go."""
    known, new = papers.load("fedbe").settings.to_dict("records"), tmp_path / "papers" / "next"
    values = [{**line, "value": json.dumps(line["value"])} for line in known]
    lines = [f"{v['name']} = {{ value = {v['value']}, {v['kind']} = {json.dumps(v['source'])} }}" for v in values]
    lines.append('server_way = { value = 1.0, stated = "section 3" }')
    smoke = {
        "data": "digits",
        "model": "convnet",
        "clients": 3,
        "public_images": 0,
        "client_images": 60,
        "rounds": 2,
    }
    smoke |= {"partition": "iid", "local_epochs": 1, "client_batch": 12, "test_images": 100}
    shown = ", ".join(f"{name} = {json.dumps(value)}" for name, value in smoke.items())
    settings = ['title = "The next paper"', "[values]", *lines, "[presets.half]", "set = { server_way = 0.5 }"]
    settings += ['paper = "the whole way"', 'code = "half of the way"']
    settings += ["[[rule]]", 'when = { scale = "smoke" }', f"set = {{ {shown} }}"]
    new.mkdir(parents=True)
    texts = {"settings.toml": "\n".join(settings), "items.toml": ITEMS, "reported.csv": REPORTED}
    for name, text in (texts | {"claims.toml": CLAIMS}).items():
        (new / name).write_text(text)
    monkeypatch.setattr(papers, "FOLDER", new.parent)
    papers.load.cache_clear()
    monkeypatch.setitem(methods.METHODS, "fedpart", fedpart)
    declare(server_way=1.0)
    monkeypatch.setattr(paths, "recorded_folder", lambda: tmp_path / "figures")
    monkeypatch.setattr(paths, "results_folder", lambda: tmp_path / "results")
    monkeypatch.setenv("FEDREPRO_RUNS", str(tmp_path / "store"))
    yield tmp_path / "figures"
    del OPTIONS["server_way"]
    papers.load.cache_clear()


def test_it_is_listed_played_recorded_and_judged(figures: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list"]) == 0
    assert "next/table1" in capsys.readouterr().out
    assert main(["run", "next", "--record"]) == 0
    assert "runs: 4 done" in capsys.readouterr().out
    made = record.read(figures, "next/table1", "smoke", rounds=True).set_index(["row", "column", "round"])
    accuracy = made["accuracy"]
    assert accuracy["FedPart", "none", 0] == accuracy["FedPart", "none", 1]  # the model never moves
    assert list(accuracy["FedPart", "all"]) == list(accuracy["FedAvg", "all"])
    second = [made["train_loss"]["FedPart", way, 1] for way in ("none", "half", "all")]
    assert len(set(second)) == 3  # clients start the second round from three models
    assert main(["report", "--record"]) == 0
    text = (figures / "report.md").read_text(encoding="utf-8")
    assert "The next paper" in text
    assert "All of the way is better than none of it." in text


def test_its_settings_say_where_they_come_from(figures: Path) -> None:
    paper = papers.load("next")
    sources = paper.sources("table1").set_index("name")
    assert sources.loc["server_way", "value"] == [0.0, 0.5, 1.0]
    assert sources.loc["server_way", "source"] == (
        "section 3; for none stated: Table 1; for half assumed: not the paper but the code: half of the way"
    )
    assert {cell.row: cell.setting.options for cell in paper.cells("table1", "paper")}["FedAvg"] == ()
