"""Statistics per group: one pass over two views equals two passes over one."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from fedssl.nets import BatchNorm1d, BatchNorm2d


def _twins(dims: int) -> tuple[nn.Module, nn.Module, Tensor]:
    generator = torch.Generator().manual_seed(3)
    mine, theirs = (
        (BatchNorm1d(5), nn.BatchNorm1d(5)) if dims == 2 else (BatchNorm2d(5), nn.BatchNorm2d(5))
    )
    with torch.no_grad():
        mine.weight.copy_(torch.rand(5, generator=generator))
        mine.bias.copy_(torch.rand(5, generator=generator))
    theirs.load_state_dict(mine.state_dict(), strict=True)
    x = torch.randn(12, 5, *(4, 3)[: dims - 2], generator=generator)
    x[6:] = (
        3 * x[6:] + 2
    )  # the second view has other statistics, so that sharing them would be detected
    return mine, theirs, x


@pytest.mark.parametrize("dims", [2, 4])
@pytest.mark.parametrize("groups", [1, 2, 3])
def test_groups_equal_separate_passes(dims: int, groups: int) -> None:
    mine, theirs, x = _twins(dims)
    mine.groups = groups
    a = x.clone().requires_grad_()
    b = x.clone().requires_grad_()
    one = mine(a)
    many = torch.cat([theirs(chunk) for chunk in b.chunk(groups)])
    torch.testing.assert_close(one, many, rtol=1e-5, atol=1e-6)
    weights = torch.linspace(-1, 1, x.numel()).view_as(x)
    (one * weights).sum().backward()
    (many * weights).sum().backward()
    torch.testing.assert_close(a.grad, b.grad, rtol=1e-5, atol=1e-5)
    for p, q in zip(mine.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(mine.running_mean, theirs.running_mean, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(mine.running_var, theirs.running_var, rtol=1e-5, atol=1e-6)


def test_two_groups_differ_from_one_batch() -> None:
    mine, _, x = _twins(4)
    shared = copy.deepcopy(mine)(x)
    mine.groups = 2
    assert (mine(x) - shared).abs().max() > 0.1


def test_evaluation_ignores_groups() -> None:
    mine, theirs, x = _twins(4)
    mine.groups = 5  # does not divide 12, which matters in training only
    torch.testing.assert_close(mine.eval()(x), theirs.eval()(x), rtol=0, atol=0)


def test_groups_must_divide_the_batch() -> None:
    mine, _, x = _twins(2)
    mine.groups = 5
    with pytest.raises(ValueError, match="12 images cannot be cut into 5 groups"):
        mine(x)


def test_counter_is_left_to_the_training_step() -> None:
    mine, _, x = _twins(4)
    mine(x)
    assert mine.num_batches_tracked == 0


def test_running_statistics_move_inside_their_row() -> None:
    mine, _, x = _twins(2)
    row = torch.cat([mine.running_mean, mine.running_var])
    mine._buffers["running_mean"] = row[:5]
    mine._buffers["running_var"] = row[5:]
    mine.groups = 2
    mine(x)
    by_hand = torch.zeros(5)
    for view in x.chunk(2):
        by_hand = 0.9 * by_hand + 0.1 * view.mean(0)
    torch.testing.assert_close(row[:5], by_hand)


def test_memory_format_survives() -> None:
    mine, _, x = _twins(4)
    mine.groups = 2
    assert mine(x.to(memory_format=torch.channels_last)).is_contiguous(
        memory_format=torch.channels_last
    )
