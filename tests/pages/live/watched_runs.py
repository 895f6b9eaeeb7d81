"""Write the files of runs that are watched, without training."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedssl.core.files.checked_lines import append

EXPERIMENT = 'rounds = 4\n[algorithm]\nname = "fedema"\n[method]\nname = "byol"\n'


def client_line(client: str, loss: float = 2.0, **changes: Any) -> dict[str, Any]:
    """Return a client's part of a line of the rounds log."""
    line = {
        "client": client,
        "dropped": None,
        "loss": loss,
        "steps": 5,
        "images": 40,
        "images_per_s": 20.0,
        "divergence": 10 * loss,
        "embedding_std": 0.9,
        "effective_rank": 7.0,
        "alignment": 0.3,
    }
    return line | changes


def dropped_line(client: str, reason: str) -> dict[str, Any]:
    """Return the line of a client that was dropped."""
    return {"client": client, "dropped": reason, "bytes_down": 8, "memory_advanced": False}


def round_line(number: int, *clients: Mapping[str, Any], **changes: Any) -> dict[str, Any]:
    """Return a line of the rounds log: ten seconds, two clients."""
    line = {
        "round": number,
        "of": 4,
        "failed": False,
        "loss": 2.0,
        "knn": None,
        "knn_common": None,
        "seconds": 10.0,
        "images_per_s": 8.0,
        "clients": list(clients) or [client_line("a"), client_line("b")],
    }
    return line | changes


def encoded(*lines: Mapping[str, Any]) -> list[bytes]:
    """Return lines of the rounds log as bytes."""
    return [json.dumps(line).encode() + b"\n" for line in lines]


def write_run(folder: Path, *lines: Mapping[str, Any], results: object = None) -> Path:
    """Write a run directory of some rounds."""
    folder.mkdir(exist_ok=True)
    (folder / "experiment.toml").write_text(EXPERIMENT)
    for number, line in enumerate(encoded(*lines)):
        append(folder / "rounds.jsonl", number, line)
    if results is not None:
        (folder / "results.json").write_text(json.dumps(results))
    return folder


def set_time(path: Path, seconds: float) -> None:
    """Set when a file was changed."""
    os.utime(path, (seconds, seconds))
