"""`fedrepro reproduce`: runs, notebooks, report; what is unchanged is left."""

import re
from pathlib import Path

from cli_calls import FEDBE, TABLE, Call

from fedrepro.notebooks import batch


def test_reproduce_executes_the_notebook(call: Call, jobs: list[batch.Job], tmp_path: Path) -> None:
    answer = call("reproduce", "fedbe/figure1_simplex", "--seeds", "3", "--timeout", "2m", "--device", "cpu")
    assert answer.code == 0, answer.err
    (job,) = jobs
    assert job.notebook == tmp_path / "notebooks" / "fedbe" / "figure1_simplex.ipynb"
    assert job.output == tmp_path / "results" / "notebooks" / "fedbe" / "figure1_simplex.ipynb"
    assert job.timeout == 120
    made = tmp_path / "results" / "figures"
    assert job.parameters == {"scale": "smoke", "seeds": 3, "device": "cpu", "out": str(made)}
    for place in (job.output.parent.parent, made, made / "report.md", made / "report.html"):
        assert str(place) in answer.out


def test_reproduce_tells_which_notebook_failed(call: Call, jobs: list[batch.Job]) -> None:
    answer = call("reproduce", "fedbe/figure1_simplex", "fedbe/figure8_confidence")
    assert answer.code == 1
    assert len(jobs) == 2
    assert re.fullmatch(r"failed: .*figure8_confidence\.ipynb: KeyError: why\n", answer.err)


def test_reproduce_records_into_the_repository(call: Call, jobs: list[batch.Job], tmp_path: Path) -> None:
    assert call("reproduce", "fedbe/figure1_simplex", "--record").code == 0
    assert jobs[0].parameters["out"] == str(tmp_path / "figures")


def test_reproduce_of_everything(call: Call, jobs: list[batch.Job]) -> None:
    answer = call("reproduce")  # the toy's FedBE runs fail: no public images
    assert answer.code == 1
    assert [job.notebook.stem for job in jobs] == [*FEDBE.items, "throughput", "01_one_round_by_hand"]


def test_reproduce_stops_when_the_budget_is_spent(call: Call, jobs: list[batch.Job]) -> None:
    answer = call("reproduce", TABLE, "--budget", "0.000001s")
    assert answer.code == 1
    assert not jobs  # a notebook would play all that the budget left out
