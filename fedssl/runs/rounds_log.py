"""rounds.jsonl: one line per round, appended when the round is finished."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from fedssl.core.console import Notify, print_to_stderr
from fedssl.core.errors import RunError
from fedssl.core.files import checked_lines
from fedssl.core.provenance import code
from fedssl.engine.federate import Round
from fedssl.engine.uploads.records import Report
from fedssl.training.trainer import Metrics

NOT_MEASURED: Mapping[str, Any] = MappingProxyType({"knn": None, "knn_common": None})


def record(
    round: Round,
    rounds: int,
    lr: float,
    seconds: float,
    accuracies: Mapping[str, Any] = NOT_MEASURED,
    *,
    warning: str | None = None,
) -> dict[str, Any]:
    """Return a round as plain values, counted from 1 out of `rounds`, at a learning rate of `lr`.

    `accuracies` are the entries on measurements, `warning` is the algorithm's.
    """
    metrics = [report.metrics for report in round.reports if report.metrics is not None]
    images = sum(client.images for client in metrics)
    line: dict[str, Any] = {
        "round": round.number + 1,
        "of": rounds,
        "lr": lr,
        "failed": round.failed,
        "loss": _mean_loss(metrics, images),
        **accuracies,
    }
    if warning is not None:
        line["warning"] = warning
    if round.spent is not None:
        line["privacy"] = round.spent._asdict()
    line["seconds"] = seconds
    line["images_per_s"] = images / seconds
    line["code"] = code()
    line["clients"] = [_client(report) for report in round.reports]
    return line


def _mean_loss(metrics: Sequence[Metrics], images: int) -> float | None:
    """Return the mean of the clients' losses, weighted by their images; None without images."""
    if not images:
        return None
    return sum(client.loss * client.images for client in metrics) / images


def _client(report: Report) -> dict[str, Any]:
    """Return one client's part of a round as plain values."""
    line: dict[str, Any] = {
        "client": report.client,
        "dropped": report.dropped,
        "bytes_down": report.bytes_down,
    }
    metrics = report.metrics
    if metrics is None:
        if report.dropped:
            line["memory_advanced"] = report.memory_advanced
        return line
    line["bytes_up"] = report.bytes_up
    line["loss"] = metrics.loss
    line["steps"] = metrics.steps
    line["images"] = metrics.images
    line["images_per_s"] = metrics.images / metrics.seconds
    line["divergence"] = report.divergence
    if report.clipped is not None:
        line["clipped"] = report.clipped
    if report.dropped_rows_reason is not None:
        line["rows_left_out"] = report.dropped_rows_reason
    line["embedding_std"] = metrics.embedding_std
    line["effective_rank"] = metrics.effective_rank
    line["alignment"] = metrics.alignment
    line["uniformity"] = metrics.uniformity
    if report.notes:
        line["notes"] = dict(report.notes)
    return line


class RoundsLog:
    """Append lines to the log of a run directory.

    Lines after the checkpoint that a run resumes from are removed first: those whose number is
    above `finished`. `count` is the key of that number.
    """

    def __init__(
        self, path: Path, finished: int, count: str = "round", notify: Notify = print_to_stderr
    ) -> None:
        self.path = path
        self.lines = 0
        checked_lines.repair(path, notify)
        for line in read_rounds(path, notify):
            if not isinstance(line.get(count), int):
                raise _damaged(path, self.lines + 1)
            if line[count] > finished:
                break
            self.lines += 1
        checked_lines.truncate(path, self.lines)

    def append(self, line: dict[str, Any]) -> None:
        """Append a line, and flush it to the disk."""
        checked_lines.append(self.path, self.lines, json.dumps(line).encode() + b"\n")
        self.lines += 1


def read_rounds(path: Path, notify: Notify = print_to_stderr) -> Iterator[dict[str, Any]]:
    """Yield the record of each finished round, one at a time: those of many clients are long."""
    for number, line in enumerate(checked_lines.read_lines(path, notify), 1):
        try:
            record = json.loads(line)
        except ValueError:
            raise _damaged(path, number) from None
        if not isinstance(record, dict):
            raise _damaged(path, number)
        yield record


def _damaged(path: Path, number: int) -> RunError:
    return RunError(
        f"line {number} of {path} is damaged and has no intact copy; nothing was changed. Restore "
        "the file from a backup, or start again in a new directory"
    )


def logged_knn(line: Mapping[str, Any], results: Mapping[str, Any]) -> float | None:
    """Return kNN in a line of the log; None if it was not measured as in results.json.

    A run that was measured again has accuracies of other settings or of other images in its log.
    Earlier versions did not log these.
    """
    return _if_alike(line, "knn", results.get("knn_settings"), results.get("test_images"))


def logged_knn_on(line: Mapping[str, Any], results: Mapping[str, Any]) -> float | None:
    """Return kNN on the images of `probe.on`; None if it was not measured as in results.json."""
    if "on" not in results:
        return None
    return _if_alike(line, "knn_on", results["on"].get("knn_settings"), results.get("on_images"))


def _if_alike(
    line: Mapping[str, Any], key: str, settings: Mapping[str, Any] | None, images: str | None
) -> float | None:
    """Return the accuracy in a line unless it has other settings, or the hash of other images."""
    logged_settings = line.get(f"{key}_settings")
    if logged_settings and settings and logged_settings != settings:
        return None
    logged_images = line.get(f"{key}_images")
    if logged_images and images and not images.startswith(logged_images):
        return None
    accuracy: float | None = line.get(key)
    return accuracy
