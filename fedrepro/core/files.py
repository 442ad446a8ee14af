"""Files that are written whole or not at all."""

import contextlib
import os
from pathlib import Path

PARTIAL = ".partial"  # ends the name of a file that is being written


class StoreError(OSError):
    """The store cannot be used or written; what was there before is unharmed."""


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file so that readers see the old content or the new, never a part.

    Raises:
        StoreError: if the disk refuses (full, read-only); the old file is still there.
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}{PARTIAL}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(partial, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)  # noqa: PTH105 (atomic on Windows too)
    except OSError as error:
        raise StoreError(f"cannot write {path}: {error.strerror or error}; the version before is kept") from error
    finally:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
