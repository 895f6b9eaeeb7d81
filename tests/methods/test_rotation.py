"""Turned images pixel by pixel, and the loss against loops."""

from __future__ import annotations

import math

import pytest
import torch

from fedssl.method import Batch
from fedssl.methods import Rotation
from fedssl.methods.rotation import quarter_turns, rotation_loss
from fedssl.methods.supervised import cross_entropy


def test_turns_by_hand() -> None:
    """1 2 / 3 4, counter-clockwise: 2 4 / 1 3, then 4 3 / 2 1, then 3 1 / 4 2."""
    image = torch.tensor([[1, 2], [3, 4]]).view(1, 1, 2, 2)
    expected = [[[1, 2], [3, 4]], [[2, 4], [1, 3]], [[4, 3], [2, 1]], [[3, 1], [4, 2]]]
    assert quarter_turns(image).view(4, 2, 2).tolist() == expected


def test_equals_the_sum_over_images() -> None:
    logits = torch.randn(4, 5, 4, generator=torch.Generator().manual_seed(1))
    slow = 0.0
    for turn in range(4):
        for scores in logits[turn].tolist():
            slow -= math.log(math.exp(scores[turn]) / sum(math.exp(score) for score in scores)) / 20
    assert rotation_loss(logits).item() == pytest.approx(slow, rel=1e-5)
    labels = torch.arange(4)[:, None].expand(4, 5)
    torch.testing.assert_close(rotation_loss(logits), cross_entropy(logits, labels))


def test_by_hand() -> None:
    """Equal logits have a loss of log 4; log 5 for the right turn gives it a probability of 5/8."""
    assert rotation_loss(torch.zeros(4, 3, 4)).item() == pytest.approx(math.log(4))
    right = torch.eye(4)[:, None].expand(4, 3, 4) * math.log(5)
    assert rotation_loss(right).item() == pytest.approx(math.log(8 / 5))


def test_all_four_turns_are_one_batch(make, batch: Batch) -> None:
    method = make(Rotation)
    twin = make(Rotation)
    out = method(batch)
    together = twin.encode(torch.cat([batch.views[0][0].rot90(turn, (2, 3)) for turn in range(4)]))
    torch.testing.assert_close(out.z, together.z.view(4, 6, 4))
    assert [group.count for group in method.views] == [1]
