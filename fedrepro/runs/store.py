"""The store of runs: one folder per run, written so that a kill at any moment loses little.

<store>/store.json              the numerics version that wrote it
<store>/<key>/setting.json      what the run is
<store>/<key>/checkpoint.pt     state and rows after the last finished round
<store>/<key>/inside/           what is done of the round after it, if that is a long one: round.json, <n>.pt
<store>/<key>/record.json       the finished run
<store>/<key>/failed.json       why it failed, until it is tried again
<store>/<key>/lock              held by the process that works on it; the system frees it if that dies
"""

import contextlib
import io
import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import torch
from filelock import FileLock, Timeout
from torch import Tensor

from fedrepro.core.files import PARTIAL, StoreError, write_atomically
from fedrepro.core.paths import runs_folder
from fedrepro.core.setting import Setting, digest
from fedrepro.core.stack import Layout, Stack
from fedrepro.core.state import State
from fedrepro.kernels.trained import Carried

RECORD = ("setting", "setting_key", "seed", "result", "rows", "seconds", "split", "provenance")
Read = TypeVar("Read")
NUMERICS = 1  # raise whenever the same setting and seed would give other numbers than before


@dataclass(frozen=True)
class Progress:
    """A run after some rounds: its state, one row of numbers per round, and where the rounds were played."""

    state: State
    rows: list[dict[str, Any]]
    places: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True)
class Begun:
    """A training that was cut: which one, the models before step `first` of its plan, and what they carry."""

    mark: str
    first: int
    params: Tensor
    buffers: Tensor
    counters: Tensor
    carried: Carried


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
        """Replace a run's checkpoint by a newer one, atomically; what was kept inside its round goes."""
        content = {"numerics": NUMERICS, "rows": progress.rows, "places": progress.places}
        self.write(key, "checkpoint.pt", content | _packed_state(progress.state))
        shutil.rmtree(self.root / key / "inside", ignore_errors=True)

    def restore(self, key: str, layouts: Sequence[Layout], device: torch.device) -> Progress | None:
        """Read a run's checkpoint, or None if it has none.

        Args:
            key: of the run.
            layouts: of the architectures' models, in their order.
            device: where the state is to be.

        Raises:
            DamagedError: if the file is damaged, naming it.
        """

        def read(saved: dict[str, Any]) -> Progress:
            return Progress(_state(saved, layouts), saved["rows"], saved.get("places", []))

        return self.load(key, "checkpoint.pt", device, read)

    def drawer(self, key: str, round: int, place: dict[str, Any]) -> "Drawer":
        """Return what is done of a round, and where more of it may be put; what is left of another round goes.

        Args:
            key: of the run.
            round: its number, from 0.
            place: where this process plays it.
        """
        path = self.root / key / "inside" / "round.json"
        held = _read(path, "remove its folder to play that round again") if path.exists() else {}
        if (held.get("round"), held.get("numerics")) != (round, NUMERICS):
            shutil.rmtree(path.parent, ignore_errors=True)
            held = {}
        return Drawer(self, key, round, held.get("seconds", 0.0), held.get("places", []), place)

    def write(self, key: str, name: str, content: dict[str, Any]) -> None:
        """Write a file of tensors and plain values in a run's folder, atomically."""
        buffer = io.BytesIO()
        torch.save(_on_cpu(content), buffer)
        write_atomically(self.root / key / name, buffer.getvalue())

    def load(
        self,
        key: str,
        name: str,
        device: torch.device,
        read: Callable[[dict[str, Any]], Read],
        remedy: str = "remove it to start that run again",
    ) -> Read | None:
        """Read a file of tensors, or None if it is not there; raises DamagedError naming it and a remedy."""
        path = self.root / key / name
        if not path.exists():
            return None
        try:
            return read(torch.load(path, map_location=device, weights_only=True))
        except Exception as error:  # torch's own words advise to unpickle the file, whatever it holds
            reason = str(error) if type(error) is ValueError else type(error).__name__
            raise DamagedError(f"{path} is damaged ({reason}); {remedy}") from error

    def record(self, key: str) -> dict[str, Any] | None:
        """Return the record of a finished run, or None.

        Raises:
            DamagedError: if the file is damaged or lacks what every record has, naming it.
        """
        path, remedy = self.root / key / "record.json", "remove it to finish that run again"
        if not path.exists():
            return None
        found = _read(path, remedy)
        if missing := [name for name in RECORD if name not in found]:
            raise DamagedError(f"{path} is damaged (without {', '.join(missing)}); {remedy}")
        return found

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


class Drawer:
    """What is done of one round: its trainings by number, the seconds that they took, and where.

    seconds, places: of earlier processes.
    """

    def __init__(
        self,
        store: Store,
        key: str,
        round: int,
        seconds: float,
        places: list[dict[str, Any]],
        place: dict[str, Any],
    ) -> None:
        self.round, self.seconds, self.places = round, seconds, places
        self._store, self._key, self._place, self._spent = store, key, place, seconds

    def take(self, number: int, mark: str, device: torch.device) -> Begun | None:
        """Return how far a training is; None if nothing is kept of it, or of another one in its place.

        Raises:
            DamagedError: if the file is damaged, naming it.
        """
        name, remedy = f"inside/{number}.pt", "remove its folder to play that round again"

        def read(saved: dict[str, Any]) -> Begun | None:
            if (saved["mark"], saved["numerics"]) != (mark, NUMERICS):
                return None
            kept = {name: value for name, value in saved.items() if name != "numerics"}
            return Begun(**kept | {"carried": Carried(**saved["carried"])})

        return self._store.load(self._key, name, device, read, remedy)

    def put(self, number: int, begun: Begun | None, seconds: float) -> None:
        """Write down how far a training is, and the seconds that went by since the last time."""
        self._spent += seconds
        if begun is not None:
            content = vars(begun) | {"carried": vars(begun.carried), "numerics": NUMERICS}
            self._store.write(self._key, f"inside/{number}.pt", content)
        places = [*(place for place in self.places if place != self._place), self._place]
        facts = {"round": self.round, "numerics": NUMERICS, "seconds": self._spent, "places": places}
        write_atomically(self._store.root / self._key / "inside" / "round.json", _json(facts))


def _packed(stack: Stack) -> dict[str, Tensor]:
    return {"params": stack.params, "buffers": stack.buffers, "counters": stack.counters}


def _stack(packed: dict[str, Tensor], layout: Layout) -> Stack:
    return Stack(layout, packed["params"], packed["buffers"], packed["counters"])


def _packed_state(state: State) -> dict[str, Any]:
    """Return a state as plain values: tensors, and stacks as their tensors."""
    memory = {name: _packed(held) if isinstance(held, Stack) else held for name, held in state.memory.items()}
    plain: dict[str, Any] = {"round": state.round, **_packed(state.models), "memory": memory}
    return plain | ({"further": [_packed_state(other) for other in state.further]} if state.further else {})


def _state(saved: dict[str, Any], layouts: Sequence[Layout]) -> State:
    own, *others = layouts
    memory = {
        name: _stack(held, own) if isinstance(held, dict) else held for name, held in saved["memory"].items()
    }
    further = tuple(_state(one, [layout]) for one, layout in zip(saved.get("further", []), others, strict=True))
    return State(saved["round"], _stack(saved, own), memory, further)


def _on_cpu(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.cpu()
    if isinstance(value, dict):
        return {key: _on_cpu(held) for key, held in value.items()}
    return [_on_cpu(held) for held in value] if isinstance(value, list) else value
