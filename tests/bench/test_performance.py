"""The pictures of speed, and the records that the performance notebook renders."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib.container import ErrorbarContainer
from matplotlib.patches import Rectangle

from fedrepro.bench.report import COLUMNS
from fedrepro.plots import bars, scaling

FOLDER = Path(__file__).parents[2] / "figures" / "performance"


def test_bars_are_sorted_and_labelled_and_ours_are_coloured() -> None:
    frame = pd.DataFrame({"label": ["slow", "fast"], "value": [123.4, 56789.0], "ours": [False, True]})
    (axes,) = bars(frame, unit="images/s", title="Speed", remark="a card").axes
    assert [text.get_text() for text in axes.get_yticklabels()] == ["slow", "fast"]
    assert [bar.get_width() for bar in axes.patches if isinstance(bar, Rectangle)] == [123.4, 56789.0]
    assert [text.get_text() for text in axes.texts] == ["123.4", "56,789"]
    assert axes.patches[0].get_facecolor() != axes.patches[1].get_facecolor()
    assert axes.get_xlabel() == "images/s"


def test_groups_are_panels_and_spread_is_a_line() -> None:
    frame = pd.DataFrame({"label": list("aab"), "group": ["x", "y", "y"], "value": [1.0, 2.0, 3.0]})
    panels = bars(frame.assign(min=frame["value"] - 0.5, max=[1.5, float("nan"), 3.5]), unit="s").axes
    assert [axes.get_title(loc="left") for axes in panels] == ["x", "y"]
    spreads = [[np.asarray(line.get_xdata()).tolist() for line in axes.lines] for axes in panels]
    assert spreads == [[[0.5, 1.5]], [[2.5, 3.5]]]


def test_bars_want_values() -> None:
    with pytest.raises(ValueError, match="missing: value"):
        bars(pd.DataFrame({"label": ["a"]}), unit="s")
    with pytest.raises(ValueError, match="bars, without empty values,"):
        bars(pd.DataFrame({"label": ["a"], "value": [float("nan")]}), unit="s")


def points() -> pd.DataFrame:
    frame = pd.DataFrame({"x": [4.0, 2.0, 2.0, 8.0], "line": ["ours", "ours", "plain", "ours"]})
    return frame.assign(panel=["clients"] * 3 + ["teachers"], value=[40.0, 20.0, 10.0, 3.0]).assign(
        unit=["images/s"] * 3 + ["seconds"], min=[30.0, 20.0, 10.0, 3.0], max=[50.0, 20.0, 10.0, float("nan")]
    )


def test_sizes_double_and_lines_are_sorted() -> None:
    figure = scaling(points(), title="Speed", remark="a card")
    clients, teachers = figure.axes
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["clients", "teachers"]
    assert [axes.get_ylabel() for axes in figure.axes] == ["images/s", "seconds"]
    assert [text.get_text() for text in clients.get_xticklabels()] == ["2", "4"]
    assert clients.get_xscale() == "log"
    drawn_lines = [bar for bar in clients.containers if isinstance(bar, ErrorbarContainer)]
    drawn = {str(bar.get_label()): np.asarray(bar.lines[0].get_xydata()).tolist() for bar in drawn_lines}
    assert drawn == {"ours": [[2.0, 20.0], [4.0, 40.0]], "plain": [[2.0, 10.0]]}
    whiskers = drawn_lines[0].lines[2][0].get_segments()
    assert [np.asarray(ends)[:, 1].tolist() for ends in whiskers] == [[20.0, 20.0], [30.0, 50.0]]
    assert clients.get_ylim()[0] == 0
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["ours", "plain"]
    assert len(teachers.containers) == 1


def test_four_panels_stand_in_two_rows() -> None:
    frame = pd.concat([points().query("panel == 'clients'").assign(panel=name) for name in "abcd"])
    rows = {round(axes.get_position().y0, 2) for axes in scaling(frame).axes}
    assert len(rows) == 2


def test_scaling_wants_values_and_positive_sizes() -> None:
    with pytest.raises(ValueError, match="missing: unit"):
        scaling(points().drop(columns="unit"))
    with pytest.raises(ValueError, match="scaling, without empty values,"):
        scaling(points().assign(value=float("nan")))
    with pytest.raises(ValueError, match="sizes must be positive, got 0"):
        scaling(points().assign(x=0.0))


def test_every_record_says_where_and_with_what_it_was_made() -> None:
    found = pd.read_csv(FOLDER / "throughput.csv")
    assert list(found.columns) == list(COLUMNS)
    for path in FOLDER.glob("*.csv"):
        table = pd.read_csv(path)
        if "device" in table:
            assert not table[["device", "torch", "python", "commit", "date", "metric"]].isna().any(axis=None), path
