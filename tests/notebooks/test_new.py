"""A new item: its notebook keeps the rules and runs, its entry waits to be filled in, nothing is overwritten."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from test_notebooks import faults, faults_of_paper

import fedrepro
from fedrepro import papers
from fedrepro.notebooks.batch import parameters_of
from fedrepro.notebooks.new import new, skeleton
from fedrepro.papers.claims import parse_claims

PACKAGE = Path(fedrepro.__file__).parent
FILLED = {
    'title = ""': 'title = "Two methods"',
    'source = ""': 'source = "Table 1"',
    'claim = ""': 'claim = "One is better."',
    'row = ""': 'row = "{partition}/{method}"',
    'column = ""': 'column = "{model}"',
    "grids = []": 'grids = [{ partition = ["Step"], model = ["ConvNet"], method = ["FedAvg", "FedBE"] }]',
}
RUN = """
import sys
from pathlib import Path
from fedrepro.notebooks.batch import execute
notebook, output, out = sys.argv[1:]
result = execute(Path(notebook), Path(output), {"out": out}, timeout=120)
print(result.error)
sys.exit(not result.ok)
"""


def fill(path: Path) -> None:
    text = path.read_text("utf-8")
    for empty, filled in FILLED.items():
        assert empty in text
        text = text.replace(empty, filled)
    path.write_text(text)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Let papers be read from a repository that is only just begun."""
    monkeypatch.setattr(papers, "FOLDER", tmp_path / "fedrepro" / "papers")
    papers.load.cache_clear()
    yield tmp_path / "fedrepro" / "papers" / "fedxyz"
    papers.load.cache_clear()


def test_the_skeleton_keeps_every_rule_but_for_what_a_run_gives() -> None:
    notebook = json.loads(skeleton("fedxyz", "table1_ways"))
    assert list(faults_of_paper(notebook)) == []
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    for count, cell in enumerate(code, start=1):
        stream = {"output_type": "stream", "name": "stdout", "text": ["1\n"]}
        cell |= {"execution_count": count, "outputs": [stream]}
    assert list(faults(notebook)) == []
    ids = [cell["id"] for cell in notebook["cells"]]
    assert len(set(ids)) == len(ids)


def test_a_new_paper(tmp_path: Path, folder: Path) -> None:
    written = new("fedxyz/table1_ways", root=tmp_path)
    assert [path.relative_to(tmp_path).as_posix() for path in written] == [
        "notebooks/fedxyz/table1_ways.ipynb",
        *(f"fedrepro/papers/fedxyz/{name}.toml" for name in ("settings", "items", "claims")),
        *(f"fedrepro/papers/fedxyz/{name}" for name in ("README.md", "reported.csv")),
    ]
    assert list(parameters_of(written[0])) == ["scale", "seeds", "device", "out"]
    assert parse_claims((folder / "claims.toml").read_text("utf-8")) == ()
    card = (PACKAGE / "papers" / "fedbe" / "README.md").read_text("utf-8").splitlines()
    headings = [line for line in (folder / "README.md").read_text("utf-8").splitlines() if line.startswith("## ")]
    assert headings == [line for line in card if line.startswith("## ")]
    with pytest.raises(ValueError, match=r"fedxyz/settings\.toml: the title of the paper must be filled in"):
        papers.load("fedxyz")
    settings = folder / "settings.toml"
    settings.write_text(settings.read_text("utf-8").replace('title = ""', 'title = "XYZ"'))
    for empty, filled in FILLED.items():
        name = empty.partition(" ")[0]
        with pytest.raises(ValueError, match=f"fedxyz/items.toml: the {name} of table1_ways must be filled in"):
            papers.load("fedxyz")
        items = folder / "items.toml"
        items.write_text(items.read_text("utf-8").replace(empty, filled))
    assert papers.load("fedxyz").items["table1_ways"].labels["method"] == ("FedAvg", "FedBE")


def test_a_further_item_of_a_paper(tmp_path: Path, folder: Path) -> None:
    new("fedxyz/table1_ways", root=tmp_path)
    fill(folder / "items.toml")
    before = (folder / "items.toml").read_text("utf-8")
    written = new("fedxyz/table2_more", root=tmp_path)
    assert [path.name for path in written] == ["table2_more.ipynb", "items.toml"]
    after = (folder / "items.toml").read_text("utf-8")
    assert after.startswith(before)
    assert after[len(before) :].startswith("\n[items.table2_more]\n")


NAMELESS = ["fedbe", "FedBE/table1", "fedbe/", "/table1", "fedbe/1", "a/b/c", "../x", "fedbe/a-b"]


@pytest.mark.parametrize("name", NAMELESS)
def test_refuses_other_names(name: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f'named like "fedbe/table3_xyz", of a-z, 0-9 and _, got {name!r}'):
        new(name, root=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_overwrites_nothing(tmp_path: Path, folder: Path) -> None:
    written = new("fedxyz/table1_ways", root=tmp_path)
    before = {path: path.read_bytes() for path in written}
    with pytest.raises(ValueError, match=r"table1_ways\.ipynb is there already and is not overwritten"):
        new("fedxyz/table1_ways", root=tmp_path)
    written[0].unlink()
    with pytest.raises(ValueError, match=r"items\.toml has an entry table1_ways already"):
        new("fedxyz/table1_ways", root=tmp_path)
    assert {path: path.read_bytes() for path in written[1:]} == dict(list(before.items())[1:])
    assert not written[0].exists()
    (folder / "settings.toml").unlink()
    with pytest.raises(ValueError, match=r"items\.toml is there already"):
        new("fedxyz/table3_other", root=tmp_path)
    assert not (folder / "settings.toml").exists()


def test_the_notebook_runs_once_its_entry_is_filled_in(tmp_path: Path) -> None:
    shutil.copytree(PACKAGE, tmp_path / "fedrepro", ignore=shutil.ignore_patterns("__pycache__"))
    folder = tmp_path / "fedrepro" / "papers" / "fedxyz"
    notebook, *_ = new("fedxyz/table1_ways", root=tmp_path)
    fill(folder / "items.toml")
    shutil.copy(PACKAGE / "papers" / "fedbe" / "settings.toml", folder / "settings.toml")
    with (folder / "reported.csv").open("a") as file:
        file.write("table1_ways,Table 1,Step/FedAvg,ConvNet,test_acc_pct,72.0,0.25,5,ok,\n")
    environment = os.environ | {"PYTHONPATH": str(tmp_path), "FEDREPRO_RUNS": str(tmp_path / "runs")}
    arguments = [str(notebook), str(tmp_path / "done.ipynb"), str(tmp_path / "out")]
    made = subprocess.run(
        [sys.executable, "-c", RUN, *arguments], env=environment, cwd=tmp_path, capture_output=True, text=True
    )
    assert made.returncode == 0, made.stdout + made.stderr
    done = json.loads((tmp_path / "done.ipynb").read_text("utf-8"))
    told = "".join("".join(item.get("text", "")) for cell in done["cells"] for item in cell.get("outputs", []))
    assert "runs: 2 | cells: 2" in told
    assert "not run" in told
    assert (tmp_path / "out" / "fedxyz" / "table1_ways" / "table1_ways_smoke.svg").exists()
