"""Pages of executed notebooks: whole without a network, with formulas as MathML and links that hold."""

import re
from pathlib import Path

import pytest

nbformat = pytest.importorskip("nbformat")
pytest.importorskip("nbconvert")
pytest.importorskip("latex2mathml")

from nbformat import v4  # noqa: E402

from fedrepro.notebooks.page import mathml, moved, write_page  # noqa: E402

TEXT = r"""# Losses & gains

With $\tilde p_c$ as target:

$$L = -\frac{1}{B} \sum_b \log p_b$$

[the other](other.ipynb#part), [a third](third.ipynb), [the sliders](optional/sliders.ipynb),
[the kernel](../../fedrepro/plain.py), [the paper](https://example.org/a.ipynb), [above](#1.-The-item)
"""


@pytest.fixture
def page(tmp_path: Path) -> str:
    shown = v4.new_output(
        "execute_result", {"text/html": "<table><tr><td>42</td></tr></table>", "text/plain": "42"}
    )
    printed = v4.new_output("stream", text="a < b\n")
    cells = [v4.new_markdown_cell(TEXT), v4.new_code_cell("x = 1  # one", outputs=[printed, shown])]
    executed = tmp_path / "results" / "fedbe" / "item.ipynb"
    executed.parent.mkdir(parents=True)
    nbformat.write(v4.new_notebook(cells=cells), executed)
    (executed.parent / "other.html").touch()
    made = write_page(executed, tmp_path / "notebooks" / "fedbe" / "item.ipynb", [executed.parent / "third.ipynb"])
    assert made == executed.with_suffix(".html")
    return made.read_text("utf-8")


def test_formulas_are_mathml(page: str) -> None:
    assert page.count("<math ") == 2
    assert len(re.findall(r'<math [^>]*display="block"', page)) == 1
    assert "<mfrac>" in page
    assert "$" not in page


def test_nothing_is_fetched(page: str) -> None:
    assert "<script" not in page
    assert "@import" not in page
    assert not re.findall(r'(?:src|<link[^>]*href)="(?!data:)', page)
    assert set(re.findall(r'https?://[^"\s<]*', page)) == {
        "http://www.w3.org/1998/Math/MathML",
        "https://example.org/a.ipynb",
    }


def test_it_has_title_code_and_outputs(page: str) -> None:
    assert "<title>Losses &amp; gains</title>" in page
    assert re.search(r'<span class="c1"># one</span>', page)
    assert "a &lt; b" in page
    assert "<td>42</td>" in page


def test_links_hold_where_the_page_lies(page: str) -> None:
    assert set(re.findall(r'<a (?:target="[^"]*" )?href="([^"]*)"', page)) == {
        "other.html#part",
        "third.html",
        "../../notebooks/fedbe/optional/sliders.ipynb",
        "../../fedrepro/plain.py",
        "https://example.org/a.ipynb",
        "#1.-The-item",
    }
    assert re.search(r'<h1 id="Losses-[^"]*gains"', page)


def test_a_name_with_a_space() -> None:
    source, folder = Path("/a/notebooks/fedbe"), Path("/b/my results/fedbe")
    assert moved("my%20other.ipynb", source, folder, [folder / "my other.ipynb"]) == "my%20other.html"
    assert moved("my%20other.ipynb", source, folder) == "../../a/notebooks/fedbe/my%20other.ipynb".replace(
        "../../a", "../../../a"
    )
    assert moved("../../figures/a%20b.png", source, folder) == "../../../a/figures/a%20b.png"


def test_what_is_no_formula_stays_as_it_is() -> None:
    assert mathml(r"\sqrt", "inline") == r"<code>\sqrt</code>"
    assert mathml("x < ^", "inline") == "<code>x &lt; ^</code>"
    assert mathml(r"\nosuchcommand x", "inline") == r"<code>\nosuchcommand x</code>"
    norm = mathml(r"\frac{1}{2} \lVert w \rVert^2", "block")  # bars no higher than what they enclose
    assert norm.count('<mo stretchy="false">&#x02016;</mo>') == 2
    assert "<mo>&#x0223C;</mo>" in mathml(r"w \sim p", "inline")
    assert "<mn>&#x1D7CF;</mn>" in mathml(r"\alpha \mathbf{1}_S", "inline")
    assert '<mi>log</mi><mspace width="0.17em"/>' in mathml(r"\log p", "inline")
    assert "&#x0230A;" in mathml(r"\left\lfloor x \right\rfloor", "inline")


NOTEBOOKS = sorted((Path(__file__).parents[2] / "notebooks").glob("*/*.ipynb"))


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_every_formula_of_ours_can_be_translated(notebook: Path) -> None:
    cells = nbformat.read(notebook, as_version=4).cells
    text = "\n".join(cell.source for cell in cells if cell.cell_type == "markdown")
    formulas = [a or b for a, b in re.findall(r"\$\$(.+?)\$\$|\$(.+?)\$", text, flags=re.DOTALL)]
    assert not [formula for formula in formulas if mathml(formula, "inline").startswith("<code>")]
