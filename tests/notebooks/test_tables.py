"""Tables of notebooks: to the left, named, what the item reads first; the paper's layout; folds."""

import pandas as pd
import pytest

from fedrepro import papers
from fedrepro.notebooks import tables
from fedrepro.notebooks.lines import BESIDE, UNREAD, Claimed, Lines
from fedrepro.notebooks.reads import ORDER, reads
from fedrepro.report import verdict
from fedrepro.report.cells import grid, judged, names_of, ours, printed

PAPER = papers.load("fedbe")


def comparison(**changes: object) -> pd.DataFrame:
    line = {"metric": "test_acc_pct", "source": "s", "paper_mean": 74.5, "paper_std": 0.5, "paper_runs": 5.0}
    line |= {"status": "ok", "recorded_mean": float("nan"), "recorded_std": float("nan"), "recorded_seeds": 0}
    line |= {"gap_points": float("nan"), "verdict": "not run", "short_mean": float("nan"), "short_seeds": 0}
    line |= {"smoke_mean": float("nan"), "smoke_seeds": 0, "note": ""}
    cells = [
        ("Step/FedAvg", "A"),
        ("Step/FedBE", "B"),
        ("Step/FedBE", "C"),
        ("Step/FedAvg", "B"),
        ("Dirichlet/FedBE", "A"),
    ]
    return pd.DataFrame([line | {"row": row, "column": column} | changes for row, column in cells])


def test_a_row_has_a_group_unless_its_slash_means_without() -> None:
    assert names_of("Step/FedBE") == ("Step", "FedBE")
    assert names_of("10 epochs/FedBE w/o SWA") == ("10 epochs", "FedBE w/o SWA")
    assert names_of("FedBE w/o SWA") == ("", "FedBE w/o SWA")
    assert names_of("alpha=0.5") == ("", "alpha=0.5")


def test_columns_keep_the_order_of_every_row() -> None:
    cells = comparison()
    found = grid(cells, lambda cell: "x")
    assert list(found.columns) == ["A", "B", "C"]  # FedAvg prints A, B, FedBE B, C
    assert list(found.index) == [("Step", "FedAvg"), ("Step", "FedBE"), ("Dirichlet", "FedBE")]
    assert found.loc[("Step", "FedAvg"), "C"] == ""


def test_a_cell_holds_the_papers_number_and_ours() -> None:
    run = comparison(recorded_mean=73.94, recorded_std=0.41, recorded_seeds=3, gap_points=-0.56, verdict="off")
    cell = run.to_dict("records")[0]
    assert judged(cell, printed(run)) == "74.5 ± 0.5 | 73.9 ± 0.4 (3)\n✗ off; −0.6"
    cell |= {"gap_low": -1.2, "gap_high": 0.1}  # what a later comparison tells as well
    assert judged(cell, printed(run)).endswith("✗ off; −0.6 [−1.2, +0.1]")
    cell |= {"short_mean": 40.0, "short_seeds": 2}
    assert ours(cell, printed(run), "short") == "40.00 (2)"
    assert ours(cell | {"short_std": 1.25}, printed(run), "short") == "40.00 ± 1.25 (2)"
    assert judged(comparison().to_dict("records")[0], printed(run)) == "74.5 ± 0.5"
    seconds = comparison(metric="seconds", paper_mean=3.0, paper_std=float("nan")).to_dict("records")[0]
    assert judged(seconds, printed(comparison())) == "3.0 s"


def test_a_table_is_folded_where_nothing_was_run_and_still_has_its_verdicts() -> None:
    table = tables.compared(comparison())
    assert list(table["verdict"]) == ["not run"] * 5
    assert repr(table) == "5 of 5 cells not run"
    assert table._repr_html_().startswith("<details><summary>not run at paper scale: 5 cells")
    run = comparison()
    for name, value in (("recorded_mean", 74.0), ("recorded_seeds", 1), ("verdict", "reproduced")):
        run[name] = [value, *run[name][1:]]
    shown = tables.compared(run)
    assert "<details>" not in shown._repr_html_()
    assert '<td class="good">74.5 ± 0.5 | 74.0 (1)\n✓ reproduced</td>' in shown._repr_html_()
    assert "✓ reproduced" in shown._repr_html_().split("</table>")[1]  # the legend
    assert "4 of 5 cells not run" in repr(shown)
    assert shown.grid.loc[("Step", "FedAvg"), "B"] == "74.5 ± 0.5"


def test_smoke_is_folded_where_something_larger_was_recorded() -> None:
    both = comparison(smoke_mean=12.0, smoke_seeds=1, short_mean=40.0, short_seeds=2)
    assert "<summary>smoke scale, no reproduction" in tables.compared(both)._repr_html_()
    alone = comparison(smoke_mean=12.0, smoke_seeds=1)
    assert "<summary>smoke scale" not in tables.compared(alone)._repr_html_()


@pytest.mark.parametrize(
    ("item", "read", "unread"),
    [
        (
            "figure5_local_decay",
            {"client_lr_decay", "extra_layers"},
            {"samples", "norm", "swa_start", "proximal_mu"},
        ),
        ("table7_stragglers", {"proximal_mu", "samples", "norm"}, {"server_momentum", "partition_alpha", "turns"}),
        ("figure1_simplex", {"turns", "hidden", "posterior", "samples"}, {"major_classes", "public_images"}),
    ],
)
def test_settings_show_what_the_item_reads(item: str, read: set[str], unread: set[str]) -> None:
    cells = PAPER.cells(item, "paper")
    found = tables.settings(PAPER.sources(item), PAPER.cells(item, "smoke"), "smoke", cells)
    used = set(found.index[found["stage"] != UNREAD])
    assert read <= used
    assert unread <= set(found.index) - used
    html = found._repr_html_()
    first, folded = html.split("<details>")
    assert all(f">{name}</th>" in first for name in read)
    assert not any(f">{name}</th>" in first for name in unread)
    assert all(f">{name}</th>" in folded for name in read | unread)
    order = [*ORDER, BESIDE]
    stages = [order.index(stage) for stage in found["stage"] if stage != UNREAD]
    assert stages == sorted(stages)
    for _, lines in found.groupby("stage"):
        assumed = list(lines["known how"].str.contains("assumed"))
        assert assumed == sorted(assumed, reverse=True)


def test_a_selection_of_settings_is_a_table_with_named_columns_to_the_left() -> None:
    cells = PAPER.cells("table8_dirichlet", "paper")
    found = tables.settings(PAPER.sources("table8_dirichlet"), cells, "short", cells).loc[["posterior", "rounds"]]
    assert list(found.index) == ["posterior", "rounds"]
    html = found._repr_html_()
    assert '<th scope="col">setting</th><th scope="col">stage</th>' in html.replace("\n", "")
    assert "<td></td>" not in html.split("</thead>")[0]
    assert "text-align: left" in html
    assert all(found.columns)


def test_groups_follow_who_reads() -> None:
    fedbe = next(
        cell.setting for cell in PAPER.cells("table1_methods", "paper") if cell.labels["method"] == "FedBE"
    )
    found = reads(fedbe)
    assert (found["swa_start"], found["client_lr"], found["samples"]) == (
        "distillation",
        "clients' training",
        "teachers",
    )
    assert (found["clients"], found["bn_buffers"]) == ("partition", "server")
    assert "groups" not in reads(fedbe.with_(model="resnet20"))
    assert "groups" in reads(fedbe.with_(model="resnet20", norm="group"))
    assert "partition_alpha" in reads(fedbe.with_(partition="dirichlet"))
    assert "partition_alpha" not in found


def test_the_comparison_of_today_can_be_shown() -> None:
    for item in ("text_numbers", "figure2_depth", "table1_methods"):
        assert tables.compared(verdict.comparison(PAPER, item, []))._repr_html_() or item == "figure2_depth"


def test_measurements_are_read_to_the_digits_that_count() -> None:
    found = tables.measured(pd.DataFrame({"name": ["a", "b"], "value": [2426.052576, 0.7277789], "n": [3, 12345]}))
    assert found.to_numpy().tolist() == [["a", "2,426", 3], ["b", "0.7278", 12345]]
    assert "<th scope" in found._repr_html_()
    empty = tables.measured(pd.DataFrame({"model": []}))
    assert (repr(empty), empty._repr_html_()) == ("none", "<p>none</p>")


def test_points_carry_the_numbers_of_their_seeds() -> None:
    cells = comparison(short_mean=40.0, short_seeds=2)
    lines = [("Step/FedAvg", "A", 0, 39.0), ("Step/FedAvg", "A", 1, 41.0), ("Step/FedBE", "B", 0, 40.0)]
    frame = pd.DataFrame(lines, columns=["row", "column", "seed", "result"]).assign(precision="float32")
    frame.loc[2, "precision"] = "bfloat16"
    made = {"short": frame}
    found = tables.seeded(tables.points(cells), made).set_index(["source", "row", "column"])["by_seed"]
    assert found["recorded (short)", "Step/FedAvg", "A"] == {0: 39.0, 1: 41.0}
    assert found["recorded (short)", "Step/FedBE", "B"] == {"0 bfloat16": 40.0}
    assert found["paper", "Step/FedAvg", "A"] is None


def test_sentences_stack_on_a_phone_and_words_are_explained_where_they_occur() -> None:
    numbers, sentences = (
        Lines({"a": ["1"]}),
        Lines({"a": ["a sentence of more characters than fit beside others on a phone"]}),
    )
    assert 'class="long"' in numbers._repr_html_()
    assert "data-label" not in numbers._repr_html_()
    assert 'class="long stacked"' in sentences._repr_html_()
    assert '<td data-label="a">' in sentences._repr_html_()
    claimed = Claimed({"text": ["A is above B."], "paper": ["partly run"], "short": ["holds"]})._repr_html_()
    assert "partly run: some of the cells" in claimed
    assert "number lost" not in claimed


def test_the_settings_as_text_have_no_padding() -> None:
    cells = PAPER.cells("paper_vs_code", "smoke")
    shown = tables.settings(PAPER.sources("paper_vs_code"), cells, "smoke")
    head, *lines = repr(shown).splitlines()
    assert head == "setting | stage | paper | smoke scale | known how | where, or why"
    assert len(lines) == (shown["stage"] != UNREAD).sum()
    assert "   " not in repr(shown)  # an empty value stands between two bars and two blanks
    assert len(repr(shown)) < len(shown._repr_html_())
