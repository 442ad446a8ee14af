"""`fedrepro reproduce`: from runs to notebooks, figures and the report; what is unchanged is left as it is.

Nothing here imports torch before something must be run or executed.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fedrepro.cli import known
from fedrepro.cli.needs import check_notebooks
from fedrepro.cli.show import tell_damages
from fedrepro.cli.unchanged import Traces
from fedrepro.core import paths
from fedrepro.core.files import check_writable

if TYPE_CHECKING:
    from fedrepro.cli.planned import Wanted
    from fedrepro.papers import Item


def reproduce(options: argparse.Namespace) -> int:
    """Carry out the runs of items, execute their notebooks and write the report.

    Raises:
        ImportError, OSError, ValueError: before anything is run, where a package is missing, a folder cannot be
            written, or the options contradict each other.
    """
    if options.record and options.out:
        raise ValueError("--record writes into figures/ of the repository: leave out --out, or --record")
    if options.out:
        paths.check_apart(options.out, f"--out {options.out}")
    keys = known.keys(options.items, notebooks=not options.only or bool(options.items))
    figures = paths.recorded_folder() if options.record else options.out or paths.made_folder()
    root = paths.recorded_folder().parent  # of the notebooks: there must be a checkout
    check_notebooks()
    for folder in (figures, paths.results_folder()):
        check_writable(folder)
    traces = Traces(options, figures)
    changed = [key for key in keys if not traces.current(key)]
    for key in (key for key in keys if key not in changed):
        print(f"unchanged: {key}", flush=True)
    good = _execute(changed, traces, options) if changed else True
    folders = list(dict.fromkeys([paths.recorded_folder(), figures]))
    if traces.report_current(folders):
        print("unchanged: report")
    else:
        from fedrepro.report.report import write_report

        write_report(figures, folders=folders)
        if tell_damages(folders):
            good = False
        else:
            traces.keep_report(folders)
    print(f"notebooks: {paths.results_folder() / 'notebooks'} (from {root / 'notebooks'})")
    print(f"figures:   {figures}")
    print(f"report:    {figures / 'report.md'}\n           {figures / 'report.html'}")
    return 0 if good else 1


def _execute(keys: Sequence[str], traces: Traces, options: argparse.Namespace) -> bool:
    """Carry out the runs behind items and execute their notebooks; returns whether everything was done."""
    from fedrepro import papers
    from fedrepro.cli.beside import helpers
    from fedrepro.cli.planned import Wanted, planned
    from fedrepro.cli.runs import play, tell, there, write
    from fedrepro.notebooks import batch
    from fedrepro.runs import record
    from fedrepro.runs.machine import choose_device

    device = choose_device(options.device)
    items = {key: papers.find(key)[0] for key in keys if key.partition("/")[0] in papers.names()}
    asked = planned(list(items.values()), options) if items else Wanted(())
    record.check(traces.figures, items, options.scale)
    wanted, whole = there(asked)
    with helpers([*items], options, wanted.count, device):
        done, store = play(wanted, options)
    good = tell(done, store, wanted.count) and whole
    good = write(traces.figures, done, options.scale, quietly=not options.record) and good
    ended = [cell.item for cell, _, outcome in done if outcome.status != "paused"]
    lacking = {one for one in items if _count(asked, one) > _count(wanted, one)}
    late = {one for one in items if _count(wanted, one) > ended.count(one)} - lacking
    meant = {cell.item for cell, _ in asked.cells} | {one for one in items if not items[one].batch}
    meant = meant if options.only else set(keys)
    for key in (key for key in keys if key in lacking | late):
        print(f"put off: {key}{' (its data are missing)' * (key in lacking)}", file=sys.stderr)
    chosen = [key for key in keys if key in meant - lacking - late]
    before = {key: traces.inputs(key) for key in chosen}
    workers, threads = _workers(device)
    jobs = [batch.Job(**_job(key, traces, options, items.get(key)), threads=threads, page=True) for key in chosen]
    for key, result in zip(chosen, batch.execute_all(jobs, workers=workers)):
        good = good and result.ok
        if result.ok:
            print(f"executed: {key} ({result.seconds:.0f} s)")
            traces.keep(key, before[key], [o.key for cell, _, o in done if cell.item == key])
        else:
            print(f"failed: {traces.notebook(key)}: {result.error}", file=sys.stderr)
    return good


def _count(wanted: "Wanted", key: str) -> int:
    return sum(seeds for cell, seeds in wanted.cells if cell.item == key)


def _workers(device: str) -> tuple[int, int]:
    """Return how many notebooks run at a time, and the cores of each; 0 for as many as it likes.

    The runs are done, so a notebook has little to compute; on a GPU two would share its memory.
    """
    import torch

    cores = torch.get_num_threads() if device == "cpu" else 1
    workers = min(4, cores)
    return workers, cores // workers if cores > 1 else 0


def _job(key: str, traces: Traces, options: argparse.Namespace, item: "Item | None") -> dict[str, Any]:
    """Return what a job is made of: a notebook of no paper is given what of it it knows."""
    from fedrepro.notebooks.notebook import parameters_of

    figures = traces.figures if item else traces.place(key)
    parameters = {"scale": options.scale, "device": options.device, "out": str(figures)}
    if item:
        parameters |= {"seeds": options.seeds or item.seeds[options.scale]}
    else:
        try:
            names = parameters_of(traces.notebook(key))
        except ValueError:  # the job itself will say so
            names = {}
        parameters = {name: value for name, value in parameters.items() if name in names}
    only = json.dumps(options.only) if options.only else ""
    return {
        "notebook": traces.notebook(key),
        "output": traces.output(key),
        "timeout": options.timeout,
        "parameters": parameters,
        "environment": {"FEDREPRO_ONLY": only, "FEDREPRO_PRECISION": options.precision},
    }
