"""Only models and counts are sent, and equal messages are sent once."""

from __future__ import annotations

import numpy as np
import pytest
from fake_grid import CASES, Nodes, tiny

import fedssl


def test_equal_messages_are_sent_once(nodes: Nodes) -> None:
    """Three clients get one model: it is sent once a round, as are the three uploads."""
    experiment = tiny("fedavg", "simclr", rounds=1)
    grid = nodes.grid(experiment)
    nodes.serve(experiment, grid)
    row = max(len(data) for data in grid.wire.values())
    assert sum(len(data) == row for data in grid.wire.values()) == 4


@pytest.mark.rows("C3")
@pytest.mark.parametrize("name", CASES)
def test_nothing_of_the_images_is_sent(name: str, nodes: Nodes) -> None:
    """Neither pixels, as integers or as floats, nor the names of files and folders. With other
    labels, the same arrays are sent."""
    experiment = tiny(*CASES[name])
    file = nodes.root / "data/tiny.npz"
    with np.load(file) as archive:
        data = dict(archive)
    sent = []
    for folder, labels in (("flower", data["y_train"]), ("again", 2 - data["y_train"])):
        np.savez(file, **{**data, "y_train": labels})
        grid = nodes.grid(experiment)
        nodes.serve(experiment, grid, folder, data_dir=str(nodes.root / "data"))
        sent.append({chunk for chunk in grid.wire.values() if b"NUMPY" in chunk})
    assert sent[0] == sent[1]
    assert sum(map(len, grid.wire.values())) > 10_000
    for image in data["x_train"]:
        rows = image.transpose(2, 0, 1)[0, 0]
        assert not grid.contains(image.tobytes()[:24])
        assert not grid.contains(rows.tobytes())
        assert not grid.contains((rows / np.float32(255)).astype("<f4").tobytes())
    for word in (b"tiny.npz", str(nodes.root).encode(), b"x_train", b"y_train", b"labels"):
        assert not grid.contains(word)


def test_relayed_peers_are_announced(nodes: Nodes) -> None:
    experiment = tiny("fedavg", "simclr", **{"topology.name": "cycle"})
    local = fedssl.run(experiment, nodes.root / "local", "cpu", nodes.root / "data", quiet=True)
    lines = nodes.serve(experiment, nodes.grid(experiment))
    assert any("the server relays the models" in line for line in lines)
    assert nodes.bits() == nodes.bits(local.dir.name)
