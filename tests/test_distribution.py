"""What travels: a source distribution with all of the repository, a wheel that plays and reports by itself."""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from test_packaging import BLOCK, EXTRAS, ROOT, tracked

BUILD = "import sys; from setuptools import build_meta; print(getattr(build_meta, sys.argv[1])(sys.argv[2]))"
# The core alone: the lines of a command, each with its exit status behind it.
PLAY = (
    BLOCK.replace("for module in sys.argv[2:]:\n    importlib.import_module(module)", "")
    + """
import fedrepro.cli
print(fedrepro.__file__)
for command in sys.argv[2:]:
    print("status", fedrepro.cli.main(command.split()))
"""
)
# scikit-learn ships the digits of the smoke scale: it is of the core.
CORE = [name for name in EXTRAS.split() if name != "sklearn"]


def names() -> set[str]:
    return {path.relative_to(ROOT).as_posix() for path in tracked()}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build both distributions from a copy of what git has, away from the checkout, and return their folder."""
    pytest.importorskip("setuptools", minversion="77")
    room = tmp_path_factory.mktemp("built")
    for name in names():
        (room / "copy" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, room / "copy" / name)
    for kind in ("build_sdist", "build_wheel"):
        made = subprocess.run(
            [sys.executable, "-c", BUILD, kind, str(room)], cwd=room / "copy", capture_output=True, text=True
        )
        assert made.returncode == 0, made.stderr
    return room


def test_the_source_distribution_is_the_repository(built: Path) -> None:
    (archive,) = built.glob("*.tar.gz")
    with tarfile.open(archive) as tar:
        held = {name.partition("/")[2] for name in tar.getnames() if tar.getmember(name).isfile()}
    made = {name for name in held if name.startswith("fedrepro.egg-info/")} | {"PKG-INFO", "setup.cfg"}
    assert held - made == names()


def test_the_wheel_is_the_library_with_the_papers_data(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    held = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert held == {name for name in names() if name.startswith("fedrepro/")}


def test_a_wheel_with_the_core_alone_plays_and_reports(built: Path, tmp_path: Path) -> None:
    (wheel,) = built.glob("*.whl")
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    environment = os.environ | {"PYTHONPATH": str(tmp_path / "site"), "FEDREPRO_RUNS": str(tmp_path / "store")}
    figure = "fedbe/figure1_simplex --scale smoke --seeds 1"
    commands = [f"run {figure}", "report", f"reproduce {figure}"]
    call = [sys.executable, "-c", PLAY, " ".join(CORE), *commands]
    done = subprocess.run(call, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert str(tmp_path / "site") in done.stdout
    assert re.findall(r"^status (\d)$", done.stdout, re.MULTILINE) == ["0", "0", "2"], done.stdout + done.stderr
    assert "fedrepro: recorded results are part of the repository, and this package was installed" in done.stderr
    assert (tmp_path / "results" / "figures" / "report.md").exists()
