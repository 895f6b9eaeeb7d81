"""fedssl export, embed, search and classify, as a user calls them."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from PIL import Image

from fedssl import nets

Cli = Callable[..., tuple[int, str, str]]
DARK = range(0, 40, 10)
BRIGHT = range(200, 240, 10)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A backbone, and images of one grey each: labelled ones and others, named by their grey."""
    monkeypatch.chdir(tmp_path)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = nets.build("cnn", 1)
    header = {"backbone": "cnn", "stem": "cifar", "image": "[1, 12, 12]", "model": "north"}
    nets.save_backbone(network.state_dict(), tmp_path / "b.safetensors", header)
    for name, greys in (("dark", DARK), ("bright", BRIGHT)):
        for grey in greys:
            _put(tmp_path / f"labelled/{name}/{grey:03}.png", grey)
            _put(tmp_path / f"photos/{name}/{grey + 5:03}.png", grey + 5)
    return tmp_path


def _put(path: Path, grey: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("L", (12, 12), grey).save(path)


def test_export_prints_the_difference_and_the_lines(folder: Path, cli: Cli) -> None:
    code, output, _ = cli("export", "b.safetensors", "--to", "torch")
    assert code == 0
    assert "wrote b.pt2\nlargest difference from fedssl on 8 images: 0 " in output
    assert "torch.export.load('b.pt2')" in output
    code, _, errors = cli("export", "b.safetensors", "--to", "torch")
    assert (code, "b.pt2 exists" in errors) == (2, True)
    assert cli("export", "b.safetensors", "--to", "torch", "--force")[0] == 0
    code, _, errors = cli("export", "b.safetensors", "--to", "onyx")
    assert (code, 'did you mean "onnx"?' in errors) == (2, True)


def test_features_are_computed_once_for_many_searches(folder: Path, cli: Cli) -> None:
    """The folder and its file of features give the same neighbours, and the same picture."""
    assert cli("embed", "b.safetensors", "photos", "-o", "f.npz") == (
        0,
        "wrote f.npz: 512 features of 8 images\n",
        "listing files in photos\nreading images\n",
    )
    query = ("labelled/bright/220.png",)
    options = ("-k", "3", "--json", "--quiet")
    code, by_folder, _ = cli("search", "b.safetensors", *query, "photos", *options, "-o", "a.png")
    assert code == 0
    assert [entry["rank"] for entry in json.loads(by_folder)] == [1, 2, 3]
    pictured = ("-o", "b.png", "--folder", "photos")
    by_file = cli("search", "b.safetensors", *query, "f.npz", *options, *pictured)
    assert by_file == (0, by_folder, "")
    assert (folder / "a.png").read_bytes() == (folder / "b.png").read_bytes()


def test_a_picture_needs_the_files(folder: Path, cli: Cli) -> None:
    code, _, errors = cli("search", "b.safetensors", "q.png", "f.npz", "-o", "a.png")
    assert (code, "--folder" in errors) == (2, True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ("labelled/bright/220.jpg",),
            'there is no file labelled/bright/220.jpg, did you mean "labelled/bright/220.png',
        ),
        (("photos/dark/005.png", "-k", "0"), "k must be at least 1 (got 0)"),
    ],
    ids=["query", "k"],
)
def test_search_checks_its_arguments_before_it_reads_the_folder(
    folder: Path, cli: Cli, options: tuple[str, ...], message: str
) -> None:
    query, *rest = options
    code, _, errors = cli("search", "nowhere", query, "photos", *rest)
    assert (code, errors.startswith(f"fedssl: {message}")) == (2, True)


def test_search_prints_a_table(folder: Path, cli: Cli) -> None:
    code, output, _ = cli("search", "b.safetensors", "photos/dark/005.png", "photos", "-k", "1")
    assert code == 0
    heading, row = output.splitlines()
    assert heading.split() == ["rank", "similarity", "file"]
    assert row.split()[0] == "1"
    assert "005.png" not in row  # the query itself


def test_classify_trains_saves_and_predicts(folder: Path, cli: Cli) -> None:
    """The saved classifier needs no labelled images and predicts the same."""
    code, output, _ = cli(
        "classify", "b.safetensors", "labelled", "photos", "-o", "a.csv", "--save", "c.safetensors"
    )
    assert code == 0
    assert "8 labelled images, 5 folds" in output
    assert 'always predicting "bright": 50.0%' in output
    assert "classified 8 images:\n  bright  " in output
    assert cli("classify", "c.safetensors", "photos", "-o", "b.csv")[0] == 0
    assert (folder / "a.csv").read_text() == (folder / "b.csv").read_text()
    with (folder / "a.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 8
    assert {row["class"] for row in rows} <= {"bright", "dark"}
    assert all(0.5 <= float(row["confidence"]) <= 1 for row in rows)


def test_classified_images_that_trained_the_classifier_are_announced(
    folder: Path, cli: Cli
) -> None:
    for images, announced in (("labelled", True), ("labelled/dark", True), ("photos", False)):
        command = ("classify", "b.safetensors", "labelled", images, "-o", "a.csv")
        assert ("that the classifier was trained on" in cli(*command)[2]) == announced


def test_classify_as_json_without_images(folder: Path, cli: Cli) -> None:
    code, output, _ = cli("classify", "b.safetensors", "labelled", "--json", "--quiet")
    assert code == 0
    report = json.loads(output)["report"]
    assert [row["images"] for row in report["rows"]] == [4, 4]


@pytest.mark.parametrize(
    "arguments",
    [
        ("b.safetensors", "labelled", "-o", "a.csv"),
        ("b.safetensors", "labelled", "photos", "photos"),
        ("b.safetensors", "labelled", "photos", "-o", "a.txt"),
        ("b.safetensors", "labelled", "--save", "model.pt"),
    ],
    ids=" ".join,
)
def test_classify_with_wrong_arguments(folder: Path, cli: Cli, arguments: tuple[str, ...]) -> None:
    code, _, errors = cli("classify", *arguments)
    assert (code, errors.count("\n")) == (2, 1)
