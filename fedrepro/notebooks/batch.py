"""Notebooks as batch jobs: one process each, typed parameters, a wall clock and an honest verdict.

A process of its own, because a kernel frees its memory and its GPU only when it exits. The verdict comes from
what the cells did, not from the status that papermill writes: that one reads "completed" after a timeout too.
"""

import json
import sys
import tempfile
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tqdm import tqdm

from fedrepro.core.extras import NOTEBOOKS, need
from fedrepro.core.files import write_atomically
from fedrepro.notebooks.job import Job as Job
from fedrepro.notebooks.job import attempt, places
from fedrepro.notebooks.notebook import BrokenError, check, dump, own_up, tidy
from fedrepro.notebooks.notebook import parameters_of as parameters_of
from fedrepro.notebooks.outputs import Partial, check_outputs, failed_name


@dataclass(frozen=True)
class Result:
    """Whether every code cell completed, the wall time in seconds, and the last lines of the error."""

    ok: bool
    seconds: float
    error: str | None = None


def execute(
    notebook: Path, output: Path, parameters: Mapping[str, Any], *, timeout: float, cwd: Path | None = None
) -> Result:
    """Run one notebook in its own process and say whether every code cell completed.

    Args:
        notebook: the notebook to run; it is not changed.
        output: where the executed copy goes. It appears in one step and only on success; a failed notebook is
            kept beside it as `<name>.failed.ipynb`, and an output of an earlier run stays.
        parameters: JSON values for names of the notebook's `parameters` cell.
        timeout: limit in seconds on the wall clock, start of the kernel included; then every process of the
            job is killed. A kernel that dies or hangs before the first cell gets a second try within it.
        cwd: working folder of the kernel; the notebook's own folder if left out, as in JupyterLab.

    Raises:
        ValueError: before anything runs, on a name that the notebook lacks, a value of a wrong type, or packages
            that are not installed.
    """
    job = Job(notebook=notebook, output=output, parameters=parameters, timeout=timeout, cwd=cwd)
    return execute_all([job], progress=False)[0]


def execute_all(jobs: Sequence[Job], *, workers: int = 1, progress: bool = True) -> list[Result]:
    """Run notebooks, `workers` at a time, and return their results in the order of the jobs.

    A notebook that cannot be read is its job's failure; the others are run.

    Raises:
        ValueError: before anything runs, on the parameters of any job, or where the file that a job writes is
            another job's, or a notebook to run, or packages that are not installed.
    """
    if workers < 1:
        raise ValueError(f"workers must be at least 1, got {workers}")
    check_outputs([(job.notebook, job.output) for job in jobs])
    broken: dict[int, str] = {}
    for number, job in enumerate(jobs):
        if not 0 < job.timeout < float("inf"):
            raise ValueError(f"timeout must be a positive number of seconds, got {job.timeout}")
        try:
            check(job.notebook, job.parameters)
        except BrokenError as error:
            broken[number] = str(error)
    places()  # what they name must be there for all jobs
    need("a notebook as a job", *NOTEBOOKS)
    stop = threading.Event()
    bar = tqdm(total=len(jobs), desc="notebooks", disable=not progress)
    with ThreadPoolExecutor(workers) as pool, bar:
        pages = frozenset(job.output.resolve() for job in jobs if job.page)
        run = {n: pool.submit(_supervise, job, stop, pages) for n, job in enumerate(jobs) if n not in broken}
        numbers = {future: number for number, future in run.items()}
        bar.update(len(broken))
        try:
            for future in as_completed(numbers):
                if progress and not future.result().ok:
                    bar.write(f"failed: {jobs[numbers[future]].notebook}", file=sys.stderr)
                bar.update()
        except BaseException:  # Ctrl-C too: the jobs have sessions of their own and do not see it
            stop.set()
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return [Result(False, 0.0, broken[n]) if n in broken else run[n].result() for n in range(len(jobs))]


def refresh(notebook: Path, *, timeout: float) -> Result:
    """Run a notebook with its default parameters and store the outputs in it, without marks of time or place.

    The notebook stays as it is if a cell fails. The same outputs give the same bytes.
    """
    with tempfile.TemporaryDirectory() as room:
        fresh = Path(room) / notebook.name
        result = execute(notebook, fresh, {}, timeout=timeout)
        if result.ok:
            write_atomically(notebook.resolve(), dump(tidy(json.loads(fresh.read_text("utf-8")))).encode())
    return result


def _supervise(job: Job, stop: threading.Event, pages: Collection[Path]) -> Result:
    """Run a job to its end, at most twice, and put its notebook under the name that its verdict deserves."""
    began = time.monotonic()
    output, failed = job.output.resolve(), failed_name(job.output.resolve())
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        with Partial(output) as partial:
            for _ in range(2):
                error = attempt(job, partial, began + job.timeout, stop)
                started, cell = own_up(partial) if error else (None, 0)
                if started != 0 or stop.is_set() or time.monotonic() >= began + job.timeout:
                    break  # only a kernel that never reached a cell gets a second try
            if error is None:
                partial.replace(output)
                failed.unlink(missing_ok=True)
                error = _page(job, output, pages) if job.page else None
            elif partial.exists():
                partial.replace(failed)
                error = f"code cell {cell}: {error}" if cell else error
    except OSError as problem:
        error = str(problem)
    return Result(ok=error is None, seconds=time.monotonic() - began, error=error)


def _page(job: Job, output: Path, pages: Collection[Path]) -> str | None:
    """Make a page of an executed notebook; returns what went wrong."""
    from fedrepro.notebooks.page import write_page

    try:
        write_page(output, job.notebook.resolve(), pages)
    except Exception as error:  # of nbconvert, of a template, of the disk: the other notebooks go on
        return f"no page was made of it: {error}"
    return None


def main(arguments: Sequence[str]) -> int:
    """Refresh the notebooks named on the command line."""
    failures = 0
    for name in arguments:
        try:
            result = refresh(Path(name), timeout=600)
        except (ValueError, OSError, ImportError) as error:
            result = Result(False, 0.0, str(error))
        failures += not result.ok
        print(f"{name}: {result.error or 'refreshed'} ({result.seconds:.0f} s)", flush=True)
    return int(failures > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
