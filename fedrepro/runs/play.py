"""Runs: play a setting's rounds, checkpointing each, until done, out of time, or failed."""

import errno
import time
from collections.abc import Callable, Iterable, Mapping, Sized
from dataclasses import replace
from pathlib import Path
from typing import Any

from tqdm import tqdm

from fedrepro.core.files import StoreError
from fedrepro.core.metrics import packed
from fedrepro.core.rng import Streams
from fedrepro.core.state import State
from fedrepro.data.partition import split_hash
from fedrepro.federation.assemble import assemble
from fedrepro.federation.desk import STOPPED, PausedError
from fedrepro.federation.loaded import fingerprint
from fedrepro.methods import catalogue as methods
from fedrepro.methods.measures import evaluate, hits, measured
from fedrepro.runs.desk import KeepingDesk
from fedrepro.runs.ended import reached, record_of
from fedrepro.runs.expected import Expected, forward_seconds
from fedrepro.runs.machine import LOST, UNKNOWN, lost, provenance
from fedrepro.runs.request import Outcome, Run
from fedrepro.runs.sound import misnumbered
from fedrepro.runs.store import DamagedError, Progress, Store

Tick = Callable[[int], object]  # called with the number of rounds just done
Show = Callable[[str], object]  # called with the progress inside a round, in words
LONG = 60.0  # seconds: a round that takes longer is begun even if it will not end in time, and kept in parts


def play(
    run: Run,
    store: Store,
    *,
    device: str = "cpu",
    deadline: float | None = None,
    expected: float = 0.0,
    tick: Tick = lambda rounds: None,
    show: Show = lambda text: None,
) -> Outcome:
    """Bring one run as far as time allows, going on from its checkpoint if it has one.

    Whatever goes wrong in it is this run's failure alone, and named.

    Args:
        run: what to play.
        store: where checkpoints and the record go.
        device: a torch device name, see `choose_device`.
        deadline: `time.monotonic()` value before which to stop, also inside a round that takes long; no other
            round is begun that, by the longest one so far, would end after it.
        expected: seconds that a round is thought to take before one has been played.
        tick: called after each round, and once with the rounds that an earlier process did.
        show: called with the progress inside a round.

    Raises:
        StoreError: if the store cannot be written; nothing that was saved is lost.
    """
    key = ""
    try:
        key = store.key(run.setting, run.seed, fingerprint(run.setting))
        return _attempt(run, key, store, device, deadline, expected, tick, show)
    except StoreError as error:
        if not _of_one_run(error):
            raise
        return Outcome(key, "failed", error=str(error))  # its files are left: whoever owns them may know better
    except Exception as error:
        told = isinstance(error, ValueError | OSError) and str(error)
        return Outcome(key, "failed", error=str(error) if told else f"{type(error).__name__}: {error}")


def _of_one_run(error: StoreError) -> bool:
    """Return whether a file of one run is to blame, not the disk or the whole store."""
    place = {errno.EISDIR, errno.ENOTDIR, errno.EEXIST, errno.ENOTEMPTY, errno.EACCES, errno.EPERM, errno.ELOOP}
    return isinstance(error, DamagedError) or getattr(error.__cause__, "errno", None) in place


def _finished(run: Run, key: str, store: Store, tick: Tick) -> Outcome | None:
    """Return the outcome of a run whose record holds all that is asked for, or None."""
    record = store.record(key)
    if record is None:
        return None
    if record["seed"] != run.seed or record["setting_key"] != run.setting.key:
        path, setting = store.root / key / "record.json", record["setting_key"]
        other = f"seed {record['seed']}, not {run.seed}" if record["seed"] != run.seed else f"setting {setting}"
        raise DamagedError(f"{path} is damaged (of {other}); remove it to finish that run again")
    if len(record["rows"]) < run.setting.rounds and not reached(
        run, record["rows"], record.get("answer", "student")
    ):
        return None
    tick(run.setting.rounds)
    return Outcome(key, "done", record)


def _attempt(
    run: Run, key: str, store: Store, device: str, deadline: float | None, expected: float, tick: Tick, show: Show
) -> Outcome:
    """Read a finished run, or claim it and go on with it."""
    if finished := _finished(run, key, store, tick):
        return finished
    with store.claim(key) as mine:
        if not mine:
            return Outcome(key, "busy", error="another process works on it")
        if finished := _finished(run, key, store, tick):  # it may have ended between our look and our claim
            return finished
        if deadline is not None and time.monotonic() >= deadline:
            return Outcome(key, "paused", error="the budget was spent before it went on")
        try:
            return _play(run, key, store, device, deadline, expected, tick, show)
        except StoreError:
            raise
        except PausedError as error:
            return Outcome(key, "paused", error=str(error))
        except Exception as error:
            message = f"{type(error).__name__}: {error}"
            if not isinstance(error, ArithmeticError | ValueError) and (notes := getattr(error, "__notes__", [])):
                message += f" ({', '.join(notes)})"
            store.fail(key, {"label": run.label, "seed": run.seed, "error": message})
            return Outcome(key, "failed", error=message)


def _play(
    run: Run, key: str, store: Store, device: str, deadline: float | None, expected: float, tick: Tick, show: Show
) -> Outcome:
    federation = assemble(run.setting, run.seed, device)
    method = methods.build(run.setting)
    store.forgive(key)
    store.describe(key, run.setting, run.seed)
    rows: list[dict[str, Any]] = []
    places: list[dict[str, Any]] = []
    layouts = [world.architecture.layout for world in federation.worlds]
    saved = store.restore(key, layouts, federation.device, run.seed)
    if saved is not None:
        state, rows = _own(saved, run, store.root / key / "checkpoint.pt"), saved.rows
        places = saved.places or ([UNKNOWN] if rows else [])
        tick(state.round)
    else:
        state = method.init(federation, run.seed)
    choice = federation.choice
    where = provenance(device) | {"engine": choice.engine, "engine_why": choice.why}
    forward = 0.0 if deadline is None else forward_seconds(federation, state)
    desk = KeepingDesk(choice.engine, deadline=deadline, show=show, forward=forward)
    federation = replace(federation, desk=desk)
    while state.round < run.setting.rounds and not reached(run, rows, method.answer):
        longest = max((row["seconds"] for row in rows), default=expected)
        if deadline is not None and longest < LONG and time.monotonic() + longest > deadline:
            word = f"{STOPPED} after round {state.round} of {run.setting.rounds}"
            thought = "" if rows or not longest else f": one is thought to take {longest:.0f} s"
            return Outcome(key, "paused", error=word + thought)
        inside = store.drawer(key, state.round, where)
        places = [*places, *(place for place in inside.places if place not in places)]
        desk.begin(inside)
        begun, number = time.perf_counter() - inside.seconds, state.round
        try:
            state, round = method.round(state, federation, Streams(run.seed, number))
            last = state.round == run.setting.rounds
            row: dict[str, Any] = {"round": float(number)}
            row |= evaluate(method, state, round, federation, last=last)
            further = measured(method, state, round, federation)
            seen = {"hits": packed(hits(method, state, round, federation))} if last else {}
        except Exception as error:
            error.add_note(f"round {number}")
            raise
        row |= {f"{stage}_seconds": seconds for stage, seconds in round.seconds.items()}
        row |= ({"measured": further} if further else {}) | seen
        rows.append(row | {"seconds": time.perf_counter() - begun})
        places = [*(place for place in places if place != where), where]
        store.save(key, Progress(state, rows, places), run.seed)
        tick(1)
    tick(run.setting.rounds - state.round)
    split = split_hash([part.numpy() for part in federation.parts])
    record = record_of(run, method.answer, rows, split, places) | {"images": len(federation.test.labels)}
    store.finish(key, record)
    return Outcome(key, "done", record)


class _Memory(dict[str, Any]):
    """What a checkpoint holds of earlier rounds: a stage that finds its own missing would begin anew unseen."""

    def __init__(self, held: Mapping[str, Any], path: Path) -> None:
        super().__init__(held)
        self._path = path

    def get(self, name: str, default: Any = None) -> Any:
        """Return what is remembered under a name; raises DamagedError if nothing is."""
        if name not in self:
            why = f"without {name!r}, which its method remembers from round to round"
            raise DamagedError(f"{self._path} is damaged ({why}); remove it to start that run again")
        return self[name]


def _own(saved: Progress, run: Run, path: Path) -> State:
    """Return the state of a checkpoint if it can be the run's; raises DamagedError, naming it, if not."""
    state = saved.state
    why = misnumbered(saved.rows)
    if len(saved.rows) != state.round or not 0 <= state.round <= run.setting.rounds:
        why = f"{state.round} rounds and rows of {len(saved.rows)}, of a run of {run.setting.rounds}"
    if why:
        raise DamagedError(f"{path} is damaged ({why}); remove it to start that run again")
    if state.round == 0:
        return state
    further = tuple(replace(one, memory=_Memory(one.memory, path)) for one in state.further)
    return replace(state, memory=_Memory(state.memory, path), further=further)


def play_all(
    runs: Iterable[Run],
    store: Store,
    *,
    device: str = "cpu",
    budget: float | None = None,
    progress: bool | None = None,
    report: Callable[[Run, Outcome], object] = lambda run, outcome: None,
) -> list[Outcome]:
    """Play runs in the order given, one after the other; failures do not stop the others.

    Only when the device itself is lost, which a CUDA error does for as long as this process lives, are the runs
    still to come paused. A run that another process works on is put off to the end and then waited for.

    Args:
        runs: what to play, most wanted first; asked for one by one, so that there may be any number.
        store: where they live.
        device: a torch device name.
        budget: seconds after which to stop cleanly; no limit when None.
        progress: show a bar over all rounds; None shows it on a terminal only.
        report: called after each run.

    Returns:
        One outcome per run, in the order given. Of runs that have no length (of a generator) none is asked for
        any more when the budget is spent: there are outcomes of the first ones only.
    """
    deadline = None if budget is None else time.monotonic() + budget
    counted = isinstance(runs, Sized)
    outcomes: dict[int, Outcome] = {}
    waiting: list[tuple[int, Run]] = []
    gone = False  # whether the device is
    known = Expected(store)
    hide = None if progress is None else not progress
    total = sum(run.setting.rounds for run in runs) if isinstance(runs, Sized) else 0
    with tqdm(total=total, unit="round", disable=hide, dynamic_ncols=True) as bar:

        def one(place: int, run: Run) -> None:
            nonlocal gone, deadline
            bar.set_postfix_str("", refresh=False)
            bar.set_description_str(f"{run.label}, seed {run.seed}" if run.label else "runs")
            outcome = play(
                run,
                store,
                device=device,
                deadline=deadline,
                expected=0.0 if deadline is None else known.seconds(run),
                tick=bar.update,
                show=bar.set_postfix_str,
            )
            known.learn(run, outcome.record)
            if gone and outcome.status == "paused":
                outcome = replace(outcome, error=LOST)
            if outcome.status == "failed" and lost(device):
                gone, deadline = True, time.monotonic()
            if outcome.status == "busy":
                if deadline is None or time.monotonic() < deadline:
                    waiting.append((place, run))
                    return
                outcome = replace(
                    outcome, status="paused", error="the budget was spent while another process had it"
                )
            outcomes[place] = outcome
            report(run, outcome)

        for place, run in enumerate(runs):
            if not counted:
                if deadline is not None and not gone and time.monotonic() >= deadline:
                    break
                bar.total += run.setting.rounds
            one(place, run)
        while waiting:
            again, waiting = waiting, []
            for place, run in again:
                one(place, run)
            if len(waiting) == len(again):
                time.sleep(1.0)
        bar.set_description_str("runs")
    return [outcomes[place] for place in sorted(outcomes)]
