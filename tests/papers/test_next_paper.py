"""Another paper, with a method, a stage, an option and a measure of its own, from data alone.

No other module knows of it, and no other test: whoever adds a paper edits neither.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pandas as pd
import pytest

from fedrepro import papers
from fedrepro.cli import main
from fedrepro.core import paths
from fedrepro.core.rng import Streams
from fedrepro.core.setting import OPTIONS, Option, Setting, declare
from fedrepro.core.stack import Stack
from fedrepro.core.state import Memory, State
from fedrepro.federation.federation import Federation
from fedrepro.methods.compose import METHODS, Method, compose
from fedrepro.runs import record
from fedrepro.stages.combine import MeanOfProbabilities
from fedrepro.stages.distill import Keep
from fedrepro.stages.plan import sample
from fedrepro.stages.round import Round
from fedrepro.stages.teach import Nobody
from fedrepro.stages.train import local_sgd
from fedrepro.stages.weigh import shares

# What its methods read, and nothing else: values of other papers' stages stay at their neutral value.
SETTINGS = """
title = "The next paper"
[values]
data = { value = "cifar10", stated = "section 4" }
model = { value = "convnet", stated = "section 4" }
initialisation = { value = "xavier", assumed = "not stated" }
partition = { value = "iid", stated = "section 4" }
clients = { value = 10, stated = "section 4" }
rounds = { value = 50, stated = "section 4" }
local_epochs = { value = 5, stated = "section 4" }
client_batch = { value = 32, stated = "section 4" }
client_lr = { value = 0.05, stated = "section 4" }
method = { value = "fedpart", stated = "section 3" }
server_way = { value = 1.0, stated = "section 3" }
[presets.half]
set = { server_way = 0.5 }
paper = "the whole way"
code = "half of the way"
[labels.method]
FedPart = { method = "fedpart" }
FedAvg = { method = "fedavg" }
[[rule]]
when = { scale = "smoke" }
set = { data = "digits", clients = 3, client_images = 60, test_images = 100, rounds = 2, local_epochs = 1 }
"""
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
when = { way = "none" }
set = { server_way = 0.0 }
stated = "Table 1"
[[items.table1.rule]]
when = { way = "half" }
preset = "half"

[items.table2]
title = "How soon, and how far"
source = "Table 2"
claim = "The whole way is soon there."
row = "{method}"
column = "{number}"
seeds = { smoke = 1, short = 1, paper = 3 }
grids = [{ method = ["FedPart"], number = ["rounds to 1 %", "rounds to 101 %", "best", "after one round", "way"] }]
[items.table2.labels.number]
"rounds to 1 %" = { read = { at = "first", target = 1.0 } }
"rounds to 101 %" = { read = { at = "first", target = 101.0 } }
best = { read = { at = "best" } }
"after one round" = { read = { at = 1 } }
way = { read = { measure = "way gone" } }
"""
REPORTED = """item,source,row,column,metric,mean,std,runs,status,note
table1,Table 1,FedPart,all,test_acc_pct,90.0,1.0,3,ok,
table1,Table 1,FedPart,half,test_acc_pct,80.0,1.0,3,ok,
table2,Table 2,FedPart,rounds to 101 %,rounds_to_target,40.0,1.0,3,ok,
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
class PartOfTheWay:
    """The server's new stage: w_t + way (average - w_t)."""

    needs_clients: ClassVar[bool] = False

    way: float

    def __call__(self, round: Round, federation: Federation, streams: Streams) -> tuple[Stack, Memory]:
        """Return the model between the one sent out and the average."""
        params = round.state.models.params.lerp(round.average.params, self.way)
        return Stack(round.average.layout, params, round.average.buffers, round.average.counters), {}


def fedpart(setting: Setting) -> Method:
    """Compose the new method, with a measure of its own."""

    def length(state: State, round: Round, federation: Federation) -> dict[str, float]:
        return {"way gone": float((state.models.params - round.state.models.params).norm())}

    return compose(
        plan=sample(setting),
        train=local_sgd(setting),
        weigh=shares(setting),
        server=PartOfTheWay(way=setting.server_way),
        teach=Nobody(),
        combine=MeanOfProbabilities(sharpen=1.0),
        distill=Keep(),
        measures=[length],
    )


@pytest.fixture
def figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Put the new paper beside the others; returns where records go."""
    new = tmp_path / "papers" / "next"
    new.mkdir(parents=True)
    texts = {"settings.toml": SETTINGS, "items.toml": ITEMS, "reported.csv": REPORTED, "claims.toml": CLAIMS}
    for name, text in texts.items():
        (new / name).write_text(text)
    monkeypatch.setattr(papers, "FOLDER", new.parent)
    papers.load.cache_clear()
    monkeypatch.setitem(METHODS, "fedpart", fedpart)
    declare(server_way=Option("how far the server goes", neutral=1.0, example=0.5, where={"method": "fedpart"}))
    monkeypatch.setattr(paths, "recorded_folder", lambda: tmp_path / "figures")
    monkeypatch.setattr(paths, "results_folder", lambda: tmp_path / "results")
    monkeypatch.setenv("FEDREPRO_RUNS", str(tmp_path / "store"))
    yield tmp_path / "figures"
    del OPTIONS["server_way"]
    papers.load.cache_clear()


def test_it_is_listed_played_recorded_and_judged(figures: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list"]) == 0
    assert "next/table1" in capsys.readouterr().out
    assert main(["run", "next/table1", "--record"]) == 0
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


def test_one_run_stands_behind_several_cells(figures: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "next", "--record"]) == 0
    assert "9 done" in capsys.readouterr().out
    # The five cells of Table 2, and FedPart's whole way in Table 1, are one run; FedAvg and two ways are others.
    assert len(list((figures.parent / "store").glob("*/record.json"))) == 4
    found = record.read(figures, "next/table2", "smoke").set_index("column")
    rounds = record.read(figures, "next/table1", "smoke", rounds=True)
    accuracy = rounds[(rounds["row"] == "FedPart") & (rounds["column"] == "all")]["accuracy"].tolist()
    assert found["result"]["rounds to 1 %"] == 1
    assert found["result"]["rounds to 101 %"] == 2
    assert found["censored"].to_dict() == dict.fromkeys(found.index, 0) | {"rounds to 101 %": 1}
    assert found.loc["best", "result"] == max(accuracy)
    assert found.loc["after one round", "result"] == accuracy[0]
    measures = pd.read_csv(figures / "next" / "table1" / "smoke_measures.csv")
    assert list(measures.columns) == ["row", "column", "seed", "round", "measure", "value", "precision"]
    gone = measures[(measures["row"] == "FedPart") & (measures["column"] == "all")]
    assert gone["measure"].tolist() == ["way gone"] * 2
    assert found.loc["way", "result"] == pytest.approx(gone["value"].tolist()[-1], abs=1e-4)
    standing = measures[measures["column"] == "none"]
    assert standing["value"].tolist() == [0.0, 0.0]
    assert main(["report", "--record"]) == 0
    assert "nan" not in (figures / "report.md").read_text(encoding="utf-8")


def test_its_settings_say_where_they_come_from(figures: Path) -> None:
    paper = papers.load("next")
    sources = paper.sources("table1").set_index("name")
    assert len(sources) == 11  # no value of another paper's stages
    assert sources.loc["server_way", "value"] == [0.0, 0.5, 1.0]
    assert sources.loc["server_way", "source"] == (
        "section 3; for none stated: Table 1; for half assumed: not the paper but the code: half of the way"
    )
    fedavg = {cell.row: cell.setting for cell in paper.cells("table1", "paper")}["FedAvg"]
    assert "server_way" not in fedavg.hashed()  # at its neutral value it does not count
