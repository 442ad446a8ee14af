"""The files that jobs write: no two may be one, and what is half done has a name of its own until it is whole."""

import contextlib
import re
import time
import unicodedata
import uuid
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from filelock import FileLock, Timeout

HIDDEN = re.compile(r"\..+\.[0-9a-f]{32}\.ipynb")  # a notebook that is being executed
RECENT = 60.0  # seconds


def failed_name(output: Path) -> Path:
    """Return where a notebook that failed is kept, beside its output."""
    return output.with_suffix(".failed.ipynb")


def check_outputs(jobs: Sequence[tuple[Path, Path]]) -> None:
    """Refuse jobs, each a notebook and an output, whose files would overwrite each other or a notebook.

    Names count as one file where they lead to the same place, also by a relative path or a link, and where a file
    system that does not tell small letters from capitals would take them for one.

    Raises:
        ValueError: naming the files.
    """
    sources = {_place(notebook): notebook for notebook, _ in jobs}
    written: dict[str, Path] = {}
    for _, output in jobs:
        mine = {_place(output): output, _place(failed_name(_resolved(output))): failed_name(output)}
        for place, path in mine.items():
            if place in sources:
                raise ValueError(f"an output must not be a notebook to run, got {path} for {sources[place]}")
            if place in written:
                other = f" and {written[place]}" if written[place] != path else " twice"
                raise ValueError(f"every job needs an output of its own, got {path}{other}")
        written |= mine


def _resolved(path: Path) -> Path:
    try:
        return path.resolve()
    except (OSError, RuntimeError) as error:  # a circle of links
        raise ValueError(f"{path} leads nowhere: {error}") from error


def _place(path: Path) -> str:
    return unicodedata.normalize("NFC", str(_resolved(path))).casefold()


class Partial:
    """The hidden file of an output that is being made; leaves nothing behind, and clears what killed ones left.

    A lock beside it says that it is somebody's; the system lets it go when its owner dies.
    """

    def __init__(self, output: Path) -> None:
        self.path = output.with_name(f".{output.stem}.{uuid.uuid4().hex}.ipynb")
        self._lock = FileLock(_lock(self.path))
        self._output = output

    def __enter__(self) -> Path:
        """Claim the file, which is not there yet."""
        with contextlib.suppress(OSError, NotImplementedError):  # a file system without locks
            self._lock.acquire(timeout=0)
            _clear(self._output)
        return self.path

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Remove what is left of it."""
        self.path.unlink(missing_ok=True)
        self._lock.release()
        _lock(self.path).unlink(missing_ok=True)


def _lock(path: Path) -> Path:
    return path.with_suffix(".lock")


def _clear(output: Path) -> None:
    """Remove the hidden files of this folder whose owners were killed.

    One without a lock is left for a while: a notebook that has just ended is about to take its name.
    """
    for path in (path for path in output.parent.glob(".*.ipynb") if HIDDEN.fullmatch(path.name)):
        with contextlib.suppress(OSError):
            if not _lock(path).exists() and time.time() - path.stat().st_mtime > RECENT:
                path.unlink()
    for lock in output.parent.glob(".*.lock"):
        path = lock.with_suffix(".ipynb")
        if not HIDDEN.fullmatch(path.name):
            continue
        with contextlib.suppress(Timeout, OSError), FileLock(lock, timeout=0):
            path.unlink(missing_ok=True)
            lock.unlink(missing_ok=True)
