"""`fedrepro reproduce` and `fedrepro report`: from runs to notebooks, figures and the report."""

import argparse
import sys

import torch

from fedrepro.cli.runs import named, play, tell, write
from fedrepro.core import extras, paths
from fedrepro.runs.machine import choose_device


def reproduce(options: argparse.Namespace) -> int:
    """Play the runs of items, execute their notebooks and write the report."""
    extras.need("fedrepro reproduce", *extras.NOTEBOOKS)  # told before anything is played
    from fedrepro.notebooks import batch
    from fedrepro.report.report import write_report

    items = named(options.items)
    done, store = play(items, options)
    good = tell(done, store)
    figures = paths.recorded_folder() if options.record else paths.made_folder()
    if options.record:
        write(figures, done, options.scale)
    paused = {cell.item for cell, _, outcome in done if outcome.status == "paused"}
    for key in (item.key for item in items if item.key in paused):
        print(f"put off: {key}", file=sys.stderr)  # its notebook would play all that the budget left out
    # The runs are done, so a notebook has little to compute; on a GPU two would share its memory.
    cores = torch.get_num_threads() if choose_device(options.device) == "cpu" else 1
    workers = min(4, cores)
    shared = {"scale": options.scale, "device": options.device, "out": str(figures)}
    jobs = [
        batch.Job(
            notebook=paths.recorded_folder().parent / "notebooks" / f"{item.key}.ipynb",
            output=paths.results_folder() / "notebooks" / f"{item.key}.ipynb",
            timeout=options.timeout,
            parameters=shared | {"seeds": options.seeds or item.seeds[options.scale]},
            threads=cores // workers if cores > 1 else 0,
        )
        for item in items
        if item.key not in paused
    ]
    for job, result in zip(jobs, batch.execute_all(jobs, workers=workers)):
        good = good and result.ok
        if not result.ok:
            print(f"failed: {job.notebook}: {result.error}", file=sys.stderr)
    written = write_report(figures, folders=paths.record_folders())
    print(f"notebooks: {paths.results_folder() / 'notebooks'}")
    print(f"figures:   {figures}")
    print("report:    " + "\n           ".join(map(str, written)))
    return 0 if good else 1


def report(options: argparse.Namespace) -> int:
    """Write the report: of the committed records alone, or of this machine's as well."""
    from fedrepro.report.report import write_report

    if options.record:
        written = write_report(paths.recorded_folder(), folders=[paths.recorded_folder()])
    else:
        written = write_report(paths.made_folder(), folders=paths.record_folders())
    print("\n".join(map(str, written)))
    return 0
