"""The store of runs: one folder per run, written so that a kill at any moment loses at most one round.

<store>/store.json              the numerics version that wrote it
<store>/<key>/setting.json      what the run is
<store>/<key>/checkpoint.pt     state and rows after the last finished round
<store>/<key>/record.json       the finished run
<store>/<key>/failed.json       why it failed, until it is tried again
<store>/<key>/lock              held by the process that works on it; the system frees it if that dies
"""

import contextlib
import io
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout

from fedrepro.core.files import PARTIAL, StoreError, write_atomically
from fedrepro.core.paths import runs_folder
from fedrepro.core.setting import Setting, digest
from fedrepro.core.stack import Layout, Stack
from fedrepro.core.state import State

NUMERICS = 1  # raise whenever the same setting and seed would give other numbers than before


@dataclass(frozen=True)
class Progress:
    """A run after some rounds: its state, one row of numbers per round, and where the rounds were played."""

    state: State
    rows: list[dict[str, float]]
    places: list[dict[str, Any]] = field(default_factory=list)


class DamagedError(StoreError):
    """A file of one run that cannot be read; the others are not concerned."""


def _read(path: Path, remedy: str) -> dict[str, Any]:
    """Read a JSON object; raises DamagedError naming the file and a remedy if it is none."""
    try:
        found = json.loads(path.read_text())
    except ValueError as error:
        raise DamagedError(f"{path} is damaged ({error}); {remedy}") from error
    if not isinstance(found, dict):
        raise DamagedError(f"{path} is damaged (no JSON object); {remedy}")
    return found


def _json(value: Any) -> bytes:
    return (json.dumps(value, indent=1, sort_keys=True) + "\n").encode()


class Store:
    """A folder of runs that several processes may use at once.

    Args:
        root: the folder; made when missing.

    Raises:
        StoreError: if another numerics version wrote it: its numbers must not be mixed with ours.
    """

    def __init__(self, root: Path | None = None) -> None:
        self.root = root if root is not None else runs_folder()
        mark = self.root / "store.json"
        if not mark.exists():
            write_atomically(mark, _json({"numerics": NUMERICS}))
        found = _read(mark, "name another folder with FEDREPRO_RUNS").get("numerics")
        if found != NUMERICS:
            raise StoreError(
                f"{self.root} was written by numerics version {found}, this is version {NUMERICS}: name another "
                "folder with FEDREPRO_RUNS, or remove this one"
            )

    def key(self, setting: Setting, seed: int, fingerprint: str) -> str:
        """Return the name of a run: a hash of setting, seed, data and numerics version."""
        return digest({"setting": setting.hashed(), "seed": seed, "data": fingerprint, "numerics": NUMERICS})

    @contextlib.contextmanager
    def claim(self, key: str) -> Iterator[bool]:
        """Claim a run for this process; yields False if another process works on it."""
        folder = self.root / key
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder / "lock")
        try:
            lock.acquire(timeout=0)
        except Timeout:
            yield False
            return
        try:
            for left in folder.glob(f".*{PARTIAL}"):  # of a process that was killed while it wrote
                left.unlink(missing_ok=True)
            yield True
        finally:
            lock.release()

    def describe(self, key: str, setting: Setting, seed: int) -> None:
        """Write down what a run is."""
        write_atomically(self.root / key / "setting.json", _json(setting.asdict() | {"seed": seed}))

    def save(self, key: str, progress: Progress) -> None:
        """Replace a run's checkpoint by a newer one, atomically."""
        models = progress.state.models
        buffer = io.BytesIO()
        torch.save(
            {
                "numerics": NUMERICS,
                "round": progress.state.round,
                "params": models.params.cpu(),
                "buffers": models.buffers.cpu(),
                "counters": models.counters.cpu(),
                "memory": {name: tensor.cpu() for name, tensor in progress.state.memory.items()},
                "rows": progress.rows,
                "places": progress.places,
            },
            buffer,
        )
        write_atomically(self.root / key / "checkpoint.pt", buffer.getvalue())

    def restore(self, key: str, layout: Layout, device: torch.device) -> Progress | None:
        """Read a run's checkpoint, or None if it has none.

        Raises:
            DamagedError: if the file is damaged, naming it.
        """
        path = self.root / key / "checkpoint.pt"
        if not path.exists():
            return None
        try:
            saved = torch.load(path, map_location=device, weights_only=True)
            models = Stack(layout, saved["params"], saved["buffers"], saved["counters"])
            state = State(saved["round"], models, saved["memory"])
            return Progress(state, saved["rows"], saved.get("places", []))
        except Exception as error:  # torch's own words advise to unpickle the file, whatever it holds
            reason = str(error) if type(error) is ValueError else type(error).__name__
            raise DamagedError(f"{path} is damaged ({reason}); remove it to start that run again") from error

    def record(self, key: str) -> dict[str, Any] | None:
        """Return the record of a finished run, or None."""
        path = self.root / key / "record.json"
        return _read(path, "remove it to finish that run again") if path.exists() else None

    def finish(self, key: str, record: dict[str, Any]) -> None:
        """Write the record of a finished run and forget earlier failures."""
        write_atomically(self.root / key / "record.json", _json(record))
        self.forgive(key)

    def forgive(self, key: str) -> None:
        """Take the mark of an earlier failure away, since the run is tried again."""
        (self.root / key / "failed.json").unlink(missing_ok=True)

    def fail(self, key: str, reason: dict[str, Any]) -> None:
        """Mark a run as failed; its checkpoint stays."""
        write_atomically(self.root / key / "failed.json", _json(reason))
