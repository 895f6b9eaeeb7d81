"""C5: on Flower the server clips, adds noise and keeps the ledger; nodes take no part in this."""

from __future__ import annotations

import math

import pytest
from fake_grid import Nodes, site_bits, tiny, trains
from flwr.app import Message

import fedssl
from fedssl.engine.privacy.accountant import gaussian_epsilon
from fedssl.engine.privacy.ledger import read_charges

pytestmark = pytest.mark.rows("C5")

GROUP = 'norm = "group"'


class Killed(BaseException):
    """Simulates the end of the server's process."""


def test_clipping_gives_the_bits_of_a_local_run(nodes: Nodes) -> None:
    """Without noise, which would differ."""
    experiment = tiny("fedavg", "simclr", "", GROUP, privacy={"clip": 0.05, "noise": 0.0})
    local = fedssl.run(experiment, nodes.root / "local", "cpu", nodes.root / "data", quiet=True)
    nodes.serve(experiment, nodes.grid(experiment), data_dir=str(nodes.root / "data"))
    assert site_bits(nodes.root / "flower") == site_bits(local.dir)


def test_the_log_has_epsilon_and_nothing_of_a_node(nodes: Nodes) -> None:
    experiment = tiny("fedema", "byol", "", GROUP, privacy={"clip": 1.0, "noise": 4.0})
    nodes.serve(experiment, nodes.grid(experiment))
    for k, line in enumerate(nodes.strict_rounds(), 1):
        expected = gaussian_epsilon(4 / math.sqrt(k), 1e-5)
        assert line["privacy"]["epsilon"] == pytest.approx(expected, abs=1e-6)
        assert line["loss"] is None
        for client in line["clients"]:
            assert client.keys() == {"client", "dropped", "bytes_down"}


def test_a_killed_server_charges_the_round_again(nodes: Nodes) -> None:
    """Killed in round 2 while it sends messages; round 2 had no release yet, so that it is charged
    once."""
    experiment = tiny("fedavg", "simclr", "", GROUP, privacy={"clip": 1.0, "noise": 4.0})
    grid = nodes.grid(experiment)
    count = 0

    def push(message: Message) -> None:
        nonlocal count
        count += trains(message)
        if count > 4:
            raise Killed

    grid.on_push = push
    with pytest.raises(Killed):
        nodes.serve(experiment, grid)
    for message in list(grid.waiting.values()):
        grid.nodes[message.metadata.dst_node_id](message)
    grid.on_push = lambda message: None
    nodes.serve(experiment, grid)
    charges = list(read_charges(nodes.root / "flower", print))
    assert [charge.round for charge in charges] == [1, 2, 3]


def test_the_budget_ends_a_run(nodes: Nodes) -> None:
    """σ = 4: ε = 1.364 after two of three rounds."""
    experiment = tiny(
        "fedavg", "simclr", "", GROUP, privacy={"clip": 1.0, "noise": 4.0, "epsilon": 1.5}
    )
    lines = nodes.serve(experiment, nodes.grid(experiment))
    assert any("training ends after round 2 of 3" in line for line in lines)
    assert len(nodes.strict_rounds()) == 2
    assert (nodes.root / "flower/backbone.safetensors").is_file()
