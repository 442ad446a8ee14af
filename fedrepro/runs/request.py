"""What is asked for, and how it ended."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

from fedrepro.core.setting import Setting


@dataclass(frozen=True)
class Outcome:
    """How a request for a run ended.

    status: "done", "paused" (no time left, or the device lost), "busy" (another process has it) or "failed".
    """

    key: str
    status: str
    record: dict[str, Any] | None = None
    error: str = ""


@dataclass(frozen=True)
class Run:
    """One setting with one seed; `label` is only for people.

    until: a measure of a round, or "answer", and a target: the run may end with the first round that reaches it.
    """

    setting: Setting
    seed: int
    label: str = ""
    until: tuple[str, float] | None = None


def merged(requests: Iterable[Run]) -> dict[tuple[Setting, int], Run]:
    """Return one run for all requests of a setting and seed, in their order: it ends when all are served."""
    same: dict[tuple[Setting, int], list[Run]] = {}
    for run in requests:
        same.setdefault((run.setting, run.seed), []).append(run)
    return {asked: _serving(runs) for asked, runs in same.items()}


def in_turn(requests: Iterable[Run]) -> Iterator[Run]:
    """Yield one run for all requests of a setting and seed, as `merged`, block by block of one seed.

    Requests of one seed stand together, as all cells of a seed before the next seed: no more than a seed's are
    held at a time, so that there may be any number of seeds.
    """
    for _, block in groupby(requests, key=lambda run: run.seed):
        yield from merged(block).values()


def _serving(runs: Sequence[Run]) -> Run:
    """Return the run that serves all: it may end early only where all name a target, and of one measure."""
    targets = {run.until for run in runs}
    named = [until for until in targets if until is not None]
    alike = len(named) == len(targets) and len({measure for measure, _ in named}) == 1
    return replace(runs[0], until=max(named) if alike else None)
