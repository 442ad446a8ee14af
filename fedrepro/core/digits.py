"""Numbers in decimals, rounded as readers round them."""

import math
from decimal import ROUND_HALF_UP, Decimal

NOISE = 9  # decimals that count: 42.35 as a mean of floats may be 42.349999999999994


def fixed(value: float, places: int) -> str:
    """Return a number with some decimals, a half away from zero: 84.05 is "84.1".

    So numbers and their difference, each rounded by itself, agree as often as decimals can. A zero has no sign.
    """
    if not math.isfinite(value):
        return str(value)
    rounded = Decimal(repr(round(float(value), NOISE))).quantize(Decimal(1).scaleb(-places), ROUND_HALF_UP)
    return f"{abs(rounded) if rounded == 0 else rounded:.{places}f}"


def plain(value: float, places: int = 1) -> str:
    """Return a number as it is printed, with a minus that is one: "84.1", "−0.3"."""
    return fixed(value, places).replace("-", "−")


def signed(value: float, places: int = 1) -> str:
    """Return a number with its sign, a minus as one is printed: "+1.2", "−0.3", "+0.0"."""
    text = plain(value, places)
    return text if text.startswith("−") else f"+{text}"
