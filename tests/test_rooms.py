"""The house in rooms: imports go only downwards, and in no circle."""

import ast
import re
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import fedrepro

FOLDER = Path(fedrepro.__file__).parent
ROOMS = (  # from the ground upwards: a room knows those before it and none after it
    *("core", "data", "models", "kernels", "federation", "stages", "methods"),
    *("papers", "runs", "bench", "plots", "report", "notebooks", "cli"),
)
LONGEST = 300  # lines of a file
LONGER = {"kernels/fused/gpu.py", "kernels/fused/session.py"}  # Triton kernels and the step that launches them


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(FOLDER.parent).with_suffix("").parts).removesuffix(".__init__")


MODULES = {module_of(path): path for path in sorted(FOLDER.rglob("*.py"))}


def imports(path: Path) -> set[str]:
    """Return the modules of the package that a file imports, wherever in the file, by word or by importlib."""
    found: set[str] = set()
    text = path.read_text("utf-8")
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            # `from package import module` asks for the module, anything else for what the file itself holds.
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= names & set(MODULES) or {node.module}
    found |= set(re.findall(r"import_module\(\s*[\"']([\w.]+)[\"']", text))
    return {name for name in found if name in MODULES}


GRAPH = {name: imports(path) - {name} for name, path in MODULES.items()}


def room(module: str) -> str:
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else ""


def test_every_module_is_in_a_room() -> None:
    assert {room(name) for name in MODULES} == {"", "__main__", *ROOMS}


def test_imports_go_downwards() -> None:
    place = {name: number for number, name in enumerate(("", *ROOMS, "__main__"))}
    upwards = [
        f"{one} -> {two}" for one, known in GRAPH.items() for two in known if place[room(two)] > place[room(one)]
    ]
    assert upwards == []


def test_no_circle() -> None:
    # A package stands for what its own file imports: its parts may import its name for other parts.
    try:
        TopologicalSorter(GRAPH).prepare()
    except CycleError as error:
        raise AssertionError(" -> ".join(error.args[1])) from error


def test_no_file_is_long() -> None:
    lengths = {
        path.relative_to(FOLDER).as_posix(): len(path.read_text("utf-8").splitlines()) for path in MODULES.values()
    }
    assert {name: length for name, length in lengths.items() if length > LONGEST and name not in LONGER} == {}


def test_the_rules_see_what_breaks_them(tmp_path: Path) -> None:
    late = tmp_path / "late.py"
    late.write_text("def f():\n    from fedrepro.core import rng\n    import_module('fedrepro.cli')\n")
    assert imports(late) == {"fedrepro.core.rng", "fedrepro.cli"}
