"""Where things lie: one way to read folders from the environment, absolute for this process and its children."""

import os
from pathlib import Path

import pytest

import fedrepro
from fedrepro.core import paths
from fedrepro.data.data import data_root
from fedrepro.federation.loaded import datasets
from fedrepro.notebooks.job import places


@pytest.mark.parametrize("name", paths.NAMES)
def test_every_name_is_read_alike(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    for value, expected in (("~/x", tmp_path / "home" / "x"), ("x", tmp_path / "x"), (str(tmp_path), tmp_path)):
        monkeypatch.setenv(name, value)
        assert paths.chosen(name) == expected
        assert places()[name] == str(expected)
    for value in ("", "  "):
        monkeypatch.setenv(name, value)
        assert paths.chosen(name) is None
        assert places().get(name) == (str(paths.runs_folder()) if name == "FEDREPRO_RUNS" else "")


def test_a_relative_path_stays_where_it_was_first_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDREPRO_RUNS", "mine")
    monkeypatch.chdir(tmp_path)
    assert paths.runs_folder() == tmp_path / "mine"
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    assert paths.runs_folder() == tmp_path / "mine"
    assert os.environ["FEDREPRO_RUNS"] == str(tmp_path / "mine")  # what children will read


def test_a_home_that_nobody_has_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDREPRO_RUNS", "~nosuchuser/x")
    with pytest.raises(ValueError, match=r"FEDREPRO_RUNS=~nosuchuser/x: there is no such home folder"):
        paths.runs_folder()


def test_without_a_home_the_shipped_data_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody(self: Path) -> Path:
        raise RuntimeError("Could not determine home directory.")

    for name in ("FEDREPRO_DATA", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "expanduser", nobody)
    assert len(datasets("digits", "cpu")[0].labels)
    with pytest.raises(ValueError, match="FEDREPRO_DATA is not set, and neither is a home"):
        data_root()


def test_the_results_folder_can_be_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FEDREPRO_RUNS")
    monkeypatch.setenv("FEDREPRO_RESULTS", str(tmp_path))
    assert paths.made_folder() == tmp_path / "figures"
    assert paths.runs_folder() == tmp_path / "runs"
    root = paths.checkout()
    assert root is not None
    for inside in (root, root / "figures" / ".."):
        monkeypatch.setenv("FEDREPRO_RESULTS", str(inside))
        with pytest.raises(ValueError, match="would write over the recorded figures"):
            paths.made_folder()
    monkeypatch.setenv("FEDREPRO_RUNS", str(root / "figures" / "fedbe" / "x"))
    with pytest.raises(ValueError, match=r"^FEDREPRO_RUNS=.* would write over the recorded figures"):
        paths.runs_folder()


def test_what_this_machine_made_is_never_called_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = paths.checkout()
    assert root is not None
    assert list(paths.origins().values()) == ["recorded", "made"]
    assert paths.origins()[root / "figures"] == "recorded"
    monkeypatch.setattr(fedrepro, "__file__", str(tmp_path / "site-packages" / "fedrepro" / "__init__.py"))
    monkeypatch.chdir(tmp_path)
    assert paths.origins() == {tmp_path / "results" / "figures": "made"}
    with pytest.raises(FileNotFoundError, match="clone it and install it"):
        paths.recorded_folder()


def test_somebody_elses_project_is_no_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "notebooks").mkdir()
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "other"\n')
    monkeypatch.setattr(fedrepro, "__file__", str(tmp_path / "fedrepro" / "__init__.py"))
    assert paths.checkout() is None
