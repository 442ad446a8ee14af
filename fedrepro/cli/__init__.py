"""The command line: `fedrepro run`, `reproduce`, `report`, `list`, `data`, `bench`, `new`.

What a command needs is imported when it is called: torch takes seconds, a typo shall not.
"""

import argparse
import contextlib
import io
import os
import sys
from collections.abc import Callable, Sequence
from importlib import import_module

from fedrepro.cli import known
from fedrepro.cli.arguments import budget_seconds
from fedrepro.cli.parser import parser

__all__ = ["budget_seconds", "main", "parser"]

COMMANDS = {
    "run": "fedrepro.cli.runs:run",
    "reproduce": "fedrepro.cli.reproduce:reproduce",
    "report": "fedrepro.cli.show:report",
    "list": "fedrepro.cli.items:items",
    "data": "fedrepro.cli.show:data",
    "bench": "fedrepro.bench.command:command",
    "new": "fedrepro.cli.show:new",
}
CLOSED = 141  # as a process ends that writes into a pipe which nobody reads
INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns 0 only if everything asked for was done."""
    options = argparse.Namespace(command="")
    _printable()
    try:
        try:
            options = parser().parse_args(arguments)
            known.check(options)
            return _command(options.command)(options)
        finally:
            if sys.stdout:  # None where it was closed
                sys.stdout.flush()
    except BrokenPipeError:
        _close()
        return CLOSED
    except KeyboardInterrupt:
        going_on = options.command in ("run", "reproduce")
        kept = "; finished rounds are kept, the same command goes on" if going_on else ""
        print(f"fedrepro: interrupted{kept}", file=sys.stderr)
        return INTERRUPTED
    except ImportError as error:
        from fedrepro.cli.needs import advice

        return _refuse(f"{error}{advice(error.name or '')}")
    except (ValueError, OSError, RuntimeError) as error:
        return _refuse(str(error) or type(error).__name__)


def _command(name: str) -> Callable[[argparse.Namespace], int]:
    module, _, function = COMMANDS[name].partition(":")
    found: Callable[[argparse.Namespace], int] = getattr(import_module(module), function)
    return found


def _printable() -> None:
    """Let what the terminal's encoding does not have, such as ± in ASCII, be a question mark, not an error."""
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors in ("strict", "surrogateescape"):
        sys.stdout.reconfigure(errors="replace")


def _refuse(message: str) -> int:
    print(f"fedrepro: {'; '.join(line.strip() for line in message.splitlines() if line.strip())}", file=sys.stderr)
    return 2


def _close() -> None:
    """Let what is still to be written go nowhere: the system's own message about it helps nobody."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
