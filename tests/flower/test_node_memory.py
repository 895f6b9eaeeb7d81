"""What a node keeps on its disk: whole, of this run's past only, and written by whoever claimed it last."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from fedssl.errors import ClientError
from fedssl.runtimes.flower import memory
from fedssl.runtimes.flower.memory import NodeMemory
from fedssl.runtimes.flower.words import Task


def _task(round: int, attempt: int = 0, starts: tuple[int, ...] = (0,), oldest: int = 0, run: str = "r") -> Task:
    return Task(run, "a/b", round, attempt, starts, oldest)


def _written(root: Path, task: Task) -> None:
    NodeMemory(root, task).write({"says": f"{task.round}.{task.attempt}"})


def _read(root: Path, task: Task) -> object:
    return NodeMemory(root, task).read().get("says")


def test_the_newest_before_the_round_is_read(tmp_path: Path) -> None:
    for round in (0, 2, 5):
        _written(tmp_path, _task(round))
    attempt = {"attempt": 1, "starts": (0, 0)}  # another, for an older round may not claim in the same
    assert _read(tmp_path, _task(6)) == "5.0"
    assert _read(tmp_path, _task(0, **attempt)) is None


def test_a_round_that_is_repeated_reads_what_it_read_the_first_time(tmp_path: Path) -> None:
    for round in (0, 1):
        _written(tmp_path, _task(round))
    assert _read(tmp_path, _task(1)) == "0.0"


def test_runs_and_clients_do_not_meet(tmp_path: Path) -> None:
    _written(tmp_path, _task(0))
    assert _read(tmp_path, _task(1, run="other")) is None
    assert _read(tmp_path, _task(1)._replace(client="a")) is None


@pytest.mark.parametrize(
    ("starts", "round", "expected"),
    [
        ((0, 5), 5, "4.0"),  # begun again with round 5: rounds 5 and later of attempt 0 are no more
        ((0, 5), 7, "4.0"),  # also when the client was not there for 5 and 6
        ((0, 3, 8), 8, "2.0"),  # attempt 1 began with 3, and attempt 2 went on from it
        ((0, 8), 8, "7.0"),
        ((0, 8), 9, "7.0"),
    ],
)
def test_a_past_that_is_no_more_is_not_remembered(
    starts: tuple[int, ...], round: int, expected: str, tmp_path: Path
) -> None:
    for past in range(8):
        _written(tmp_path, _task(past))
    assert _read(tmp_path, _task(round, len(starts) - 1, starts)) == expected


def test_as_much_is_kept_as_the_server_may_go_back(tmp_path: Path) -> None:
    """With checkpoints of rounds 4 and 5 it may begin with 4 again, and needs what was remembered after 3."""
    for round in range(6):
        _written(tmp_path, _task(round, oldest=max(0, round - 1)))
    folder = NodeMemory(tmp_path, _task(6)).folder
    assert sorted(path.name for path in folder.glob("*.remembered")) == [f"0000{n}.0.remembered" for n in (3, 4, 5)]
    assert _read(tmp_path, _task(4, 1, (0, 4))) == "3.0"


def test_whoever_claims_last_is_the_one_who_writes(tmp_path: Path) -> None:
    orphan = NodeMemory(tmp_path, _task(3))
    second = NodeMemory(tmp_path, _task(3))
    with pytest.raises(ClientError, match="newer attempt"):
        orphan.write({"says": "orphan"})
    second.write({"says": "second"})
    assert _read(tmp_path, _task(4)) == "second"


def test_an_older_attempt_cannot_claim(tmp_path: Path) -> None:
    NodeMemory(tmp_path, _task(3, 1, (0, 3)))
    for task in (_task(3), _task(9), _task(2, 1, (0, 3))):
        with pytest.raises(ClientError, match="newer attempt"):
            NodeMemory(tmp_path, task)


def test_a_damaged_memory_is_said_to_be_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """To the node's operator with the file, and that the client goes on once it is gone: with the version before it."""
    for round in (0, 1):
        _written(tmp_path, _task(round))
    [_, path] = sorted(NodeMemory(tmp_path, _task(2)).folder.glob("*.remembered"))
    whole = path.read_bytes()
    for broken in (whole[:40], whole[:-1], whole[:-1] + bytes([whole[-1] ^ 1]), b""):
        path.write_bytes(broken)
        with pytest.raises(ClientError, match="cannot be read from its disk; its own log says") as told:
            _read(tmp_path, _task(2))
        assert str(tmp_path) not in str(told.value)
        assert f"{path} cannot be read" in capsys.readouterr().err
    path.unlink()
    assert _read(tmp_path, _task(2)) == "0.0"


def test_which_images_it_was_is_written_once_and_by_one_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = NodeMemory(tmp_path, _task(0))
    first.agree("these")
    monkeypatch.setattr(memory, "write_atomic", None)  # nobody calls it
    held = []
    locked = NodeMemory._locked
    monkeypatch.setattr(NodeMemory, "_locked", lambda self: held.append(self) or locked(self))
    first.agree("these")
    with pytest.raises(ClientError, match="its images are not those"):
        first.agree("others")
    assert held == [first, first]


def test_it_is_for_its_owner_alone(tmp_path: Path) -> None:
    """Folders that an earlier version opened to others are closed; what the operator made for all of them is not."""
    before = os.umask(0o022)
    try:
        made = NodeMemory(tmp_path / "new", _task(0)).folder
        assert [_mode(folder) for folder in (made, made.parent, tmp_path / "new")] == [0o700] * 3
        (tmp_path / "old").mkdir(mode=0o755)
        (tmp_path / "old/a%2Fb/r").mkdir(mode=0o755, parents=True)
        old = NodeMemory(tmp_path / "old", _task(0)).folder
        assert [_mode(folder) for folder in (old, old.parent, tmp_path / "old")] == [0o700, 0o700, 0o755]
    finally:
        os.umask(before)


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_damaged_claim_is_not_used(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Or the number of an attempt with one changed byte would keep the client out."""
    NodeMemory(tmp_path, _task(3))
    path = NodeMemory(tmp_path, _task(3)).folder / "claim.json"
    whole = path.read_bytes()
    for place in range(0, len(whole), 3):
        for byte in (bytes([whole[place] ^ 8]), b"9", b"\n", b"\xff"):
            path.write_bytes(whole[:place] + byte + whole[place + 1 :])
            capsys.readouterr()
            NodeMemory(tmp_path, _task(3))
            assert f"{path} is damaged" in capsys.readouterr().err or whole[place : place + 1] == byte


def test_a_claim_of_an_earlier_version_holds(tmp_path: Path) -> None:
    folder = NodeMemory(tmp_path, _task(3)).folder
    (folder / "claim.json").write_text('{"attempt": 1, "round": 3, "by": "somebody", "pid": 1}')
    with pytest.raises(ClientError, match="newer attempt"):
        NodeMemory(tmp_path, _task(3))


def test_damaged_hashes_of_images_are_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = NodeMemory(tmp_path, _task(0))
    first.agree("these")
    (first.folder / "images.sha256").write_bytes(b"thes\xff")
    with pytest.raises(ClientError, match="its images are not those"):
        first.agree("these")
    assert "or that file is damaged" in capsys.readouterr().err
