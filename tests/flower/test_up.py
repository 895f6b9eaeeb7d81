"""What `fedssl flower up` does of itself, without any process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, ClassVar

import pytest
from fake_grid import tiny

from fedssl.runtimes.flower import logs, up


def test_a_log_is_read_on_from_where_it_was(tmp_path: Path) -> None:
    """Half a line waits for its other half, and no byte is read twice: what was read may be overwritten unseen."""
    log = tmp_path / "log"
    more = logs.following(log)
    assert list(more()) == []
    log.write_bytes(b"one\ntwo\nthr")
    assert list(more()) == [b"one\n", b"two\n"]
    log.write_bytes(b"ONE\nTWO\nthree\n")
    assert list(more()) == [b"three\n"]
    assert list(more()) == []


@pytest.mark.parametrize("kept", ["", "1\n", "1\n22\n4444\n5555\n", "1\n22\n33\n4\n"])
def test_a_log_that_was_cut_is_read_again(kept: str, tmp_path: Path) -> None:
    """Also if it is as long as before, or longer, by the next look: then a line seldom ends where one did."""
    log = tmp_path / "log"
    log.write_text("1\n22\n333\n")
    more = logs.following(log)
    assert len(list(more())) == 3
    log.write_text(kept)
    assert b"".join(more()).decode() == kept


def test_rounds_are_told_once_though_the_server_goes_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three rounds are there; the server begins again after the first, and ends with the fifth."""
    log, told = tmp_path / "rounds.jsonl", list[int]()

    def write(rounds: int) -> None:
        log.write_text("".join(json.dumps({"round": 1 + i, "x": "x" * rounds}) + "\n" for i in range(rounds)))

    write(3)
    steps = iter((1, 2, 4, 5))

    class Job:
        def poll(self) -> int | None:
            rounds = next(steps, None)
            if rounds is None:
                return 0
            write(rounds)
            return None

    class Started:
        running: ClassVar[dict[str, Any]] = {}

        def log(self, name: str) -> Path:
            return tmp_path / "said"

        def fallen(self) -> None:
            return None

    class Telling:
        def __enter__(self) -> Telling:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def round(self, line: dict[str, Any]) -> None:
            told.append(line["round"])

    (tmp_path / "results.json").touch()
    monkeypatch.setattr(up, "telling", lambda *_: Telling())
    monkeypatch.setattr(up, "LOOK", 0.0)
    experiment = tiny("fedavg", "simclr", rounds=5)
    up.watch(Job(), Started(), tmp_path, experiment, "title", True, lambda line: None)  # type: ignore[arg-type]
    assert told == [4, 5]


def test_complaints_of_nodes_are_passed_on_once(tmp_path: Path) -> None:
    """A node that cannot reach its own executor does not end: it tries again, and would wait in silence."""
    log = tmp_path / "node0.log"
    said: list[str] = []
    hear = logs.complaints(log, "node0", said.append)
    hear()
    log.write_text(
        "INFO :  Starting\n"
        "WARNING :   Connection attempt failed, retrying in 0.78 seconds\n"
        "WARNING :   Connection attempt failed, retrying in 1.61 seconds\n"
        "notice from the server: this site was rejected: its model is another\n"
    )
    hear()
    hear()
    assert said == [
        f"node0 says: Connection attempt failed; its log: {log}",
        f"node0 says: notice from the server: this site was rejected: its model is another; its log: {log}",
    ]
