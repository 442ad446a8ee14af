"""The command line's options: short help, and what is not understood explained at once."""

import argparse
import os
import re
import shlex
import signal
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import fedrepro
from cli.cli_calls import FEDBE, TABLE, Call
from fedrepro import papers
from fedrepro.bench import options
from fedrepro.bench.engine import SCANS
from fedrepro.bench.roofline import DTYPES
from fedrepro.cli import budget_seconds, known, parser
from fedrepro.cli.arguments import labels

options_of_parser = import_module("fedrepro.cli.parser")
COMMANDS = ["", "run", "reproduce", "report", "list", "bench", "new", "data", "data prepare", "data list"]


@pytest.mark.parametrize("command", COMMANDS)
def test_help_fits_a_terminal_and_has_an_example_that_works(
    command: str, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    answer = call(*command.split(), "--help")
    assert answer.code == 0
    lines = answer.out.rstrip().splitlines()
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 100
    example = re.search(r"^example: fedrepro (.*)", answer.out, re.MULTILINE)
    assert example, f"no example in\n{answer.out}"
    given = parser().parse_args(shlex.split(example[1]))
    assert example[1].startswith(command)
    for name in getattr(given, "items", []):
        assert papers.find(name)
    for item in [item for name in getattr(given, "items", []) for item in papers.find(name)]:
        FEDBE.cells(item.name, getattr(given, "scale", "smoke"), only=getattr(given, "only", ()))


def test_every_command_is_in_the_help(call: Call) -> None:
    out = call("--help").out
    assert all(re.search(rf"^    {name}\b", out, re.MULTILINE) for name in COMMANDS if name and " " not in name)


def test_version(call: Call) -> None:
    assert call("--version").out == f"fedrepro {fedrepro.__version__}\n"


@pytest.mark.parametrize(
    "arguments",
    [
        "",
        "run",
        "data",
        "data prepare",
        "runn",
        "run x --scale huge",
        "run x --seeds 0",
        "data prepare cifar10 --archive x --from-folder y",
    ],
)
def test_a_wrong_call_is_explained(arguments: str, call: Call) -> None:
    answer = call(*arguments.split())
    assert answer.code == 2
    assert answer.err.startswith("usage: fedrepro")
    assert not answer.out


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("8m", 480), ("1.5h", 5400), ("0.5s", 0.5), (" 2 m ", 120)]
)
def test_budgets(text: str, seconds: float) -> None:
    assert budget_seconds(text) == seconds


@pytest.mark.parametrize(
    "text", ["", "8", "m", "0s", "0.0h", "-1m", "5d", "1e3s", "8 minutes", "nan s", "1,5h", "8m8s"]
)
def test_no_budgets(text: str, call: Call) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=r"must be a time such as 90s, 8m or 1\.5h, got"):
        budget_seconds(text)
    answer = call("run", TABLE, f"--budget={text}")
    assert answer.code == 2
    assert f"got {text!r}" in answer.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("run x --on ray", "unknown option '--on' (did you mean '--only'?)"),
        ("run --see 3", "unknown option '--see' (did you mean '--seeds'?)"),
        ("run x --seeds=3 --budge=3s", "unknown option '--budge' (did you mean '--budget'?)"),
        ("reproduce --tim 3s", "unknown option '--tim' (did you mean '--timeout'?)"),
        ("--vers", "unknown option '--vers' (did you mean '--version'?)"),
        ("list --costs", "unknown option '--costs' (did you mean '--cost'?)"),
        ("report --rec", "unknown option '--rec' (did you mean '--record'?)"),
        ("bench --mod convnet", "unknown option '--mod' (did you mean '--model'?)"),
        ("data prepare cifar10 --archiv x", "unknown option '--archiv' (did you mean '--archive'?)"),
        ("data list -v", "unknown option '-v'; there are --help"),
        ("runn x", "argument COMMAND: unknown 'runn' (did you mean 'run'?)"),
        (
            "run x --scale papers",
            "argument --scale: unknown 'papers' (did you mean 'paper'?); there are smoke, short, paper",
        ),
        ("data prepar x", "argument ACTION: unknown 'prepar' (did you mean 'prepare'?)"),
        ("new fedbe/x fedbe/y", "'fedbe/y' is one word too many"),
    ],
)
def test_nothing_is_taken_half_written(arguments: str, message: str, call: Call) -> None:
    answer = call(*arguments.split())
    assert answer.code == 2
    assert answer.err.splitlines()[-1].endswith(f"error: {message}")
    assert not answer.out


@pytest.mark.parametrize("text", ["", " ", ",", "Step,", "A,,B", "A\nB", "A\r", '"A', "a\0b"])
def test_labels_that_are_none(text: str, call: Call) -> None:
    answer = call("run", TABLE, "--only", text)
    assert answer.code == 2
    assert re.search(r"error: argument --only: must be labels.*, got ", answer.err.splitlines()[-1])


@pytest.mark.parametrize(
    ("text", "found"), [("A", ("A",)), (" A , b c", ("A", "b c")), ('"A, 9 rounds", B', ("A, 9 rounds", "B"))]
)
def test_labels(text: str, found: tuple[str, ...]) -> None:
    assert labels(text) == found


@pytest.mark.parametrize("text", ["0", "-1", "1.0", "²", "1_0", "9" * 19, ""])
def test_no_whole_numbers(text: str, call: Call) -> None:
    answer = call("run", TABLE, f"--seeds={text}")
    assert answer.code == 2
    assert "must be a whole number >= 1" in answer.err


def test_an_out_that_is_no_folder(call: Call, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for text in ("", str(tmp_path / "file"), "~nosuchuser/x"):
        assert "argument --out: must be a folder, " in call("reproduce", f"--out={text}").err


def test_the_parsers_names_are_the_librarys() -> None:
    assert options_of_parser.SCALES == papers.SCALES
    assert tuple(DTYPES) == options.PRECISIONS
    assert tuple(SCANS) == options.SCANNED
    assert known.labels() == {
        item.key: {label for values in item.labels.values() for label in values} for item in FEDBE.items.values()
    }


def test_a_name_that_nobody_knows_is_answered_by_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    notebooks = {
        "tutorials/01_one_round_by_hand",
        "tutorials/02_ensembles_on_a_swiss_roll",
        "performance/throughput",
    }
    assert set(known.keys([], notebooks=True)) == notebooks | set(known.keys([]))
    assert (
        known.keys(["fedbe/table2_targets", "fedbe"])[0] == "fedbe/table2_targets"
    )  # each once, in the order asked
    assert len(known.keys(["fedbe/table2_targets", "fedbe"])) == len(known.keys([]))
    with pytest.raises(ValueError, match=r"unknown item 'tutorial' \(did you mean 'tutorials'\?\)"):
        known.keys(["tutorial"], notebooks=True)
    (tmp_path / "odd").mkdir()
    (tmp_path / "odd" / "settings.toml").write_text("")
    for text in ("<<<<<<< HEAD", "items = 3", "[items]\nx = 3"):
        (tmp_path / "odd" / "items.toml").write_text(text)
        with pytest.raises(ValueError, match=r"odd.items\.toml: "):
            known.labels(tmp_path)


QUICK = """
import sys, time
from fedrepro.cli import main
for line in sys.argv[1:]:
    begun = time.perf_counter()
    try:
        code = main(line.split())
    except SystemExit as end:
        code = end.code or 0
    slow = {"torch", "numpy", "pandas", "matplotlib"} & set(sys.modules)
    print(code, time.perf_counter() - begun, *sorted(slow))
"""


def test_a_typo_costs_no_import() -> None:
    lines = {
        **{"run --onl x": 2, "runn": 2, "--help": 0, "--version": 0, "run --help": 0, "bench --engin x": 2},
        **{"run fedbe/tabel1_methods": 2, f"run {TABLE} --only Stp": 2, "list fedbee": 2, "reproduce tutorial": 2},
        **{"data prepare cifar11": 2},
    }
    asked = subprocess.run([sys.executable, "-c", QUICK, *lines], capture_output=True, text=True, check=True)
    answers = [line.split() for line in asked.stdout.splitlines() if re.match(r"\d \d+\.", line)]
    assert [(int(code), loaded) for code, _, *loaded in answers] == [(code, []) for code in lines.values()]
    assert max(float(seconds) for _, seconds, *_ in answers) < 0.5
    told = [line for line in asked.stderr.splitlines() if line.startswith("fedrepro: ")]
    assert told == [
        "fedrepro: error: argument COMMAND: unknown 'runn' (did you mean 'run'?)",
        f"fedrepro: unknown item 'fedbe/tabel1_methods' (did you mean '{TABLE}'?)",
        f"fedrepro: {TABLE} has no 'Stp' (did you mean 'Step'?)",
        "fedrepro: unknown item 'fedbee' (did you mean 'fedbe'?)",
        "fedrepro: unknown item 'tutorial' (did you mean 'tutorials'?)",
        "fedrepro: unknown data set 'cifar11' (did you mean 'cifar10'?)",
    ]


def test_an_interrupt_while_torch_is_loaded_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("print('loading', flush=True)\nimport time\ntime.sleep(60)\n")
    search = os.pathsep.join([str(tmp_path), str(Path(fedrepro.__file__).parents[1])])
    for command in (["list"], ["run", TABLE]):
        process = subprocess.Popen(
            [sys.executable, "-m", "fedrepro", *command],
            env=os.environ | {"PYTHONPATH": search},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        assert process.stdout.readline() == "loading\n"
        process.send_signal(signal.SIGINT)
        _, told = process.communicate(timeout=20)
        assert process.returncode == 130
        assert re.fullmatch(r"fedrepro: interrupted.*\n", told)


@pytest.mark.parametrize("command", ["--help", "--version", "data --help"])
def test_a_closed_pipe_is_no_error(command: str) -> None:
    read, write = os.pipe()
    os.close(read)
    words = [sys.executable, "-m", "fedrepro", *command.split()]
    done = subprocess.run(words, stdout=write, stderr=subprocess.PIPE, check=False)
    os.close(write)
    assert done.stderr == b""


@pytest.mark.parametrize(
    ("error", "code", "told"),
    [
        (
            RuntimeError("Could not determine home directory."),
            2,
            "fedrepro: Could not determine home directory.\n",
        ),
        (OSError(28, "No space left on device", "x"), 2, "fedrepro: [Errno 28] No space left on device: 'x'\n"),
        (ValueError("two\n lines"), 2, "fedrepro: two; lines\n"),
        (BrokenPipeError(), 141, ""),
        (KeyboardInterrupt(), 130, "fedrepro: interrupted\n"),
    ],
)
def test_what_goes_wrong_is_one_line(
    error: BaseException, code: int, told: str, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(options: argparse.Namespace) -> int:
        raise error

    monkeypatch.setattr("fedrepro.cli.items.items", fail)
    answer = call("list")
    assert (answer.code, answer.err) == (code, told)
