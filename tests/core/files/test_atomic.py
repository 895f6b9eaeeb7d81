"""Files appear completely or not at all, and errors name the file that was asked for."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
from error_messages import raises

from fedssl.core.errors import ConfigError
from fedssl.core.files.atomic import check_replaceable, replaced_file, write_atomic


def _fail_after_half(path: Path) -> None:
    with replaced_file(path) as file:
        file.write(b"half")
        raise ZeroDivisionError


def test_a_failed_block_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    write_atomic(tmp_path / "file", b"first")
    with pytest.raises(ZeroDivisionError):
        _fail_after_half(tmp_path / "file")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert (tmp_path / "file").read_bytes() == b"first"


def test_errors_do_not_name_the_temporary_file(tmp_path: Path) -> None:
    path = tmp_path / "missing" / "file"
    with pytest.raises(FileNotFoundError) as problem:
        write_atomic(path, b"")
    assert problem.value.filename == str(path)


def test_a_file_that_cannot_be_written_is_an_error_before_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_replaceable(tmp_path / "file")
    assert not list(tmp_path.iterdir())

    def refuse(**options: Any) -> None:  # as for users who are not root
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(tempfile, "TemporaryFile", refuse)
    with raises(ConfigError):
        check_replaceable(tmp_path / "file", "--save")
