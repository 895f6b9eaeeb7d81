"""New lines of a rounds log: appended, truncated, replaced, damaged."""

from __future__ import annotations

from pathlib import Path

import pytest
from watched_runs import encoded, round_line, write_run

from fedssl.core.files import checked_lines
from fedssl.pages.live.log_tail import FileTail, LogTail, NewLines

ONE, TWO, THREE = encoded(round_line(1), round_line(2), round_line(3))


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "rounds.jsonl"


def test_each_line_is_returned_once(log: Path) -> None:
    tail = LogTail(log)
    assert tail.read() == NewLines([], False)
    checked_lines.append(log, 0, ONE)
    assert tail.read() == NewLines([ONE], False)
    checked_lines.append(log, 1, TWO)
    checked_lines.append(log, 2, THREE)
    assert tail.read() == NewLines([TWO, THREE], False)
    assert tail.read() == NewLines([], False)


def test_half_a_line_is_left_for_later(log: Path) -> None:
    tail = FileTail(log)
    log.write_bytes(ONE + TWO[:10])
    assert tail.read() == NewLines([ONE], False)
    log.write_bytes(ONE + TWO)
    assert tail.read() == NewLines([TWO], False)


def test_a_log_that_is_truncated_and_prolonged_is_read_again(log: Path) -> None:
    """A resumed run drops the rounds after its checkpoint and trains them again."""
    tail = LogTail(log)
    for number, line in enumerate((ONE, TWO)):
        checked_lines.append(log, number, line)
    tail.read()
    checked_lines.truncate(log, 1)
    (again,) = encoded(round_line(2, loss=9.0))
    checked_lines.append(log, 1, again)
    assert tail.read() == NewLines([ONE, again], True)


def test_a_log_that_is_removed_is_empty(log: Path) -> None:
    tail = LogTail(log)
    checked_lines.append(log, 0, ONE)
    tail.read()
    log.unlink()
    checked_lines.copy_path(log).unlink()
    assert tail.read() == NewLines([], True)
    assert tail.read() == NewLines([], False)


def test_a_repaired_log_is_not_read_again(log: Path) -> None:
    """Repairing replaces the file by one with the same lines."""
    tail = LogTail(log)
    checked_lines.append(log, 0, ONE)
    tail.read()
    log.write_bytes(log.read_bytes())
    checked_lines.append(log, 1, TWO)
    assert tail.read() == NewLines([TWO], False)


@pytest.mark.rows("P11")
def test_a_damaged_line_is_read_from_the_copy(tmp_path: Path, log: Path) -> None:
    write_run(tmp_path, round_line(1), round_line(2))
    log.write_bytes(log.read_bytes().replace(b'"loss": 2.0', b'"loss": 3.0', 1))
    tail = LogTail(log)
    assert tail.read().lines == [ONE, TWO]
    assert tail.damaged == 1


def test_a_log_without_a_copy_is_read_as_it_is(log: Path) -> None:
    log.write_bytes(ONE + TWO)
    tail = LogTail(log)
    assert tail.read().lines == [ONE, TWO]
    assert tail.damaged == 0
