"""The choice of the tier in which client memory is stored."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from fedssl.core.state.codec import dumps
from fedssl.core.state.layout import Entry, Layout
from fedssl.core.state.state import State
from fedssl.engine.checkpoints import placement
from fedssl.engine.checkpoints.placement import (
    Wanted,
    choose,
    free_host_memory,
    on_device,
    on_host,
    ready,
)

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
GIB = 2**30


@pytest.mark.parametrize("wanted", ["device", "host", "disk"])
@pytest.mark.parametrize("device", [CPU, CUDA])
def test_a_requested_tier_is_used(wanted: Wanted, device: torch.device) -> None:
    assert choose(wanted, device, 10**15, 10**6) == wanted


@pytest.mark.parametrize(
    ("device", "size", "expected"),
    [
        (
            CPU,
            40_000_000,
            "host",
        ),  # three versions of 100 clients: 12 GB of 32 GiB, half of which may be taken
        (CPU, 60_000_000, "disk"),  # 18 GB
        (CUDA, 13_000_000, "device"),  # 3.9 GB of 8 GiB
        (CUDA, 15_000_000, "host"),  # 4.5 GB
        (CUDA, 2**25, "host"),  # 10 GB
        (
            CUDA,
            2**25 + 1,
            "disk",
        ),  # would take 20 GB, since blocks of pinned memory are powers of two
    ],
)
def test_the_first_tier_with_room_is_used(
    device: torch.device, size: int, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(placement, "free_host_memory", lambda: 32 * GIB)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (8 * GIB, 80 * GIB))
    assert choose("auto", device, size, 100) == expected


def test_free_memory_is_a_number_of_bytes() -> None:
    everything = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert 2**20 < free_host_memory() <= everything


def test_a_container_may_have_less(monkeypatch: pytest.MonkeyPatch) -> None:
    real_is_file, real_read = Path.is_file, Path.read_text
    contents = {
        "/sys/fs/cgroup/memory.max": "5000000\n",
        "/sys/fs/cgroup/memory.current": "2000000\n",
    }
    monkeypatch.setattr(Path, "is_file", lambda path: str(path) in contents or real_is_file(path))
    monkeypatch.setattr(
        Path,
        "read_text",
        lambda path, encoding: contents.get(str(path)) or real_read(path, encoding),
    )
    assert free_host_memory() == 3_000_000
    contents["/sys/fs/cgroup/memory.max"] = "max\n"
    assert free_host_memory() > 3_000_000


def test_without_information_from_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "is_file", lambda path: False)
    assert free_host_memory() > 0


def test_on_a_cpu_nothing_is_copied() -> None:
    layout = Layout.of([Entry("backbone.w", (4,), "weight"), Entry("backbone.n", (), "counter")])
    tree = {
        "model": State(layout, torch.arange(4.0), torch.tensor([3])),
        "x": torch.ones(2),
        "n": 3,
        "s": "a",
    }
    for copy in (on_host(tree), on_device(tree, CPU)):
        assert dumps(copy) == dumps(tree)
        assert copy["x"].data_ptr() == tree["x"].data_ptr()  # type: ignore[union-attr]
        assert copy["model"].floats.data_ptr() == tree["model"].floats.data_ptr()  # type: ignore[union-attr]
    assert ready(tree) is None
