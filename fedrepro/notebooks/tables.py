"""What a book shows, as tables to read or to plot: functions of settings, comparisons and rounds.

Shapes: S clients, N images, C classes, M teachers, P parameters, Q buffers, K global models.
"""

from collections.abc import Iterable, Mapping, Sequence

import pandas as pd

from fedrepro.core.state import State
from fedrepro.federation.federation import Federation
from fedrepro.methods import catalogue as methods
from fedrepro.methods.compose import shown
from fedrepro.papers import Cell
from fedrepro.papers.paper import Preset
from fedrepro.report import verdict
from fedrepro.stages.round import Round

SOURCES = {  # of the numbers of a comparison, and what they are called in a plot
    "paper": "paper",
    "recorded": "recorded (paper)",
    "short": "recorded (short)",
    "smoke": "this run (smoke)",
}


def settings(sources: pd.DataFrame, cells: Sequence[Cell], scale: str) -> pd.DataFrame:
    """Return every value with its source (see `Paper.sources`), and what the cells of a scale have instead."""
    here = [list(dict.fromkeys(cell.setting.asdict()[name] for cell in cells)) for name in sources["name"]]
    columns = {
        "paper": [_values(values) for values in sources["value"]],
        f"{scale} scale": [_values(values) for values in here],
        "": sources["kind"],
        "where, or why": sources["source"],
    }
    return pd.DataFrame(columns).set_index(sources["name"])


def presets(found: Iterable[Preset]) -> pd.DataFrame:
    """Return the named differences between a paper and its released code, and the settings of each."""
    lines = [(one.name, _changes(one.values), one.paper, one.code) for one in found]
    names = ["preset", "settings", "the paper", "the released code"]
    return pd.DataFrame(lines, columns=names).set_index("preset")


def _changes(values: Mapping[str, object]) -> str:
    return ", ".join(f"{name} = {_values([value])}" for name, value in values.items())


def _values(values: Sequence[object]) -> str:
    return ", ".join(f"{value:g}" if isinstance(value, float) else str(value) for value in values)


def stages(cells: Iterable[Cell]) -> pd.DataFrame:
    """Return the stages of each method among the cells, one column per method."""
    found: dict[str, dict[str, str]] = {}
    for cell in cells:
        of_method = {stage: _brief(value) for stage, value in methods.build(cell.setting).stages}
        found.setdefault(cell.labels.get("method", cell.row), of_method)
    return pd.DataFrame(found).fillna("")


def _brief(stage: object) -> str:
    sources = getattr(stage, "sources", None)
    return " + ".join(_brief(source) for source in sources) if sources else shown(stage)


def unjudged(comparison: pd.DataFrame) -> pd.DataFrame:
    """Return a comparison without gaps and verdicts, for numbers that are nobody's record."""
    ran = comparison["recorded_mean"].notna() & (comparison["verdict"] != "not reported")
    verdicts = comparison["verdict"].mask(ran, "not judged")
    return comparison.assign(gap_points=float("nan"), gap_se=float("nan"), verdict=verdicts)


def compared(comparison: pd.DataFrame, *, recorded: bool = True) -> pd.DataFrame:
    """Return a comparison for reading: mean ± standard deviation (runs), gap in standard errors, verdict.

    `recorded` says whether the numbers at paper scale are the repository's records, or only this session's.
    """
    found = comparison
    made = "recorded at paper scale" if recorded else "this run at paper scale"
    printed = verdict.decimals(found["paper_mean"]), verdict.decimals(found["paper_std"])
    columns: dict[str, list[str]] = {
        "paper": _spread(found["paper_mean"], found["paper_std"], found["paper_runs"], printed),
        made: _spread(found["recorded_mean"], found["recorded_std"], found["recorded_seeds"]),
        "gap (SE)": ["" if pd.isna(gap) else f"{gap:+.1f}" for gap in found["gap_se"]],
        "verdict": list(found["verdict"]),
        "short": _spread(found["short_mean"], None, found["short_seeds"]),
        "smoke": _spread(found["smoke_mean"], None, found["smoke_seeds"]),
    }
    return pd.DataFrame(columns, index=pd.MultiIndex.from_frame(found[["row", "column"]]))


def _spread(
    mean: pd.Series, std: pd.Series | None, runs: pd.Series, decimals: tuple[int, int] = (1, 1)
) -> list[str]:
    """Format "74.5 ± 0.5 (5)" per line, or nothing where there is no number."""
    spreads = [float("nan")] * len(mean) if std is None else std
    texts = []
    for middle, spread, count in zip(mean, spreads, runs):
        if pd.isna(middle):
            texts.append("")
            continue
        around = "" if pd.isna(spread) else f" ± {spread:.{decimals[1]}f}"
        texts.append(f"{middle:.{decimals[0]}f}{around}" + ("" if pd.isna(count) else f" ({int(count)})"))
    return texts


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


def labelled(frame: pd.DataFrame, cells: Iterable[Cell]) -> pd.DataFrame:
    """Put the labels of each line's cell, the one with its row and column, in front of its columns."""
    labels = {(cell.row, cell.column): cell.labels for cell in cells}
    known = [dict(labels.get((row, column), {})) for row, column in zip(frame["row"], frame["column"])]
    return pd.concat([pd.DataFrame(known, index=frame.index), frame], axis=1)


def above(made: pd.DataFrame, baselines: Mapping[str, str], column: str) -> pd.DataFrame:
    """Return by how many points rows lie above others, seed by seed; no line for what only one of them has.

    Args:
        made: records of one scale, columns row, column, seed, result.
        baselines: for each row the row that it is held against.
        column: of both.

    Returns:
        Columns name (the row), seed, accuracy (the difference, in points).
    """
    found = made[made["column"] == column].groupby("row")
    seeds = {row: lines.set_index("seed")["result"] for row, lines in found}
    pairs = [(row, base) for row, base in baselines.items() if row in seeds and base in seeds]
    gaps = {row: (seeds[row] - seeds[base]).dropna() for row, base in pairs}
    lines = [(row, seed, value) for row, gap in gaps.items() for seed, value in gap.items()]
    return pd.DataFrame(lines, columns=["name", "seed", "accuracy"])


def shapes(state: State, trace: Round, federation: Federation) -> pd.DataFrame:
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
    return pd.DataFrame(texts, columns=["stage", "what", "shape"]).set_index("stage")
