"""The command line: `fedrepro run`, `reproduce`, `report`, `list`, `data`, `bench`, `new`."""

import argparse
import sys
from collections.abc import Callable, Sequence

from fedrepro.bench import command as bench
from fedrepro.cli import reproduce, runs, show
from fedrepro.cli.parser import budget_seconds, parser
from fedrepro.core.files import StoreError

__all__ = ["budget_seconds", "main", "parser"]

COMMANDS: dict[str, Callable[[argparse.Namespace], int]] = {
    "run": runs.run,
    "reproduce": reproduce.reproduce,
    "report": reproduce.report,
    "list": show.items,
    "data": show.data,
    "bench": bench.command,
    "new": show.new,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns 0 only if everything asked for was done."""
    options = parser().parse_args(arguments)
    try:
        return COMMANDS[options.command](options)
    except (ValueError, StoreError, OSError) as error:
        print(f"fedrepro: {error}", file=sys.stderr)
        return 2
    except ImportError as error:
        print(f"fedrepro: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("fedrepro: interrupted; finished rounds are kept, the same command goes on", file=sys.stderr)
        return 130
