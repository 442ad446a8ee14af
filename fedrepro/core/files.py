"""Files that are written whole or not at all, alone or several together, and locks beside what they protect.

Everything that a killed process leaves behind has a hidden name that git ignores, and goes with the next process.
"""

import contextlib
import errno
import json
import os
import secrets
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from filelock import FileLock, Timeout

try:
    import fcntl
except ImportError:  # Windows, where an open file cannot be removed by others
    fcntl = None  # type: ignore[assignment]

PARTIAL = ".partial"  # ends the name of a file that is being written
NEW = ".new"  # ends the name of a whole file that waits for the others of its journal
JOURNAL = ".journal"  # ends the name of the list of files that change together
LOCK = ".writing"  # ends the name of a lock's file
PATIENCE = 120.0  # seconds that a lock is waited for
NO_LOCKS = {errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS}


class StoreError(OSError):
    """The store cannot be used or written; what was there before is unharmed."""


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file so that readers see the old content or the new, never a part.

    Raises:
        StoreError: if the disk refuses (full, read-only); the old file is still there.
    """
    write_all({path: content})


def write_all(contents: Mapping[Path, bytes]) -> None:
    """Write files, each as `write_atomically` does: first all contents, then all names.

    Raises:
        StoreError: if the disk refuses; files whose name was not reached are the old ones.
    """
    with contextlib.ExitStack() as partials:
        begun = {path: partials.enter_context(_partial(path, content)) for path, content in contents.items()}
        for path, partial in begun.items():
            with _told(path):
                os.replace(partial, path)  # noqa: PTH105 (atomic on Windows too)


@contextlib.contextmanager
def _told(path: Path) -> Iterator[None]:
    """Turn what the system says of a file into one line that names it; the cause tells the kind."""
    try:
        yield
    except StoreError:
        raise
    except OSError as error:
        raise StoreError(f"cannot write {path}: {error.strerror or error}; the version before is kept") from error


@contextlib.contextmanager
def _partial(path: Path, content: bytes, named: Path | None = None) -> Iterator[Path]:
    """Write content beside a path, under a name that nobody else has; the file goes in the end, if it is left.

    It is locked as long as its process lives, by which others know what may be removed.
    """
    with contextlib.ExitStack() as left:
        with _told(named or path):
            path.parent.mkdir(parents=True, exist_ok=True)
            sweep(path.parent, path.name)
            partial = _beside(path, PARTIAL)
            left.callback(_remove, partial)
            with open(partial, "xb") as file:
                held = os.dup(file.fileno())
                left.callback(os.close, held)
                _flock(held)
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
        yield partial


def _beside(path: Path, ending: str) -> Path:
    return path.with_name(f".{path.name[:180]}.{secrets.token_hex(8)}{ending}")


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink(missing_ok=True)


def _flock(descriptor: int) -> bool:
    """Lock an open file if nobody else has; returns whether that went well."""
    if fcntl is None:
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def sweep(folder: Path, name: str = "*") -> None:
    """Remove what killed processes left of files of a name (a pattern) that they were writing."""
    for left in folder.glob(f".{name[:180]}.*{PARTIAL}"):
        with contextlib.suppress(OSError):
            if time.time() - left.stat().st_mtime < 1.0:
                continue  # its process may not have locked it yet
            descriptor = os.open(left, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0))
            try:
                if _flock(descriptor):
                    left.unlink(missing_ok=True)
            finally:
                os.close(descriptor)


@contextlib.contextmanager
def alone(place: Path, patience: float = PATIENCE) -> Iterator[None]:
    """Let one process at a time change a folder; the lock's file lies beside it, hidden.

    Args:
        place: the folder; it need not exist.
        patience: seconds to wait for another process.

    Raises:
        StoreError: where no file can be locked, or another process does not give the lock back; names the file.
    """
    path = place.with_name(f".{place.name}{LOCK}")
    with _told(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    lock = lock_of(path)
    try:
        with unlockable(path):
            lock.acquire(timeout=patience)
    except Timeout as error:
        raise StoreError(f"another process has held {path} for {patience:.0f} s: end it, or try later") from error
    try:
        yield
    finally:
        lock.release()


def lock_of(path: Path) -> FileLock:
    """Return a lock of which the file may be used by all who may write beside it."""
    return FileLock(path, mode=0o666)


@contextlib.contextmanager
def unlockable(path: Path) -> Iterator[None]:
    """Turn what the system says against a lock into one line that names its file and a remedy.

    Whether the file system knows locks is asked first: there are versions of filelock that wait for ever.
    """
    try:
        if fcntl is not None:
            descriptor = os.open(path.parent, os.O_RDONLY)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except OSError as error:
                if error.errno in NO_LOCKS:
                    raise
            finally:
                os.close(descriptor)
        yield
    except (Timeout, StoreError):
        raise
    except (OSError, NotImplementedError) as error:
        code = getattr(error, "errno", None)
        if code in NO_LOCKS or isinstance(error, NotImplementedError):
            remedy = "this file system has no locks: name a folder on another (FEDREPRO_RUNS, FEDREPRO_RESULTS)"
        elif code == errno.ELOOP:
            remedy = "it is a link, which is not followed: remove it"
        else:
            remedy = "let this user write it, or remove it while nobody else works there"
        reason = getattr(error, "strerror", None) or error
        raise StoreError(f"cannot lock {path}: {reason}; {remedy}") from error


def write_together(journal: Path, contents: Mapping[Path, bytes]) -> None:
    """Write files of one folder that belong together: `snapshot` sees all of the old ones or all of the new.

    Every content lies beside its file before the journal, which is written in one step, says that they count.
    From then on they do, whoever puts them in place. The caller holds the lock (`alone`).

    Args:
        journal: a name of its own in the folder.
        contents: the files of that folder.

    Raises:
        StoreError: if the disk refuses before that step; then nothing has changed.
    """
    settle(journal)
    waiting: dict[str, str] = {}
    try:
        for path, content in contents.items():
            new = _beside(path, NEW)
            waiting[path.name] = new.name
            with _told(path), _partial(new, content, path) as partial:
                os.replace(partial, new)  # noqa: PTH105
        with _told(next(iter(contents), journal)):
            write_atomically(journal, json.dumps(waiting).encode())
    except BaseException:
        if not journal.exists():
            for name in waiting.values():
                _remove(journal.with_name(name))
        raise
    settle(journal)


def settle(journal: Path) -> None:
    """Put in place what a killed process had decided to write, and remove what it had not; under the lock."""
    waiting = _waiting(journal)
    for name, new in waiting.items():
        with _told(journal.with_name(name)), contextlib.suppress(FileNotFoundError):
            os.replace(journal.with_name(new), journal.with_name(name))  # noqa: PTH105
    journal.unlink(missing_ok=True)
    scale = journal.name.removesuffix(JOURNAL)  # the names of the files begin with that of the journal
    for left in journal.parent.glob(f"{scale}*{NEW}"):
        _remove(left)
    sweep(journal.parent)


def _waiting(journal: Path) -> dict[str, str]:
    """Return which files the journal wants to be replaced by which, by name; nothing if there is none."""
    try:
        found = json.loads(journal.read_bytes())
        if not all(Path(name).name == name for pair in found.items() for name in pair):
            raise ValueError("names of other folders")
    except FileNotFoundError:
        return {}
    except (ValueError, AttributeError, TypeError) as error:
        raise StoreError(f"{journal} is damaged ({error}); remove it") from error
    return dict(found)


def snapshot(journal: Path, paths: Iterable[Path]) -> dict[Path, bytes]:
    """Return the contents of those of the files that exist, all from one moment; nobody needs to hold a lock.

    Raises:
        StoreError: if the files change all the time, or cannot be read; names the file.
    """
    paths = list(paths)
    for _ in range(100):
        before = _stamps([journal, *paths])
        try:
            waiting = _waiting(journal)
            found = {path: _content(path, waiting) for path in paths}
        except FileNotFoundError:  # replaced meanwhile
            continue
        if _stamps([journal, *paths]) == before:
            return {path: content for path, content in found.items() if content is not None}
        time.sleep(0.01)
    raise StoreError(f"{paths[0]} is being rewritten all the time: try later")


def _content(path: Path, waiting: Mapping[str, str]) -> bytes | None:
    """Return what counts as a file's content: what the journal has for it, if that is not in place yet."""
    new = path.with_name(waiting[path.name]) if path.name in waiting else None
    try:
        if new is not None and new.exists():
            return new.read_bytes()
        return path.read_bytes() if path.exists() else None
    except FileNotFoundError:
        raise
    except OSError as error:
        raise StoreError(f"cannot read {path}: {error.strerror or error}") from error


def _stamps(paths: Iterable[Path]) -> list[tuple[int, int, int] | None]:
    """Return what changes of files when they are replaced."""
    found: list[tuple[int, int, int] | None] = []
    for path in paths:
        try:
            seen = path.stat()
            found.append((seen.st_ino, seen.st_mtime_ns, seen.st_size))
        except OSError:
            found.append(None)
    return found


def text(path: Path, content: bytes | None = None) -> str:
    """Return a file's text (UTF-8), or that of a content that was read of it.

    Raises:
        ValueError: if it is no such text; names the file and the line.
    """
    content = path.read_bytes() if content is None else content
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise ValueError(f"{path}, line {line}: not UTF-8 (byte {content[error.start]:#04x})") from error
