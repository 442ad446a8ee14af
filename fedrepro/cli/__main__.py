"""`python -m fedrepro.cli` is the same as the command `fedrepro`."""

import sys

from fedrepro.cli import main

if __name__ == "__main__":
    sys.exit(main())
