"""Jobs with notebooks of a few lines. Starting a kernel takes seconds: one batch serves most of the tests."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest

from fedrepro.notebooks import batch
from fedrepro.notebooks.batch import Job, Result

psutil = pytest.importorskip("psutil")

PARAMETERS = """\
from typing import Literal
lr: float = 0.1
seeds: list[int] = [0]
fast: bool = True
scale: Literal["smoke", "paper"] = "smoke"
limit: int | None = None
out = "here"
"""


def write(path: Path, *sources: str, parameters: str = PARAMETERS) -> Path:
    code: dict[str, Any] = {"cell_type": "code", "execution_count": None, "outputs": []}
    cells = [
        code | {"id": f"cell-{n}", "metadata": {}, "source": text} for n, text in enumerate([parameters, *sources])
    ]
    cells[0]["metadata"] = {"tags": ["parameters"]}
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    notebook = {"cells": cells, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}
    path.write_text(json.dumps(notebook), "utf-8")
    return path


def alive(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


@dataclass
class Batch:
    folder: Path
    results: dict[str, Result]

    def notebook(self, name: str) -> dict[str, Any]:
        return json.loads((self.folder / "out" / name).read_text("utf-8"))


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Batch:
    folder = tmp_path_factory.mktemp("batch")
    (folder / "out").mkdir()
    (folder / "out" / "good.failed.ipynb").write_text("left by an earlier run")
    (folder / "out" / "failing.ipynb").write_text("a good result of an earlier run")
    report = (
        "import json, os, sys\n"
        "facts = {name: repr(globals()[name]) for name in ('lr', 'seeds', 'fast', 'scale', 'limit')}\n"
        "facts |= dict(cwd=os.getcwd(), python=sys.executable, runs=os.environ['FEDREPRO_RUNS'])\n"
        "facts |= dict(threads=os.environ['OMP_NUM_THREADS'])\n"
        "print(json.dumps(facts))"
    )
    hang = (
        "import os, subprocess, time\n"
        "child = subprocess.Popen(['sleep', '600'], start_new_session=True)\n"
        "print(os.getpid(), child.pid, file=open(out, 'w'), flush=True)\n"
        "time.sleep(600)"
    )
    cells: Mapping[str, tuple[str, ...]] = {
        "hanging": ("1", hang, "2"),
        "good": (report,),
        "failing": ("print('before')", "raise KeyError('the cause')", "print('after')"),
        "leaving": ("import sys\nsys.exit(0)", "print('after')"),
        "dying": ("print('tried', file=open('tries', 'a'))", "import os\nos._exit(9)", "print('after')"),
    }
    jobs = [
        Job(
            notebook=write(folder / f"{name}.ipynb", *sources),
            output=folder / "out" / f"{name}.ipynb",
            parameters={"lr": 1e-3, "seeds": [0, 1], "fast": False, "scale": "paper"} if name == "good" else {},
            timeout=20 if name == "hanging" else 120,
            threads=7 if name == "good" else 0,
            page=name in ("good", "failing"),
        )
        for name, sources in cells.items()
    ]
    orphan = write(folder / "orphan.ipynb", hang)
    code = (
        "import sys\nfrom pathlib import Path\nfrom fedrepro.notebooks.batch import execute\n"
        "execute(Path(sys.argv[1]), Path(sys.argv[2]), {'out': 'orphans'}, timeout=300)"
    )
    paths = map(str, (orphan, folder / "never.ipynb"))
    lost = subprocess.Popen([sys.executable, "-c", code, *paths], cwd=Path(batch.__file__).parents[2])
    began = time.monotonic()
    results = dict(zip(cells, batch.execute_all(jobs, workers=3, progress=False)))
    assert max(result.seconds for result in results.values()) <= time.monotonic() - began
    lost.kill()
    lost.wait()
    return Batch(folder, results)


def test_parameters_arrive_with_their_types(done: Batch) -> None:
    assert done.results["good"].ok, done.results["good"].error
    facts = json.loads("".join(done.notebook("good.ipynb")["cells"][2]["outputs"][0]["text"]))
    assert facts.pop("cwd") == str(done.folder)
    assert facts.pop("python") == sys.executable
    assert facts.pop("threads") == "7"
    assert facts.pop("runs") == os.environ["FEDREPRO_RUNS"]
    assert facts == {"lr": "0.001", "seeds": "[0, 1]", "fast": "False", "scale": "'paper'", "limit": "None"}


def test_a_success_takes_its_name_in_one_step_and_leaves_nothing_else(done: Batch) -> None:
    names = {
        "good.ipynb",
        "good.html",
        "failing.ipynb",
        *(f"{name}.failed.ipynb" for name in done.results if name != "good"),
    }
    assert {path.name for path in (done.folder / "out").iterdir()} == names
    assert done.notebook("good.ipynb")["metadata"]["papermill"]["output_path"].endswith("good.ipynb")


def test_a_page_that_cannot_be_made_is_a_failure(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    page = pytest.importorskip("fedrepro.notebooks.page")
    monkeypatch.setattr(page, "TEMPLATES", tmp_path / "nowhere")
    monkeypatch.setattr(
        batch, "attempt", lambda job, partial, *_: partial.write_bytes(job.notebook.read_bytes()) and None
    )
    job = Job(notebook=write(tmp_path / "a.ipynb"), output=tmp_path / "out.ipynb", timeout=10, page=True)
    (result,) = batch.execute_all([job], progress=False)
    assert not result.ok
    assert result.error is not None
    assert result.error.startswith("no page was made of it: ")
    assert (tmp_path / "out.ipynb").exists()


def test_a_failing_cell_is_a_failure_with_its_last_lines(done: Batch) -> None:
    result = done.results["failing"]
    assert not result.ok
    assert result.error is not None
    assert result.error.startswith("code cell 3:")
    assert result.error.endswith("KeyError: 'the cause'")
    assert (done.folder / "out" / "failing.ipynb").read_text() == "a good result of an earlier run"


def test_leaving_early_is_a_failure_although_papermill_accepts_it(done: Batch) -> None:
    assert done.results["leaving"] == Result(False, done.results["leaving"].seconds, "code cell 2: SystemExit: 0")


def test_a_dead_kernel_is_a_failure_and_no_cell_runs_twice(done: Batch) -> None:
    assert done.results["dying"].error == "code cell 3: Kernel died"
    assert (done.folder / "tries").read_text() == "tried\n"
    statuses = [cell["metadata"]["papermill"]["status"] for cell in done.notebook("dying.failed.ipynb")["cells"]]
    assert statuses == ["completed", "completed", "failed", "pending"]


def test_a_timeout_is_a_failure_and_ends_every_process(done: Batch) -> None:
    result = done.results["hanging"]
    assert not result.ok
    assert result.error == "code cell 3: not finished after 20 s, killed"
    assert 20 <= result.seconds < 30
    pids = [int(pid) for pid in (done.folder / "here").read_text().split()]
    assert len(pids) == 2
    assert not any(map(alive, pids))
    statuses = [cell["metadata"]["papermill"]["status"] for cell in done.notebook("hanging.failed.ipynb")["cells"]]
    assert statuses == ["completed", "completed", "failed", "pending"]


def test_a_job_ends_when_the_process_that_waits_for_it_is_killed(done: Batch) -> None:
    pids = [int(pid) for pid in (done.folder / "orphans").read_text().split()]
    assert len(pids) == 2
    limit = time.monotonic() + 10
    while any(map(alive, pids)) and time.monotonic() < limit:
        time.sleep(0.1)
    assert not any(map(alive, pids))


def test_a_kernel_that_dies_at_its_start_gets_a_second_try(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import os, sys\n"
        "from pathlib import Path\n"
        "starts = Path(__file__).with_name('starts')\n"
        "if 'fedrepro.notebooks.kernel' in sys.orig_argv:\n"
        "    starts.write_text(starts.read_text() + 'x' if starts.exists() else 'x')\n"
        "    if starts.read_text() == 'x':\n"
        "        os._exit(1)\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    result = batch.execute(write(tmp_path / "a.ipynb", "lr"), tmp_path / "b.ipynb", {}, timeout=60)
    assert result.ok, result.error
    assert (tmp_path / "starts").read_text() == "xx"


def test_refresh_stores_outputs_without_marks_of_time_and_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cell = (
        "import sys\nfrom tqdm import tqdm\n"
        "for _ in tqdm(range(3), desc='rounds'):\n    print('kept', scale)\n"
        "print('a warning', file=sys.stderr)\n"
        "for _ in tqdm(iter([1])):\n    pass\n"
        "view = {'application/vnd.jupyter.widget-view+json': {'model_id': 'x'}, 'text/plain': ' 0%'}\n"
        "from IPython.display import display\ndisplay(view, raw=True)"
    )
    path = write(tmp_path / "a.ipynb", cell)
    assert batch.refresh(path, timeout=60).ok
    notebook = json.loads(path.read_text())
    assert [cell["id"] for cell in notebook["cells"]] == ["cell-0", "cell-1"]
    assert [cell["execution_count"] for cell in notebook["cells"]] == [1, 2]
    assert [cell["metadata"] for cell in notebook["cells"]] == [{"tags": ["parameters"]}, {}]
    texts = {item["name"]: item["text"] for item in notebook["cells"][1]["outputs"]}
    assert texts == {"stdout": ["kept smoke\n"] * 3, "stderr": ["a warning\n"]}
    assert notebook["metadata"] == {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    assert list(tmp_path.iterdir()) == [path]
    monkeypatch.setitem(sys.modules, "rfc3987_syntax", None)  # optional; its import takes two seconds
    nbformat = pytest.importorskip("nbformat")
    nbformat.validate(nbformat.read(path, as_version=4))
    assert nbformat.writes(nbformat.read(path, as_version=4)) + "\n" == path.read_text()


def test_parameters_are_read_without_running_the_cell(tmp_path: Path) -> None:
    assert batch.parameters_of(write(tmp_path / "a.ipynb")) == {
        "lr": (float, 0.1),
        "seeds": (list[int], [0]),
        "fast": (bool, True),
        "scale": (Literal["smoke", "paper"], "smoke"),
        "limit": (int | None, None),
        "out": (None, "here"),
    }


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ("n: int = max(1, 2)", "the default of n in a.ipynb must be a literal"),
        ("n: tuple[int, ...] = (1,)", "a parameter's type must be made of .* got tuple"),
    ],
)
def test_unreadable_parameters_cells(tmp_path: Path, parameters: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        batch.parameters_of(write(tmp_path / "a.ipynb", parameters=parameters))


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"sedes": [1]}, "a.ipynb has no parameter 'sedes' \\(did you mean 'seeds'"),
        ({"lr": "1e-3"}, r"parameter lr must be float, got '1e-3' \(str\)"),
        ({"lr": True}, r"parameter lr must be float, got True \(bool\)"),
        ({"fast": 0}, r"parameter fast must be bool, got 0 \(int\)"),
        ({"seeds": 3}, r"parameter seeds must be list\[int\], got 3 \(int\)"),
        ({"seeds": [1, 2.0]}, r"parameter seeds must be list\[int\], got \[1, 2.0\] \(list\)"),
        ({"seeds": (1, 2)}, r"parameter seeds must be made of JSON values, got \(1, 2\) \(tuple\)"),
        ({"scale": "Paper"}, r"parameter scale must be Literal\['smoke', 'paper'\], got 'Paper' \(str\)"),
        ({"limit": 1.5}, r"parameter limit must be int \| None, got 1.5 \(float\)"),
        ({"out": Path("x")}, "parameter out must be made of JSON values"),
    ],
)
def test_wrong_parameters_are_refused_before_anything_runs(
    tmp_path: Path, parameters: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        batch.execute(write(tmp_path / "a.ipynb"), tmp_path / "b.ipynb", parameters, timeout=60)
    assert [path.name for path in tmp_path.iterdir()] == ["a.ipynb"]


@pytest.mark.parametrize(
    "parameters",
    [{"lr": 1}, {"lr": float("nan")}, {"seeds": []}, {"limit": 3}, {"limit": None}, {"out": "x"}],
)
def test_values_that_fit_pass(tmp_path: Path, parameters: dict[str, Any]) -> None:
    batch.check(write(tmp_path / "a.ipynb"), parameters)


def test_a_batch_that_cannot_be_right_is_refused(tmp_path: Path) -> None:
    job = Job(notebook=write(tmp_path / "a.ipynb"), output=tmp_path / "b.ipynb", timeout=60)
    with pytest.raises(ValueError, match=r"every job needs an output of its own, got .*b\.ipynb twice"):
        batch.execute_all([job, job])
    with pytest.raises(ValueError, match="workers must be at least 1, got 0"):
        batch.execute_all([job], workers=0)
    with pytest.raises(ValueError, match="timeout must be a positive number of seconds, got nan"):
        batch.execute(job.notebook, job.output, {}, timeout=float("nan"))
