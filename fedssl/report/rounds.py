"""rounds.jsonl: one line per round, appended when the round is finished."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fedssl.extents import sync_folder
from fedssl.federate import Round
from fedssl.guard import Report
from fedssl.provenance import code


def record(
    round: Round,
    rounds: int,
    rate: float,
    seconds: float,
    knn: float | None,
    knn_common: float | None = None,
    *,
    knn_settings: Mapping[str, Any] | None = None,
    warning: str | None = None,
) -> dict[str, Any]:
    """Return a round as plain values, counted from 1 out of `rounds`, at a learning rate of `rate`.

    `knn_settings` are those of the kNN measurement, if any; `warning` is the algorithm's.
    """
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
        "knn_common": knn_common,
        **({"knn_settings": dict(knn_settings)} if knn_settings is not None else {}),
        **({"warning": warning} if warning is not None else {}),
        "seconds": seconds,
        "images_per_s": images / seconds,
        "code": code(),
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
        **({"clipped": report.clipped} if report.clipped is not None else {}),
        **({"rows_left_out": report.rows_left_out} if report.rows_left_out is not None else {}),
        "embedding_std": m.embedding_std,
        "effective_rank": m.effective_rank,
        "alignment": m.alignment,
        "uniformity": m.uniformity,
        **({"notes": dict(report.notes)} if report.notes else {}),
    }


class RoundsLog:
    """The log of one run directory; rounds after the checkpoint a run resumes from are taken off first. `count` is the
    key that numbers the lines, where they are about something else than rounds."""

    def __init__(self, path: Path, finished: int, count: str = "round") -> None:
        self.path, kept = path, 0
        for line in _whole_lines(path):
            if json.loads(line)[count] > finished:
                break
            kept += len(line)
        with path.open("ab") as file:
            file.truncate(kept)
            os.fsync(file.fileno())
        sync_folder(path.parent)

    def append(self, line: dict[str, Any]) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
            file.flush()
            os.fsync(file.fileno())


def read_rounds(path: Path) -> Iterator[dict[str, Any]]:
    """All whole lines; a last one that a kill cut short is left out. One at a time: with many clients they are long."""
    return map(json.loads, _whole_lines(path))


def _whole_lines(path: Path) -> Iterator[bytes]:
    if path.exists():
        with path.open("rb") as file:
            yield from (line for line in file if line.endswith(b"\n"))
