"""What a paper's folder assumes beside settings: read, held against cells, refused where it makes no sense."""

from pathlib import Path

import pytest
import tiny

from fedrepro.papers import read
from fedrepro.papers.paper import Assumption, Paper

GOOD = 'value = "black", assumed = "not stated"'


def paper(folder: Path, lines: str) -> Paper:
    folder = folder / "fedxyz"
    folder.mkdir(exist_ok=True)
    (folder / "settings.toml").write_text(f'title = "XYZ"\n[assumptions]\n{lines}\n', "utf-8")
    (folder / "items.toml").write_text("", "utf-8")
    (folder / "reported.csv").write_text("item,source,row,column,metric,mean,std,runs,status,note\n", "utf-8")
    return read.paper(folder)


def test_assumptions_are_read(tmp_path: Path) -> None:
    found = paper(tmp_path, f'crops = {{ {GOOD}, where = {{ augment_pad = [2, 4] }} }}\n"a b" = {{ {GOOD} }}')
    assert found.assumptions == (
        Assumption("crops", "black", "not stated", {"augment_pad": [2, 4]}),
        Assumption("a b", "black", "not stated"),
    )


def test_an_assumption_is_about_cells_with_all_of_its_settings() -> None:
    one = Assumption("x", "y", "z", {"clients": [3, 4], "partition": "step"})
    assert one.about(tiny.setting(clients=3, partition="step"))
    assert one.about(tiny.setting(clients=4, partition="step"))
    assert not one.about(tiny.setting(clients=5, partition="step"))
    assert not one.about(tiny.setting(clients=3, partition="iid"))
    assert Assumption("x", "y", "z").about(tiny.setting())


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('crops = { value = "black", stated = "x" }', "unknown key of an assumption 'stated'"),
        (
            'crops = { value = " ", assumed = "x" }',
            "the value of the assumption 'crops' must be filled in",
        ),
        ('crops = { value = "black" }', "the assumed of the assumption 'crops' must be filled in"),
        (f"crops = {{ {GOOD}, where = {{ clint = 1 }} }}", "unknown setting 'clint'"),
        (f"clients = {{ {GOOD} }}", "the assumption 'clients' has the name of a setting"),
    ],
)
def test_what_makes_no_sense_is_refused(tmp_path: Path, line: str, message: str) -> None:
    with pytest.raises(ValueError, match=f"^fedxyz/settings.toml: {message}"):
        paper(tmp_path, line)
