"""An argument parser that takes nothing half written, and what single options are made of."""

import argparse
import csv
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from fedrepro.core.names import nearest


class Parser(argparse.ArgumentParser):
    """A parser whose options must be written in full; what it does not know is answered with the nearest name."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options | {"allow_abbrev": False})

    def parse_known_args(  # type: ignore[override]  # its three forms in one
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> Any:
        """Refuse unknown options first: whatever else is missing, they are the mistake."""
        given = list(sys.argv[1:] if args is None else args)
        commands = any(isinstance(action, argparse._SubParsersAction) for action in self._actions)
        for word in given:
            name = word.partition("=")[0]
            if word == "--" or (commands and not word.startswith("-")):
                break  # what follows belongs to the command
            if re.match(r"--?[^\d\W]|--\W", word) and " " not in name and name not in self._option_string_actions:
                self.error(f"unknown option {name!r}{nearest(name, self._shown())}")
        found, rest = super().parse_known_args(given, namespace)
        if rest:
            self.error(f"{rest[0]!r} is one word too many")
        return found, rest

    def _shown(self) -> list[str]:
        hidden = [action for action in self._actions if action.help == argparse.SUPPRESS]
        return [
            name
            for action in self._actions
            for name in action.option_strings
            if name.startswith("--") and action not in hidden
        ]

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Refuse what is not among an action's choices, with the nearest of them."""
        if action.choices is not None and value not in action.choices:
            names = [*map(str, action.choices)]
            known = nearest(str(value), names)
            if action.option_strings and "; there are" not in known:
                known += f"; there are {', '.join(names)}"
            raise argparse.ArgumentError(action, f"unknown {value!r}{known}")

    def error(self, message: str) -> NoReturn:
        """Show how the command is called and what is wrong, the last in one line; end with exit status 2."""
        super().error(" ".join(message.split()))


def budget_seconds(text: str) -> float:
    """Turn "90s", "8m" or "1.5h" into seconds.

    Raises:
        argparse.ArgumentTypeError: for anything else.
    """
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*([smh])", text.strip())
    if not match or float(match[1]) <= 0:
        raise argparse.ArgumentTypeError(f"must be a time such as 90s, 8m or 1.5h, got {text!r}")
    return float(match[1]) * {"s": 1, "m": 60, "h": 3600}[match[2]]


def labels(text: str) -> tuple[str, ...]:
    """Split at commas; a label that has one itself stands in double quotes."""
    try:
        if re.search(r"[\r\n\0]", text):
            raise ValueError("a line break")
        (parts,) = csv.reader([text], skipinitialspace=True, strict=True) if text.strip() else ([""],)
    except (csv.Error, ValueError) as error:
        raise argparse.ArgumentTypeError(f"must be labels in one line, such as A,B, got {text!r}") from error
    found = tuple(part.strip() for part in parts)
    if not all(found):
        raise argparse.ArgumentTypeError(f"must be labels, such as A,B, and none empty, got {text!r}")
    return found


def whole(text: str) -> int:
    """Return a whole number >= 1."""
    if not re.fullmatch(r"[0-9]+", text) or len(text) > 18 or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number >= 1, got {text!r}")
    return int(text)


def folder(text: str) -> Path:
    """Return a folder's absolute path, which need not be there yet; a tilde is the home folder."""
    if not text.strip() or "\0" in text:
        raise argparse.ArgumentTypeError(f"must be a folder, got {text!r}")
    try:
        path = Path(text).expanduser().absolute()
    except RuntimeError as error:
        raise argparse.ArgumentTypeError(f"must be a folder, got {text!r}: no such home folder") from error
    if path.exists() and not path.is_dir():
        raise argparse.ArgumentTypeError(f"must be a folder, {text!r} is a file")
    return path
