"""Tests run in a closed room: data root, run store and settings of their own, few threads, no GPU unasked."""

import os
import shutil
import signal
import tempfile
from importlib.util import find_spec
from pathlib import Path

import pytest

# A machine with a GPU may have little else than torch: what cannot be imported there must not stop `-m gpu`.
NEEDS = {
    "hypothesis": ["data/test_partition.py"],
    "matplotlib": ["bench/test_performance.py", "plots/test_plots.py", "plots/test_save.py"],
}
lacking = [package for package in NEEDS if find_spec(package) is None]
collect_ignore = [name for package in lacking for name in NEEDS[package]]
if "hypothesis" not in lacking:
    import hypothesis

    hypothesis.settings.register_profile("tests", deadline=None, derandomize=True)
    hypothesis.settings.load_profile("tests")


def pytest_report_header() -> list[str]:
    """Tell which tests are left out for want of a package."""
    return [f"without {package}: left out {', '.join(NEEDS[package])}" for package in lacking]


def _wants_gpu(config: pytest.Config) -> bool:
    expression = config.getoption("markexpr")
    return "gpu" in expression and "not gpu" not in expression


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """Let plain `pytest` use up to four cores where there is xdist; not with files, `-n`, `--pdb`, `-m gpu`."""
    whole = config.args_source == pytest.Config.ArgsSource.TESTPATHS
    free = config.getoption("numprocesses", 1) is None and "PYTEST_XDIST_WORKER" not in os.environ
    if whole and free and not config.getoption("usepdb") and not _wants_gpu(config):
        config.option.numprocesses, config.option.dist = min(4, os.cpu_count() or 1), "loadfile"


def pytest_configure(config: pytest.Config) -> None:
    """Set the environment before anything imports torch; kernels inherit it."""
    room = tempfile.mkdtemp(prefix="fedrepro-tests-")
    config.add_cleanup(lambda: shutil.rmtree(room, ignore_errors=True))
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in a shell's background: what tests start would too
        signal.signal(signal.SIGINT, signal.default_int_handler)
    for name in [name for name in os.environ if name.startswith(("FEDREPRO_", "GIT_"))]:
        del os.environ[name]  # of the user, or of a git hook that runs the tests
    Path(room, "matplotlibrc").touch()
    os.environ["MATPLOTLIBRC"] = str(Path(room, "matplotlibrc"))
    os.environ["IPYTHONDIR"] = os.environ["JUPYTER_CONFIG_DIR"] = str(Path(room, "jupyter"))
    for name in ("runs", "data"):
        os.environ[f"FEDREPRO_{name.upper()}"] = str(Path(room, name))
        Path(room, name).mkdir()
    side_by_side = bool(getattr(config.option, "numprocesses", None))  # workers inherit what is set here
    os.environ.setdefault("OMP_NUM_THREADS", "1" if side_by_side else "2")
    if not _wants_gpu(config):
        os.environ["CUDA_VISIBLE_DEVICES"] = ""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the tests marked gpu unless `-m gpu` asks for them."""
    if not _wants_gpu(config):
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason="needs a CUDA device; run with -m gpu"))
