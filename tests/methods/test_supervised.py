"""Cross-entropy against loops; labels reach this method and no other, and are checked before it
trains.
"""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from error_messages import raises
from factories import make_experiment

import fedssl
from fedssl.core.errors import ConfigError
from fedssl.method import METHODS, Batch
from fedssl.methods import Supervised
from fedssl.methods.supervised import cross_entropy


def test_equals_the_sum_over_images() -> None:
    stream = torch.Generator().manual_seed(1)
    logits = torch.randn(2, 5, 4, generator=stream)
    labels = torch.randint(4, (2, 5), generator=stream)
    slow = 0.0
    for view in range(2):
        for scores, label in zip(logits[view].tolist(), labels[view].tolist(), strict=True):
            slow -= (
                math.log(math.exp(scores[label]) / sum(math.exp(score) for score in scores)) / 10
            )
    assert cross_entropy(logits, labels).item() == pytest.approx(slow, rel=1e-5)


def test_by_hand() -> None:
    """Logits all alike: log of the number of classes. One logit of log 9 among four: 9/12 for it,
    1/12 for another.
    """
    assert cross_entropy(torch.zeros(1, 3, 4), torch.tensor([[0, 1, 3]])).item() == pytest.approx(
        math.log(4)
    )
    one = torch.tensor([[[0.0, math.log(9), 0.0, 0.0]]])
    assert cross_entropy(one, torch.tensor([[1]])).item() == pytest.approx(math.log(12 / 9))
    assert cross_entropy(one, torch.tensor([[2]])).item() == pytest.approx(math.log(12))


def test_every_view_has_its_images_label(make, batch: Batch) -> None:
    method = make(Supervised)
    out = method(batch)
    assert torch.equal(out.expected, torch.stack([batch.labels, batch.labels]))
    torch.testing.assert_close(method.loss(out, {}), cross_entropy(out.z, out.expected))
    assert [group.count for group in method.views] == [1]


def test_a_head_of_two_layers(make, batch: Batch) -> None:
    """Linear, ReLU, Linear on the features, by hand."""
    method = make(Supervised, head="mlp", classes=3)
    out = method(batch)
    first, relu, last = method.projector
    assert (first.out_features, last.in_features, last.out_features) == (method.features,) * 2 + (
        3,
    )
    assert isinstance(relu, torch.nn.ReLU)
    hidden = (out.h @ first.weight.T + first.bias).clamp(min=0)
    torch.testing.assert_close(out.z, hidden @ last.weight.T + last.bias)
    assert [*make(Supervised).projector.state_dict()] == ["0.weight", "0.bias"]


def test_a_linear_head_leaves_the_hash_of_an_experiment_unchanged() -> None:
    """Earlier versions had no other head. An experiment with two layers is another one."""
    chosen = make_experiment({"method": {"name": "supervised", "classes": 3, "backbone": "cnn"}})
    earlier = "631ae22fe6a719acf6bf0e5d27635140d9a25064908b0dcc419e448dde6690b3"
    assert chosen.to_dict()["method"]["head"] == "linear"
    assert chosen.hash() == earlier
    assert chosen.with_changes({"method.head": "mlp"}).hash() != earlier


def test_only_this_method_learns_from_labels() -> None:
    assert {name for name in METHODS.names() if METHODS[name].learns_from_labels} == {"supervised"}


def test_labels_out_of_range(make) -> None:
    method = make(Supervised, classes=3)
    method.check_labels(torch.tensor([0, 2]))
    method.check_labels(torch.tensor([], dtype=torch.int64))
    with raises(ConfigError):
        method.check_labels(torch.tensor([1, 3]))


SMALL = {
    "clients": 2,
    "method": {"name": "supervised", "classes": 2},
    "train": {"batch": 16, "optimizer": "adam", "lr": 0.01, "epochs": 3},
    "probe": {"epochs": 1, "linear": True},
}


def _halves(labelled: int = 2) -> torch.utils.data.TensorDataset:
    """Return images that are bright at the top or at the bottom, with labels."""
    labels = torch.arange(64) % 2
    images = torch.randint(100, (64, 1, 12, 12), generator=torch.Generator().manual_seed(1))
    images[labels == 0, :, :6] += 100
    images[labels == 1, :, 6:] += 100
    return torch.utils.data.TensorDataset(*(images.to(torch.uint8), labels)[:labelled])


def test_a_federation_learns_from_labels(tmp_path: Path) -> None:
    experiment = make_experiment(SMALL, rounds=4)
    run = fedssl.run(experiment, tmp_path / "run", "cpu", dataset=_halves(), quiet=True)
    losses = [record["loss"] for record in run.rounds]
    assert losses[-1] < 0.3 < math.log(2)
    assert (run.dir / "backbone.safetensors").is_file()


def test_labels_beyond_the_classes_end_a_run(tmp_path: Path) -> None:
    images, labels = _halves().tensors
    constants = torch.utils.data.TensorDataset(images, labels + 1)
    with raises(ConfigError):
        fedssl.run(
            make_experiment(SMALL),
            tmp_path / "run",
            "cpu",
            dataset=constants,
            quiet=True,
        )


def test_images_without_labels_are_refused(tmp_path: Path) -> None:
    images = _halves().tensors[0].numpy().transpose(0, 2, 3, 1)
    with raises(ConfigError):
        fedssl.run(make_experiment(SMALL), tmp_path / "run", "cpu", dataset=images, quiet=True)
