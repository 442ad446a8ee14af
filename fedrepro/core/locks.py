"""Locks beside what they protect, so that all who write there find them, whatever their temporary folders."""

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock, Timeout

from fedrepro.core.files import StoreError, told

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

LOCK = ".writing"  # ends the name of a lock's file
PATIENCE = 120.0  # seconds that a lock is waited for
NO_LOCKS = {errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS}


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
    with told(path):
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
