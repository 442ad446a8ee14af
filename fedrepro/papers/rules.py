"""Rules as they stand in a paper's files, brought to one form: labels that only map to values are rules, too.

    [labels.model]                                                          # one line a label, for an axis:
    ConvNet = { model = "convnet" }                                         # what it sets,
    FedProx = { method = "fedprox", proximal_mu = 1e-3, assumed = "..." }   # with the source,
    "1-Ensemble" = { rounds = 1, smoke = { local_epochs = 2 } }             # and what else at a scale

    labels.alpha = { set = "dirichlet_alpha", stated = "Table 8" }          # each label is one setting's value

The second form takes all labels of the axis, or those of `values`, a list, or a table that gives the value of
each. `stated_for` and `assumed_for` give the source of single labels; `smoke`, `short` and `paper` the value of
single labels at a scale. The lines of the first form may also have `preset` and `read`.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from fedrepro.core.names import nearest, pick
from fedrepro.core.setting import Setting
from fedrepro.papers.paper import KINDS, SCALES, Preset, Rule

_BESIDE = (*KINDS, "preset", "read")  # what a label's line may hold beside settings and scales
_SHORT = ("set", "values", *KINDS, *(f"{kind}_for" for kind in KINDS), *SCALES)


def rules(entry: Mapping[str, Any], labels: Mapping[str, Sequence[str]], presets: Mapping[str, Preset]) -> tuple:
    """Return the rules of a paper or an item in the order in which they apply, the general before the particular.

    First those for all labels, then the labels' own lines, then the rules about some labels. Those about a scale
    apply after all others, in this same order; `Paper` sees to that.

    Args:
        entry: the file's content: `rule` and `labels`.
        labels: the labels of each axis, where they are known: those of an item.
        presets: the paper's.

    Raises:
        ValueError: for an unknown setting, label, preset or key, with the nearest real one.
    """
    given = [_filled(rule, presets) for rule in entry.get("rule", [])]
    lines = [
        _filled(rule, presets)
        for axis, table in entry.get("labels", {}).items()
        for rule in _of_labels(axis, table, labels.get(axis, ()))
    ]
    general = [rule for rule in given if not set(rule.get("when", {})) - {"scale"}]
    return (*general, *lines, *(rule for rule in given if rule not in general))


def _of_labels(axis: str, table: Mapping[str, Any], labels: Sequence[str]) -> list[Rule]:
    """Return the rules behind the labels of an axis."""
    lines = _written_out(axis, table, labels) if isinstance(table.get("set"), str) else table
    found = []
    for label, line in lines.items():
        if labels and label not in labels:
            raise ValueError(f"the axis {axis} has no label {label!r}{nearest(label, list(labels))}")
        found.append(_rule({axis: label}, {name: value for name, value in line.items() if name not in SCALES}))
        found += [_rule({axis: label, "scale": scale}, line[scale]) for scale in SCALES if scale in line]
    return [rule for rule in found if len(rule) > 1]


def _rule(when: Mapping[str, str], line: Mapping[str, Any]) -> dict[str, Any]:
    values = {name: value for name, value in line.items() if name not in _BESIDE}
    beside = {name: value for name, value in line.items() if name in _BESIDE}
    return {"when": dict(when)} | ({"set": values} if values else {}) | beside


def _written_out(axis: str, table: Mapping[str, Any], labels: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return the lines of labels that are each the value of one setting."""
    name, given = table["set"], table.get("values", labels)
    kind = pick("setting", name, Setting.types())
    for key in table:
        if key not in _SHORT:
            raise ValueError(f"unknown key {key!r} of the labels of {axis}{nearest(key, _SHORT)}")
    values = given if isinstance(given, Mapping) else {label: _typed(axis, label, name, kind) for label in given}
    lines: dict[str, dict[str, Any]] = {label: {name: value} for label, value in values.items()}
    for one in KINDS:
        for label in lines if one in table else ():
            lines[label][one] = table[one]
    for one in KINDS:
        for label, source in table.get(f"{one}_for", {}).items():
            rest = {key: value for key, value in pick("label", label, lines).items() if key not in KINDS}
            lines[label] = rest | {one: source}
    for scale in SCALES:
        for label, value in table.get(scale, {}).items():
            lines.setdefault(label, {})[scale] = {name: value}
    return lines


def _typed(axis: str, label: str, name: str, kind: type) -> Any:
    """Return a label's text as a value of a setting.

    Raises:
        ValueError: if it is none.
    """
    if kind not in (int, float, str):
        raise ValueError(f"{name} cannot be read from labels, as it is {kind.__name__}: give the values of {axis}")
    try:
        return kind(label)
    except ValueError as error:
        raise ValueError(
            f"the label {label!r} of {axis} is no {kind.__name__} for {name}: give its value"
        ) from error


def _filled(rule: Rule, presets: Mapping[str, Preset]) -> Rule:
    """Put the values of a rule's preset where its own are, which win, and say where they come from."""
    if "preset" not in rule:
        return rule
    preset = pick("preset", rule["preset"], presets)
    rest = {key: value for key, value in rule.items() if key != "preset"}
    return {"assumed": f"not the paper but the code: {preset.code}", **rest} | {
        "set": {**preset.values, **rule.get("set", {})}
    }
