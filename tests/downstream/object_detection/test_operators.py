"""The stand-ins for torchvision's operators, by hand and against its own slow `roi_align`."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch
from torchvision_operators import nms, roi_align


def test_nms_by_hand() -> None:
    """Boxes 0 and 1 are 10 × 10 and two apart: 80 in common, 80/120 = 2/3. Box 2 is the best and
    does not overlap.
    """
    boxes = torch.tensor([[0.0, 0, 10, 10], [2, 0, 12, 10], [50, 50, 60, 60]])
    scores = torch.tensor([0.5, 0.8, 0.9])
    assert nms(boxes, scores, 0.6).tolist() == [2, 1]
    assert nms(boxes, scores, 0.7).tolist() == [2, 1, 0]


def test_suppressed_boxes_do_not_suppress_others() -> None:
    """Box 1 overlaps 0 and 2 by 2/3, these overlap by 60/140: 1 is suppressed, so 2 is kept."""
    boxes = torch.tensor([[0.0, 0, 10, 10], [2, 0, 12, 10], [4, 0, 14, 10]])
    assert nms(boxes, torch.tensor([0.9, 0.8, 0.7]), 0.5).tolist() == [0, 2]


def test_roi_align_by_hand() -> None:
    """A map that rises by 1 a column and 10 a row is linear: a bin's value is that of its middle.

    Region (1, 1) to (3, 5) of two bins each way: middles at columns 1.5 and 2.5, rows 2 and 4. The
    second region, half scale, is (1, 1) to (2, 2), one bin at 1.5, 1.5.
    """
    maps = (torch.arange(6.0)[:, None] * 10 + torch.arange(6.0))[None, None]
    pooled = roi_align(maps, torch.tensor([[0.0, 1, 1, 3, 5]]), 1.0, 2, 2, 2, False)
    torch.testing.assert_close(pooled[0, 0], torch.tensor([[21.5, 22.5], [41.5, 42.5]]))
    pooled = roi_align(maps, torch.tensor([[0.0, 2, 2, 4, 4]]), 0.5, 1, 1, 2, False)
    torch.testing.assert_close(pooled[0, 0], torch.tensor([[16.5]]))


def test_roi_align_beyond_the_edge() -> None:
    """On a map of ones from 0 to 3: a point within one of the edge counts as on it, others as zero.
    Region (-3, 0) to (1, 4) in four bins of one point each: columns -2.5 and -1.5 are zeros, -0.5
    and 0.5 are ones.
    """
    pooled = roi_align(
        torch.ones(1, 1, 4, 4), torch.tensor([[0.0, -3, 0, 1, 4]]), 1.0, 1, 4, 1, False
    )
    assert pooled.flatten().tolist() == [0, 0, 1, 1]


@pytest.mark.oracle
@pytest.mark.parametrize("aligned", [False, True])
@pytest.mark.parametrize("sampling", [2, -1])
def test_roi_align_is_torchvisions(aligned: bool, sampling: int) -> None:
    """Regions of two images up to one cell beyond the edges, and the gradient. Further out
    torchvision's slow version differs from its compiled ones, which give zero there.
    """
    pytest.importorskip("torchvision")
    module: Any = sys.modules["torchvision.ops.roi_align"]
    theirs = module._roi_align.__wrapped__
    stream = torch.Generator().manual_seed(0)
    maps = torch.rand(2, 3, 9, 7, generator=stream)
    low = torch.rand(20, 2, generator=stream) * 20 - 3
    high = torch.minimum(
        low + torch.rand(20, 2, generator=stream) * 24 + 4, torch.tensor([28.0, 36.0])
    )
    regions = torch.cat((torch.arange(20)[:, None] % 2, low, high), 1)
    results = []
    for function in (theirs, roi_align):
        inputs = maps.clone().requires_grad_()
        pooled = function(inputs, regions, 0.25, 3, 2, sampling, aligned)
        (pooled * torch.arange(pooled.numel()).reshape(pooled.shape)).sum().backward()
        results.append((pooled.detach(), inputs.grad))
    torch.testing.assert_close(results[0], results[1], rtol=1e-4, atol=1e-4)
