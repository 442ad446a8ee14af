"""Downloading a file from a server that may fall silent."""

import hashlib
import sys
import time
from collections.abc import Callable
from functools import partial
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from tqdm import tqdm

from fedrepro.data.prepare.space import told_when_full

SILENT = 30.0  # seconds without a byte, after which a connection is given up
WINDOW, LEAST = 60.0, 1 << 16  # seconds, and the bytes that must come within them
TRIES = 3
CHUNK = 1 << 20  # bytes


def download(url: str, target: Path, md5: str, *, progress: bool, say: Callable[[str], None]) -> None:
    """Download a file; a connection that breaks or falls silent is made anew, and goes on where it stopped.

    Args:
        url: where the file is.
        target: where it goes; what is half done is removed.
        md5: what the file's MD5 must be, in hex.
        progress: show a bar on standard error.
        say: told of every connection that is made anew.

    Raises:
        ConnectionError: if the server does not answer, is silent, refuses, or sends another file.
        OSError: if the disk is full.
    """
    try:
        with told_when_full(target), tqdm(unit="B", unit_scale=True, disable=not progress, file=sys.stderr) as bar:
            for left in reversed(range(TRIES)):
                try:
                    _fetch(url, target, bar)
                    break
                except (TimeoutError, HTTPException, ConnectionError) as error:
                    if not left or isinstance(error, HTTPError):
                        raise
                    say(f"{url}: {error}; going on from {target.stat().st_size if target.exists() else 0:,} bytes")
        with target.open("rb") as file:
            found = hashlib.file_digest(file, partial(hashlib.md5, usedforsecurity=False)).hexdigest()
        if found != md5:
            raise ConnectionError(f"corrupted: MD5 expected {md5}, found {found}")
    except BaseException:
        target.unlink(missing_ok=True)
        raise


def _fetch(url: str, target: Path, bar: "tqdm[Any]") -> None:
    """Append what is missing of a file, or write it from the start where the server cannot go on."""
    done = target.stat().st_size if target.exists() else 0
    request = Request(url, headers={"Range": f"bytes={done}-"} if done else {})
    try:
        with urlopen(request, timeout=SILENT) as answer:
            done = done if answer.status == 206 else 0
            length = answer.headers.get("Content-Length")
            total = done + int(length) if length else None
            bar.reset(total)
            bar.update(done)
            with target.open("ab" if done else "wb") as file:
                begun, window = time.monotonic(), 0
                while chunk := answer.read1(CHUNK):
                    file.write(chunk)
                    done += len(chunk)
                    window += len(chunk)
                    bar.update(len(chunk))
                    if time.monotonic() - begun > WINDOW:
                        if window < LEAST:
                            raise TimeoutError(f"only {window} bytes came in {WINDOW:.0f} seconds")
                        begun, window = time.monotonic(), 0
    except TimeoutError as error:
        raise (error if "bytes" in str(error) else TimeoutError(_silent())) from error
    except OSError as error:  # urllib wraps what the connection says
        reason = getattr(error, "reason", None)
        raise (TimeoutError(_silent()) if isinstance(reason, TimeoutError) else error) from error
    if total is not None and done < total:
        raise ConnectionError(f"the connection broke after {done} of {total} bytes")


def _silent() -> str:
    return f"the server was silent for {SILENT:g} seconds"
