"""The configuration of a node."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from error_messages import raises

from fedssl.core.errors import ConfigError
from fedssl.flower.node import NODE_KEYS, NodeConfig

GUIDE = Path(__file__).parents[2] / "docs/how-to/flower.md"


def test_the_guide_lists_all_keys() -> None:
    """In the table whose first column is "key of `--node-config`"."""
    table = GUIDE.read_text("utf-8").split("| key of `--node-config` |")[1].split("\n\n")[0]
    listed = []
    for row in table.splitlines()[2:]:
        listed += re.findall("`([^`]+)`", row.split("|")[1])
    assert sorted(listed) == sorted(NODE_KEYS)


@pytest.mark.parametrize(
    ("node", "run", "expected"),
    [
        (
            {"client-id": "a", "data-dir": "/d", "memory-dir": "/m"},
            {"data-dir": "/r"},
            ("a", "/d", "/m", "own"),
        ),
        ({"client-id": 7, "memory-dir": "/m"}, {"data-dir": ""}, ("7", "data", "/m", "own")),
        (
            {"partition-id": 1, "num-partitions": 2},
            {"data-dir": "/r", "memory-dir": "/k"},
            (None, "/r", "/k", "dealt"),
        ),
        (
            {"client-id": "a", "memory-dir": "/m"},
            {"data-dir": "/r", "memory-dir": "/k"},
            ("a", "data", "/m", "own"),
        ),
    ],
)
def test_folders_of_a_node(
    node: dict[str, object], run: dict[str, object], expected: tuple[object]
) -> None:
    config = NodeConfig.read(node, run)
    folders = (str(config.data), str(config.memory))
    assert (config.client, *folders, config.images) == expected


@pytest.mark.parametrize(
    "node",
    [
        {},
        {"client-id": "a", "images": "all"},
        {"client-id": "a", "secure_aggregation": "required"},  # would otherwise be ignored
    ],
)
def test_an_incomplete_or_invalid_configuration_is_refused(node: dict[str, object]) -> None:
    with raises(ConfigError):
        NodeConfig.read(node, {})
