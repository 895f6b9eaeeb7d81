"""The configuration of a node."""

from __future__ import annotations

import pytest
from error_messages import raises

from fedssl.core.errors import ConfigError
from fedssl.flower.node import NodeConfig


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
