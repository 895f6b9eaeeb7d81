"""Only files that fedssl wrote are removed from the memory of a node, whatever they are named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from error_messages import raises

from fedssl.core.errors import ConfigError
from fedssl.core.files.purge_note import read_note, write_note
from fedssl.core.files.sealed import seal
from fedssl.runs.client_files import DEFAULT, GROUPS, find_places, unrecognised_files
from fedssl.runs.purge import Target, find_targets, held, raise_if_used, remove

pytestmark = pytest.mark.rows("C10")

CLAIM = {"attempt": 0, "round": 1, "by": "x", "pid": 2**22 + 1}  # above the largest pid
OLD_NOTE = {"at": "2026-01-01T00:00:00+00:00", "removed": ["memory"], "fedssl": "0.1"}


def _write(folder: Path, **files: Any) -> None:
    for name, content in files.items():
        path = folder / name.replace("__", "/").replace("_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())


def _files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def _purge(folder: Path) -> Target:
    targets = find_targets([folder], GROUPS)
    with held(targets):
        remove(targets)
    return targets[0]


@pytest.mark.parametrize(
    "claim",
    [{"policy": 7}, [1], 7, b"no JSON", {"body": "{}", "sha256": "0"}, seal({"policy": 7})],
)
def test_a_file_named_like_a_claim_is_none(claim: Any, tmp_path: Path) -> None:
    folder = tmp_path / "insurance"
    _write(folder, claim_json=claim, photo_jpg=b"x", letters__a_pdf=b"x")
    assert find_places(folder) == find_places(tmp_path) == []
    with raises(ConfigError):
        find_targets([folder], GROUPS)
    assert _files(folder) == {"claim.json", "photo.jpg", "letters/a.pdf"}


@pytest.mark.parametrize("claim", [CLAIM, seal(CLAIM)])  # of an earlier version, and of this one
def test_other_files_in_the_memory_of_a_node_stay(claim: Any, tmp_path: Path) -> None:
    folder = tmp_path / "run1"
    _write(folder, claim_json=claim, images_sha256=b"x", photo_jpg=b"x", letters__claim_json=b"x")
    _write(folder, secure_sum_json=b"x", letters__1_remembered=b"x")
    (folder / "secure-sum.json").write_bytes(b"x")
    (folder / ".0a1b2c3d.claim.json.tmp").write_bytes(b"x")
    left = {"photo.jpg", "letters/claim.json", "letters/1.remembered", "secure.sum.json"}
    assert {str(path) for path in _purge(folder).unrecognised} == left
    assert _files(folder) == {*left, "run.lock", "purged.json"}


@pytest.mark.parametrize("kind", ["run", None])
def test_a_purged_run_without_its_experiment_is_not_a_node(
    kind: str | None, tmp_path: Path
) -> None:
    _write(tmp_path, rounds_jsonl=b"x", results_json=b"x", backbone_safetensors=b"x")
    if kind is None:
        _write(tmp_path, purged_json=OLD_NOTE)
    else:
        write_note(tmp_path, kind, ["memory"])
    before = _files(tmp_path)
    with raises(ConfigError):
        find_targets([tmp_path], GROUPS)
    assert _files(tmp_path) == before


def test_notes_of_nodes_are_recognised_also_those_of_earlier_versions(tmp_path: Path) -> None:
    _write(tmp_path / "c/old", purged_json=OLD_NOTE)
    _write(tmp_path / "c/damaged", purged_json=b"")
    _write(tmp_path / "c/new", backbone_safetensors=b"x")
    write_note(tmp_path / "c/new", "node", ["memory"])
    assert [place.folder.name for place in find_places(tmp_path)] == ["new", "old"]


def test_one_unrecognised_folder_does_not_hide_the_others(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    _write(tmp_path, a__run1__claim_json=seal(CLAIM), a__run2__run_lock=b"", b__run1__x_bin=b"x")
    _write(tmp_path, c__run1__claim_json=b"damaged", c__run1__1_remembered=b"x", d_txt=b"x")
    places = find_places(tmp_path)
    assert [place.folder for place in places] == [tmp_path / "a/run1"]
    unrecognised = {str(path) for path in unrecognised_files(tmp_path, places)}
    assert unrecognised == {"b/run1/x.bin", "c/run1/claim.json", "c/run1/1.remembered", "d.txt"}


def test_unrecognised_files_below_a_run_directory(tmp_path: Path) -> None:
    _write(tmp_path, experiment_toml=b"", rounds_jsonl=b"", nodes__b__run1__x_bin=b"x")
    (target,) = find_targets([tmp_path], DEFAULT)
    assert target.unrecognised == [Path("nodes/b/run1/x.bin")]


def test_a_purged_client_without_state_has_a_note(tmp_path: Path) -> None:
    """It may have taken part without state: its claim alone shows that it did."""
    _write(tmp_path / "run1", claim_json=seal(CLAIM))
    _purge(tmp_path / "run1")
    assert _files(tmp_path / "run1") == {"run.lock", "purged.json"}
    note = read_note(tmp_path / "run1")
    assert note is not None
    assert note["kind"] == "node"


def test_a_claim_that_changes_to_another_value_belongs_to_no_process(tmp_path: Path) -> None:
    _write(tmp_path / "run1", claim_json=seal(CLAIM))
    targets = find_targets([tmp_path / "run1"], DEFAULT)
    _write(tmp_path / "run1", claim_json=7)
    raise_if_used(targets)
