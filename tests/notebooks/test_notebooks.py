"""Rules for the notebooks in the repository, read as JSON and never run; nbval runs them."""

import ast
import copy
import json
import re
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fedrepro import papers
from fedrepro.notebooks.batch import check, parameters_of

ROOT = Path(__file__).resolve().parents[2]
FREE = {"tutorials", "performance"}  # folders of free form; every other folder is a paper
FOUND = sorted(
    path.relative_to(ROOT / "notebooks")
    for path in (ROOT / "notebooks").rglob("*.ipynb")
    if ".ipynb_checkpoints" not in path.parts and not path.name.endswith(".failed.ipynb")
    if "optional" not in path.parts  # never executed: tests/notebooks/test_tutorials.py has their rules
)
PAPERS = sorted(
    {path.parts[0] for path in FOUND if len(path.parts) > 1 and path.parts[0] not in FREE}
    | {path.parent.name for path in (ROOT / "fedrepro" / "papers").glob("*/items.toml")}
)
TAGS = {"nbval-check-output", "nbval-ignore-output", "nbval-skip", "nbval-raises-exception"}
ABSOLUTE = re.compile(r"(?<![\w.])/(?:home|root|tmp|Users|var|mnt|opt|usr|content)/|\b[C-H]:\\+[A-Z]")
BANNED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda, ast.For, ast.AsyncFor, ast.While)

Notebook = dict[str, Any]


def text(cell: Notebook) -> str:
    return "".join(cell["source"])


def tags(cell: Notebook) -> list[str]:
    return cell["metadata"].get("tags", [])


def code(notebook: Notebook) -> list[Notebook]:
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def tree(cell: Notebook) -> ast.Module:
    return ast.parse(re.sub(r"^(\s*)[%!].*$", r"\1pass", text(cell), flags=re.MULTILINE))


def printed(cell: Notebook) -> Iterator[str]:
    """Yield the outputs of a cell that are text."""
    for item in cell.get("outputs", []):
        yield "".join(item.get("text", ""))
        yield from (
            "".join(value) for kind, value in item.get("data", {}).items() if not kind.startswith("image/")
        )
        yield from item.get("traceback", [])


def ends_in_semicolon(cell: Notebook) -> bool:
    body = tree(cell).body
    if not body:
        return False
    last = body[-1]
    line = text(cell).splitlines()[(last.end_lineno or 1) - 1].encode()
    return line[last.end_col_offset :].decode().lstrip().startswith(";")


def faults(notebook: Notebook) -> Iterator[str]:
    """Yield what is wrong with any notebook."""
    cells, metadata = code(notebook), notebook["metadata"]
    if metadata.get("kernelspec", {}).get("name") != "python3":
        yield "its kernel must be python3"
    tagged = [cell for cell in notebook["cells"] if "parameters" in tags(cell)]
    if len(tagged) != 1:
        yield f"exactly one cell must be tagged parameters, got {len(tagged)}"
    for cell in tagged:
        yield from (
            f"annotate the parameter: {ast.unparse(node)}"
            for node in tree(cell).body
            if isinstance(node, ast.Assign | ast.AugAssign)
        )
    counts = [cell["execution_count"] for cell in cells]
    if counts != list(range(1, len(cells) + 1)):
        yield f"it must be run once from top to bottom, without empty cells; execution counts are {counts}"
    if any(item["output_type"] == "error" for cell in cells for item in cell["outputs"]):
        yield "an output is an error"
    checked = [cell for cell in cells if "nbval-check-output" in tags(cell)]
    if not any(item.strip() for cell in checked for item in printed(cell)):
        yield "at least one cell with text as output must be tagged nbval-check-output"
    for cell in checked:
        if not cell["outputs"]:
            yield f"a cell tagged nbval-check-output has no output: {text(cell)}"
        if ends_in_semicolon(cell):
            yield f"a checked cell ends in ';', which nbval does not honour: {text(cell)}"
    for cell in notebook["cells"]:
        yield from (f"no such tag: {tag}" for tag in tags(cell) if "nbval" in tag.lower() and tag not in TAGS)
        if cell["cell_type"] == "code" and re.search(r"^\s*#\s*NBVAL", text(cell), re.MULTILINE):
            yield "mark checked cells with the tag nbval-check-output, not with a comment"
        if cell["cell_type"] == "code" and text(cell).lstrip().startswith("%%"):
            yield f"cell magics hide errors: {text(cell)}"
        if {"papermill", "execution"} & set(cell["metadata"]):
            yield "a cell carries metadata of papermill or of its timing; run make notebooks"
        for part in (text(cell), *printed(cell)):
            if ABSOLUTE.search(part) or str(ROOT) in part:
                yield f"absolute path: {part[:200]}"
    if {"papermill", "widgets"} & set(metadata):
        yield "it carries metadata of papermill or of widgets; run make notebooks"


def faults_of_paper(notebook: Notebook) -> Iterator[str]:
    """Yield what is wrong with a notebook of a paper: twelve numbered sections, choices and no machinery."""
    sections: list[int] = []
    for cell in notebook["cells"]:
        if cell["cell_type"] == "markdown":
            sections += [int(number) for number in re.findall(r"^## (\d+)\. \S", text(cell), re.MULTILINE)]
        if "parameters" in tags(cell):
            if sections[-1:] != [2]:
                yield "the parameters must be in section 2"
            names = {node.target.id for node in tree(cell).body if isinstance(node, ast.AnnAssign)}  # type: ignore[union-attr]
            if missing := {"scale", "seeds", "device", "out"} - names:
                yield f"parameters missing: {', '.join(sorted(missing))}"
    if sections != list(range(1, 13)):
        yield f"its sections must be '## 1. …' to '## 12. …' in order, got {sections}"
    for cell in code(notebook):
        if (lines := len(text(cell).splitlines())) > 15:
            yield f"a code cell has at most 15 lines, got {lines}: {text(cell)[:80]}"
        for node in ast.walk(tree(cell)):
            if isinstance(node, BANNED):
                yield f"no {type(node).__name__} in a paper's notebook: {ast.unparse(node)[:80]}"


def test_there_are_notebooks() -> None:
    """The only test of this file that fails in a repository without notebooks."""
    assert FOUND


@pytest.mark.parametrize("path", FOUND, ids=str)
def test_notebook(path: Path) -> None:
    content = (ROOT / "notebooks" / path).read_text("utf-8")
    notebook = json.loads(content)
    found = list(faults(notebook))
    if len(path.parts) > 1 and path.parts[0] not in FREE:
        found += faults_of_paper(notebook)
    if len(content) >= 1_000_000:
        found.append(f"a notebook must be smaller than 1 MB, got {len(content)} bytes")
    assert not found, "\n".join([str(path), *found])


@pytest.mark.parametrize("path", FOUND, ids=str)
def test_defaults_are_of_their_own_types(path: Path) -> None:
    notebook = ROOT / "notebooks" / path
    check(notebook, {name: default for name, (_, default) in parameters_of(notebook).items()})


class Asked(ast.NodeVisitor):
    """The labels with which a notebook asks its book for settings at a scale."""

    def __init__(self, scale: str) -> None:
        self.scale = scale
        self.found: list[set[str]] = []

    def value(self, expression: ast.expr) -> Any:
        return eval(ast.unparse(expression), {"scale": self.scale})  # of this repository's own notebooks

    def visit_IfExp(self, node: ast.IfExp) -> None:
        names = {one.id for one in ast.walk(node.test) if isinstance(one, ast.Name)}
        if names == {"scale"}:
            self.visit(node.body if self.value(node.test) else node.orelse)
        else:
            self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        if ast.unparse(node.func) == "book.setting":
            self.found.append(set(map(self.value, node.args)))
        self.generic_visit(node)


@pytest.mark.parametrize("scale", papers.SCALES)
@pytest.mark.parametrize("path", [path for path in FOUND if path.parts[0] in papers.names()], ids=str)
def test_the_settings_that_a_notebook_asks_for_are_there_at_every_scale(path: Path, scale: str) -> None:
    asked = Asked(scale)
    for one in json.loads((ROOT / "notebooks" / path).read_text("utf-8"))["cells"]:
        if one["cell_type"] == "code":
            asked.visit(ast.parse(text(one)))
    there = [set(known.labels.values()) for known in papers.load(path.parts[0]).cells(path.stem, scale)]
    assert [labels for labels in asked.found if not any(labels <= known for known in there)] == []


def test_settings_are_seen_as_they_are_asked_for_at_a_scale() -> None:
    code = ast.parse(
        'a = f(book.setting("x", "1" if scale != "short" else "5").with_(lr=1))\n'
        'b = book.setting("y") if scale == "short" else a'
    )
    found = {}
    for scale in ("smoke", "short"):
        asked = Asked(scale)
        asked.visit(code)
        found[scale] = asked.found
    assert found == {"smoke": [{"x", "1"}], "short": [{"x", "5"}, {"y"}]}


@pytest.mark.parametrize("paper", PAPERS)
def test_every_item_has_a_notebook_and_every_notebook_an_item(paper: str) -> None:
    items = ROOT / "fedrepro" / "papers" / paper / "items.toml"
    if not items.exists():
        pytest.skip(f"fedrepro/papers/{paper}/items.toml is not written yet")
    if not FOUND:
        pytest.skip("there are no notebooks at all, which test_there_are_notebooks reports")
    names = set(tomllib.loads(items.read_text("utf-8"))["items"])
    assert {path.stem for path in FOUND if path.parts[0] == paper} == names


# The rules themselves, on a notebook that obeys all of them and on copies that break one each.


def cell(kind: str, source: str, count: int | None = None, output: str = "", tag: str = "") -> Notebook:
    made: Notebook = {"cell_type": kind, "metadata": {"tags": [tag]} if tag else {}, "source": [source]}
    if kind == "code":
        stream = {"output_type": "stream", "name": "stdout", "text": [output]}
        made |= {"execution_count": count, "outputs": [stream] if output else []}
    return made


def obedient() -> Notebook:
    choices = "scale: str = 'smoke'\nseeds: list[int] = [0]\ndevice: str = 'auto'\nout: str = 'results'"
    cells = [cell("markdown", f"## {number}. Section") for number in range(1, 13)]
    cells.insert(2, cell("code", choices, 1, tag="parameters"))
    cells.insert(4, cell("code", "print([n for n in 'a;'])  # ;", 2, "['a', ';']\n", "nbval-check-output"))
    cells[0]["source"] = ["# Title\n", "see https://example.org/home/page\n", "\n", "## 1. The item"]
    return {"cells": cells, "metadata": {"kernelspec": {"name": "python3"}}}


def edit(place: int, source: str) -> Callable[[Notebook], None]:
    return lambda notebook: notebook["cells"][place].update(source=[source])


def show(output: str, **changes: Any) -> Callable[[Notebook], None]:
    item = {"output_type": "stream", "name": "stdout", "text": [output]} | changes
    return lambda notebook: notebook["cells"][4].update(outputs=[item])


def put(place: int, **changes: Any) -> Callable[[Notebook], None]:
    return lambda notebook: notebook["cells"][place].update(changes)


def test_an_obedient_notebook_has_no_faults() -> None:
    assert [*faults(obedient()), *faults_of_paper(obedient())] == []


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (lambda notebook: notebook["metadata"]["kernelspec"].update(name="mine"), "kernel must be python3"),
        (lambda notebook: notebook["metadata"].update(papermill={}), "metadata of papermill"),
        (lambda notebook: notebook["metadata"].update(widgets={}), "metadata of papermill or of widgets"),
        (lambda notebook: notebook["cells"].pop(2), "exactly one cell must be tagged parameters, got 0"),
        (lambda notebook: notebook["cells"].pop(), r"sections must be .* 9, 10, 11\]"),
        (lambda notebook: notebook["cells"].insert(0, notebook["cells"].pop(2)), "must be in section 2"),
        (show("", output_type="error"), "output is an error"),
        (put(4, execution_count=3), r"execution counts are \[1, 3\]"),
        (put(4, execution_count=None), r"execution counts are \[1, None\]"),
        (put(4, outputs=[]), "tagged nbval-check-output has no output"),
        (show("", output_type="display_data", data={"image/png": "iVBO"}), "with text as output"),
        (put(4, metadata={"tags": ["NBVAL_CHECK_OUTPUT"]}), "no such tag: NBVAL_CHECK_OUTPUT"),
        (put(4, metadata={"tags": ["nbval-check-outputs"]}), "no such tag: nbval-check-outputs"),
        (put(4, metadata={"tags": ["nbval-check-output"], "execution": {}}), "of its timing"),
        (show("saved to /" + "home/me/a.csv"), "absolute path"),
        (show(f"saved to {ROOT}"), "absolute path"),
        (edit(4, "print(1);  # quiet"), "ends in ';'"),
        (edit(4, "# NBVAL_CHECK_OUTPUT\nprint(1)"), "not with a comment"),
        (edit(4, "%%time\nprint(1)"), "cell magics hide errors"),
        (edit(4, "open('D:\\\\Data\\\\me')"), "absolute path"),
        (edit(4, "\n" * 15 + "print(1)"), "at most 15 lines, got 16"),
        (edit(4, "def f(): ..."), "no FunctionDef"),
        (edit(4, "class A: ..."), "no ClassDef"),
        (edit(4, "if True:\n    for n in []:\n        pass"), "no For "),
        (edit(4, "while False:\n    pass"), "no While"),
        (edit(4, "list(map(lambda n: n, []))"), "no Lambda"),
        (edit(2, "scale = 'smoke'"), "annotate the parameter: scale = 'smoke'"),
        (edit(2, "scale: str = 'smoke'"), "parameters missing: device, out, seeds"),
        (edit(5, "## 5. Section\n## 4. Section"), "in order"),
    ],
)  # fmt: skip
def test_a_broken_rule_is_found(change: Callable[[Notebook], object], fault: str) -> None:
    notebook = copy.deepcopy(obedient())
    change(notebook)
    found = [*faults(notebook), *faults_of_paper(notebook)]
    assert any(re.search(fault, one) for one in found), found
