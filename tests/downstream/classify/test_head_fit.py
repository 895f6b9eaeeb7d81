"""Fit a head on labelled features, and cross-validate it."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from error_messages import raises
from torch import Tensor

from fedssl.core.errors import DataError
from fedssl.downstream.classify import fit
from fedssl.probes.features import Labelled


def _features(n: int, dim: int, classes: int = 3) -> Labelled:
    stream = torch.Generator().manual_seed(0)
    labels = torch.arange(n) % classes
    features = torch.randn(n, dim, generator=stream)
    features[:, 0] += 2 * labels
    return Labelled(3 * features + 1, labels)


def _loss(train: Labelled, weight: Tensor, bias: Tensor, penalty: float) -> Tensor:
    """Return the penalised loss over standardised features, written out."""
    features = train.features.double()
    mean = features.mean(0)
    std = ((features - mean) ** 2).mean(0).sqrt()
    logits = ((features - mean) / std) @ weight.T + bias
    return F.cross_entropy(logits, train.labels) + penalty / 2 * (weight**2).sum()


@pytest.mark.parametrize(("n", "dim"), [(30, 4), (12, 20)], ids=["more images", "more features"])
def test_no_small_change_of_the_weights_reduces_the_loss(n: int, dim: int) -> None:
    """The gradient at a minimum is zero; the layer acts on raw features, so it is converted."""
    train = _features(n, dim)
    layer = fit.fit_layer(train, 0.1)
    features = train.features.double()
    std = features.std(0, correction=0)
    weight = (layer.weight * std).requires_grad_()
    bias = (layer.bias + layer.weight @ features.mean(0)).requires_grad_()
    _loss(train, weight, bias, 0.1).backward()
    assert weight.grad is not None
    assert bias.grad is not None
    assert float(weight.grad.abs().max()) < 1e-6
    assert float(bias.grad.abs().max()) < 1e-6


def test_a_constant_feature_has_no_weight() -> None:
    train = _features(12, 3)
    train.features[:, 1] = 7
    layer = fit.fit_layer(train, 0.1)
    assert layer.weight[:, 1].tolist() == [0, 0, 0]
    assert torch.isfinite(layer.weight).all()


def test_every_fold_has_its_share_of_each_class() -> None:
    """10, 5 and 2 images: 2, 1 and 0 or 1 in each of five folds, of 3 or 4 images."""
    labels = torch.tensor([0] * 10 + [1] * 5 + [2] * 2)
    folds = fit.stratified_folds(labels, 5)
    counts = torch.stack(
        [torch.bincount(folds[labels == label], minlength=5) for label in range(3)]
    )
    assert counts[0].tolist() == [2] * 5
    assert counts[1].tolist() == [1] * 5
    assert sorted(counts[2].tolist()) == [0, 0, 0, 1, 1]


def test_the_penalty_of_a_fold_is_chosen_by_the_others() -> None:
    """Fold 0 alone prefers penalty 1, fold 1 alone penalty 0; each gets the other's choice."""
    losses = torch.tensor([[9.0, 9.0, 1.0, 1.0], [1.0, 1.0, 2.0, 2.0]])
    predicted = torch.tensor([[0, 0, 0, 0], [1, 1, 1, 1]])
    fold_of = torch.tensor([0, 0, 1, 1])
    assert fit.held_out_predictions(losses, predicted, fold_of).tolist() == [0, 0, 1, 1]


def test_held_out_predictions_do_not_see_their_labels() -> None:
    """Features are noise and labels are random: an accuracy near 1/2, although heads fit them."""
    stream = torch.Generator().manual_seed(1)
    features = torch.randn(60, 100, generator=stream)
    labels = torch.arange(60) % 2
    done = fit.fit_head(Labelled(features, labels), ("a", "b"))
    seen = done.layer(features.double()).argmax(1)
    assert int((seen == labels).sum()) >= 58
    assert 18 <= int((done.held_out == labels).sum()) <= 42


def test_separable_classes_are_learned() -> None:
    """Class k is near 10·k in one feature; each of five folds leaves out four images."""
    labels = torch.arange(20) % 2
    features = torch.stack([10.0 * labels + torch.arange(20) / 100, torch.ones(20)], 1)
    done = fit.fit_head(Labelled(features, labels), ("a", "b"))
    assert done.held_out.tolist() == labels.tolist()
    assert done.folds == 5


def test_a_class_of_one_image_is_an_error() -> None:
    with raises(DataError) as raised:
        fit.fit_head(Labelled(torch.zeros(3, 2), torch.tensor([0, 0, 1])), ("a", "b"))
    assert raised.value.detail == "b"
