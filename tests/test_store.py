"""Checkpoints: whole or not at all, two of them, and never silently the wrong one."""

from __future__ import annotations

import errno
import hashlib
import os
import random
import shutil
from pathlib import Path

import pytest
import torch

from fedssl import store as store_module
from fedssl.errors import RunError
from fedssl.layout import Entry, Layout
from fedssl.store import Memory, Remembered, Snapshot, Store, write_atomic
from fedssl.tree import State, Tree, dumps, model

LAYOUT = Layout.of([Entry("backbone.w", (4,), "weight"), Entry("backbone.n", (), "counter")])
ODD = ["", "a/b", "..", ".", "ü", "a@00001", "%2F", " ", "a\nb", "\udcff", "*", "-", "A", "a", "🦊", "a.tmp"]


def tree(value: float) -> Tree:
    return {"model": State(LAYOUT, torch.full((4,), float(value)), torch.tensor([int(value)])), "n": value}


def snapshot(rounds: int, **memory: int) -> Snapshot:
    """Site and memories hold the number of the round that wrote them."""
    return Snapshot(rounds, {"server": tree(rounds)}, {c: Remembered(r, tree(r)) for c, r in memory.items()})


def save(store: Store, *snapshots: Snapshot) -> None:
    for one in snapshots:
        store.save(one)
        store.wait()


def same(a: Snapshot | None, b: Snapshot) -> bool:
    return (
        a is not None
        and a.rounds == b.rounds
        and {s: dumps(t) for s, t in a.sites.items()} == {s: dumps(t) for s, t in b.sites.items()}
        and {c: (m.round, dumps(m.tree)) for c, m in a.memory.items()}
        == {c: (m.round, dumps(m.tree)) for c, m in b.memory.items()}
    )


def files(root: Path) -> dict[str, str]:
    return {
        str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }


def quiet(line: str) -> None:
    raise AssertionError(f"nothing should be said: {line}")


def test_what_was_saved_is_loaded(tmp_path: Path) -> None:
    saved = Snapshot(3, {"a": tree(1), "b": {**tree(2), "x": torch.ones(2)}}, snapshot(3, c0=1, c1=2).memory)
    save(Store(tmp_path), saved)
    assert same(Store(tmp_path).load(quiet), saved)


def test_nothing_was_ever_saved(tmp_path: Path) -> None:
    assert Store(tmp_path).load(quiet) is None
    assert list(tmp_path.iterdir()) == []


def test_sites_that_are_one_tree(tmp_path: Path) -> None:
    """Before the first round all sites are the same object."""
    saved = Snapshot(0, dict.fromkeys(["a", "b", "c"], tree(7)), {})
    save(Store(tmp_path), saved)
    assert same(Store(tmp_path).load(quiet), saved)


def test_the_last_two_are_kept_and_nothing_else(tmp_path: Path) -> None:
    save(Store(tmp_path), *[snapshot(r, c0=r - 1, c1=(r - 1) // 2 * 2) for r in range(1, 7)])
    assert sorted(files(tmp_path)) == [
        "checkpoints/00005.json",
        "checkpoints/00005.safetensors",
        "checkpoints/00006.json",
        "checkpoints/00006.safetensors",
        "memory/c0@00004.safetensors",
        "memory/c0@00005.safetensors",
        "memory/c1@00004.safetensors",
    ]


def test_leftovers_of_a_kill_are_cleared_away(tmp_path: Path) -> None:
    store = Store(tmp_path)
    save(store, snapshot(1, c=0))
    left = ["checkpoints/00002.safetensors", "checkpoints/00002.json.tmp", "checkpoints/00003.safetensors.tmp"]
    left += ["memory/c@00001.safetensors", "memory/c@00009.safetensors.tmp"]
    for name in left:
        (tmp_path / name).write_bytes(b"half")
    assert same(Store(tmp_path).load(quiet), snapshot(1, c=0))
    save(store, snapshot(4, c=3))
    assert not set(left) & set(files(tmp_path))
    assert same(Store(tmp_path).load(quiet), snapshot(4, c=3))


def test_memory_that_did_not_change_is_not_written_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = []
    monkeypatch.setattr(
        store_module, "write_atomic", lambda path, data: written.append(path.name) or write_atomic(path, data)
    )
    save(Store(tmp_path), snapshot(1, idle=0, busy=0))
    written.clear()
    save(Store(tmp_path), snapshot(2, idle=0, busy=1), snapshot(3, idle=0, busy=2))
    assert [name for name in written if "@" in name] == ["busy@00001.safetensors", "busy@00002.safetensors"]
    assert same(Store(tmp_path).load(quiet), snapshot(3, idle=0, busy=2))


def test_half_a_memory_that_no_manifest_knows_is_written_again(tmp_path: Path) -> None:
    """A kill after the file and before the manifest: the replayed round must not trust what lies there."""
    save(Store(tmp_path), snapshot(1, c=0))
    (tmp_path / "memory/c@00001.safetensors").write_bytes(b"something else")
    save(Store(tmp_path), snapshot(2, c=1))
    assert same(Store(tmp_path).load(quiet), snapshot(2, c=1))


def test_odd_client_ids(tmp_path: Path) -> None:
    saved = Snapshot(1, {"server": tree(1)}, {c: Remembered(0, tree(i)) for i, c in enumerate(ODD)})
    save(Store(tmp_path), saved)
    assert len(list((tmp_path / "memory").iterdir())) == len(ODD)
    assert same(Store(tmp_path).load(quiet), saved)
    assert {p.parent.name for p in tmp_path.rglob("*") if p.is_file()} == {"checkpoints", "memory"}


# -- damage --


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("whole")
    save(Store(root), snapshot(1, a=0, b=0), snapshot(2, a=1, b=0))
    return root


NEWEST = ["checkpoints/00002.json", "checkpoints/00002.safetensors", "memory/a@00001.safetensors"]


def _falls_back(root: Path) -> None:
    said: list[str] = []
    assert same(Store(root).load(said.append), snapshot(1, a=0, b=0))
    assert len(said) == 1
    assert said[0].startswith("checkpoint 00002 is damaged (")
    assert said[0].endswith("; trying the one before")


@pytest.mark.parametrize("name", NEWEST)
def test_flipped_bits(name: str, whole: Path, tmp_path: Path) -> None:
    data = (whole / name).read_bytes()
    draw = random.Random(name)
    for i in range(50):
        offset = i * len(data) // 50
        broken = bytearray(data)
        broken[offset] ^= 1 << draw.randrange(8)
        root = shutil.copytree(whole, tmp_path / str(i))
        (root / name).write_bytes(broken)
        _falls_back(root)


@pytest.mark.parametrize("name", NEWEST)
def test_truncated(name: str, whole: Path, tmp_path: Path) -> None:
    data = (whole / name).read_bytes()
    for i, length in enumerate([0, 1, 7, 8, 9, len(data) // 2, len(data) - 1]):
        root = shutil.copytree(whole, tmp_path / str(i))
        (root / name).write_bytes(data[:length])
        _falls_back(root)


@pytest.mark.parametrize("name", NEWEST[1:])
def test_gone(name: str, whole: Path, tmp_path: Path) -> None:
    root = shutil.copytree(whole, tmp_path / "x")
    (root / name).unlink()
    _falls_back(root)


@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b"null", b'{"body": 3, "sha256": "x"}', b"\xff\xfe", b"[" * 50])
def test_a_manifest_that_is_none(content: bytes, whole: Path, tmp_path: Path) -> None:
    root = shutil.copytree(whole, tmp_path / "x")
    (root / NEWEST[0]).write_bytes(content)
    _falls_back(root)


def test_after_a_fall_back_the_replayed_round_is_written_anew(whole: Path, tmp_path: Path) -> None:
    """What the damaged checkpoint left must not pass for the files of the round that replaces it."""
    root = shutil.copytree(whole, tmp_path / "x")
    broken = bytearray((root / NEWEST[2]).read_bytes())
    broken[-1] ^= 1
    (root / NEWEST[2]).write_bytes(broken)
    store = Store(root)
    _falls_back(root)
    assert store.resume(lambda line: None) is not None
    assert [path.name for path in root.glob("checkpoints/*.damaged")] == ["00002.damaged"]
    save(store, snapshot(2, a=1, b=0))
    assert same(Store(root).load(quiet), snapshot(2, a=1, b=0))
    save(store, snapshot(3, a=2, b=0))
    assert same(Store(root).load(quiet), snapshot(3, a=2, b=0))


def test_looking_at_a_run_changes_nothing(whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A damaged file is passed over; a disk that cannot be read just now is not taken for a damaged file."""
    root = shutil.copytree(whole, tmp_path / "x")
    (root / NEWEST[2]).write_bytes(b"no")
    before = files(root)
    assert Store(root).load(lambda line: None) is not None
    assert files(root) == before

    def fail(path: Path) -> bytes:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(Path, "read_bytes", fail)
    with pytest.raises(RunError, match=r"cannot be read: .*Input/output error; nothing was changed"):
        Store(root).resume(lambda line: None)
    monkeypatch.undo()
    assert files(root) == before


def test_checkpoints_are_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for rounds in (99_998, 99_999, 100_000):
        save(store, snapshot(rounds))
    newest = Store(tmp_path).load(quiet)
    assert newest is not None
    assert newest.rounds == 100_000


def test_none_whole_is_refused_and_nothing_changed(whole: Path, tmp_path: Path) -> None:
    root = shutil.copytree(whole, tmp_path / "x")
    for name in ("checkpoints/00001.safetensors", "checkpoints/00002.safetensors"):
        (root / name).write_bytes((root / name).read_bytes()[:-1])
    before, said = files(root), []
    with pytest.raises(RunError, match=r"no checkpoint in .* is whole; nothing was changed"):
        Store(root).load(said.append)
    assert len(said) == 2
    assert files(root) == before


def test_a_memory_both_checkpoints_need(whole: Path, tmp_path: Path) -> None:
    root = shutil.copytree(whole, tmp_path / "x")
    (root / "memory/b@00000.safetensors").write_bytes(b"")
    with pytest.raises(RunError, match="whole"):
        Store(root).load(lambda line: None)


# -- writing --


def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x"
    assert write_atomic(path, b"old") == hashlib.sha256(b"old").hexdigest()

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space"):
            write_atomic(path, b"new")
    assert path.read_bytes() == b"old"
    write_atomic(path, b"new")
    assert path.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("fail_at", range(4))
def test_a_full_disk_stops_safely(fail_at: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever of the files fails (sites, two memories, manifest), the checkpoint before is what is loaded."""
    store = Store(tmp_path)
    save(store, snapshot(1, a=0, b=0))
    calls = iter(range(99))

    def sometimes(path: Path, data: bytes) -> str:
        if next(calls) == fail_at:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write_atomic(path, data)

    with monkeypatch.context() as patch:
        patch.setattr(store_module, "write_atomic", sometimes)
        store.save(snapshot(2, a=1, b=1))
        with pytest.raises(RunError, match=r"a checkpoint could not be written: .*No space"):
            store.wait()
    assert same(Store(tmp_path).load(quiet), snapshot(1, a=0, b=0))
    save(store, snapshot(2, a=1, b=1))
    assert same(Store(tmp_path).load(quiet), snapshot(2, a=1, b=1))


def test_a_failure_in_the_background_is_raised_at_the_next_save(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").write_bytes(b"a file where a folder should be")
    store = Store(tmp_path)
    store.save(snapshot(1))
    with pytest.raises(RunError, match="could not be written"):
        store.save(snapshot(2))


def test_a_snapshot_is_of_its_moment(tmp_path: Path) -> None:
    memory = Memory({"a": Remembered(0, tree(0))})
    taken = Snapshot(1, {"server": tree(1)}, memory.snapshot())
    memory.write("a", 1, tree(1))
    memory.write("b", 1, tree(1))
    save(Store(tmp_path), taken)
    assert same(Store(tmp_path).load(quiet), snapshot(1, a=0))
    assert model(memory.read("a"), "model").floats[0] == 1
    assert memory.read("nobody") == {}


def test_busy_only_while_writing(tmp_path: Path) -> None:
    store = Store(tmp_path)
    assert not store.busy
    store.save(snapshot(1))
    store.wait()
    assert not store.busy
