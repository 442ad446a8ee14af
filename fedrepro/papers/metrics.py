"""Metrics: the unit of every kind of number that papers print, and what counts as near where no spread is known.

Percentages are near within 0.5 points, ratios within 5 % and rounds within 10 % of the paper's number. Times
depend on the device, so they are shown and never judged; neither is a setting that a paper merely names.
"""

import math
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
        points: distance up to which numbers are near, in the unit.
        share: the same as a share of the paper's number, in addition.
    """

    unit: str
    better: str = ""
    judged: bool = True
    points: float = 0.0
    share: float = 0.0

    def margin(self, mean: float) -> float:
        """Return how far from the paper's number is still near."""
        return self.points + self.share * abs(mean)

    def near(self, gap: float, mean: float) -> bool:
        """Say whether a number that lies so far from the paper's is as good as the same.

        Args:
            gap: ours minus the paper's, in the unit; NaN is near nothing.
            mean: the paper's.
        """
        return math.isfinite(gap) and abs(gap) <= self.margin(mean) + TOLERANCE


METRICS: Mapping[str, Metric] = {
    "test_acc_pct": Metric(unit="%", better="more", points=0.5),
    "acc_pct": Metric(unit="%", better="more", points=0.5),
    "iou_pct": Metric(unit="%", points=0.5),
    "acc_gain_pct": Metric(unit="points", better="more", points=0.5),
    "acc_gap_pct": Metric(unit="points", better="less", points=0.5),
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
