"""One job of a batch: its kernel's process, from an order in a folder to a verdict in it, and its end.

The environment of a job is the batch's own: no startup file, profile or configuration of IPython, Jupyter or
matplotlib that a user may have changes what a notebook shows.
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
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedrepro.core import paths
from fedrepro.notebooks.notebook import conclude, last_lines

MARK = "FEDREPRO_JOB"  # the processes of a job are known by this variable, whatever session they moved to
OF_USERS = (  # not handed on
    *("PYTHONSTARTUP", "PYTHONOPTIMIZE", "PYTHONINSPECT", "PYTHONWARNINGS"),
    *("MPLBACKEND", "IPYTHONDIR", "JUPYTER_CONFIG_PATH"),
)
# This interpreter, whatever python3 is registered; errors only, as every start warns about TCP.
KERNEL = [sys.executable, "-P", "-m", "fedrepro.notebooks.kernel", "-f", "{connection_file}", "--log-level=ERROR"]


@dataclass(frozen=True, kw_only=True)
class Job:
    """A notebook, its parameters, where its executed copy goes, its limit in seconds, its working folder.

    threads: cores that its kernel may use; as many as it likes when 0. environment: further variables of it.
    page: whether a page of html is made of the executed copy, beside it.
    """

    notebook: Path
    output: Path
    timeout: float
    parameters: Mapping[str, Any] = field(default_factory=dict)
    cwd: Path | None = None
    threads: int = 0
    environment: Mapping[str, str] = field(default_factory=dict)
    page: bool = False


def places() -> dict[str, str]:
    """Return the variables that name folders, as absolute paths; the store has one always.

    Raises:
        ValueError: for a home folder that there is not.
    """
    found = {name: str(folder.resolve()) for name in paths.NAMES if (folder := paths.chosen(name))}
    found |= {name: "" for name in paths.NAMES if name in os.environ and name not in found}  # blanks: not set
    return found | {"FEDREPRO_RUNS": found.get("FEDREPRO_RUNS") or str(paths.runs_folder())}


def source() -> dict[str, str]:
    """Return the variable by which another process imports this same library, where it is no installed one."""
    folder = str(Path(__file__).resolve().parents[2])
    if folder == sysconfig.get_path("purelib"):
        return {}
    return {"PYTHONPATH": os.pathsep.join(filter(None, (folder, os.environ.get("PYTHONPATH"))))}


def attempt(job: Job, partial: Path, deadline: float, stop: threading.Event) -> str | None:
    """Start the process of a job, wait for it and leave nothing of it alive; return its error.

    Args:
        job: what to execute.
        partial: where the executed notebook is written, cell by cell.
        deadline: `time.monotonic()` value at which every process of it is killed.
        stop: set where the batch is interrupted.
    """
    mark, cwd = uuid.uuid4().hex, job.cwd or job.notebook.parent
    order = [str(path.resolve()) for path in (job.notebook, partial, job.output, cwd)]
    with tempfile.TemporaryDirectory() as name, Path(name, "log").open("w+", encoding="utf-8") as log:
        room = Path(name)
        (room / "order").write_text(json.dumps([*order, dict(job.parameters)]), "utf-8")
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "fedrepro.notebooks.job", name],
            stdin=subprocess.PIPE,  # held open: its end tells the job that nobody waits for it any more
            stdout=log,
            stderr=subprocess.STDOUT,
            env=_environment(job, room) | {MARK: mark},
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
            verdict: str | None = json.loads((room / "verdict").read_text("utf-8"))
            return verdict
        log.seek(0)
        return f"its process ended with code {process.returncode}: {last_lines(log.read())}"


def _environment(job: Job, room: Path) -> dict[str, str]:
    """Return the variables of a job's process: ours and, of the user's, what does not change what it shows."""
    (room / "kernels" / "python3").mkdir(parents=True)
    (room / "kernels" / "python3" / "kernel.json").write_text(json.dumps({"argv": KERNEL}), "utf-8")
    (room / "matplotlibrc").write_text("", "utf-8")  # matplotlib's own defaults
    found = {name: value for name, value in os.environ.items() if name not in OF_USERS}
    found |= {"JUPYTER_PATH": str(room), "JUPYTER_NO_CONFIG": "1", "MATPLOTLIBRC": str(room / "matplotlibrc")}
    for name in ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_RUNTIME_DIR"):
        (room / name.lower()).mkdir()
        found[name] = str(room / name.lower())
    found |= {"OMP_NUM_THREADS": str(job.threads)} if job.threads else {}
    return found | source() | places() | dict(job.environment)


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
    # papermill fills what stands in braces, in the names of files too.
    files = [name.replace("{", "{{").replace("}", "}}") for name in (notebook, partial)]
    try:
        papermill.execute_notebook(*files, parameters, cwd=cwd, **options, **off)
    except papermill.PapermillExecutionError:
        pass  # it does not know which cells may raise: the verdict comes from the cells
    except Exception as error:
        return last_lines(str(error) or repr(error))
    return conclude(Path(partial), Path(output))


def _follow(mark: str) -> None:
    """End this job once its standard input closes: whoever waited for it was killed."""
    os.read(0, 1)  # nothing is ever sent, so this returns at the end
    _end(mark)
    os._exit(1)


def main(arguments: Sequence[str]) -> None:
    """Be the process of one job, whose folder is named."""
    room = Path(arguments[0])
    threading.Thread(target=_follow, args=(os.environ[MARK],), daemon=True).start()
    (room / "new").write_text(json.dumps(_run(*json.loads((room / "order").read_text("utf-8")))), "utf-8")
    (room / "new").replace(room / "verdict")
    os._exit(0)  # a thread of the client cannot hold up the end


if __name__ == "__main__":
    main(sys.argv[1:])
