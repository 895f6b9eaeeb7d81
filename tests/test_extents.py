"""Byte strings in one file: what anybody refers to is never written over, and what nobody does is used again."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedssl.extents import BLOCK, Extent, Extents, Gaps


@pytest.fixture
def extents(tmp_path: Path) -> Extents:
    return Extents(tmp_path / "memory" / "rows")


def test_what_was_put_is_read(extents: Extents) -> None:
    datas = [b"", b"x", bytes(BLOCK), os.urandom(BLOCK + 1), os.urandom(7)]
    put = [extents.put(data) for data in datas]
    assert [extent.offset // BLOCK for extent in put] == [0, 1, 2, 3, 5]
    assert [extent.read() for extent in put] == datas
    again = Extents(extents.path)
    assert [again.claim(e.offset, e.length, e.sha256).read() for e in put] == datas


def test_looking_does_not_make_the_file(extents: Extents) -> None:
    with pytest.raises(FileNotFoundError):
        extents.claim(0, 3, "").read()
    extents.sync()
    assert not extents.path.parent.exists()


def test_a_place_is_used_again_when_nobody_refers_to_it(extents: Extents) -> None:
    a, b, c = (extents.put(data) for data in (b"a", b"b", b"c"))
    live, snapshot = {"client": b}, {"client": b}
    del b
    live["client"] = c
    assert extents.put(b"d").offset == 3 * BLOCK  # the snapshot still has it
    snapshot.clear()
    assert extents.put(b"e").offset == BLOCK
    assert (a.read(), c.read()) == (b"a", b"c")


def test_a_place_that_is_taken_cannot_be_claimed(extents: Extents) -> None:
    taken = extents.put(bytes(2 * BLOCK))
    for offset in (0, BLOCK):
        with pytest.raises(ValueError, match="is not free"):
            extents.claim(offset, 1, "")
    assert taken.length == 2 * BLOCK


def test_damage_is_noticed(extents: Extents) -> None:
    first, second = extents.put(b"abc"), extents.put(b"def")
    extents.path.write_bytes(b"abd")
    with pytest.raises(ValueError, match=r"what lies at 0 in .*rows does not match its hash"):
        first.read()
    with pytest.raises(ValueError, match=r"rows ends before 4099"):
        second.read()


def test_writes_and_reads_that_come_in_pieces(extents: Extents, monkeypatch: pytest.MonkeyPatch) -> None:
    read, write = os.pread, os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, offset: write(fd, data[:1000], offset))
    monkeypatch.setattr(os, "pread", lambda fd, length, offset: read(fd, min(length, 700), offset))
    data = os.urandom(5000)
    assert extents.put(data).read() == data


def test_a_write_that_fails_leaves_its_place_free(extents: Extents, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: object) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        with pytest.raises(OSError, match="No space"):
            extents.put(b"abc")
    assert extents.put(b"abc").offset == 0


def test_only_what_is_new_is_synced(extents: Extents, monkeypatch: pytest.MonkeyPatch) -> None:
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
        extents = Extents(tmp_path / "rows")
        assert extents.put(b"x").read() == b"x"
        del extents
    assert len(os.listdir("/proc/self/fd")) == before


def test_many_threads(extents: Extents) -> None:
    """Each keeps what it put last, and finds it."""
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
STEPS = st.lists(st.tuples(st.sampled_from(["take", "claim", "give"]), st.integers(0, 30), st.integers(1, 5)))


@given(STEPS)
def test_gaps_are_what_nobody_has(steps: list[Step]) -> None:
    """Beside the obvious: a set of cells for each holder."""
    gaps, held = Gaps(), []
    for what, at, size in steps:
        taken = {cell for cells in held for cell in cells}
        if what == "take":
            start = gaps.take(size)
            expected = next(n for n in range(10**4) if not taken & set(range(n, n + size)))
            assert start == expected
            held.append(range(start, start + size))
        elif what == "claim" and taken & set(range(at, at + size)):
            with pytest.raises(ValueError, match="not free"):
                gaps.claim(at, at + size)
        elif what == "claim":
            gaps.claim(at, at + size)
            held.append(range(at, at + size))
        elif held:
            back = held.pop(at % len(held))
            gaps.give(back.start, back.stop)
    _check(gaps, held)


def _check(gaps: Gaps, held: list[range]) -> None:
    free: Callable[[int], bool] = lambda cell: any(a <= cell < b for a, b in gaps._gaps)  # noqa: E731
    cells = {cell for cells in held for cell in cells}
    assert all(free(cell) != (cell in cells) for cell in range(300))
    assert all(a[1] < b[0] for a, b in zip(gaps._gaps, gaps._gaps[1:], strict=False))
