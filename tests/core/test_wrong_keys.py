"""Messages on unknown keys."""

from __future__ import annotations

from fedssl.core.wrong_keys import MAX_LISTED, WrongKey, WrongKeysError


def _message(count: int) -> str:
    wrong = [WrongKey(f"zz{number}", False, False, {}) for number in range(count)]
    return str(WrongKeysError(wrong))


def test_a_single_other_key_is_named() -> None:
    assert f"zz{MAX_LISTED}" in _message(MAX_LISTED + 1)
    assert " more unknown keys" not in _message(MAX_LISTED + 1)
    assert "and 2 more unknown keys" in _message(MAX_LISTED + 2)
