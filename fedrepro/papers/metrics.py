"""Metrics: the unit of every kind of number that papers print, and up to where a gap does not matter.

That is what holds where the paper draws no conclusion that says more (`fedrepro.papers.judging`): 1 point for
percentages, 5 % of the paper's number for ratios and 10 % for rounds. Times depend on the device, so they are
shown and never judged; neither is a setting that a paper merely names.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from fedrepro.core.names import pick

TOLERANCE = 1e-9  # floating-point noise of means and spreads of percentages


@dataclass(frozen=True, kw_only=True)
class Metric:
    """A kind of number.

    Args:
        unit: for people: "%", "points", "rounds", "ratio", "s" or "h".
        better: "more", "less", or "" where neither is better or the papers do not say.
        judged: whether a run's number is held against the paper's.
        points: distance that does not matter, in the unit.
        share: the same as a share of the paper's number, in addition.
    """

    unit: str
    better: str = ""
    judged: bool = True
    points: float = 0.0
    share: float = 0.0

    def margin(self, mean: float) -> float:
        """Return how far from the paper's number a gap does not matter yet."""
        return self.points + self.share * abs(mean)


METRICS: Mapping[str, Metric] = {
    "test_acc_pct": Metric(unit="%", better="more", points=1.0),
    "acc_pct": Metric(unit="%", better="more", points=1.0),
    "iou_pct": Metric(unit="%", points=1.0),
    "acc_gain_pct": Metric(unit="points", better="more", points=1.0),
    "acc_gap_pct": Metric(unit="points", better="less", points=1.0),
    "percent": Metric(unit="%", share=0.05),  # one quantity as a share of another: a ratio
    "relative_weight_distance": Metric(unit="ratio", better="less", share=0.05),
    "rounds_to_target": Metric(unit="rounds", better="less", share=0.1),
    "decay": Metric(unit="ratio", judged=False),  # a setting, not a result
    "seconds": Metric(unit="s", better="less", judged=False),
    "seconds_per_round": Metric(unit="s", better="less", judged=False),
    "hours": Metric(unit="h", better="less", judged=False),
}


def metric(name: str) -> Metric:
    """Return a metric by its name.

    Raises:
        ValueError: for an unknown name, with the nearest real one.
    """
    return pick("metric", name, METRICS)
