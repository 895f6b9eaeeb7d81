"""Decode image files into rows of an open file; also the program that worker processes run.

A worker process runs this file by its path. It loads decode.py by its path as well, because
importing `fedssl.data` would import torch: a worker starts in a tenth of a second, where importing
torch takes more than one.
"""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import sys
import warnings
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING or __name__ != "__main__":
    from fedssl.data import decode
else:
    _spec = importlib.util.spec_from_file_location("decode", Path(__file__).with_name("decode.py"))
    decode = importlib.util.module_from_spec(_spec)
    sys.modules["decode"] = decode
    _spec.loader.exec_module(decode)

Job = tuple[int, str]  # the row to write, and the path of the image as returned by `encode_path`
Outcome = int | list[Any]  # the checksum of the pixels, or [reason, Unreadable.lasting]


def encode_path(path: str) -> str:
    """Return a path as text that JSON preserves, independent of a process's file name encoding."""
    return os.fsencode(path).decode("latin-1")


def _decode_path(text: str) -> Path:
    return Path(os.fsdecode(text.encode("latin-1")))


def fill(
    target: int, size: int, channels: int, background: int, pad: bool, jobs: Iterable[Sequence[Any]]
) -> list[Outcome]:
    """Write the pixels of each job's file to its row of the open file `target`.

    Raise OSError if `target` cannot be written.
    """
    outcomes: list[Outcome] = []
    for row, path in jobs:
        try:
            pixels = decode.decode(_decode_path(path), size, channels, background, pad)
        except decode.Unreadable as error:
            outcomes.append([str(error), error.lasting])
            continue
        data = pixels.tobytes()
        outcomes.append(zlib.crc32(data))
        _write_at(target, data, row * len(data))
    return outcomes


def _write_at(target: int, data: bytes, offset: int) -> None:
    """Write all of `data`; a nearly full disk accepts a part of it before it raises OSError."""
    rest = memoryview(data)
    while rest:
        written = os.pwrite(target, rest, offset)
        rest = rest[written:]
        offset += written


def serve(target: int, size: int, channels: int, background: int, pad: int) -> None:
    """Run as a worker process until the input ends.

    Read a line of jobs from standard input; write a line of outcomes, or the errno of a failure, to
    standard output.
    """
    # Ctrl-C is handled by the parent process, which then closes the input.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # If the parent was killed, exit without an error message.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    warnings.simplefilter("ignore")
    for line in sys.stdin.buffer:
        try:
            answer: Any = fill(target, size, channels, background, bool(pad), json.loads(line))
        except OSError as error:
            answer = error.errno or -1
        os.write(sys.stdout.fileno(), json.dumps(answer).encode() + b"\n")


if __name__ == "__main__":
    serve(*map(int, sys.argv[1:]))
