"""Runs: play a setting's rounds, checkpointing each, until done, out of time, or failed."""

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from tqdm import tqdm

from fedrepro.core.files import StoreError
from fedrepro.core.rng import Streams
from fedrepro.core.setting import Setting
from fedrepro.data.partition import split_hash
from fedrepro.federation.assemble import assemble, fingerprint
from fedrepro.methods import catalogue as methods
from fedrepro.methods.measures import evaluate
from fedrepro.runs.machine import LOST, UNKNOWN, lost, provenance
from fedrepro.runs.store import DamagedError, Progress, Store

Tick = Callable[[int], object]  # called with the number of rounds just done


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
    """One setting with one seed; `label` is only for people."""

    setting: Setting
    seed: int
    label: str = ""


def _finite(row: dict[str, float]) -> dict[str, float | None]:
    return {name: (None if math.isnan(value) else value) for name, value in row.items()}


def _record(
    run: Run, method_answer: str, rows: list[dict[str, float]], split: str, places: list[dict[str, Any]]
) -> dict:
    """Return the record of a finished run; `places` are those that played rounds, the last one's last."""
    last = rows[-1]
    answer = last["ensemble_accuracy"] if method_answer == "ensemble" else last["accuracy"]
    return {
        "setting": run.setting.asdict(),
        "setting_key": run.setting.key,
        "seed": run.seed,
        "result": answer,
        "best_accuracy": max(row["accuracy"] for row in rows),
        "rows": [_finite(row) for row in rows],
        "split": split,
        "seconds": sum(row["seconds"] for row in rows),
        "provenance": places[-1] | ({"earlier": places[:-1]} if places[1:] else {}),
    }


def play(
    run: Run,
    store: Store,
    *,
    device: str = "cpu",
    deadline: float | None = None,
    expected: float = 0.0,
    tick: Tick = lambda rounds: None,
) -> Outcome:
    """Bring one run as far as time allows, going on from its checkpoint if it has one.

    Args:
        run: what to play.
        store: where checkpoints and the record go.
        device: a torch device name, see `choose_device`.
        deadline: `time.monotonic()` value before which to stop; no round is begun that, by the longest one
            so far, would end after it.
        expected: seconds that a round is thought to take before one has been played.
        tick: called after each round, and once with the rounds that an earlier process did.

    Raises:
        StoreError: if the store cannot be written; nothing that was saved is lost.
    """
    key = store.key(run.setting, run.seed, fingerprint(run.setting))
    try:
        return _attempt(run, key, store, device, deadline, expected, tick)
    except DamagedError as error:  # left as it is: whoever owns it may know better
        return Outcome(key, "failed", error=str(error))


def _attempt(
    run: Run, key: str, store: Store, device: str, deadline: float | None, expected: float, tick: Tick
) -> Outcome:
    """Read a finished run, or claim it and go on with it."""
    finished = store.record(key)
    if finished is not None:
        tick(run.setting.rounds)
        return Outcome(key, "done", finished)
    with store.claim(key) as mine:
        if not mine:
            return Outcome(key, "busy", error="another process works on it")
        finished = store.record(key)  # it may have ended between our look and our claim
        if finished is not None:
            tick(run.setting.rounds)
            return Outcome(key, "done", finished)
        if deadline is not None and time.monotonic() >= deadline:
            return Outcome(key, "paused", error="the budget was spent before it went on")
        try:
            return _play(run, key, store, device, deadline, expected, tick)
        except StoreError:
            raise
        except (ArithmeticError, ValueError, RuntimeError) as error:
            message = f"{type(error).__name__}: {error}"
            if isinstance(error, RuntimeError) and (notes := getattr(error, "__notes__", [])):
                message += f" ({', '.join(notes)})"
            store.fail(key, {"label": run.label, "seed": run.seed, "error": message})
            return Outcome(key, "failed", error=message)


def _play(
    run: Run, key: str, store: Store, device: str, deadline: float | None, expected: float, tick: Tick
) -> Outcome:
    federation = assemble(run.setting, run.seed, device)
    method = methods.build(run.setting)
    store.forgive(key)
    store.describe(key, run.setting, run.seed)
    state = method.init(federation, run.seed)
    rows: list[dict[str, float]] = []
    places: list[dict[str, Any]] = []
    saved = store.restore(key, state.models.layout, federation.device)
    if saved is not None:
        state, rows = saved.state, saved.rows
        places = saved.places or ([UNKNOWN] if rows else [])
        tick(state.round)
    choice = federation.choice
    where = provenance(device) | {"engine": choice.engine, "engine_why": choice.why}
    while state.round < run.setting.rounds:
        longest = max((row["seconds"] for row in rows), default=expected)
        if deadline is not None and time.monotonic() + longest > deadline:
            return Outcome(key, "paused", error=f"stopped after round {state.round} of {run.setting.rounds}")
        begun = time.perf_counter()
        number = state.round
        try:
            state, trace = method.round(state, federation, Streams(run.seed, number))
            row = {"round": float(number)}
            row |= evaluate(method, state, trace, federation, last=state.round == run.setting.rounds)
        except RuntimeError as error:  # of the device or its memory; others tell themselves
            error.add_note(f"round {number}")
            raise
        row |= {f"{stage}_seconds": seconds for stage, seconds in trace.seconds.items()}
        rows.append(row | {"seconds": time.perf_counter() - begun})
        places = [*(place for place in places if place != where), where]
        store.save(key, Progress(state, rows, places))
        tick(1)
    split = split_hash([part.numpy() for part in federation.parts])
    record = _record(run, method.answer, rows, split, places)
    store.finish(key, record)
    return Outcome(key, "done", record)


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
        runs: what to play, most wanted first.
        store: where they live.
        device: a torch device name.
        budget: seconds after which to stop cleanly; no limit when None.
        progress: show a bar over all rounds; None shows it on a terminal only.
        report: called after each run.

    Returns:
        One outcome per run, in the order given.
    """
    runs = list(runs)
    deadline = None if budget is None else time.monotonic() + budget
    outcomes: dict[int, Outcome] = {}
    gone = False  # whether the device is
    longest: dict[tuple[str, str], float] = {}  # the longest round of each network and method so far
    hide = None if progress is None else not progress
    with tqdm(total=sum(r.setting.rounds for r in runs), unit="round", disable=hide, dynamic_ncols=True) as bar:
        waiting = list(range(len(runs)))
        while waiting:
            later = []
            for place in waiting:
                run = runs[place]
                bar.set_description_str(f"{run.label}, seed {run.seed}" if run.label else "runs")
                kind = (run.setting.model, run.setting.method)
                outcome = play(
                    run,
                    store,
                    device=device,
                    deadline=deadline,
                    expected=longest.get(kind, 0.0),
                    tick=bar.update,
                )
                if outcome.record is not None:
                    slowest = max(row["seconds"] for row in outcome.record["rows"])
                    longest[kind] = max(slowest, longest.get(kind, 0.0))
                if gone and outcome.status == "paused":
                    outcome = replace(outcome, error=LOST)
                if outcome.status == "failed" and lost(device):
                    gone, deadline = True, time.monotonic()
                if outcome.status == "busy" and (deadline is None or time.monotonic() < deadline):
                    later.append(place)
                    continue
                outcomes[place] = outcome
                report(run, outcome)
            if later and len(later) == len(waiting):
                time.sleep(1.0)
            waiting = later
        bar.set_description_str("runs")
    return [outcomes[place] for place in range(len(runs))]
