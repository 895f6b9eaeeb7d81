"""Byte strings in one file: one that is referred to is never overwritten, and other places are
reused.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedssl.core.files.blob_file import BLOCK, BlobFile, Extent, FreeList


@pytest.fixture
def extents(tmp_path: Path) -> BlobFile:
    return BlobFile(tmp_path / "memory" / "rows")


def test_written_bytes_are_read_back(extents: BlobFile) -> None:
    datas = [b"", b"x", bytes(BLOCK), os.urandom(BLOCK + 1), os.urandom(7)]
    put = [extents.put(data) for data in datas]
    assert [extent.offset // BLOCK for extent in put] == [0, 1, 2, 3, 5]
    assert [extent.read() for extent in put] == datas
    again = BlobFile(extents.path)
    assert [again.claim(e.offset, e.length, e.sha256).read() for e in put] == datas


def test_reading_does_not_create_the_file(extents: BlobFile) -> None:
    with pytest.raises(FileNotFoundError):
        extents.claim(0, 3, "").read()
    extents.sync()
    assert not extents.path.parent.exists()


def test_a_place_is_reused_when_nothing_refers_to_it(extents: BlobFile) -> None:
    a, b, c = (extents.put(data) for data in (b"a", b"b", b"c"))
    live = {"client": b}
    snapshot = {"client": b}
    del b
    live["client"] = c
    assert extents.put(b"d").offset == 3 * BLOCK  # the snapshot still has it
    snapshot.clear()
    assert extents.put(b"e").offset == BLOCK
    assert (a.read(), c.read()) == (b"a", b"c")


def test_a_place_that_is_taken_cannot_be_claimed(extents: BlobFile) -> None:
    taken = extents.put(bytes(2 * BLOCK))
    for offset in (0, BLOCK):
        with pytest.raises(ValueError, match="is not free"):
            extents.claim(offset, 1, "")
    assert taken.length == 2 * BLOCK


@pytest.mark.rows("P5")
def test_damage_is_detected(extents: BlobFile) -> None:
    first = extents.put(b"abc")
    second = extents.put(b"def")
    extents.path.write_bytes(b"abd")
    with pytest.raises(ValueError, match=r"the data at 0 in .*rows does not match its hash"):
        first.read()
    with pytest.raises(ValueError, match=r"rows ends before 4099"):
        second.read()


def test_writes_and_reads_that_come_in_pieces(
    extents: BlobFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = os.pread
    write = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, offset: write(fd, data[:1000], offset))
    monkeypatch.setattr(os, "pread", lambda fd, length, offset: read(fd, min(length, 700), offset))
    data = os.urandom(5000)
    assert extents.put(data).read() == data


def test_a_write_that_fails_leaves_its_place_free(
    extents: BlobFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: object) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        with pytest.raises(OSError, match="No space"):
            extents.put(b"abc")
    assert extents.put(b"abc").offset == 0


def test_only_new_data_is_synced(extents: BlobFile, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sync that failed has synced nothing."""
    extents.put(b"a")
    synced: list[int] = []

    def failing(descriptor: int) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", failing)
        with pytest.raises(OSError, match="Input/output"):
            extents.sync()
    monkeypatch.setattr(os, "fsync", synced.append)
    extents.sync()
    extents.sync()
    assert len(synced) == 1
    extents.put(b"b")
    extents.sync()
    assert len(synced) == 2


def test_descriptors_are_closed(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        extents = BlobFile(tmp_path / "rows")
        assert extents.put(b"x").read() == b"x"
        del extents
    assert len(os.listdir("/proc/self/fd")) == before


def test_many_threads(extents: BlobFile) -> None:
    """Each thread keeps its last entry, and reads it back."""
    failed: list[str] = []

    def work(number: int) -> None:
        kept: list[tuple[bytes, Extent]] = []
        for i in range(200):
            data = f"{number} {i} ".encode() * (1 + 400 * (i % 3))
            kept = [*kept[-2:], (data, extents.put(data))]
            failed.extend(str(number) for data, extent in kept if extent.read() != data)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    assert extents.path.stat().st_size <= 6 * 4 * 2 * BLOCK


Step = tuple[str, int, int]
STEPS = st.lists(
    st.tuples(st.sampled_from(["take", "claim", "give"]), st.integers(0, 30), st.integers(1, 5))
)


@given(STEPS)
def test_a_free_list_holds_what_is_not_reserved(steps: list[Step]) -> None:
    """Compare with a set of cells for each holder."""
    free_list = FreeList()
    held = []
    for what, at, size in steps:
        taken = {cell for cells in held for cell in cells}
        if what == "take":
            start = free_list.allocate(size)
            expected = next(n for n in range(10**4) if not taken & set(range(n, n + size)))
            assert start == expected
            held.append(range(start, start + size))
        elif what == "claim" and taken & set(range(at, at + size)):
            with pytest.raises(ValueError, match="not free"):
                free_list.reserve(at, at + size)
        elif what == "claim":
            free_list.reserve(at, at + size)
            held.append(range(at, at + size))
        elif held:
            released = held.pop(at % len(held))
            free_list.release(released.start, released.stop)
    _check(free_list, held)


def _check(free_list: FreeList, held: list[range]) -> None:
    free: Callable[[int], bool] = lambda cell: any(a <= cell < b for a, b in free_list._ranges)  # noqa: E731
    cells = {cell for cells in held for cell in cells}
    assert all(free(cell) != (cell in cells) for cell in range(300))
    assert all(a[1] < b[0] for a, b in zip(free_list._ranges, free_list._ranges[1:], strict=False))
