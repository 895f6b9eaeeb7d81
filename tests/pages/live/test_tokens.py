"""The token of the live page: random, or kept in a private file."""

from __future__ import annotations

from pathlib import Path

import pytest
from error_messages import raises

from fedssl.core.errors import ConfigError
from fedssl.pages.live.tokens import kept_token, new_token


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return tmp_path / "fedssl/watch"


def test_tokens_have_256_random_bits() -> None:
    """32 bytes are 43 characters of base64."""
    assert len({new_token() for _ in range(100)}) == 100
    assert len(new_token()) == 43


def test_the_token_of_a_port_is_kept_in_a_private_file(folder: Path) -> None:
    token = kept_token(8800)
    assert kept_token(8800) == token
    assert kept_token(8801) != token
    assert (folder / "8800.token").read_text() == token
    assert (folder / "8800.token").stat().st_mode & 0o777 == 0o600
    assert folder.stat().st_mode & 0o777 == 0o700


def test_a_file_that_others_may_read_is_refused(folder: Path) -> None:
    kept_token(8800)
    (folder / "8800.token").chmod(0o640)
    with raises(ConfigError):
        kept_token(8800)


def test_a_link_is_refused(folder: Path, tmp_path: Path) -> None:
    """Its target may be a file that another user has chosen."""
    kept_token(8800)
    target = tmp_path / "mine"
    target.write_text("x" * 43)
    target.chmod(0o600)
    (folder / "8800.token").unlink()
    (folder / "8800.token").symlink_to(target)
    with raises(ConfigError):
        kept_token(8800)


@pytest.mark.parametrize(
    "text", ["", "short", "x" * 1000, "é" * 43], ids=["empty", "short", "long", "letters"]
)
def test_a_file_without_a_token_is_refused(folder: Path, text: str) -> None:
    kept_token(8800)
    (folder / "8800.token").write_text(text)
    with raises(ConfigError):
        kept_token(8800)
