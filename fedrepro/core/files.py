"""Files that are written whole or not at all.

Everything that a killed process leaves behind has a hidden name that git ignores, and goes with the next process.
"""

import contextlib
import os
import secrets
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows, where an open file cannot be removed by others
    fcntl = None  # type: ignore[assignment]

PARTIAL = ".partial"  # ends the name of a file that is being written
KEPT = 40  # letters of a name that its partial file's has: names have an end


class StoreError(OSError):
    """The store cannot be used or written; what was there before is unharmed."""


def check_writable(folder: Path) -> None:
    """Refuse a folder into which nothing can be written, or which cannot be made; nothing is left there.

    Raises:
        StoreError: naming the folder and why.
    """
    place = next(path for path in (folder, *folder.parents) if os.path.lexists(path))
    try:
        with tempfile.TemporaryFile(dir=place):
            pass
    except OSError as error:
        raise StoreError(f"cannot write into {folder}: {error.strerror or error}") from error


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
        begun = {path: partials.enter_context(partial_of(path, content)) for path, content in contents.items()}
        for path, partial in begun.items():
            with told(path):
                os.replace(partial, path)  # noqa: PTH105 (atomic on Windows too)


@contextlib.contextmanager
def told(path: Path) -> Iterator[None]:
    """Turn what the system says of a file into one line that names it; the cause tells the kind."""
    try:
        yield
    except StoreError:
        raise
    except OSError as error:
        raise StoreError(f"cannot write {path}: {error.strerror or error}; the version before is kept") from error


@contextlib.contextmanager
def partial_of(path: Path, content: bytes, named: Path | None = None) -> Iterator[Path]:
    """Write content beside a path, under a name that nobody else has; the file goes in the end, if it is left.

    It is locked as long as its process lives, by which others know what may be removed.
    """
    with contextlib.ExitStack() as left:
        with told(named or path):
            path.parent.mkdir(parents=True, exist_ok=True)
            sweep(path.parent)
            partial = beside(path, PARTIAL)
            left.callback(remove, partial)
            with open(partial, "xb") as file:
                held = os.dup(file.fileno())
                left.callback(os.close, held)
                _flock(held)
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
        yield partial


def beside(path: Path, ending: str) -> Path:
    """Return a hidden name beside a path that nobody else has."""
    return path.with_name(f".{path.name[:KEPT]}.{secrets.token_hex(8)}{ending}")


def remove(path: Path) -> None:
    """Remove a file if it is there and may be removed."""
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


def sweep(folder: Path, *, alone: bool = False) -> None:
    """Remove what killed processes left of files that they were writing.

    With `alone` no other process can be writing there, and all of it goes.
    """
    for left in folder.glob(f".*{PARTIAL}"):
        with contextlib.suppress(OSError):
            if alone or fcntl is None:
                left.unlink()
                continue
            if time.time() - left.stat().st_mtime < 1.0:
                continue  # its process may not have locked it yet
            descriptor = os.open(left, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            try:
                if _flock(descriptor):
                    left.unlink(missing_ok=True)
            finally:
                os.close(descriptor)


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
