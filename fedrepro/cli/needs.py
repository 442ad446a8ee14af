"""What commands need beside the core: the packages of the notebooks, and places that can be written."""

import tempfile
from pathlib import Path

from fedrepro.core.extras import NOTEBOOKS, REMEDY, need

FURTHER = ("jupyterlab", "nbformat", "jupyter_client", "IPython", "timm", *NOTEBOOKS)


def check_notebooks() -> None:
    """Refuse to begin what would end in notebooks that cannot be executed.

    Raises:
        ValueError: naming what is missing.
    """
    need("fedrepro reproduce", *NOTEBOOKS)


def advice(module: str) -> str:
    """Return what to do about a module that is not installed.

    The package's own name is never given to pip: a registry may have given it to somebody else.
    """
    if module.partition(".")[0] not in FURTHER:
        return ""
    return f"; {REMEDY}"


def check_writable(folder: Path) -> None:
    """Refuse a folder into which nothing can be written; nothing is left there.

    Raises:
        OSError: naming the folder and why.
    """
    place = next(path for path in (folder, *folder.parents) if path.exists())
    try:
        with tempfile.TemporaryFile(dir=place):
            pass
    except OSError as error:
        raise OSError(f"cannot write into {folder}: {error.strerror or error}") from error
