"""What a notebook file says about itself, read and corrected as plain JSON: nothing of Jupyter is needed."""

import json
import re
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedrepro.core.names import nearest
from fedrepro.notebooks.parameters import read_cell

INJECTED, ERROR_MARK = "injected-parameters", "papermill-error-cell-tag"  # papermill's tags of its own cells


class BrokenError(ValueError):
    """A notebook that cannot be read; the message names the file."""


def load(notebook: Path) -> dict[str, Any]:
    """Read a notebook of version 4.

    Raises:
        BrokenError: for a file that is missing or not a notebook, naming it and what is wrong.
    """
    try:
        text = notebook.read_bytes().decode("utf-8")
        found = json.loads(text)
    except OSError as error:
        raise BrokenError(f"{notebook} cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise BrokenError(f"{notebook} is no notebook: it is not UTF-8 (byte {error.start})") from error
    except (ValueError, RecursionError) as error:
        marks = [number for number, line in enumerate(text.splitlines(), 1) if re.match(r"<{7}|>{7}", line)]
        where = f"git's conflict marker in line {marks[0]}" if marks else f"it is not JSON ({error})"
        raise BrokenError(f"{notebook} is no notebook: {where}") from error
    if fault := _fault(found):
        raise BrokenError(f"{notebook} is no notebook that can be run: {fault}")
    return found


def _fault(found: Any) -> str:
    """Return what is wrong with the content of a notebook file, or ""."""
    if not isinstance(found, dict) or not isinstance(found.get("nbformat"), int):
        return "it has no nbformat"
    if found["nbformat"] != 4:
        return f"its nbformat is {found['nbformat']}, 4 is wanted: save it anew in JupyterLab"
    if not isinstance(found.get("cells"), list) or not isinstance(found.get("metadata"), dict):
        return "it has no cells or no metadata"
    for number, cell in enumerate(found["cells"], 1):
        if not isinstance(cell, dict) or cell.get("cell_type") not in ("code", "markdown", "raw"):
            return f"cell {number} is neither code nor markdown nor raw"
        source, metadata = cell.get("source"), cell.get("metadata")
        lines = source if isinstance(source, list) else [source]
        if not all(isinstance(line, str) for line in lines) or not isinstance(metadata, dict):
            return f"cell {number} has no source or no metadata"
        if not isinstance(metadata.get("tags", []), list):
            return f"the tags of cell {number} are no list"
    return ""


def parameters_of(notebook: Path) -> dict[str, tuple[Any, Any]]:
    """Read the names, types and defaults of the cell tagged `parameters`; nothing is executed.

    Returns:
        name -> (type, default); the type is None where the cell does not annotate the name.

    Raises:
        BrokenError: on a file that is no notebook, more than one such cell, one that is no Python, a default that
            is no literal, a type that JSON cannot carry.
    """
    code = [cell for cell in load(notebook)["cells"] if cell["cell_type"] == "code"]
    tagged = [(n, "".join(cell["source"])) for n, cell in enumerate(code, 1) if "parameters" in _tags(cell)]
    if len(tagged) > 1:
        raise BrokenError(f"a notebook has at most one cell tagged parameters, {notebook.name} has {len(tagged)}")
    for number, source in tagged:
        try:
            return read_cell(source, notebook.name)
        except SyntaxError as error:
            place = f"code cell {number} of {notebook}, line {error.lineno}"
            raise BrokenError(f"the parameters cannot be read: {place}: {error.msg}") from error
        except ValueError as error:
            raise BrokenError(f"{error} (code cell {number} of {notebook})") from error
    return {}


def _tags(cell: Mapping[str, Any]) -> list[str]:
    found: list[str] = cell["metadata"].get("tags", [])
    return found


def check(notebook: Path, parameters: Mapping[str, Any]) -> None:
    """Refuse parameters that the notebook does not have, or whose values are not of their annotated type.

    Raises:
        BrokenError: for a notebook or a parameters cell that cannot be read.
        ValueError: naming the nearest name, or the type wanted and the value received.
    """
    known = parameters_of(notebook)
    for name, value in parameters.items():
        if name not in known:
            raise ValueError(f"{notebook.name} has no parameter {name!r}{nearest(name, known)}")
        kind = known[name][0]
        if not _json(value):
            raise ValueError(
                f"parameter {name} must be made of JSON values, got {value!r} ({type(value).__name__})"
            )
        if kind is not None and not _fits(value, kind):
            wanted = kind.__name__ if type(kind) is type else str(kind).replace("typing.", "")
            raise ValueError(f"parameter {name} must be {wanted}, got {value!r} ({type(value).__name__})")


def _json(value: Any) -> bool:
    """Whether a value comes back from JSON as it was; by repr, which tells 1 from True and knows nan."""
    try:
        return repr(json.loads(json.dumps(value))) == repr(value)
    except (TypeError, ValueError):
        return False


def _fits(value: Any, kind: Any) -> bool:
    """Whether a JSON value is of a type; an int passes for a float, a bool for neither."""
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return any(_fits(value, part) for part in parts)
    if origin is typing.Literal:
        return any(value == part and type(value) is type(part) for part in parts)
    if origin is list:
        return isinstance(value, list) and all(_fits(item, parts[0]) for item in value)
    if origin is dict:
        return isinstance(value, dict) and all(_fits(k, parts[0]) and _fits(v, parts[1]) for k, v in value.items())
    if kind is Any:
        return True
    return type(value) is (type(None) if kind is None else kind) or (kind is float and type(value) is int)


def conclude(partial: Path, output: Path) -> str | None:
    """Say what in an executed notebook did not complete; if nothing, write its final name into it.

    A cell tagged `raises-exception` may end in an error, one tagged `skip-execution` is not run.
    """
    notebook = _unmarked(partial)
    if notebook is None:
        return "the executed notebook cannot be read"
    for cell in _code(notebook):
        if error := _error(cell):
            return f"{error['ename']}: {error['evalue']}"
        if cell["execution_count"] is None or cell["metadata"]["papermill"]["status"] != "completed":
            return "did not complete"
    notebook["metadata"]["papermill"] |= {"output_path": str(output), "exception": None}
    partial.write_text(dump(notebook), "utf-8")
    return None


def own_up(partial: Path) -> tuple[int | None, int]:
    """Mark in a failed notebook what did not complete; after a dead kernel papermill says that all did.

    Returns:
        how many cells of code had started, None if the file cannot be read; and the number of the one that failed
        among the code cells of the notebook as it was written, from 1; 0 if that is not known.
    """
    if not partial.exists():
        return 0, 0
    notebook = _unmarked(partial)
    if notebook is None:  # killed while it was written
        return None, 0
    cells = _code(notebook)
    started = sum(bool(cell["metadata"].get("papermill", {}).get("start_time")) for cell in cells)
    failed = next((number for number, cell in enumerate(cells, 1) if _error(cell)), started)
    for number, cell in enumerate(cells, 1):
        status = "completed" if number < failed else "failed" if number == failed else "pending"
        cell["metadata"].setdefault("papermill", {})["status"] = status
    notebook["metadata"].setdefault("papermill", {})["exception"] = True
    partial.write_text(dump(notebook), "utf-8")
    written = [cell for cell in notebook["cells"] if cell["cell_type"] == "code" and INJECTED not in _tags(cell)]
    place = next((n for n, cell in enumerate(written, 1) if failed and cell is cells[failed - 1]), 0)
    return started, place


def _unmarked(partial: Path) -> dict[str, Any] | None:
    """Read an executed notebook without the cells that papermill adds to tell of an error; None if that fails."""
    try:
        notebook: dict[str, Any] = json.loads(partial.read_text("utf-8"))
    except (OSError, ValueError):
        return None
    notebook["cells"] = [cell for cell in notebook["cells"] if ERROR_MARK not in _tags(cell)]
    return notebook


def _error(cell: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the error in which a cell ended that must not end in one."""
    if "raises-exception" in _tags(cell):
        return None
    return next((item for item in cell.get("outputs", []) if item["output_type"] == "error"), None)


def _code(notebook: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the cells that a run executes."""
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code" and "".join(cell["source"]).strip()]
    return [cell for cell in code if "skip-execution" not in _tags(cell)]


def tidy(notebook: dict[str, Any]) -> dict[str, Any]:
    """Take out what changes from run to run or from machine to machine; keep ids, counts and outputs."""
    kept = {key: value for key, value in notebook["metadata"].items() if key not in ("papermill", "widgets")}
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    notebook["metadata"] = kept | {"kernelspec": kernel, "language_info": {"name": "python"}}
    for cell in notebook["cells"]:
        dropped = {"papermill", "execution"} | ({"tags"} if not cell["metadata"].get("tags") else set())
        cell["metadata"] = {key: value for key, value in cell["metadata"].items() if key not in dropped}
        for item in cell.get("outputs", []):
            if "application/vnd.jupyter.widget-view+json" in item.get("data", {}):
                item["data"] = {}  # nothing draws a widget whose kernel is gone
            if item.get("name") == "stderr":  # without progress bars, known by [elapsed<remaining, rate]
                item["text"] = [line for line in item["text"] if not re.search(r"\[[\d:]+[<,].*\]", line)]
        if "outputs" in cell:
            cell["outputs"] = [item for item in cell["outputs"] if item.get("text", item.get("data", True))]
    return notebook


def dump(notebook: Mapping[str, Any]) -> str:
    """Return the text of a notebook file, the same for the same content."""
    return json.dumps(notebook, indent=1, ensure_ascii=False, sort_keys=True) + "\n"


def last_lines(text: str, lines: int = 12) -> str:
    """Return the end of a log or a traceback without its colours."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", text).strip()
    return "\n".join(plain.splitlines()[-lines:])
