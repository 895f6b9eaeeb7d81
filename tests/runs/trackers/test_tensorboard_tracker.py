"""Event files, as TensorBoard's own reader has them."""

from __future__ import annotations

from pathlib import Path

import pytest
from offline_runs import interrupted_then_finished, start

pytestmark = pytest.mark.oracle
accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")


def _scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    events = accumulator.EventAccumulator(str(folder / "tensorboard"))
    events.Reload()
    scalars = {}
    for tag in events.Tags()["scalars"]:
        scalars[tag] = [(event.step, event.value) for event in events.Scalars(tag)]
    return scalars


def test_a_resumed_run_has_every_round_once_with_the_values_of_the_log(tmp_path: Path) -> None:
    run = interrupted_then_finished(tmp_path / "run", "tensorboard")
    scalars = _scalars(run.dir)
    for key in ("loss", "seconds", "images_per_s"):
        expected = [(line["round"], pytest.approx(line[key], rel=1e-6)) for line in run.rounds]
        assert scalars[key] == expected
    assert [step for step, _ in scalars["knn"]] == [2, 4]
    first = run.rounds[0]["clients"][0]
    series = dict(scalars[f"clients/{first['client']}/divergence"])
    assert series[1] == pytest.approx(first["divergence"], rel=1e-6)
    final = run.results["table"]["this run"]["knn"]["mean"]
    assert scalars["final/knn"] == [(4, pytest.approx(final, rel=1e-6))]


def test_settings_are_hyper_parameters(tmp_path: Path) -> None:
    from tensorboard.plugins.hparams import metadata

    run = start(tmp_path / "run", "tensorboard", rounds=1)
    events = accumulator.EventAccumulator(str(run.dir / "tensorboard"))
    events.Reload()
    contents = events.PluginTagToContent("hparams")
    settings = metadata.parse_session_start_info_plugin_data(
        contents[metadata.SESSION_START_INFO_TAG]
    ).hparams
    assert settings["train.lr"].number_value == run.experiment.train.lr
    assert settings["method.name"].string_value == "byol"


def test_starting_a_finished_run_again_adds_nothing(tmp_path: Path) -> None:
    run = start(tmp_path / "run", "tensorboard", rounds=1)
    before = sorted((run.dir / "tensorboard").iterdir())
    start(tmp_path / "run", "tensorboard", rounds=1)
    assert sorted((run.dir / "tensorboard").iterdir()) == before
