"""All peers and this library on the same work: interleaved passes, each runner in a fresh process, one csv.

example: python tests/peers/run.py --model resnet20 --passes 2 --fedbe ../FedBE --out peers.csv
"""

import argparse
import csv
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fedrepro.bench.timing import precision_of
from fedrepro.runs.machine import provenance

HERE = Path(__file__).parent
PEERS = (  # script, in bfloat16 as well
    ("torch_pil", False),
    ("torch_memory", True),
    ("torch_channels_last", True),
    ("torch_compile", True),
    ("torch_processes", True),
    ("torch_vmap", True),
    ("run_fedbe", False),
    ("run_fedlab", False),
    ("run_pfl", True),
    ("ours", True),
)
COLUMNS = [
    *("device", "torch", "python", "commit", "date", "peer", "model", "clients", "images", "batch"),
    *("precision", "threads", "metric", "value", "min", "max", "repeats", "max_abs_difference"),
    *("warm_up_s", "versions", "skipped"),
]


def ask(script: str, arguments: list[str], python: str, limit: float) -> dict[str, Any]:
    """Run one runner in a fresh process and return its answer."""
    command = [python, str(HERE / f"{script}.py"), *arguments]
    paths = [str(HERE.parents[1]), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in paths if path)}
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit, check=False, env=environment)
        answer: dict[str, Any] = json.loads((done.stdout.splitlines() or [""])[-1])
        return answer
    except subprocess.TimeoutExpired:
        return {"images_per_s": [], "skipped": f"took longer than {limit:.0f} s"}
    except json.JSONDecodeError:
        last = (done.stderr.splitlines() or ["-"])[-1]
        return {"images_per_s": [], "skipped": f"failed: status {done.returncode}: {last}"}


def turns(options: argparse.Namespace) -> Iterator[tuple[str, str]]:
    """Yield (script, precision) in the order of one pass."""
    half = precision_of(options.device) == "bfloat16"
    for script, amp in PEERS:
        if not options.only or script in options.only.split(","):
            yield from ((script, precision) for precision in ("float32", *(["bfloat16"] if amp and half else [])))


def main() -> int:
    """Measure and write; returns 0 if at least one peer ran."""
    line = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    line.add_argument("--model", choices=("convnet", "resnet20"), default="convnet")
    for name, value in (("clients", 4), ("images", 400), ("batch", 40), ("rounds", 3), ("threads", 2)):
        line.add_argument(f"--{name}", type=int, default=value)
    line.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    line.add_argument("--passes", type=int, default=2)
    line.add_argument("--only", default="", metavar="A,B", help="only these scripts")
    line.add_argument("--fedbe", default="", metavar="DIR", help="clone of FedBE's released code")
    line.add_argument("--python", default=sys.executable, help="interpreter that has the peers installed")
    line.add_argument("--limit", type=float, default=300.0, metavar="S", help="seconds for one process")
    line.add_argument("--out", type=Path, default=Path("peers.csv"))
    options = line.parse_args()
    names = ("model", "clients", "images", "batch", "rounds", "threads", "device")
    words = [word for name in names for word in (f"--{name}", str(getattr(options, name)))]
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for number in range(options.passes):
        for turn in turns(options):
            script, precision = turn
            more = ["--path", options.fedbe] if script == "run_fedbe" and options.fedbe else []
            answer = ask(script, [*words, "--precision", precision, *more], options.python, options.limit)
            found.setdefault(turn, []).append(answer)
            told = answer["skipped"] or " ".join(f"{value:.0f}" for value in answer["images_per_s"]) + " images/s"
            print(f"pass {number + 1}: {script} {precision}: {told}", flush=True)
    where = provenance(options.device) | {name: getattr(options, name) for name in names if name != "device"}
    rows = [where | summary(script, precision, answers) for (script, precision), answers in found.items()]
    with options.out.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    print(f"wrote {options.out}")
    return 0 if any(row["repeats"] for row in rows) else 1


def summary(script: str, precision: str, answers: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the csv's line of one runner: all rounds of all passes together."""
    rates = [rate for answer in answers for rate in answer["images_per_s"]]
    good = next((answer for answer in answers if answer["images_per_s"]), answers[0])
    row: dict[str, Any] = {
        "peer": script.removeprefix("run_"),
        "precision": precision,
        "metric": "train_images_per_s",
    }
    row |= {
        "repeats": len(rates),
        "max_abs_difference": good.get("max_abs_difference"),
        "skipped": good["skipped"],
    }
    row |= {"warm_up_s": good.get("warm_up_s"), "versions": json.dumps(good.get("versions", {}))}
    spread = {"value": statistics.median(rates), "min": min(rates), "max": max(rates)} if rates else {}
    return row | spread


if __name__ == "__main__":
    sys.exit(main())
