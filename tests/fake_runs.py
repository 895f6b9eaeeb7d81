"""Write the files of measured runs, without training."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import safetensors.torch
import torch

from fedssl.core.files.checked_lines import append
from fedssl.evaluation.outcomes import OUTCOMES
from fedssl.experiment.experiment import load

ROUNDS = 3


def fake_run(
    folder: Path,
    *changes: str,
    correct: Sequence[int] = (1, 1, 0, 0),
    knn: Sequence[float | None] = (None, 40.0, 50.0),
    alone: Sequence[float] | None = None,
    logged: Mapping[str, Any] | None = None,
    **results: Any,
) -> Path:
    """Write a run of three rounds of two seconds each, with the kNN accuracy after each.

    `correct` is 1 for each test image that the linear probe classifies correctly, and 0 otherwise;
    `alone` is the share of clients that train alone for which it does. `logged` is added to every
    line of the rounds log, `results` to results.json.
    """
    experiment = load("demo", [f"rounds={ROUNDS}", *changes])
    folder.mkdir(parents=True)
    (folder / "experiment.toml").write_text(experiment.to_toml())
    for number, accuracy in enumerate(knn):
        line = {"round": number + 1, "seconds": 2.0, "knn": accuracy, **(logged or {})}
        append(folder / "rounds.jsonl", number, json.dumps(line).encode() + b"\n")
    linear = 100 * sum(correct) / len(correct)
    row = {"knn": {"mean": knn[-1]}, "linear": {"mean": linear}}
    values = {"rounds": ROUNDS, "test_images": "t", "labels": "l", "table": {"this run": row}}
    (folder / "results.json").write_text(json.dumps(values | results))
    outcome = torch.tensor(correct).half()
    tensors = {"this run/knn": outcome.clone(), "this run/linear": outcome}
    if alone is not None:
        tensors["isolated/linear"] = torch.tensor(alone).half()
    (folder / OUTCOMES).write_bytes(safetensors.torch.save(tensors))
    return folder
