"""Tutorials: their exercises tell right from wrong, they run with other numbers, and some are for people alone."""

import importlib.util
import json
import runpy
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from fedrepro import papers, plots
from fedrepro.cli import known
from fedrepro.core.setting import Setting
from fedrepro.core.stack import Stack, mix
from fedrepro.core.state import State
from fedrepro.federation.federation import Federation
from fedrepro.kernels.step import Sgd, Step
from fedrepro.notebooks import toy
from fedrepro.notebooks.exercises import check
from fedrepro.stages.combine import MeanOfProbabilities, sharpen
from fedrepro.stages.round import Round

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "notebooks" / "tutorials"
OPTIONAL = sorted((ROOT / "notebooks").rglob("optional/*.ipynb"))
ROLL = FOLDER / "02_ensembles_on_a_swiss_roll.ipynb"
HAND = FOLDER / "01_one_round_by_hand.ipynb"
TOY = papers.load("fedbe").cells("figure1_simplex", "paper")[0].setting.with_(rounds=1)


def code(path: Path) -> list[tuple[str, list[str]]]:
    """Return the source and the tags of every code cell."""
    cells = json.loads(path.read_text("utf-8"))["cells"]
    found = [cell for cell in cells if cell["cell_type"] == "code"]
    return [("".join(cell["source"]), cell["metadata"].get("tags", [])) for cell in found]


def answered(path: Path, answers: dict[str, str]) -> list[str]:
    """Return the exercises of a tutorial, with answers in place of None."""
    cells = [source for source, tags in code(path) if "exercise" in tags]
    made = []
    for source in cells:
        name = source.split(" = ", 1)[0]
        assert f"{name} = None  # your answer" in source
        made.append(source.replace("None  # your answer", answers[name], 1))
    assert len(made) == len(answers)
    return made


# exercises


def test_an_answer_is_missing_right_or_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    check(None, lambda answer: answer == 4, "add")
    check(4, lambda answer: answer == 4, "add")
    assert capsys.readouterr().out == "not answered yet\nright\n"
    with pytest.raises(AssertionError, match=r"^not right: add$"):
        check(5, lambda answer: answer == 4, "add")
    with pytest.raises(AssertionError, match=r"^not right: add \(TypeError: .+\)$"):
        check("4", lambda answer: answer + 1 == 5, "add")
    with pytest.raises(AssertionError, match="not right"):
        check(torch.zeros(2), lambda answer: answer, "add")  # of two elements nothing is true


def by_hand() -> dict[str, Any]:
    """Return what the first tutorial's exercises use, with small clients."""
    draw = torch.Generator().manual_seed(0)
    clients = Stack.of(*[torch.nn.Linear(2, 3) for _ in range(5)])
    probabilities = torch.rand(16, 6, 3, generator=draw).softmax(-1)
    return {
        "torch": torch, "check": check, "mix": mix, "sharpen": sharpen, "sgd": Step(rule=Sgd(momentum=0.9)),
        "clients": clients, "probabilities": probabilities, "network": None, "public": None,
        # whose softmax are the clients' probabilities
        "plain": SimpleNamespace(predict=lambda network, stack, data: probabilities[1:6].log()),
        "MeanOfProbabilities": MeanOfProbabilities,
    }  # fmt: skip


RIGHT = {
    "times": "1 + 1.9 + 2.71",  # the sum of v_1, v_2 and v_3, in units of g
    "uneven": "[[3 / 7, 1 / 7, 1 / 7, 1 / 7, 1 / 7]]",
    "of_the_clients": "sharpen(probabilities[1:6].mean(0), 2.0)",
}
WRONG = {
    "times": ["3", "2.71", "'five'"],
    "uneven": ["[[0.2] * 5]", "[[3.0, 1.0, 1.0, 1.0, 1.0]]", "'three'"],
    "of_the_clients": [
        "probabilities[1:6].mean(0)",
        "sharpen(probabilities.mean(0), 2.0)",
        "sharpen(probabilities[1:6], 2.0).mean(0)",
        "probabilities[1:6]",
    ],
}


def test_right_answers_of_the_first_tutorial(capsys: pytest.CaptureFixture[str]) -> None:
    for source in answered(HAND, RIGHT):
        exec(source, by_hand())
    assert capsys.readouterr().out == "right\n" * 3


@pytest.mark.parametrize(("name", "answer"), [(name, answer) for name in WRONG for answer in WRONG[name]])
def test_wrong_answers_of_the_first_tutorial(name: str, answer: str) -> None:
    cells = answered(HAND, RIGHT | {name: answer})
    with pytest.raises(AssertionError, match="not right: "):
        exec(cells[list(RIGHT).index(name)], by_hand())


ROLL_RIGHT = {
    "limit": "trace.shares[0]",
    "of_the_clients": "predicted.softmax(-1).mean(0)",
    "better": "grid[best].tolist()",
}
ROLL_WRONG = {
    "limit": "torch.eye(clients)[0]",
    "of_the_clients": "predicted.mean(0).softmax(-1)",
    "better": "(2 * grid[best]).tolist()",
}


@pytest.fixture(
    scope="module", params=[{"clients": 2, "noise": 0.0}, {"clients": 5, "turns": 1.5, "alpha": 100.0}]
)
def played(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Run the second tutorial up to section 6 and its exercises, with other numbers and one round."""
    space: dict[str, Any] = {}
    for source, tags in code(ROLL):
        if "toy.vary" in source or "of_alpha" in source:
            continue
        exec(source, space)
        if "parameters" in tags:
            assert request.param.keys() < space.keys()
            space |= request.param | {"rounds": 1, "samples": 3}
    return space


def test_the_toy_runs_with_other_numbers(played: dict[str, Any]) -> None:
    assert played["gammas"].shape == (3, played["clients"])
    assert torch.equal(played["sampled"].params, played["again"].params)
    assert len(played["learned"]) == played["clients"]


def test_exercises_of_the_toy(played: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    assert played["percent"].max() > played["fedavg"]  # else there is no answer to the third
    for source in answered(ROLL, ROLL_RIGHT):
        exec(source, dict(played))
    assert capsys.readouterr().out == "right\n" * 3
    for source in answered(ROLL, ROLL_WRONG):
        with pytest.raises(AssertionError, match="not right: "):
            exec(source, dict(played))


# the toy with other numbers of clients


def test_grids_of_the_simplex() -> None:
    three = [(i, j, 30 - i - j) for i in range(31) for j in range(31 - i)]  # the order of FedBE's Figure 1
    assert torch.equal(toy.simplex_grid(30), torch.tensor(three, dtype=torch.float64) / 30)
    assert toy.simplex_grid(2, 2).tolist() == [[0, 1], [0.5, 0.5], [1, 0]]
    assert toy.simplex_grid(7, 1).tolist() == [[1.0]]
    four = toy.simplex_grid(3, 4)
    assert len(four) == 20  # 6 over 3
    assert len(four.unique(dim=0)) == 20
    assert torch.allclose(four.sum(1), torch.ones(20, dtype=torch.float64))
    assert [toy.resolution_of(clients) for clients in (3, 4, 5, 600)] == [
        30,
        12,
        8,
        1,
    ]  # 496, 455, 495, 600 points
    with pytest.raises(ValueError, match="must be >= 1, got 0 and 3"):
        toy.simplex_grid(0)


def test_varying_what_is_read_afterwards_trains_once(monkeypatch: pytest.MonkeyPatch) -> None:
    counted, play = list[int](), toy.play

    def counting(setting: Setting, seed: int) -> tuple[Federation, State, Round]:
        counted.append(seed)
        return play(setting, seed)

    monkeypatch.setattr(toy, "play", counting)
    toy._played.cache_clear()
    found = toy.vary(TOY, "dirichlet_alpha", [0.1, 10.0], [4])
    assert counted == [4]
    assert list(found) == ["varied", "value", "seed", "name", "accuracy"]
    assert found["name"].tolist() == [*toy.VARIED] * 2
    assert found["value"].tolist() == [0.1] * 4 + [10.0] * 4
    again = toy.spread(TOY.with_(dirichlet_alpha=10.0), [4], resolution=10)
    assert found["accuracy"].tolist()[4:] == again["accuracy"].tolist()
    toy.vary(TOY, "turns", [0.6, 0.7], [4])
    assert counted == [4, 4, 4]  # spread's own, and that of the other turns
    toy._played.cache_clear()


def test_mixtures_are_told_by_their_distance() -> None:
    federation, state, trace = toy.play(TOY.with_(clients=2), 0)
    found = toy.mixtures(federation, trace, torch.tensor([[0.75, 0.25]]))
    assert found.groupby("kind").size().to_dict() == {"FedAvg": 1, "client": 2, "grid": 500, "sample": 1}
    far = found.set_index("kind")["distance"]
    assert far["sample"] == 0.25  # half of 0.25 + 0.25
    assert far["client"].tolist() == [0.5, 0.5]
    assert far["FedAvg"] == 0
    right = federation.predict(state.models, federation.test)[0].argmax(-1) == federation.test.labels
    assert found.set_index("kind").loc["FedAvg", "accuracy"] == pytest.approx(100 * right.double().mean().item())


def test_regions_are_what_a_model_predicts_there() -> None:
    federation, state, _ = toy.play(TOY, 0)
    found = toy.regions(federation, {"FedAvg": state.models}, side=3)["FedAvg"]
    assert found.shape == (3, 3)
    far = toy.edge(federation)
    points = torch.tensor([[-far, -far], [far, -far], [-far, far]])  # bottom left, bottom right, top left
    data = federation.test.subset(torch.arange(3))
    data = type(data)(data.name, points, data.labels, data.classes)
    expected = federation.predict(state.models, data)[0].argmax(-1)
    assert [found[0, 0], found[0, 2], found[2, 0]] == expected.tolist()


# pictures


def test_the_plane_has_a_panel_for_each_model() -> None:
    regions = {"a": np.zeros((4, 4), dtype=int), "b": np.full((4, 4), 2)}
    figure = plots.plane(regions, {"a": (np.zeros((2, 2)), np.array([0, 1]))}, edge=1.0, title="Plane")
    assert [axes.get_title() for axes in figure.axes if axes.axison] == ["a", "b"]
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["class 1", "class 2", "class 3"]
    with pytest.raises(ValueError, match="points for panels that are not there: c"):
        plots.plane(regions, {"c": (np.zeros((1, 2)), np.zeros(1, dtype=int))}, edge=1.0)
    with pytest.raises(ValueError, match="at least one panel"):
        plots.plane({}, {}, edge=1.0)


def test_the_best_mixture_has_a_star() -> None:
    frame = pd.DataFrame(
        {"kind": ["grid", "client", "FedAvg"], "distance": [0.2, 0.5, 0.0], "accuracy": [70.0, 60, 65]}
    )
    (axes,) = plots.mixtures(frame).axes
    labels = [text.get_text() for text in axes.figure.legends[0].get_texts()]
    assert labels == ["convex combinations", "samples of the posterior", "clients", "FedAvg", "best, 70.0 %"]
    assert np.asarray(axes.collections[-1].get_offsets()).tolist() == [[0.2, 70.0]]
    with pytest.raises(ValueError, match=r"kind must be one of .*, got corner"):
        plots.mixtures(frame.assign(kind="corner"))


def test_varied_values_are_evenly_apart() -> None:
    frame = pd.DataFrame(
        {"varied": "noise", "value": [0.0, 0.0, 9.0, 1.0], "seed": [0, 1, 0, 0], "name": "FedAvg"}
    )
    (axes,) = plots.varied(frame.assign(accuracy=[50.0, 60.0, 40.0, 70.0]), {"noise": "radius"}).axes
    assert np.asarray(axes.lines[0].get_xydata()).tolist() == [[0, 55], [1, 70], [2, 40]]
    assert [text.get_text() for text in axes.get_xticklabels()] == ["0", "1", "9"]
    assert axes.get_xlabel() == "radius"
    with pytest.raises(ValueError, match="no label for noise"):
        plots.varied(frame.assign(accuracy=1.0), {})


# for people alone


@pytest.mark.parametrize("path", OPTIONAL, ids=lambda path: path.stem)
def test_an_optional_notebook_is_valid_and_stored_without_outputs(path: Path) -> None:
    nbformat = pytest.importorskip("nbformat")
    nbformat.validate(nbformat.read(path, as_version=4))
    notebook = json.loads(path.read_text("utf-8"))
    assert notebook["metadata"]["kernelspec"]["name"] == "python3"
    assert "widgets" not in notebook["metadata"]
    for cell in notebook["cells"]:
        assert cell.get("outputs", []) == []
        assert cell.get("execution_count") is None
    for source, _ in code(path):
        compile(source, str(path), "exec")


def test_optional_notebooks_are_executed_by_no_command() -> None:
    assert OPTIONAL
    assert not [key for key in known.other_notebooks() if "optional" in key or "sliders" in key]
    assert "-not -path '*/optional/*'" in (ROOT / "Makefile").read_text("utf-8")
    ignored = runpy.run_path(str(ROOT / "notebooks" / "conftest.py"))["collect_ignore_glob"]
    assert all(any(path.parent.match(glob) for glob in ignored) for path in OPTIONAL)


def test_nbval_collects_no_optional_notebook() -> None:
    if importlib.util.find_spec("nbval") is None:
        pytest.skip("nbval is not installed")
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "no:xdist",
        "--nbval-lax",
        "--collect-only",
        "-q",
        str(FOLDER),
    ]
    told = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout
    assert HAND.name in told
    assert ROLL.name in told
    assert "sliders" not in told


def test_sliders_say_what_is_missing(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    (path,) = (path for path in OPTIONAL if path.stem == "02_sliders")
    monkeypatch.setitem(sys.modules, "ipywidgets", None)  # as if it were not installed
    shown: list[object] = []
    space: dict[str, Any] = {}
    for source, _ in code(path):
        exec(source, space)
    assert "ipywidgets is not installed: install the package `ipywidgets` with pip" in capsys.readouterr().out
    space |= {"display": shown.append, "setting": space["setting"].with_(rounds=1)}
    space["show"](clients=4, alpha=1.0)
    assert [type(one).__name__ for one in shown] == ["Picture", "Picture"]
