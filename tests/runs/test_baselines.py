"""Which baselines a run is compared with, and what their training costs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import fedssl
from fedssl.runs.baselines import choose_baselines
from tests.factories import bright_dataset, default_experiment, make_experiment


def _rounds(*participants: str) -> list[dict[str, Any]]:
    """Return the records of rounds of 3 s, each with the clients named by its letters."""
    lines = []
    for names in participants:
        lines.append({"seconds": 3.0, "clients": [{"client": name} for name in names]})
    return lines


def test_clients_alone_are_a_baseline_if_all_take_part() -> None:
    """Two clients in each of two rounds: alone they train as often, in 6 s."""
    choice = choose_baselines(default_experiment(), _rounds("ab", "ab"))
    assert choice.names == ["random", "isolated"]
    assert choice.note == (
        "each client also trains alone, for comparison: about 6 s; --no-baselines skips it"
    )


def test_clients_alone_are_no_baseline_if_they_take_more_than_twice_the_time() -> None:
    """Six clients, two in each of three rounds: alone they train 18 instead of 6 times."""
    choice = choose_baselines(default_experiment(), _rounds("ab", "cd", "ef"))
    assert choice.names == ["random"]
    assert choice.note is not None
    assert "about 27 s, 3.0 times as long as this run" in choice.note
    assert choice.note.endswith("--baselines random,isolated does it")


def test_twice_the_time_is_not_too_long() -> None:
    assert choose_baselines(default_experiment(), _rounds("ab", "cd")).names[-1] == "isolated"


@pytest.mark.parametrize("topology", ["isolated", "centralized"])
def test_a_run_that_merges_nothing_is_compared_with_random_weights(topology: str) -> None:
    choice = choose_baselines(default_experiment(topology=topology), _rounds("ab"))
    assert choice == (["random"], None)


def test_an_algorithm_that_needs_a_server_cannot_train_clients_alone() -> None:
    experiment = default_experiment(algorithm="fedadam")
    assert choose_baselines(experiment, _rounds("ab")).names == ["random"]


def test_a_run_with_first_weights_is_compared_with_them() -> None:
    experiment = default_experiment(method__init="backbone.safetensors")
    assert choose_baselines(experiment, _rounds("ab", "ab")).names == ["start", "isolated"]


def test_named_baselines_are_used_whatever_their_time() -> None:
    experiment = default_experiment(probe__baselines=["centralized"])
    assert choose_baselines(experiment, _rounds("ab", "cd", "ef")) == (["centralized"], None)


def test_the_earlier_name_of_baselines_is_accepted() -> None:
    assert default_experiment(probe__beside=["random"]).probe.baselines == ("random",)


def _run(folder: Path, **probe: Any) -> fedssl.Run:
    experiment = make_experiment(probe={"baselines": None, **probe})
    data = bright_dataset()
    return fedssl.run(experiment, folder, "cpu", dataset=data, quiet=True)


def test_a_run_with_labels_is_compared_by_default(tmp_path: Path) -> None:
    run = _run(tmp_path / "run")
    assert list(run.results["table"]) == ["this run", "random", "isolated"]
    assert list(run.results["verdict"]["gains"]) == ["isolated", "random"]


def test_results_are_kept_if_a_baseline_is_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The accuracy of the run itself is on the disk before a baseline trains."""

    def stop(*arguments: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("fedssl.runs.baselines.train_locally", stop)
        with pytest.raises(KeyboardInterrupt):
            _run(tmp_path / "run")
    results = json.loads((tmp_path / "run" / "results.json").read_text())
    assert list(results["table"]) == ["this run", "random"]
    resumed = _run(tmp_path / "run")
    assert list(resumed.results["table"]) == ["this run", "random", "isolated"]
    assert resumed.results["table"]["this run"] == results["table"]["this run"]


def test_baselines_that_were_trained_are_not_announced_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = _run(tmp_path / "run")
    experiment = make_experiment(probe={"baselines": None, "k": 3})
    fedssl.run(experiment, run.dir, "cpu", dataset=bright_dataset())
    err = capsys.readouterr().err
    assert "measuring the run again" in err
    assert "trains alone" not in err


def test_k_depends_on_the_number_of_labelled_images(tmp_path: Path) -> None:
    """48 labelled images: 6 neighbours, as 6² ≤ 48 < 7². Another k is measured without training."""
    run = _run(tmp_path / "run", k=None, baselines=[])
    assert run.results["knn_settings"]["k"] == 6
    trained = (tmp_path / "run" / "rounds.jsonl").read_bytes()
    again = _run(tmp_path / "run", k=3, baselines=[])
    assert again.results["knn_settings"]["k"] == 3
    assert (tmp_path / "run" / "rounds.jsonl").read_bytes() == trained
