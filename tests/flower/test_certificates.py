"""Keys are private to their owner."""

from __future__ import annotations

import re
import stat
from pathlib import Path

import pytest

from fedssl.flower.certificates import make_certificate, make_node_key


@pytest.mark.rows("C10")
def test_only_the_owner_can_read_keys(tmp_path: Path) -> None:
    make_certificate(tmp_path)
    public = make_node_key(tmp_path / "node")
    for name in ("server.key", "node"):
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600
    assert re.match(r"ecdsa-sha2-nistp384 \S+\n$", public.read_text())
    assert {path.name for path in tmp_path.iterdir()} == {
        "server.pem",
        "server.key",
        "node",
        "node.pub",
    }
