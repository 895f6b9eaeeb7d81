"""InfoNCE against loops and lightly; the queue step by step."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from fedssl.method import Batch
from fedssl.methods import MoCoV1, MoCoV2
from fedssl.methods.moco import Queue, info_nce


def _units(*shape: int, seed: int = 1) -> Tensor:
    return F.normalize(torch.randn(shape, generator=torch.Generator().manual_seed(seed)), dim=-1)


def _slow(queries: Tensor, keys: Tensor, negatives: Tensor, temperature: float) -> float:
    total = 0.0
    for view in range(len(queries)):
        for q, k in zip(queries[view], keys[view], strict=True):
            positive = math.exp((q @ k).item() / temperature)
            others = sum(math.exp((q @ negative).item() / temperature) for negative in negatives)
            total -= math.log(positive / (positive + others)) / queries.shape[1]
    return total


@pytest.mark.parametrize("temperature", [0.07, 0.2])
def test_equals_the_sum_over_pairs(temperature: float) -> None:
    queries = _units(2, 5, 4)
    keys = _units(2, 5, 4, seed=2)
    negatives = _units(7, 4, seed=3)
    mine = info_nce(queries, keys, negatives, temperature).item()
    assert mine == pytest.approx(_slow(queries, keys, negatives, temperature), rel=1e-5)


def test_by_hand() -> None:
    """A query equal to its key, three negatives at right angles, t = 1: log(e + 3) − 1, for each
    view.
    """
    query = torch.tensor([1.0, 0.0]).expand(2, 4, 2)
    negatives = torch.tensor([0.0, 1.0]).expand(3, 2)
    assert info_nce(query, query, negatives, 1.0).item() == pytest.approx(
        2 * (math.log(math.e + 3) - 1)
    )


@pytest.mark.parametrize("cls", [MoCoV1, MoCoV2])
def test_a_query_belongs_to_the_key_of_the_other_view(cls, make, batch: Batch) -> None:
    method = make(cls)
    out = method(batch)
    torch.testing.assert_close(out.keys.norm(dim=-1), torch.ones(2, 6))
    assert not out.keys.requires_grad
    queries = F.normalize(out.z, dim=-1)
    expected = _slow(queries, out.keys[[1, 0]], method.queue.keys, method.settings.temperature)
    assert method.loss(out, {}).item() == pytest.approx(expected, rel=1e-4)


def test_the_queue_wraps_around() -> None:
    """Five places, three keys at a time: 0 1 2 · ·, then 5 1 2 3 4, then 5 6 7 8 4."""
    queue = Queue(5, 2)
    keys = torch.arange(18.0).view(9, 2)
    rows = []
    for step in range(3):
        queue.push(keys[3 * step : 3 * step + 3])
        rows.append((queue.keys[:, 0] / 2).int().tolist())
    assert rows == [[0, 1, 2, 0, 0], [5, 1, 2, 3, 4], [5, 6, 7, 8, 4]]
    assert queue.pointer == 4


@pytest.mark.parametrize(("size", "batch"), [(6, 3), (5, 3), (7, 7), (4, 6), (1, 2)])
def test_queue_holds_the_newest_keys(size: int, batch: int) -> None:
    queue = Queue(size, 1)
    pushed = []
    for step in range(9):
        keys = torch.arange(batch * step, batch * (step + 1)).float()[:, None]
        queue.push(keys)
        pushed += keys.flatten().tolist()
        newest = sorted(pushed[-size:])
        assert sorted(queue.keys.flatten().tolist()[: len(pushed)])[-len(newest) :] == newest
    assert 0 <= queue.pointer < size


def test_queue_is_filled_from_its_generator() -> None:
    a = Queue(50, 8)
    b = Queue(50, 8)
    c = Queue(50, 8)
    for queue, seed in ((a, 1), (b, 1), (c, 2)):
        queue.push(torch.ones(3, 8))
        queue.fill(torch.Generator().manual_seed(seed))
    torch.testing.assert_close(a.keys.norm(dim=-1), torch.ones(50))
    assert a.pointer == 0
    assert torch.equal(a.keys, b.keys)
    assert not torch.equal(a.keys, c.keys)
    assert a.keys.mean().abs() < 0.05


def test_a_step_enqueues_the_keys_of_both_views(make, batch: Batch) -> None:
    method = make(MoCoV2, queue=20)
    for round in range(1, 3):
        out = method(batch)
        method.loss(out, {}).backward()
        method.after_step(out)
        assert method.queue.pointer == 12 * round % 20
    places = torch.arange(12, 24) % 20
    assert torch.equal(method.queue.keys[places], out.keys.flatten(0, 1))
    assert torch.equal(method.state.tensors()["queue.keys"], method.queue.keys)
    assert method.state.tensors()["queue.pointer"] == 4


def test_key_encoder_follows(make, step) -> None:
    method = make(MoCoV1, momentum=0.5)
    method.parameter_row(method.online).add_(2)
    before = method.parameter_row(("target",)).clone()
    step(method)
    torch.testing.assert_close(method.parameter_row(("target",)), before + 1)


def test_heads(make) -> None:
    v1 = make(MoCoV1)
    v2 = make(MoCoV2, hidden=None)
    wide = make(MoCoV2, hidden=9)
    assert [tuple(p.shape) for p in v1.projector.parameters()] == [(5, 24), (5,)]
    assert [m.weight.shape[0] for m in (v2.projector[0], wide.projector[0])] == [24, 9]


def test_no_operation_waits_for_the_device() -> None:
    with FakeTensorMode():  # has shapes and no values: reading one raises
        queue = Queue(7, 4)
        queue.push(torch.empty(12, 4))
        assert info_nce(torch.empty(2, 6, 4), torch.empty(2, 6, 4), queue.keys, 0.07).shape == ()


@pytest.mark.oracle
@pytest.mark.parametrize("temperature", [0.07, 0.2])
def test_equals_lightly(temperature: float) -> None:
    loss = pytest.importorskip("lightly.loss")
    queries = _units(2, 6, 8)
    keys = _units(2, 6, 8, seed=2)
    negatives = _units(32, 8, seed=3)
    theirs = torch.zeros(())
    for view in range(2):
        criterion = loss.NTXentLoss(temperature=temperature, memory_bank_size=(32, 8))
        criterion.memory_bank.bank = negatives.clone()
        theirs = theirs + criterion(queries[view], keys[view])
    torch.testing.assert_close(
        info_nce(queries, keys, negatives, temperature), theirs, rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize("cls", [MoCoV1, MoCoV2])
def test_a_queue_that_is_full_too_late(cls, make) -> None:
    """Two keys of an image: with 10 images in a round a queue of 100 is full after five rounds, one
    of 101 later.
    """
    assert make(cls, queue=100).client_warning(10) is None
    assert make(cls, queue=101).client_warning(10) == (
        "makes 20 keys a round and needs 6 rounds to fill method.queue = 101. Until then the rest "
        "of the queue is random numbers, and later most keys are out of date. "
        "Try method.queue = 20"
    )
