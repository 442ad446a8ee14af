"""Processes that take part in many small runs: a tiny network cannot keep several cores busy."""

import argparse
import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence

import torch

from fedrepro.notebooks.job import places, source

# A helper ends with whoever holds its standard input, however that one ends.
PROGRAM = """
import os, sys, threading
threading.Thread(target=lambda: (os.read(0, 1), os._exit(1)), daemon=True).start()
from fedrepro.__main__ import main
sys.exit(main())
"""
MANY = 20  # numbers asked for from which on a further process is worth its start


@contextlib.contextmanager
def helpers(keys: Sequence[str], options: argparse.Namespace, count: int, device: str) -> Iterator[int]:
    """Let further processes play the same runs of smoke scale, each process on one core; gives how many.

    They share the store, where each run is claimed by one process. A helper that fails is missed by nobody:
    this process plays what is left, and waits for what they have begun.

    Args:
        keys: the items whose runs are played.
        options: of the command; nothing is begun for a choice of labels, which leaves few runs.
        count: how many numbers are asked for.
        device: on which; helpers are for the CPU alone.
    """
    cores = torch.get_num_threads()
    number = min(4, cores) - 1 if device == "cpu" else 0
    if options.scale != "smoke" or options.only or count < MANY or number < 1:
        yield 0
        return
    command = [sys.executable, "-P", "-c", PROGRAM, "run", *keys, "--scale", options.scale, "--device", device]
    command += ["--precision", options.precision] + (["--seeds", str(options.seeds)] if options.seeds else [])
    surroundings = os.environ | source() | places() | {"OMP_NUM_THREADS": "1"}
    pipe, no = subprocess.PIPE, subprocess.DEVNULL
    begun: list[subprocess.Popen[bytes]] = []
    torch.set_num_threads(1)
    try:
        with contextlib.suppress(OSError):  # no process left, or no memory
            for _ in range(number):
                begun.append(subprocess.Popen(command, env=surroundings, stdin=pipe, stdout=no, stderr=no))
        yield len(begun)
    finally:
        torch.set_num_threads(cores)
        for process in begun:
            process.terminate()
        for process in begun:
            process.wait()
            if process.stdin:
                process.stdin.close()
