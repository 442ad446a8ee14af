"""Notebooks as batch jobs: one process each, typed parameters, a wall clock and an honest verdict.

A process of its own, because a kernel frees its memory and its GPU only when it exits. The verdict comes from
what the cells did, not from the status that papermill writes: that one reads "completed" after a timeout too.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tqdm import tqdm

from fedrepro.core.extras import NOTEBOOKS, need
from fedrepro.notebooks.notebook import check, conclude, dump, last_lines, own_up, tidy
from fedrepro.notebooks.notebook import parameters_of as parameters_of

MARK = "FEDREPRO_JOB"  # the processes of a job are known by this variable, whatever session they moved to
PATHS = ("FEDREPRO_RUNS", "FEDREPRO_DATA")  # made absolute, as the kernel works in another folder
# This interpreter, whatever python3 is registered; errors only, as every start warns about TCP.
KERNEL = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}", "--log-level=ERROR"]


@dataclass(frozen=True, kw_only=True)
class Job:
    """A notebook, its parameters, where its executed copy goes, its limit in seconds, its working folder.

    threads: cores that its kernel may use; as many as it likes when 0.
    """

    notebook: Path
    output: Path
    timeout: float
    parameters: Mapping[str, Any] = field(default_factory=dict)
    cwd: Path | None = None
    threads: int = 0


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
        ValueError: before anything runs, on a name that the notebook lacks or a value of a wrong type.
    """
    job = Job(notebook=notebook, output=output, parameters=parameters, timeout=timeout, cwd=cwd)
    return execute_all([job], progress=False)[0]


def execute_all(jobs: Sequence[Job], *, workers: int = 1, progress: bool = True) -> list[Result]:
    """Run notebooks, `workers` at a time, and return their results in the order of the jobs.

    Raises:
        ValueError: before anything runs, on the parameters of any job, on two jobs with the same output, or on
            packages that are not installed.
    """
    if workers < 1:
        raise ValueError(f"workers must be at least 1, got {workers}")
    if twice := {str(job.output) for job in jobs if sum(job.output == other.output for other in jobs) > 1}:
        raise ValueError(f"every job needs an output of its own, got {', '.join(sorted(twice))} twice")
    need("a notebook as a job", *NOTEBOOKS)
    for job in jobs:
        check(job.notebook, job.parameters)
        if not 0 < job.timeout < float("inf"):
            raise ValueError(f"timeout must be a positive number of seconds, got {job.timeout}")
    stop = threading.Event()
    bar = tqdm(total=len(jobs), desc="notebooks", disable=not progress)
    with ThreadPoolExecutor(workers) as pool, bar:
        futures = {pool.submit(_supervise, job, stop): job for job in jobs}
        try:
            for future in as_completed(futures):
                if progress and not future.result().ok:
                    bar.write(f"failed: {futures[future].notebook}", file=sys.stderr)
                bar.update()
        except BaseException:  # Ctrl-C too: the jobs have sessions of their own and do not see it
            stop.set()
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return [future.result() for future in futures]


def refresh(notebook: Path, *, timeout: float) -> Result:
    """Run a notebook with its default parameters and store the outputs in it, without marks of time or place.

    The notebook stays as it is if a cell fails. The same outputs give the same bytes.
    """
    with tempfile.TemporaryDirectory() as room:
        fresh = Path(room) / notebook.name
        result = execute(notebook, fresh, {}, timeout=timeout)
        if result.ok:
            partial = notebook.with_suffix(f".{uuid.uuid4().hex}")
            partial.write_text(dump(tidy(json.loads(fresh.read_text("utf-8")))), "utf-8")
            partial.replace(notebook)
    return result


def _supervise(job: Job, stop: threading.Event) -> Result:
    """Run a job to its end, at most twice, and put its notebook under the name that its verdict deserves."""
    began = time.monotonic()
    output, failed = job.output.resolve(), job.output.resolve().with_suffix(".failed.ipynb")
    partial = output.with_name(f".{output.stem}.{uuid.uuid4().hex}.ipynb")
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        for _ in range(2):
            error = _attempt(job, partial, began + job.timeout, stop)
            cells = own_up(partial) if error else None
            if cells != 0 or stop.is_set() or time.monotonic() >= began + job.timeout:
                break  # only a kernel that never reached a cell gets a second try
        if error is None:
            partial.replace(output)
            failed.unlink(missing_ok=True)
        elif partial.exists():
            partial.replace(failed)
            error = f"code cell {cells}: {error}" if cells else error
    except OSError as problem:
        error = str(problem)
    finally:
        partial.unlink(missing_ok=True)
    return Result(ok=error is None, seconds=time.monotonic() - began, error=error)


def _attempt(job: Job, partial: Path, deadline: float, stop: threading.Event) -> str | None:
    """Start the process of a job, wait for it and leave nothing of it alive; return its error."""
    mark = uuid.uuid4().hex
    source, cwd = Path(__file__).resolve().parents[2], job.cwd or job.notebook.parent
    order = [str(path.resolve()) for path in (job.notebook, partial, job.output, cwd)]
    with tempfile.TemporaryDirectory() as name, Path(name, "log").open("w+", encoding="utf-8") as log:
        room = Path(name)
        (room / "order").write_text(json.dumps([*order, dict(job.parameters)]), "utf-8")
        (room / "kernels" / "python3").mkdir(parents=True)
        (room / "kernels" / "python3" / "kernel.json").write_text(json.dumps({"argv": KERNEL}), "utf-8")
        environment = os.environ | {MARK: mark, "JUPYTER_PATH": name}
        environment |= {"OMP_NUM_THREADS": str(job.threads)} if job.threads else {}
        environment |= {path: str(Path(os.environ[path]).resolve()) for path in PATHS if os.environ.get(path)}
        if str(source) != sysconfig.get_path("purelib"):  # a checkout: the notebook imports this same one
            paths = [str(source), os.environ.get("PYTHONPATH")]
            environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "fedrepro.notebooks.batch", "--job", name],
            stdin=subprocess.PIPE,  # held open: its end tells the job that nobody waits for it any more
            stdout=log,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )
        with process, contextlib.ExitStack() as last:
            last.callback(_end, mark, process)
            while process.poll() is None and time.monotonic() < deadline and not stop.is_set():
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(timeout=0.1)
            if process.poll() is None:
                return "interrupted" if stop.is_set() else f"not finished after {job.timeout:g} s, killed"
        if (room / "verdict").exists():
            return json.loads((room / "verdict").read_text("utf-8"))
        log.seek(0)
        return f"its process ended with code {process.returncode}: {last_lines(log.read())}"


def _end(mark: str, process: "subprocess.Popen[bytes] | None" = None) -> None:
    """Kill the group of a job's process and whatever carries its mark: a kernel has a session of its own."""
    import psutil

    if process and process.poll() is None and hasattr(os, "killpg"):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    for _ in range(20):  # again, because one that we had not seen yet may have started another
        others = [one for one in psutil.process_iter(["environ"]) if one.pid != os.getpid()]
        found = [one for one in others if (one.info["environ"] or {}).get(MARK) == mark]
        for one in found:
            with contextlib.suppress(psutil.Error):
                one.kill()
        if not found:
            return
        time.sleep(0.05)


def _run(notebook: str, partial: str, output: str, cwd: str, parameters: dict[str, Any]) -> str | None:
    """Execute a notebook from inside the job's process; return None only if every code cell completed."""
    sys.modules["rfc3987_syntax"] = None  # type: ignore[assignment]  # optional; its import takes two seconds
    import papermill
    from nbclient import NotebookClient

    # A client that plays the browser for Output widgets waits for ever now and then (nbclient issue 312).
    setattr(NotebookClient, "on_comm_open_jupyter_widget", lambda self, msg: None)  # noqa: B010
    off = dict.fromkeys(("progress_bar", "store_widget_state", "record_timing"), False)
    # A busy machine needs more than the four seconds that nbclient gives the last outputs of a cell.
    options = {"kernel_name": "python3", "language": "python", "iopub_timeout": 60, "coalesce_streams": True}
    try:
        papermill.execute_notebook(notebook, partial, parameters, cwd=cwd, **options, **off)
    except Exception as error:
        return last_lines(str(error) or repr(error))
    return conclude(Path(partial), Path(output))


def _follow(mark: str) -> None:
    """End this job once its standard input closes: whoever waited for it was killed."""
    os.read(0, 1)  # nothing is ever sent, so this returns at the end
    _end(mark)
    os._exit(1)


def main(arguments: Sequence[str]) -> int:
    """Refresh the notebooks named on the command line (`--job FOLDER`: the process of one job)."""
    if arguments[:1] == ["--job"]:
        room = Path(arguments[1])
        threading.Thread(target=_follow, args=(os.environ[MARK],), daemon=True).start()
        (room / "new").write_text(json.dumps(_run(*json.loads((room / "order").read_text("utf-8")))), "utf-8")
        (room / "new").replace(room / "verdict")
        os._exit(0)  # a thread of the client cannot hold up the end
    failures = 0
    for name in arguments:
        result = refresh(Path(name), timeout=600)
        failures += not result.ok
        print(f"{name}: {result.error or 'refreshed'} ({result.seconds:.0f} s)", flush=True)
    return int(failures > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
