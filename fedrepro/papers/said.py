"""What a paper's rules say of a value, gathered."""

from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass
class Said:
    """What rules say of one value: how it is known, from where, and for which labels."""

    kind: str
    source: str
    labels: list[str] = field(default_factory=list)

    def add(self, kind: str, source: str, labels: str) -> None:
        """Take in what a further rule says of the value."""
        self.labels.append(labels)
        if self.kind != "stated" and kind == "stated":
            self.kind, self.source = kind, source

    def __str__(self) -> str:
        """Return it in words: "for A and B stated: 5.1"."""
        labels = list(dict.fromkeys(self.labels))
        every = " and ".join(filter(None, (", ".join(labels[:-1]), labels[-1])))
        return f"for {every} {self.kind}: {self.source}"


def joined(every: Iterable[Said]) -> list[Said]:
    """Return what is said of several values, those of one source together."""
    found: dict[tuple[str, str], Said] = {}
    for one in every:
        found.setdefault((one.kind, one.source), Said(one.kind, one.source)).labels.extend(one.labels)
    return list(found.values())
