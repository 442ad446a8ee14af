"""Which engines the benchmark measures, and why not others."""

import torch

from fedrepro import kernels
from fedrepro.bench.engine import CLASSES
from fedrepro.bench.timing import Sizes
from fedrepro.kernels import stacked
from fedrepro.models.architecture import Architecture


def reason(engine: str, sizes: Sizes, precision: str = "") -> str:
    """Return why an engine cannot be measured, or ""."""
    try:
        module = kernels.kernel(engine)
    except (ValueError, ImportError) as error:
        return str(error)
    supports = getattr(module, "supports", None)
    architecture = Architecture(sizes.model, CLASSES)
    return (
        str(supports(architecture, torch.device(sizes.device), precision or sizes.precision)) if supports else ""
    )


def choice(sizes: Sizes) -> tuple[str, str]:
    """Return the engine that is chosen automatically, and why."""
    made = stacked.choose(Architecture(sizes.model, CLASSES), torch.device(sizes.device), sizes.precision)
    return (made.engine if not reason(made.engine, sizes) else "stacked"), made.why


def engines_of(text: str, sizes: Sizes) -> tuple[list[str], dict[str, str]]:
    """Return the engines to measure, the leading one first, and those that cannot be, with the reason."""
    lead = choice(sizes)[0]
    known = [*kernels.KERNELS, *kernels.LAZY]
    if text == "all":
        names = [lead, *(name for name in known if name != "stacked")]
    else:
        names = [name.strip() for name in text.split(",") if name.strip()] or [lead, "plain"]
    why = {name: reason(name, sizes) for name in dict.fromkeys(names)}
    return [name for name in why if not why[name]], {name: text for name, text in why.items() if text}
