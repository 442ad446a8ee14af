"""Exercises in tutorials: an answer that is missing, right or wrong."""

from collections.abc import Callable
from typing import Any


def check(answer: Any, right: Callable[[Any], object], hint: str) -> None:
    """Say whether an exercise is answered; None stands for "not yet", so that a tutorial runs as it is.

    Args:
        answer: the reader's.
        right: of an answer, whether it is right; what it raises (a wrong type or shape) counts as wrong.
        hint: what to look at again.

    Raises:
        AssertionError: the answer is wrong, with the hint.
    """
    if answer is None:
        print("not answered yet")
        return
    try:
        good = bool(right(answer))
    except Exception as error:
        raise AssertionError(f"not right: {hint} ({type(error).__name__}: {error})") from error
    if not good:  # no assert, which PYTHONOPTIMIZE leaves out
        raise AssertionError(f"not right: {hint}")
    print("right")
