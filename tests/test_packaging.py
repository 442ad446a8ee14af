"""What the repository promises of itself: one list of dependencies, a core without Jupyter, real commands."""

import ast
import os
import re
import runpy
import shlex
import subprocess
import sys
import tomllib
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

import pytest

from fedrepro.core import extras

ROOT = Path(__file__).resolve().parents[1]
EXTRA_ONLY = {  # imported late
    *(
        "matplotlib",
        "seaborn",
        "papermill",
        "nbclient",
        "nbconvert",
        "latex2mathml",
        "ipykernel",
        "psutil",
        "timm",
        "triton",
    )
}
TOOLS = {  # what is run rather than imported, and where
    "jupyterlab": ("Makefile", "jupyter lab"),
    "nbval": ("Makefile", "--nbval-lax"),
    "pytest-xdist": ("Makefile", "-n 2 --dist loadfile"),
}
EXTRAS = (
    "matplotlib seaborn papermill nbformat nbclient nbconvert latex2mathml nbval ipykernel IPython ipywidgets \
jupyter jupyter_client jupyter_core jupyterlab notebook sklearn timm pytest"
)
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


@cache
def imported(folder: str) -> dict[str, set[str]]:
    """Return package -> files, of packages that are not Python's own, wherever in a file they are asked for."""
    found: dict[str, set[str]] = {}
    files = sorted((ROOT / folder).rglob("*.py"))
    own = {path.stem for path in files} | {path.parent.name for path in files} | {"fedrepro"}
    for path in files:
        if "peers" in path.parts:  # runners of other projects, which lie in environments of their own
            continue
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            asked: list[str] = []
            if isinstance(node, ast.Import):
                asked = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and not node.level:
                asked = [node.module or ""]
            elif isinstance(node, ast.Call) and getattr(node.func, "attr", "") in (
                "import_module",
                "importorskip",
            ):
                asked = [str(name.value) for name in node.args[:1] if isinstance(name, ast.Constant)]
            for package in {name.partition(".")[0] for name in asked} - own - sys.stdlib_module_names:
                found.setdefault(package, set()).add(path.relative_to(ROOT).as_posix())
    return found


installed = cache(packages_distributions)


def distributions(package: str) -> set[str]:
    """Return the names under which a registry may give a package."""
    return {name.lower().replace("_", "-") for name in installed().get(package, [package])}


def required(project: dict[str, Any], *extras: str) -> set[str]:
    """Return what a set of extras asks for, the core included."""
    lines = sum((project["optional-dependencies"][extra] for extra in extras), project["dependencies"])
    return {name_of(line) for line in lines} - {"fedrepro"}


def recipe(target: str) -> list[str]:
    """Return the commands of a target of the Makefile, as typed where its environment is active."""
    text = (ROOT / "Makefile").read_text("utf-8").replace("$(BIN)/", "")
    found = re.search(rf"^{target}:.*\n((?:\t.*\n)+)", text, re.MULTILINE)
    assert found is not None
    return [line.strip() for line in found[1].splitlines()]


def make(*arguments: str, cwd: Path = ROOT, file: Path = ROOT / "Makefile") -> "subprocess.CompletedProcess[str]":
    """Run make as from a shell, also where make runs this test."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    command = ["make", "-f", str(file), *arguments]
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


def test_environment_installs_what_make_installs() -> None:
    environment = (ROOT / "environment.yml").read_text("utf-8")
    (extra,) = re.findall(r"-e \.\[(\w+)\]", environment)
    assert f"$(PIP) -e '.[{extra}]'" in (ROOT / "Makefile").read_text("utf-8")


@pytest.mark.parametrize(("folder", "chosen"), [("fedrepro", ["notebooks"]), ("tests", ["notebooks", "test"])])
def test_what_is_imported_is_declared(folder: str, chosen: list[str], project: dict[str, Any]) -> None:
    known = required(project, *chosen)
    lacking = {package: files for package, files in imported(folder).items() if not distributions(package) & known}
    lacking.pop("triton", None)  # comes with torch, and only where it works
    assert lacking == {}


def test_what_the_library_imports_beyond_its_core_is_known(project: dict[str, Any]) -> None:
    core = required(project)
    late = {package for package in imported("fedrepro") if not distributions(package) & core}
    assert late == EXTRA_ONLY


def test_what_is_declared_is_used(project: dict[str, Any]) -> None:
    used = {
        name for folder in ("fedrepro", "tests") for package in imported(folder) for name in distributions(package)
    }
    used |= {command.split()[2] for command in recipe("test")}  # python -m COMMAND
    stubs = {f"types-{name}" for name in used} | {f"{name}-stubs" for name in used}
    tools = {name for name, (file, text) in TOOLS.items() if text in (ROOT / file).read_text("utf-8")}
    assert required(project, "notebooks", "test") - used - stubs == tools


def test_what_the_kit_promises_is_installed_by_its_commands(project: dict[str, Any]) -> None:
    promised = {"torch", "torchvision", "jupyterlab", "papermill", "timm", "seaborn", "nbval", "pytest"}
    assert promised - {"nbval", "pytest"} <= required(project, "notebooks")
    assert promised <= required(project, "notebooks", "test")


def test_optional_packages_are_declared(project: dict[str, Any]) -> None:
    assert set(extras.NOTEBOOKS) <= required(project, "notebooks") - required(project)
    told = re.search(r"\.\[(\w+)\]", extras.REMEDY)
    assert told is not None
    assert told[1] in project["optional-dependencies"]


def test_what_is_not_installed_is_told_with_a_command_of_the_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "papermill", None)
    told = r"^this needs papermill, nosuchpackage, not installed here; .*: pip install -e '\.\[notebooks\]'$"
    with pytest.raises(ValueError, match=told):
        extras.need("this", "json", "papermill", "nosuchpackage")


def test_no_advice_names_a_package_that_a_registry_may_give_to_others() -> None:
    advice = {
        path.relative_to(ROOT).as_posix(): found
        for path in tracked()
        if path.suffix in (".py", ".md", ".ipynb", ".toml", ".yml") and "tests" not in path.parts
        if (found := re.findall(r"pip install (?!-e [\"']?\.)[^\n]{,30}", path.read_text("utf-8")))
    }
    assert advice == {}


def test_every_requirement_has_a_lowest_version(project: dict[str, Any]) -> None:
    lowest = runpy.run_path(str(ROOT / ".ci" / "lowest.py"))["lowest"]
    found = lowest(project, "test")
    assert {name_of(name) for name in found} == required(project, "notebooks", "test")
    assert found["numpy"] == "1.26"
    with pytest.raises(ValueError, match="no lowest version: 'torch<3'"):
        lowest({"dependencies": ["torch<3"], "optional-dependencies": {}})


def test_every_marker_is_declared_and_used() -> None:
    options = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["pytest"]["ini_options"]
    declared = {line.partition(":")[0] for line in options["markers"]}
    texts = [path.read_text("utf-8") for path in sorted((ROOT / "tests").rglob("*.py"))]
    used = set(re.findall(r"pytest\.mark\.(\w+)", "\n".join(texts)))
    assert "--strict-markers" in options["addopts"]
    assert used - {"parametrize", "usefixtures", "skip", "skipif", "xfail", "filterwarnings"} == declared


def test_the_core_needs_neither_plots_nor_jupyter() -> None:
    files = sorted((ROOT / "fedrepro").rglob("*.py"))
    modules = [".".join(path.relative_to(ROOT).with_suffix("").parts) for path in files]
    beyond = ("fedrepro.plots", "fedrepro.notebooks.page", "fedrepro.notebooks.kernel")
    core = [
        module.removesuffix(".__init__")
        for module in modules
        if not module.startswith(beyond) and not module.endswith(".__main__")
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


def test_the_readme_lists_what_make_test_does() -> None:
    readme = (ROOT / "README.md").read_text("utf-8").replace("\n", " ")
    for command in recipe("test"):
        assert shlex.split(command)[:2] == ["python", "-m"]
        assert " ".join(command.split()) in " ".join(readme.split())


@pytest.mark.parametrize("folder", [".", "a  place", "ünï=1", "it's $HOME"])
def test_make_without_a_target_lists_all_of_them(folder: str, tmp_path: Path) -> None:
    (tmp_path / folder).mkdir(exist_ok=True)
    text = (ROOT / "Makefile").read_text("utf-8")
    (tmp_path / folder / "Makefile").write_text(text, "utf-8")
    listed = make(cwd=tmp_path, file=tmp_path / folder / "Makefile").stdout
    phony = re.search(r"^\.PHONY: (.*)$", text, re.MULTILINE)
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
