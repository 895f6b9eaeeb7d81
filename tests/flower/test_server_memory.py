"""The server holds a fixed number of uploads, for any number of sites and any quorum."""

from __future__ import annotations

import weakref
from typing import Any

import pytest
import torch
from fake_grid import Nodes, tiny

from benchmarks.server_memory import measure
from fedssl.core.state.state import State
from fedssl.flower import runtime
from fedssl.runs.rounds_log import read_rounds


def test_replies_are_pulled_one_at_a_time(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twelve sites, all of which must answer. While one upload is decoded, the server holds the one
    before it and the running sums; in the first round also up to five that are compared with each
    other. Twelve would be all of them."""
    alive: list[weakref.ref[torch.Tensor]] = []
    held: list[int] = []
    decode = runtime.decode

    def watched(records: Any) -> Any:
        held.append(sum(tensor() is not None for tensor in alive))
        tree = decode(records)
        alive.extend(
            weakref.ref(value.floats) for value in tree.values() if isinstance(value, State)
        )
        return tree

    monkeypatch.setattr(runtime, "decode", watched)
    experiment = tiny("fedavg", "simclr", rounds=3, clients=12)
    nodes.serve(experiment, nodes.dealt(experiment, 12), quorum=1.0)
    lines = list(read_rounds(nodes.root / "flower/rounds.jsonl"))
    assert len(lines) == 3
    for line in lines:
        assert [client["dropped"] for client in line["clients"]] == [None] * 12
    assert len(held) == 36
    assert max(held[:12]) <= 5
    assert max(held[12:]) <= 2


@pytest.mark.slow
def test_memory_of_the_process_does_not_grow_with_the_sites() -> None:
    """Uploads of 5 MB: 40 more of them would be 200 MB. The order matters: the peak of a process
    never falls."""
    few = measure(8, 5.0)
    many = measure(48, 5.0)
    assert many["upload_mb"] > 4.5
    assert many["peak_mib"] - few["peak_mib"] < 50
