"""A new item: the skeleton of its notebook, its entry, and, for a new paper, the files of the paper."""

import re
import tomllib
from pathlib import Path
from typing import Any

from fedrepro.core.files import write_atomically
from fedrepro.notebooks.notebook import dump, tidy

NAME = re.compile(r"[a-z][a-z0-9_]*")
CHECKED = "nbval-check-output"
REPORTED = "item,source,row,column,metric,mean,std,runs,status,note\n"

ENTRY = """
[items.{item}]
title = ""
source = "" # such as "Table 3"
claim = "" # of the paper, in one sentence
row = "" # how rows are named, such as "{{partition}}/{{method}}"
column = "" # and columns, such as "{{model}}"
seeds = {{ smoke = 1, short = 1, paper = 3 }}
grids = [] # axes and their labels, such as {{ model = ["ResNet-20"], method = ["FedAvg", "FedBE"] }}
"""
ITEMS = "# The items of {paper}: their axes, how a row and a column are named, and what the labels mean.\n"
SETTINGS = """# Every value of {paper}, and where the paper states it or why it is assumed.
title = ""

[values]
# Each setting is one line: rounds = {{ value = 40, stated = "5.2" }}, or assumed = "why"

# What the labels of tables mean, axis by axis: [labels.method], then FedAvg = {{ method = "fedavg" }}
# The scales: [[rule]] with when = {{ scale = "smoke" }} and set = {{ data = "digits" }}, the same for "short"
"""
CLAIMS = (
    "# What the paper concludes from its numbers, in our own words (fedrepro/papers/claims.py has the kinds).\n"
)
CARD = """# {paper}

## What the paper claims

## Protocol of the main table

## Items

## Where the paper disagrees with itself

## Where the released code differs from the paper

## Lost or illegible
"""

# The cells of a notebook in their order: prose as text, code as (source, *tags). They hold for any item.
CELLS: tuple[str | tuple[str, ...], ...] = (
    """# {paper}, {item}

## 1. The item and its claim

Title, place and claim stand in `fedrepro/papers/{paper}/items.toml`; section 3 prints them.""",
    (
        """from fedrepro.notebooks import recorded

print(recorded.answer("{paper}/{item}"))
recorded.picture("{paper}/{item}")""",
    ),
    """What each scale of this notebook is:

| scale | data | what it is for | cost |
|---|---|---|---|
| `smoke` | what a dependency ships | it runs; the numbers mean nothing | seconds on 2 CPU cores |
| `short` | the paper's data, less of it | the order of the methods | minutes a run |
| `paper` | the paper's | numbers to compare cell by cell | a GPU |""",
    """## 2. Parameters

The defaults are the smoke scale. `fedrepro reproduce` sets other values from outside.""",
    (
        """scale: str = "smoke"  # smoke, short or paper
seeds: int = 1  # runs are made for seeds 0, 1, ...
device: str = "auto"  # auto, cpu or cuda
out: str = ""  # folder for figures; empty: results/figures of the repository""",
        "parameters",
    ),
    """## 3. Settings: what the paper states and what had to be assumed

Every value comes with the place where the paper states it, or the reason why it is assumed. The column in the
middle shows what this scale uses instead.""",
    (
        """from fedrepro import plots
from fedrepro.notebooks.book import Book

book = Book("{paper}/{item}", scale=scale, seeds=seeds, device=device, out=out)
print(f"{{book.item.title}} ({{book.item.source}})\\n{{book.item.claim}}")""",
    ),
    ("book.settings()",),
    """## 4. The federation

Who holds what, for the first cell of the item.""",
    (
        """setting = book.cells[0].setting
federation = book.federation(setting)
counts = book.counts(federation)
plots.partition(counts, federation.data.classes, title="Images of each class at each client")""",
    ),
    (
        """print("images per client:", counts.sum(1).tolist())
print(f"clients: {{federation.clients}} | public: {{len(federation.public)}} | test: {{len(federation.test)}}")""",
        CHECKED,
    ),
    """## 5. The methods, stage by stage

A method is seven stages in a fixed order; "off" is a value, too.""",
    ("method = book.method(setting)\nprint(method)",),
    ("book.stages()",),
    """## 6. One round by hand

The first round, and the shape of everything that one stage hands to the next.""",
    (
        """state, trace = book.one_round(method, federation)
book.shapes(state, trace, federation)""",
        CHECKED,
    ),
    """## 7. The runs

Each cell and seed is one run in the store. A run that is there already is read, one that was interrupted goes on
from its last finished round.""",
    ("""results = book.run(progress=True)\nresults[["row", "column", "seed", "result", "seconds"]]""",),
    ("""print("runs:", len(results), "| cells:", results.groupby(["row", "column"]).ngroups)""", CHECKED),
    """## 8. The paper, the record and this run

Mean ± standard deviation (runs). Only records at paper scale are judged.""",
    ("book.table()",),
    ("""print(book.table()["verdict"].value_counts().to_string())""", CHECKED),
    """## 9. The figure

Every number there is, a panel for each column of the table.""",
    (
        """points = book.points(best=True)
bars = points.assign(label=points["row"] + ", " + points["source"], value=points["mean"], group=points["column"])
figure = plots.bars(bars, title=book.item.title, unit="number of the cell")
alt = f"{{book.item.title}}: the paper's numbers, and ours where there are any."
saved = book.save(figure, data=points, alt=alt)
figure""",
    ),
    """## 10. What matched, and what did not

The paper's sentences about this item, checked on its own numbers and on what was recorded.""",
    ("book.claims()",),
    """## 11. What was written

Records of this run; the figure as svg and png, its numbers as csv, and a description of it.""",
    ("""print("\\n".join(saved))""", CHECKED),
    """## 12. Links

- Settings, reported numbers and claims: `fedrepro/papers/{paper}/`, with the paper's card, `README.md`
- One round from first principles: [tutorials/01_one_round_by_hand](../tutorials/01_one_round_by_hand.ipynb)""",
)


def new(item: str, *, root: Path) -> list[Path]:
    """Write the skeleton of an item: its notebook and its entry, and the paper's files if the paper is new.

    What only its author can know is left empty in the entry. The paper cannot be loaded until that is filled in;
    then the notebook runs, and `make notebooks` gives it its outputs.

    Args:
        item: such as "fedbe/table3_xyz"; paper and item are words of a-z, 0-9 and _ that start with a letter.
        root: of the repository.

    Returns:
        The files written, the notebook first.

    Raises:
        ValueError: for a name of another form, or a file or an entry that is there already; nothing is written.
    """
    paper, _, name = item.partition("/")
    if not (NAME.fullmatch(paper) and NAME.fullmatch(name)):
        raise ValueError(f'an item must be named like "fedbe/table3_xyz", of a-z, 0-9 and _, got {item!r}')
    notebook, folder = root / "notebooks" / paper / f"{name}.ipynb", root / "fedrepro" / "papers" / paper
    facts = {"paper": paper, "item": name}
    texts = {notebook: skeleton(paper, name)}
    if not (folder / "settings.toml").exists():
        files = {"settings.toml": SETTINGS, "items.toml": ITEMS + ENTRY, "claims.toml": CLAIMS, "README.md": CARD}
        texts |= {folder / file: text.format(**facts) for file, text in files.items()}
        texts[folder / "reported.csv"] = REPORTED
    for path in texts:
        if path.exists():
            raise ValueError(f"{path} is there already and is not overwritten")
    items = folder / "items.toml"
    if items not in texts:
        written = items.read_text("utf-8")
        if name in tomllib.loads(written).get("items", {}):
            raise ValueError(f"{items} has an entry {name} already")
        texts[items] = written.rstrip("\n") + "\n" + ENTRY.format(**facts)
    for path, text in texts.items():
        write_atomically(path, text.encode())
    return list(texts)


def skeleton(paper: str, item: str) -> str:
    """Return the text of an item's notebook before its first run: twelve sections that hold for any item."""
    cells: list[dict[str, Any]] = []
    for number, cell in enumerate(CELLS):
        source, *tags = (cell,) if isinstance(cell, str) else cell
        made: dict[str, Any] = {"cell_type": "markdown", "metadata": {"tags": tags} if tags else {}}
        if not isinstance(cell, str):
            made |= {"cell_type": "code", "execution_count": None, "outputs": []}
        made |= {"id": f"{item.replace('_', '-')}-{number:02}"[-64:]}
        made["source"] = source.format(paper=paper, item=item).splitlines(keepends=True)
        cells.append(made)
    return dump(tidy({"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}))
