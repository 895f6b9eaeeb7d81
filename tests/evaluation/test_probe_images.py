"""`probe.on`: kNN on other labelled images while a run trains."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from error_messages import raises
from factories import SMALL_EXPERIMENT, bright_dataset, bright_pixels, make_experiment
from PIL import Image
from safetensors.torch import load_file

import fedssl
from fedssl.core.errors import ConfigError, DataError, FedsslError
from fedssl.data import Dataset, Images
from fedssl.evaluation.probe_images import probe_images_name, read_probe_images
from fedssl.experiment.experiment import Experiment
from fedssl.runs.comparable import check_comparable
from fedssl.runs.compare import knn_on_by_round
from fedssl.runs.summary import summarise

SIZE = 10


def quiet(line: str) -> None: ...


def photos(folder: Path, images: int = 6, seed: int = 0) -> Path:
    """Write two classes of grey images; those of the second class are brighter."""
    pixels, labels = bright_pixels(2 * images, seed, classes=2, channels=1, size=SIZE)
    for number, (image, label) in enumerate(zip(pixels, labels, strict=True)):
        path = folder / "ab"[int(label)]
        path.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image[0].numpy()).save(path / f"{number}.png")
    return folder


def _run(folder: Path, on: Any, dataset: Dataset | None = None, **settings: Any) -> fedssl.Run:
    experiment = make_experiment(probe={"every": 1, **settings})
    return fedssl.run(
        experiment,
        folder,
        "cpu",
        dataset=dataset or bright_dataset(),
        quiet=True,
        set={"probe.on": on},
    )


def _read(on: Any, image: tuple[int, int, int] = (3, SIZE, SIZE)) -> Dataset:
    data = read_probe_images(make_experiment(probe__on=on), image, Path(), quiet)
    assert data is not None
    return data


# -- which images --


def test_a_folder_of_classes_is_split_into_halves(tmp_path: Path) -> None:
    """Twelve labelled images of two classes: three of each class vote on the other three."""
    data = _read(str(photos(tmp_path / "photos")))
    assert not data.train.labelled
    assert data.test is not None
    assert len(data.test) == 12
    assert data.test.image_shape == (3, SIZE, SIZE)
    assert data.test.labels.tolist() == [0] * 6 + [1] * 6


def test_a_folder_with_train_and_test_has_both_parts(tmp_path: Path) -> None:
    photos(tmp_path / "photos" / "train", 5)
    photos(tmp_path / "photos" / "test", 2, seed=1)
    data = _read(str(tmp_path / "photos"))
    assert data.test is not None
    assert (len(data.train), len(data.test)) == (10, 4)
    assert data.train.labelled


def test_a_table_sets_what_data_has(tmp_path: Path) -> None:
    path = str(photos(tmp_path / "photos"))
    table = {"name": "folder", "path": path, "layout": "classes", "holdout": 4, "size": 6}
    data = _read(table)
    assert data.test is not None
    assert (len(data.train), len(data.test)) == (8, 4)
    assert data.train.image_shape == (3, 6, 6)


def test_an_archive_and_a_data_set_by_name(tmp_path: Path) -> None:
    pixels, labels = bright_pixels(12, channels=3, size=SIZE)
    arrays = {"x_train": pixels.permute(0, 2, 3, 1).numpy(), "y_train": labels.numpy()}
    np.savez(tmp_path / "images.npz", **arrays)
    archive = _read(str(tmp_path / "images.npz"))
    assert archive.test is not None
    assert archive.test.labels.tolist() == labels.tolist()
    bundled = _read("fashion-mini", (1, 28, 28))
    assert bundled.test is not None
    assert len(bundled.test) == 1000


def test_without_the_setting_nothing_is_read() -> None:
    assert read_probe_images(make_experiment(), (3, 8, 8), Path("none"), quiet) is None


def test_names_of_the_images() -> None:
    table = {"name": "folder", "path": "photos", "layout": "classes"}
    names = {"cifar10": "cifar10", "a/b": "a/b"}
    for on, name in names.items():
        assert probe_images_name(make_experiment(probe__on=on)) == name
    assert probe_images_name(make_experiment(probe={"on": table})) == "photos"
    assert probe_images_name(make_experiment(probe={"on": {"name": "cifar10"}})) == "cifar10"


# -- the setting --


def test_the_setting_is_kept_by_files_and_changes_no_other_hash(tmp_path: Path) -> None:
    plain = make_experiment()
    table = {"name": "folder", "path": "x", "layout": "classes", "size": 8}
    for on in ("cifar10", table):
        experiment = make_experiment(probe={"on": on})
        assert experiment.to_dict()["probe"]["on"] == on
        again = Experiment.from_toml(experiment.to_toml())
        assert again == experiment
        assert again.hash() != plain.hash()
        assert again.with_changes({"probe.on": None}).hash() == plain.hash()
        assert isinstance(hash(experiment.probe), int)
    assert "on" not in plain.to_dict()["probe"]
    assert make_experiment(probe={"on": "x"}).with_changes({"probe.on": "none"}).probe.on is None


@pytest.mark.parametrize("on", [5, "", ["cifar10"], {"path": "x"}, {"name": 3}], ids=repr)
def test_values_of_other_types_are_errors(on: Any) -> None:
    values = {**SMALL_EXPERIMENT, "probe": {"on": on}}
    with raises(ConfigError):
        Experiment.from_dict(values)


# -- errors before training --


def _tables(folder: Path) -> Mapping[str, Any]:
    photos(folder / "photos")
    flat = {"name": "folder", "path": str(folder / "photos"), "layout": "flat"}
    return {
        "missing": str(folder / "fotos"),
        "no labels": flat,
        "no classes": str(folder / "photos" / "a"),
        "one image per class": str(photos(folder / "few", images=1)),
        "given": {"name": "given"},
        "unknown": {"name": "cifar11"},
        "no path": "folder",
        "unknown key": {**flat, "layuot": "flat"},
        "mean": {**flat, "mean": [0.5] * 3},
        "missing in table": {**flat, "path": str(folder / "none")},
    }


@pytest.mark.parametrize(
    ("case", "kind"),
    [
        ("missing", ConfigError),
        ("no labels", ConfigError),
        ("no classes", ConfigError),
        ("one image per class", ConfigError),
        ("given", ConfigError),
        ("unknown", ConfigError),
        ("no path", ConfigError),
        ("unknown key", ConfigError),
        ("mean", ConfigError),
        ("missing in table", DataError),
    ],
)
def test_unusable_images_are_errors_before_training(
    tmp_path: Path, case: str, kind: type[FedsslError], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with raises(kind):
        _run(tmp_path / "run", _tables(tmp_path)[case])
    assert not (tmp_path / "run").exists()


def test_images_of_five_channels_cannot_be_converted(tmp_path: Path) -> None:
    photos(tmp_path / "photos")
    pixels, labels = bright_pixels(24, channels=5)
    with raises(ConfigError):
        _run(tmp_path / "run", str(tmp_path / "photos"), Dataset(Images(pixels, labels), None))
    assert not (tmp_path / "run").exists()


# -- runs --


def test_the_log_and_the_results_have_the_accuracy(tmp_path: Path) -> None:
    """The last round's accuracy is that of `run.evaluate` on the same images."""
    photos(tmp_path / "photos" / "train", 10)
    path = str(photos(tmp_path / "photos" / "test", 5, seed=1).parent)
    run = _run(tmp_path / "run", path, baselines=["random"])
    table = {"name": "folder", "path": path, "layout": "classes"}
    score = run.evaluate("knn", on=table)
    assert [line["knn_on"] is not None for line in run.rounds] == [True, True]
    assert run.rounds[-1]["knn_on"] == score.mean
    measured = run.results["on"]
    assert measured["table"]["this run"]["knn"]["mean"] == score.mean
    assert measured["table"].keys() == {"this run", "random"}
    assert measured["knn_settings"] == {"k": 5, "temperature": 0.1}
    assert "10 test images" in measured["measured_on"]


def test_the_accuracy_needs_no_labels_of_the_clients(tmp_path: Path) -> None:
    data = Dataset(Images(bright_dataset().train.pixels), None)
    run = _run(tmp_path / "run", str(photos(tmp_path / "photos")), data)
    assert [line["knn"] for line in run.rounds] == [None, None]
    assert run.results["table"] == {}
    final = run.results["on"]["table"]["this run"]["knn"]["mean"]
    assert [line["knn_on"] for line in run.rounds][-1] == final


def test_other_images_change_no_weight_and_measure_again_without_training(tmp_path: Path) -> None:
    path = str(photos(tmp_path / "photos"))
    _run(tmp_path / "without", None)
    before = (tmp_path / "without" / "rounds.jsonl").read_bytes()
    run = _run(tmp_path / "with", path)
    weights = load_file(run.dir / "backbone.safetensors")
    others = load_file(tmp_path / "without" / "backbone.safetensors")
    assert weights.keys() == others.keys()
    assert all(torch.equal(weights[name], others[name]) for name in weights)
    again = _run(tmp_path / "without", path)
    assert (again.dir / "rounds.jsonl").read_bytes() == before  # nothing was trained
    assert again.results["on"] == run.results["on"]


def test_accuracies_on_earlier_images_are_not_drawn(tmp_path: Path) -> None:
    """After a change of `probe.on`, the curve has only the last round, which is measured again."""
    photos(tmp_path / "a")
    photos(tmp_path / "b", seed=1)
    first = _run(tmp_path / "run", str(tmp_path / "a"))
    assert knn_on_by_round(summarise(first.dir)).keys() == {1, 2}
    again = _run(tmp_path / "run", str(tmp_path / "b"))
    final = again.results["on"]["table"]["this run"]["knn"]["mean"]
    assert knn_on_by_round(summarise(again.dir)) == {2: final}
    without = _run(tmp_path / "run", None)
    assert knn_on_by_round(summarise(without.dir)) == {}


def test_changed_images_are_measured_again(tmp_path: Path) -> None:
    photos(tmp_path / "photos")
    first = _run(tmp_path / "run", str(tmp_path / "photos")).results
    assert _run(tmp_path / "run", str(tmp_path / "photos")).results == first
    photos(tmp_path / "photos", seed=5)
    second = _run(tmp_path / "run", str(tmp_path / "photos")).results
    assert second["on_images"] != first["on_images"]
    assert second["on_labels"] == first["on_labels"]


def test_runs_measured_on_different_images_are_not_compared(tmp_path: Path) -> None:
    photos(tmp_path / "a")
    photos(tmp_path / "b", seed=1)
    runs = [_run(tmp_path / f"run{name}", str(tmp_path / name)) for name in "ab"]
    with raises(ConfigError):
        check_comparable([summarise(run.dir) for run in runs])
    without = _run(tmp_path / "run", None)
    with raises(ConfigError):
        check_comparable([summarise(without.dir), summarise(runs[0].dir)])


def test_the_same_path_with_other_images_is_not_compared(tmp_path: Path) -> None:
    path = photos(tmp_path / "photos")
    first = _run(tmp_path / "first", str(path))
    photos(path, seed=3)
    second = _run(tmp_path / "second", str(path))
    with raises(ConfigError):
        check_comparable([summarise(first.dir), summarise(second.dir)])


def test_baselines_do_not_have_the_setting(tmp_path: Path) -> None:
    run = _run(tmp_path / "run", str(photos(tmp_path / "photos")), baselines=["isolated"])
    assert fedssl.Run(run.dir / "isolated").experiment.probe.on is None
    assert run.results["on"]["table"].keys() == {"this run", "isolated"}
    log = (run.dir / "isolated" / "rounds.jsonl").read_text().splitlines()
    assert "knn_on" not in json.loads(log[0])
