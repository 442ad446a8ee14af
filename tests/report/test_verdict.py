"""Judging: gaps worked out by hand, every verdict, and what a comparison takes from which records."""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

from fedrepro import papers
from fedrepro.core.metrics import packed
from fedrepro.papers import Paper
from fedrepro.papers.gap import quantile
from fedrepro.report.found import item_names
from fedrepro.report.verdict import (
    COLUMNS,
    claims,
    comparison,
    contrasts,
    records,
    values,
)
from fedrepro.runs import record

NAN = math.nan
MARGIN = "margin 1 (no claim says more)"
CELL = ["item", "row", "column"]
Lines = list[dict[str, Any]]
Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write a file of records; each line may leave out what does not matter."""

    def write(lines: Lines, item: str = "t", scale: str = "paper", folder: str = "figures") -> Path:
        defaults = {
            "row": "A",
            "column": "x",
            "seed": 0,
            "setting_key": "k",
            "date": "2026-01-02",
            "commit": "c",
        }
        place = tmp_path / folder / "fedbe" / item
        place.mkdir(parents=True, exist_ok=True)
        table = pd.DataFrame([defaults | {"scale": scale} | line for line in lines])
        columns = [*record.RUN_COLUMNS, *({"censored"} & set(table))]
        table.reindex(columns=columns).to_csv(place / f"{scale}.csv", index=False)
        return tmp_path / folder

    return write


def paper_with(*lines: dict[str, Any]) -> Paper:
    """Return a paper that prints these numbers; A at x is 70 ± 4 of four runs unless a line says otherwise."""
    defaults: dict[str, Any] = {
        "item": "t",
        "source": "Table 1",
        "row": "A",
        "column": "x",
        "metric": "test_acc_pct",
    }
    defaults |= {"mean": 70.0, "std": 4.0, "runs": 4.0, "status": "ok", "note": None}
    return replace(papers.load("fedbe"), reported=pd.DataFrame([defaults | line for line in lines]))


def results(*numbers: float, **facts: Any) -> Lines:
    return [{"seed": seed, "result": number} | facts for seed, number in enumerate(numbers)]


def only(table: pd.DataFrame) -> pd.Series:
    assert len(table) == 1
    return table.iloc[0]


def cell(table: pd.DataFrame, row: str, column: str) -> pd.Series:
    return only(table[table["row"].eq(row) & table["column"].eq(column)])


class TestReported:
    def test_sources_that_agree_are_one_cell(self, tmp_path: Path) -> None:
        damaged = {"status": "repaired", "note": "damaged"}
        line = only(comparison(paper_with(damaged, {"source": "Table A"}), "t", [tmp_path]))
        assert list(line.index) == COLUMNS
        assert (line.paper_mean, line.paper_std, line.paper_runs) == (70.0, 4.0, 4.0)
        assert (line.source, line.status, line.note) == ("Table 1; Table A", "ok", "damaged")
        assert line.verdict == "not run"

    def test_sources_that_differ_are_a_contradiction(self, write: Write) -> None:
        paper = paper_with({}, {"source": "Table A", "mean": 71.0})
        line = only(comparison(paper, "t", [write(results(70.0))]))
        assert (line.verdict, line.paper_mean) == ("paper contradicts itself", 70.0)
        assert line.note == "Table 1 prints 70.0 ± 4.0; Table A prints 71.0 ± 4.0"

    def test_a_source_that_rounds_is_none_that_differs(self, write: Write) -> None:
        further = {"row": "B", "mean": 60.1}  # Table 1 prints tenths
        paper = paper_with({"mean": 70.0, "std": 4.0}, {"source": "Table A", "mean": 70.04, "std": 3.96}, further)
        assert cell(comparison(paper, "t", [write(results(70.0))]), "A", "x").status == "ok"
        paper = paper_with({"mean": 70.0}, {"source": "Table A", "mean": 70.4}, further)
        assert cell(comparison(paper, "t", []), "A", "x").verdict == "paper contradicts itself"

    def test_one_doubtful_source_is_enough(self, tmp_path: Path) -> None:
        paper = paper_with({"source": "Table A"}, {"status": "contradiction", "note": "the text says 60"})
        assert only(comparison(paper, "t", [tmp_path])).verdict == "paper contradicts itself"

    def test_a_source_can_give_what_another_lost(self, tmp_path: Path) -> None:
        lost = {"mean": NAN, "std": NAN, "runs": NAN, "status": "lost", "note": "overprinted"}
        line = only(comparison(paper_with(lost, {"source": "Table A"}), "t", [tmp_path]))
        assert (line.verdict, line.paper_mean) == ("not run", 70.0)
        assert only(comparison(paper_with(lost), "t", [tmp_path])).verdict == "number lost"

    def test_every_number_of_fedbe_has_its_line(self, tmp_path: Path) -> None:
        paper = papers.load("fedbe")
        found = [
            (item, line.row, line.column)
            for item in item_names(paper)
            for line in comparison(paper, item, [tmp_path]).itertuples()
        ]
        assert sorted(found) == sorted(set(map(tuple, paper.reported[CELL].values.tolist())))


class TestComparison:
    def test_a_judged_cell(self, write: Write) -> None:
        line = only(comparison(paper_with({}), "fedbe/t", [write(results(77.0, 83.0))]))
        assert (line.recorded_mean, line.recorded_seeds, line.verdict) == (80.0, 2, "cannot tell")
        assert line.recorded_std == pytest.approx(math.sqrt(18))
        # 18 / 2 + 16 / 4 + 1 / 12 (the paper prints whole points): u = 3.617; shares 9 / 13 and 4 / 13 of 1 and 3
        # degrees of freedom: 1 / (9 / 13 + 4 / 39) = 1.258.
        half = 3.617 * float(quantile(0.95, 1.258))
        assert line.gap_points == pytest.approx(10.0)
        assert (line.gap_low, line.gap_high) == (
            pytest.approx(10 - half, rel=1e-2),
            pytest.approx(10 + half, rel=1e-2),
        )
        assert (line.margin, line.margin_reason) == (1.0, "no claim says more")
        # Seen outside the margin, so planned to be told apart: a gap of 10 is found in 80 % of cases with 7 seeds
        # (u = 2.580, 3.73 degrees of freedom), in 77 % with 6.
        assert line.more_seeds == 5
        assert line.note == "margin 1 (no claim says more)"

    def test_cells_of_the_same_runs_have_one_verdict(self, write: Write) -> None:
        # FedBE + FedProx with the ConvNet stands in Tables 4 and 7; Table 4 is the first that prints it.
        fedbe, row = papers.load("fedbe"), {"row": "Step/FedBE + FedProx", "column": "ConvNet"}
        printed = fedbe.reported.copy()
        printed.loc[printed["row"].str.endswith("FedBE + FedProx"), "status"] = "ok"
        paper = replace(fedbe, reported=printed)
        key = fedbe.keys["table4_momentum", row["row"], "ConvNet"]
        folder = write(results(74.8, 75.0, 74.9, setting_key=key, **row), item="table4_momentum")
        names = {"table4_momentum": row["row"], "table7_stragglers": "Normal/FedBE + FedProx"}
        found = [cell(comparison(paper, item, [folder]), name, "ConvNet") for item, name in names.items()]
        assert [line.recorded_seeds for line in found] == [3, 3]
        assert [line.verdict for line in found] == ["reproduced", "reproduced"]
        assert "the same runs as table4_momentum, Step/FedBE + FedProx, ConvNet" in found[1].note
        assert [line.judged_at for line in found] == ["", "table4_momentum, Step/FedBE + FedProx, ConvNet"]
        doubted = printed.copy()
        doubted.loc[doubted["item"] == "table7_stragglers", "status"] = "contradiction"
        for item in ("table4_momentum", "table7_stragglers"):
            table = comparison(replace(fedbe, reported=doubted), item, [folder])
            words = table[table["column"].eq("ConvNet") & table["row"].str.endswith("FedBE + FedProx")]["verdict"]
            assert "paper contradicts itself" in set(words)
            assert "reproduced" not in set(words)

    def test_runs_of_another_setting_are_nobodys_twins(self, write: Write) -> None:
        fedbe, column = papers.load("fedbe"), "ConvNet"
        today = fedbe.keys["table1_methods", "Step/FedBE", column]
        old = results(50.0, 50.1, 50.2, row="FedAvg + clients + samples", column=column, setting_key="old")
        folder = write(old, item="table2_targets")
        assert cell(comparison(fedbe, "table1_methods", [folder]), "Step/FedBE", column).verdict == "not run"
        write(results(74.5, row="Step/FedBE", column=column, setting_key=today), item="table1_methods")
        line = cell(comparison(fedbe, "table1_methods", [folder]), "Step/FedBE", column)
        assert (line.recorded_mean, line.recorded_seeds) == (74.5, 1)
        # Where the table's own records are of an older setting, today's single seed comes before its three.
        assert cell(comparison(fedbe, "table2_targets", [folder]), old[0]["row"], column).recorded_mean == 74.5

    def test_a_twin_of_a_tuned_cell_is_tuned(self, write: Write) -> None:
        paper = replace(papers.load("fedbe"), judging={"table2_targets": {"tuned": "why"}})
        facts = {"row": "Step/FedBE", "column": "ConvNet"}
        key = paper.keys["table1_methods", facts["row"], facts["column"]]
        folder = write(results(74.5, 74.6, setting_key=key, **facts), item="table1_methods")
        assert cell(comparison(paper, "table1_methods", [folder]), **facts).verdict == "tuned"

    def test_a_spread_of_accuracies_is_none_of_rounds(self, write: Write) -> None:
        facts = {"std": NAN, "runs": NAN, "mean": 350.0, "metric": "rounds_to_target"}
        paper = replace(paper_with(facts), judging={})
        folder = write(results(352.0))
        write(results(60.0, 60.2, 60.1, 60.0, row="other", setting_key="o"), item="table1_methods")
        assert only(comparison(paper, "t", [folder])).prior == "none: one seed, and no spread is known"  # too few
        write(results(60.0, 60.2, 60.1, 60.0, 60.1, row="other", setting_key="o"), item="table1_methods")
        line = only(comparison(paper, "t", [folder]))
        assert (line.verdict, line.prior) == ("cannot tell", "none: one seed, and no spread is known")

    def test_numbers_that_differ_from_table_to_table_are_a_contradiction(self, write: Write) -> None:
        fedbe = papers.load("fedbe")
        printed = fedbe.reported.copy()
        printed.loc[printed["item"].eq("table7_stragglers") & printed["row"].eq("Normal/FedAvg"), "mean"] += 1
        table = comparison(replace(fedbe, reported=printed), "table1_methods", [])
        assert cell(table, "Step/FedAvg", "ConvNet").verdict == "paper contradicts itself"
        assert cell(table, "Step/FedBE", "ConvNet").verdict == "not run"

    def test_one_seed_borrows_the_spread_of_other_cells(self, write: Write) -> None:
        paper = replace(paper_with({"std": NAN, "runs": NAN}), judging={})
        folder = write(results(70.0))
        assert only(comparison(paper, "t", [folder])).verdict == "cannot tell"
        write(results(60.0, 60.2, 60.1, 60.0, row="other", setting_key="o"), item="table1_methods")
        assert only(comparison(paper, "t", [folder])).prior == "none: one seed, and no spread is known"  # too few
        write(results(60.0, 60.2, 60.1, 60.0, 60.1, row="other", setting_key="o"), item="table1_methods")
        line = only(comparison(paper, "t", [folder]))
        whose = "our seeds of 1 other cell"
        assert (line.verdict, line.prior) == ("reproduced", f"ours: {whose}; the paper's: {whose}")

    def test_one_seed_borrows_from_its_own_method_or_else_from_the_paper(self, write: Write) -> None:
        fedbe, column = papers.load("fedbe"), "ConvNet"
        apart = {
            "table1_methods": ("Step/FedAvg", (58.0, 60.0, 62.0)),
            "table7_stragglers": ("Stragglers/FedBE", (50.0, 70.0)),
        }
        for item, (row, seeds) in apart.items():
            write(results(*seeds, row=row, column=column, setting_key=fedbe.keys[item, row, column]), item=item)
        for item, row, whose in (
            ("table5_cifar100", "Step/FedAvg", "our seeds of 1 other cell of the same method"),
            ("table4_momentum", "Step/FedBE + FedAvgM", "the paper's runs"),
        ):
            key = fedbe.keys[item, row, column]
            folder = write(results(60.0, row=row, column=column, setting_key=key), item=item)
            assert cell(comparison(fedbe, item, [folder]), row, column).prior == f"ours: {whose}"

    def test_the_toy_was_tuned_to_the_paper(self, write: Write) -> None:
        folder = write(results(64.0, 64.1, row="FedAvg", column="Swiss roll"), item="figure1_simplex")
        line = cell(comparison(papers.load("fedbe"), "figure1_simplex", [folder]), "FedAvg", "Swiss roll")
        assert line.verdict == "tuned"
        assert line.note.startswith("tuned: noise and turns of the roll")

    def test_the_noise_floor_of_a_test_set(self, write: Write) -> None:
        folder = write(results(50.0, 75.0))
        table = pd.DataFrame({"row": "A", "column": "x", "seed": [0, 1], "images": 4, "precision": "float32"})
        # Hits 1100 and 1101: p = 1, 1, 0, 1/2; unbiased 2 p (1 - p) = 1/2 of the last: 100 sqrt(1/2) / 4.
        table["hits"] = [packed(torch.tensor(bits, dtype=torch.bool)) for bits in ((1, 1, 0, 0), (1, 1, 0, 1))]
        table.reindex(columns=record.HIT_COLUMNS).to_csv(folder / "fedbe" / "t" / "paper_hits.csv", index=False)
        assert only(comparison(paper_with({}), "t", [folder])).noise_floor == pytest.approx(17.678, abs=1e-3)

    def test_smaller_scales_are_shown_and_not_judged(self, write: Write) -> None:
        write(results(70.0, 70.2), scale="short")
        line = only(comparison(paper_with({}), "t", [write(results(70.0), scale="smoke")]))
        assert (line.short_mean, line.short_seeds) == (pytest.approx(70.1), 2)
        assert line.short_std == pytest.approx(0.02**0.5)
        assert (line.smoke_mean, line.smoke_seeds) == (70.0, 1)
        assert (line.verdict, line.recorded_seeds) == ("not run", 0)
        assert line[["recorded_mean", "recorded_std", "gap_points", "gap_low", "e_n"]].isna().all()

    def test_later_folders_win_seed_by_seed(self, write: Write) -> None:
        old, new = write(results(60.0, 62.0), folder="old"), write(results(70.0), folder="new")
        assert only(comparison(paper_with({}), "t", [old, new])).recorded_mean == 66.0
        assert only(comparison(paper_with({}), "t", [new, old])).recorded_mean == 61.0

    def test_of_several_settings_that_with_most_seeds(self, write: Write) -> None:
        other = [{"seed": 7, "result": 10.0, "setting_key": "other", "date": "2026-05-05"}]
        line = only(comparison(paper_with({}), "t", [write(results(60.0, 62.0) + other)]))
        assert (line.recorded_mean, line.recorded_seeds) == (61.0, 2)
        assert line.note == f"{MARGIN}; paper scale has records of 2 settings, used is k (2 seeds)"

    def test_another_setting_in_a_later_folder_takes_no_seed_away(self, write: Write) -> None:
        earlier = write(results(60.0, 61.0, 62.0), folder="figures")
        later = write([{"seed": 0, "result": 10.0, "setting_key": "other"}], folder="results")
        line = only(comparison(paper_with({}), "t", [earlier, later]))
        assert (line.recorded_mean, line.recorded_seeds) == (61.0, 3)

    def test_of_settings_with_as_many_seeds_the_newest(self, write: Write) -> None:
        other = [{"seed": 7, "result": 10.0, "setting_key": "a", "date": "2026-05-05"}]
        line = only(comparison(paper_with({"note": "first"}), "t", [write(results(60.0) + other)]))
        assert line.recorded_mean == 10.0
        borrowed = "spread borrowed (ours: the paper's runs)"
        assert line.note == (
            f"first; {MARGIN}; {borrowed}; paper scale has records of 2 settings, used is a (1 seed)"
        )

    def test_one_seed_where_no_spread_is_known(self, write: Write) -> None:
        paper = paper_with({"std": float("nan"), "runs": float("nan")})
        line = only(comparison(paper, "t", [write(results(60.0))]))
        assert line.verdict == "cannot tell"
        assert line.note.endswith("; no spread (one seed, and no spread is known)")

    def test_of_precisions_with_as_many_seeds_float32(self, write: Write) -> None:
        full = results(60.0, precision="float32")
        half = results(10.0, precision="bfloat16", date="2026-05-05")
        line = only(comparison(paper_with({}), "t", [write(full + half)]))
        assert line.recorded_mean == 60.0
        half += [{**half[0], "seed": 1, "result": 20.0}]
        line = only(comparison(paper_with({}), "t", [write(full + half)]))
        assert (line.recorded_mean, line.recorded_seeds) == (15.0, 2)

    def test_another_precision_in_a_later_folder_takes_no_seed_away(self, write: Write) -> None:
        earlier = write(results(60.0, 61.0, precision="float32"), folder="figures")
        later = write(results(10.0, precision="bfloat16"), folder="results")
        line = only(comparison(paper_with({}), "t", [earlier, later]))
        assert (line.recorded_mean, line.recorded_seeds) == (60.5, 2)

    def test_cells_beyond_the_papers_come_last_and_are_not_judged(self, write: Write) -> None:
        lines = results(50.0, row="B", column="y") + results(70.0)
        table = comparison(paper_with({}), "t", [write(lines)])
        assert list(zip(table["row"], table["column"])) == [("A", "x"), ("B", "y")]
        assert list(table["verdict"]) == ["cannot tell", "not reported"]
        assert (table["recorded_mean"].iloc[1], table["status"].iloc[1]) == (50.0, "not reported")

    def test_times_are_shown_and_never_judged(self, write: Write) -> None:
        paper = paper_with({"metric": "seconds", "mean": 70.0, "std": NAN, "runs": NAN})
        line = only(comparison(paper, "t", [write(results(70.0))]))
        assert (line.verdict, line.recorded_mean) == ("not judged", 70.0)
        assert line[["gap_points", "gap_low", "e_n"]].isna().all()
        assert line.note == "no accuracy but seconds: never judged"
        assert only(comparison(paper, "t", [])).verdict == "not run"

    def test_rounds_are_judged_by_a_rule_of_their_own(self, write: Write) -> None:
        paper = paper_with({"metric": "rounds_to_target", "mean": 100.0, "std": NAN, "runs": NAN})
        line = only(comparison(paper, "t", [write(results(104.0, 104.0))]))
        assert (line.verdict, line.gap_points) == ("reproduced, with a difference", 4.0)
        assert line.note.endswith("; spread borrowed (the paper's: these seeds)")
        assert (line.margin, line.margin_reason) == (10.0, "10 % of the number: no claim says more")

    def test_labels_that_look_like_numbers(self, write: Write) -> None:
        folder = write(results(70.0, row="1", column="10"))
        assert only(comparison(paper_with({"row": "1", "column": "10"}), "t", [folder])).recorded_seeds == 1

    def test_unknown_item(self) -> None:
        with pytest.raises(ValueError, match="table1_methods"):
            comparison(papers.load("fedbe"), "table1_method", [])


def test_records_of_nothing_have_the_columns(tmp_path: Path) -> None:
    table = records(papers.load("fedbe"), "table1_methods", "paper", [tmp_path])
    assert list(table.columns) == [*record.RUN_COLUMNS, "settings"]
    assert table.empty


def test_a_cell_that_is_a_gain(write: Write) -> None:
    item, column = "text_numbers", "ConvNet"
    # Seed 0 gains 71 - 70, seed 1 74 - 71; seed 2 has no counterpart.
    write(results(70.0, 71.0, row="Step/FedAvg", column=column), item="table1_methods")
    folder = write(results(71.0, 74.0, 80.0, row="Step/FedAvg, 100 rounds", column=column), item=item)
    fedbe = papers.load("fedbe")
    line = only(comparison(fedbe, item, [folder]).query("row == 'FedAvg, 100 rounds instead of 40'"))
    assert (line.paper_mean, line.recorded_mean, line.recorded_seeds) == (0.7, 2.0, 2)
    # Variance 2 of 1 and 3, for the paper's one number as well: sqrt(2 + 2 / 2 + 0.01 / 12), t(0.95, 1) = 6.314.
    assert line.gap_points == pytest.approx(1.3)
    assert line.gap_high == pytest.approx(1.3 + 6.314 * 3.000833**0.5, rel=1e-3)
    assert (line.verdict, line.margin) == ("cannot tell", 0.35)
    made = records(fedbe, item, "paper", [folder]).query("row == 'FedAvg, 100 rounds instead of 40'")
    assert made["seed"].tolist() == [0, 1]
    assert claims(fedbe, [folder]).set_index("id").loc["forty-rounds-are-enough", "paper scale"] == ("cannot tell")


@pytest.fixture
def targets() -> Paper:
    """Return a paper that prints 20 ± 2 rounds."""
    return paper_with({"metric": "rounds_to_target", "mean": 20.0, "std": 2.0, "runs": 3.0})


class TestCensored:
    def test_a_cell_with_seeds_that_did_not_reach_the_target(self, write: Write, targets: Paper) -> None:
        lines = results(18.0, 40.0, 30.0)
        folder = write([line | {"censored": missed} for line, missed in zip(lines, (0, 1, 1))])
        line = only(comparison(targets, "t", [folder]))
        assert (line.verdict, line.recorded_seeds) == ("censored", 3)
        assert line.note == "paper scale: 2 of 3 seeds did not reach the target within 30, 40 rounds"
        assert line[["recorded_mean", "recorded_std", "gap_points", "gap_low", "e_n"]].isna().all()

    def test_all_of_them_far_above_the_paper(self, write: Write, targets: Paper) -> None:
        line = only(comparison(targets, "t", [write(results(40.0, 40.0, censored=1))]))
        assert (line.verdict, math.isnan(line.recorded_mean)) == ("off", True)
        assert line.note.endswith("; paper scale: 2 of 2 seeds did not reach the target within 40 rounds")

    def test_a_smaller_scale_says_it_too(self, write: Write, targets: Paper) -> None:
        line = only(comparison(targets, "t", [write(results(2.0, censored=1), scale="smoke")]))
        assert (line.verdict, line.smoke_seeds, math.isnan(line.smoke_mean)) == ("not run", 1, True)
        assert line.note == "smoke scale: 1 of 1 seed did not reach the target within 2 rounds"

    @pytest.mark.parametrize("facts", [{"censored": 0}, {"censored": None}, {}])
    def test_none_where_the_record_names_none(self, write: Write, targets: Paper, facts: dict[str, Any]) -> None:
        line = only(comparison(targets, "t", [write(results(20.0, 21.0, **facts))]))
        assert (line.verdict, line.recorded_mean) == ("cannot tell", 20.5)
        assert line.note == "margin 2 (10 % of the number: no claim says more)"

    def test_a_claim_about_it_is_neither_run_nor_not(self, write: Write, targets: Paper) -> None:
        assert math.isnan(values(targets, "paper", [write(results(40.0, censored=1))])["t", "A", "x"])
        toy, names = "figure1_simplex", ("Ensemble of 10 Dirichlet samples", "FedAvg")
        lines = [results(n, row=row, column="Swiss roll") for n, row in zip((60.0, 65.0), names)]
        lines[0][0]["censored"] = 1
        table = claims(papers.load("fedbe"), [write(lines[0] + lines[1], item=toy)]).set_index("id")
        claim = table.loc["toy-ensemble-above-fedavg"]
        assert claim["paper scale"] == "censored"
        assert claim["paper scale: detail"] == (
            "no mean, as targets were not reached: figure1_simplex, Ensemble of 10 Dirichlet samples, Swiss roll"
        )

    def test_a_bound_has_no_share_above_zero_and_hides_no_failure(self, write: Write) -> None:
        lines = [
            line
            for target, ours, theirs in (("ConvNet", 50.0, 40.0), ("ResNet-20", 50.0, 60.0))
            for row, number in (("Step/FedBE", ours), ("Step/FedAvg", theirs))
            for line in results(number, number + 0.1, row=row, column=target, censored=int(number == 40.0))
        ]
        folder = write(lines, item="table1_methods")
        table = contrasts(papers.load("fedbe"), "paper", [folder], "table1_methods").query(
            "claim == 'above-fedavg'"
        )
        assert table[["mean", "share", "share_low"]].isna().sum(axis=1).tolist() == [3, 0]
        assert table["share"].tolist()[1] == 0.0
        claim = claims(papers.load("fedbe"), [folder], "table1_methods").set_index("id").loc["above-fedavg"]
        assert claim["paper scale"] == "fails"
        assert "least Step, ResNet-20: -10.00" in claim["paper scale: detail"]


def test_claims_of_one_item_are_those_among_all(write: Write) -> None:
    fedbe, folder = (
        papers.load("fedbe"),
        write(results(70.0, 71.0, row="Step/FedAvg", column="ConvNet"), item="table1_methods"),
    )
    every = claims(fedbe, [folder])
    for item in ("table1_methods", "text_numbers", "figure8_confidence"):
        mine = claims(fedbe, [folder], item)
        assert len(mine) > 0
        pd.testing.assert_frame_equal(mine, every[every["item"] == item].reset_index(drop=True))


def test_values(write: Write) -> None:
    lost = {"row": "B", "mean": NAN, "std": NAN, "runs": NAN, "status": "lost"}
    paper = paper_with({}, {"source": "Table A"}, lost)
    write(results(1.0), scale="smoke")
    folder = write(results(60.0, 62.0) + results(50.0, row="C"))
    assert values(paper, "reported", [folder]) == {("t", "A", "x"): 70.0}
    assert values(paper, "paper", iter([folder])) == {("t", "A", "x"): 61.0, ("t", "C", "x"): 50.0}
    assert values(paper, "smoke", [folder]) == {("t", "A", "x"): 1.0}
    assert values(paper, "short", [folder]) == {}


def test_claims(write: Write) -> None:
    paper, toy = papers.load("fedbe"), "figure1_simplex"
    names = ("Ensemble of 10 Dirichlet samples", "FedAvg")
    for scale, numbers in (("paper", (60.0, 65.0)), ("smoke", (65.0, 60.0))):
        lines = [
            results(*(n + shift for shift in (0.0, 9.0, 4.0)), row=name, column="Swiss roll")
            for n, name in zip(numbers, names)
        ]
        folder = write(lines[0] + lines[1], item=toy, scale=scale)
    table = claims(paper, [folder]).set_index("id")
    claim = table.loc["toy-ensemble-above-fedavg"]
    assert (claim["paper's own numbers"], claim["paper scale"]) == ("holds", "fails")
    assert (claim["short"], claim["smoke"]) == ("not run", "holds")
    assert claim["paper scale: detail"] == (
        "0 of 1 above zero; least -5.00 [-5.01, -4.99] over 3 seeds, P(above) 0.00 [0.00, 0.44]"
    )
    assert (claim["item"], claim["text"] != "", claim["place"] != "") == (toy, True, True)
    assert set(table.loc["sgd-more-sensitive-to-noisy-labels"][["paper scale", "smoke"]]) == {"to be seen"}
    assert table.loc["gain-grows-with-depth", "paper's own numbers"] == "fails"


def test_a_paper_without_claims() -> None:
    table = claims(replace(papers.load("fedbe"), name="none", claims=()), [])
    assert table.empty
    assert "paper scale: detail" in table.columns


def test_a_gain_over_a_damaged_item_is_not_known(write: Write) -> None:
    item, column = "text_numbers", "ConvNet"
    write(results(70.0, 71.0, row="Step/FedAvg", column=column), item="table1_methods")
    folder = write(results(71.0, 74.0, row="Step/FedAvg, 100 rounds", column=column), item=item)
    (folder / "fedbe" / "table1_methods" / "paper.csv").write_text("<<<<<<< HEAD\n")
    made = records(papers.load("fedbe"), item, "paper", [folder])
    assert set(made["row"]) == {"Step/FedAvg, 100 rounds"}
