"""The cell of parameters of a notebook, read as text: nothing in it is executed, no annotation is evaluated."""

import ast
import re
import typing
from typing import Any

PLAIN = {kind.__name__: kind for kind in (bool, int, float, str, list, dict)} | {"Any": Any}
NAMES = (*PLAIN, "Literal", "Optional")
ARGUMENTS = {"list": 1, "dict": 2, "Optional": 1}  # of types that take some in brackets
MAGIC = re.compile(r"(\s*)(?:[%!?].*|[\w.%]+\?+\s*)")  # lines of IPython's own


def read_cell(source: str, name: str) -> dict[str, tuple[Any, Any]]:
    """Return the parameters that a cell sets, name -> (type, default); the type is None without an annotation.

    Args:
        source: of the cell. Lines that are IPython's own, such as `%matplotlib inline`, set none.
        name: of the notebook, for errors.

    Raises:
        SyntaxError: if it is no Python.
        ValueError: on a default that is no literal, or a type that JSON cannot carry.
    """
    found: dict[str, tuple[Any, Any]] = {}
    for node in _parsed(source).body:
        if not isinstance(node, ast.Assign | ast.AnnAssign) or node.value is None:
            continue
        annotation = node.annotation if isinstance(node, ast.AnnAssign) else None
        target = node.targets[0] if isinstance(node, ast.Assign) else node.target
        if not isinstance(target, ast.Name):
            continue
        try:
            default = ast.literal_eval(node.value)
        except (ValueError, TypeError, MemoryError, RecursionError) as error:
            raise ValueError(f"the default of {target.id} in {name} must be a literal") from error
        found[target.id] = (annotation and _type(annotation), default)
    return found


def _parsed(source: str) -> ast.Module:
    try:
        return ast.parse(source)
    except SyntaxError:
        lines = [MAGIC.sub(r"\1pass", line) if MAGIC.fullmatch(line) else line for line in source.split("\n")]
        return ast.parse("\n".join(lines))
    except (ValueError, MemoryError, RecursionError) as error:  # a null byte; too deep
        raise SyntaxError(str(error)) from error


def _type(annotation: ast.expr) -> Any:
    """Return the type that an annotation names, made of those that JSON has."""
    found = _named(annotation)
    if found is NotImplemented:
        text = ast.unparse(annotation)
        raise ValueError(f"a parameter's type must be made of {', '.join(NAMES)} and None, got {text}")
    return found


def _named(node: ast.expr) -> Any:
    """Return a type, or NotImplemented for what is none."""
    if isinstance(node, ast.Constant) and node.value is None:
        return None
    if isinstance(node, ast.Name):
        return PLAIN.get(node.id, NotImplemented)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        sides = [_named(node.left), _named(node.right)]
        return NotImplemented if NotImplemented in sides or sides == [None, None] else _either(sides)
    if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name):
        parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        return _subscripted(node.value.id, parts)
    return NotImplemented


def _either(sides: list[Any]) -> Any:
    """Return the union of two types."""
    first, other = (type(None) if side is None else side for side in sides)
    return first | other


def _subscripted(name: str, parts: list[ast.expr]) -> Any:
    if name == "Literal":
        try:
            values = [ast.literal_eval(part) for part in parts]
        except ValueError:
            return NotImplemented
        return typing.Literal[tuple(values)] if values else NotImplemented
    kinds = [_named(part) for part in parts]
    if NotImplemented in kinds or len(kinds) != ARGUMENTS.get(name):
        return NotImplemented
    if name == "Optional":
        return _either([kinds[0], None])
    return list[kinds[0]] if name == "list" else dict[kinds[0], kinds[1]]  # type: ignore[valid-type]
