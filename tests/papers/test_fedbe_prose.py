"""What FedBE's card, its notebooks and the README say in numbers is what the data say."""

import json
import re
from collections.abc import Iterable
from decimal import ROUND_HALF_UP, Decimal
from pathlib import Path

import pandas as pd
import pytest

from fedrepro import papers
from fedrepro.bench import rates
from fedrepro.bench.cost import Images, images
from fedrepro.cli.state import asked
from fedrepro.core.setting import Setting
from fedrepro.notebooks import tables
from fedrepro.notebooks.lines import BESIDE
from fedrepro.plots.frames import interval
from fedrepro.runs.request import Run

ROOT = Path(__file__).parents[2]
FEDBE = papers.load("fedbe")
CARD = (papers.FOLDER / "fedbe" / "README.md").read_text("utf-8")
README = (ROOT / "README.md").read_text("utf-8")
BATCH = [name for name, item in FEDBE.items.items() if item.batch]
CELL = ["item", "row", "column"]
Ran = tuple[Setting, int]


def prose(item: str) -> str:
    """Return the text of a notebook."""
    cells = json.loads((ROOT / "notebooks" / "fedbe" / f"{item}.ipynb").read_text("utf-8"))["cells"]
    return "\n\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")


def recorded(item: str, scale: str = "short") -> pd.DataFrame:
    return pd.read_csv(ROOT / "figures" / "fedbe" / item / f"{scale}.csv")


def run_of(run: Run) -> Ran:
    return run.setting, run.seed


def numbers(pattern: str, text: str) -> list[int]:
    (found,) = re.findall(pattern, text)
    return [int(number) for number in ([found] if isinstance(found, str) else found)]


# -- the card -------------------------------------------------------------------------------------------------


def test_the_card_counts_the_printed_numbers() -> None:
    table, lost = FEDBE.reported, FEDBE.reported["status"] == "lost"
    assert numbers(r"has the (\d+) cells .* number, (\d+) of which are lost", CARD) == [len(table), lost.sum()]
    repaired = table[table["status"] == "repaired"]
    alone = repaired["note"].str.contains("printed nowhere else").sum()
    assert numbers(r"(\d+)\ncells were read .* characters; (\d+) of these", CARD) == [len(repaired), alone]
    of_poster = table["source"].str.startswith("poster")
    both = table[~of_poster].merge(table[of_poster], on=CELL)
    own = table[of_poster]["note"].str.contains("does not say over how many runs", na=False).sum()
    assert numbers(r"agree in all (\d+) cells .* the (\d+) cells with a deviation", CARD) == [len(both), own]


def test_the_card_lists_every_preset_and_no_other() -> None:
    assert set(re.findall(r"^\| `([a-z0-9-]+)` \|", CARD, re.MULTILINE)) == set(FEDBE.presets)


def test_the_card_has_every_assumption_as_the_settings_have_it() -> None:
    lines = [f"| {one.name} | {one.value} | {one.reason} |" for one in FEDBE.assumptions]
    assert CARD.split("| what | here | the paper |\n|---|---|---|\n")[1].split("\n\n")[0].split("\n") == lines
    assert len(lines) >= 20


def test_the_centralised_resnets_are_the_errors_of_another_readme() -> None:
    table = (
        FEDBE.reported[FEDBE.reported["row"] == "Centralized/SGD"].drop_duplicates("column").set_index("column")
    )
    errors = dict(zip(("ResNet-20", "ResNet-32", "ResNet-44", "ResNet-56"), (8.27, 7.37, 6.90, 6.61)))
    assert {network: round(100 - error, 1) for network, error in errors.items()} == dict(
        table["mean"].drop("ConvNet")
    )
    assert "8.27, 7.37, 6.90 and 6.61 %" in CARD


# -- assumptions ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("item", "there", "not_there"),
    [
        ("table6_tiny_imagenet", "MobileNetV2 for small images", "Dirichlet draws"),
        ("table1_methods", "Dirichlet draws", "stragglers' epochs"),
        ("table1_methods", "one round in the schedule", "points of the toy"),
        ("figure1_simplex", "points of the toy", "crops and flips"),
        ("table7_stragglers", "stragglers' epochs", "i.i.d. clients"),
        ("figure2_depth", "ConvNet's widths", "BatchNorm"),
        ("table3_public_data", "resizing", "server momentum"),
    ],
)
def test_an_item_shows_the_assumptions_that_its_cells_rest_on(item: str, there: str, not_there: str) -> None:
    sources = FEDBE.sources(item).set_index("name")
    assert there in sources.index
    assert sources.loc[there, "kind"] == "assumed"
    assert not_there not in sources.index


def test_a_settings_table_tells_an_assumption_once() -> None:
    shown = tables.settings(FEDBE.sources("table1_methods"), FEDBE.cells("table1_methods", "short"), "short")
    told = {name: list(map(str, line)) for name, *line in shown.itertuples()}
    assert told["Dirichlet draws"][1].startswith("drawn anew until every client has 10 images")
    assert told["Dirichlet draws"][:3:2] == [BESIDE, ""]
    assert told["rounds"][1:3] == ["40, 1, 200", "6, 1, 20"]


def test_every_assumption_is_about_some_cell() -> None:
    shown = {name for item in FEDBE.items for name in FEDBE.sources(item)["name"]}
    assert {one.name for one in FEDBE.assumptions} <= shown


# -- notebooks and README ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("item", BATCH)
def test_a_notebook_counts_its_short_cells_and_seeds(item: str) -> None:
    cells, seeds = numbers(r"\| `short` \|.*\| (\d+) cells, (\d+) seeds", prose(item))
    assert cells == len(FEDBE.cells(item, "short"))
    assert seeds == FEDBE.items[item].seeds["short"]


def test_the_readme_s_minutes_are_those_of_the_records() -> None:
    items = [path.parent.name for path in sorted((ROOT / "figures" / "fedbe").glob("*/short.csv"))]
    table = pd.concat(map(recorded, items))
    minutes = (table[table["precision"] == "float32"].set_index("column")["seconds"] / 60).round()
    pattern = r"in float32.*ConvNet up to (\d+), ResNet-20 (\d+) to (\d+) minutes per run"
    least, most = minutes["ResNet-20"].min(), minutes["ResNet-20"].max()
    assert numbers(pattern, README) == [int(minutes["ConvNet"].max()), int(least), int(most)]
    first = recorded("table1_methods").query("precision == 'float32'")["seconds"] / 60
    found = numbers(r"up to (\d+) minutes per run as recorded in float32", prose("table1_methods"))
    assert found == [round(first.max())]


NETWORKS = {"convnet": "ConvNet", "resnet20": "ResNet-20", "resnet32": "ResNet-32"}


def seeds_told(item: str, scale: str) -> str:
    """Return of which networks an item is recorded, and with how many seeds: "ConvNet, 1 to 3 seeds"."""
    if not (ROOT / f"figures/fedbe/{item}/{scale}.csv").exists():
        return "not run"
    table = recorded(item, scale)
    models = {(cell.row, cell.column): NETWORKS[cell.setting.model] for cell in FEDBE.cells(item, scale)
              if cell.setting.model in NETWORKS}  # fmt: skip
    table["network"] = [models[place] for place in zip(table["row"], table["column"])]
    counts = table.groupby(["network", "row", "column"])["seed"].nunique().groupby("network").agg(["min", "max"])
    told = []
    for network in filter(counts.index.__contains__, NETWORKS.values()):
        least, most = map(int, counts.loc[network])
        many = str(most) if least == most else f"{least} to {most}"
        told.append(f"{network}, {many} seed{'s' * (most > 1)}")
    return "; ".join(told)


@pytest.mark.parametrize("item", BATCH)
def test_the_readme_tells_how_much_of_an_item_is_recorded(item: str) -> None:
    (line,) = (line for line in README.splitlines() if line.startswith(f"| [fedbe/{item}]"))
    _, _, _, short, full, _ = line.split("|")
    for shown, scale in ((short, "short"), (full, "paper")):
        assert re.fullmatch(rf" {re.escape(seeds_told(item, scale))}(: .*)? ", shown)


def test_v_distillation_s_ensemble_is_below_its_average_in_every_short_run() -> None:
    table = recorded("table1_methods")
    gaps = table["average_accuracy"] - table["ensemble_accuracy"]
    plain, fedbe = (gaps[table["row"] == f"Step/{method}"] for method in ("v-Distillation", "FedBE"))
    assert "in all five runs (two ConvNet, three ResNet-20), by 1.1 to 3.5 points" in prose("table1_methods")
    assert (len(plain), round(plain.min(), 1), round(plain.max() + 1e-9, 1)) == (5, 1.1, 3.5)
    assert "above the average of its round in all of its runs, by 0.5 to 1.4" in prose("table1_methods")
    assert (round(-fedbe.max(), 1), round(-fedbe.min(), 1)) == (0.5, 1.4)


def test_the_means_and_spreads_of_table_1_s_short_resnets() -> None:
    table = recorded("table1_methods").query("column == 'ResNet-20'").groupby("row")["result"]
    rows = [f"Step/{method}" for method in ("FedAvg", "v-Distillation", "FedBE w/o SWA", "FedBE")]
    means, spreads = ([f"{values[row]:.1f}" for row in rows] for values in (table.mean(), table.std()))
    text = prose("table1_methods")
    assert "FedAvg {}, v-Distillation {}, FedBE without SWA {}, FedBE {} %".format(*means) in text
    assert "of {}, {}, {} and {} points".format(*spreads) in text
    rounds = pd.read_csv(ROOT / "figures/fedbe/table1_methods/short_rounds.csv").query("column == 'ResNet-20'")
    clients, fedbe = points(rounds.groupby("row")["accuracy"].mean()[["Step/v-Distillation", "Step/FedBE"]])
    assert f"v-Distillation is ahead of FedBE, {clients} to {fedbe} %" in text


def test_what_is_said_of_the_toy_is_its_record() -> None:
    table = recorded("figure1_simplex", "paper").pivot(index="seed", columns="row", values="result")
    ensemble, average = table["Ensemble of 10 Dirichlet samples"], table["FedAvg"]
    assert f"({ensemble[0]:.1f} against {average[0]:.1f} %)" in prose("figure1_simplex")
    assert f"beats FedAvg on {(ensemble > average).sum()} seeds" in README
    assert (table["Best of the simplex"] > average).all()
    sure = recorded("figure8_confidence", "paper").pivot(index="seed", columns="row", values="result")
    assert (sure["Clients, right among confident"] < sure["Samples, right among confident"]).all()
    alone, together = points([sure["Samples"].mean(), ensemble.mean()])
    told = f"a sampled model is right on {alone} % of the test points"
    assert told in prose("figure1_simplex")
    ahead = (ensemble > sure["Samples"]).sum()
    assert f"the ten together on {together} %; on {ahead} of 20 seeds the ensemble is" in prose("figure1_simplex")
    roll = (ROOT / "notebooks/tutorials/02_ensembles_on_a_swiss_roll.ipynb").read_text("utf-8")
    assert f"Over 20 seeds it is above FedAvg on {(ensemble > average).sum()} (" in roll
    both = pd.read_csv(ROOT / "figures/fedbe/figure8_confidence/figure8_both_short.csv")
    confident = both[(both["data"] == "CIFAR-10, Step") & (both["low"] > 0.79)].groupby("group")
    wrong = confident["incorrect"].sum() / (confident["correct"].sum() + confident["incorrect"].sum())
    clients, samples = (f"{100 * wrong[group]:.0f} %" for group in ("Clients", "Samples"))
    assert f"{clients} of the clients' confident predictions are wrong, {samples} of the samples'" in README
    said = f"{clients} of the clients' confident predictions are wrong, and {samples} of the sampled models'"
    assert said in prose("figure8_confidence")


def points(numbers: Iterable[float]) -> list[str]:
    """Return numbers with one decimal, a half rounded away from zero."""
    return [str(Decimal(f"{number:.4f}").quantize(Decimal("0.1"), ROUND_HALF_UP)) for number in numbers]


@pytest.mark.parametrize(
    ("row", "said", "sign"),
    [
        ("all five together", "together cost about five points here**: {} and {}.", -1),
        ("augmentation", "*augmentation* costs {} and {}:", -1),
        ("learning rate over rounds", "*learning rate over rounds* costs {} and {},", -1),
        ("FedProx not squared", "*FedProx not squared* ({} and {} more)", 1),
        ("FedAvgM exponential mean", "exponential mean costs {} and {} points**", -1),
        ("Step by shards", "*Step by shards* is {} and {} points better", 1),
    ],
)
def test_what_is_said_of_a_difference_is_its_record(row: str, said: str, sign: int) -> None:
    table = (
        recorded("paper_vs_code").query("column == 'ConvNet'").pivot(index="seed", columns="row", values="result")
    )
    gains = (sign * (table[row] - table[FEDBE.items["paper_vs_code"].baselines[row]])).dropna()
    assert said.format(*points(gains)) in prose("paper_vs_code")
    assert len(gains) == 2
    clear = gains.mean() > interval(gains.to_numpy())  # of 90 %
    assert clear == (row in ("all five together", "augmentation"))  # "whose intervals leave out zero"
    if row == "FedAvgM exponential mean":
        assert 0 < interval(gains.to_numpy()) - gains.mean() < 1  # "just reaches zero"


def test_what_is_said_of_distillation_epochs_is_their_record() -> None:
    table = recorded("figure9_distillation_epochs").set_index("row")["result"]
    swa, sgd = (
        points(table[[f"{epochs} epochs/{method}" for epochs in (5, 10, 20, 40)]])
        for method in ("FedBE", "FedBE w/o SWA")
    )
    text = prose("figure9_distillation_epochs")
    assert "SWA ends at {}, {}, {} and {} %, plain SGD at {}, {}, {} and {} %".format(*swa, *sgd) in text
    own = {name: table[[f"{n} epochs/{name}" for n in (10, 20, 40)]] for name in ("FedBE", "FedBE w/o SWA")}
    lost, gained = (
        points([sign * (own[name].iloc[2] - own[name].iloc[1])])
        for name, sign in (("FedBE w/o SWA", -1), ("FedBE", 1))
    )
    assert f"SGD loses {lost[0]} points and SWA gains {gained[0]}, as" in text
    varied = points(values.max() - values.min() for values in own.values())
    assert "(it varies by {} points), and SGD varies less (by {})".format(*varied) in text


def test_the_readme_tells_what_paper_scale_costs() -> None:
    places = rates.recorded(ROOT / "figures" / "performance" / "throughput.csv")
    assert list(places) == ["cuda: NVIDIA H200, bfloat16", "cpu: AMD EPYC, float32"]
    wanted = {name: dict.fromkeys(map(run_of, asked(FEDBE.items[name], "paper").runs())) for name in BATCH}
    together: dict[Ran, None] = {}
    lines = []
    for name, runs in [*wanted.items(), ("together, each run once", together)]:
        together |= runs
        work = sum((images(setting) for setting, _ in runs), Images())
        told = [name, f"{len(runs):,}", f"{work.trained / 1e9:.2f}", f"{work.predicted / 1e9:.2f}"]
        for by in places.values():
            full = [setting for setting, _ in runs if len(by.get(setting.model, {})) == 3]
            hours = sum(rates.seconds(images(setting), [by[setting.model]]) for setting in full) / 3600
            told.append(f"{hours:,.{int(hours < 10)}f} h for {len(full)}" if full else "–")
        lines.append(f"| {' | '.join(told)} |")
    assert "\n".join(lines) in README, "\n".join(lines)
    assert numbers(r"(\d+) settings with five seeds each", README) == [len(together) // 5]


def ends(item: str) -> dict[tuple[str, str], float]:
    """Return the mean result of each cell of an item's short runs."""
    means = recorded(item).groupby(["row", "column"], as_index=False)["result"].mean()
    return {
        (str(row), str(column)): float(value)
        for row, column, value in zip(means["row"], means["column"], means["result"])
    }


SAID = {
    "figure2_depth": "FedAvg loses most with four\nfurther layers, FedBE a little less. "
    "With true labels the student is far better at every depth, but it loses",
    "figure3_samples": "FedBE without samples is last, and more than five do not help",
    "figure4_public_size": "FedBE is above FedAvg with each number of\npublic images, by less than two points",
    "figure5_local_decay": "on every seed the decay within a round costs accuracy at each learning rate, at 0.01 "
    "by 1.9, 4.5 and 2.2 points",
    "figure6_round_decay": "The short runs (three seeds) point the other way on every seed: the decay over rounds "
    "costs 2.8 to 3.8 points with alpha 0.1 and 2.1 to 3.9 with alpha 1.",
    "figure7_weight_decay": "by less than a point in each pair, down on two seeds and up on the others",
    "table3_public_data": "the three kinds of public images end within a point of each other",
    "table4_momentum": "far above FedAvgM; half a point above FedProx is within the noise",
    "table5_cifar100": "FedAvg and FedBE end alike, near 13 %",
    "table7_stragglers": "FedProx with stragglers is 1.0 to 1.4 points above FedAvg on every seed, as in the "
    "paper. FedBE cannot be told from FedAvg (+0.10, -0.50 and +0.60 points without stragglers, -2.65, +1.00 and "
    "+0.05 with them), and with stragglers FedBE + FedProx ends 1.3 to 4.8 points below FedProx on every seed",
}


def by_place(item: str) -> pd.DataFrame:
    """Return an item's short results, a line per seed, a column per cell (row, column)."""
    return recorded(item).pivot(index="seed", columns=["row", "column"], values="result")


def borne_out(item: str) -> bool:
    """Return whether what `SAID` has of an item is so in its short records."""
    found = ends(item)
    row = {name: value for (name, _), value in found.items()}
    places = ("alpha 0.1", "alpha 1")
    if item == "figure2_depth":
        of = {name: [found[name, f"{n} layers added"] for n in (0, 2, 4)] for name in row}
        lost = {name: values[0] - values[-1] for name, values in of.items()}
        far = min(a - b for a, b in zip(of["Ground-truth labels"], of["FedBE"])) > 5
        return far and lost["FedAvg"] > lost["FedBE"] > 0 < lost["Ground-truth labels"]
    if item == "figure3_samples":
        by = [found["FedBE", f"{n} samples"] for n in (0, 5, 10, 20)]
        return min(by) == by[0] and max(by) == by[1]
    if item == "figure4_public_size":
        level = row["Step/FedAvg, 25K images at the clients"]
        gains = [row[f"Step/FedBE, {size} public images"] - level for size in ("1K", "2.5K", "5K", "10K")]
        return 0 < min(gains) <= max(gains) < 2
    if item == "figure5_local_decay":
        rates_ = [f"learning rate {rate}" for rate in ("0.003", "0.01", "0.03")]
        seeds = by_place(item)
        costs = pd.DataFrame(
            {at: seeds["FedAvg, no decay", at] - seeds["FedAvg, decay of 0.99 a step", at] for at in rates_}
        )
        best = pd.DataFrame({at: seeds["FedAvg, no decay", at] for at in rates_}).idxmax(axis=1)
        told = points(costs[rates_[1]])
        return costs.shape == (3, 3) and bool((costs > 0).all(axis=None)) and set(best) == {rates_[1]} and (
            told == ["1.9", "4.5", "2.2"])  # fmt: skip
    if item == "figure6_round_decay":
        seeds = by_place(item)
        falls = [seeds["FedAvg, no decay", at] - seeds["FedAvg, decay over rounds", at] for at in places]
        return [points([one.min(), one.max()]) for one in falls] == [["2.8", "3.8"], ["2.1", "3.9"]]
    if item == "figure7_weight_decay":
        seeds = by_place(item)
        pairs = [(m, f"{epochs} local epochs") for m in ("FedAvg", "FedBE") for epochs in (5, 20)]
        changed = pd.concat(
            [seeds[f"{m}, weight decay", at] - seeds[f"{m}, no weight decay", at] for m, at in pairs]
        )
        changed = changed.dropna()
        return len(changed) == 6 and bool(changed.abs().max() < 1) and int((changed < 0).sum()) == 2
    if item == "table3_public_data":
        return max(found.values()) - min(found.values()) < 1
    if item == "table4_momentum":
        gains = [row[f"Step/FedBE + {name}"] - row[f"Step/{name}"] for name in ("FedAvgM", "FedProx")]
        return gains[0] > 3 and abs(gains[1] - 0.5) < 0.1
    if item == "table5_cifar100":
        return max(found.values()) - min(found.values()) < 0.5 and {round(value) for value in found.values()} == {
            13
        }
    own = recorded(item).pivot(index="seed", columns="row", values="result")
    late = [own[f"{name}/FedBE"] - own[f"{name}/FedAvg"] for name in ("Normal", "Stragglers")]
    shown = [f"{number:+.2f}" for one in late for number in one]
    proximal = own["Stragglers/FedProx"] - own["Stragglers/FedAvg"]
    below = own["Stragglers/FedProx"] - own["Stragglers/FedBE + FedProx"]
    ranges = points([proximal.min(), proximal.max(), below.min(), below.max()])
    return (
        len(own) == 3
        and shown == ["+0.10", "-0.50", "+0.60", "-2.65", "+1.00", "+0.05"]
        and all(abs(one.mean()) < interval(one.to_numpy()) for one in late)  # of 90 %
        and ranges == ["1.0", "1.4", "1.3", "4.8"]
    )


@pytest.mark.parametrize("item", SAID)
def test_what_a_notebook_says_of_its_short_runs(item: str) -> None:
    assert SAID[item] in prose(item)
    assert borne_out(item)


def test_what_paper_vs_code_says_of_1_ensemble() -> None:
    table = recorded("paper_vs_code").query("column == 'ConvNet'")
    found = table.pivot(index="seed", columns="row", values="result")
    names = ["as in the paper", "mean of logits", "at temperature 2", "by vote"]
    rules = found[[f"1-Ensemble {name}" for name in names]]
    assert list(rules.index) == [0, 1, 2]
    assert rules.notna().all(axis=None)
    pattern = (
        r"of probabilities gives ([\d.]+) %, the mean of logits ([\d.]+), .* 2 ([\d.]+), the vote ([\d.]+), and"
    )
    text = prose("paper_vs_code")
    (told,) = re.findall(pattern, text)
    assert list(told) == points(rules.mean())
    assert len({tuple(line) for line in rules.rank(axis=1).to_numpy()}) == 1  # "their order is the same"
    means = found.mean()
    same = ("repeated draws", "clients pad 4", "rate falls every 60 epochs")
    assert all(abs(means[f"1-Ensemble {name}"] - rules.mean().iloc[0]) < 1 for name in same)
    assert round(rules.mean().iloc[0] - means["1-Ensemble rate falls"]) == 9
    pattern = r"deviations of ([\d.]+) and ([\d.]+) points for 1-Ensemble, ([\d.]+) and ([\d.]+) for FedAvg"
    (told,) = re.findall(pattern, text)
    pairs = [
        f"{method} {split}" for method in ("1-Ensemble", "FedAvg") for split in ("on one split", "as in the paper")
    ]
    assert list(told) == points(found[pairs].std())
    assert found[pairs].notna().all(axis=None)
    assert found["FedAvg on one split"].iloc[0] == found["FedAvg as in the paper"].iloc[0]  # the same run


def by_seed(item: str, row: str, measure: str = "") -> list[str]:
    """Return a cell's results at paper scale with one decimal, or a measure of its runs, in the order of seeds."""
    name = f"figures/fedbe/{item}/paper{'_measures' if measure else ''}.csv"
    table = pd.read_csv(ROOT / name).query("row == @row and column == 'ConvNet'").sort_values("seed")
    return points(table[table["measure"] == measure]["value"] if measure else table["result"])


RULES = ("", "accuracy by vote", "accuracy by mean at temperature 2", "accuracy by mean of logits")


def test_what_table_1_and_the_readme_say_of_paper_scale() -> None:
    table = recorded("table1_methods", "paper")
    places = [f"{partition}/1-Ensemble" for partition in ("Step", "Dirichlet")]
    assert set(table["row"]) == {"Centralized/SGD", *places}
    assert (set(table["precision"]), set(table["column"])) == ({"bfloat16"}, {"ConvNet"})
    printed = FEDBE.reported.query("item == 'table1_methods' and column == 'ConvNet'").drop_duplicates("row")
    theirs = printed.set_index("row")
    text = prose("table1_methods")
    (central,) = table[table["row"] == "Centralized/SGD"]["result"]
    pair = [f"{central:.2f}", f"{theirs['mean']['Centralized/SGD']:.1f}"]
    assert [*re.findall(r"Trained centrally it ends at ([\d.]+) % \(the paper has ([\d.]+)\)", text)[0]] == pair
    assert "centralised {} beside the paper's {}; ".format(*pair) in README
    step, dirichlet = (
        [*by_seed("table1_methods", place), *(f"{theirs[name][place]:g}" for name in ("mean", "std"))]
        for place in places
    )
    assert (len(step), len(dirichlet)) == (4, 4)  # two seeds each, the paper's mean and spread
    assert "ends at {} and {} % on Step (the paper has {} ± {}) and at".format(*step) in text
    assert "and at {} and {} % on Dirichlet ({} ± {}).".format(*dirichlet) in text
    logits = [number for place in places for number in by_seed("table1_methods", place, RULES[3])]
    assert "logits the same ones reach {} and {} % on Step, {} and {} on Dirichlet".format(*logits) in text
    means = points(table.groupby("row")["result"].mean()[places])
    shown = f"1-Ensemble {means[0]} beside {step[2]} (Step) and {means[1]} beside {dirichlet[2]} (Dirichlet)"
    assert shown in README
    spreads = table.groupby("row")["result"].std()[places].to_numpy()
    assert (
        spreads > 4 * theirs["std"][places].to_numpy()
    ).all()  # "farther apart than the paper's five runs could"


def test_what_is_said_of_1_ensemble_at_paper_scale() -> None:
    table = recorded("paper_vs_code", "paper")
    assert set(table["precision"]) == {"bfloat16"}
    text, item = prose("paper_vs_code"), "paper_vs_code"
    step, dirichlet, code, far = (
        {rule: by_seed(item, f"1-Ensemble {name}", rule) for rule in RULES}
        for name in ("as in the paper", "Dirichlet as in the paper", "trained as in the code",
                     "Dirichlet, trained as in the code")
    )  # fmt: skip
    counts = [{len(numbers_) for numbers_ in ways.values()} for ways in (step, dirichlet, code, far)]
    assert counts == [{2}, {2}, {1}, {1}]
    assert "gives {} and {} % on Step, where the paper has 60.5 ± 0.28 over".format(*step[""]) in text
    assert "and {} and {} % on Dirichlet, where it has 63.3 ± 0.56.".format(*dirichlet[""]) in text
    assert all(abs(float(pair[""][0]) - float(pair[""][1])) > 3 for pair in (step, dirichlet))
    rest = [number for rule in RULES[1:] for number in step[rule]]
    said = "vote gives {} and {} %, probabilities at temperature 2 {} and {}, the mean of logits {} and {}:"
    assert said.format(*rest) in text
    every = [float(number) for numbers_ in step.values() for number in numbers_]
    assert min(every) < 60.5 < max(every)
    rest = [number for rule in RULES[1:] for number in dirichlet[rule]]
    assert "they give {} and {}, {} and {}, {} and {}, all below".format(*rest) in text
    assert max(float(number) for numbers_ in dirichlet.values() for number in numbers_) < 63.3
    own = [code[rule][0] for rule in RULES]
    assert (
        "ends at {} % by mean of probabilities, {} by vote, {} at temperature 2 and {} by mean of".format(*own)
        in text
    )
    (ties,) = by_seed(item, "1-Ensemble trained as in the code", "accuracy by vote, ties in order")
    assert f"and that rule reaches {ties} %." in text
    away = [far[rule][0] for rule in RULES]
    assert "in the same order, at {}, {}, {} and {} %, so the partition".format(*away) in text
    gap = 63.3 - sum(map(float, dirichlet[""])) / 2
    assert 7.5 < gap < 8.5  # "some eight points"
    assert "end at {} and {} %; from".format(*step[""]) in CARD
    pair = r"([\d.]+) and ([\d.]+)"
    pattern = rf"mean of logits\s+gives {pair}, .* temperature 2 {pair}, the vote {pair}\."
    assert [*re.findall(pattern, CARD)[0]] == [n for rule in reversed(RULES[1:]) for n in step[rule]]
    assert f"mean of probabilities gives {own[0]}; by the code's vote, which" in CARD
    assert f"in the order of the classes, {ties}." in CARD
    assert (
        "the same training gives {}, on ours the paper's training {} and {}; the".format(away[0], *dirichlet[""])
        in CARD
    )
    measures = pd.read_csv(ROOT / "figures/fedbe/paper_vs_code/paper_measures.csv")
    read = measures[measures["row"] == "1-Ensemble as in the paper"].groupby("measure")["value"].mean()
    means = points([table[table["row"] == "1-Ensemble as in the paper"]["result"].mean(), *read[list(RULES[1:])]])
    best = f"{min(means)} to {max(means)}, trained as in the code {min(own)} to {max(own)}, the paper 60.5 |"
    assert best in README


def test_what_table_5_and_the_readme_say_of_paper_scale() -> None:
    table = recorded("table5_cifar100", "paper")
    (line,) = table.itertuples()
    assert (line.row, line.column, line.seed, line.precision) == ("Step/FedAvg", "ConvNet", 0, "bfloat16")
    theirs = FEDBE.reported.query("item == 'table5_cifar100' and row == 'Step/FedAvg' and column == 'ConvNet'")
    rounds = pd.read_csv(ROOT / "figures/fedbe/table5_cifar100/paper_rounds.csv")["accuracy"]
    (gain,) = points([rounds.iloc[-10:].mean() - rounds.iloc[-20:-10].mean()])
    (ours,) = points(table["result"])
    text = prose("table5_cifar100")
    assert f"ends at {ours} % after {len(rounds)} rounds, where the paper has" in text
    assert f"the paper has {theirs['mean'].item()} ± {theirs['std'].item()} over five runs" in text
    assert (
        f"The mean of its last ten rounds, at a hundredth of the first learning rate, is {gain} points above"
        in text
    )
    assert f"{ours} beside the paper's {theirs['mean'].item()}, too few seeds to tell" in README


def test_what_table_7_and_the_readme_say_of_paper_scale() -> None:
    table = recorded("table7_stragglers", "paper").set_index("row")
    names = ["Stragglers/FedAvg", "Stragglers/FedProx"]
    assert (list(table.index), set(table["precision"]), set(table["seed"])) == (names, {"bfloat16"}, {0})
    printed = FEDBE.reported.query("item == 'table7_stragglers' and column == 'ConvNet'")
    theirs = printed.drop_duplicates("row").set_index("row")
    text = prose("table7_stragglers")
    pattern = r"FedAvg ends at ([\d.]+) %, where the paper has ([\d.]+) ± ([\d.]+) over five runs, and FedProx at"
    pattern += r" ([\d.]+) %, where it has ([\d.]+) ± ([\d.]+)\."
    told = [f"{n:g}" for name in names for n in (table["result"][name], *theirs.loc[name, ["mean", "std"]])]
    assert [*re.findall(pattern, text)[0]] == told
    gaps = [abs(table["result"][name] - theirs["mean"][name]) < theirs["std"][name] for name in names]
    assert gaps == [True, True]  # "within the paper's spread"
    own, paper = (found[names[1]] - found[names[0]] for found in (table["result"], theirs["mean"]))
    assert f"FedProx is not above FedAvg ({own:.2f} points; the paper's means differ by {paper:.1f})" in text
    split = pd.read_csv(ROOT / "figures/fedbe/table7_stragglers/paper.csv")["split"]
    assert split.nunique() == 1
    pattern = r"FedAvg ([\d.]+) beside the paper's ([\d.]+) and FedProx ([\d.]+) beside ([\d.]+), too few seeds"
    shown = [f"{n:.1f}" for name in names for n in (table["result"][name], theirs["mean"][name])]
    assert [*re.findall(pattern, README)[0]] == shown


def test_what_is_said_of_table_2_s_targets() -> None:
    ends_ = recorded("table2_targets").query("seed == 0").set_index("row")["result"]
    truth = "Ground-truth labels"
    (best,) = points(ends_[[truth]])
    text = prose("table2_targets")
    assert f"True labels end far ahead ({best} %)." in text
    others = ends_.drop(truth)
    assert f"within two points of each other ({others.min():.2f} to {others.max():.2f} %)" in text
    assert others.max() - others.min() <= 2
    assert ends_[truth] - others.max() > 6
    order = ["FedAvg", "FedAvg + clients", "clients + samples", "FedAvg + clients + samples"]
    assert list(others.sort_values().index) == order  # as in the paper
    theirs = FEDBE.reported.query("item == 'table2_targets' and column == 'ConvNet'").set_index("row")["mean"]
    known = theirs[order].dropna()
    assert (len(known), list(known.sort_values().index)) == (3, list(known.index))


def test_what_is_said_of_table_8_s_alphas() -> None:
    ours = recorded("table8_dirichlet").query("seed == 0").set_index("row")["result"]
    same = recorded("table1_methods").query("column == 'ConvNet' and seed == 0 and precision == 'float32'")
    (fedavg,) = same[same["row"] == "Step/FedAvg"]["result"]
    below = points(fedavg - ours[["alpha=0.1", "alpha=2"]])
    assert "alpha 0.1 and 2 end {} and {} points below FedAvg".format(*below) in prose("table8_dirichlet")
    (spread,) = points([ours.max() - ours.min()])
    assert f"the four spread over {spread} points" in prose("table8_dirichlet")
    assert ours.idxmin() == "alpha=0.1"
    assert ours.idxmax() in ("alpha=0.5", "alpha=1")


def test_what_is_said_of_table_6_s_last_rounds() -> None:
    rounds = pd.read_csv(ROOT / "figures/fedbe/table6_tiny_imagenet/short_rounds.csv").query(
        "column == 'ResNet-20'"
    )
    fedavg, fedbe = (
        rounds[rounds["row"] == f"Step/{name}"].set_index("round")["accuracy"] for name in ("FedAvg", "FedBE")
    )
    text = prose("table6_tiny_imagenet")
    assert (
        f"FedAvg ends at a test accuracy of {fedavg[5]:.2f} % and FedBE at {fedbe[5]:.2f} % (of 200 classes"
        in text
    )
    assert f"FedAvg still rises in the sixth round, FedBE falls from {fedbe[4]:.2f} %" in text
    assert fedavg[5] > fedavg[4]
    assert fedbe[5] < fedbe[4]


def test_the_readme_tells_the_minutes_of_the_runs_at_paper_scale() -> None:
    pattern = r"(\w+) runs of the ConvNet took (\d+) to (\d+) minutes beside"
    ((many, *found),) = re.findall(pattern, README)
    tables = [recorded(item, "paper") for item in BATCH if (ROOT / f"figures/fedbe/{item}/paper.csv").exists()]
    minutes = pd.concat(tables).query("column == 'ConvNet'").drop_duplicates("key")["seconds"] / 60
    assert found == [f"{minutes.min():.0f}", f"{minutes.max():.0f}"]
    assert (
        many == ["no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"][len(minutes)]
    )


def test_what_is_said_of_scaffold_and_the_late_ensemble() -> None:
    table = recorded("text_numbers").query("column == 'ResNet-20' and seed == 0").set_index("row")
    name = "Step/FedAvg, ensemble after the last round"
    late, scaffold = table.loc[name], table.loc["Normal/SCAFFOLD"]
    text = prose("text_numbers")
    assert f"has {late['result']:.2f} %, the average of the same run {late['average_accuracy']:.2f}." in text
    assert f"It ends at {scaffold['result']:.2f} %, above that average" in text
    assert scaffold["result"] > late["average_accuracy"]
    both = table.loc["Normal/FedBE + SCAFFOLD"]
    assert f"FedBE on top of it ends at {both['result']:.2f} %, which tells nothing" in text
    assert abs(both["result"] - scaffold["result"]) < 0.5
    (gain,) = points((table["result"] - table["average_accuracy"])[[name]])
    assert f"the late ensemble is {gain} points above the average of its run" in README
