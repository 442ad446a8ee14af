"""The kernel of a batch's notebooks: ipykernel's own, without what a user has configured for all kernels."""

from pathlib import Path

from ipykernel.kernelapp import IPKernelApp


class Kernel(IPKernelApp):
    """A kernel that reads no configuration but that of IPYTHONDIR, which is a room of the job's."""

    def init_config_files(self) -> None:
        """Leave out the folders of the environment and of the system."""
        super().init_config_files()
        own = Path(self.ipython_dir)
        self.config_file_paths = [path for path in self.config_file_paths if Path(path).is_relative_to(own)]


def main() -> None:
    """Be a kernel."""
    if Path("matplotlibrc").exists():  # one in the working folder comes before the one that MATPLOTLIBRC names
        import matplotlib as mpl

        mpl.rcdefaults()
    Kernel.launch_instance()


if __name__ == "__main__":
    main()
