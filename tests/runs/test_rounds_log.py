"""The rounds log: the record of a round, a cut last line, rounds removed before a replay."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from error_messages import raises

from fedssl.core.errors import RunError
from fedssl.core.files.checked_lines import copy_path, repair
from fedssl.core.provenance import code
from fedssl.engine.federate import Round
from fedssl.engine.uploads.records import Report
from fedssl.runs.rounds_log import RoundsLog, read_rounds, record
from fedssl.training.trainer import Metrics

A = Report("a", None, Metrics(2.0, 3, 30, 0.5, 0.9, 4.0), 100, 90, 1.25)
B = Report("b", None, Metrics(5.0, 1, 10, 0.5, 0.8, 3.0), 100, 90, 0.5)
C = Report("ü", "too few images: 1", bytes_down=100)


def test_a_record_by_hand() -> None:
    """Loss by images: (2·30 + 5·10)/40 = 2.75; 40 images in 8 s are 5 a second; rounds from 1."""
    line = record(Round(4, {}, [A, B, C]), 10, 0.1, 8.0, {"knn": 55.5, "knn_common": None})
    clients = line.pop("clients")
    assert line == {"round": 5, "of": 10, "lr": 0.1} | {
        "failed": False,
        "loss": 2.75,
        "knn": 55.5,
        "knn_common": None,
        "seconds": 8.0,
        "images_per_s": 5.0,
        "code": code(),
    }
    assert clients[0] == {
        "client": "a",
        "dropped": None,
        "bytes_down": 100,
        "bytes_up": 90,
        "loss": 2.0,
        "steps": 3,
        "images": 30,
        "images_per_s": 60.0,
        "divergence": 1.25,
        "embedding_std": 0.9,
        "effective_rank": 4.0,
        "alignment": None,
        "uniformity": None,
    }
    assert clients[2] == {
        "client": "ü",
        "dropped": "too few images: 1",
        "bytes_down": 100,
        "memory_advanced": False,
    }


def test_a_client_dropped_after_training_has_its_metrics() -> None:
    late = Report(
        "d", "model: contains NaN or infinite values", bytes_down=100, memory_advanced=True
    )
    (line,) = record(Round(0, {}, [late]), 10, 0.1, 1.0)["clients"]
    assert line == {
        "client": "d",
        "dropped": "model: contains NaN or infinite values",
        "bytes_down": 100,
        "memory_advanced": True,
    }


def test_a_failed_round() -> None:
    line = record(Round(0, {}, [C]), 10, 0.1, 1.0)
    assert (line["failed"], line["loss"], line["knn"], line["images_per_s"]) == (
        True,
        None,
        None,
        0,
    )


def _log(path: Path, rounds: int) -> None:
    log = RoundsLog(path, 0)
    for number in range(rounds):
        log.append(record(Round(number, {}, [A, C]), 10, 0.1, 1.0))


def test_append_and_read(tmp_path: Path) -> None:
    path = tmp_path / "rounds.jsonl"
    assert list(read_rounds(path)) == []
    _log(path, 3)
    assert [line["round"] for line in read_rounds(path)] == [1, 2, 3]
    assert next(read_rounds(path)) == json.loads(
        json.dumps(record(Round(0, {}, [A, C]), 10, 0.1, 1.0))
    )
    assert path.read_bytes().count(b"\n") == 3


def test_a_kill_that_cuts_the_last_line_loses_no_other(tmp_path: Path) -> None:
    """The copy is written first: a kill in it leaves two rounds, one in the log leaves three."""
    path = tmp_path / "rounds.jsonl"
    _log(path, 3)
    copy = copy_path(path)
    log_data = path.read_bytes()
    copy_data = copy.read_bytes()
    second = log_data.index(b"\n", log_data.index(b"\n") + 1) + 1
    for length in range(second, len(log_data)):
        path.write_bytes(log_data[:length])
        assert [line["round"] for line in read_rounds(path)] == [1, 2, 3]
    path.write_bytes(log_data[:second])
    second = copy_data.index(b"\n", copy_data.index(b"\n") + 1) + 1
    for length in range(second, len(copy_data)):
        copy.write_bytes(copy_data[:length])
        assert [line["round"] for line in read_rounds(path)] == [1, 2]


@pytest.mark.parametrize("damaged", ["log", "copy"])
@pytest.mark.parametrize("byte", [b"\n", b'"', b" ", b"7", b"\xff"])
def test_one_changed_byte_is_repaired(damaged: str, byte: bytes, tmp_path: Path) -> None:
    """In the log or in its copy, in a line or at its end, in a number or in a hash."""
    path = tmp_path / "rounds.jsonl"
    _log(path, 3)
    expected = list(read_rounds(path))
    files = {each: each.read_bytes() for each in (path, copy_path(path))}
    victim = path if damaged == "log" else copy_path(path)
    for place in range(0, len(files[victim]), 61):
        if files[victim][place : place + 1] == byte:
            continue
        victim.write_bytes(files[victim][:place] + byte + files[victim][place + 1 :])
        messages: list[str] = []
        assert list(read_rounds(path, messages.append)) == expected
        # A line without an end may also be cut by a kill.
        assert len(messages) == 1 or place == len(files[victim]) - 1
        assert repair(path, messages.append) == 3
        assert {each: each.read_bytes() for each in files} == files


def test_a_line_that_is_damaged_in_the_log_and_in_its_copy(tmp_path: Path) -> None:
    path = tmp_path / "rounds.jsonl"
    _log(path, 3)
    for each in (path, copy_path(path)):
        each.write_bytes(each.read_bytes().replace(b'"round": 2,', b'"round"; 2,'))
    before = path.read_bytes()
    with raises(RunError):
        RoundsLog(path, 3)
    assert path.read_bytes() == before


def test_a_log_of_an_earlier_version_gets_a_copy(tmp_path: Path) -> None:
    path = tmp_path / "rounds.jsonl"
    _log(path, 3)
    copy = copy_path(path)
    expected = copy.read_bytes()
    copy.unlink()
    messages: list[str] = []
    assert [line["round"] for line in read_rounds(path, messages.append)] == [1, 2, 3]
    RoundsLog(path, 3, notify=messages.append)
    assert copy.read_bytes() == expected
    assert messages == [
        f"{path} was written by an earlier version without hashes: its lines could not be verified"
    ]


@pytest.mark.parametrize("finished", [0, 2, 3, 9])
@pytest.mark.parametrize("cut", [0, 10])
def test_rounds_after_the_checkpoint_are_removed(finished: int, cut: int, tmp_path: Path) -> None:
    """A run with three logged rounds resumes from an earlier checkpoint, or has a cut line."""
    path = tmp_path / "rounds.jsonl"
    _log(path, 3)
    for each in (path, copy_path(path)):
        each.write_bytes(each.read_bytes()[: -cut or None])
    whole = 2 if cut else 3
    log = RoundsLog(path, finished)
    kept = list(range(1, min(finished, whole) + 1))
    assert [line["round"] for line in read_rounds(path)] == kept
    log.append(record(Round(len(kept), {}, [A]), 10, 0.1, 1.0))
    assert [line["round"] for line in read_rounds(path)] == [*kept, len(kept) + 1]
    assert path.read_bytes().endswith(b"\n")
