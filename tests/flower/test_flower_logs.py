"""Logs are followed line by line, and printed once."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedssl.flower import logs
from fedssl.flower.logs import follow_joining


def test_a_log_is_read_from_the_last_position(tmp_path: Path) -> None:
    """An incomplete line is read when it is complete, and no byte is read twice."""
    log = tmp_path / "log"
    new_lines = logs.follow_lines(log)
    assert list(new_lines()) == []
    log.write_bytes(b"one\ntwo\nthr")
    assert list(new_lines()) == [b"one\n", b"two\n"]
    log.write_bytes(b"ONE\nTWO\nthree\n")
    assert list(new_lines()) == [b"three\n"]
    assert list(new_lines()) == []


@pytest.mark.parametrize("kept", ["", "1\n", "1\n22\n4444\n5555\n", "1\n22\n33\n4\n"])
def test_a_truncated_log_is_read_again(kept: str, tmp_path: Path) -> None:
    """A new log that is as long or longer is detected if no line ends at the last position."""
    log = tmp_path / "log"
    log.write_text("1\n22\n333\n")
    new_lines = logs.follow_lines(log)
    assert len(list(new_lines())) == 3
    log.write_text(kept)
    assert b"".join(new_lines()).decode() == kept


def test_complaints_of_nodes_are_printed_once(tmp_path: Path) -> None:
    """A node that cannot reach its executor does not exit: it retries, and would wait silently."""
    log = tmp_path / "node0.log"
    printed: list[str] = []
    print_new = logs.follow_complaints(log, "node0", printed.append)
    print_new()
    log.write_text(
        "INFO :  Starting\n"
        "WARNING :   Connection attempt failed, retrying in 0.78 seconds\n"
        "WARNING :   Connection attempt failed, retrying in 1.61 seconds\n"
        "notice from the server: this node was rejected: its model differs\n"
    )
    print_new()
    print_new()
    assert printed == [
        f"node0: Connection attempt failed; its log: {log}",
        f"node0: notice from the server: this node was rejected: its model differs; its log: {log}",
    ]


def test_lines_about_joining_are_printed_once_and_whole(tmp_path: Path) -> None:
    log = tmp_path / "log"
    printed: list[str] = []
    log.write_text("some banner\n0 of 2 clients have joined; waiting\nrejected nod")
    print_new = follow_joining(log, printed.append)
    print_new()
    print_new()
    assert printed == ["server: 0 of 2 clients have joined; waiting"]
    with log.open("a") as file:
        file.write("e 7: its model differs\n")
    print_new()
    assert printed[1:] == ["server: rejected node 7: its model differs"]
