"""The command `fedrepro`, also as `python -m fedrepro`."""

import sys


def main() -> int:
    """Run the command line; an interrupt while it is being loaded is told like any other."""
    try:
        from fedrepro.cli import main as command

        return command()
    except KeyboardInterrupt:
        print("fedrepro: interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
