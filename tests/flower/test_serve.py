"""Trackers and `probe.on` on the server of a Flower app."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from error_messages import raises
from factories import bright_pixels
from fake_grid import Nodes, tiny

import fedssl
from fedssl.core.errors import ConfigError
from fedssl.flower import serve as module
from fedssl.runs.callbacks import Callback, RunInfo
from fedssl.runs.rounds_log import read_rounds


class Calls(Callback):
    def __init__(self) -> None:
        self.calls: list[Any] = []

    def on_start(self, run: RunInfo) -> None:
        self.calls.append(("start", run.finished))

    def on_round(self, run: RunInfo, record: Mapping[str, Any]) -> None:
        self.calls.append(("round", record["round"]))

    def on_end(self, run: RunInfo, results: Mapping[str, Any]) -> None:
        self.calls.append(("end", results["rounds"]))

    def close(self) -> None:
        self.calls.append("close")


def test_trackers_of_the_config_receive_the_rounds_of_the_server(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = Calls()
    named = []

    def make(track: str, notify: object) -> list[Callback]:
        named.append(track)
        return [calls]

    monkeypatch.setattr(module, "make_trackers", make)
    experiment = tiny("fedavg", "simclr", rounds=2)
    nodes.serve(experiment, nodes.grid(experiment), track="tensorboard")
    assert named == ["tensorboard"]
    assert calls.calls == [("start", 0), ("round", 1), ("round", 2), ("end", 2), "close"]
    calls.calls.clear()
    nodes.serve(experiment, nodes.grid(experiment), track="tensorboard")
    assert calls.calls == [("start", 2), ("end", 2), "close"]


def test_an_unknown_tracker_is_an_error_before_the_clients_join(nodes: Nodes) -> None:
    experiment = tiny("fedavg", "simclr", rounds=1)
    grid = nodes.grid(experiment)
    with raises(ConfigError):
        nodes.serve(experiment, grid, track="tensorbord")
    assert not grid.sent


def test_the_server_measures_on_other_images_as_a_local_run_does(nodes: Nodes) -> None:
    """The server has no images of [data], only those of probe.on."""
    pixels, labels = bright_pixels(30, channels=3, size=8)
    arrays = {"x_train": pixels.permute(0, 2, 3, 1).numpy(), "y_train": labels.numpy()}
    np.savez(nodes.root / "other.npz", **arrays)
    experiment = tiny("fedavg", "simclr", rounds=2).with_changes(
        {"probe.on": str(nodes.root / "other.npz"), "probe.every": 1}
    )
    local = fedssl.run(experiment, nodes.root / "local", "cpu", nodes.root / "data", quiet=True)
    nodes.serve(experiment, nodes.grid(experiment))
    lines = list(read_rounds(nodes.root / "flower" / "rounds.jsonl"))
    assert [line["knn"] for line in lines] == [None, None]
    assert [line["knn_on"] for line in lines] == [line["knn_on"] for line in local.rounds]
    flower = fedssl.Run(nodes.root / "flower").results
    assert flower["table"] == {}
    assert flower["on"]["table"]["this run"] == local.results["on"]["table"]["this run"]
