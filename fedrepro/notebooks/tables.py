"""What a book shows, as tables to read or to plot: functions of settings, comparisons and rounds.

Shapes: S clients, N images, C classes, M teachers, P parameters, Q buffers, K global models.
"""

from collections.abc import Iterable, Mapping, Sequence

import pandas as pd

from fedrepro.core.state import State
from fedrepro.federation.federation import Federation
from fedrepro.methods import catalogue as methods
from fedrepro.methods.compose import shown
from fedrepro.notebooks.lines import BESIDE, UNREAD, Lines, Settings
from fedrepro.notebooks.reads import ORDER, reads
from fedrepro.papers import Cell
from fedrepro.papers.paper import Preset
from fedrepro.report import cells, layout
from fedrepro.runs.rows import FIRST
from fedrepro.stages.round import Round

SOURCES = {  # of the numbers of a comparison, and what they are called in a plot
    "paper": "paper",
    "recorded": "recorded (paper)",
    "short": "recorded (short)",
    "smoke": "this run (smoke)",
}


def settings(sources: pd.DataFrame, cells: Sequence[Cell], scale: str, full: Sequence[Cell] = ()) -> Settings:
    """Return every value with its source (see `Paper.sources`), and what the cells of a scale have instead.

    Args:
        sources: of the item.
        cells: of the scale.
        scale: its name.
        full: the item's cells at paper scale, to see what is read; those of the scale if left out.

    Returns:
        One line per setting, by the stage that reads it, in the order of a round, assumptions first; last those
        that nothing in the item reads. What is assumed beside settings is the same at all scales.
    """
    played = [cell.setting.asdict() for cell in cells]
    here = [list(dict.fromkeys(one[name] for one in played if name in one)) for name in sources["name"]]
    read: dict[str, str] = {}
    for cell in full or cells:
        read |= reads(cell.setting)
    beside = {name: BESIDE for name in sources["name"] if not any(name in one for one in played)}
    stages = [read.get(name, beside.get(name, UNREAD)) for name in sources["name"]]
    values, own = [_values(one) for one in sources["value"]], [_values(one) for one in here]
    columns = {
        "stage": stages,
        "paper": values,
        f"{scale} scale": own if scale == "paper" else ["same" if a == b else b for a, b in zip(values, own)],
        "known how": list(sources["kind"]),
        "where, or why": list(sources["source"]),
    }
    if scale == "paper":
        del columns["paper"]
    found = pd.DataFrame(columns, index=pd.Index(sources["name"], name="setting"))
    order = {stage: place for place, stage in enumerate([*ORDER, BESIDE, UNREAD])}
    first = found["known how"].str.contains("assumed")
    found = found.assign(_stage=found["stage"].map(order), _stated=~first)
    return Settings(found.sort_values(["_stage", "_stated"], kind="stable").drop(columns=["_stage", "_stated"]))


def measured(frame: pd.DataFrame, digits: int = 4) -> Lines:
    """Return measurements to read, to some digits that count: "2,426" and "0.7278"; "none" where it is empty."""
    made = pd.DataFrame(frame).reset_index(drop=True)
    for name in made.columns[[pd.api.types.is_float_dtype(kind) for kind in made.dtypes]]:
        made[name] = [_digits(value, digits) for value in made[name]]
    return Lines(made)


def _digits(value: float, digits: int) -> str:
    if pd.isna(value):
        return ""
    return f"{value:,.0f}" if abs(value) >= 10 ** (digits - 1) else f"{value:.{digits}g}"


def presets(found: Iterable[Preset]) -> Lines:
    """Return the named differences between a paper and its released code, and the settings of each."""
    lines = [(one.name, _changes(one.values), one.paper, one.code) for one in found]
    names = ["preset", "settings", "the paper", "the released code"]
    return Lines(pd.DataFrame(lines, columns=names).set_index("preset"))


def _changes(values: Mapping[str, object]) -> str:
    return ", ".join(f"{name} = {_values([value])}" for name, value in values.items())


def _values(values: Sequence[object]) -> str:
    return ", ".join(f"{value:g}" if isinstance(value, float) else str(value) or '""' for value in values)


def stages(cells: Iterable[Cell]) -> Lines:
    """Return the stages of each method among the cells, one column per method."""
    found: dict[str, dict[str, str]] = {}
    for cell in cells:
        of_method = {stage: _brief(value) for stage, value in methods.build(cell.setting).stages}
        found.setdefault(cell.labels.get("method", cell.row), of_method)
    return Lines(pd.DataFrame(found).fillna("").rename_axis("stage"))


def _brief(stage: object) -> str:
    sources = getattr(stage, "sources", None)
    return " + ".join(_brief(source) for source in sources) if sources else shown(stage)


def unjudged(comparison: pd.DataFrame) -> pd.DataFrame:
    """Return a comparison without gaps and verdicts, for numbers that are nobody's record."""
    ran = comparison["recorded_mean"].notna() & (comparison["verdict"] != "not reported")
    unknown = dict.fromkeys(("gap_points", "gap_low", "gap_high", "e_n", "more_seeds"), float("nan"))
    return comparison.assign(**unknown, verdict=comparison["verdict"].mask(ran, "not judged"))


class Compared:
    """A comparison to look at: in a notebook the paper's own layout, in a terminal lines; columns by their names.

    What was never run is folded. `lines` is the long form, `grid` the wide one of paper scale, texts both.
    """

    def __init__(self, comparison: pd.DataFrame, *, recorded: bool = True) -> None:
        self._cells, self._made = comparison, "recorded at paper scale" if recorded else "this run at paper scale"
        places = cells.printed(comparison)
        found = comparison.to_dict("records")
        columns = {
            "paper": [cells.of_paper(cell, places) for cell in found],
            self._made: [cells.ours(cell, places, "recorded") for cell in found],
            "ours − paper": [cells.gap(cell) for cell in found],
            "verdict": list(comparison["verdict"]),
            "short": [cells.ours(cell, places, "short") for cell in found],
            "smoke": [cells.ours(cell, places, "smoke") for cell in found],
        }
        self.lines = pd.DataFrame(columns, index=pd.MultiIndex.from_frame(comparison[["row", "column"]]))

    @property
    def grid(self) -> pd.DataFrame:
        """The paper's layout: its number, ours and the verdict in one text."""
        places = cells.printed(self._cells)
        return cells.grid(self._cells, lambda cell: cells.judged(cell, places))

    def __getitem__(self, name: str) -> pd.Series:
        """Return a column of the long form, such as "verdict"."""
        return self.lines[name]

    def __len__(self) -> int:
        """Return the number of cells."""
        return len(self.lines)

    def __repr__(self) -> str:
        """Show the long form; of cells that were not run only how many there are."""
        numbers = self.lines[[self._made, "short", "smoke"]]
        run = self.lines[(numbers != "").any(axis=1)]
        unrun = len(self.lines) - len(run)
        texts = [run.to_string()] if len(run) else []
        return "\n".join([*texts, f"{unrun} of {len(self)} cells not run"] if unrun else texts)

    def _repr_html_(self) -> str:
        return layout.shown(layout.parts(self._cells), cells.legend(self._cells))


def compared(comparison: pd.DataFrame, *, recorded: bool = True) -> Compared:
    """Return a comparison for reading, in the paper's layout: its number beside ours, and the verdict.

    `recorded` says whether the numbers at paper scale are the repository's records, or only this session's.
    """
    return Compared(comparison, recorded=recorded)


def points(comparison: pd.DataFrame, *, best: bool = False, recorded: bool = True) -> pd.DataFrame:
    """Return a comparison for plotting, one line per number: row, column, mean, std, runs, source.

    `recorded` says whether numbers may be the repository's records; else all but the paper's are this run's.

    With `best`, smoke numbers are left out where there are others.
    """
    found, tables = comparison, []
    for name, known in SOURCES.items():
        source = known if recorded else known.replace("recorded", "this run")
        runs = found["paper_runs" if name == "paper" else f"{name}_seeds"]
        std = found[f"{name}_std"] if f"{name}_std" in found else float("nan")
        one = found[["row", "column"]].assign(mean=found[f"{name}_mean"], std=std, runs=runs, source=source)
        tables.append(one.dropna(subset=["mean"]))
    filled = [table for table in tables if len(table)] or tables[:1]
    every = pd.concat(filled).sort_index(kind="stable", ignore_index=True)
    smoke = every["source"] == SOURCES["smoke"]
    return every[~smoke] if best and not smoke.all() else every


def seeded(points: pd.DataFrame, made: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """Put beside each number of ours those of its seeds: a column by_seed, seed -> number; None for the paper's.

    Args:
        points: as `points` returns them.
        made: the records of each scale, columns row, column, seed, precision and result.

    A seed in another precision than float32 is another one, "0 bfloat16": nothing is paired across precisions.
    """
    found: dict[tuple[str, str, str], dict[int | str, float]] = {}
    names = ["row", "column", "seed", "precision", "result"]
    for name, scale in (("recorded", "paper"), ("short", "short"), ("smoke", "smoke")):
        lines = made.get(scale, pd.DataFrame(columns=names))
        for row, column, seed, precision, result in zip(*(lines[name] for name in names)):
            pair = int(seed) if precision == FIRST["precision"] else f"{seed} {precision}"
            for source in (SOURCES[name], SOURCES[name].replace("recorded", "this run")):
                found.setdefault((source, row, column), {})[pair] = float(result)
    keys = zip(points["source"], points["row"], points["column"])
    return points.assign(by_seed=pd.Series([found.get(key) for key in keys], index=points.index, dtype=object))


def labelled(frame: pd.DataFrame, cells: Iterable[Cell]) -> pd.DataFrame:
    """Put the labels of each line's cell, the one with its row and column, in front of its columns."""
    labels = {(cell.row, cell.column): cell.labels for cell in cells}
    known = [dict(labels.get((row, column), {})) for row, column in zip(frame["row"], frame["column"])]
    return pd.concat([pd.DataFrame(known, index=frame.index), frame], axis=1)


def above(made: pd.DataFrame, baselines: Mapping[str, str], column: str) -> pd.DataFrame:
    """Return by how many points rows lie above others, seed by seed; no line for what only one of them has.

    Args:
        made: records of one scale, columns row, column, seed, precision, result.
        baselines: for each row the row that it is held against; "" for none.
        column: of both.

    Returns:
        Columns name (the row), seed, accuracy (the difference, in points; without a baseline the row's own).
    """
    found = made[made["column"] == column].groupby("row")
    seeds = {row: lines.set_index(["seed", "precision"])["result"] for row, lines in found}
    pairs = [(row, base) for row, base in baselines.items() if row in seeds and base in (*seeds, "")]
    gaps = {row: (seeds[row] - (seeds[base] if base else 0.0)).dropna() for row, base in pairs}
    columns = ["name", "seed", "accuracy"]
    frames = [gap.rename("accuracy").reset_index().assign(name=row)[columns] for row, gap in gaps.items()]
    return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame(columns=columns)


def shapes(state: State, trace: Round, federation: Federation) -> Lines:
    """Return what each stage of a round handed on, and its shape."""
    rows: list[tuple[str, str, Sequence[int]]] = [
        ("plan", "clients of the round", (len(trace.who.clients),)),
        ("train", "clients' parameters [S, P]", trace.clients.params.shape),
        ("train", "clients' BatchNorm statistics [S, Q]", trace.clients.buffers.shape),
        ("weigh", "shares [K, S]", trace.shares.shape),
        ("server", "average [K, P]", trace.average.params.shape),
        ("teach", "teachers [M, P]", trace.teacher.members.params.shape),
        ("combine", "targets on the public images [N, C]", trace.targets.shape),
        ("distill", "next global model [K, P]", state.models.params.shape),
        ("", "test images", (len(federation.test),)),
    ]
    texts = [(stage, what, str(tuple(shape))) for stage, what, shape in rows]
    return Lines(pd.DataFrame(texts, columns=["stage", "what", "shape"]).set_index("stage"))
