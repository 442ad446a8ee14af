import math

import pytest

from fedrepro.core.digits import fixed, signed


@pytest.mark.parametrize(
    ("value", "places", "text"),
    [
        (84.05, 1, "84.1"),  # binary's 84.05 is below the half
        (40.15, 1, "40.2"),
        (40.75, 1, "40.8"),
        (-0.25, 1, "-0.3"),
        (2.5, 0, "3"),
        (1 / 3, 2, "0.33"),
        (3, 2, "3.00"),
        (sum([42.3, 42.4]) / 2, 2, "42.35"),
        (-0.001, 2, "0.00"),
        (1e6, 1, "1000000.0"),
    ],
)
def test_halves_go_away_from_zero(value: float, places: int, text: str) -> None:
    assert fixed(value, places) == text


def test_what_is_no_number_stays() -> None:
    assert (fixed(math.nan, 1), fixed(math.inf, 1), fixed(-math.inf, 1)) == ("nan", "inf", "-inf")


@pytest.mark.parametrize(
    ("value", "places", "text"), [(0.25, 1, "+0.3"), (-0.25, 1, "−0.3"), (-0.01, 1, "+0.0"), (4.0, 2, "+4.00")]
)
def test_a_sign_is_told(value: float, places: int, text: str) -> None:
    assert signed(value, places) == text
