"""Adapters on Flower: frozen weights stay where they are, and must be the same everywhere."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest
import torch
from fake_grid import Nodes, tiny
from safetensors.torch import load_file

import fedssl
from fedssl import nets
from fedssl.core.errors import ConfigError, RunError
from fedssl.core.state.state import State
from fedssl.core.state.tree import model
from fedssl.engine.checkpoints.store import Store
from fedssl.experiment.experiment import Experiment
from fedssl.experiment.init_file import init_changes
from fedssl.flower import client_app
from fedssl.flower.app_template import write_app
from fedssl.flower.secure_aggregation.fixed_point import FLOATS

ADVICE = "copy the server's file to the node, and name it with init='FILE' in its --node-config"


def write_init(path: Path, seed: int = 0) -> str:
    """Write a backbone, and return the SHA-256 of the file."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        nets.save_backbone(nets.build("cnn").state_dict(), path, {})
    return hashlib.sha256(path.read_bytes()).hexdigest()


def adapted(init: Path, algorithm: str = "fedavg", **changes: Any) -> Experiment:
    chosen = {"method.init": str(init), "method.adapters.rank": 2, "rounds": 2}
    return tiny(algorithm, "byol", **{**chosen, **changes})


def saved_model(folder: Path) -> State:
    snapshot = Store(folder).load(lambda line: None)
    assert snapshot is not None
    return model(snapshot.sites["server"], "model")


def test_nodes_with_the_same_file_give_the_bits_of_a_local_run(nodes: Nodes) -> None:
    """Each node has the file in its own folder; the server's path does not exist there."""
    init = nodes.root / "server.safetensors"
    write_init(init)
    experiment = adapted(init, "fedema")
    local = fedssl.run(experiment, nodes.root / "local", "cpu", nodes.root / "data", quiet=True)
    elsewhere = nodes.root / "node.safetensors"
    elsewhere.write_bytes(init.read_bytes())
    on_nodes = experiment.with_changes({"method.init": str(nodes.root / "not-here")})
    grid = nodes.grid(on_nodes, init=str(elsewhere))
    lines = nodes.serve(experiment, grid)
    assert torch.equal(saved_model(nodes.root / "flower").floats, saved_model(local.dir).floats)
    exported = load_file(nodes.root / "flower/backbone.safetensors")
    assert exported.keys() == load_file(init).keys()
    assert any("weights are trained and sent instead of" in line for line in lines)
    # Messages have convolutions as (out, h, w, in).
    frozen = load_file(init)["layers.1.0.weight"].permute(0, 2, 3, 1).contiguous()
    assert not grid.contains(frozen.numpy().tobytes())


@pytest.mark.parametrize("pinned", [True, False])
def test_a_node_with_other_frozen_weights_is_rejected(pinned: bool, nodes: Nodes) -> None:
    """An app that `fedssl flower init` wrote has the hash: the node itself refuses. Without it the
    server compares."""
    init = nodes.root / "server.safetensors"
    other = nodes.root / "other.safetensors"
    expected = write_init(init)
    found = write_init(other, seed=1)
    experiment = adapted(init)
    if pinned:
        experiment = experiment.with_changes(init_changes(experiment.method))
    grid = nodes.grid(experiment)
    grid.nodes[12] = nodes.node(client_app(experiment), 12, "2", init=str(other))
    reason = (
        f"its file of method.init has SHA-256 {found[:16]}…, that of the run has "
        f"{expected[:16]}…: {ADVICE}"
    )
    with pytest.raises(RunError) as raised:
        nodes.serve(experiment, grid)
    assert f'rejected node 12, which claims to be "2": {reason}' in str(raised.value)


def test_a_node_without_the_file_is_rejected(nodes: Nodes) -> None:
    init = nodes.root / "server.safetensors"
    write_init(init)
    experiment = adapted(init)
    missing = nodes.root / "secret-folder/missing.safetensors"
    grid = nodes.grid(experiment)
    grid.nodes[12] = nodes.node(client_app(experiment), 12, "2", init=str(missing))
    with pytest.raises(RunError) as raised:
        nodes.serve(experiment, grid)
    assert "it has no file of method.init, whose frozen weights the adapters need" in str(
        raised.value
    )
    assert "secret-folder" not in str(raised.value)


def test_the_server_resumes_only_with_the_file_it_started_with(nodes: Nodes) -> None:
    init = nodes.root / "server.safetensors"
    old = write_init(init)
    on_nodes = nodes.root / "node.safetensors"
    on_nodes.write_bytes(init.read_bytes())
    short = adapted(init, rounds=1)
    nodes.serve(short, nodes.grid(short, init=str(on_nodes)))
    new = write_init(init, seed=1)
    longer = adapted(init)
    grid = nodes.grid(longer, init=str(on_nodes))
    with pytest.raises(ConfigError) as raised:
        nodes.serve(longer, grid)
    assert old in str(raised.value)
    assert new in str(raised.value)
    assert not grid.sent


def test_an_app_has_the_hash_of_the_frozen_weights(tmp_path: Path) -> None:
    init = tmp_path / "init.safetensors"
    digest = write_init(init)
    write_app(tmp_path / "app", "adapted", adapted(init), {})
    experiment = Experiment.from_file(tmp_path / "app/experiment.toml")
    assert experiment.method.adapters is not None
    assert experiment.method.adapters.sha256 == digest


def test_a_secure_sum_of_adapters_is_that_of_a_plain_run(nodes: Nodes) -> None:
    """Five clients round to half a step of 2⁻⁴⁰ each; both runs then round to float32."""
    init = nodes.root / "server.safetensors"
    write_init(init)
    experiment = adapted(init, rounds=1, clients=5)
    nodes.serve(experiment, nodes.grid(experiment), "plain")
    nodes.serve(experiment, nodes.grid(experiment), secure_aggregation=True)
    plain = saved_model(nodes.root / "plain")
    secure = saved_model(nodes.root / "flower")
    tolerance = 5 / 2 * FLOATS.step + plain.floats.abs().double() * 2**-23
    assert bool(((secure.floats.double() - plain.floats.double()).abs() <= tolerance).all())
    assert "backbone.layers.1.0.lora_A" in secure.layout.offsets
    assert "backbone.layers.1.0.weight" not in secure.layout.offsets
