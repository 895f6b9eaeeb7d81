"""The rounds of a log as series, events and warnings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fake_runs import fake_run

from fedssl.pages.report.charts import client_chart
from fedssl.pages.report.training import Event, Training, read_training
from fedssl.runs.summary import summarise


def _line(number: int, *clients: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"round": number, "seconds": 1.0, "loss": None, "clients": list(clients), **more}


def test_rounds_that_a_client_missed_have_no_value() -> None:
    training = Training()
    training.add(_line(1, {"client": "a", "loss": 1.0}))
    training.add(_line(2, {"client": "b", "loss": 2.0, "notes": {"lam": 0.5, "name": "x"}}))
    training.add(_line(3, {"client": "a", "loss": 3.0}))
    training.finish()
    assert training.clients == {
        "a": {"loss": [1.0, None, 3.0]},
        "b": {"loss": [None, 2.0, None], "notes.lam": [None, 0.5, None]},
    }
    assert training.metrics() == ["loss", "notes.lam"]


def test_values_that_are_not_finite_are_missing() -> None:
    training = Training()
    training.add(_line(1, {"client": "a", "loss": float("nan"), "divergence": float("inf")}))
    training.finish()
    assert training.clients == {"a": {"loss": [None], "divergence": [None]}}
    assert client_chart(training, "loss") is None


def test_bytes_are_added_over_clients_and_rounds() -> None:
    training = Training()
    training.add(_line(1, {"client": "a", "bytes_down": 5, "bytes_up": 3}, {"client": "b"}))
    training.add(_line(2, {"client": "a", "bytes_down": 5, "dropped": "too long"}))
    training.finish()
    assert (training.total_down, training.total_up) == (10, 3)
    assert training.overall["used"] == [2, 0]
    assert training.overall["asked"] == [2, 1]


def test_drops_clips_and_features_that_were_left_out_are_events() -> None:
    training = Training()
    training.add(
        _line(
            7,
            {"client": "a", "dropped": "too long"},
            {"client": "b", "clipped": 0.25, "rows_left_out": "2 rows: not finite"},
        )
    )
    assert training.events == [
        Event(7, "a", "dropped", "too long"),
        Event(7, "b", "clipped", "update scaled by 0.25"),
        Event(7, "b", "features left out", "2 rows: not finite"),
    ]


def test_a_collapse_is_a_warning_with_its_round(tmp_path: Path) -> None:
    """A spread below 0.1 in two rounds in a row."""
    folder = fake_run(tmp_path / "run")
    (folder / "rounds.jsonl.copy").unlink()
    client = {"client": "a", "embedding_std": 0.01, "effective_rank": 5.0, "alignment": 0.1}
    lines = [json.dumps(_line(number, client)) for number in (1, 2, 3)]
    (folder / "rounds.jsonl").write_text("\n".join(lines) + "\n")
    (warning,) = read_training(summarise(folder)).warnings
    assert warning.startswith("round 2: ")
    assert "collapse" in warning


def test_an_algorithm_that_shares_features_has_a_warning(tmp_path: Path) -> None:
    folder = fake_run(tmp_path / "run", "algorithm=fedca", "clients=2")
    run = summarise(folder)
    assert read_training(run).warnings == [run.experiment.algorithm.warning]


def test_the_loss_of_random_guessing_is_a_series(tmp_path: Path) -> None:
    """SimCLR with a batch of n images chooses one of 2n − 1: with 896 / 7 = 128, ln 255 = 5.54."""
    folder = fake_run(tmp_path / "run")
    (folder / "rounds.jsonl.copy").unlink()
    client = {"client": "a", "loss": 4.0, "steps": 7, "images": 896}
    (folder / "rounds.jsonl").write_text(json.dumps(_line(1, client)) + "\n")
    (chance,) = read_training(summarise(folder)).overall["chance"]
    assert chance is not None
    assert round(chance, 2) == 5.54
