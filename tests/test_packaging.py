"""What the repository promises of itself: one list of dependencies, a core without Jupyter, real commands."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
EXTRAS = "matplotlib seaborn papermill nbformat nbclient nbconvert nbval ipykernel IPython ipywidgets jupyter \
jupyter_client jupyter_core jupyterlab notebook sklearn timm pytest"
BLOCK = """
import importlib, sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in sys.argv[1].split():
            raise ImportError(f"{name} is not for the core")

sys.meta_path.insert(0, Blocked())
for module in sys.argv[2:]:
    importlib.import_module(module)
"""


@pytest.fixture(scope="module")
def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]


def name_of(requirement: str) -> str:
    return re.split(r"[^\w.-]", requirement)[0].lower().replace("_", "-")


def make(*arguments: str, cwd: Path = ROOT) -> "subprocess.CompletedProcess[str]":
    """Run make as from a shell, also where make runs this test."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    command = ["make", "-f", str(ROOT / "Makefile"), *arguments]
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)


def tracked() -> list[Path]:
    """Return the files of the repository, those that git would add included."""
    command = [
        "git",
        "-c",
        "safe.directory=*",
        "ls-files",
        "-z",
        "--cached",
        "--others",
        "--exclude-standard",
    ]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=False)
    if listed.returncode:
        pytest.skip("not a git checkout")
    return [path for name in listed.stdout.decode().split("\0") if (path := ROOT / name).is_file()]


def test_environment_lists_nothing_that_pyproject_does_not(project: dict[str, Any]) -> None:
    yaml = pytest.importorskip("yaml")
    environment = yaml.safe_load((ROOT / "environment.yml").read_text("utf-8"))
    extras = project["optional-dependencies"]
    known = {name_of(line) for line in sum(extras.values(), project["dependencies"])}
    conda = [line for line in environment["dependencies"] if isinstance(line, str)]
    (pip,) = (line["pip"] for line in environment["dependencies"] if isinstance(line, dict))
    assert {name_of(line) for line in conda} - known == {"python", "pip"}
    assert f"python{project['requires-python']}" in conda
    (editable,) = (line for line in pip if line.startswith("-e"))
    assert set(re.fullmatch(r"-e \.\[([\w,]+)\]", editable)[1].split(",")) <= set(extras)  # type: ignore[index]
    assert {name_of(line) for line in pip if line != editable} <= known


def test_the_core_needs_neither_plots_nor_jupyter() -> None:
    files = sorted((ROOT / "fedrepro").rglob("*.py"))
    modules = [".".join(path.relative_to(ROOT).with_suffix("").parts) for path in files]
    core = [
        module.removesuffix(".__init__")
        for module in modules
        if not module.startswith("fedrepro.plots") and not module.endswith(".__main__")
    ]
    assert "fedrepro.notebooks.batch" in core
    run = subprocess.run(
        [sys.executable, "-c", BLOCK, EXTRAS, *core], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr


def test_the_block_of_the_test_above_blocks() -> None:
    run = subprocess.run(
        [sys.executable, "-c", BLOCK, "json email", "json.decoder"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "json is not for the core" in run.stderr


def test_the_commands_of_the_readme_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    readme = (ROOT / "README.md").read_text("utf-8")
    shown = "\n".join(re.findall(r"```.*?```|`[^`\n]+`", readme, re.DOTALL))
    commands = set(re.findall(r"\bmake ([a-z-]+)", shown))
    assert {"reproduce", "test"} <= commands
    assert commands <= targets


def test_make_without_a_target_lists_all_of_them() -> None:
    listed = make().stdout
    phony = re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
    assert phony is not None
    assert re.findall(r"^make (\S+)", listed, re.MULTILINE) == phony[1].split()


def test_an_old_or_missing_python_is_named(tmp_path: Path) -> None:
    old = tmp_path / "python-old"
    old.write_text('#!/bin/sh\n[ "$1" = -V ] && echo "Python 3.8.1"\nexit 1\n')
    old.chmod(0o755)
    for python, message in (
        (str(old), "needs Python 3.11 or newer.*Python 3.8.1"),
        ("no-python", "no no-python found"),
    ):
        made = make(".venv/.made", f"PYTHON={python}", cwd=tmp_path)
        assert made.returncode != 0
        assert re.search(message, made.stderr), made.stderr
    assert not (tmp_path / ".venv").exists()


def test_ci_runs_the_tests_of_the_makefile() -> None:
    script = ROOT / ".ci" / "run"
    assert script.stat().st_mode & 0o111
    commands = [line for line in script.read_text("utf-8").splitlines() if line and not line.startswith("#")]
    assert commands[0] == "set -euo pipefail"
    assert commands[-1] == "exec make test"


def test_no_file_names_a_home_folder() -> None:
    home = re.compile(r"(?<![\w.])/(?:home|root|Users)/\w|\b[C-H]:\\+Users")
    found = {}
    for path in tracked():
        content = path.read_bytes()
        if b"\0" not in content and (match := home.search(content.decode("utf-8", "replace"))):
            found[str(path.relative_to(ROOT))] = match[0]
    assert not found
