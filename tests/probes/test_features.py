"""Features of clean images: eval mode, normalisation, and a balanced draw of labels."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from fedssl.method import Normalisation
from fedssl.nets import CNN
from fedssl.probes import balanced, embed


class Channels(nn.Module):
    """Return the mean of each channel; fail in training mode."""

    def forward(self, x: Tensor) -> Tensor:
        assert not self.training
        return x.mean((2, 3))


def test_normalised_by_hand() -> None:
    """Pixels 51, 102, 255 are 0.2, 0.4, 1.

    (0.2 − 0.1)/0.5 = 0.2, (0.4 − 0.2)/0.25 = 0.8, (1 − 0.5)/1 = 0.5.
    """
    pixels = torch.tensor([51, 102, 255], dtype=torch.uint8).view(1, 3, 1, 1).expand(4, 3, 2, 2)
    plain = embed(Channels(), pixels, None, "cpu")
    torch.testing.assert_close(plain, torch.tensor([[0.2, 0.4, 1.0]]).expand(4, 3))
    normalisation = Normalisation((0.1, 0.2, 0.5), (0.5, 0.25, 1.0))
    normalised = embed(Channels(), pixels, normalisation, "cpu")
    torch.testing.assert_close(normalised, torch.tensor([[0.2, 0.8, 0.5]]).expand(4, 3))


@pytest.mark.parametrize("batch", [1, 7, 1000])
def test_features_are_computed_in_eval_mode(batch: int) -> None:
    """Features do not depend on other images in the batch; running statistics do not change."""
    stream = torch.Generator().manual_seed(0)
    pixels = torch.randint(256, (20, 3, 8, 8), dtype=torch.uint8, generator=stream)
    torch.manual_seed(0)
    backbone = CNN().train()
    before = {name: tensor.clone() for name, tensor in backbone.state_dict().items()}
    features = embed(backbone, pixels, None, "cpu", batch)
    assert features.shape == (20, 512)
    assert features.dtype == torch.float32
    assert not features.requires_grad
    assert all(torch.equal(tensor, before[name]) for name, tensor in backbone.state_dict().items())
    torch.testing.assert_close(features[5:6], embed(backbone, pixels[5:6], None, "cpu"))


@given(st.lists(st.integers(0, 4), min_size=1, max_size=60), st.integers(1, 70), st.integers(0, 9))
def test_a_draw_is_as_balanced_as_it_can_be(labels: list[int], count: int, seed: int) -> None:
    """A class has at most one image more than another with images left; no image is drawn twice."""
    index = balanced(torch.tensor(labels), count, torch.Generator().manual_seed(seed)).tolist()
    assert len(index) == len(set(index)) == min(count, len(labels))
    assert index == sorted(index)
    drawn = Counter(labels[i] for i in index)
    available = Counter(labels)
    most = max(drawn.values())
    for label in available:
        assert drawn[label] >= most - 1 or drawn[label] == available[label]


def test_ten_of_each_of_ten() -> None:
    labels = torch.arange(1000) % 10
    index = balanced(labels, 100, torch.Generator().manual_seed(0))
    assert torch.bincount(labels[index]).tolist() == [10] * 10


def test_draws_repeat_and_differ() -> None:
    labels = torch.arange(200) % 4

    def draw(seed: int) -> list[int]:
        return balanced(labels, 20, torch.Generator().manual_seed(seed)).tolist()

    assert draw(0) == draw(0)
    assert draw(0) != draw(1)


def test_every_image_of_a_class_may_be_drawn() -> None:
    labels = torch.arange(40) % 4
    drawn: set[int] = set()
    for seed in range(100):
        drawn.update(balanced(labels, 8, torch.Generator().manual_seed(seed)).tolist())
    assert drawn == set(range(40))
