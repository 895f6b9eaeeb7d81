"""The linear probe: its gradient is autograd's, its answers those of problems with a known one."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from fedssl.probes import Labelled, linear
from fedssl.probes.linear import fit_linear
from fedssl.seeds import generator


def blobs(per_class: int, seed: int, spread: float = 0.1) -> Labelled:
    """Three clouds in a plane, none of which a line through the origin alone would tell apart."""
    centres = torch.tensor([[2.0, 1.0], [4.0, 2.0], [4.0, 4.0]])
    labels = torch.arange(3).repeat(per_class)
    noise = torch.randn(3 * per_class, 2, generator=torch.Generator().manual_seed(seed))
    return Labelled(centres[labels] + spread * noise, labels)


def test_separable_classes_are_separated() -> None:
    assert linear(blobs(30, 0), blobs(30, 1), epochs=200, lr=0.05, batch=45) == 100.0


@pytest.mark.parametrize("batch", [8, 100])
def test_the_same_steps_as_autograd_and_torch_adam(batch: int) -> None:
    """Same start, same order of images, torch's own gradient and Adam: the same weights, to rounding."""
    train, epochs, lr, seed = blobs(7, 0, spread=1.0), 5, 0.01, 3
    weight, bias = fit_linear(train, epochs, lr, batch, seed)
    stream = generator(seed, "linear probe")
    bound = 2**-0.5
    row = torch.empty(9).uniform_(-bound, bound, generator=stream)
    theirs_weight, theirs_bias = row[:6].view(3, 2).clone().requires_grad_(), row[6:].clone().requires_grad_()
    oracle = torch.optim.Adam([theirs_weight, theirs_bias], lr)
    for _ in range(epochs):
        order = torch.randperm(21, generator=stream)
        for index in order.split(batch):  # the last, smaller batch included: few labels must all count
            oracle.zero_grad()
            F.cross_entropy(train.features[index] @ theirs_weight.T + theirs_bias, train.labels[index]).backward()
            oracle.step()
    torch.testing.assert_close(weight, theirs_weight.detach(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(bias, theirs_bias.detach(), rtol=1e-4, atol=1e-5)


def test_without_information_it_learns_the_frequencies() -> None:
    """On features that are all zero only the bias learns: softmax(bias) → the share of each class, 1/2, 1/3, 1/6."""
    labels = torch.tensor([0, 0, 0, 1, 1, 2] * 10)
    _, bias = fit_linear(Labelled(torch.zeros(60, 4), labels), 600, 0.02, 60, 0)
    torch.testing.assert_close(torch.softmax(bias, 0), torch.tensor([3.0, 2.0, 1.0]) / 6, rtol=0, atol=0.01)


def test_the_probe_repeats_and_leaves_features_alone() -> None:
    train = blobs(20, 0, spread=1.0)
    before = train.features.clone()
    first, again, other = (fit_linear(train, 3, 0.01, 16, seed)[0] for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(train.features, before)
    assert not first.requires_grad


def test_labels_that_have_nothing_to_do_with_the_features_are_worth_chance() -> None:
    stream = torch.Generator().manual_seed(0)
    sets = [Labelled(torch.randn(800, 8, generator=stream), torch.randint(4, (800,), generator=stream)) for _ in "ab"]
    assert linear(*sets, epochs=20, lr=0.01) == pytest.approx(25, abs=6)


def test_features_of_an_inference_run_will_do() -> None:
    with torch.inference_mode():
        train = blobs(20, 0)
        train = Labelled(train.features.clone(), train.labels)
    assert linear(train, blobs(5, 1), epochs=100, lr=0.05) == 100.0
