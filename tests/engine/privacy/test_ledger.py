"""C5: damage to the ledger is repaired, or the run is refused; it is never counted too low."""

from __future__ import annotations

import contextlib
import random
from pathlib import Path

import pytest
from error_messages import raises

from fedssl.core.errors import FedsslError, RunError
from fedssl.engine.privacy import ledger as ledger_module
from fedssl.engine.privacy.ledger import NAME, Charge, Ledger, read_charges

pytestmark = pytest.mark.rows("C5")

CHARGES = [Charge(i + 1, 1.1, 1.0, clients=5, epsilon=4.0 + i, delta=1e-5) for i in range(4)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a directory with a ledger of four releases."""
    ledger = Ledger(tmp_path, 0, print)
    for charge in CHARGES:
        ledger.append(charge)
    return tmp_path


def test_what_was_written_is_read(folder: Path) -> None:
    assert Ledger(folder, 4, print).charges == CHARGES
    assert list(read_charges(folder, print)) == CHARGES


def test_any_changed_byte_is_repaired_or_refused(folder: Path) -> None:
    """After each of 300 flips in either file, the releases are unchanged, or reading raises."""
    draw = random.Random(0)
    files = [folder / NAME, folder / f"{NAME}.copy"]
    intact = {path: path.read_bytes() for path in files}
    repaired = 0
    for number in range(300):
        path = files[number % 2]
        data = bytearray(intact[path])
        data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
        path.write_bytes(bytes(data))
        with contextlib.suppress(FedsslError):  # refused, with an explanation
            assert Ledger(folder, 4, lambda text: None).charges == CHARGES
            repaired += 1
        for each, content in intact.items():
            each.write_bytes(content)
    assert repaired > 150


@pytest.mark.parametrize("lost", [NAME, f"{NAME}.copy"])
def test_one_of_the_files_may_be_lost(folder: Path, lost: str) -> None:
    (folder / lost).unlink()
    assert Ledger(folder, 4, lambda text: None).charges == CHARGES


def test_a_new_ledger_survives_a_power_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder is synced after the first line, and before the append returns; not later."""
    synced = []
    monkeypatch.setattr(
        ledger_module, "sync_folder", lambda path: synced.append((path / NAME).read_bytes())
    )
    ledger = Ledger(tmp_path, 0, print)
    ledger.append(CHARGES[0])
    assert synced == [(tmp_path / NAME).read_bytes()]
    ledger.append(CHARGES[1])
    assert len(synced) == 1


def test_lost_lines_are_refused(folder: Path) -> None:
    for name in (NAME, f"{NAME}.copy"):
        path = folder / name
        path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:3]))
    with raises(RunError):
        Ledger(folder, 4, print)


def test_a_deleted_ledger_is_refused(folder: Path) -> None:
    for name in (NAME, f"{NAME}.copy"):
        (folder / name).unlink()
    with raises(RunError):
        Ledger(folder, 1, print)


def test_a_changed_line_without_copy_is_refused(folder: Path) -> None:
    """Each line contains its hash: a smaller ε cannot be written by hand."""
    (folder / f"{NAME}.copy").unlink()
    path = folder / NAME
    path.write_bytes(path.read_bytes().replace(b"1.1", b"9.9"))
    with raises(RunError):
        Ledger(folder, 4, lambda text: None)


@pytest.mark.parametrize("cut", [1, 50, 150])
def test_a_line_that_a_kill_cut_short_is_no_release(folder: Path, cut: int) -> None:
    """The line is complete before the release: an incomplete one was never released."""
    before = {}
    for name in (NAME, f"{NAME}.copy"):
        before[name] = (folder / name).read_bytes()
    Ledger(folder, 4, print).append(CHARGES[0])
    whole = (folder / NAME).read_bytes()
    (folder / NAME).write_bytes(whole[: len(before[NAME]) + cut])
    (folder / f"{NAME}.copy").write_bytes(before[f"{NAME}.copy"])
    ledger = Ledger(folder, 4, lambda text: None)
    assert ledger.charges == CHARGES
    ledger.append(CHARGES[1])
    assert Ledger(folder, 5, print).charges == [*CHARGES, CHARGES[1]]
