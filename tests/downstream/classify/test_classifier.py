"""Train a classifier on folders of images, save it, load it and use it."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
import torch
from error_messages import raises
from safetensors import safe_open

import fedssl
from fedssl.core.errors import ConfigError, DataError
from fedssl.downstream.backbone import load_backbone
from fedssl.downstream.classify.classifier import Classifier, is_classifier, load_classifier
from fedssl.downstream.classify.train import train_classifier, write_predictions
from fedssl.probes.linear import Layer

RED = (255, 0, 0)
BLUE = (0, 0, 255)


def _by_hand(backbone) -> Classifier:
    """Return a classifier with the logits 2·red and 2·blue."""
    weight = torch.tensor([[2.0, 0.0, 0.0], [0.0, 0.0, 2.0]])
    return Classifier(backbone, Layer(weight, torch.zeros(2)), ("red", "blue"), {"images": 4})


@pytest.fixture
def labelled(put_colour, tmp_path: Path) -> Path:
    """Four shades each of red and of blue."""
    for number, shade in enumerate((255, 225, 195, 165)):
        put_colour(f"labelled/red/{number}.png", (shade, 0, 0))
        put_colour(f"labelled/blue/{number}.png", (0, 0, shade))
    return tmp_path / "labelled"


def test_probabilities_by_hand(write_backbone, put_colour) -> None:
    """A red image has the logits (2, 0), so the probability 1 / (1 + e⁻²) = 0.8808."""
    classifier = _by_hand(load_backbone(write_backbone()))
    red = put_colour("red.png", RED)
    blue = put_colour("blue.png", BLUE)
    assert classifier.probabilities(red).tolist() == pytest.approx([0.8808, 0.1192], abs=1e-4)
    predictions = classifier.predict([red, blue])
    assert [prediction.label for prediction in predictions] == ["red", "blue"]
    assert predictions[1].confidence == pytest.approx(0.8808, abs=1e-4)
    assert classifier.predict(blue) == predictions[1:]
    assert torch.equal(classifier(classifier.preprocess([red])), torch.tensor([[2.0, 0.0]]))


def test_a_saved_classifier_is_complete(write_backbone, put_colour, tmp_path: Path) -> None:
    file = write_backbone(model="north", notes="north was slow", experiment="abc", fit="pad")
    classifier = _by_hand(load_backbone(file))
    path = tmp_path / "model.safetensors"
    classifier.save(path)
    loaded = fedssl.load_classifier(path)
    red = put_colour("red.png", RED)
    assert torch.equal(loaded.probabilities([red]), classifier.probabilities([red]))
    assert (loaded.classes, loaded.about) == (("red", "blue"), {"images": 4})
    assert loaded.preprocess == classifier.preprocess
    assert not loaded.training
    with safe_open(path, "pt") as opened:
        assert not {"model", "notes", "experiment"} & opened.metadata().keys()
    assert torch.equal(load_backbone(path).features(red), classifier.backbone.features(red))


def test_a_backbone_is_no_classifier(write_backbone, tmp_path: Path) -> None:
    file = write_backbone()
    assert not is_classifier(file)
    assert not is_classifier(tmp_path)
    with raises(ConfigError):
        load_classifier(file)


def test_a_folder_of_classes_is_learned(write_backbone, put_colour, labelled) -> None:
    """Red and blue are separable: heads that are fitted without an image classify it correctly."""
    trained = train_classifier(load_backbone(write_backbone()), labelled, notify=lambda line: None)
    assert trained.classifier.classes == ("blue", "red")
    assert trained.report.accuracy.estimate == 100
    assert trained.report.majority == 50
    assert [row.images for row in trained.report.rows] == [4, 4]
    assert trained.classifier.predict(put_colour("query.png", BLUE))[0].label == "blue"


def test_predictions_are_written_with_their_confidence(
    write_backbone, put_colour, tmp_path: Path
) -> None:
    classifier = _by_hand(load_backbone(write_backbone()))
    put_colour("photos/a.png", RED)
    put_colour("photos/deep/b.png", RED)
    path = tmp_path / "predictions.csv"
    counts = write_predictions(classifier, tmp_path / "photos", path, notify=lambda line: None)
    assert counts == {"red": 2, "blue": 0}
    with path.open(newline="") as file:
        rows = list(csv.reader(file))
    assert rows == [
        ["file", "class", "confidence"],
        ["a.png", "red", "0.8808"],
        ["deep/b.png", "red", "0.8808"],
    ]


def test_folders_that_are_not_labelled(write_backbone, put_colour, labelled) -> None:
    backbone = load_backbone(write_backbone())
    with raises(DataError):
        train_classifier(backbone, labelled / "red", notify=lambda line: None)
    put_colour("one/red/a.png", RED)
    put_colour("one/red/b.png", RED)
    with raises(DataError):
        train_classifier(backbone, labelled.parent / "one", notify=lambda line: None)
    put_colour("one/blue/a.png", BLUE)
    with raises(DataError):
        train_classifier(backbone, labelled.parent / "one", notify=lambda line: None)


def test_a_deterministic_file(write_backbone, tmp_path: Path) -> None:
    classifier = _by_hand(load_backbone(write_backbone()))
    for name in ("a", "b"):
        classifier.save(tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    with safe_open(tmp_path / "a", "pt") as opened:
        assert json.loads(opened.metadata()["classifier"]) == ["red", "blue"]
