"""Files of one folder that change together, whatever kills the process that writes them.

All new contents are written first; then a journal, in one step, says that they count; then they are put in place.
Readers look through the journal, so they see all of the old files or all of the new ones at any moment.
"""

import contextlib
import json
import os
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

from fedrepro.core.files import StoreError, beside, partial_of, remove, sweep, told, write_atomically

NEW = ".new"  # ends the name of a whole file that waits for the others of its journal
JOURNAL = ".journal"  # ends the name of the list of files that change together


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
            new = beside(path, NEW)
            waiting[path.name] = new.name
            with told(path), partial_of(new, content, path) as partial:
                os.replace(partial, new)  # noqa: PTH105
        with told(next(iter(contents), journal)):
            write_atomically(journal, json.dumps(waiting).encode())
    except BaseException:
        if not journal.exists():
            for name in waiting.values():
                remove(journal.with_name(name))
        raise
    settle(journal)


def settle(journal: Path) -> None:
    """Put in place what a killed process had decided to write, and remove what it had not; under the lock."""
    waiting = _waiting(journal)
    for name, new in waiting.items():
        with told(journal.with_name(name)), contextlib.suppress(FileNotFoundError, NotADirectoryError):
            os.replace(journal.with_name(new), journal.with_name(name))  # noqa: PTH105
    journal.unlink(missing_ok=True)
    scale = journal.name.removesuffix(JOURNAL)  # the names of the files begin with that of the journal
    for left in journal.parent.glob(f"{scale}*{NEW}"):
        remove(left)
    sweep(journal.parent)


def _waiting(journal: Path) -> dict[str, str]:
    """Return which files the journal wants to be replaced by which, by name; nothing if there is none."""
    try:
        found = json.loads(journal.read_bytes())
        if not all(Path(name).name == name for pair in found.items() for name in pair):
            raise ValueError("names of other folders")
    except (FileNotFoundError, NotADirectoryError):
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
        except (FileNotFoundError, NotADirectoryError):  # replaced meanwhile
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
    except (FileNotFoundError, NotADirectoryError):
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
