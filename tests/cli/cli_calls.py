"""What tests of the command line ask and are told."""

import dataclasses
from collections.abc import Callable

from fedrepro import papers

FEDBE = papers.load("fedbe")
TABLE = "fedbe/table1_methods"
# Two cells of one run (the toy has its own partition), another run, and one that cannot be played.
GOOD, BAD = ["--only", "ConvNet,FedAvg"], ["--only", "ConvNet,Step,FedAvg,FedBE"]


@dataclasses.dataclass
class Answer:
    code: int
    out: str
    err: str


Call = Callable[..., Answer]
