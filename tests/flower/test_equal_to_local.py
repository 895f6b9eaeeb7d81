"""Runs on Flower give the bits of a run in one process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_grid import CASES, FakeGrid, Nodes, site_bits, tiny
from PIL import Image
from safetensors.numpy import load_file

import fedssl
from fedssl.flower import client_app
from fedssl.runs.rounds_log import read_rounds


def _rounds(folder: Path) -> list[dict[str, Any]]:
    """Return the rounds log without durations; no client may have been dropped."""
    lines = list(read_rounds(folder / "rounds.jsonl"))
    for line in lines:
        del line["seconds"], line["images_per_s"]
        for client in line["clients"]:
            assert client["dropped"] is None
            del client["images_per_s"]
    return lines


@pytest.mark.parametrize("name", CASES)
def test_flower_gives_the_bits_of_a_local_run(name: str, nodes: Nodes) -> None:
    experiment = tiny(*CASES[name])
    local = fedssl.run(experiment, nodes.root / "local", "cpu", nodes.root / "data", quiet=True)
    nodes.serve(experiment, nodes.grid(experiment), data_dir=str(nodes.root / "data"))
    assert site_bits(nodes.root / "flower") == site_bits(local.dir)
    assert _rounds(nodes.root / "flower") == _rounds(nodes.root / "local")


@pytest.mark.parametrize("name", ["fedema", "fedca", "featarc"])
def test_one_node_may_have_several_clients(name: str, nodes: Nodes) -> None:
    """Three clients on one node and two on the other, each with its own images and state."""
    experiment = tiny(*CASES[name], clients=5)
    local = fedssl.run(experiment, nodes.root / "local", "cpu", nodes.root / "data", quiet=True)
    nodes.serve(experiment, nodes.dealt(experiment, 2), data_dir=str(nodes.root / "data"))
    assert site_bits(nodes.root / "flower") == site_bits(local.dir)
    assert {path.name for path in (nodes.root / "memory").iterdir()} == set("01234")


def test_a_clients_own_model_is_made_at_the_client(nodes: Nodes) -> None:
    """With the bits it has in a local run; the server has the shared models of the clusters."""
    experiment = tiny(*CASES["featarc"])
    local = fedssl.run(experiment, nodes.root / "local", "cpu", nodes.root / "data", quiet=True)
    lines = nodes.serve(experiment, nodes.grid(experiment))
    assert sum("has stored its own model" in line for line in lines) == 3
    for client in "012":
        [own] = (nodes.root / "memory" / client).glob("*/backbone.safetensors")
        theirs = load_file(local.dir / f"backbone-{client}.safetensors")
        mine = load_file(own)
        assert mine.keys() == theirs.keys()
        assert all(mine[key].tobytes() == theirs[key].tobytes() for key in mine)
    assert not (nodes.root / "flower/backbone-0.safetensors").exists()


@pytest.mark.parametrize("fit", ["crop", "pad"])
def test_images_on_separate_machines_give_the_bits_of_one_folder(fit: str, nodes: Nodes) -> None:
    """Each client has only its own folder; the local run has one folder of clients."""
    random = np.random.default_rng(1)
    for client, count in {"north": 10, "south": 17}.items():
        for place in (nodes.root / "together/scans" / client, nodes.root / client / "scans"):
            place.mkdir(parents=True)
        for i in range(count):
            image = Image.fromarray(random.integers(0, 255, (7, 12, 3), dtype=np.uint8))
            for place in (nodes.root / "together/scans" / client, nodes.root / client / "scans"):
                image.save(place / f"{i:03}.png")
    folder = {"data.name": "folder", "data.path": "scans", "data.size": 12, "data.cache": "off"}
    folder["data.fit"] = fit
    together = tiny("fedu", "byol", clients=2).with_changes(
        {**folder, "data.layout": "clients", "partition.name": "natural"}
    )
    # The share is that of one machine; the default on Flower is 0.5.
    own = {"data.layout": "flat", "guard.max_share": 1.0}
    apart = tiny("fedu", "byol", clients=2).with_changes({**folder, **own})
    local = fedssl.run(together, nodes.root / "local", "cpu", nodes.root / "together", quiet=True)
    app = client_app(apart)
    config = {"images": "own"}
    grid = FakeGrid(
        {
            7: nodes.node(app, 7, "south", **config, **{"data-dir": str(nodes.root / "south")}),
            8: nodes.node(app, 8, "north", **config, **{"data-dir": str(nodes.root / "north")}),
        }
    )
    nodes.serve(apart, grid)
    assert site_bits(nodes.root / "flower") == site_bits(local.dir)
    assert not grid.contains(b"scans")
    assert not grid.contains(b".png")
