"""`fedssl purge` lists the files, asks for confirmation, and states what no longer works."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedssl.core.files.sealed import seal
from fedssl.runs.purge import find_targets

pytestmark = pytest.mark.rows("C10")

Cli = Callable[..., tuple[int, str, str]]


@pytest.fixture
def node(tmp_path: Path) -> Path:
    """Return the memory folder of a node: 1,500 bytes of state and a model of 2,000,000."""
    folder = tmp_path / "nodes/hospital/run1"
    folder.mkdir(parents=True, mode=0o700)
    claim = seal({"attempt": 0, "round": 1, "by": "x", "pid": 2**22 + 1})
    (folder / "claim.json").write_bytes(claim)
    (folder / "00001.0.remembered").write_bytes(bytes(1500 - len(claim)))
    (folder / "backbone.safetensors").write_bytes(bytes(2_000_000))
    return tmp_path / "nodes"


def test_a_dry_run_lists_files_with_their_sizes(node: Path, cli: Cli) -> None:
    before = sorted(node.rglob("*"))
    code, out, err = cli("purge", str(node), "--dry-run")
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        f"{node}/hospital/run1 (memory of a client on a node)",
        "  2 files, 1.5 kB: the memory of clients, and the features they shared with the server",
        "    00001.0.remembered",
        "    claim.json",
        "  1 file, 2.0 MB: models of single clients",
        "    backbone.safetensors",
        f"afterwards the client cannot take part in this run any more: {node}/hospital/run1",
        "nothing was removed (--dry-run)",
    ]
    assert sorted(node.rglob("*")) == before


def test_without_a_terminal_nothing_is_removed_unless_told(node: Path, cli: Cli) -> None:
    before = sorted(node.rglob("*"))
    code, out, err = cli("purge", str(node))
    assert (code, out) == (2, "")
    assert "add --yes" in err
    assert sorted(node.rglob("*")) == before
    code, out, _ = cli("purge", str(node), "--yes", "--memory")
    assert code == 0
    assert "removed 2 files, 1.5 kB" in out
    assert "not secure erasure" in out
    assert (node / "hospital/run1/backbone.safetensors").is_file()
    assert cli("purge", str(node), "--yes", "--memory")[1] == (
        "there are no files of clients to remove\n"
    )


@pytest.mark.parametrize(("answer", "removed"), [("y", True), ("", False), ("no", False)])
def test_on_a_terminal_it_asks(
    answer: str, removed: bool, node: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    questions: list[str] = []

    def reply(question: str) -> str:
        questions.append(question)
        return answer

    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.setattr("builtins.input", reply)
    code, out, _ = cli("purge", str(node), "--all")
    assert code == 0
    assert questions == ["Remove 3 files, 2.0 MB permanently? [y/N] "]
    assert (node / "hospital/run1/00001.0.remembered").exists() != removed
    assert ("nothing was removed" in out) != removed


def test_links_are_an_error_after_the_rest_is_removed(node: Path, cli: Cli) -> None:
    elsewhere = node.parent / "elsewhere"
    elsewhere.mkdir()
    (node / "hospital/run1/old").symlink_to(elsewhere)
    code, out, err = cli("purge", str(node), "--yes")
    assert code == 4
    assert "removed 3 files" in out
    assert f"{node}/hospital/run1/old" in err
    assert elsewhere.is_dir()


def test_files_that_are_not_recognised_are_listed(node: Path, cli: Cli) -> None:
    (node / "other").mkdir()
    (node / "other/letter.pdf").write_bytes(b"x")
    code, out, _ = cli("purge", str(node), "--yes")
    assert code == 0
    lines = out.splitlines()
    position = lines.index(f"{node}: not recognised as files of fedssl, and not removed")
    assert lines[position + 1] == "    other/letter.pdf"
    assert "removed 3 files" in out
    assert (node / "other/letter.pdf").is_file()


def test_a_place_that_appears_before_the_locks_are_held_is_not_touched(
    node: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing has locked it."""
    from fedssl.cli import purge

    late = node / "hospital/run2"

    def find(*arguments: Any) -> Any:
        targets = find_targets(*arguments)
        late.mkdir(exist_ok=True)
        claim = seal({"attempt": 0, "round": 1, "by": "x", "pid": 2**22 + 1})
        (late / "claim.json").write_bytes(claim)
        return targets

    monkeypatch.setattr(purge, "find_targets", find)
    assert cli("purge", str(node), "--yes")[0] == 0
    assert (late / "claim.json").is_file()
    assert not (node / "hospital/run1/claim.json").exists()


def test_doctor_reports_folders_that_others_may_read(
    node: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(node.parent))
    folder = node / "hospital/run1"
    sentence = f"other users of this machine may read {folder}: chmod 700 {folder}"
    assert sentence not in cli("doctor", str(node))[1]
    for path in (node, node / "hospital", folder):
        path.chmod(0o755)
    assert sentence in cli("doctor", str(node))[1]
    (node.parent / "fedssl").mkdir()
    node.rename(node.parent / "fedssl/nodes")
    moved = node.parent / "fedssl/nodes/hospital/run1"
    assert f"other users of this machine may read {moved}" in cli("doctor")[1]  # the default


def test_doctor_refuses_other_folders(tmp_path: Path, cli: Cli) -> None:
    code, _, err = cli("doctor", str(tmp_path))
    assert code == 2
    assert "is not a run directory" in err


def test_a_run_directory_is_named_by_its_folder(tmp_path: Path, cli: Cli, here: Any) -> None:
    """The folder of all runs is not purged at once."""
    assert cli("run", "mine.toml", "--set", "rounds=1", "--no-baselines")[0] == 0
    code, _, err = cli("purge", "runs", "--dry-run")
    assert code == 2
    assert "runs is not a run directory, but contains 1: name those, as in runs/*" in err
    assert cli("purge", "runs/mine-rounds1", "--dry-run", "--all")[0] == 0
