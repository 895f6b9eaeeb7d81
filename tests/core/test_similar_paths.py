"""Suggestions of existing paths for misspelled ones."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fedssl.core.console import names_hidden
from fedssl.core.similar_paths import MAX_ENTRIES, suggest_path


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with some folders and a file."""
    for name in ("photos/train", "photos/test", "xrays", ".photos"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "photos.zip").touch()
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("path", "suggestion"),
    [
        ("fotos", ', did you mean "photos"?'),
        ("phtos/", ', did you mean "photos"?'),
        ("PHOTOS", ', did you mean "photos"?'),
        ("photos/tarin", ', did you mean "photos/train"?'),
        ("phtos/tset", ', did you mean "photos/test"?'),  # both names are misspelled
        ("scans", ""),
        ("scans/train", ""),
        ("photos/trian/more", ""),
        ("", ""),
        ("/", ""),
    ],
)
def test_folders_with_similar_names_are_suggested(path: str, suggestion: str, folder: Path) -> None:
    assert suggest_path(path, Path.is_dir) == suggestion


def test_only_accepted_paths_are_suggested(folder: Path) -> None:
    assert suggest_path("photos.zp", Path.is_file) == ', did you mean "photos.zip"?'
    assert suggest_path("photos.zp") == ', did you mean "photos" or "photos.zip"?'


def test_an_equal_suffix_does_not_make_names_similar(folder: Path) -> None:
    (folder / "torn.toml").touch()
    (folder / "photos.toml").touch()
    assert suggest_path("gone.toml") == ""
    assert suggest_path("photo", Path.is_file) == ', did you mean "photos.toml" or "photos.zip"?'


def test_an_absolute_path_is_suggested_for_an_absolute_one(folder: Path) -> None:
    assert suggest_path(folder / "xray", Path.is_dir) == f', did you mean "{folder / "xrays"}"?'


def test_several_roots_give_each_suggestion_once(folder: Path) -> None:
    (folder / "data" / "photos").mkdir(parents=True)
    (folder / "data" / "photos2").mkdir()
    found = suggest_path("phtos", Path.is_dir, (folder / "data", Path()))
    assert found == ', did you mean "photos" or "photos2"?'


def test_at_most_three_paths_are_suggested(folder: Path) -> None:
    for number in range(5):
        (folder / f"scan{number}").mkdir()
    assert suggest_path("scan9", Path.is_dir).count('"') == 2 * 3


def test_no_name_is_written_to_a_log(folder: Path) -> None:
    with names_hidden():
        assert suggest_path("fotos", Path.is_dir) == ""


def test_names_that_cannot_be_printed_are_not_suggested(folder: Path) -> None:
    (folder / "scan\n").mkdir()
    os.mkdir(os.fsencode(folder) + b"/scan\xff")
    assert suggest_path("scann", Path.is_dir) == ""


def test_a_folder_that_cannot_be_listed_gives_no_suggestion(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied(path: Path) -> None:
        raise PermissionError(path)

    monkeypatch.setattr(os, "scandir", denied)
    assert suggest_path("fotos", Path.is_dir) == ""


def test_only_some_entries_of_a_huge_folder_are_compared(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedssl.core.similar_paths.MAX_ENTRIES", 0)
    assert suggest_path("fotos", Path.is_dir) == ""
    assert MAX_ENTRIES > 1000
