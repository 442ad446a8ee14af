"""What an executed notebook came from, so that it is not executed again for nothing. No torch is needed to tell.

Beside the executed notebooks, `results/notebooks/.inputs/<key>.json` holds the digests of what each has read, the
runs of the store behind it and the files that it left. Where all of these are as they were, it is unchanged.
"""

import argparse
import hashlib
import json
import os
import platform
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import fedrepro
from fedrepro.core import paths
from fedrepro.core.files import write_atomically

PACKAGES = (
    *("torch", "torchvision", "numpy", "pandas", "scikit-learn", "matplotlib", "seaborn"),
    *("papermill", "nbclient", "nbconvert", "latex2mathml", "ipykernel", "ipython"),
)
RECORD = re.compile(r"(smoke|short|paper)(_rounds|_measures|_hits|_settings)?\.(csv|json)")
OWN, REPORT = "own records", "report"
Inputs = dict[str, Any]


@dataclass(frozen=True)
class Traces:
    """The traces of executed notebooks that were asked for in one way.

    Args:
        options: of the command line.
        figures: where their figures and records go.
    """

    options: argparse.Namespace
    figures: Path

    def notebook(self, key: str) -> Path:
        """Return the notebook of an item."""
        return paths.recorded_folder().parent / "notebooks" / f"{key}.ipynb"

    def output(self, key: str) -> Path:
        """Return where its executed copy goes."""
        return paths.results_folder() / "notebooks" / f"{key}.ipynb"

    def place(self, key: str) -> Path:
        """Return the folder of its figures."""
        paper, _, item = key.partition("/")
        return self.figures / paper / item if (self.figures / paper / item).is_dir() else self.figures / paper

    def inputs(self, key: str) -> Inputs:
        """Return the digests of what a notebook reads; its own records stand apart, as it writes them itself."""
        given = {name: getattr(self.options, name) for name in ("scale", "seeds", "device", "only", "precision")}
        folders = dict.fromkeys((paths.recorded_folder(), self.figures))
        paper = key.partition("/")[0]
        records = {
            path for folder in folders for path in (folder / paper).glob("*/*") if RECORD.fullmatch(path.name)
        }
        if self.figures != paths.recorded_folder():  # figures' data, too: there they are none of this notebook's
            records |= set((paths.recorded_folder() / paper).glob("*/*.csv"))
        records |= set((paths.recorded_folder() / "performance").glob("*.csv"))
        own = {path for path in records if path.parent == self.figures / key}
        return {
            "options": json.loads(json.dumps(given)) | {"out": str(self.figures)},
            "environment": {name: os.environ.get(name, "") for name in ("CUDA_VISIBLE_DEVICES", "FEDREPRO_DATA")},
            "library": library(),
            "versions": versions(),
            "notebook": _source(self.notebook(key)),
            "records": digest(sorted(records - own)),
            OWN: digest(sorted(own)),
        }

    def current(self, key: str) -> bool:
        """Return whether a notebook was executed from what is there now, and all that it left is as it was."""
        kept = _read(self._trace(key))
        try:
            return bool(kept["inputs"] == self.inputs(key)) and bool(kept["left"] == self._left(key, kept))
        except (KeyError, TypeError, OSError):  # no trace, or a damaged one; something is missing
            return False

    def keep(self, key: str, before: Inputs, runs: Iterable[str]) -> None:
        """Keep the trace of a notebook that has just been executed, unless others' records changed meanwhile."""
        after = self.inputs(key)
        if {name: value for name, value in before.items() if name != OWN} != {
            name: value for name, value in after.items() if name != OWN
        }:
            self._trace(key).unlink(missing_ok=True)
            return
        place = self.place(key)
        files = sorted(str(path) for path in place.glob("*") if path.is_file() and not path.name.startswith("."))
        trace = {"inputs": after, "runs": sorted(set(runs)), "files": files}
        try:
            _write(self._trace(key), trace | {"left": self._left(key, trace)})
        except FileNotFoundError:  # something is gone already
            self._trace(key).unlink(missing_ok=True)

    def _left(self, key: str, trace: Mapping[str, Any]) -> str:
        """Return the digest of the executed copy, its page, the files beside its figures and the runs' records."""
        found = [self.output(key), self.output(key).with_suffix(".html"), *map(Path, trace["files"])]
        return digest([*found, *(paths.runs_folder() / run / "record.json" for run in trace["runs"])])

    def report(self, folders: Sequence[Path]) -> Inputs:
        """Return the digests of what the report reads."""
        found = [path for folder in folders for path in sorted(folder.rglob("*")) if path.is_file()]
        found = [path for path in found if not path.name.startswith((".", "report."))]
        records = digest([path for path in found if RECORD.fullmatch(path.name)])
        return {"library": library(), "versions": versions(), "records": records, "names": list(map(str, found))}

    def report_current(self, folders: Sequence[Path]) -> bool:
        """Return whether the report was written from what is there now, and is as it was written."""
        kept = _read(self._trace(REPORT))
        try:
            return bool(kept.pop("left", "") == digest(self._reports())) and kept == self.report(folders)
        except OSError:
            return False

    def keep_report(self, folders: Sequence[Path]) -> None:
        """Keep the trace of the report that has just been written."""
        try:
            _write(self._trace(REPORT), self.report(folders) | {"left": digest(self._reports())})
        except FileNotFoundError:  # gone already
            self._trace(REPORT).unlink(missing_ok=True)

    def _reports(self) -> list[Path]:
        return [self.figures / "report.md", self.figures / "report.html"]

    def _trace(self, key: str) -> Path:
        return paths.results_folder() / "notebooks" / ".inputs" / f"{key}.json"


@cache
def library() -> str:
    """Return a digest of the library's own files."""
    root = Path(fedrepro.__file__).parent
    return digest(path for path in sorted(root.rglob("*")) if path.is_file() and path.suffix != ".pyc")


@cache
def versions() -> Mapping[str, str]:
    """Return the versions of what notebooks are executed with; "" for what is not installed."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = ""
    return found


def digest(files: Iterable[Path]) -> str:
    """Return a digest of files, their paths included."""
    found = hashlib.sha256()
    for path in files:
        found.update(f"{path}\0".encode())
        found.update(hashlib.sha256(path.read_bytes()).digest())
    return found.hexdigest()


def _source(notebook: Path) -> str:
    """Return a digest of what a notebook does; its stored outputs are not part of that."""
    try:
        content = notebook.read_bytes()
        cells = json.loads(content)["cells"]
        said = [[cell["cell_type"], "".join(cell["source"]), cell["metadata"].get("tags", [])] for cell in cells]
        content = json.dumps(said).encode()
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        content = notebook.read_bytes() if notebook.is_file() else b""
    return hashlib.sha256(content).hexdigest()


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _write(path: Path, content: Mapping[str, Any]) -> None:
    write_atomically(path, (json.dumps(content, indent=1, sort_keys=True) + "\n").encode())
