"""The kernel of a batch's notebooks: ipykernel's own, without what a user has configured for all kernels."""

from pathlib import Path

from ipykernel import kernelapp
from IPython.core import application


def main() -> None:
    """Be a kernel."""
    for folders in (application.SYSTEM_CONFIG_DIRS, application.ENV_CONFIG_DIRS):
        folders.clear()  # IPYTHONDIR is a room of the job's
    if Path("matplotlibrc").exists():  # one in the working folder comes before the one that MATPLOTLIBRC names
        import matplotlib as mpl

        mpl.rcdefaults()
    kernelapp.launch_new_instance()


if __name__ == "__main__":
    main()
