"""Hashes and copies of the files next to the checkpoints."""

from __future__ import annotations

from pathlib import Path

import pytest
from error_messages import raises

from fedssl.core.errors import RunError
from fedssl.core.files import integrity


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    integrity.write_copied(tmp_path, "experiment.toml", 'name = "ü"\n')
    (tmp_path / "results.json").write_bytes(b"{}")
    integrity.record_hashes(tmp_path, ["results.json"])
    return tmp_path


@pytest.mark.rows("P11")
def test_any_changed_byte_of_the_record_is_repaired(folder: Path) -> None:
    path = folder / integrity.NAME
    intact = path.read_bytes()
    expected = integrity.read(folder)
    for place in range(len(intact)):
        for byte in (b"\n", b'"', bytes([intact[place] ^ 32])):
            if intact[place : place + 1] == byte:
                continue
            path.write_bytes(intact[:place] + byte + intact[place + 1 :])
            assert integrity.read(folder) == expected
            messages: list[str] = []
            integrity.check(folder, messages.append)
            assert len(messages) == 1
            if place % 50 == 0:  # a write takes long
                integrity.repair(folder, messages.append)
                assert path.read_bytes() == intact


def test_a_record_that_is_damaged_twice_is_refused(folder: Path) -> None:
    path = folder / integrity.NAME
    path.write_bytes(path.read_bytes().replace(b"results", b"resultz"))
    with raises(RunError):
        integrity.read(folder)
    path.unlink()
    assert integrity.read(folder) is None


@pytest.mark.rows("P11")
def test_a_file_with_another_hash_is_damaged(folder: Path) -> None:
    assert integrity.verified(folder, "results.json")
    assert integrity.damaged(folder) == []
    (folder / "results.json").write_bytes(b"[]")
    assert not integrity.verified(folder, "results.json")
    assert integrity.damaged(folder) == ["results.json"]
    messages: list[str] = []
    integrity.check(folder, messages.append)
    path = folder / "results.json"
    assert messages == [
        f"{path} is damaged: it does not match its recorded hash. `fedssl run` repairs it"
    ]
    path.unlink()  # not damaged: it is missing, and is written again
    assert integrity.damaged(folder) == []
    integrity.record_hashes(folder, ["results.json"])
    record = integrity.read(folder)
    assert record is not None
    assert record.hashes == {}


@pytest.mark.rows("P11")
def test_a_damaged_file_is_read_from_its_copy(folder: Path) -> None:
    (folder / "experiment.toml").write_bytes(b"\xff")
    messages: list[str] = []
    assert integrity.read_text(folder, "experiment.toml", messages.append) == 'name = "ü"\n'
    assert messages == [
        f"{folder / 'experiment.toml'} is damaged; its copy in integrity.jsonl is used"
    ]
    integrity.write_copied(folder, "experiment.toml", 'name = "ü"\n')
    assert (folder / "experiment.toml").read_text("utf-8") == 'name = "ü"\n'


def test_a_kill_while_a_copied_file_is_replaced_never_blocks(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After each write the file equals its copy, or has none."""
    replace = Path.replace

    def checked(temporary: Path, path: Path) -> Path:
        replace(temporary, path)
        messages: list[str] = []
        integrity.read_text(folder, "experiment.toml", messages.append)
        assert messages == []
        return path

    monkeypatch.setattr(Path, "replace", checked)
    integrity.write_copied(folder, "experiment.toml", "new")
    assert integrity.copy_of(folder, "experiment.toml") == "new"
    integrity.remove_copied(folder, "experiment.toml")
    assert integrity.read_text(folder, "experiment.toml", print) is None


def test_a_file_without_a_hash_counts_as_missing(folder: Path) -> None:
    """A run killed during a repeated evaluation has old files or new ones: they are written
    again.
    """
    integrity.forget_hashes(folder, ["results.json"])
    (folder / "results.json").write_bytes(b"[]")
    assert integrity.damaged(folder) == []
    assert not integrity.verified(folder, "results.json")
