"""Read the last step from the offline logs of a Weights & Biases run.

The library writes in the background, so that a process that is killed loses the last steps. Its log
has the format of LevelDB's logs: blocks of 32 KiB with chunks, each after a header of CRC, length
and kind; a record is one chunk, or a first, several middle and a last one.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

MAGIC = b":W&B"
BLOCK = 32768  # bytes
HEADER = struct.Struct("<IHB")  # CRC, length, kind; the file begins with as many bytes
FULL = 1
LAST = 4


def last_offline_step(folder: Path, run: str) -> int | None:
    """Return the last step in the offline logs of a run; None if they cannot be read."""
    paths = list(folder.glob(f"offline-run-*-{run}/*.wandb"))
    if not paths:
        return None
    try:
        return max(_last_step(path) for path in paths)
    except Exception:  # the format of another version
        return None


def _last_step(path: Path) -> int:
    """Return the last step in a log; 0 if it has none."""
    messages: Any = import_module("wandb.proto.wandb_internal_pb2")
    last = 0
    for data in _records(path.read_bytes()):
        record = messages.Record.FromString(data)
        if record.WhichOneof("record_type") == "history":
            for item in record.history.item:
                if item.key == "_step" or list(item.nested_key) == ["_step"]:
                    last = max(last, json.loads(item.value_json))
    return last


def _records(log: bytes) -> Iterator[bytes]:
    """Yield the complete records of a log; raise ValueError for another format."""
    if not log.startswith(MAGIC[: len(log)]):
        raise ValueError("not a log of Weights & Biases")
    position = HEADER.size
    record = b""
    while position + HEADER.size <= len(log):
        rest_of_block = BLOCK - position % BLOCK
        if rest_of_block < HEADER.size:
            position += rest_of_block  # padding
            continue
        _, length, kind = HEADER.unpack_from(log, position)
        position += HEADER.size + length
        if position > len(log):
            return
        record += log[position - length : position]
        if kind in (FULL, LAST):
            yield record
            record = b""
