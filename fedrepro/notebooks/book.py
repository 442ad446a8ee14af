"""What a paper notebook works with: one item at one scale, from its settings to its verdict.

A notebook holds choices, prose and pictures; every loop is here or below.
"""

import os
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from fedrepro import papers
from fedrepro.bench.seconds import BUILD, posterior_seconds, recorded_seconds
from fedrepro.core import paths
from fedrepro.core.csvs import read_table
from fedrepro.core.rng import Streams
from fedrepro.core.setting import Setting
from fedrepro.core.state import State
from fedrepro.data.partition import class_counts
from fedrepro.federation.assemble import assemble
from fedrepro.federation.federation import Federation
from fedrepro.methods import catalogue as methods
from fedrepro.methods.compose import Method
from fedrepro.notebooks import given, tables
from fedrepro.notebooks.lines import Claimed, Settings
from fedrepro.papers import Cell
from fedrepro.report import verdict
from fedrepro.runs import record
from fedrepro.runs.machine import provenance
from fedrepro.runs.play import play_all
from fedrepro.runs.request import Outcome, Run, merged
from fedrepro.runs.store import Store
from fedrepro.stages.combine import combination
from fedrepro.stages.plan import sample
from fedrepro.stages.round import Participants, Round


class Book:
    """An item of a paper at a scale, opened in a notebook.

    Args:
        item: such as "fedbe/table1_methods".
        scale: "smoke", "short" or "paper".
        seeds: seeds 0..seeds-1 are run.
        device: "auto", "cpu" or "cuda".
        out: folder for figures; empty for `results/figures`.

    Raises:
        ValueError: for an unknown item, scale or device, no seeds, or what is no folder.
    """

    def __init__(self, item: str, *, scale: str, seeds: int, device: str = "auto", out: str = "") -> None:
        given.check(scale, seeds)
        self.item = given.item_of(item)
        pd.set_option("display.max_colwidth", None, "display.max_rows", 100)  # sentences and tables in full
        self.paper = papers.load(self.item.paper)
        self.scale, self.seeds = scale, seeds
        self.device = given.device_of(device)
        self.folder = given.folder_of(out)
        self.cells: list[Cell] = given.in_precision(self.paper.cells(self.item.name, scale))
        self._outcomes: list[tuple[Cell, Outcome]] = []

    def settings(self) -> Settings:
        """Return every value with its source, and how this scale departs from it; shown is what the item reads."""
        full = self.paper.cells(self.item.name, "paper")
        return tables.settings(self.paper.sources(self.item.name), self.cells, self.scale, full)

    def presets(self) -> pd.DataFrame:
        """Return the named differences between the paper and its released code, and the settings of each."""
        return tables.presets(self.paper.presets.values())

    def setting(self, *labels: str) -> Setting:
        """Return the setting of the first cell that has all the labels, such as "Step", "FedBE", "ResNet-20"."""
        return self._setting(self.scale, self.cells, labels)

    def _setting(self, scale: str, cells: Sequence[Cell], labels: Sequence[str]) -> Setting:
        for cell in cells:
            if set(labels) <= set(cell.labels.values()):
                return cell.setting
        raise ValueError(f"no cell of {self.item.key} at scale {scale} has the labels {labels}")

    def federation(self, setting: Setting, seed: int = 0) -> Federation:
        """Build the federation of a setting on this book's device."""
        return assemble(setting, seed, self.device)

    def counts(self, federation: Federation) -> Any:
        """Return how many images of each class each client holds, an int array [S, C]."""
        labels = federation.data.labels.cpu().numpy()
        return class_counts(labels, [p.numpy() for p in federation.parts], federation.data.class_count)

    def method(self, setting: Setting) -> Method:
        """Build the method of a setting."""
        return methods.build(setting)

    def one_round(self, method: Method, federation: Federation, seed: int = 0) -> tuple[State, Round]:
        """Play the first round of a run."""
        return method.round(method.init(federation, seed), federation, Streams(seed, 0))

    def participants(self, setting: Setting, federation: Federation, *, rounds: int) -> list[Participants]:
        """Return who takes part in the first rounds of a run with seed 0; no round is played."""
        method = self.method(setting)
        begun = Round.begin(method.init(federation, 0), federation, combination(setting))
        return [sample(setting)(begun, federation, Streams(0, number)) for number in range(rounds)]

    def stages(self, *labels: str) -> pd.DataFrame:
        """Return the stages of each method of the item, one column per method, for cells with the labels."""
        return tables.stages(cell for cell in self.cells if set(labels) <= set(cell.labels.values()))

    def run(self, progress: bool = True) -> pd.DataFrame:
        """Play all runs of the item, or read those that are done, and return one line per run.

        Runs that diverged are told and have no line: at some settings of a sweep that is the result. Of a notebook
        that `fedrepro reproduce --only` runs, only the cells with those labels are played.

        Raises:
            RuntimeError: if a run failed, with the reasons.
            ValueError: if `progress` is neither true nor false.
        """
        if not isinstance(progress, bool):
            raise ValueError(f"progress must be True or False, got {progress!r}")
        store = Store()
        cells = given.meant(self.item, self.scale, self.cells)
        asked = [(cell, seed) for seed in range(self.seeds) for cell in cells]
        runs = [Run(c.setting, seed, f"{c.row} {c.column}", until=c.reading.until) for c, seed in asked]
        joined = merged(runs)  # cells may share a run
        ended = dict(zip(joined, play_all(joined.values(), store, device=self.device, progress=progress)))
        outcomes = [ended[one.setting, one.seed] for one in runs]
        empty = [(f"{r.label}, seed {r.seed}: {o.error}", o.error) for r, o in zip(runs, outcomes) if not o.record]
        diverged = [line for line, error in empty if error.startswith(("DivergedError", "ArithmeticError"))]
        failed = [line for line, _ in empty if line not in diverged]
        if diverged:
            print("diverged:\n" + "\n".join(diverged))
        if failed or len(empty) == len(runs):
            raise RuntimeError("runs without a result:\n" + "\n".join(failed or diverged))
        self._outcomes = [(cell, outcome) for (cell, _), outcome in zip(asked, outcomes)]
        record.write(self.folder, self.item.key, self.scale, self._found())
        return self.results

    def keep(self, found: pd.DataFrame) -> None:
        """Record numbers that a toy notebook made itself: columns name, seed, accuracy (percent).

        The toy runs at the paper's full scale whatever the book's scale, so its record is one of paper scale.
        """
        values = found.rename(columns={"name": "row", "accuracy": "result"}).assign(column=self.cells[0].column)
        setting = self.paper.cells(self.item.name, "paper")[0].setting
        record.write_values(self.folder, self.item.key, "paper", values, setting, provenance("cpu"))

    def _found(self) -> list[tuple[Cell, str, dict[str, Any]]]:
        return [(c, o.key, o.record) for c, o in self._outcomes if o.record is not None]

    @property
    def results(self) -> pd.DataFrame:
        """One line per run of this session, with the cell's labels as columns."""
        rows = [dict(cell.labels) | record.run_row(cell, self.scale, key, r) for cell, key, r in self._found()]
        return pd.DataFrame(rows)

    @property
    def rounds(self) -> pd.DataFrame:
        """One line per run and round of this session, with the cell's labels as columns."""
        return pd.DataFrame(
            [dict(cell.labels) | row for cell, _, r in self._found() for row in record.round_rows(cell, r)]
        )

    @cached_property
    def folders(self) -> list[Path]:
        """Where records are read from: the repository's, then this session's."""
        return [folder for folder in self._committed if folder != self.folder] + [self.folder]

    @property
    def _committed(self) -> list[Path]:
        """The repository's records; none outside of a checkout, where nothing may pass for recorded."""
        return [paths.recorded_folder()] if paths.checkout() else []

    def comparison(self) -> pd.DataFrame:
        """Return paper, recorded and this session's numbers, one line per cell, as `verdict.comparison` does.

        Outside of a checkout nothing is recorded: this session's numbers are shown as such, and never judged.
        """
        found = verdict.comparison(self.paper, self.item.name, self.folders)
        return found if self._committed else tables.unjudged(found)

    def table(self) -> tables.Compared:
        """Return the comparison for reading, in the paper's layout: its number beside ours, and the verdict."""
        return tables.compared(self.comparison(), recorded=bool(self._committed))

    def points(self, *, best: bool = False) -> pd.DataFrame:
        """Return the comparison for plotting, one line per number.

        With `best`, smoke numbers are left out where there are others: at their height nothing else can be seen.

        Columns row, column, mean, std, runs, source, by_seed (seed -> number, of ours), and the labels of the cell
        with that row and column, if any.
        """
        made = {scale: verdict.records(self.paper, self.item.name, scale, self.folders) for scale in papers.SCALES}
        points = tables.points(self.comparison(), best=best, recorded=bool(self._committed))
        return self._labelled(tables.seeded(points, made))

    def values(self, points: pd.DataFrame, name: str) -> pd.Series:
        """Return for each point the value of a setting at the scale of its source, such as public_images."""
        scales = points["source"].str.extract(r"\((\w+)\)$")[0].fillna("paper")
        cells = {
            (scale, cell.row, cell.column): cell.setting.asdict()[name]
            for scale in papers.SCALES
            for cell in self.paper.cells(self.item.name, scale)
        }
        keys = zip(scales, points["row"], points["column"])
        return pd.Series([cells.get(key) for key in keys], index=points.index)

    def _labelled(self, frame: pd.DataFrame) -> pd.DataFrame:
        return tables.labelled(frame, self.paper.cells(self.item.name, "paper"))

    def claims(self) -> pd.DataFrame:
        """Return what the paper says of this item, and whether its own numbers and the records bear it out.

        `reading` is how we read a sentence that leaves something open. What smoke runs say is left out.
        """
        folders = self.folders if self._committed else []
        table = verdict.claims(self.paper, folders, self.item.name).fillna({"reading": ""})
        shown = ["text", "reading", "place", *(scale for scale in verdict.SCALE_OF if scale != "smoke")]
        return Claimed(table.set_index("id")[shown].rename_axis("claim"))

    def seconds(self, *labels: str) -> pd.DataFrame:
        """Return the seconds that an ensemble adds to a round at paper scale, beside those that the paper prints.

        Drawing the samples is timed here and now; the rest is what `fedrepro bench` recorded on other devices.
        """
        full = self._setting("paper", self.paper.cells(self.item.name, "paper"), labels)
        here = posterior_seconds(full, self.federation(self.setting(*labels)))
        printed = self.paper.reported.query("item == @self.item.name and metric == 'seconds'")
        what = printed["row"].str.partition("/")[2]
        lines = [*zip(what, printed["column"], printed["mean"]), (BUILD, f"here ({self.device})", here)]
        own = recorded_seconds(full, paths.recorded_folder() / "performance" / "throughput.csv")
        found = pd.concat([pd.DataFrame(lines, columns=own.columns), own])
        table = found.pivot(index="what", columns="device", values="seconds")
        return table.reindex(index=found["what"].unique(), columns=found["device"].unique())

    def differences(self, baselines: Mapping[str, str], column: str) -> tuple[str, pd.DataFrame]:
        """Return by how many points rows lie above others, seed by seed, at the largest scale that has been run.

        Args:
            baselines: for each row the row that it is held against, "" for its own accuracy; seeds that only one
                of the two has are left out.
            column: of both.

        Returns:
            The scale, and columns name (the row), seed, accuracy (the difference, in points).

        Raises:
            ValueError: if no row has been run beside its baseline.
        """
        for scale in reversed(papers.SCALES):
            made = verdict.records(self.paper, self.item.name, scale, self.folders)
            found = tables.above(made, baselines, column)
            if len(found):
                return scale, found
        raise ValueError(f"nothing of {self.item.key} in {column!r} has been run beside its baseline")

    def stored(self, name: str) -> pd.DataFrame:
        """Return the committed csv behind a figure of this item, such as "figure8_confidence_paper".

        Raises:
            FileNotFoundError: if there is none, or the package does not run from a checkout.
        """
        return read_table(paths.recorded_folder() / self.item.key / f"{name}.csv")

    def reference(self, item: str, rows: dict[str, str], columns: list[str]) -> dict[str, dict[str, float]]:
        """Return the paper's numbers of another item, {name: {column: mean}} for {name: row}, to plot beside."""
        found = self.paper.reported.query("item == @item").drop_duplicates(["row", "column"])
        means = found.set_index(["row", "column"])["mean"]
        return {name: {column: float(means[row, column]) for column in columns} for name, row in rows.items()}

    def shapes(self, state: State, trace: Round, federation: Federation) -> pd.DataFrame:
        """Return what each stage of a round handed on, and its shape."""
        return tables.shapes(state, trace, federation)

    def recorded(self, scale: str, *, rounds: bool = False) -> pd.DataFrame:
        """Return the committed records of this item at a scale, with the cells' labels as columns.

        Of a cell recorded in several precisions only the one with the most seeds is taken. Outside of a checkout
        nothing is recorded.
        """
        folder = self._committed[0] if self._committed else Path(os.devnull)
        committed = record.in_one_precision(record.read(folder, self.item.key, scale, rounds=rounds))
        if rounds:
            committed = committed.dropna(subset=["accuracy"])
        return self._labelled(committed)

    def save(self, figure: Any, *, data: pd.DataFrame, alt: str, name: str | None = None) -> list[str]:
        """Save a figure with its data and its description; returns the names of the files.

        Scales never overwrite each other's figures, and a picture of smaller scales only never has a larger one's
        name.
        """
        from fedrepro import plots

        name = f"{name or self.item.name}_{given.scale_of(data, self.scale)}"
        written = plots.save(figure, self.folder / self.item.key, name, data=data, alt=alt)
        return [path.name for path in written]
