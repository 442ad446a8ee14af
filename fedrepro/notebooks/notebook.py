"""What a notebook file says about itself, read and corrected as plain JSON: nothing of Jupyter is needed."""

import ast
import json
import re
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedrepro.core.names import nearest

TYPES = {kind.__name__: kind for kind in (bool, int, float, str, list, dict)} | {
    "Literal": typing.Literal,
    "Any": Any,
    "Optional": typing.Optional,
}


def parameters_of(notebook: Path) -> dict[str, tuple[Any, Any]]:
    """Read the names, types and defaults of the cell tagged `parameters`; nothing is executed.

    Returns:
        name -> (type, default); the type is None where the cell does not annotate the name.

    Raises:
        ValueError: on more than one such cell, a default that is no literal, a type that JSON cannot carry.
    """
    cells = json.loads(notebook.read_text("utf-8"))["cells"]
    tagged = ["".join(cell["source"]) for cell in cells if "parameters" in cell["metadata"].get("tags", [])]
    if len(tagged) > 1:
        raise ValueError(f"a notebook has at most one cell tagged parameters, {notebook.name} has {len(tagged)}")
    found: dict[str, tuple[Any, Any]] = {}
    for node in ast.parse(tagged[0] if tagged else "").body:
        if not isinstance(node, ast.Assign | ast.AnnAssign) or node.value is None:
            continue
        annotation = node.annotation if isinstance(node, ast.AnnAssign) else None
        target = node.targets[0] if isinstance(node, ast.Assign) else node.target
        if not isinstance(target, ast.Name):
            continue
        try:
            default = ast.literal_eval(node.value)
        except ValueError as error:
            raise ValueError(f"the default of {target.id} in {notebook.name} must be a literal") from error
        found[target.id] = (annotation and _type(annotation), default)
    return found


def check(notebook: Path, parameters: Mapping[str, Any]) -> None:
    """Refuse parameters that the notebook does not have, or whose values are not of their annotated type.

    Raises:
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


def _type(annotation: ast.expr) -> Any:
    """Evaluate an annotation made of the types that JSON has."""
    try:
        return eval(compile(ast.Expression(annotation), "parameters", "eval"), {"__builtins__": {}}, dict(TYPES))
    except Exception as error:
        raise ValueError(
            f"a parameter's type must be made of {', '.join(TYPES)} and None, got {ast.unparse(annotation)}"
        ) from error


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
    """Say what in an executed notebook did not complete; if nothing, write its final name into it."""
    notebook = json.loads(partial.read_text("utf-8"))
    for cell in _code(notebook):
        if errors := [item for item in cell["outputs"] if item["output_type"] == "error"]:
            return f"{errors[0]['ename']}: {errors[0]['evalue']}"
        if cell["execution_count"] is None or cell["metadata"]["papermill"]["status"] != "completed":
            return "did not complete"
    notebook["metadata"]["papermill"]["output_path"] = str(output)
    partial.write_text(dump(notebook), "utf-8")
    return None


def own_up(partial: Path) -> int | None:
    """Mark in a failed notebook what did not complete; after a dead kernel papermill says that all did.

    Returns:
        how many code cells had started; None if the file cannot be read.
    """
    if not partial.exists():
        return 0
    try:
        notebook = json.loads(partial.read_text("utf-8"))
    except ValueError:  # killed while it was written
        return None
    cells = _code(notebook)
    started = sum(bool(cell["metadata"].get("papermill", {}).get("start_time")) for cell in cells)
    for number, cell in enumerate(cells, 1):
        status = "completed" if number < started else "failed" if number == started else "pending"
        cell["metadata"].setdefault("papermill", {})["status"] = status
    notebook["metadata"].setdefault("papermill", {})["exception"] = True
    partial.write_text(dump(notebook), "utf-8")
    return started


def _code(notebook: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the cells that a run executes."""
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code" and "".join(cell["source"]).strip()]


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
