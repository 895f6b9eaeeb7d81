"""rounds.jsonl: one line per round, appended when the round is finished."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedssl.federate import Round
from fedssl.guard import Report
from fedssl.store import write_atomic


def record(round: Round, rounds: int, rate: float, seconds: float, knn: float | None) -> dict[str, Any]:
    """A round as plain values; rounds are counted from 1 for people, out of `rounds`, at a learning rate of `rate`."""
    trained = [r for r in round.reports if r.metrics is not None]
    images = sum(r.metrics.images for r in trained if r.metrics)
    losses = [r.metrics.loss * r.metrics.images for r in trained if r.metrics]
    return {
        "round": round.number + 1,
        "of": rounds,
        "rate": rate,
        "failed": round.failed,
        "loss": sum(losses) / images if images else None,
        "knn": knn,
        "seconds": seconds,
        "images_per_s": images / seconds,
        "clients": [_client(report) for report in round.reports],
    }


def _client(report: Report) -> dict[str, Any]:
    line: dict[str, Any] = {
        "client": report.client,
        "dropped": report.dropped,
        "bytes_down": report.bytes_down,
    }
    if report.metrics is None:
        return line | ({"memory_moved_on": report.moved_on} if report.dropped else {})
    m = report.metrics
    return line | {
        "bytes_up": report.bytes_up,
        "loss": m.loss,
        "steps": m.steps,
        "images": m.images,
        "images_per_s": m.images / m.seconds,
        "divergence": report.divergence,
        "embedding_std": m.embedding_std,
        "effective_rank": m.effective_rank,
    }


class RoundsLog:
    """The log of one run directory; rounds after the checkpoint a run resumes from are taken off first."""

    def __init__(self, path: Path, finished: int) -> None:
        self.path = path
        kept = [line for line in read_rounds(path) if line["round"] <= finished]
        write_atomic(path, "".join(json.dumps(line) + "\n" for line in kept).encode())

    def append(self, line: dict[str, Any]) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
            file.flush()
            os.fsync(file.fileno())


def read_rounds(path: Path) -> Sequence[dict[str, Any]]:
    """All whole lines; a last one that a kill cut short is left out."""
    if not path.exists():
        return []
    lines = path.read_text("utf-8").split("\n")
    return [json.loads(line) for line in lines[:-1]]
