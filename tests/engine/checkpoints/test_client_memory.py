"""Client memory: each client reads its own, of the right round, from any tier."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest
import torch
from error_messages import raises

from fedssl.core.errors import RunError
from fedssl.core.files.blob_file import BLOCK, BlobFile
from fedssl.core.state.codec import dumps
from fedssl.core.state.tree import Tree
from fedssl.engine.checkpoints.client_memory import ClientMemory, StoredMemory
from fedssl.engine.checkpoints.placement import Wanted

TIERS: tuple[Wanted, ...] = ("device", "host", "disk")
each_tier = pytest.mark.parametrize("tier", TIERS)


def tree(value: int) -> Tree:
    return {"row": torch.full((2000,), float(value)), "n": value}


def number(tree: Tree) -> object:
    assert not tree or torch.equal(tree["row"], torch.full((2000,), float(tree["n"])))  # type: ignore[arg-type]
    return tree.get("n")


@pytest.fixture
def rows(tmp_path: Path) -> BlobFile:
    return BlobFile(tmp_path / "memory" / "rows")


@each_tier
def test_a_client_reads_what_it_wrote(tier: Wanted, rows: BlobFile) -> None:
    memory = ClientMemory(rows, tier=tier, ahead=3)
    for round in range(4):
        turns = {c: memory.expect(c, round) for c in "abcdef"}
        for i, (client, turn) in enumerate(turns.items()):
            found = memory.read(turn)
            assert number(found) == (100 * i + round - 1 if round else None), client
            assert memory.write(turn, tree(100 * i + round))
        memory.snapshot()
    memory.close()
    assert [number(memory.latest(c)) for c in "abcdef"] == [3, 103, 203, 303, 403, 503]


@each_tier
def test_where_memory_is_stored(tier: Wanted, rows: BlobFile) -> None:
    """In memory until a checkpoint is written, or in the file at once; written only once."""
    memory = ClientMemory(rows, tier=tier)
    for client in "abc":
        memory.write(memory.expect(client, 0), tree(1))
    memory.close()
    assert rows.path.exists() == (tier == "disk")
    versions = memory.snapshot().values()
    assert {v.on_disk_only for v in versions} == {tier == "disk"}
    places = {v.write(rows).offset for v in versions}
    assert len(places) == 3
    assert {v.write(rows).offset for v in versions} == places
    size = len(dumps(tree(1)))
    assert rows.path.stat().st_size == 2 * 2 * BLOCK + size < 3 * 2 * BLOCK


@each_tier
def test_a_replayed_round_reads_the_same_memory(tier: Wanted, rows: BlobFile) -> None:
    memory = ClientMemory(rows, tier=tier)
    for round in (0, 1):
        memory.write(memory.expect("a", round), tree(round))
        memory.snapshot()
    first = memory.expect("a", 2)
    assert number(memory.read(first)) == 1
    assert memory.write(first, tree(2))
    again = memory.expect("a", 2)
    assert number(memory.read(again)) == 1
    assert memory.write(again, tree(22))
    newcomer = memory.expect("b", 2)
    assert memory.write(newcomer, tree(7))
    assert memory.read(memory.expect("b", 2)) == {}
    memory.snapshot()
    assert number(memory.read(memory.expect("a", 3))) == 22
    memory.close()


def test_a_finished_round_is_not_replayed(rows: BlobFile) -> None:
    memory = ClientMemory(rows, {"a": StoredMemory(5, tree(5))})
    with pytest.raises(ValueError, match="round 5 is over"):
        memory.expect("a", 5)


@each_tier
def test_writes_of_an_abandoned_attempt_are_refused(tier: Wanted, rows: BlobFile) -> None:
    """An abandoned attempt cannot write any more, whether its round is older, the same or newer."""
    memory = ClientMemory(rows, tier=tier)
    for late, current in ((0, 0), (0, 1), (3, 2)):
        abandoned = memory.expect("a", late)
        turn = memory.expect("a", current)
        assert memory.write(turn, tree(1))
        assert not memory.write(abandoned, tree(99))
        assert number(memory.latest("a")) == 1
    memory.close()


def test_empty_memories(rows: BlobFile) -> None:
    memory = ClientMemory(rows, tier="disk")
    assert memory.write(memory.expect("a", 0), {})
    assert memory.snapshot() == {}
    memory.write(memory.expect("b", 0), tree(1))
    memory.snapshot()
    memory.write(memory.expect("b", 1), {})
    assert memory.read(memory.expect("b", 2)) == {}
    memory.close()


def test_without_a_file_everything_stays_in_memory() -> None:
    memory = ClientMemory(tier="disk")
    memory.write(memory.expect("a", 0), tree(1))
    assert not memory.snapshot()["a"].on_disk_only
    assert number(memory.latest("a")) == 1


def test_rows_are_read_ahead(rows: BlobFile, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as allowed, in the order of the clients, in another thread, and each only once."""
    memory, me = ClientMemory(rows, tier="disk", ahead=2), threading.get_ident()
    for i, client in enumerate("abcd"):
        memory.write(memory.expect(client, 0), tree(i))
    memory.close()
    memory, read = ClientMemory(rows, memory.snapshot(), "disk", ahead=2), []
    real = BlobFile.pread

    def noted(self: BlobFile, offset: int, length: int) -> bytes:
        read.append((offset, threading.get_ident() == me))
        return real(self, offset, length)

    monkeypatch.setattr(BlobFile, "pread", noted)
    turns = [memory.expect(client, 1) for client in "abcd"]
    deadline = time.monotonic() + 5
    while len(read) < 2 and time.monotonic() < deadline:
        time.sleep(0.001)
    assert [mine for _, mine in read] == [False, False]
    assert [number(memory.read(turn)) for turn in turns] == [0, 1, 2, 3]
    memory.close()
    assert [mine for _, mine in read] == [False] * 4
    assert len(set(read)) == 4


def test_clients_that_do_not_train_do_not_block_others(rows: BlobFile) -> None:
    memory = ClientMemory(rows, tier="disk", ahead=1)
    for client in "ab":
        memory.write(memory.expect(client, 0), tree(1))
    memory.close()
    memory = ClientMemory(rows, memory.snapshot(), "disk", ahead=1)
    memory.expect("a", 1)
    memory.cancel_expected()
    assert memory._fetched == {}
    turn = memory.expect("b", 1)
    assert turn in memory._fetched
    assert number(memory.read(turn)) == 1
    memory.close()


def test_rows_written_in_the_background_do_not_pile_up(
    rows: BlobFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a slow disk the clients wait instead of filling the memory with unwritten rows."""
    gate, real = threading.Semaphore(0), os.pwrite

    def slow(*args: object) -> int:
        gate.acquire()
        return real(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "pwrite", slow)
    memory, done = ClientMemory(rows, tier="disk", ahead=2), []

    def clients() -> None:
        for i in range(6):
            memory.write(memory.expect(str(i), 0), tree(i))
            done.append(i)

    thread = threading.Thread(target=clients)
    thread.start()
    time.sleep(0.2)
    assert done == [0, 1]
    assert [number(memory.latest(c)) for c in "01"] == [0, 1]  # before it is written
    gate.release(6)
    thread.join()
    memory.close()
    assert [number(memory.latest(str(i))) for i in range(6)] == list(range(6))


def test_a_disk_error_is_reported(rows: BlobFile, monkeypatch: pytest.MonkeyPatch) -> None:
    """The unwritten rows are not lost."""

    def full(*args: object) -> int:
        raise OSError(28, "No space left on device")

    memory = ClientMemory(rows, tier="disk", ahead=1)
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        memory.write(memory.expect("a", 0), tree(1))
        with raises(RunError):
            memory.write(memory.expect("b", 0), tree(2))
        memory.close()
    assert [number(memory.latest(c)) for c in "ab"] == [1, 2]
    assert all(version.write(rows).read() for version in memory.snapshot().values())


def test_a_damaged_row_is_reported(rows: BlobFile) -> None:
    memory = ClientMemory(rows, tier="disk")
    memory.write(memory.expect("a", 0), tree(1))
    memory.close()
    data = bytearray(rows.path.read_bytes())
    data[-1] ^= 1
    rows.path.write_bytes(data)
    memory = ClientMemory(rows, memory.snapshot())
    with raises(RunError):
        memory.read(memory.expect("a", 1))
    memory.close()


def test_a_checkpoint_and_the_background_thread_write_a_row_once(
    rows: BlobFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    written, real = [], os.pwrite

    def noted(descriptor: int, data: bytes, offset: int) -> int:
        written.append(offset)
        time.sleep(0.01)
        return real(descriptor, data, offset)

    monkeypatch.setattr(os, "pwrite", noted)
    memory = ClientMemory(rows, tier="disk", ahead=8)
    for i in range(8):
        memory.write(memory.expect(str(i), 0), tree(i))
    places = {
        v.write(rows).offset for v in memory.snapshot().values()
    }  # while the thread writes it
    memory.close()
    assert len(written) == len(set(written)) == 8
    assert places == set(written)
