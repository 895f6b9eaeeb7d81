"""A record as one line of JSON that contains its own SHA-256."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any


def seal(body: Mapping[str, Any]) -> bytes:
    """Serialize a record as one line of JSON that contains its own SHA-256."""
    return _seal_text(json.dumps(body, sort_keys=True))


def unseal(data: bytes) -> dict[str, Any]:
    """Return the record that `seal` serialized; raise ValueError if any byte has changed."""
    try:
        sealed = json.loads(data)
    except RecursionError:
        raise ValueError("its manifest is nested too deeply") from None
    if not isinstance(sealed, dict) or sealed.keys() != {"body", "sha256"}:
        raise ValueError("its manifest is not a sealed record")
    text = sealed["body"]
    if not isinstance(text, str) or _seal_text(text) != data:
        raise ValueError("its manifest does not match its hash")
    body: dict[str, Any] = json.loads(text)
    return body


def _seal_text(text: str) -> bytes:
    return json.dumps({"body": text, "sha256": hashlib.sha256(text.encode()).hexdigest()}).encode()
