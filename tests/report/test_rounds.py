"""The rounds log: what a line says, a cut last line, rounds taken off before they are replayed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedssl.federate import Round
from fedssl.guard import Report
from fedssl.provenance import code
from fedssl.report.rounds import RoundsLog, read_rounds, record
from fedssl.train import Metrics

A = Report("a", None, Metrics(2.0, 3, 30, 0.5, 0.9, 4.0), 100, 90, 1.25)
B = Report("b", None, Metrics(5.0, 1, 10, 0.5, 0.8, 3.0), 100, 90, 0.5)
C = Report("ü", "too few images: 1", bytes_down=100)


def test_a_record_by_hand() -> None:
    """Loss by images: (2·30 + 5·10)/40 = 2.75; 40 images in 8 s are 5 a second; rounds are counted from 1."""
    line = record(Round(4, {}, [A, B, C]), 10, 0.1, 8.0, 55.5)
    clients = line.pop("clients")
    assert line == {"round": 5, "of": 10, "rate": 0.1} | {
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
        "memory_moved_on": False,
    }


def test_a_client_dropped_after_training_remembers_it() -> None:
    late = Report("d", "model: is not finite", bytes_down=100, moved_on=True)
    (line,) = record(Round(0, {}, [late]), 10, 0.1, 1.0, None)["clients"]
    assert line == {
        "client": "d",
        "dropped": "model: is not finite",
        "bytes_down": 100,
        "memory_moved_on": True,
    }


def test_a_failed_round() -> None:
    line = record(Round(0, {}, [C]), 10, 0.1, 1.0, None)
    assert (line["failed"], line["loss"], line["knn"], line["images_per_s"]) == (True, None, None, 0)


def _log(path: Path, rounds: int) -> None:
    log = RoundsLog(path, 0)
    for number in range(rounds):
        log.append(record(Round(number, {}, [A, C]), 10, 0.1, 1.0, None))


def test_append_and_read(tmp_path: Path) -> None:
    path = tmp_path / "rounds.jsonl"
    assert list(read_rounds(path)) == []
    _log(path, 3)
    assert [line["round"] for line in read_rounds(path)] == [1, 2, 3]
    assert next(read_rounds(path)) == json.loads(json.dumps(record(Round(0, {}, [A, C]), 10, 0.1, 1.0, None)))
    assert path.read_bytes().count(b"\n") == 3


def test_wherever_the_last_line_is_cut_the_others_are_read(tmp_path: Path) -> None:
    path = tmp_path / "rounds.jsonl"
    _log(path, 3)
    data = path.read_bytes()
    second = data.index(b"\n", data.index(b"\n") + 1) + 1
    for length in range(second, len(data)):
        path.write_bytes(data[:length])
        assert [line["round"] for line in read_rounds(path)] == [1, 2]


@pytest.mark.parametrize("finished", [0, 2, 3, 9])
@pytest.mark.parametrize("cut", [0, 10])
def test_rounds_after_the_checkpoint_are_taken_off(finished: int, cut: int, tmp_path: Path) -> None:
    """A run that logged three rounds goes on from an earlier checkpoint; a line cut short goes too."""
    path = tmp_path / "rounds.jsonl"
    _log(path, 3)
    path.write_bytes(path.read_bytes()[: -cut or None])
    whole = 2 if cut else 3
    log = RoundsLog(path, finished)
    kept = list(range(1, min(finished, whole) + 1))
    assert [line["round"] for line in read_rounds(path)] == kept
    log.append(record(Round(len(kept), {}, [A]), 10, 0.1, 1.0, None))
    assert [line["round"] for line in read_rounds(path)] == [*kept, len(kept) + 1]
    assert path.read_bytes().endswith(b"\n")
