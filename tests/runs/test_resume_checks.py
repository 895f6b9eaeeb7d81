"""Settings that may change when a run is resumed, and refusals of other changes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from error_messages import raises
from factories import default_experiment

from fedssl.core.errors import ConfigError
from fedssl.experiment.experiment import Experiment
from fedssl.experiment.overrides import may_change
from fedssl.experiment.plain_values import differences
from fedssl.runs.resume_checks import check_resumable


@pytest.mark.parametrize(
    ("key", "value", "allowed"),
    [
        ("rounds", 101, True),
        ("rounds", 99, False),
        ("probe.every", 3, True),
        ("probe.k", 20, True),
        ("probe.temperature", 0.5, True),
        ("probe.linear", False, True),
        ("probe.labels", 100, True),
        ("probe.epochs", 3, True),
        ("probe.picture", True, True),
        ("probe.baselines", ["random"], True),
        ("train.workers", 2, True),
        ("train.checkpoint_every", 0, True),
        ("train.client_memory", "disk", True),
        ("seed", 1, False),
        ("clients", 6, False),
        ("data.name", "cifar10", False),
        ("data.holdout", 10, False),
        ("data.leave_out", 0.1, False),
        ("partition.name", "natural", False),
        ("method.name", "simsiam", False),
        ("method.momentum", 0.5, False),
        ("method.backbone", "cnn5", False),
        ("method.augment.flip", 0.1, False),
        ("method.view_size", 16, False),
        ("algorithm.update", "both", False),
        ("algorithm.weights", "uniform", False),
        ("topology.name", "isolated", False),
        ("topology.participation", 0.5, False),
        ("train.epochs", 2, False),
        ("train.batch", 64, False),
        ("train.lr", 0.1, False),
        ("train.optimizer", "adam", False),
        ("train.schedule", "constant", False),
        ("train.decay_norms", False, False),
        ("train.precision", "bf16", False),
        ("train.threads", 2, False),
        ("train.deterministic", True, False),
        ("train.mode", "eager", False),
    ],
)
def test_settings_that_may_change_on_resume(
    key: str, value: Any, allowed: bool, tmp_path: Path
) -> None:
    begun = default_experiment()
    messages: list[str] = []
    cpu = torch.device("cpu")
    first = check_resumable(begun, tmp_path, cpu, messages.append)
    _start(tmp_path, first)
    assert check_resumable(begun, tmp_path, cpu, messages.append) == first
    wanted = begun.with_changes({key: value})
    assert key in differences(begun.to_dict(), wanted.to_dict())
    if allowed:
        assert may_change(key)
        assert check_resumable(wanted, tmp_path, cpu, messages.append).to_dict() != first.to_dict()
        assert len(messages) == (key == "rounds")  # a longer schedule is reported
    else:
        kept = (tmp_path / "experiment.toml").read_bytes()
        with pytest.raises(ConfigError, match=f"{key}: .* in that run, .* now"):
            check_resumable(wanted, tmp_path, cpu, messages.append)
        assert (tmp_path / "experiment.toml").read_bytes() == kept


def _start(folder: Path, experiment: Experiment) -> None:
    (folder / "experiment.toml").write_text(experiment.to_toml())
    (folder / "checkpoints").mkdir()
    (folder / "checkpoints/00000.json").touch()


def test_leftovers_of_a_failed_start_do_not_block_another(tmp_path: Path) -> None:
    """Without a checkpoint there is nothing to lose, but a file of the user is not overwritten."""
    other = default_experiment().with_changes({"seed": 1})
    path = tmp_path / "experiment.toml"
    path.write_text(default_experiment().to_toml())
    assert check_resumable(other, tmp_path, torch.device("cpu"), print).seed == 1
    path.write_text("# my own\n" + default_experiment().to_toml())
    with raises(ConfigError):
        check_resumable(other, tmp_path, torch.device("cpu"), print)


@pytest.mark.parametrize(
    ("changed", "shown", "more"), [(3, 3, None), (4, 4, None), (6, 3, "; and 3 more)")]
)
def test_a_refusal_shows_three_differences_or_all_four(
    changed: int, shown: int, more: str | None, tmp_path: Path
) -> None:
    _start(tmp_path, check_resumable(default_experiment(), tmp_path, torch.device("cpu"), print))
    keys = {
        "seed": 1,
        "clients": 6,
        "train.epochs": 2,
        "train.batch": 64,
        "train.lr": 0.1,
        "train.threads": 2,
    }
    wanted = default_experiment().with_changes(dict(list(keys.items())[:changed]))
    with pytest.raises(ConfigError) as refusal:
        check_resumable(wanted, tmp_path, torch.device("cpu"), print)
    sentence = str(refusal.value)
    assert sentence.count(" in that run") == shown
    assert (more in sentence) if more else (" more" not in sentence)


def test_precision_is_resolved_when_a_run_starts(tmp_path: Path) -> None:
    agreed = check_resumable(default_experiment(), tmp_path, torch.device("cpu"), print)
    assert agreed == default_experiment(train__precision="fp32")
    assert check_resumable(
        default_experiment(), tmp_path, torch.device("cuda"), print
    ) == default_experiment(train__precision="bf16")
