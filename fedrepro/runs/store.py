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
import math
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import torch
from filelock import Timeout
from torch import Tensor

from fedrepro.core.files import StoreError, sweep, text, write_atomically
from fedrepro.core.locks import lock_of, unlockable
from fedrepro.core.paths import runs_folder
from fedrepro.core.setting import Setting, digest
from fedrepro.core.stack import Layout
from fedrepro.core.state import State
from fedrepro.kernels.trained import Carried
from fedrepro.runs.packed import DIGEST, packed_state, sealed, unpacked_state, unsealed
from fedrepro.runs.sound import RECORD as RECORD
from fedrepro.runs.sound import flaw

Read = TypeVar("Read")
NUMERICS = 1  # raise whenever the same setting and seed would give other numbers than before
CHECKPOINT = {
    *("numerics", "key", "seed", "rows", "places", "round", "params", "buffers", "counters", "memory", "further")
}


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
        found = json.loads(text(path))
    except ValueError as error:
        raise DamagedError(f"{path} is damaged ({error}); {remedy}") from error
    except OSError as error:
        raise DamagedError(f"{path} cannot be read ({error.strerror or error}); {remedy}") from error
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
        lock = lock_of(folder / "lock")
        try:
            with unlockable(folder / "lock"):
                lock.acquire(timeout=0)
        except Timeout:
            yield False
            return
        try:
            for place in (folder, folder / "inside"):  # of a process that was killed while it wrote
                sweep(place, alone=True)
            yield True
        finally:
            lock.release()

    def describe(self, key: str, setting: Setting, seed: int) -> None:
        """Write down what a run is."""
        write_atomically(self.root / key / "setting.json", _json(setting.asdict() | {"seed": seed}))

    def save(self, key: str, progress: Progress, seed: int | None = None) -> None:
        """Replace a run's checkpoint by a newer one, atomically; what was kept inside its round goes."""
        content = {"rows": progress.rows, "places": progress.places} | ({} if seed is None else {"seed": seed})
        self.write(key, "checkpoint.pt", content | packed_state(progress.state))
        shutil.rmtree(self.root / key / "inside", ignore_errors=True)

    def restore(
        self, key: str, layouts: Sequence[Layout], device: torch.device, seed: int | None = None
    ) -> Progress | None:
        """Read a run's checkpoint, or None if it has none.

        Args:
            key: of the run.
            layouts: of the architectures' models, in their order.
            device: where the state is to be.
            seed: of the run.

        Raises:
            DamagedError: if the file is damaged, or another run's, naming it.
        """

        def read(saved: dict[str, Any]) -> Progress:
            if strange := sorted(saved.keys() - CHECKPOINT):
                raise ValueError(f"unknown {strange[0]!r}")
            rows, places = saved["rows"], saved.get("places", [])
            if not all(isinstance(held, dict) for held in (*rows, *places)) or saved["round"] < 0:
                raise ValueError("its rows are none")
            return Progress(unpacked_state(saved, layouts), rows, places)

        return self.load(key, "checkpoint.pt", device, read, seed=seed)

    def drawer(self, key: str, round: int, place: dict[str, Any]) -> "Drawer":
        """Return what is done of a round, and where more of it may be put; what is left of another round goes.

        Args:
            key: of the run.
            round: its number, from 0.
            place: where this process plays it.
        """
        path, remedy = self.root / key / "inside" / "round.json", "remove its folder to play that round again"
        held = _read(path, remedy) if path.exists() else {}
        try:
            held = unsealed(held, key=key) if held else {}
            spent, places = held.get("seconds", 0.0), held.get("places", [])
            if not (isinstance(spent, int | float) and 0 <= spent < math.inf):
                raise ValueError(f"seconds {spent!r}")
            if not (isinstance(places, list) and all(isinstance(one, dict) for one in places)):
                raise ValueError("its places are none")
        except ValueError as error:
            raise DamagedError(f"{path} is damaged ({error}); {remedy}") from error
        if (held.get("round"), held.get("numerics")) != (round, NUMERICS):
            shutil.rmtree(path.parent, ignore_errors=True)
            held = {}
        return Drawer(self, key, round, held.get("seconds", 0.0), held.get("places", []), place)

    def write(self, key: str, name: str, content: dict[str, Any]) -> None:
        """Write a file of tensors and plain values in a run's folder, atomically; it says whose it is."""
        buffer = io.BytesIO()
        torch.save(sealed(content, numerics=NUMERICS, key=key), buffer)
        write_atomically(self.root / key / name, buffer.getvalue())

    def load(
        self,
        key: str,
        name: str,
        device: torch.device,
        read: Callable[[dict[str, Any]], Read],
        remedy: str = "remove it to start that run again",
        **facts: Any,
    ) -> Read | None:
        """Read a file of tensors, or None if it is not there; raises DamagedError naming it and a remedy.

        `facts` are what it must say of itself beside the key and the version of the numerics.
        """
        path = self.root / key / name
        if not path.exists():
            return None
        try:
            found = torch.load(path, map_location=device, weights_only=True)
            return read(unsealed(found, **facts, numerics=NUMERICS, key=key))
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
        if DIGEST in found:  # records of earlier versions have none
            try:
                found = unsealed(found, key=key)
            except ValueError as error:
                raise DamagedError(f"{path} is damaged ({error}); {remedy}") from error
            del found["key"]
        if wrong := flaw(found):
            raise DamagedError(f"{path} is damaged ({wrong}); {remedy}")
        return found

    def finish(self, key: str, record: dict[str, Any]) -> None:
        """Write the record of a finished run and forget earlier failures."""
        content = sealed(json.loads(_json(record)), key=key)  # as it will be read
        write_atomically(self.root / key / "record.json", _json(content))
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
            if saved["mark"] != mark:
                return None
            kept = {name: saved[name] for name in saved if name not in ("numerics", "key", "round")}
            return Begun(**kept | {"carried": Carried(**saved["carried"])})

        return self._store.load(self._key, name, device, read, remedy, round=self.round)

    def put(self, number: int, begun: Begun | None, seconds: float) -> None:
        """Write down how far a training is, and the seconds that went by since the last time."""
        self._spent += seconds
        if begun is not None:
            content = vars(begun) | {"carried": vars(begun.carried), "round": self.round}
            self._store.write(self._key, f"inside/{number}.pt", content)
        places = [*(place for place in self.places if place != self._place), self._place]
        facts = {"round": self.round, "numerics": NUMERICS, "seconds": self._spent, "places": places}
        path = self._store.root / self._key / "inside" / "round.json"
        write_atomically(path, _json(sealed(facts, key=self._key)))
