"""Files and locks: whole or not at all, alone or together, whoever is killed; locks beside what they protect."""

import errno
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedrepro.core import files, together
from fedrepro.core.files import StoreError, sweep, text, write_all, write_atomically
from fedrepro.core.locks import alone
from fedrepro.core.together import settle, snapshot, write_together

fcntl = pytest.importorskip("fcntl")


def old(path: Path) -> Path:
    os.utime(path, (time.time() - 60,) * 2)
    return path


def test_processes_of_one_number_do_not_meet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getpid", lambda: 1)
    names = {files.beside(tmp_path / "file", files.PARTIAL).name for _ in range(100)}
    assert len(names) == 100
    assert all(name.startswith(".file.") for name in names)


def test_what_a_killed_process_left_goes_and_what_a_living_one_writes_stays(tmp_path: Path) -> None:
    dead, alive = old_partial(tmp_path, "a"), old_partial(tmp_path, "b")
    fresh = tmp_path / ".other.0.partial"  # may be so new that it is not locked yet
    fresh.touch()
    with alive.open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        write_atomically(tmp_path / "file", b"new")
        assert not dead.exists()
        assert alive.exists()
        assert fresh.exists()
    old(fresh)
    sweep(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"file"}


def old_partial(folder: Path, name: str) -> Path:
    path = folder / f".file.{name}.partial"
    path.write_text("half")
    return old(path)


def test_a_link_under_the_name_of_a_partial_file_harms_nothing(tmp_path: Path) -> None:
    target = tmp_path / "precious"
    target.write_text("precious")
    (tmp_path / ".file.0.partial").symlink_to(target)
    write_atomically(tmp_path / "file", b"new")
    sweep(tmp_path)
    assert target.read_text() == "precious"


@pytest.mark.parametrize("name", ["n" * 255, "ü" * 120, "a[b]*?"])
def test_any_name_that_a_file_may_have(name: str, tmp_path: Path) -> None:
    write_atomically(tmp_path / name, b"new")
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_all_contents_are_written_before_the_first_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [tmp_path / name for name in "abc"]
    write_all(dict.fromkeys(paths, b"old"))
    fsync, written = os.fsync, 0

    def full(descriptor: int) -> None:
        nonlocal written
        written += 1
        if written == 3:
            raise OSError(errno.ENOSPC, "No space left on device")
        fsync(descriptor)

    with monkeypatch.context() as disk:
        disk.setattr("fedrepro.core.files.os.fsync", full)
        with pytest.raises(StoreError, match=r"cannot write .*c: No space left"):
            write_all(dict.fromkeys(paths, b"new"))
    assert [path.read_bytes() for path in paths] == [b"old"] * 3
    assert len(list(tmp_path.iterdir())) == 3


# -- several files ----------------------------------------------------------------------------------------------


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, list[Path]]:
    paths = [tmp_path / "s.csv", tmp_path / "s_rounds.csv"]
    write_together(tmp_path / ".s.journal", dict.fromkeys(paths, b"old"))
    return tmp_path / ".s.journal", paths


class Killed(BaseException):
    """Ends a call as a kill would."""


def stopping(function: Callable[..., Any], after: int) -> Callable[..., Any]:
    """Return the function, but from some call on it is not carried out: its process is dead."""
    calls = 0

    def call(*arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls > after:
            raise Killed
        return function(*arguments)

    return call


@pytest.mark.parametrize("after", range(6))
def test_a_reader_sees_all_old_or_all_new_after_every_kill(
    after: int, pair: tuple[Path, list[Path]], monkeypatch: pytest.MonkeyPatch
) -> None:
    journal, paths = pair
    with monkeypatch.context() as process:  # two contents, the journal, two names
        process.setattr("fedrepro.core.files.os.replace", stopping(os.replace, after))
        process.setattr(files, "remove", lambda path: None)
        process.setattr(together, "remove", lambda path: None)
        try:
            write_together(journal, dict.fromkeys(paths, b"new"))
            assert after == 5
        except Killed:
            assert after < 5
    seen = snapshot(journal, paths)
    assert set(seen.values()) == ({b"new"} if after > 2 else {b"old"})
    for left in journal.parent.glob("*.partial"):
        old(left)
    settle(journal)
    assert snapshot(journal, paths) == seen == {path: path.read_bytes() for path in paths}
    assert set(journal.parent.iterdir()) == set(paths)


def test_a_reader_between_two_renames_reads_again(
    pair: tuple[Path, list[Path]], monkeypatch: pytest.MonkeyPatch
) -> None:
    journal, paths = pair
    content, calls = together._content, 0

    def overtaken(path: Path, waiting: dict[str, str]) -> bytes | None:
        nonlocal calls
        calls += 1
        if calls == 2:  # the first file has been read
            write_together(journal, dict.fromkeys(paths, b"new"))
        return content(path, waiting)

    monkeypatch.setattr(together, "_content", overtaken)
    assert set(snapshot(journal, paths).values()) == {b"new"}


@pytest.mark.parametrize("content", ["{", "[1]", '{"a": 1}', '{"a": "../b"}'])
def test_a_journal_that_is_none_is_named(content: str, tmp_path: Path) -> None:
    (tmp_path / ".s.journal").write_text(content)
    with pytest.raises(StoreError, match=r"\.s\.journal is damaged .*; remove it"):
        snapshot(tmp_path / ".s.journal", [tmp_path / "s.csv"])


# -- locks ------------------------------------------------------------------------------------------------------

HOLD = """
import sys
from pathlib import Path
from fedrepro.core.locks import alone
with alone(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_processes_with_other_temporary_folders_exclude_each_other(tmp_path: Path) -> None:
    (tmp_path / "temporary").mkdir()
    environment = os.environ | {"TMPDIR": str(tmp_path / "temporary")}
    command = [sys.executable, "-c", HOLD, str(tmp_path / "item")]
    with subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        with (
            pytest.raises(StoreError, match=r"another process has held .*\.item\.writing"),
            alone(tmp_path / "item", patience=0.1),
        ):
            pass
        other.kill()
    with alone(tmp_path / "item", patience=10.0):  # the dead give back
        pass


def test_a_link_under_the_name_of_a_lock_empties_nothing(tmp_path: Path) -> None:
    target = tmp_path / "precious"
    target.write_text("precious")
    (tmp_path / ".item.writing").symlink_to(target)
    with (
        pytest.raises(StoreError, match=r"cannot lock .*\.item\.writing: .*it is a link"),
        alone(tmp_path / "item"),
    ):
        pass
    assert target.read_text() == "precious"


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS])
def test_a_file_system_without_locks_is_told_in_a_line(
    code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with (
        pytest.raises(StoreError, match=r"cannot lock .*\.item\.writing: .*has no locks: name a folder"),
        alone(tmp_path / "item"),
    ):
        pass
    write_atomically(tmp_path / "file", b"new")  # needs none
    assert (tmp_path / "file").read_bytes() == b"new"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everything")
def test_a_lock_of_another_user_is_named(tmp_path: Path) -> None:
    (tmp_path / ".item.writing").touch(0o400)
    with pytest.raises(StoreError, match=r"cannot lock .*\.item\.writing"), alone(tmp_path / "item"):
        pass


def test_what_is_left_behind_is_ignored_by_git(tmp_path: Path) -> None:
    root = Path(files.__file__).parents[2]
    names = [".f.0.partial", ".f.0.new", ".s.journal", ".item.writing"]
    command = ["git", "-c", "safe.directory=*", "check-ignore", *(f"figures/fedbe/{name}" for name in names)]
    asked = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    if asked.returncode == 128:
        pytest.skip("not a git checkout")
    assert len(asked.stdout.split()) == len(names)


def test_a_text_that_is_no_utf8_is_named_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"one\ntw\xff\n")
    with pytest.raises(ValueError, match=r"file, line 2: not UTF-8 \(byte 0xff\)"):
        text(path)
