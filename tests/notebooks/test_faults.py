"""Notebooks, outputs and surroundings that are not as they should be."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Literal, Optional

import pytest
from ipykernel.kernelapp import IPKernelApp
from test_batch import write

from fedrepro import papers
from fedrepro.notebooks import batch, given, kernel
from fedrepro.notebooks.batch import Job
from fedrepro.notebooks.job import places
from fedrepro.notebooks.notebook import BrokenError, conclude, load, own_up
from fedrepro.notebooks.outputs import Partial, check_outputs
from fedrepro.notebooks.parameters import read_cell

BROKEN: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "it is not JSON"),
    "cut": (b'{"cells": [', "it is not JSON"),
    "conflict": (b'{\n<<<<<<< HEAD\n "cells": []\n=======\n', "git's conflict marker in line 2"),
    "latin": ('{"cells": "ä"}'.encode("latin-1"), "it is not UTF-8 (byte 11)"),
    "list": (b"[]", "it has no nbformat"),
    "three": (b'{"nbformat": 3, "worksheets": []}', "its nbformat is 3, 4 is wanted: save it anew in JupyterLab"),
    "five": (b'{"nbformat": 5, "cells": [], "metadata": {}}', "its nbformat is 5"),
    "cells": (b'{"nbformat": 4, "metadata": {}}', "it has no cells or no metadata"),
    "kind": (b'{"nbformat": 4, "metadata": {}, "cells": [{"cell_type": "heading"}]}', "cell 1 is neither code"),
    "source": (b'{"nbformat": 4, "metadata": {}, "cells": [{"cell_type": "code"}]}', "cell 1 has no source"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_file_that_is_no_notebook_is_named(name: str, tmp_path: Path) -> None:
    content, fault = BROKEN[name]
    path = tmp_path / f"{name}.ipynb"
    path.write_bytes(content)
    with pytest.raises(BrokenError) as caught:
        load(path)
    assert str(caught.value).startswith(f"{path} is no notebook")
    assert fault in str(caught.value)


def test_a_folder_and_nothing_are_named(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none.ipynb"):
        with pytest.raises(BrokenError, match=f"^{path} cannot be read: "):
            load(path)


def test_magics_in_the_parameters_are_no_parameters() -> None:
    cell = "%matplotlib inline\n!ls\nn: int = 3\nif n:\n    %time 1\nlen?\ntext = '''\n50\n'''"
    assert read_cell(cell, "a.ipynb") == {"n": (int, 3), "text": (None, "\n50\n")}
    assert read_cell("text = '''\n%d\n!\n'''", "a.ipynb") == {"text": (None, "\n%d\n!\n")}


def test_parameters_that_are_no_python_name_the_cell(tmp_path: Path) -> None:
    path = write(tmp_path / "a.ipynb", parameters="n = 3\nm = = 4")
    with pytest.raises(BrokenError, match=r"cannot be read: code cell 1 of .*a\.ipynb, line 2: invalid syntax"):
        batch.parameters_of(path)
    for text in ("n = !ls", "n = {[]: 1}", "n: int = max(1, 2)"):
        with pytest.raises(BrokenError, match=r"code cell 1 of .*a\.ipynb"):
            batch.parameters_of(write(tmp_path / "a.ipynb", parameters=text))


def test_annotations_are_read_and_never_evaluated(tmp_path: Path) -> None:
    cell = "a: Optional[list[str]] = None\nb: dict[str, int | float] = {}\n"
    cell += "c: Literal['x', -1, None] = 'x'\nd: list = []"
    assert read_cell(cell, "a.ipynb") == {
        "a": (Optional[list[str]], None),  # noqa: UP045
        "b": (dict[str, int | float], {}),
        "c": (Literal["x", -1, None], "x"),
        "d": (list, []),
    }
    wrong = ("[].append(1)", "list[int, str]", "dict[str]", "int[str]", "'int'", "int if 1 else str", "(int, str)")
    calls = (f"open({str(tmp_path / 'made')!r}, 'w')", "[x for x in ().__class__.__mro__]", "Literal[9 ** 9 ** 9]")
    for kind in (*wrong, *calls):
        with pytest.raises(ValueError, match="a parameter's type must be made of"):
            read_cell(f"n: {kind} = 1", "a.ipynb")
    assert not (tmp_path / "made").exists()


def test_files_of_two_jobs_that_are_one_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a", "b"):
        write(tmp_path / f"{name}.ipynb")
    (tmp_path / "out").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "out")
    (tmp_path / "out" / "to_a.ipynb").symlink_to(tmp_path / "a.ipynb")
    a, b, out = tmp_path / "a.ipynb", tmp_path / "b.ipynb", tmp_path / "out"
    refused = [
        (out / "q.ipynb", Path("out/q.ipynb")),
        (out / "q.ipynb", tmp_path / "link" / "q.ipynb"),
        (out / "q.ipynb", out / ".." / "out" / "q.ipynb"),
        (out / "q.ipynb", out / "q.failed.ipynb"),
        (out / "q.failed.ipynb", Path("link/q.ipynb")),
        (out / "q.ipynb", out / "Q.ipynb"),
        (out / "é.ipynb", out / "e\u0301.ipynb"),
        (a, out / "q.ipynb"),
        (Path("b.ipynb"), out / "q.ipynb"),
        (out / "to_a.ipynb", out / "q.ipynb"),
    ]
    for first, second in refused:
        with pytest.raises(
            ValueError, match=r"every job needs an output of its own|must not be a notebook to run"
        ):
            check_outputs([(a, first), (b, second)])
        jobs = [Job(notebook=a, output=first, timeout=60), Job(notebook=b, output=second, timeout=60)]
        with pytest.raises(ValueError, match="output"):
            batch.execute_all(jobs, progress=False)
    check_outputs([(a, out / "a.ipynb"), (a, out / "q.ipynb"), (b, out / "b.ipynb")])


def test_what_killed_batches_left_is_cleared(tmp_path: Path) -> None:
    output, mark = tmp_path / "a.ipynb", "0123456789abcdef" * 2
    left, young, own = (tmp_path / f".{name}.{mark}.ipynb" for name in ("old", "young", "a"))
    for path in (left, young, own):
        path.write_text("{}")
    own.with_suffix(".lock").write_text("")  # of a process that was killed
    (tmp_path / ".mine.ipynb").write_text("")
    os.utime(left, (time.time() - 3600,) * 2)
    with Partial(output) as first, Partial(output) as second:
        assert first != second
        first.write_text("{}")
        with Partial(output):
            assert first.exists()  # it is somebody's
        assert not left.exists()
        assert not own.exists()
        assert young.exists()  # it may have ended just now
    assert {path.name for path in tmp_path.iterdir()} == {young.name, ".mine.ipynb"}


State = tuple[list[str], str | None, bool]  # tags, error, whether it was started


def executed(path: Path, *cells: State, injected: bool = False) -> Path:
    """Write a notebook as papermill leaves it: of each cell its tags, its error, whether it was started."""
    found: list[dict[str, Any]] = []
    for number, (tags, error, begun) in enumerate(cells, 1):
        outputs = [{"output_type": "error", "ename": error, "evalue": "why", "traceback": []}] if error else []
        state = {"status": "completed", "start_time": "now" if begun else None, "exception": None}
        facts = {"tags": tags, "papermill": state}
        found.append({"cell_type": "code", "source": "x", "metadata": facts, "outputs": outputs})
        found[-1]["execution_count"] = number if begun and "skip-execution" not in tags else None
    if injected:
        found[0]["metadata"]["tags"] = ["injected-parameters"]
    mark = {"cell_type": "markdown", "source": "error", "metadata": {"tags": ["papermill-error-cell-tag"]}}
    path.write_text(json.dumps({"cells": [mark, *found], "metadata": {"papermill": {}}, "nbformat": 4}))
    return path


def test_cells_that_may_raise_or_are_skipped_fail_nothing(tmp_path: Path) -> None:
    may = (["raises-exception"], "KeyError", True)
    path = executed(
        tmp_path / "a.ipynb", ([], None, True), may, (["skip-execution"], None, True), ([], None, True)
    )
    assert conclude(path, tmp_path / "b.ipynb") is None
    assert [cell["cell_type"] for cell in json.loads(path.read_text())["cells"]] == ["code"] * 4  # no mark is left


def test_the_cell_that_failed_is_named_and_no_other(tmp_path: Path) -> None:
    may: State = (["raises-exception"], "KeyError", True)
    good: State = ([], None, True)
    bad: State = ([], "ValueError", True)
    late: State = ([], None, False)
    path = executed(tmp_path / "a.ipynb", good, may, bad, late)
    assert conclude(path, path) == "ValueError: why"
    assert own_up(path) == (3, 3)
    statuses = [cell["metadata"]["papermill"]["status"] for cell in json.loads(path.read_text())["cells"]]
    assert statuses == ["completed", "completed", "failed", "pending"]
    # The parameters that a job is given are a cell that the notebook, as it was written, does not have.
    assert own_up(executed(path, good, may, bad, late, injected=True)) == (3, 2)
    assert own_up(executed(path, good, good, late)) == (2, 2)  # a kernel that died
    assert own_up(executed(path, late, late)) == (0, 0)
    path.write_text("{")
    assert own_up(path) == (None, 0)


def test_places_of_jobs_are_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("FEDREPRO_RUNS", "~/store")
    monkeypatch.setenv("FEDREPRO_DATA", "data")
    assert places() == {"FEDREPRO_RUNS": str(tmp_path / "store"), "FEDREPRO_DATA": str(tmp_path / "data")}
    monkeypatch.setenv("FEDREPRO_DATA", "~nosuchuser/data")
    with pytest.raises(ValueError, match="FEDREPRO_DATA=~nosuchuser/data: there is no such home folder"):
        places()


def test_missing_packages_are_told_before_anything_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job(notebook=write(tmp_path / "a.ipynb"), output=tmp_path / "b.ipynb", timeout=60)
    monkeypatch.setitem(sys.modules, "papermill", None)
    with pytest.raises(ValueError, match="a notebook as a job needs papermill, not installed here"):
        batch.execute_all([job])
    assert batch.main([str(job.notebook)]) == 1
    assert {path.name for path in tmp_path.iterdir()} == {"a.ipynb"}


def test_a_batch_in_surroundings_of_a_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home, room = tmp_path / "home", tmp_path / "{out} 1"
    startup = home / ".ipython" / "profile_default" / "startup"
    for folder in (startup, home / ".config" / "matplotlib", home / ".jupyter", room):
        folder.mkdir(parents=True)
    (startup / "00.py").write_text("lr = 'of the startup'\nmarked = True\n")
    (startup.parent / "ipython_config.py").write_text("c.InteractiveShellApp.exec_lines = ['marked = True']\n")
    (home / "start.py").write_text("marked = True\n")
    (home / ".config" / "matplotlib" / "matplotlibrc").write_text("savefig.dpi: 17\naxes.grid: True\n")
    for name in ("HOME", "USERPROFILE"):
        monkeypatch.setenv(name, str(home))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.setenv("PYTHONSTARTUP", str(home / "start.py"))
    monkeypatch.setenv("MPLBACKEND", "pdf")
    monkeypatch.setenv("PYTHONOPTIMIZE", "1")
    (room / "matplotlibrc").write_text("savefig.dpi: 18\n")  # in the working folder
    (room / "json.py").write_text("raise RuntimeError('a module of the working folder')\n")
    monkeypatch.setenv("MATPLOTLIBRC", str(home / ".config" / "matplotlib"))
    look = (
        "import matplotlib, os\n"
        "assert 'marked' not in globals(), 'a startup file ran'\n"
        "assert (matplotlib.rcParams['savefig.dpi'], matplotlib.rcParams['axes.grid']) == ('figure', False)\n"
        "assert 'inline' in matplotlib.get_backend().lower() or matplotlib.get_backend() == 'agg'\n"
        "assert (lr, os.environ['FEDREPRO_ONLY']) == (0.5, 'x')"
    )
    good = write(room / "good.ipynb", look, "1 / 0", "never", "print(lr)")
    cells = json.loads(good.read_text())
    cells["cells"][2]["metadata"]["tags"] = ["raises-exception"]
    cells["cells"][3]["metadata"]["tags"] = ["skip-execution"]
    good.write_text(json.dumps(cells))
    broken = room / "broken.ipynb"
    broken.write_text("<<<<<<< HEAD\n")
    jobs = [
        Job(notebook=broken, output=tmp_path / "out" / "broken.ipynb", timeout=60),
        Job(
            notebook=good,
            output=tmp_path / "{scale}" / "good.ipynb",
            parameters={"lr": 0.5},
            environment={"FEDREPRO_ONLY": "x"},
            timeout=120,
        ),
    ]
    first, second = batch.execute_all(jobs, workers=2, progress=False)
    assert (first.ok, first.error) == (False, f"{broken} is no notebook: git's conflict marker in line 1")
    assert second.ok, second.error
    assert [path.name for path in (tmp_path / "{scale}").iterdir()] == ["good.ipynb"]
    assert json.loads(jobs[1].output.read_text())["cells"][5]["outputs"][0]["text"] == ["0.5\n"]


def test_what_is_configured_for_every_kernel_of_an_environment_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("room", "environment", "system"):
        (tmp_path / name).mkdir()
    monkeypatch.setattr("IPython.core.application.ENV_CONFIG_DIRS", [str(tmp_path / "environment")])
    monkeypatch.setattr("IPython.core.application.SYSTEM_CONFIG_DIRS", [str(tmp_path / "system")])
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "room"))
    for made, expected in ((IPKernelApp(), {"environment", "system"}), (kernel.Kernel(), set())):
        made.init_profile_dir()
        made.init_config_files()
        seen = {Path(path).name for path in made.config_file_paths if Path(path).parent == tmp_path}
        assert seen == expected


def test_variables_of_blanks_are_not_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FEDREPRO_RUNS", str(tmp_path))
    for name in ("FEDREPRO_DATA", "FEDREPRO_RESULTS"):
        monkeypatch.setenv(name, "  ")
    assert places() == {"FEDREPRO_RUNS": str(tmp_path), "FEDREPRO_DATA": "", "FEDREPRO_RESULTS": ""}


@pytest.mark.parametrize("labels", ["ConvNet", '"ConvNet"', "[1]"])
def test_labels_for_notebooks_that_are_none_are_named(labels: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDREPRO_ONLY", labels)
    paper = papers.load("fedbe")
    with pytest.raises(ValueError, match="FEDREPRO_ONLY must be labels such as"):
        given.meant(paper.items["table1_methods"], "smoke", paper.cells("table1_methods", "smoke"))


def test_a_wrong_answer_is_wrong_without_assertions_too() -> None:
    program = "from fedrepro.notebooks.exercises import check; check(1, lambda answer: False, 'look again')"
    done = subprocess.run([sys.executable, "-O", "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "AssertionError: not right: look again" in done.stderr
