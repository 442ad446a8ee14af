"""FedBE's notebooks: their equations are whole, the code that is named exists, and what they show is all of it."""

import importlib
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

FOLDER = Path(__file__).parents[2] / "notebooks" / "fedbe"


def cells(path: Path, kind: str) -> str:
    """Return the sources of a notebook's cells of one kind."""
    every = json.loads(path.read_text("utf-8"))["cells"]
    return "\n\n".join("".join(cell["source"]) for cell in every if cell["cell_type"] == kind)


NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
PROSE = {path.stem: cells(path, "markdown") for path in NOTEBOOKS}
SOURCE = {path.stem: cells(path, "code") for path in NOTEBOOKS}
CODE = re.compile(r"`(fedrepro(?:\.\w+)+)`, `([\w.]+)`(?: and `([\w.]+)`)?")
WITH_EQUATIONS = {  # the notebooks that introduce something that is computed
    *("table1_methods", "table2_targets", "table4_momentum", "table5_cifar100", "table7_stragglers"),
    *("table8_dirichlet", "text_numbers", "paper_vs_code", "figure1_simplex", "figure3_samples"),
    *("figure5_local_decay", "figure6_round_decay", "figure7_weight_decay", "figure8_confidence"),
    "figure9_distillation_epochs",
}
DRAWN = {"table1_methods", "table4_momentum", "table7_stragglers", "table8_dirichlet", "text_numbers"}


@pytest.mark.parametrize("name", PROSE)
def test_equations_are_whole_and_their_code_exists(name: str) -> None:
    text = PROSE[name]
    displayed = re.findall(r"\$\$(.+?)\$\$", text, re.DOTALL)
    assert text.count("$$") == 2 * len(displayed)
    assert bool(displayed) == (name in WITH_EQUATIONS)
    for equation in displayed:
        assert equation.count("{") == equation.count("}")
        assert len(re.findall(r"\\left\b", equation)) == len(re.findall(r"\\right\b", equation))
        assert not re.search(r"\\[{},;]", equation)  # Markdown may take the backslash away
    inline = re.sub(r"\$\$.+?\$\$|`[^`]*`", "", text, flags=re.DOTALL)
    assert inline.count("$") % 2 == 0
    named = CODE.findall(text)
    assert not displayed or named
    for module, *names in named:
        for dotted in filter(None, names):
            found: Any = importlib.import_module(module)
            for part in dotted.split("."):
                found = getattr(found, part, None) or getattr(found, "__dataclass_fields__", {}).get(part)
                assert found is not None, f"{module} has no {dotted}"


@pytest.mark.parametrize("name", sorted(DRAWN))
def test_a_notebook_that_introduces_a_method_draws_its_round(name: str) -> None:
    assert SOURCE[name].count("plots.round_drawing(") == 1


@pytest.mark.parametrize("name", SOURCE)
def test_a_notebook_shows_the_whole_table_of_settings(name: str) -> None:
    assert re.findall(r"book\.settings\(\).*", SOURCE[name]) == ["book.settings()"]


def test_both_rows_of_figure_8_have_an_edge_at_the_confidence_that_counts() -> None:
    found = re.findall(r"toy\.confidences\((\w+), .*bins=(\d+)", SOURCE["figure8_confidence"])
    assert [which for which, _ in found] == ["setting", "lower"]
    for (_, bins), classes in zip(found, (3, 10)):  # the Swiss roll's, and those of digits and CIFAR-10
        assert np.abs(np.linspace(1 / classes, 1, int(bins) + 1) - 0.8).min() < 1e-9
    assert '", right among confident"' in SOURCE["figure8_confidence"]  # the rows that two claims read


def test_differences_are_held_against_the_baselines_of_the_item() -> None:
    assert "baselines = book.item.baselines" in SOURCE["paper_vs_code"]
    assert (
        "others = {row: base for row, base in baselines.items() if row not in ensembles}"
        in SOURCE["paper_vs_code"]
    )
    assert 'del others["FedAvg on one split"]' in SOURCE["paper_vs_code"]  # the one that is no difference
    assert "base=others" in SOURCE["paper_vs_code"]


def test_points_of_figure_4_stand_at_the_images_of_their_own_scale() -> None:
    assert 'public=book.values(points, "public_images")' in SOURCE["figure4_public_size"]
