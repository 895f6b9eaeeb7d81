"""Files below a folder are removed, and links are never followed."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedssl.core.files.removal import list_files, remove_empty_folder, remove_file


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with a file, and links to a file and a folder outside of it."""
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/private").write_text("x")
    (tmp_path / "inside/deep").mkdir(parents=True)
    (tmp_path / "inside/deep/file").write_text("y")
    (tmp_path / "inside/link").symlink_to(tmp_path / "outside/private")
    (tmp_path / "inside/deep/folder").symlink_to(tmp_path / "outside")
    return tmp_path / "inside"


def test_links_are_listed_and_not_followed(folder: Path) -> None:
    files, links = list_files(folder)
    assert files == [Path("deep/file")]
    assert sorted(links) == [Path("deep/folder"), Path("link")]
    assert list_files(folder, Path("deep/folder")) == ([], [Path("deep/folder")])
    assert list_files(folder, Path("missing")) == ([], [])


@pytest.mark.rows("C10")
def test_nothing_is_removed_through_a_link(folder: Path) -> None:
    private = folder.parent / "outside/private"
    with pytest.raises(OSError):  # noqa: PT011 - the number differs between systems
        remove_file(folder, Path("deep/folder/private"))
    remove_empty_folder(folder, Path("deep/folder"))
    remove_file(folder, Path("link"))  # the link itself
    assert private.read_text() == "x"
    assert not (folder / "link").is_symlink()


def test_files_and_empty_folders_are_removed(folder: Path) -> None:
    remove_file(folder, Path("deep/file"))
    remove_empty_folder(folder, Path("deep"))
    assert (folder / "deep").is_dir()  # it still has the link
    (folder / "deep/folder").unlink()
    remove_empty_folder(folder, Path("deep"))
    assert not (folder / "deep").exists()
    remove_empty_folder(folder, Path("deep"))
