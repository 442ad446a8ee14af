"""What `fedrepro bench` prints and writes: its leading numbers, a table, bench.json and throughput.csv."""

import csv
import json
from pathlib import Path
from typing import Any

from fedrepro.bench.timing import DISTILL_BATCH
from fedrepro.core.files import write_atomically

RATES = ("train_images_per_s", "predict_images_per_s", "distill_images_per_s")
SINGLE = ("peak_memory_bytes", "max_difference", "max_difference_float64", "largest_change")
COLUMNS = (
    *("device", "torch", "python", "commit", "date", "engine", "model", "clients", "batch", "precision"),
    *("metric", "value", "min", "max", "repeats", "images"),
)


def fractions(name: str, per_s: float, facts: dict[str, Any]) -> dict[str, float]:
    """Return which share of the measured roofline a rate is: of the matrix product, a convolution, a copy."""
    kind, roof, floor = "predict" if name.startswith("predict") else "train", facts["roofline"], facts["floor"]
    return {
        "peak_fraction": per_s * floor[f"{kind}_flops"] / roof["matmul_flops"],
        "conv_peak_fraction": per_s * floor[f"{kind}_flops"] / roof["conv_flops"],
        "bandwidth_fraction": per_s * floor[f"{kind}_bytes"] / roof["bandwidth"],
    }


def headline(facts: dict[str, Any]) -> dict[str, Any]:
    """Put the leading engine's numbers first: the automatic choice's if it was measured, else the first one's.

    Rates are medians in images/s (None where nothing was measured), seconds end in `_s`, memory in `_bytes`;
    fractions are those of the training rate. All engines, with spread, are under "engines".
    """
    found = facts["engines"]
    good = [name for name, result in found.items() if RATES[0] in result]
    lead = facts["automatic"] if facts["automatic"] in good else next(iter(good or found), facts["automatic"])
    own = found.get(lead, {})
    top: dict[str, Any] = {"engine": lead, "device": facts["device"]}
    top |= {name: own.get(name, {}).get("value") for name in RATES}
    top |= dict.fromkeys(("peak_fraction", "conv_peak_fraction", "bandwidth_fraction"))
    for name, result in found.items():
        for rate in RATES:
            if rate in result:
                result[rate] |= fractions(rate, result[rate]["value"], facts)
        if name == lead and RATES[0] in result:
            top |= fractions(RATES[0], result[RATES[0]]["value"], facts)
            top |= {key: result[RATES[0]][key] for key in ("first_call_s", "warm_up_s")}
    top["round_s"] = own.get("round", {}).get("round_s", {}).get("value")
    top |= {name: own.get(name) for name in SINGLE}
    if lead != "plain" and {lead, "plain"} <= set(good):
        top["times_plain"] = own[RATES[0]]["value"] / found["plain"][RATES[0]]["value"]
    roof, floor = facts["roofline"], facts["floor"]
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
        for name in RATES:
            if name in result:
                r = result[name]
                first = r["first_call_s"] + r["warm_up_s"]
                lines.append(
                    f"{engine:<8} {name.split('_')[0]:<9} {r['value']:>11,.0f} {r['min']:>11,.0f} "
                    f"{r['max']:>11,.0f} {r['repeats']:>7} {r['peak_fraction']:>8.1%} "
                    f"{r['bandwidth_fraction']:>8.1%} {first:>6.2f} s"
                )
    lines.append("")
    for engine, result in facts["engines"].items():
        if "round" in result:
            r, sizes = result["round"]["round_s"], result["round"]["sizes"]
            lines.append(f"{engine:<8} FedBE round {r['value']:.3g} s ({r['min']:.3g} to {r['max']:.3g})")
            lines.append(
                f"{'':<8}   " + ", ".join(f"{n} {s:.3g} s" for n, s in result["round"]["stages_s"].items())
            )
            lines.append(f"{'':<8}   " + ", ".join(f"{value:,} {n}" for n, value in sizes.items()))
        if "max_difference" in result:
            exact = result.get("max_difference_float64")
            lines.append(
                f"{engine:<8} differs from the plain float64 loop by {result['max_difference']:.1e}"
                + ("" if exact is None else f", in float64 by {exact:.1e}")
                + f"; weights moved by {result['largest_change']:.1e}"
            )
        if "peak_memory_bytes" in result:
            lines.append(f"{engine:<8} peak memory {result['peak_memory_bytes'] / 2**20:,.0f} MiB")
        if result.get("profile"):
            lines += _profile(engine, result["profile"], facts)
        for point in result.get("scan", []):
            unit = "s" if point["metric"].endswith("_s") and "per" not in point["metric"] else "images/s"
            at = f"{point['model']}, {point['clients']} {'teachers' if point['scan'] == 'distill' else 'clients'}"
            lines.append(f"{engine:<8} {at}, batch {point['batch']}: {point['value']:,.4g} {unit}")
    if "times_plain" in facts:
        lines.append(f"{facts['engine']} trains {facts['times_plain']:.2f} times as fast as plain")
    lines += [f"failed: {text}" for text in facts["failed"]]
    lines += [f"skipped: {name}: {why}" for name, why in facts["skipped"].items()]
    return "\n".join(lines)


def profile_clients(facts: dict[str, Any]) -> int:
    """Return of how many clients a profile is: on the CPU it is one client on one core."""
    return 1 if facts["device"].startswith("cpu") else int(facts["clients"])


def _profile(engine: str, found: dict[str, float], facts: dict[str, Any]) -> list[str]:
    clients = profile_clients(facts)
    work = facts["floor"]["train_flops"] * clients * min(facts["batch"], facts["images"])
    parts = [(n[:-2], s) for n, s in found.items() if n.endswith("_s") and n != "step_s"]
    shares = ", ".join(f"{name} {seconds / found['step_s']:.0%}" for name, seconds in parts)
    cpu = facts["device"].startswith("cpu")
    whose = "one client on one core" if cpu else f"{clients} clients"
    lines = [f"{engine:<8} a step of {whose} {1e3 * found['step_s']:.3g} ms: {shares}"]
    calls = f"{'':<8}   {found['calls']:.0f} {'operators called' if cpu else 'kernels launched'}"
    if cpu and found["products_s"]:  # kernels of CUDA may run side by side
        calls += f"; products at {work / found['products_s'] / 1e9:,.4g} GFLOP/s"
    lines.append(calls)
    return lines


def rows(facts: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the lines of throughput.csv, one per engine and measurement; the roofline has no engine."""
    common = {name: facts[name] for name in COLUMNS if name in facts}
    common |= {"engine": "", "images": "", "min": "", "max": "", "repeats": ""}
    out = [common | {"metric": name, "value": value} for name, value in facts["roofline"].items()]
    out += [common | {"metric": name, "value": value} for name, value in facts["floor"].items()]
    for engine, result in facts["engines"].items():
        mine = common | {"engine": engine}
        for name in RATES:
            if name not in result:
                continue
            own = result[name]
            at = mine | ({"batch": DISTILL_BATCH} if name.startswith("distill") else {})
            out.append(at | {k: own[k] for k in ("value", "min", "max", "repeats", "images")} | {"metric": name})
            kind = name.split("_")[0]
            for key in ("first_call_s", "warm_up_s", "peak_fraction", "conv_peak_fraction", "bandwidth_fraction"):
                out.append(at | {"metric": f"{kind}_{key}", "value": own[key]})
        if "round" in result:
            own, sizes = result["round"]["round_s"], result["round"]["sizes"]
            at = mine | {"clients": sizes["clients"], "batch": sizes["client_batch"], "images": sizes["images"]}
            out.append(at | {k: own[k] for k in ("value", "min", "max", "repeats")} | {"metric": "round_s"})
            for stage, seconds in result["round"]["stages_s"].items():
                out.append(at | {"metric": f"round_{stage}_s", "value": seconds})
        profile = result.get("profile", {})
        at = mine | {"clients": profile_clients(facts)}
        out += [at | {"metric": f"profile_{name}", "value": value} for name, value in profile.items()]
        out += [mine | {"metric": name, "value": result[name]} for name in SINGLE if name in result]
        for point in result.get("scan", []):
            metric = f"scan_{point['scan']}_{point['metric']}"
            at = {k: point[k] for k in COLUMNS if k in point and k != "device"}
            out.append(mine | at | {"metric": metric})
    return out


def write(folder: Path, facts: dict[str, Any]) -> list[Path]:
    """Write bench.json and add lines to throughput.csv; returns both."""
    folder.mkdir(parents=True, exist_ok=True)
    whole, lines = folder / "bench.json", folder / "throughput.csv"
    write_atomically(whole, (json.dumps(facts, indent=1) + "\n").encode())
    fresh = not lines.exists()
    with lines.open("a", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, extrasaction="ignore", lineterminator="\n")
        if fresh:
            writer.writeheader()
        writer.writerows(rows(facts))
    return [whole, lines]
