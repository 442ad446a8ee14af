"""Pictures are written whole, all contents before the first name."""

import os
from pathlib import Path

import pandas as pd
import pytest

pytest.importorskip("matplotlib")

from matplotlib.figure import Figure

from fedrepro.core.files import StoreError
from fedrepro.plots.save import save

DATA = pd.DataFrame({"x": [1.0]})


def picture(height: float) -> Figure:
    figure = Figure(figsize=(1, 1))
    figure.add_subplot().plot([0, height])
    return figure


def test_a_picture_that_cannot_be_written_leaves_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = save(picture(1.0), tmp_path, "p", data=DATA, alt="one")
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    assert set(before) == set(paths)
    fsync, calls = os.fsync, 0

    def full(descriptor: int) -> None:
        nonlocal calls
        calls += 1
        if calls == 4:
            raise OSError(28, "No space left on device")
        fsync(descriptor)

    with monkeypatch.context() as disk:
        disk.setattr("fedrepro.core.files.os.fsync", full)
        with pytest.raises(StoreError, match=r"cannot write .*p\.alt\.txt: No space left on device"):
            save(picture(2.0), tmp_path, "p", data=DATA, alt="two")
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before
    save(picture(2.0), tmp_path, "p", data=DATA, alt="two")
    assert all(path.read_bytes() != before[path] for path in paths if path.suffix != ".csv")
