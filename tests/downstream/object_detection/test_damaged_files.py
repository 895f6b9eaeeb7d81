"""Files of a fine-tuning's directory, with a changed byte."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from error_messages import raises

from fedssl.core.errors import ConfigError
from fedssl.core.files import integrity
from fedssl.downstream.object_detection.finetune import _check_identity, _read_finished

IDENTITY: dict[str, Any] = {
    "settings": {"lr": 0.1, "seed": 3},
    "backbone": "b",
    "train": "t",
    "val": "v",
}


def _started(folder: Path) -> Path:
    _check_identity(folder, IDENTITY, print)
    (folder / "checkpoints").mkdir()
    (folder / "checkpoints/00000001-0.safetensors").touch()
    return folder / "settings.json"


def test_settings_are_restored_from_their_copy(tmp_path: Path) -> None:
    path = _started(tmp_path)
    intact = path.read_bytes()
    for place in range(0, len(intact), 7):
        path.write_bytes(intact[:place] + b"\xff" + intact[place + 1 :])
        messages: list[str] = []
        _check_identity(tmp_path, IDENTITY, messages.append)
        assert len(messages) == 1
        assert path.read_bytes() == intact
    with raises(ConfigError):
        _check_identity(tmp_path, IDENTITY | {"settings": {"lr": 0.1, "seed": 4}}, print)


def test_damaged_settings_without_a_copy_are_one_sentence(tmp_path: Path) -> None:
    path = _started(tmp_path)
    (tmp_path / integrity.NAME).unlink()
    for text in (b"\xff", b"{", b"[]", b"5", b"{}"):
        path.write_bytes(text)
        with raises(ConfigError):
            _check_identity(tmp_path, IDENTITY, print)


def test_a_start_that_failed_does_not_block_another(tmp_path: Path) -> None:
    other = IDENTITY | {"backbone": "another"}
    _check_identity(tmp_path, IDENTITY, print)
    _check_identity(tmp_path, other, print)
    assert json.loads((tmp_path / "settings.json").read_bytes()) == other


@pytest.mark.parametrize("recorded", [True, False])
def test_damaged_metrics_are_measured_again(recorded: bool, tmp_path: Path) -> None:
    path = tmp_path / "metrics.json"
    path.write_bytes(b'{"boxes": 41}')
    if recorded:
        integrity.record_hashes(tmp_path, ["metrics.json"])
    assert _read_finished(tmp_path, print) == {"boxes": 41}
    path.write_bytes(b'{"boxes": 51}' if recorded else b'{"boxes": 4')
    messages: list[str] = []
    assert _read_finished(tmp_path, messages.append) is None
    assert messages == [
        f"{tmp_path}: metrics.json is damaged; the detector is exported and measured again"
    ]
