"""What a full disk says."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

FULL = (errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC))


class FullDiskError(OSError):
    """A disk or a quota is full; the message names the file or folder and what helps."""


def _full(error: OSError) -> bool:
    # numpy says "1228800 requested and 716672 written", and not why.
    return error.errno in FULL or (error.errno is None and "requested and" in str(error))


@contextmanager
def told_when_full(path: Path) -> Iterator[None]:
    """Turn the error of a full disk into one that names the file or folder and what helps.

    Raises:
        FullDiskError: in its place.
    """
    try:
        yield
    except FullDiskError:
        raise
    except OSError as error:
        if not _full(error):
            raise
        raise FullDiskError(
            error.errno or errno.ENOSPC,
            "no space left on device: free some there, or choose a folder on another disk with FEDREPRO_DATA",
            str(path),
        ) from error
