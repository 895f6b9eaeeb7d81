"""Checkpoints: whole or not at all, two of them, and never silently the wrong one."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import random
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from error_messages import raises

from fedssl.core.errors import RunError
from fedssl.core.files.atomic import write_atomic
from fedssl.core.files.blob_file import BLOCK
from fedssl.core.state.codec import dumps
from fedssl.core.state.layout import Entry, Layout
from fedssl.core.state.state import State
from fedssl.core.state.tree import Tree, model
from fedssl.engine.checkpoints import store as store_module
from fedssl.engine.checkpoints.client_memory import ClientMemory, StoredMemory
from fedssl.engine.checkpoints.placement import Wanted
from fedssl.engine.checkpoints.store import Snapshot, Store

LAYOUT = Layout.of([Entry("backbone.w", (4,), "weight"), Entry("backbone.n", (), "counter")])
ODD = [
    "",
    "a/b",
    "..",
    ".",
    "ü",
    "a@00001",
    "%2F",
    " ",
    "a\nb",
    "\udcff",
    "*",
    "-",
    "A",
    "a",
    "🦊",
    "a.tmp",
]


def tree(value: float) -> Tree:
    return {
        "model": State(LAYOUT, torch.full((4,), float(value)), torch.tensor([int(value)])),
        "n": value,
    }


def snapshot(rounds: int, **memory: int) -> Snapshot:
    """Return a snapshot whose site and memories hold the number of the round that wrote them."""
    return Snapshot(
        rounds, {"server": tree(rounds)}, {c: StoredMemory(r, tree(r)) for c, r in memory.items()}
    )


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


def places(root: Path, rounds: int) -> dict[str, tuple[int, int]]:
    """Return offset and length of each client's row in the rows file, after so many rounds."""
    manifest = json.loads((root / f"checkpoints/{rounds:05d}.json").read_text())
    return {
        c: (offset, length)
        for c, (_, offset, length, _) in json.loads(manifest["body"])["memory"].items()
    }


def files(root: Path) -> dict[str, str]:
    return {
        str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }


def quiet(line: str) -> None:
    raise AssertionError(f"unexpected message: {line}")


def test_a_saved_snapshot_is_loaded(tmp_path: Path) -> None:
    saved = Snapshot(
        3, {"a": tree(1), "b": {**tree(2), "x": torch.ones(2)}}, snapshot(3, c0=1, c1=2).memory
    )
    save(Store(tmp_path), saved)
    assert same(Store(tmp_path).load(quiet), saved)


def test_loading_without_checkpoints(tmp_path: Path) -> None:
    assert Store(tmp_path).load(quiet) is None
    assert list(tmp_path.iterdir()) == []


def test_sites_that_are_one_tree(tmp_path: Path) -> None:
    """Before the first round all sites are the same object."""
    saved = Snapshot(0, dict.fromkeys(["a", "b", "c"], tree(7)), {})
    save(Store(tmp_path), saved)
    assert same(Store(tmp_path).load(quiet), saved)


def test_the_last_two_are_kept_and_nothing_else(tmp_path: Path) -> None:
    """Three places for a client that changes every round: two checkpoints, and one for the next."""
    store, memory = Store(tmp_path), {}
    for rounds in range(1, 21):
        changed = ("c0", "c1") if rounds % 2 else ("c0",)
        memory = {
            **memory,
            **{client: StoredMemory(rounds - 1, tree(rounds - 1)) for client in changed},
        }
        save(store, Snapshot(rounds, {"server": tree(rounds)}, memory))
    assert sorted(files(tmp_path)) == [
        "checkpoints/00019.json",
        "checkpoints/00019.safetensors",
        "checkpoints/00020.json",
        "checkpoints/00020.safetensors",
        "memory/rows",
    ]
    assert places(tmp_path, 19)["c0"] != places(tmp_path, 20)["c0"]
    assert places(tmp_path, 19)["c1"] == places(tmp_path, 20)["c1"]
    assert (tmp_path / "memory/rows").stat().st_size <= (3 + 3) * BLOCK


def test_leftovers_of_a_kill_are_deleted(tmp_path: Path) -> None:
    store = Store(tmp_path)
    save(store, snapshot(1, c=0))
    left = [
        f"checkpoints/{name}"
        for name in (
            "00002.safetensors",
            "00002.json.tmp",
            ".ab12.00002.json.tmp",
            ".ab12.00003.safetensors.tmp",
        )
    ]
    for name in left:
        (tmp_path / name).write_bytes(b"half")
    assert same(Store(tmp_path).load(quiet), snapshot(1, c=0))
    save(store, snapshot(4, c=3))
    assert not set(left) & set(files(tmp_path))
    assert same(Store(tmp_path).load(quiet), snapshot(4, c=3))


def test_a_file_without_a_number_is_no_checkpoint(tmp_path: Path) -> None:
    save(Store(tmp_path), snapshot(1, c=0))
    for name in ("notes.json", "2nd.json"):
        (tmp_path / "checkpoints" / name).write_text("{}")
    assert same(Store(tmp_path).load(quiet), snapshot(1, c=0))
    save(Store(tmp_path), snapshot(2, c=0), snapshot(3, c=0))
    assert (tmp_path / "checkpoints/notes.json").exists()


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Record the offsets of all rows written from now on."""
    offsets: list[int] = []
    real = os.pwrite
    monkeypatch.setattr(
        os, "pwrite", lambda fd, data, offset: offsets.append(offset) or real(fd, data, offset)
    )
    return offsets


def test_memory_that_did_not_change_is_not_written_again(
    tmp_path: Path, written: list[int]
) -> None:
    store, idle = Store(tmp_path), StoredMemory(0, tree(0))
    for rounds in (1, 2, 3):
        memory = {"idle": idle, "busy": StoredMemory(rounds - 1, tree(rounds - 1))}
        save(store, Snapshot(rounds, {"server": tree(rounds)}, memory))
    assert written == [0, BLOCK, 2 * BLOCK, 3 * BLOCK]  # the third is saved while two are kept
    assert same(Store(tmp_path).load(quiet), snapshot(3, idle=0, busy=2))


def test_memory_that_did_not_change_is_not_written_after_a_resume(
    tmp_path: Path, written: list[int]
) -> None:
    save(Store(tmp_path), snapshot(1, idle=0, busy=0))
    store = Store(tmp_path)
    resumed = store.resume(quiet)
    assert resumed is not None
    written.clear()
    save(
        store,
        resumed._replace(rounds=2, memory={**resumed.memory, "busy": StoredMemory(1, tree(1))}),
    )
    assert written == [2 * BLOCK]


def test_one_sync_for_all_clients(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows, sites, manifest; and the folder after each of the last two."""
    store, synced = Store(tmp_path), []
    save(store, snapshot(1, c=0))
    real = os.fsync
    monkeypatch.setattr(
        os, "fsync", lambda descriptor: synced.append(descriptor) or real(descriptor)
    )
    save(store, snapshot(2, **{f"c{i}": 1 for i in range(500)}))
    assert len(synced) == 5
    synced.clear()
    save(store, snapshot(3))
    assert len(synced) == 4


@pytest.mark.rows("P1")
def test_rows_of_a_kept_checkpoint_are_never_written_to(tmp_path: Path, written: list[int]) -> None:
    """Also if the process is restarted, and if the sizes of memories change."""
    draw = random.Random(0)
    store = Store(tmp_path)
    for rounds in range(1, 40):
        kept = [r for r in (rounds - 2, rounds - 1) if r > 0]
        taken = [range(o, o + n) for r in kept for o, n in places(tmp_path, r).values()]
        memory = {
            f"c{i}": StoredMemory(
                rounds - 1, {**tree(rounds), "more": torch.rand(draw.choice([1, 900, 3000]))}
            )
            for i in range(draw.randrange(4))
        }
        if draw.random() < 0.3:
            store = Store(tmp_path)  # killed and started again
            assert rounds == 1 or store.resume(quiet) is not None
        written.clear()
        saved = Snapshot(rounds, {"server": tree(rounds)}, memory)
        save(store, saved)
        assert len(written) == len(memory)
        assert not [offset for offset in written for place in taken if offset in place]
        assert same(Store(tmp_path).load(quiet), saved)
    assert (tmp_path / "memory/rows").stat().st_size < 30 * 4 * BLOCK


def test_a_snapshot_of_another_directory_is_written_completely(tmp_path: Path) -> None:
    save(Store(tmp_path / "a"), snapshot(1, c=0))
    found = Store(tmp_path / "a").load(quiet)
    assert found is not None
    save(Store(tmp_path / "b"), found)
    assert same(Store(tmp_path / "b").load(quiet), snapshot(1, c=0))


def test_odd_client_ids(tmp_path: Path) -> None:
    saved = Snapshot(
        1, {"server": tree(1)}, {c: StoredMemory(0, tree(i)) for i, c in enumerate(ODD)}
    )
    save(Store(tmp_path), saved)
    assert same(Store(tmp_path).load(quiet), saved)
    assert {p.parent.name for p in tmp_path.rglob("*") if p.is_file()} == {"checkpoints", "memory"}


# -- damage --


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two checkpoints: a has changed between them, b has not."""
    root, b = tmp_path_factory.mktemp("whole"), StoredMemory(0, tree(0))
    store = Store(root)
    for rounds in (1, 2):
        memory = {"a": StoredMemory(rounds - 1, tree(rounds - 1)), "b": b}
        save(store, Snapshot(rounds, {"server": tree(rounds)}, memory))
    return root


NEWEST = ["checkpoints/00002.json", "checkpoints/00002.safetensors", "memory/rows"]


def _part(root: Path, name: str) -> slice:
    """Return the part of a file that only the newest checkpoint uses: of the rows, a's last."""
    offset, length = (
        places(root, 2)["a"] if name == "memory/rows" else (0, (root / name).stat().st_size)
    )
    return slice(offset, offset + length)


def _falls_back(root: Path) -> None:
    messages: list[str] = []
    assert same(Store(root).load(messages.append), snapshot(1, a=0, b=0))
    assert len(messages) == 1
    assert messages[0].startswith("checkpoint 00002 is damaged (")
    assert messages[0].endswith("; trying the previous one")


@pytest.mark.rows("P5")
@pytest.mark.parametrize("name", NEWEST)
def test_flipped_bits(name: str, whole: Path, tmp_path: Path) -> None:
    data, part = (whole / name).read_bytes(), _part(whole, name)
    draw = random.Random(name)
    for i in range(50):
        broken = bytearray(data)
        broken[part.start + i * (part.stop - part.start) // 50] ^= 1 << draw.randrange(8)
        root = shutil.copytree(whole, tmp_path / str(i))
        (root / name).write_bytes(broken)
        _falls_back(root)


@pytest.mark.rows("P5")
@pytest.mark.parametrize("name", NEWEST)
def test_truncated(name: str, whole: Path, tmp_path: Path) -> None:
    """a's last row is the last in the file."""
    data, part = (whole / name).read_bytes(), _part(whole, name)
    assert part.stop == len(data)
    size = part.stop - part.start
    for i, length in enumerate([0, 1, 7, 8, 9, size // 2, size - 1]):
        root = shutil.copytree(whole, tmp_path / str(i))
        (root / name).write_bytes(data[: part.start + length])
        _falls_back(root)


@pytest.mark.rows("P5")
def test_deleted_files(whole: Path, tmp_path: Path) -> None:
    root = shutil.copytree(whole, tmp_path / "x")
    (root / NEWEST[1]).unlink()
    _falls_back(root)


def test_two_clients_with_the_same_place(whole: Path, tmp_path: Path) -> None:
    root = shutil.copytree(whole, tmp_path / "x")
    body = json.loads(json.loads((root / NEWEST[0]).read_text())["body"])
    body["memory"]["c"] = [1, body["memory"]["a"][1], 8, "0"]
    (root / NEWEST[0]).write_bytes(store_module.seal(body))
    _falls_back(root)


@pytest.mark.parametrize(
    "content", [b"", b"{}", b"[]", b"null", b'{"body": 3, "sha256": "x"}', b"\xff\xfe", b"[" * 50]
)
def test_a_file_that_is_not_a_manifest(content: bytes, whole: Path, tmp_path: Path) -> None:
    root = shutil.copytree(whole, tmp_path / "x")
    (root / NEWEST[0]).write_bytes(content)
    _falls_back(root)


def test_after_a_fall_back_the_replayed_round_is_written_again(whole: Path, tmp_path: Path) -> None:
    """Files of the damaged checkpoint must not be used for the round that replaces it."""
    root = shutil.copytree(whole, tmp_path / "x")
    broken = bytearray((root / NEWEST[2]).read_bytes())
    broken[_part(root, NEWEST[2]).start] ^= 1
    (root / NEWEST[2]).write_bytes(broken)
    store = Store(root)
    _falls_back(root)
    assert store.resume(lambda line: None) is not None
    assert [path.name for path in root.glob("checkpoints/*.damaged")] == ["00002.damaged"]
    save(store, snapshot(2, a=1, b=0))
    assert same(Store(root).load(quiet), snapshot(2, a=1, b=0))
    save(store, snapshot(3, a=2, b=0))
    assert same(Store(root).load(quiet), snapshot(3, a=2, b=0))


def test_reading_a_run_changes_nothing(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A damaged file is skipped; a temporary read error does not count as damage."""
    root = shutil.copytree(whole, tmp_path / "x")
    (root / NEWEST[2]).write_bytes((root / NEWEST[2]).read_bytes()[:-1])
    before = files(root)
    assert Store(root).load(lambda line: None) is not None
    assert files(root) == before

    def fail(path: Path) -> bytes:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(Path, "read_bytes", fail)
    with raises(RunError):
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


def test_without_an_intact_checkpoint_loading_fails_and_changes_nothing(
    whole: Path, tmp_path: Path
) -> None:
    root = shutil.copytree(whole, tmp_path / "x")
    for name in ("checkpoints/00001.safetensors", "checkpoints/00002.safetensors"):
        (root / name).write_bytes((root / name).read_bytes()[:-1])
    before, messages = files(root), []
    with raises(RunError):
        Store(root).load(messages.append)
    assert len(messages) == 2
    assert files(root) == before


def test_a_damaged_memory_of_both_checkpoints(whole: Path, tmp_path: Path) -> None:
    root = shutil.copytree(whole, tmp_path / "x")
    data = bytearray((root / "memory/rows").read_bytes())
    data[places(root, 1)["b"][0]] ^= 1
    (root / "memory/rows").write_bytes(data)
    with raises(RunError):
        Store(root).load(lambda line: None)


def test_models_can_be_loaded_without_client_memory(whole: Path, tmp_path: Path) -> None:
    root = shutil.copytree(whole, tmp_path / "x")
    (root / "memory/rows").unlink()
    found = Store(root).load(quiet, check_rows=False)
    assert found is not None
    assert (found.rounds, dumps(found.sites["server"])) == (2, dumps(tree(2)))


def test_a_directory_of_an_earlier_kind(tmp_path: Path) -> None:
    save(Store(tmp_path), snapshot(1))
    body = json.loads(json.loads((tmp_path / "checkpoints/00001.json").read_text())["body"])
    (tmp_path / "checkpoints/00001.json").write_bytes(
        store_module.seal(body | {"memory": {"a": 0}})
    )
    with raises(RunError):
        Store(tmp_path).resume(quiet)


def test_reading_while_a_run_continues(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between reading a manifest and its rows, two newer ones replace the rows: read again."""
    store = Store(tmp_path)
    save(store, snapshot(1, c=0))
    real, left = store_module.unseal, [2, 3, 4]

    def overtaken(data: bytes) -> dict[str, object]:
        if left:
            body, _ = real(data), monkeypatch.setattr(store_module, "unseal", real)
            save(store, *[snapshot(left.pop(0), c=9) for _ in range(len(left))])
            return body
        return real(data)

    monkeypatch.setattr(store_module, "unseal", overtaken)
    assert same(Store(tmp_path).load(quiet), snapshot(4, c=9))
    assert left == []


def test_reading_a_run_that_saves_too_fast(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(Store(tmp_path), snapshot(1))
    monkeypatch.setattr(Path, "exists", lambda path: False)
    monkeypatch.setattr(store_module, "unseal", lambda data: {})
    with raises(RunError):
        Store(tmp_path).load(quiet)


# -- writing --


@pytest.mark.rows("P1")
def test_a_write_that_fails_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x"
    assert write_atomic(path, b"old") == hashlib.sha256(b"old").hexdigest()

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space"):
            write_atomic(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]
    write_atomic(path, b"new")
    assert path.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.rows("P1")
def test_several_writers_of_one_file(tmp_path: Path) -> None:
    """Four writers at a time: all succeed, and a reader always gets one of their files complete."""
    path, wholes = tmp_path / "x", [bytes([i]) * 50_000 for i in range(4)]
    write_atomic(path, wholes[0])
    with ThreadPoolExecutor(4) as pool:
        writers = [pool.submit(write_atomic, path, whole) for whole in wholes * 25]
        while not all(writer.done() for writer in writers):
            assert path.read_bytes() in wholes
    for writer, whole in zip(writers, wholes * 25, strict=True):
        assert writer.result() == hashlib.sha256(whole).hexdigest()
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.rows("P4")
@pytest.mark.parametrize("fail_at", range(4))
def test_a_full_disk_stops_safely(
    fail_at: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever write fails (sites, two rows, manifest), the checkpoint before is what is
    loaded.
    """
    store = Store(tmp_path)
    save(store, snapshot(1, a=0, b=0))
    calls = iter(range(99))

    def sometimes(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            if next(calls) == fail_at:
                raise OSError(errno.ENOSPC, "No space left on device")
            return real(*args)

        return call

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", sometimes(Path.replace))
        patch.setattr(os, "pwrite", sometimes(os.pwrite))
        store.save(snapshot(2, a=1, b=1))
        with raises(RunError):
            store.wait()
    assert same(Store(tmp_path).load(quiet), snapshot(1, a=0, b=0))
    save(store, snapshot(2, a=1, b=1))
    assert same(Store(tmp_path).load(quiet), snapshot(2, a=1, b=1))


def test_a_failure_in_the_background_is_raised_at_the_next_save(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").write_bytes(b"a file where a folder should be")
    store = Store(tmp_path)
    store.save(snapshot(1))
    with raises(RunError):
        store.save(snapshot(2))


@pytest.mark.parametrize("tier", ["host", "disk"])
def test_a_snapshot_does_not_change_later(tier: Wanted, tmp_path: Path) -> None:
    store = Store(tmp_path)
    memory = ClientMemory(store.rows, {"a": StoredMemory(0, tree(0))}, tier)
    taken = Snapshot(1, {"server": tree(1)}, memory.snapshot())
    for client in ("a", "b"):
        memory.write(memory.expect(client, 1), tree(1))
    memory.close()
    save(store, taken)
    assert same(Store(tmp_path).load(quiet), snapshot(1, a=0))
    assert model(memory.latest("a"), "model").floats[0] == 1
    assert memory.latest("unknown") == {}


def test_busy_only_while_writing(tmp_path: Path) -> None:
    store = Store(tmp_path)
    assert not store.busy
    store.save(snapshot(1))
    store.wait()
    assert not store.busy
