"""Tables of texts as notebooks show them: to the left; on a phone, where they are sentences, below each other."""

from collections.abc import Callable

import pandas as pd

from fedrepro.report import cells, layout

STACKED = 60  # characters in a cell, from which on a table of texts is one of sentences
UNREAD, BESIDE = "not read here", "beside settings"


class Lines(pd.DataFrame):
    """A frame of texts that a notebook shows to the left, with its index named; in all else a DataFrame."""

    @property
    def _constructor(self) -> Callable[..., "Lines"]:
        return Lines

    def _repr_html_(self) -> str:
        if not len(self):
            return "<p>none</p>"
        found = texts(self)
        kind = "long stacked" if found.map(len).to_numpy().max() > STACKED else "long"
        return layout.shown([layout.Part(layout.styled(found, kind=kind))], self._legend())

    def _legend(self) -> str:
        return ""

    def __repr__(self) -> str:
        """Show the lines as text, or that there are none."""
        return pd.DataFrame(self).to_string() if len(self) else "none"


class Claimed(Lines):
    """What became of claims, with what the words that occur mean."""

    def _legend(self) -> str:
        words = set(texts(self).to_numpy().ravel())
        return "; ".join(f"{word}: {meaning}" for word, meaning in cells.CLAIMS.items() if word in words)


class Settings(Lines):
    """Settings as `settings` returns them: a notebook shows those that are read, by stage, and folds all."""

    def _repr_html_(self) -> str:
        read = self[self["stage"] != UNREAD]
        index = pd.MultiIndex.from_arrays([read["stage"], read.index], names=["", "setting"])
        shown = texts(read.drop(columns="stage")).set_axis(index)
        folded = f"all {len(self)} settings of the paper; {len(self) - len(read)} of them are not read here"
        return layout.shown(
            [
                layout.Part(layout.styled(shown, kind="long stacked")),
                layout.Part(layout.styled(texts(self), kind="long stacked"), folded),
            ]
        )

    def __repr__(self) -> str:
        """Show those that are read, a line each, without blanks: a notebook stores this text beside the table."""
        read = texts(self[self["stage"] != UNREAD])
        heads = " | ".join(["setting", *read.columns])
        return "\n".join([heads, *(" | ".join(line) for line in read.itertuples(name=None))])


def texts(frame: pd.DataFrame) -> pd.DataFrame:
    """Return a frame of texts, "" for what is not known."""
    return pd.DataFrame(frame).astype(object).map(lambda value: "" if pd.isna(value) else str(value))
