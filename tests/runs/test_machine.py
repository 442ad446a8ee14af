"""The commit that made the numbers: this repository's, whatever the environment says, or what is known instead."""

import os
import subprocess
from pathlib import Path

import pytest

import fedrepro
from fedrepro.runs import machine
from fedrepro.runs.machine import provenance

NAMED = "0123456789"


def git(folder: Path, *words: str) -> str:
    facts = {"user.name": "a", "user.email": "a@b", "commit.gpgsign": "false", "init.defaultBranch": "main"}
    options = [part for name, value in facts.items() for part in ("-c", f"{name}={value}")]
    clean = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    command = ["git", "-C", str(folder), *options, *words]
    return subprocess.run(command, env=clean, capture_output=True, text=True, check=True).stdout.strip()


def repository(folder: Path, *, ours: bool = True) -> str:
    """Make a repository with a commit, which holds the package if it is ours; return the commit's short name."""
    name = "fedrepro/__init__.py" if ours else "other.py"
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(f"# {folder}\n")
    git(folder, "init", "-q")
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", "one")
    return git(folder, "rev-parse", "--short=10", "HEAD")


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("GIT_")]:
        monkeypatch.delenv(name)
    monkeypatch.delenv("FEDREPRO_COMMIT", raising=False)


def use(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fedrepro, "__file__", str(root / "fedrepro" / "__init__.py"))


def commit() -> str:
    return str(provenance("cpu")["commit"])


def test_what_is_said_of_another_repository_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = repository(tmp_path / "mine")
    repository(tmp_path / "other")
    use(tmp_path / "mine", monkeypatch)
    monkeypatch.setenv("FEDREPRO_COMMIT", NAMED)
    assert commit() == mine
    other = tmp_path / "other"
    for name, value in (
        ("GIT_DIR", other / ".git"),
        ("GIT_WORK_TREE", other),
        ("GIT_INDEX_FILE", other / ".git" / "index"),
        ("GIT_OBJECT_DIRECTORY", other / ".git" / "objects"),
        ("GIT_NAMESPACE", "other"),
    ):
        monkeypatch.setenv(name, str(value))
        assert commit() == mine
    (tmp_path / "mine" / "fedrepro" / "new.py").touch()
    assert commit() == f"{mine}-dirty"


def test_a_worktree_names_its_own_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    repository(tmp_path / "mine")
    git(tmp_path / "mine", "worktree", "add", "-q", "-b", "side", str(tmp_path / "side"))
    git(tmp_path / "side", "commit", "-q", "--allow-empty", "-m", "two")
    assert (tmp_path / "side" / ".git").is_file()
    use(tmp_path / "side", monkeypatch)
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "mine" / ".git"))  # as in a hook
    assert commit() == git(tmp_path / "side", "rev-parse", "--short=10", "HEAD")


def test_inside_of_somebody_elses_repository_no_commit_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository(tmp_path, ours=False)
    installed = tmp_path / "venv" / "site-packages"
    for root in (installed, tmp_path):  # also beside their files, where it is not theirs
        (root / "fedrepro").mkdir(parents=True)
        (root / "fedrepro" / "__init__.py").touch()
        use(root, monkeypatch)
        assert commit() == "unknown"
    (installed / ".git").mkdir()  # none: git would go on to the folder above
    use(installed, monkeypatch)
    assert commit() == "unknown"


def test_where_git_gives_no_commit_the_environment_may(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    repository(tmp_path / "mine")
    (tmp_path / "empty" / "fedrepro").mkdir(parents=True)
    git(tmp_path / "empty", "init", "-q")
    use(tmp_path / "empty", monkeypatch)
    assert commit() == "unknown"
    use(tmp_path / "mine", monkeypatch)
    for error in (FileNotFoundError(2, "No such file", "git"), PermissionError(13, "no"), OSError(12, "memory")):

        def refuse(*_: object, error: OSError = error, **__: object) -> None:
            raise error

        with monkeypatch.context() as system:
            system.setattr(machine.subprocess, "run", refuse)
            assert commit() == "unknown"
            system.setenv("FEDREPRO_COMMIT", NAMED)
            assert commit() == NAMED
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    assert commit() == "unknown"


def test_a_repository_that_git_refuses_to_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    repository(tmp_path)
    (tmp_path / ".git" / "config").write_text("[broken")  # fatal, as for one of another owner
    use(tmp_path, monkeypatch)
    monkeypatch.setenv("FEDREPRO_COMMIT", NAMED)
    assert commit() == NAMED


@pytest.mark.parametrize("named", ["a\rb", "a b", "x" * 65, "a,b", os.fsdecode(b"\xff\xfe"), "é"])
def test_what_can_be_no_commit_is_unknown(named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use(tmp_path, monkeypatch)
    monkeypatch.setenv("FEDREPRO_COMMIT", named)
    assert commit() == "unknown"
    monkeypatch.setenv("FEDREPRO_COMMIT", f" v1.2-3-g{NAMED} ")
    assert commit() == f"v1.2-3-g{NAMED}"
