"""Networks by name, and the state they start from.

`build` gives a network, `initialise` its starting point, `register` adds a reader's own; none touches a global
random state.
"""

from fedrepro.models.initialise import SCHEMES, initialise
from fedrepro.models.layers import has_batch_norm, parameter_count
from fedrepro.models.registry import NAMES, build, options_of, register

__all__ = [
    "NAMES",
    "SCHEMES",
    "build",
    "has_batch_norm",
    "initialise",
    "options_of",
    "parameter_count",
    "register",
]
