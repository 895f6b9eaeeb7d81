"""The state on a node's disk: whole, of the current attempt, and written by the last claim."""

from __future__ import annotations

import os
import stat
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from error_messages import raises

from fedssl.core.console import Notify
from fedssl.core.errors import ClientError
from fedssl.core.files.sealed import seal
from fedssl.flower import node_memory
from fedssl.flower.messages import RoundTask
from fedssl.flower.node_memory import NodeMemory
from fedssl.runs.client_files import DEFAULT, find_places
from fedssl.runs.purge import find_targets, held, remove


def _task(
    round: int, attempt: int = 0, starts: tuple[int, ...] = (0,), oldest: int = 0, run: str = "r"
) -> RoundTask:
    return RoundTask(run, "a/b", round, attempt, starts, oldest)


def _write(root: Path, task: RoundTask) -> None:
    NodeMemory(root, task).write({"version": f"{task.round}.{task.attempt}"})


def _read(root: Path, task: RoundTask) -> object:
    return NodeMemory(root, task).read().get("version")


def test_the_newest_before_the_round_is_read(tmp_path: Path) -> None:
    for round in (0, 2, 5):
        _write(tmp_path, _task(round))
    assert _read(tmp_path, _task(6)) == "5.0"
    # Another attempt, because an older round cannot claim in the same one.
    assert _read(tmp_path, _task(0, attempt=1, starts=(0, 0))) is None


def test_a_repeated_round_reads_the_same_state_again(tmp_path: Path) -> None:
    for round in (0, 1):
        _write(tmp_path, _task(round))
    assert _read(tmp_path, _task(1)) == "0.0"


def test_runs_and_clients_are_separate(tmp_path: Path) -> None:
    _write(tmp_path, _task(0))
    assert _read(tmp_path, _task(1, run="other")) is None
    assert _read(tmp_path, _task(1)._replace(client="a")) is None


@pytest.mark.parametrize(
    ("starts", "round", "expected"),
    [
        ((0, 5), 5, "4.0"),  # begun again at round 5: later rounds of attempt 0 are discarded
        ((0, 5), 7, "4.0"),  # also if the client missed rounds 5 and 6
        ((0, 3, 8), 8, "2.0"),  # attempt 1 began at 3, and attempt 2 continued it
        ((0, 8), 8, "7.0"),
        ((0, 8), 9, "7.0"),
    ],
)
def test_discarded_rounds_are_not_read(
    starts: tuple[int, ...], round: int, expected: str, tmp_path: Path
) -> None:
    for past in range(8):
        _write(tmp_path, _task(past))
    assert _read(tmp_path, _task(round, len(starts) - 1, starts)) == expected


def test_versions_are_kept_as_far_as_the_server_may_go_back(tmp_path: Path) -> None:
    """With checkpoints of rounds 4 and 5 it may begin at 4 again, and needs the state after 3."""
    for round in range(6):
        _write(tmp_path, _task(round, oldest=max(0, round - 1)))
    folder = NodeMemory(tmp_path, _task(6)).folder
    assert sorted(path.name for path in folder.glob("*.remembered")) == [
        f"0000{n}.0.remembered" for n in (3, 4, 5)
    ]
    assert _read(tmp_path, _task(4, 1, (0, 4))) == "3.0"


@pytest.mark.rows("P7")
def test_only_the_last_claim_may_write(tmp_path: Path) -> None:
    orphan = NodeMemory(tmp_path, _task(3))
    second = NodeMemory(tmp_path, _task(3))
    with raises(ClientError):
        orphan.write({"version": "orphan"})
    second.write({"version": "second"})
    assert _read(tmp_path, _task(4)) == "second"


def test_an_older_attempt_cannot_claim(tmp_path: Path) -> None:
    NodeMemory(tmp_path, _task(3, 1, (0, 3)))
    for task in (_task(3), _task(9), _task(2, 1, (0, 3))):
        with raises(ClientError):
            NodeMemory(tmp_path, task)


@pytest.mark.rows("P5")
def test_a_damaged_state_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The node's log names the file; without it, the client continues from the version before."""
    for round in (0, 1):
        _write(tmp_path, _task(round))
    [_, path] = sorted(NodeMemory(tmp_path, _task(2)).folder.glob("*.remembered"))
    whole = path.read_bytes()
    for broken in (whole[:40], whole[:-1], whole[:-1] + bytes([whole[-1] ^ 1]), b""):
        path.write_bytes(broken)
        with raises(ClientError) as raised:
            _read(tmp_path, _task(2))
        assert str(tmp_path) not in str(raised.value)
        assert f"{path} cannot be read" in capsys.readouterr().err
    path.unlink()
    assert _read(tmp_path, _task(2)) == "0.0"


def test_the_images_are_recorded_once_and_under_the_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = NodeMemory(tmp_path, _task(0))
    first.check_images("these")
    monkeypatch.setattr(node_memory, "write_atomic", None)  # it must not be called
    folders = []
    locked = node_memory.locked

    def counted(folder: Path, wait: Notify) -> AbstractContextManager[int]:
        folders.append(folder)
        return locked(folder, wait)

    monkeypatch.setattr(node_memory, "locked", counted)
    first.check_images("these")
    with raises(ClientError):
        first.check_images("others")
    assert folders == [first.folder, first.folder]


@pytest.mark.rows("C10")
def test_only_the_owner_can_read_the_state(tmp_path: Path) -> None:
    """Folders that an earlier version left readable are closed; the operator's root is not."""
    before = os.umask(0o022)
    try:
        new = NodeMemory(tmp_path / "new", _task(0)).folder
        assert [_mode(folder) for folder in (new, new.parent, tmp_path / "new")] == [0o700] * 3
        (tmp_path / "old").mkdir(mode=0o755)
        (tmp_path / "old/a%2Fb/r").mkdir(mode=0o755, parents=True)
        old = NodeMemory(tmp_path / "old", _task(0)).folder
        modes = [_mode(folder) for folder in (old, old.parent, tmp_path / "old")]
        assert modes == [0o700, 0o700, 0o755]
    finally:
        os.umask(before)


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_damaged_claim_is_not_used(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Otherwise one changed byte in the number of an attempt would lock the client out."""
    NodeMemory(tmp_path, _task(3))
    path = NodeMemory(tmp_path, _task(3)).folder / "claim.json"
    whole = path.read_bytes()
    for place in range(0, len(whole), 3):
        for byte in (bytes([whole[place] ^ 8]), b"9", b"\n", b"\xff"):
            path.write_bytes(whole[:place] + byte + whole[place + 1 :])
            capsys.readouterr()
            NodeMemory(tmp_path, _task(3))
            assert (
                f"{path} is damaged" in capsys.readouterr().err or whole[place : place + 1] == byte
            )


def test_a_claim_of_an_earlier_version_holds(tmp_path: Path) -> None:
    folder = NodeMemory(tmp_path, _task(3)).folder
    (folder / "claim.json").write_text('{"attempt": 1, "round": 3, "by": "another", "pid": 1}')
    with raises(ClientError):
        NodeMemory(tmp_path, _task(3))


def test_a_damaged_hash_of_the_images_is_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = NodeMemory(tmp_path, _task(0))
    first.check_images("these")
    (first.folder / "images.sha256").write_bytes(b"thes\xff")
    with raises(ClientError):
        first.check_images("these")
    assert "or that file is damaged" in capsys.readouterr().err


@pytest.mark.rows("C10")
def test_a_purged_client_does_not_begin_again_with_an_empty_state(tmp_path: Path) -> None:
    """The server drops it with the reason; other runs of the client are unaffected."""
    _write(tmp_path, _task(0))
    (place,) = find_places(tmp_path)
    assert place.kind == "node"
    claim = {"attempt": 0, "round": 0, "by": "x", "pid": 2**22 + 1}  # of a process that has ended
    (place.folder / "claim.json").write_bytes(seal(claim))
    targets = find_targets([tmp_path], DEFAULT)
    with held(targets):
        remove(targets)
    assert not list(place.folder.glob("*.remembered"))
    with raises(ClientError):
        NodeMemory(tmp_path, _task(1))
    _write(tmp_path, _task(0, run="other"))
