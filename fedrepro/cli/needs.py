"""What commands need beside the core: the packages of the notebooks."""

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
