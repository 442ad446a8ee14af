"""Figures: structure, fixed looks, honest notes, files; not pixels."""

import sys
from itertools import pairwise
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
from matplotlib.collections import PathCollection
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.text import Text

from fedrepro import papers, plots
from fedrepro.methods import catalogue
from fedrepro.plots.frames import by_cell, scale_of
from fedrepro.plots.looks import PAPER, SIX, TEN
from fedrepro.plots.short import gains
from fedrepro.plots.style import contrast, ink, spread

STAGES = ("plan", "train", "weigh", "server", "teach", "combine", "distill")
LONG = "images of each class at each client, in words that do not fit into one line of the picture, by far not"
PAPER_OF = papers.load("fedbe")
FEDBE = next(c.setting for c in PAPER_OF.cells("table1_methods", "paper") if c.labels["method"] == "FedBE")
METHODS = ["FedAvg", "1-Ensemble", "v-Distillation", "FedBE w/o SWA", "FedBE"]


def panels(figure: Figure) -> list[Any]:
    return list(figure.axes)


def written(figure: Figure) -> list[Text]:
    return [text for text in figure.findobj(Text) if isinstance(text, Text) and text.get_text()]


def texts(figure: Figure) -> list[str]:
    return [text.get_text() for text in written(figure)]


def says(figure: Figure, part: str) -> bool:
    return any(part in text for text in texts(figure))


def cells(source: str = "paper", networks: tuple[str, ...] = ("ConvNet",), **more: Any) -> pd.DataFrame:
    rows = [
        {
            "partition": partition,
            "method": method,
            "network": network,
            "mean": 60.0 + 3 * place,
            "std": 0.5,
            "runs": 5,
        }
        for partition in ("Step", "Dirichlet")
        for place, method in enumerate(METHODS)
        for network in networks
    ]
    return pd.DataFrame(rows).assign(source=source, **more)


def history(methods: list[str], rounds: int, seeds: int, **more: Any) -> pd.DataFrame:
    rows = [
        {"method": method, "seed": seed, "round": turn, "accuracy": 50.0 + 5 * place + turn + seed}
        for place, method in enumerate(methods)
        for seed in range(seeds)
        for turn in range(1, rounds + 1)
    ]
    return pd.DataFrame(rows).assign(**more)


def seeded(frame: pd.DataFrame, gain: float = 1.0) -> pd.DataFrame:
    """Put numbers of seeds beside a frame's means: FedAvg has one seed more than the others."""
    extra = {2: 99.0}
    by_seed = [
        {0: mean - gain, 1: mean + gain} | (extra if method == "FedAvg" else {})
        for mean, method in zip(frame["mean"], frame["method"])
    ]
    return frame.assign(by_seed=pd.Series(by_seed, index=frame.index, dtype=object))


def sweep(source: str = "paper") -> pd.DataFrame:
    frame = pd.DataFrame({"dirichlet_alpha": [0.1, 0.5, 1.0, 2.0], "mean": [72.5, 73.6, 74.2, 73.2]})
    return frame.assign(network="ConvNet", std=0.5, runs=5, source=source)


def bins(members: int = 1) -> pd.DataFrame:
    low = np.arange(10) / 10
    frames = [
        pd.DataFrame(
            {"group": group, "member": member, "low": low, "high": low + 0.1, "correct": 9, "incorrect": 3}
        )
        for group in ("Samples", "Clients")
        for member in range(members)
    ]
    return pd.concat(frames)


def test_every_method_has_its_own_colour_marker_and_line() -> None:
    looks = list(plots.LOOKS.values())
    others = {"Centralized", "FedProx", "FedAvgM", "SCAFFOLD", "FedDF", "FedSDD", "BKD", "Ground-truth labels"}
    assert set(METHODS) | others | {f"FedBE + {base}" for base in ("FedProx", "FedAvgM", "SCAFFOLD")} == set(
        plots.LOOKS
    )
    assert len({look.colour for look in looks}) == len(looks)
    assert len({look.marker for look in looks}) == len(looks)
    assert {plots.LOOKS[method].colour for method in [*METHODS, "Centralized"]} == set(SIX)


@pytest.mark.parametrize(("name", "colours"), [("petroff6", SIX), ("petroff10", TEN)])
def test_the_colours_are_those_that_newer_matplotlib_knows_by_name(name: str, colours: tuple[str, ...]) -> None:
    if name not in mpl.color_sequences:
        pytest.skip(f"matplotlib {mpl.__version__} does not know {name}")
    assert [to_hex(colour) for colour in mpl.color_sequences[name]] == list(colours)


def test_unknown_method_is_an_error_unless_a_look_is_given() -> None:
    with pytest.raises(ValueError, match="got 'Mine'"):
        plots.look("Mine")
    mine = {**plots.LOOKS, "Mine": plots.Look("#123456", "8", "-")}
    figure = plots.rounds(history(["Mine"], 2, 1), scale="smoke", looks=mine)
    assert panels(figure)[0].lines[0].get_color() == "#123456"


def test_style_and_figures_leave_no_global_state() -> None:
    before = dict(mpl.rcParams)
    with plots.style():
        sizes = [mpl.rcParams[key] for key in ("font.size", "xtick.labelsize", "legend.fontsize")]
        assert mpl.rcParams["axes.spines.top"] is False
    plots.seeds(pd.DataFrame({"name": ["FedAvg"], "seed": [0], "accuracy": [64.0]}))
    assert min(sizes) >= 7
    assert dict(mpl.rcParams) == before
    if "matplotlib.pyplot" in sys.modules:
        assert sys.modules["matplotlib.pyplot"].get_fignums() == []


@pytest.fixture(scope="module")
def gallery() -> list[Figure]:
    points, accuracy = simplex_points()
    both = pd.concat([cells(), cells("this run (smoke)")])
    references = {"FedBE, Gaussian (paper)": {"ConvNet": 74.5}, "FedAvg (paper)": {"ConvNet": 72.0}}
    frame = pd.DataFrame({"name": "Ensemble of 10 samples", "seed": [0, 1], "accuracy": [62.0, 64.0]})
    return [
        plots.partition(np.full((3, 3), 30), "abc", title="Swiss roll"),
        plots.methods(both, title="Table 1"),
        plots.rounds(history(METHODS, 2, 2), title="Step", scale="short"),
        plots.alpha_sweep(sweep(), references=references, title="Table 8"),
        plots.simplex(points, accuracy, best=4, average=3, title="Figure 1", scale="smoke"),
        plots.confidence(bins(2), title="Figure 8"),
        plots.seeds(frame, {"Ensemble of 10 samples": 59.0}, title="Seeds"),
        draw(pd.concat([varied("paper"), varied()]), references={"FedAvg on all images": 57.0}, title="Figure 9"),
        plots.partition(np.full((3, 3), 30), "abc", title=f"Step, many clients: {LONG}"),
        plots.seeds(frame, title=LONG, base={"Ensemble of 10 samples": "FedAvg as in the paper"}, origin=60.0),
        plots.methods(pd.concat([seeded(cells()), seeded(cells("recorded (short)"))]), title=LONG),
        draw(seeded(varied()), title=LONG),
        plots.bars(pd.DataFrame({"label": ["plain"], "value": [3.0]}), unit="images/s", title=LONG, remark=LONG),
        plots.confidence(bins(2).assign(data="a data set with a long name"), title=LONG),
        plots.round_drawing(FEDBE, title=LONG),
        plots.ways(ways(), {"Step": 60.5}, title=LONG, scale="short"),
    ]


def test_text_is_never_below_seven_points(gallery: list[Figure]) -> None:
    assert min(float(text.get_fontsize()) for figure in gallery for text in written(figure)) >= 7


def test_no_text_is_cut_off(gallery: list[Figure]) -> None:
    for figure in gallery:
        # without the numbers at the axes: matplotlib keeps some outside the view, which it does not draw
        words = [text for text in written(figure) if not text.get_text().strip("−").replace(".", "").isdigit()]
        assert words
        with plots.style():
            figure.draw_without_rendering()
            boxes = [Text.get_window_extent(text) for text in words]
        for text, box in zip(words, boxes):
            assert box.x0 >= 0, text
            assert box.y0 >= 0, text
            assert box.x1 <= figure.bbox.x1, text
            assert box.y1 <= figure.bbox.y1, text


def test_titles_and_legends_do_not_overlap(gallery: list[Figure]) -> None:
    for figure in gallery:
        with plots.style():
            figure.draw_without_rendering()
            title = figure._suptitle.get_window_extent()  # type: ignore[attr-defined]
            titles = [axes._left_title.get_window_extent() for axes in panels(figure) if axes.get_title("left")]
            legends = [legend.get_window_extent() for legend in figure.legends]
        boxes = [title, *titles, *legends]
        for place, box in enumerate(boxes):
            assert not any(box.overlaps(other) for other in boxes[place + 1 :]), figure.get_suptitle()


def test_spread_keeps_order_gap_and_nearness() -> None:
    assert spread([0.1, 0.5, 0.9], 0.2) == pytest.approx([0.1, 0.5, 0.9])  # nothing to move
    assert spread([0.5, 0.5], 0.2) == pytest.approx([0.4, 0.6])  # both give way by half
    assert spread([0.52, 0.48], 0.2) == pytest.approx([0.6, 0.4])  # the order stays
    assert spread([1.0, 0.98], 0.1) == pytest.approx([1.0, 0.9])  # inside the axes


def test_ink_is_readable_on_white() -> None:
    assert contrast("white") == pytest.approx(1)
    assert contrast("black") == pytest.approx(21)
    assert ink("black") == "#000000"
    assert all(contrast(ink(look.colour)) >= 4.5 for look in plots.LOOKS.values())


def test_scale_of_a_source() -> None:
    assert [scale_of(s) for s in ("paper", "this run (smoke)", "recorded (short)", "recorded (paper)")] == [
        "",
        "smoke",
        "short",
        "paper",
    ]
    with pytest.raises(ValueError, match="got 'this run'"):
        scale_of("this run")


def test_rows_are_partition_and_method() -> None:
    rows = ["Step/FedAvg", "Dirichlet/FedBE w/o SWA", "FedBE w/o SWA", "FedAvg", "Centralized/SGD"]
    frame = by_cell(pd.DataFrame({"row": rows, "column": "ConvNet"}))
    assert list(frame["partition"]) == ["Step", "Dirichlet", "", "", "Centralized"]
    assert list(frame["method"]) == ["FedAvg", "FedBE w/o SWA", "FedBE w/o SWA", "FedAvg", "Centralized"]
    assert set(frame["network"]) == {"ConvNet"}


@pytest.mark.parametrize(("clients", "classes"), [(3, 3), (10, 10)])
def test_small_partition_carries_its_numbers(clients: int, classes: int) -> None:
    counts = np.arange(clients * classes).reshape(clients, classes) + 1000
    figure = plots.partition(counts, [f"class {c}" for c in range(classes)], title="Step")
    shown = texts(figure)
    assert "Step" in shown
    assert all(f"{count:,}" in shown for count in counts.ravel())
    assert all(f"{total:,}" in shown for total in counts.sum(axis=1))  # on top of each client
    assert panels(figure)[1].get_xlabel() == "client"


def test_large_partition_has_bubbles_of_proportional_area() -> None:
    counts = np.zeros((100, 10), dtype=int)
    counts[np.arange(100), np.arange(100) % 10] = np.where(np.arange(100) < 50, 400, 100)
    figure = plots.partition(counts, [str(c) for c in range(10)])
    sizes = panels(figure)[1].collections[0].get_sizes()
    assert len(sizes) == 100  # none for empty cells
    assert sizes[0] / sizes[-1] == pytest.approx(4)
    legend = panels(figure)[1].get_legend()
    assert legend is not None
    assert [text.get_text() for text in legend.get_texts()] == ["400", "100", "20"]


def test_partition_with_a_hundred_classes_is_a_heat_map() -> None:
    figure = plots.partition(np.eye(10, 100, dtype=int), [str(c) for c in range(100)])
    assert len(panels(figure)) == 3  # totals, map, colour bar
    assert np.ma.count(panels(figure)[1].collections[0].get_array()) == 10


@pytest.mark.parametrize(
    ("counts", "message"),
    [
        (np.ones((3, 2)), r"\[clients, 3 classes\], got shape \(3, 2\)"),
        (np.full((2, 3), -1), "negative, got -1"),
    ],
)
def test_partition_rejects_wrong_counts(counts: np.ndarray, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        plots.partition(counts, "abc")


def test_methods_draws_ours_over_open_markers_of_the_paper() -> None:
    figure = plots.methods(pd.concat([cells(), cells("this run (smoke)", runs=1, std=np.nan)]))
    assert [axes.get_title(loc="left") for axes in panels(figure)] == ["Step", "Dirichlet"]
    lines = panels(figure)[0].lines
    paper = [line for line in lines if line.get_markerfacecolor() == "none"]
    ours = [line for line in lines if line.get_markerfacecolor() == plots.LOOKS["FedBE"].colour]
    assert len(paper) == len(METHODS)
    assert [line.get_marker() for line in ours] == [plots.LOOKS["FedBE"].marker]
    assert ours[0].get_zorder() > paper[-1].get_zorder()
    # The same place, so that a match is seen.
    assert np.asarray(ours[0].get_xdata()) == pytest.approx(np.asarray(paper[-1].get_xdata()))
    legend = [text.get_text() for text in figure.legends[0].get_texts()]
    assert legend == [*METHODS, "paper\nmean ± std of 5 runs", "this run (smoke)\n1 run"]


def test_methods_says_when_it_is_not_comparable() -> None:
    warned = plots.methods(pd.concat([cells(), cells("recorded (short)"), cells("this run (smoke)")]))
    assert says(warned, "not comparable with the paper: short scale")
    assert not says(warned, "smoke")  # its noise is not drawn where there is more
    assert says(plots.methods(pd.concat([cells(), cells("this run (smoke)")])), "with the paper: smoke scale")
    assert not says(plots.methods(pd.concat([cells(), cells("this run (paper)")])), "not comparable")


def test_methods_takes_rows_and_columns_and_spreads_centralised_training_over_the_panels() -> None:
    frame = cells().assign(row=lambda f: f["partition"] + "/" + f["method"], column="ConvNet")
    central = {
        "row": "Centralized/SGD",
        "column": "ConvNet",
        "mean": 84.5,
        "std": None,
        "runs": None,
        "source": "paper",
    }
    frame = pd.concat([frame[list(central)], pd.DataFrame([central])])
    figure = plots.methods(frame)
    assert len(panels(figure)) == 2
    heights = [axes.collections[-1].get_segments()[0][0][1] for axes in panels(figure)]
    assert heights == [84.5, 84.5]
    assert says(figure, "Centralized,\npaper")


def test_methods_places_networks_and_methods_apart() -> None:
    figure = plots.methods(cells(networks=("ResNet-20", "ConvNet", "ResNet-56")))
    assert [label.get_text() for label in panels(figure)[1].get_xticklabels()] == [
        "ConvNet",
        "ResNet-20",
        "ResNet-56",
    ]
    x = np.concatenate([line.get_xdata() for line in panels(figure)[0].lines if len(line.get_xdata())])
    assert len(set(x.astype(float).round(6))) == 15


@pytest.mark.parametrize("rounds", [2, 40])
def test_rounds_draws_mean_band_and_direct_labels(rounds: int) -> None:
    figure = plots.rounds(history(METHODS, rounds, 3), title="Step", scale="paper")
    axes = panels(figure)[0]
    assert [(line.get_color(), line.get_marker()) for line in axes.lines] == [plots.LOOKS[m][:2] for m in METHODS]
    assert axes.lines[0].get_ydata() == pytest.approx(50 + np.arange(1, rounds + 1) + 1)  # mean of seeds 0, 1, 2
    band = axes.collections[0].get_paths()[0].vertices
    assert (band[:, 1].min(), band[:, 1].max()) == (51, 50 + rounds + 2)
    assert {text.get_text() for text in axes.texts} == set(METHODS)
    assert not figure.legends
    assert says(figure, "mean of 3 seeds")
    assert not says(figure, "not comparable")


def test_rounds_labels_do_not_overlap_when_lines_end_together() -> None:
    frame = history(METHODS, 2, 1).assign(accuracy=lambda f: 40.0 + f["round"])
    figure = plots.rounds(frame, scale="smoke")
    figure.draw_without_rendering()
    boxes = sorted((Text.get_window_extent(text) for text in panels(figure)[0].texts), key=lambda box: box.y0)
    assert all(below.y1 <= above.y0 for below, above in pairwise(boxes))
    assert all(box.x0 >= 0 and box.x1 <= figure.bbox.x1 for box in boxes)  # and nothing is cut off


def test_rounds_has_a_panel_per_partition_and_network_and_a_legend_for_many_methods() -> None:
    frames = [
        history(METHODS, 3, 1, partition=p, network=n)
        for p in ("Step", "Dirichlet")
        for n in ("ConvNet", "ResNet-20")
    ]
    figure = plots.rounds(pd.concat(frames), scale="short")
    assert [axes.get_title(loc="left") for axes in panels(figure)] == [
        "Step, ConvNet",
        "Step, ResNet-20",
        "Dirichlet, ConvNet",
        "Dirichlet, ResNet-20",
    ]
    assert says(figure, "not comparable with the paper: short scale")
    many = plots.rounds(history(list(plots.LOOKS), 3, 1), scale="short")
    assert [text.get_text() for text in many.legends[0].get_texts()] == list(plots.LOOKS)


def test_rounds_draws_a_method_that_trains_once_as_a_level() -> None:
    frame = pd.concat([history(["FedAvg"], 10, 1), history(["1-Ensemble"], 1, 1)])
    level = panels(plots.rounds(frame, scale="smoke"))[0].lines[1]
    assert (list(level.get_xdata()), list(level.get_ydata())) == ([1, 10], [51, 51])


def test_alpha_sweep_is_logarithmic_with_the_papers_values_and_references() -> None:
    figure = plots.alpha_sweep(
        pd.concat([sweep(), sweep("recorded (short)")]), references={"FedAvgM (paper)": {"ConvNet": 72.0}}
    )
    axes = panels(figure)[0]
    assert axes.get_xscale() == "log"
    assert [label.get_text() for label in axes.get_xticklabels()] == ["0.1", "0.5", "1", "2"]
    assert [text.get_text() for text in axes.texts] == ["FedAvgM\n(paper)"]
    reference = next(line for line in axes.lines if list(line.get_ydata()) == [72.0, 72.0])
    assert reference.get_color() == plots.LOOKS["FedAvgM"].colour  # not FedAvg's
    assert says(figure, "not comparable with the paper: short scale")
    by_row = sweep().assign(row=lambda f: "alpha=" + f["dirichlet_alpha"].astype(str), column="ConvNet")
    again = plots.alpha_sweep(by_row.drop(columns=["dirichlet_alpha", "network"]))
    assert panels(again)[0].lines[0].get_xdata() == pytest.approx([0.1, 0.5, 1, 2])


def test_alpha_sweep_rejects_an_alpha_that_has_no_logarithm() -> None:
    with pytest.raises(ValueError, match="positive, got 0"):
        plots.alpha_sweep(sweep().assign(dirichlet_alpha=0.0))


def simplex_points() -> tuple[np.ndarray, np.ndarray]:
    points = np.concatenate([np.eye(3), np.full((1, 3), 1 / 3), [[0.6, 0.2, 0.2]]])
    return points, np.array([50.0, 51.0, 52.0, 64.0, 69.5])


def test_simplex_marks_corners_average_and_best() -> None:
    points, accuracy = simplex_points()
    features, labels = np.random.default_rng(0).normal(size=(30, 2)), np.arange(30) % 3
    figure = plots.simplex(points, accuracy, best=4, average=3, data=(features, labels, np.arange(30) // 10))
    for text in (
        "client 1\n50.0 %",
        "client 3\n52.0 %",
        "FedAvg 64.0 %",
        "best point 69.5 %",
        "test accuracy (%)",
    ):
        assert text in texts(figure)
    triangle = next(axes for axes in panels(figure) if axes.patches)
    circle, star = triangle.lines[-2:]
    assert (circle.get_marker(), star.get_marker()) == ("o", "*")
    assert (float(circle.get_xdata()[0]), float(circle.get_ydata()[0])) == pytest.approx((0.5, np.sqrt(0.75) / 3))
    assert float(star.get_xdata()[0]) == pytest.approx(0.2 + 0.2 / 2)
    clients = [axes for axes in panels(figure) if axes.get_title() in ("client 1", "client 2", "client 3")]
    drawn = [sum(len(group.get_offsets()) for group in axes.collections) for axes in clients]
    assert drawn == [10, 10, 10]
    assert (
        len({group.get_paths()[0].vertices.shape[0] for group in clients[0].collections}) > 1
    )  # not colour alone


def test_simplex_says_its_scale_and_needs_no_data() -> None:
    points, accuracy = simplex_points()
    figure = plots.simplex(points[1:], accuracy[1:], best=3, average=2, scale="smoke", remark="seed 0 of 20")
    assert says(figure, "seed 0 of 20")
    assert says(figure, "not comparable with the paper: smoke scale")
    assert "client 1" in texts(figure)  # no accuracy where that corner was not measured
    assert "client 2\n51.0 %" in texts(figure)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"points": np.full((5, 3), 0.5)}, "non-negative with sum 1"),
        ({"points": np.tile([0.2, 0.3, 0.5], (5, 1))}, "one line"),
        ({"accuracy": np.zeros(4)}, r"got \(5, 3\) and \(4,\)"),
        ({"best": 5}, "best must be a row of points, 0 to 4, got 5"),
        ({"average": -1}, "average must be a row of points"),
        ({"scale": "tiny"}, "smoke, short or paper, got 'tiny'"),
    ],
)
def test_simplex_rejects_what_it_cannot_draw(change: dict[str, Any], message: str) -> None:
    points, accuracy = simplex_points()
    arguments: dict[str, Any] = {"points": points, "accuracy": accuracy, "best": 4, "average": 3, **change}
    with pytest.raises(ValueError, match=message):
        plots.simplex(arguments.pop("points"), arguments.pop("accuracy"), **arguments)


def test_confidence_draws_means_over_members_on_one_axis() -> None:
    frame = bins(members=2)
    frame.loc[(frame["member"] == 1), "correct"] = 19
    figure = plots.confidence(frame)
    clients, samples = panels(figure)
    assert clients.get_title(loc="left") == "Clients (mean of 2 models)"
    assert clients.get_ylim() == samples.get_ylim()
    correct, incorrect = clients.containers
    assert [bar.get_height() for bar in correct] == [14.0] * 10
    assert [bar.get_height() for bar in incorrect] == [3.0] * 10
    assert not correct[0].get_hatch()
    assert incorrect[0].get_hatch()  # not colour alone
    assert says(figure, "82.4 % correct\n6 of 30 mistakes at confidence ≥ 0.8")  # 140 of 170; two bins of 3


def test_confidence_has_a_row_per_data_set() -> None:
    figure = plots.confidence(pd.concat([bins().assign(data="Swiss roll"), bins().assign(data="CIFAR-10")]))
    assert [axes.get_title(loc="left") for axes in panels(figure)][::2] == [
        "Swiss roll: Clients",
        "CIFAR-10: Clients",
    ]
    with pytest.raises(ValueError, match="low < high"):
        plots.confidence(bins().assign(high=0.0))


def test_seeds_shows_each_seed_the_interval_and_the_papers_value() -> None:
    frame = pd.DataFrame({"name": "FedAvg", "seed": [0, 1, 2], "accuracy": [62.0, 64.0, 66.0]})
    figure = plots.seeds(frame, {"FedAvg": 64.0, "FedBE": 69.0})
    axes = panels(figure)[0]
    assert sorted(axes.collections[0].get_offsets()[:, 0]) == [62, 64, 66]
    # s = 2, t(0.95, 2) = 2.91999: half the interval is 2.91999 * 2 / sqrt(3) = 3.3717
    ends = axes.containers[0].lines[2][0].get_segments()[0][:, 0]
    assert ends == pytest.approx([64 - 3.3717, 64 + 3.3717], abs=1e-3)
    assert {"64.0 [60.6, 67.4]", "paper 64.0"} <= set(texts(figure))  # ± is a standard deviation, everywhere
    assert not says(figure, "69.0")  # FedBE has no row


def test_seeds_draws_no_interval_from_one_seed() -> None:
    figure = plots.seeds(pd.DataFrame({"name": ["FedAvg"], "seed": [0], "accuracy": [64.0]}), scale="smoke")
    assert "64.0" in texts(figure)
    assert not says(figure, "interval")
    assert says(figure, "one run")
    assert not panels(figure)[0].findobj(PathCollection)  # the run is drawn once, as the mean


def test_equal_seeds_have_no_interval() -> None:
    figure = plots.seeds(pd.DataFrame({"name": "FedAvg", "seed": [0, 1], "accuracy": 64.05}))
    assert "64.1" in texts(figure)


def ways() -> pd.DataFrame:
    rows = [("Step", "mean", 0, 60.0), ("Step", "vote", 0, 50.0), ("Dirichlet", "mean", 0, 58.0)]
    return pd.DataFrame(rows, columns=["name", "way", "seed", "accuracy"])


def test_ways_draws_a_mark_per_row_and_way_beside_the_papers_value() -> None:
    figure = plots.ways(ways(), {"Step": 60.5, "Centralized": 84.0}, title="Combined")
    (axes,) = panels(figure)
    drawn = [(float(bars.lines[0].get_xdata()[0]), bars.lines[0].get_marker()) for bars in axes.containers]
    assert [x for x, _ in drawn] == [60.0, 50.0, 58.0]
    assert drawn[0][1] == drawn[2][1] != drawn[1][1]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["Step", "Dirichlet"]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["mean", "vote"]
    assert says(figure, "paper 60.5")
    assert not says(figure, "paper 84.0")
    two = pd.concat([ways(), ways().assign(seed=1, accuracy=lambda table: table["accuracy"] + 2)])
    ends = panels(plots.ways(two))[0].containers[0].lines[2][0].get_segments()[0][:, 0]
    assert ends == pytest.approx([61 - 6.3138, 61 + 6.3138], abs=1e-3)  # t(0.95, 1) sqrt(2) / sqrt(2)


def test_keys_of_sources_have_no_methods_shape_alone() -> None:
    figure = plots.methods(pd.concat([cells(), cells("recorded (paper)")]))
    with plots.style():
        figure.draw_without_rendering()
    (legend,) = figure.legends
    keys = [line.get_marker() for line in legend.findobj(Line2D)][-6:]
    assert keys == ["^", "s", "D"] * 2  # those of the paper and of the record


def test_a_sweep_may_show_accuracies_of_short_runs() -> None:
    (own,) = panels(draw(seeded(varied()), above=False))
    assert own.get_ylabel() == "test accuracy (%)"
    assert len(own.containers) == 2  # FedAvg's line as well


@pytest.mark.parametrize(
    ("draw", "frame", "missing"),
    [
        (plots.methods, cells().drop(columns=["std", "source"]), "std, source"),
        (
            lambda frame: plots.rounds(frame, scale="smoke"),
            history(METHODS, 2, 1).drop(columns="seed"),
            "seed",
        ),
        (plots.alpha_sweep, sweep().drop(columns="network"), "network"),
        (plots.confidence, bins().drop(columns="incorrect"), "incorrect"),
        (plots.seeds, pd.DataFrame({"name": ["FedAvg"], "accuracy": [64.0]}), "seed"),
        (plots.ways, ways().drop(columns="way"), "way"),
    ],
)
def test_missing_columns_are_named(draw: Any, frame: pd.DataFrame, missing: str) -> None:
    with pytest.raises(ValueError, match=f"missing: {missing} "):
        draw(frame)
    with pytest.raises(ValueError, match=r"missing|at least one row"):
        draw(frame.iloc[:0])


def test_an_empty_frame_is_an_error() -> None:
    with pytest.raises(ValueError, match="at least one row"):
        plots.methods(cells().iloc[:0])
    with pytest.raises(ValueError, match="at least one row"):
        plots.rounds(history(METHODS, 2, 1).assign(accuracy=np.nan), scale="smoke")


def test_save_writes_four_files_with_the_text_inside_the_svg(tmp_path: Path) -> None:
    data = pd.DataFrame({"name": ["FedAvg"], "seed": [0], "accuracy": [64.123456]})
    figure = plots.seeds(data)
    paths = plots.save(figure, tmp_path / "new", "toy", data=data, alt="One seed\n & a <line>.")
    assert [path.name for path in paths] == ["toy.svg", "toy.png", "toy.csv", "toy.alt.txt"]
    assert paths[2].read_text() == "name,seed,accuracy\nFedAvg,0,64.1235\n"
    assert paths[3].read_text() == "One seed & a <line>.\n"
    root = ElementTree.fromstring(paths[0].read_text())
    assert [child.tag.split("}")[1] for child in root][:2] == ["title", "desc"]
    assert root[1].text == "One seed & a <line>."
    assert root.attrib["aria-labelledby"] == "toy-title toy-desc"
    assert int.from_bytes(paths[1].read_bytes()[16:20]) == round(6.2 * 160)  # the png's width in pixels


def test_save_gives_the_same_bytes_for_the_same_data(tmp_path: Path) -> None:
    points, accuracy = simplex_points()
    first, second = (
        [
            path.read_bytes()
            for frame in [pd.DataFrame({"accuracy": accuracy})]
            for path in plots.save(
                plots.simplex(points, accuracy, best=4, average=3),
                tmp_path / run,
                "figure",
                data=frame,
                alt="A triangle.",
            )
        ]
        for run in ("first", "second")
    )
    assert first == second
    assert b"<dc:date>" not in first[0]


def test_saving_a_figure_twice_changes_nothing(tmp_path: Path) -> None:
    figure, data = plots.rounds(history(METHODS, 3, 2), scale="smoke"), pd.DataFrame({"x": [1]})
    first = [path.read_bytes() for path in plots.save(figure, tmp_path, "figure", data=data, alt="Lines.")]
    assert [path.read_bytes() for path in plots.save(figure, tmp_path, "figure", data=data, alt="Lines.")] == first


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"alt": " \n"}, "alt must say"),
        ({"name": "a/b"}, "got 'a/b'"),
        ({"name": ""}, "got ''"),
        ({"data": pd.DataFrame()}, "empty frame"),
    ],
)
def test_save_refuses(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    arguments: dict[str, Any] = {
        "name": "toy",
        "data": pd.DataFrame({"x": [1]}),
        "alt": "A figure.",
        **change,
    }
    with pytest.raises(ValueError, match=message):
        plots.save(plots.Picture(), tmp_path, arguments.pop("name"), **arguments)
    assert not list(tmp_path.iterdir())


def test_a_notebook_shows_the_figure_with_its_alternative_text(tmp_path: Path) -> None:
    figure: Any = plots.partition(np.full((3, 3), 30), "abc")
    image, about = figure._repr_png_()
    assert image.startswith(b"\x89PNG")
    assert "alt" not in about
    plots.save(figure, tmp_path, "toy", data=pd.DataFrame({"x": [1]}), alt="Three clients.")
    _, about = figure._repr_png_()
    assert about["alt"] == "Three clients."


# -- sweeps ---------------------------------------------------------------------------------------------------


def varied(source: str = "recorded (short)", methods: tuple[str, ...] = ("FedAvg", "FedBE")) -> pd.DataFrame:
    rows = [
        {"epochs": epochs, "method": method, "mean": 50.0 + place + len(epochs), "std": 0.5, "runs": 3}
        for place, method in enumerate(methods)
        for epochs in ("1", "5", "20")
    ]
    return pd.DataFrame(rows).assign(source=source)


def draw(frame: pd.DataFrame, **options: Any) -> Figure:
    return plots.sweep(frame, **{"x": "epochs", "line": "method", "label": "local epochs"} | options)


def test_a_sweep_has_a_line_per_method_and_source_at_the_numbers() -> None:
    both = pd.concat([varied("paper"), varied("recorded (paper)")])
    figure = draw(both, references={"all images": 60.0}, title="Sweep")
    (axes,) = panels(figure)
    lines = [bars.lines[0] for bars in axes.containers]
    assert list(lines[0].get_xdata()) == list(lines[2].get_xdata()) == [1.0, 5.0, 20.0]  # the paper's
    # Ours stand aside by a hundredth of the axis, to the left and to the right.
    assert [x - y for x, y in zip(lines[1].get_xdata(), (1, 5, 20))] == pytest.approx([-0.19] * 3)
    assert [x - y for x, y in zip(lines[3].get_xdata(), (1, 5, 20))] == pytest.approx([0.19] * 3)
    assert [line.get_color() for line in lines[1::2]] == [plots.LOOKS[m].colour for m in ("FedAvg", "FedBE")]
    assert {line.get_markerfacecolor() for line in lines[0::2]} == {"none"}  # the paper's are open
    assert [label.get_text() for label in axes.get_xticklabels()] == ["1", "5", "20"]
    assert says(figure, "local epochs")
    assert says(figure, "all images")
    assert says(draw(varied()), "short scale")
    assert draw(varied(), log=True).axes[0].get_xscale() == "log"


def test_of_two_variants_of_a_method_the_second_is_dashed() -> None:
    figure = draw(varied(methods=("FedBE, weight decay", "FedBE, no weight decay")))
    one, other = (bars.lines[0] for bars in panels(figure)[0].containers)
    assert one.get_color() == other.get_color() == plots.LOOKS["FedBE"].colour
    assert (one.get_linestyle(), other.get_linestyle()) == ("-", "--")
    assert one.get_markerfacecolor() != other.get_markerfacecolor()
    assert other.get_fillstyle() == "full"  # open as in the legend, with no line through it


def test_a_sweep_has_a_panel_per_value() -> None:
    frame = pd.concat([varied().assign(model=model) for model in ("ConvNet", "ResNet-20")])
    assert [axes.get_title("left") for axes in panels(draw(frame, panel="model"))] == ["ConvNet", "ResNet-20"]


def test_a_sweep_refuses_what_it_cannot_draw() -> None:
    with pytest.raises(ValueError, match=r"named after a method .* got 'Mine'"):
        draw(varied(methods=("Mine",)))
    with pytest.raises(ValueError, match="epochs must be positive on a logarithmic axis, got 0"):
        draw(varied().assign(epochs="0"), log=True)
    with pytest.raises(ValueError, match="missing: epochs"):
        draw(varied().drop(columns="epochs"))


def test_shades_are_looks_for_further_names() -> None:
    looks = plots.shades(["CIFAR-100", "FedBE", "photos"])
    assert looks["FedBE"] == plots.LOOKS["FedBE"]
    assert len({looks[name].colour for name in ("CIFAR-100", "photos")}) == 2
    assert len({looks[name].marker for name in ("CIFAR-100", "photos")}) == 2
    assert set(looks) == {"CIFAR-100", "photos", *plots.LOOKS}
    mixed = plots.shades(["v-Distillation", "CIFAR-100", "photos"])  # a square already
    assert len({mixed[name].marker for name in ("v-Distillation", "CIFAR-100", "photos")}) == 3
    with pytest.raises(ValueError, match="at most 10"):
        plots.shades([str(n) for n in range(11)])


def test_a_picture_of_the_papers_numbers_alone_says_so_and_shows_no_colour_of_ours() -> None:
    for figure in (draw(varied("paper")), plots.methods(cells("paper"))):
        assert says(figure, "the paper's numbers alone")
        (legend,) = figure.legends
        assert {to_hex(line.get_color()) for line in legend.get_lines() if line.get_label()} == {PAPER}


def test_how_full_a_marker_is_tells_the_scale_and_not_its_place() -> None:
    wanted = {"recorded (paper)": "full", "recorded (short)": "left", "this run (smoke)": "bottom"}
    for source, fill in wanted.items():
        for figure in (draw(varied(source)), plots.methods(cells(source))):
            (marks,) = {bars.lines[0].get_fillstyle() for axes in panels(figure) for bars in axes.containers}
            assert marks == fill


def test_equal_accuracies_do_not_look_apart() -> None:
    for figure in (draw(varied().assign(mean=20.0)), plots.methods(cells().assign(mean=20.0))):
        low, high = panels(figure)[0].get_ylim()
        assert high - low >= 4


def test_panels_share_an_axis_that_holds_the_points_of_all() -> None:
    high = varied().assign(mean=75.0, panel="ResNet-20")
    low = varied().assign(mean=45.0, panel="ConvNet")
    step, dirichlet = cells().assign(mean=75.0), cells().assign(mean=45.0, partition="Dirichlet")
    for figure in (draw(pd.concat([high, low]), panel="panel"), plots.methods(pd.concat([step, dirichlet]))):
        for axes in panels(figure):
            bottom, top = axes.get_ylim()
            assert bottom < 45 < 75 < top


# -- short runs, pairs, defaults ------------------------------------------------------------------------------


def test_short_runs_have_panels_of_their_own_with_gains_over_fedavg_on_the_same_seeds() -> None:
    short = seeded(cells("recorded (short)"))
    figure = plots.methods(pd.concat([cells(), short]))
    titles = [axes.get_title(loc="left") for axes in panels(figure)]
    assert titles == ["Step", "Dirichlet", "Step, short scale", "Dirichlet, short scale"]
    own = panels(figure)[2]
    assert own.get_ylabel() == "points above FedAvg"
    dots = [sorted(group.get_offsets()[:, 1]) for group in own.collections if len(group.get_offsets())]
    # FedAvg 60, the others 63, 66, ..., their seeds too: 3, 6, 9, 12; FedAvg's third seed has no pair.
    assert [values for values in dots if len(values) == 2] == [[gain, gain] for gain in (3.0, 6.0, 9.0, 12.0)]
    assert says(figure, "same 2 seeds")
    assert max(line.get_ydata().max() for line in panels(figure)[0].lines if len(line.get_ydata())) == 72.0


def test_gains_have_students_interval_from_two_seeds_on() -> None:
    short = cells("recorded (short)")
    short = short[short["method"].isin(["FedAvg", "FedBE"]) & (short["partition"] == "Step")]

    def gained(*by_seed: dict[int, float]) -> pd.DataFrame:
        own = pd.Series(by_seed, index=short.index, dtype=object)
        return gains(short.assign(by_seed=own), ["partition", "network"], "method")

    found = gained({0: 40.0, 1: 44.0}, {0: 43.0, 1: 45.0})
    assert list(found["method"]) == ["FedBE"]
    assert found["mean"].iloc[0] == pytest.approx(2.0)  # 3 and 1
    assert found["half"].iloc[0] == pytest.approx(6.3138 * np.sqrt(2) / np.sqrt(2), abs=1e-3)  # t(0.95, 1)
    assert np.isnan(gained({0: 40.0}, {0: 43.0, 1: 45.0})["half"].iloc[0])
    assert gained({5: 40.0}, {0: 43.0}).empty


def test_a_variant_is_held_against_fedavg_with_the_same_variant() -> None:
    frame = varied(methods=("FedAvg, no decay", "FedBE, no decay", "FedBE, decay"))
    by_seed = pd.Series([{0: 10.0}] * 3 + [{0: 12.0}] * 3 + [{0: 13.0}] * 3, index=frame.index, dtype=object)
    assert gains(frame.assign(by_seed=by_seed), ["epochs"], "method").empty  # FedBE with decay has no baseline
    two = frame.assign(by_seed=by_seed).query("method != 'FedBE, decay'")
    assert list(gains(two, ["epochs"], "method")["mean"]) == [2.0] * 3


def test_a_sweep_of_short_runs_shows_gains_and_never_the_papers_axis() -> None:
    figure = draw(pd.concat([varied("paper"), seeded(varied())]), references={"x: paper": 60.0, "y (short)": 40.0})
    one, own = panels(figure)
    assert (one.get_ylabel(), own.get_ylabel()) == ("test accuracy (%)", "points above FedAvg")
    assert own.get_title("left") == "short scale"
    assert own.containers[0].lines[0].get_ydata() == pytest.approx([1.0] * 3)
    assert [text.get_text() for text in one.texts] == ["x:\npaper"]
    assert not [text for text in own.texts if text.get_text()]
    (legend,) = draw(seeded(varied())).legends
    assert [text.get_text() for text in legend.get_texts()][:-1] == ["FedBE"]  # FedAvg is the line at 0, no mark


def test_the_legend_promises_only_spreads_that_are_drawn() -> None:
    def entry(**changes: Any) -> str:
        figure = plots.methods(cells("recorded (paper)", **changes))
        return str(figure.legends[0].get_texts()[-1].get_text())

    assert entry() == "recorded (paper)\nmean ± std of 5 runs"
    assert entry(std=np.nan) == "recorded (paper)\nmean of 5 runs"
    assert entry(runs=1) == "recorded (paper)\n1 run"
    known = plots.methods(seeded(cells("recorded (paper)", std=np.nan, runs=2)))
    assert "mean ± std of 2 runs" in known.legends[0].get_texts()[-1].get_text()
    bars = [group for group in panels(known)[0].containers if group.has_yerr]
    low, high = bars[1].lines[2][0].get_segments()[0][:, 1]
    assert high - low == pytest.approx(2 * np.sqrt(2))  # seeds one point below and above the mean: s = sqrt(2)


def test_lines_of_a_panel_are_of_the_same_seeds() -> None:
    frame = pd.concat([history(["FedAvg"], 3, 3), history(["FedBE"], 3, 1)])
    figure = plots.rounds(frame, scale="short")
    assert panels(figure)[0].lines[0].get_ydata() == pytest.approx([51, 52, 53])  # seed 0 alone, as FedBE has it
    assert says(figure, "seeds that only some lines have are left out")
    two = pd.concat([frame.assign(network="A"), history(["FedAvg", "FedBE"], 3, 2).assign(network="B")])
    titles = [axes.get_title("left") for axes in panels(plots.rounds(two, scale="short"))]
    assert titles == ["A, 1 seed", "B, 2 seeds"]
    apart = pd.concat([history(["FedAvg"], 3, 1), history(["FedBE"], 3, 1).assign(seed=7)])
    assert says(plots.rounds(apart, scale="short"), "lines of different seeds")
    assert not says(plots.rounds(history(METHODS, 3, 2), scale="short"), "left out")


def test_rounds_are_counted_from_one() -> None:
    frame = history(["FedAvg"], 3, 1).assign(round=lambda f: f["round"] - 1)  # as in records
    assert list(panels(plots.rounds(frame, scale="short"))[0].lines[0].get_xdata()) == [1, 2, 3]


def test_a_row_says_what_it_is_held_against_and_the_legend_shows_its_mark() -> None:
    frame = pd.DataFrame({"name": ["SWA", "SWA"], "seed": [0, 1], "accuracy": [1.0, 2.0]})
    figure = plots.seeds(frame, origin=0.0, base={"SWA": "FedBE as in the paper"})
    assert "SWA\nabove FedBE as in the paper" in texts(figure)
    mean = panels(figure)[0].containers[0].lines[0]
    shown = [line for line in figure.legends[0].get_lines() if line.get_marker() == mean.get_marker()]
    assert len(shown) == 1
    assert to_hex(shown[0].get_color()) == to_hex(mean.get_color())


def test_confident_mistakes_are_told_from_one_edge_or_not_at_all() -> None:
    low = np.tile(0.1 + 0.09 * np.arange(10), 2)
    other = bins().assign(low=low, high=low + 0.09, data="ten classes")
    figure = plots.confidence(pd.concat([bins().assign(data="roll"), other]))
    assert not says(figure, "mistakes at confidence")
    assert says(figure, "the bins share no edge from 0.8 on")
    halves = plots.confidence(bins().assign(correct=9.5))
    assert panels(halves)[0].get_ylabel() == "test examples\n(mean over models)"
    assert panels(plots.confidence(bins()))[0].get_ylabel() == "test examples"


def test_nothing_depends_on_the_readers_matplotlibrc(tmp_path: Path) -> None:
    data, made = pd.DataFrame({"x": [1]}), []
    strange: Any = {"savefig.bbox": "tight", "axes.facecolor": "#ff0000", "axes.titlepad": 40, "axes.xmargin": 0.4}
    strange |= {"savefig.facecolor": "#00ff00", "lines.dashed_pattern": [9, 9], "legend.loc": "center"}
    for name, settings in (("plain", None), ("strange", strange)):
        with mpl.rc_context(settings):
            figure = plots.rounds(history(METHODS, 3, 2), scale="smoke")
            paths = plots.save(figure, tmp_path / name, "f", data=data, alt="Lines.")
            made.append([path.read_bytes() for path in paths])
    assert made[0] == made[1]
    with mpl.rc_context({"text.usetex": True}), plots.style():
        assert not mpl.rcParams["text.usetex"]


def test_a_round_is_drawn_from_its_stages() -> None:
    figure = plots.round_drawing(FEDBE)
    said = texts(figure)
    assert [text for text in said if text in STAGES] == list(STAGES)
    assert {"LocalSgd", "DistillSwa", "MeanOfProbabilities", "next round"} <= set(said)
    assert any(text.replace("\n", " ") == "Average + Clients + Gaussian" for text in said)
    assert says(figure, "samples = 10")
    fedavg = plots.round_drawing(catalogue.build(FEDBE.with_(method="fedavg")))
    for drawing, idle in ((figure, 1), (fedavg, 4)):  # FedBE's server replaces, all else is at work
        boxes = [patch for axes in panels(drawing) for patch in axes.patches]
        assert (len(boxes), sum(to_hex(box.get_facecolor()) == "#ffffff" for box in boxes)) == (7, idle)
    alone = plots.round_drawing(FEDBE.with_(method="centralized", clients=1, partition="central"))
    assert len(panels(alone)[0].patches) == 1
