"""rounds.jsonl: one line per round, appended when the round is finished."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fedssl.data.progress import Say, say_on_stderr
from fedssl.errors import RunError
from fedssl.federate import Round
from fedssl.guard import Report
from fedssl.provenance import code
from fedssl.report import checked_lines


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
    """The log of one run directory. Lines after the checkpoint that a run resumes from are removed first. `count` is
    the key that numbers the lines, where they are not about rounds."""

    def __init__(self, path: Path, finished: int, count: str = "round", say: Say = say_on_stderr) -> None:
        self.path = path
        self.lines = 0
        checked_lines.repair(path, say)
        for line in read_rounds(path, say):
            if not isinstance(line.get(count), int):
                raise _damaged(path, self.lines + 1)
            if line[count] > finished:
                break
            self.lines += 1
        checked_lines.truncate(path, self.lines)

    def append(self, line: dict[str, Any]) -> None:
        checked_lines.append(self.path, self.lines, json.dumps(line).encode() + b"\n")
        self.lines += 1


def read_rounds(path: Path, say: Say = say_on_stderr) -> Iterator[dict[str, Any]]:
    """Yield the record of each finished round, one at a time: with many clients they are long."""
    for number, line in enumerate(checked_lines.read_lines(path, say), 1):
        try:
            record = json.loads(line)
        except ValueError:
            raise _damaged(path, number) from None
        if not isinstance(record, dict):
            raise _damaged(path, number)
        yield record


def _damaged(path: Path, number: int) -> RunError:
    return RunError(
        f"line {number} of {path} is damaged and has no intact copy; nothing was changed. Restore the file from a "
        "backup, or start again in a new directory"
    )
