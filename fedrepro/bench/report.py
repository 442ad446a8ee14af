"""What `fedrepro bench` prints and writes: its leading numbers, a table, bench.json and throughput.csv."""

import csv
import io
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd

from fedrepro.bench.engine import KINDS
from fedrepro.bench.timing import DISTILL_BATCH
from fedrepro.core.csvs import read_table
from fedrepro.core.files import write_all
from fedrepro.core.locks import alone

RATES = {kind: f"{kind}_images_per_s" for kind in KINDS}
SINGLE = ("peak_memory_bytes", "max_difference", "max_difference_float64", "largest_change")
FRACTIONS = ("peak_fraction", "conv_peak_fraction", "bandwidth_fraction")  # of the measured roofline
FIRST = ("first_call_s", "warm_up_s")
COLUMNS = (
    *("device", "torch", "python", "commit", "date", "engine", "model", "clients", "batch", "precision"),
    *("metric", "value", "min", "max", "repeats", "images"),
)


def headline(facts: dict[str, Any]) -> dict[str, Any]:
    """Put the leading engine's numbers first: the automatic choice's if it was measured, else the first one's.

    Rates are medians in images/s (None where nothing was measured), seconds end in `_s`, memory in `_bytes`;
    fractions are those of the training rate. All engines, with spread, are under "engines".
    """
    engines, roof, floor = facts["engines"], facts["roofline"], facts["floor"]
    for result in engines.values():
        for kind, name in RATES.items():
            if name in result:
                bound = "predict" if kind == "predict" else "train"
                flops, moved = (result[name]["value"] * floor[f"{bound}_{what}"] for what in ("flops", "bytes"))
                shares = flops / roof["matmul_flops"], flops / roof["conv_flops"], moved / roof["bandwidth"]
                result[name] |= dict(zip(FRACTIONS, shares))
    trained = [engine for engine, result in engines.items() if RATES["train"] in result]
    lead = facts["automatic"]
    if lead not in trained:
        lead = next(iter(trained or engines), lead)
    own = engines.get(lead, {})
    training = own.get(RATES["train"], {})
    top: dict[str, Any] = {"engine": lead, "device": facts["device"]}
    top |= {name: own.get(name, {}).get("value") for name in RATES.values()}
    top |= {name: training.get(name) for name in (*FRACTIONS, *FIRST)}
    top["round_s"] = own.get("round", {}).get("round_s", {}).get("value")
    top |= {name: own.get(name) for name in SINGLE}
    if lead != "plain" and {lead, "plain"} <= set(trained):
        top["times_plain"] = training["value"] / engines["plain"][RATES["train"]]["value"]
    top["bound_images_per_s"] = {
        "arithmetic": roof["matmul_flops"] / floor["train_flops"],
        "bytes": roof["bandwidth"] / floor["train_bytes"],
    }
    return top | facts


def table(facts: dict[str, Any]) -> str:
    """Return a readable account, one line per engine and measurement, with units."""
    roof, floor, bound = facts["roofline"], facts["floor"], facts["bound_images_per_s"]
    lines = [
        f"{facts['model']} in {facts['precision']} on {facts['device']}, {facts['threads']} threads, "
        f"torch {facts['torch']}, commit {facts['commit']}, {facts['date']}",
        f"{facts['clients']} clients, {facts['images']} images each, batch {facts['batch']}; "
        f"automatic choice: {facts['automatic']} ({facts['why']})",
        f"roofline  matrix product {roof['matmul_flops'] / 1e12:.3g} TFLOP/s (side {roof['matmul_size']}), "
        f"convolution {roof['conv_flops'] / 1e12:.3g} TFLOP/s, copy {roof['bandwidth'] / 1e9:.3g} GB/s",
        f"floor     {floor['train_flops'] / 1e6:.4g} MFLOP and {floor['train_bytes'] / 1e6:.3g} MB per trained "
        f"image: at most {bound['arithmetic']:,.0f} images/s by arithmetic, {bound['bytes']:,.0f} by bytes",
        "",
        f"{'engine':<8} {'measured':<9} {'images/s':>11} {'min':>11} {'max':>11} {'repeats':>7} "
        f"{'of peak':>8} {'of copy':>8} {'first':>8}",
    ]
    for engine, result in facts["engines"].items():
        for kind, name in RATES.items():
            if name in result:
                r = result[name]
                spread = " ".join(f"{r[key]:>11,.0f}" for key in ("value", "min", "max"))
                shares = " ".join(f"{r[key]:>8.1%}" for key in ("peak_fraction", "bandwidth_fraction"))
                first = r["first_call_s"] + r["warm_up_s"]
                lines.append(f"{engine:<8} {kind:<9} {spread} {r['repeats']:>7} {shares} {first:>6.2f} s")
    lines.append("")
    for engine, result in facts["engines"].items():
        lines += [f"{'' if text.startswith(' ') else engine:<8} {text}" for text in _further(result, facts)]
    if "times_plain" in facts:
        lines.append(f"{facts['engine']} trains {facts['times_plain']:.2f} times as fast as plain")
    lines += [f"failed: {text}" for text in facts["failed"]]
    lines += [f"skipped: {name}: {why}" for name, why in facts["skipped"].items()]
    return "\n".join(lines)


def _further(result: dict[str, Any], facts: dict[str, Any]) -> Iterator[str]:
    """Yield what is told of one engine below the rates; what goes on from the line before is set in."""
    if "round" in result:
        r, sizes = result["round"]["round_s"], result["round"]["sizes"]
        yield f"FedBE round {r['value']:.3g} s ({r['min']:.3g} to {r['max']:.3g})"
        yield "  " + ", ".join(f"{name} {seconds:.3g} s" for name, seconds in result["round"]["stages_s"].items())
        yield "  " + ", ".join(f"{value:,} {name}" for name, value in sizes.items())
    if "max_difference" in result:
        exact = result.get("max_difference_float64")
        own = "" if exact is None else f", in float64 by {exact:.1e}"
        moved = f"; weights moved by {result['largest_change']:.1e}"
        yield f"differs from the plain float64 loop by {result['max_difference']:.1e}{own}{moved}"
    if "peak_memory_bytes" in result:
        yield f"peak memory {result['peak_memory_bytes'] / 2**20:,.0f} MiB"
    if found := result.get("profile"):
        cpu, clients = facts["device"].startswith("cpu"), profile_clients(facts)
        parts = {name[:-2]: seconds for name, seconds in found.items() if name.endswith("_s") and name != "step_s"}
        shares = ", ".join(f"{name} {seconds / found['step_s']:.0%}" for name, seconds in parts.items())
        whose = "one client on one core" if cpu else f"{clients} clients"
        yield f"a step of {whose} {1e3 * found['step_s']:.3g} ms: {shares}"
        work = facts["floor"]["train_flops"] * clients * min(facts["batch"], facts["images"])
        # Kernels of CUDA may run side by side.
        speed = (
            f"; products at {work / found['products_s'] / 1e9:,.4g} GFLOP/s" if cpu and parts["products"] else ""
        )
        yield f"  {found['calls']:.0f} {'operators called' if cpu else 'kernels launched'}{speed}"
    for point in result.get("scan", []):
        unit, who = ("s", "teachers") if point["scan"] == "distill" else ("images/s", "clients")
        at = f"{point['model']}, {point['clients']} {who}, batch {point['batch']}"
        yield f"{at}: {point['value']:,.4g} {unit}"


def profile_clients(facts: dict[str, Any]) -> int:
    """Return of how many clients a profile is: on the CPU it is one client on one core."""
    return 1 if facts["device"].startswith("cpu") else int(facts["clients"])


def rows(facts: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the lines of throughput.csv, one per engine and measurement; the roofline has no engine.

    A line may hold more than `COLUMNS`; what it does not hold is empty.
    """
    place = {name: facts[name] for name in COLUMNS[:10] if name != "engine"}
    for name, value in (facts["roofline"] | facts["floor"]).items():
        yield place | {"metric": name, "value": value}
    for engine, result in facts["engines"].items():
        mine = place | {"engine": engine}
        for kind, name in RATES.items():
            if name in result:
                at = mine | ({"batch": DISTILL_BATCH} if kind == "distill" else {})
                yield at | result[name] | {"metric": name}
                for key in (*FIRST, *FRACTIONS):
                    yield at | {"metric": f"{kind}_{key}", "value": result[name][key]}
        if "round" in result:
            sizes = result["round"]["sizes"]
            at = mine | {"clients": sizes["clients"], "batch": sizes["client_batch"], "images": sizes["images"]}
            yield result["round"]["round_s"] | at | {"metric": "round_s"}
            for stage, seconds in result["round"]["stages_s"].items():
                yield at | {"metric": f"round_{stage}_s", "value": seconds}
        for name, value in result.get("profile", {}).items():
            yield mine | {"clients": profile_clients(facts), "metric": f"profile_{name}", "value": value}
        for name in SINGLE:
            if name in result:
                yield mine | {"metric": name, "value": result[name]}
        for point in result.get("scan", []):
            yield mine | point | {"device": facts["device"], "metric": f"scan_{point['scan']}_{point['metric']}"}


def write(folder: Path, facts: dict[str, Any]) -> list[Path]:
    """Write bench.json and add lines to throughput.csv; returns both.

    Raises:
        ValueError: if throughput.csv is damaged; then nothing is written.
        StoreError: if the folder cannot be written.
    """
    whole, lines = folder / "bench.json", folder / "throughput.csv"
    with alone(folder):
        if lines.exists():
            read(lines)  # nothing is added to a damaged file
        before = lines.read_bytes() if lines.exists() else b""
        fresh = io.StringIO(newline="")
        writer = csv.DictWriter(fresh, COLUMNS, extrasaction="ignore", lineterminator="\n")
        if not before:
            writer.writeheader()
        writer.writerows(rows(facts))
        after = before + fresh.getvalue().encode()
        write_all({whole: (json.dumps(facts, indent=1) + "\n").encode(), lines: after})
    return [whole, lines]


def read(throughput: Path) -> pd.DataFrame:
    """Read the lines of throughput.csv, or of another file like it.

    Raises:
        ValueError: if it is no whole table of measurements; names the file and the line.
    """
    found = read_table(throughput, ("device", "precision", "model", "metric", "value"))
    for place, value in enumerate(pd.to_numeric(found["value"], errors="coerce")):
        if not math.isfinite(value):
            raise ValueError(f"{throughput}, line {place + 2}: value must be a finite number")
    return found
