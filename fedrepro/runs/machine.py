"""Where numbers are made: the device, the machine, the versions and the commit."""

import os
import platform
import re
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

import fedrepro
from fedrepro.kernels.cores import heed_quota

UNKNOWN: dict[str, Any] = {  # the place of rounds from before checkpoints told
    "threads": 0,
    **dict.fromkeys(
        ("device", "torch", "python", "fedrepro", "commit", "date", "engine", "engine_why"), "unknown"
    ),
}


LOST = "the device no longer answers"


def choose_device(name: str) -> str:
    """Return a torch device name for "auto", "cpu" or "cuda".

    Raises:
        ValueError: for another name, or for "cuda" where torch sees none.
    """
    if name not in ("auto", "cpu", "cuda"):
        raise ValueError(f"device must be auto, cpu or cuda, got {name!r}")
    if name == "cuda" and not torch.cuda.is_available():
        raise ValueError("device cuda was asked for, but this torch sees no CUDA device; use --device cpu")
    heed_quota()  # before anything asks how many threads there are
    return ("cuda" if torch.cuda.is_available() else "cpu") if name == "auto" else name


def lost(device: str) -> bool:
    """Return whether a device no longer answers this process, as after an illegal access to its memory."""
    if not device.startswith("cuda"):
        return False
    try:
        torch.cuda.synchronize(device)
    except RuntimeError:
        return True
    return False


def provenance(device: str) -> dict[str, Any]:
    """Return where and with what numbers are made."""
    name = torch.cuda.get_device_name() if device == "cuda" else platform.processor() or platform.machine()
    if device == "cpu" and Path("/proc/cpuinfo").exists():
        models = [
            li
            for li in Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
            if li.startswith("model name")
        ]
        name = models[0].split(":", 1)[1].strip() if models else name
    return {
        "device": f"{device}: {name}",
        "threads": torch.get_num_threads(),
        "torch": str(torch.__version__),  # a plain text, which checkpoints can hold
        "python": platform.python_version(),
        "fedrepro": fedrepro.__version__,
        "commit": _commit(),
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
    }


def _commit() -> str:
    """Return the checkout's commit, marked if the library itself differs from it.

    Where git gives none, for whatever reason, FEDREPRO_COMMIT may name it, as where the library was copied without
    its history; else it is unknown, and so is what cannot be the name of a commit.
    """
    root = Path(fedrepro.__file__).resolve().parents[1]
    named = os.environ.get("FEDREPRO_COMMIT", "").strip()
    return _asked(root) or (named if re.fullmatch(r"[A-Za-z0-9._+/-]{1,64}", named) else "unknown")


def _asked(root: Path) -> str:
    """Return the commit of a folder that is the root of this package's own repository; nothing if it is none."""
    if not (root / ".git").exists():
        return ""
    # What a hook or a shell says of another repository does not count, nor does one that this folder lies in.
    clean = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    clean |= {"GIT_CEILING_DIRECTORIES": str(root.parent), "GIT_OPTIONAL_LOCKS": "0"}

    def ask(*words: str) -> str:
        command = ["git", "-C", str(root), "-c", "core.fsmonitor=false", *words]
        done = subprocess.run(command, env=clean, capture_output=True, check=True, timeout=60)
        return done.stdout.decode(errors="replace").strip()

    try:
        if Path(ask("rev-parse", "--show-toplevel")).resolve() != root:
            return ""
        ask("ls-files", "--error-unmatch", "--", "fedrepro/__init__.py")  # a copy in somebody else's is not theirs
        commit = ask("rev-parse", "--short=10", "--verify", "HEAD")
        changed = ask("status", "--porcelain", "--untracked-files=normal", "--", "fedrepro")
    except (OSError, subprocess.SubprocessError):  # no git, no commit, another owner
        return ""
    return commit + ("-dirty" if changed else "")
