"""Every paper's data: each value has a source, each rule and cell is about things that exist, each printed number
has its cell."""

import math
from collections import Counter
from collections.abc import Iterator
from functools import lru_cache

import numpy as np
import pytest

from fedrepro import papers
from fedrepro.core.rng import Streams
from fedrepro.core.setting import Setting
from fedrepro.data.data import DATASETS
from fedrepro.federation.assemble import PARTITIONS, architectures, assemble, split
from fedrepro.federation.public import SOURCES
from fedrepro.methods import catalogue as methods
from fedrepro.methods.measures import measured
from fedrepro.papers import SCALES, Cell, Item
from fedrepro.papers.claims import needed_cells, parse_claims
from fedrepro.papers.metrics import METRICS
from fedrepro.papers.paper import KINDS, Rule, any_of
from fedrepro.papers.reading import ANSWER, RECORDED
from fedrepro.papers.reported import agree
from fedrepro.report import verdict

FIELDS = Setting.types()
PAPERS = papers.names()
ITEMS = [item for paper in PAPERS for item in papers.find(paper)]
PLACES = [(item, scale) for item in ITEMS for scale in SCALES]
IDS = [f"{item.key}-{scale}" for item, scale in PLACES]
# Fields that label nothing but themselves: a rule that sets no other needs no source.
NAMES = {"model", "partition", "method"}


def cells(item: Item, scale: str) -> list[Cell]:
    return papers.load(item.paper).cells(item.name, scale)


def names(found: list[Cell]) -> list[tuple[str, str]]:
    return [(cell.row, cell.column) for cell in found]


def rules(paper: str) -> Iterator[tuple[list[Item], Rule]]:
    """Yield each rule with the items that it may be about."""
    found = papers.load(paper)
    yield from ((list(found.items.values()), rule) for rule in found.rules)
    yield from (([item], rule) for item in found.items.values() for rule in item.rules)


# -- settings, labels and rules ---------------------------------------------------------------------------------


@pytest.mark.parametrize("paper", PAPERS)
def test_every_value_is_stated_or_assumed_and_is_a_setting(paper: str) -> None:
    table = papers.load(paper).settings
    assert set(table["name"]) <= set(FIELDS)
    assert set(table["kind"]) <= set(KINDS)
    assert all(isinstance(source, str) and len(source) >= 3 for source in table["source"])
    Setting.of(dict(zip(table["name"], table["value"])))


@pytest.mark.parametrize("paper", PAPERS)
def test_every_rule_sets_settings_and_is_about_labels_that_exist(paper: str) -> None:
    for items, rule in rules(paper):
        assert set(rule) <= {"when", "set", "read", *KINDS}, rule
        assert rule.get("set") or rule.get("read"), rule
        assert set(rule.get("set", {})) <= set(FIELDS), rule
        labels = {"scale": set(SCALES)}
        for axis, values in ((a, v) for item in items for a, v in item.labels.items()):
            labels.setdefault(axis, set()).update(values)
        for axis, wanted in rule.get("when", {}).items():
            assert set(any_of(wanted)) <= labels[axis], rule


@pytest.mark.parametrize("paper", PAPERS)
def test_a_rule_that_departs_from_the_table_says_why(paper: str) -> None:
    for _, rule in rules(paper):
        if set(rule.get("set", {})) - NAMES and "scale" not in rule.get("when", {}):
            assert len([kind for kind in KINDS if len(rule.get(kind, "")) >= 3]) == 1, rule


@pytest.mark.parametrize("paper", PAPERS)
def test_every_preset_sets_settings(paper: str) -> None:
    for preset in papers.load(paper).presets.values():
        assert set(preset.values) <= set(FIELDS), preset
        assert all((preset.values, preset.paper, preset.code)), preset


@pytest.mark.parametrize("item", ITEMS, ids=lambda item: item.key)
def test_every_value_of_an_item_has_its_source(item: Item) -> None:
    sources = papers.load(item.paper).sources(item.name)
    assert set(sources["name"]) >= set(papers.load(item.paper).settings["name"])
    assert all(set(kind.split(", ")) <= set(KINDS) for kind in sources["kind"])


# -- cells ----------------------------------------------------------------------------------------------------


@lru_cache
def classes_of(data: str) -> int:
    return len(DATASETS[data].classes) if data in DATASETS else 3  # the Swiss roll


@pytest.mark.parametrize(("item", "scale"), PLACES, ids=IDS)
def test_everything_that_a_cell_names_exists(item: Item, scale: str) -> None:
    assert cells(item, scale)
    for cell in cells(item, scale):
        s = cell.setting
        assert s.data in DATASETS or s.data == "swiss_roll", cell
        assert s.partition in PARTITIONS, cell
        assert s.method in methods.METHODS, cell
        assert not s.public_data or s.public_data in {*DATASETS, *SOURCES}, cell
        methods.build(s)
        assert architectures(s, classes_of(s.data)), cell


@lru_cache
def labels_of(data: str) -> np.ndarray:
    return np.arange(DATASETS[data].sizes["train"]) % classes_of(data)


@pytest.mark.parametrize("item", ITEMS, ids=lambda item: item.key)
def test_every_partition_exists_and_its_counts_close(item: Item) -> None:
    done = set()
    for cell in [cell for scale in ("short", "paper") for cell in cells(item, scale)]:
        s = cell.setting
        told = (s.data, s.partition, s.partition_alpha, s.clients, s.public_images, s.client_images)
        about = (*told, s.major_classes, s.major_images, s.minor_images)
        if s.data in DATASETS and about not in done:
            parts, server = split(s, labels_of(s.data), 0)
            assert (len(parts), len(server["public"])) == (s.clients, s.public_images), cell
            done.add(about)


@lru_cache
def measures(setting: Setting) -> set[str]:
    """Play a round to see what is measured of it beside what always is."""
    method, federation = methods.build(setting), assemble(setting, 0)
    state, round = method.round(method.init(federation, 0), federation, Streams(0, 0))
    return set(measured(method, state, round, federation))


@pytest.mark.parametrize("item", ITEMS, ids=lambda item: item.key)
def test_every_reading_finds_what_it_reads(item: Item) -> None:
    known = {ANSWER, *RECORDED}
    for cell in cells(item, "smoke"):
        known |= {f"{stage}_seconds" for stage, _ in methods.build(cell.setting).stages}
        if cell.reading.measure not in known:
            known |= measures(cell.setting)
    for cell in [cell for scale in SCALES for cell in cells(item, scale)]:
        reading = cell.reading
        assert reading.measure in known, cell
        assert reading.cap <= cell.setting.rounds, cell
        assert isinstance(reading.at, str) or reading.at <= cell.setting.rounds, cell


@pytest.mark.parametrize(("item", "scale"), PLACES, ids=IDS)
def test_no_two_cells_of_an_item_have_one_name_or_are_one_number(item: Item, scale: str) -> None:
    found = cells(item, scale)
    assert max(Counter(names(found)).values()) == 1
    if item.batch:  # one run may serve several cells, but each reads something else
        assert max(Counter((cell.setting.key, str(cell.reading)) for cell in found).values()) == 1


@pytest.mark.parametrize("item", ITEMS, ids=lambda item: item.key)
def test_smaller_scales_have_cells_and_seeds_of_the_larger_only(item: Item) -> None:
    paper = set(names(cells(item, "paper")))
    assert set(names(cells(item, "smoke"))) <= paper
    assert set(names(cells(item, "short"))) <= paper
    assert set(item.seeds) == set(SCALES)
    assert 1 <= item.seeds["smoke"] <= item.seeds["short"] <= item.seeds["paper"]


@pytest.mark.parametrize("paper", PAPERS)
def test_scales_never_share_a_setting(paper: str) -> None:
    items = [item for item in papers.find(paper) if item.batch]
    found = {scale: {cell.setting.key for item in items for cell in cells(item, scale)} for scale in SCALES}
    assert not found["smoke"] & found["short"]
    assert not (found["smoke"] | found["short"]) & found["paper"]


@pytest.mark.parametrize("item", ITEMS, ids=lambda item: item.key)
def test_smoke_needs_no_download(item: Item) -> None:
    for cell in cells(item, "smoke"):
        for data in filter(None, (cell.setting.data, cell.setting.public_data)):
            assert data == "swiss_roll" or DATASETS[data].shipped


@pytest.mark.parametrize("item", ITEMS, ids=lambda item: item.key)
def test_smoke_cells_can_be_assembled(item: Item) -> None:
    for cell in cells(item, "smoke"):
        federation = assemble(cell.setting, 0)
        assert federation.clients == cell.setting.clients
        if not cell.setting.public_data:
            assert len(federation.public) == cell.setting.public_images
        assert min(len(part) for part in federation.parts) >= 2


# -- reported numbers and claims --------------------------------------------------------------------------------


@pytest.mark.parametrize("paper", PAPERS)
def test_every_printed_number_has_a_cell_or_a_reason_for_none(paper: str) -> None:
    found = papers.load(paper)
    printed: dict[str, set[tuple[str, str]]] = {}
    for line in found.reported.to_dict("records"):
        printed.setdefault(line["item"], set()).add((line["row"], line["column"]))
    for name, places in printed.items():
        if name in found.items:
            item = found.items[name]
            built = set(names(cells(item, "paper"))) | {(gain.row, gain.column) for gain in item.gains}
            assert {row for row, column in places if (row, column) not in built} == set(item.not_built), name
        else:
            assert found.not_built.get(name), f"{name} is printed, not built, and has no reason"
    assert not set(found.not_built) & set(found.items)
    assert set(found.not_built) <= set(printed)


@pytest.mark.parametrize("paper", PAPERS)
def test_reported_numbers_have_known_metrics_and_statuses(paper: str) -> None:
    table = papers.load(paper).reported
    assert set(table["metric"]) <= set(METRICS)
    assert ((table["status"] == "lost") == table["mean"].isna()).all()
    assert not table.duplicated(["source", "item", "row", "column"]).any()
    assert len(verdict.comparison(papers.load(paper), str(table["item"].iloc[0]), []))


@pytest.mark.parametrize("paper", PAPERS)
def test_every_cell_of_a_claim_exists(paper: str) -> None:
    found, path = papers.load(paper), papers.FOLDER / paper / "claims.toml"
    known = set(map(tuple, found.reported[["item", "row", "column"]].values.tolist()))
    known |= {(item.name, *name) for item in found.items.values() for name in names(cells(item, "paper"))}
    for claim in parse_claims(path.read_text("utf-8")):
        assert set(needed_cells(claim)) <= known, claim.id
        assert claim.item in {name for name, _, _ in known}, claim.id
        assert math.isfinite(claim.margin)


def test_a_number_and_itself_rounded_agree() -> None:
    assert agree([], [])
    assert agree([70.0, 70.0], [0.1, 0.1])
    assert not agree([70.0, 70.4], [0.1, 0.1])  # a number that ends in 0 is printed no less exactly
    assert agree([74.5, 74.54], [0.1, 0.01])
    assert agree([74.5, 74.45], [0.1, 0.01])
    assert not agree([74.5, 74.56], [0.1, 0.01])
    assert not agree([74.5, 74.54, 74.61], [0.1, 0.01, 0.01])
    assert not agree([74.54, 74.55], [0.01, 0.01])
    assert agree([math.nan, 3.0], [0.1, 0.1])
