"""Reports on whole runs: finished, unfinished, damaged, private, without labels, and very large."""

from __future__ import annotations

import base64
import io
import json
import random
import re
import shutil
import stat
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from error_messages import raises
from factories import bright_dataset, bright_pixels, random_pixels
from fake_runs import fake_run
from PIL import Image
from tiny_runs import Go

from fedssl.core.console import ignore_message
from fedssl.core.errors import ConfigError
from fedssl.data import Dataset, Images
from fedssl.pages.report.evaluation_images import look_at_images
from fedssl.pages.report.report import report
from fedssl.runs.purge import find_targets


def _page(*folders: Path, **options: Any) -> str:
    return report(folders, notify=ignore_message, **options).read_text("utf-8")


def _data(page: str) -> dict[str, Any]:
    found = re.search(r'id="report-data">(.*?)</script>', page)
    assert found is not None
    data: dict[str, Any] = json.loads(found[1])
    return data


def _sections(page: str) -> list[str]:
    return re.findall(r'<section id="(\w+)"', page)


def _text(page: str) -> str:
    """Return the text of a page without tags and scripts."""
    body = page.partition("<body>")[2]
    return re.sub(r"<script.*?</script>|<[^>]*>", " ", body, flags=re.DOTALL)


def test_a_finished_run_has_all_sections(go: Go, labelled: Dataset) -> None:
    run = go(**{"algorithm.name": "fedema"})
    page = _page(run.dir, dataset=labelled)
    assert _sections(page) == [
        "settings",
        "accuracy",
        "rounds",
        "clients",
        "map",
        "neighbours",
        "communication",
        "guard",
        "experiment",
        "versions",
    ]
    charts = _data(page)["charts"]
    assert charts["client-loss"]["series"][0]["values"] == [
        pytest.approx(line["clients"][0]["loss"], rel=1e-4) for line in run.rounds
    ]
    assert "client-notes.lam" in charts
    assert (
        charts["accuracy"]["series"][0]["values"][-1]
        == run.results["table"]["this run"]["knn"]["mean"]
    )
    assert run.experiment.to_toml().splitlines()[0] in _text(page)


def test_the_file_is_private_and_purged(go: Go, labelled: Dataset) -> None:
    run = go()
    path = report(run.dir, dataset=labelled, notify=ignore_message)
    assert path == run.dir / "report.html"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    (target,) = find_targets([run.dir], {"report"})
    assert [file.path.name for file in target.files] == ["report.html"]


def test_pictures_are_of_test_images_only(go: Go) -> None:
    """With black training images and white test images, every picture is white."""
    noise = random_pixels(72, size=10) // 200  # 0 or 1: images must not all be equal
    black = Images(noise[:48], torch.arange(48) % 3)
    white = Images(255 - noise[48:], torch.arange(24) % 3)
    data = Dataset(black, white)
    run = go(dataset=data)
    page = _page(run.dir, dataset=data)
    pictures = re.findall(r"data:image/\w+;base64,([\w+/=]+)", page)
    assert len(pictures) > 3
    for picture in pictures:
        assert _brightest_corner(picture) > 200
    assert "small pictures of 24 test images" in _text(page)


def _brightest_corner(picture: str) -> int:
    """Return the first pixel of an encoded picture: that of an image, also on a sheet of them."""
    image = Image.open(io.BytesIO(base64.b64decode(picture))).convert("L")
    pixel = image.getpixel((0, 0))
    assert isinstance(pixel, int)
    return pixel


def test_without_images_no_picture_is_part_of_the_page(go: Go, labelled: Dataset) -> None:
    run = go()
    page = _page(run.dir, dataset=labelled, images=False)
    assert "data:image" not in page
    assert "neighbours" not in _sections(page)
    assert _data(page)["map"].keys() >= {"before", "after", "labels"}
    assert "sheet" not in _data(page)["map"]
    assert "contains no image of the data set" in _text(page)


def test_images_that_cannot_be_read_are_missing_and_named(go: Go) -> None:
    page = _page(go().dir)
    assert {"map", "neighbours"}.isdisjoint(_sections(page))
    assert "could not be read where this page was made" in _text(page)


def test_no_data_set_is_downloaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(url: str) -> None:
        raise AssertionError(url)

    monkeypatch.setattr("fedssl.data.download._open_url", fail)
    messages: list[str] = []
    folder = fake_run(tmp_path / "run", "data.name=cifar10", "clients=2")
    report(folder, data_dir=tmp_path, notify=messages.append)
    assert "is missing, and nothing is downloaded here" in messages[0]


def test_an_unfinished_run_has_curves_and_no_verdict(go: Go, labelled: Dataset) -> None:
    run = go()
    for name in ("results.json", "classes.json", "outcomes.safetensors"):
        (run.dir / name).unlink()
    page = _page(run.dir, dataset=labelled)
    assert "There is no verdict yet. State of the run: not measured." in _text(page)
    assert "accuracy" not in _sections(page)
    assert "client-loss" in _data(page)["charts"]


def test_a_run_without_a_round_has_a_page(tmp_path: Path) -> None:
    folder = fake_run(tmp_path / "run")
    for path in folder.iterdir():
        if path.name != "experiment.toml":
            path.unlink()
    assert "No round is finished yet" in _text(_page(folder))


def test_damaged_results_are_a_warning(go: Go, labelled: Dataset) -> None:
    run = go()
    results = run.dir / "results.json"
    results.write_text(results.read_text()[:100])
    text = _text(_page(run.dir, dataset=labelled))
    assert "results.json is damaged" in text
    assert "There is no verdict: the results are damaged" in text


def test_results_of_an_earlier_version_have_no_verdict(tmp_path: Path) -> None:
    text = _text(_page(fake_run(tmp_path / "run")))
    assert "an earlier version measured the run" in text
    assert "15.0 … 85.0" in text  # Wilson's interval of 2 of 4


@pytest.mark.parametrize("topology", ["isolated", "cycle"])
def test_runs_with_several_models_name_the_one_on_the_map(
    go: Go, labelled: Dataset, topology: str
) -> None:
    run = go(**{"topology.name": topology})
    text = _text(_page(run.dir, dataset=labelled))
    assert "Single models" in text
    assert "There are several models; this is client 0." in text


def test_runs_without_labels_have_no_accuracy(go: Go, labelled: Dataset) -> None:
    data = Dataset(Images(labelled.train.pixels))
    page = _page(go(dataset=data).dir, dataset=data)
    assert "accuracy" not in _sections(page)
    assert "no labelled test images" in _text(page)
    assert "<title>images: 16</title>" in page


@pytest.mark.parametrize("with_own_labels", [True, False])
def test_accuracies_on_other_images_are_shown(
    go: Go, labelled: Dataset, tmp_path: Path, with_own_labels: bool
) -> None:
    """Two classes of four images each, half of which vote on the other half."""
    pixels, labels = bright_pixels(8, classes=2)
    channels_last = pixels.permute(0, 2, 3, 1).numpy()
    np.savez(tmp_path / "other.npz", x_train=channels_last, y_train=labels.numpy())
    data = labelled if with_own_labels else Dataset(Images(labelled.train.pixels))
    run = go(dataset=data, **{"probe.on": str(tmp_path / "other.npz")})
    page = _page(run.dir, dataset=data)
    other = run.results["on"]
    text = " ".join(_text(page).split())
    assert f"kNN on {tmp_path / 'other.npz'} backbone kNN" in text
    assert f"this run {other['table']['this run']['knn']['mean']:.1f}" in text
    assert other["measured_on"] in text
    chart = _data(page)["charts"]["accuracy-on"]
    assert chart["x"] == [1, 2]
    assert chart["series"][0]["values"] == [line["knn_on"] for line in run.rounds]
    assert ("accuracy" in _data(page)["charts"]) == with_own_labels


def test_a_private_run_shows_epsilon_and_hides_the_partition(go: Go, labelled: Dataset) -> None:
    pytest.importorskip("dp_accounting")
    private = {"privacy.clip": 1.0, "privacy.noise": 10.0, "privacy.delta": 0.1}
    run = go(**private, **{"method.norm": "group"})
    page = _page(run.dir, dataset=labelled)
    epsilon = run.results["privacy"]["epsilon"]
    assert "privacy" in _sections(page)
    assert f"ε = {epsilon:.4g} at δ = 0.1" in _text(page)
    assert "How many images each client has is private" in _text(page)
    facts = look_at_images(run.dir, None, "cpu", ignore_message, labelled)
    assert facts.partition is None
    assert "images by class" not in page
    assert "in both directions" not in page
    assert _data(page)["charts"]["communication"]["series"][0]["label"] == "to clients"


def test_a_run_on_flower_has_no_partition(tmp_path: Path) -> None:
    folder = fake_run(tmp_path / "run")
    (folder / "flower.json").write_text("{}")
    text = _text(_page(folder))
    assert "Images stayed on the nodes of their owners" in text
    assert "flwr run ." in text


def test_names_of_clients_are_escaped(go: Go) -> None:
    name = "</script><script>alert(1)</script>"
    owned = {f"{name}{number}": random_pixels(16, number) for number in range(3)}
    page = _page(go(dataset=owned).dir)
    assert "<script>alert" not in page
    assert _data(page)["charts"]["client-loss"]["series"][0]["label"] == f"{name}0"


def test_the_page_of_a_thousand_clients_is_small(tmp_path: Path) -> None:
    folder = fake_run(tmp_path / "run", "clients=1000", "rounds=20")
    (folder / "rounds.jsonl.copy").unlink()
    stream = random.Random(0)
    lines = []
    for number in range(20):
        clients = []
        for client in range(1000):
            metrics = {"loss": stream.random(), "divergence": stream.random(), "images": 4}
            clients.append({"client": f"hospital {client}", "dropped": "late", **metrics})
        line = {"round": number + 1, "seconds": 1.0, "loss": 0.5, "clients": clients}
        lines.append(json.dumps(line))
    (folder / "rounds.jsonl").write_text("\n".join(lines) + "\n")
    page = _page(folder)
    assert len(page) < 300_000
    assert len(_data(page)["charts"]["client-loss"]["series"]) == 5
    assert "The last 100 of 20,000" in _text(page)


def test_a_folder_without_runs_is_refused(tmp_path: Path) -> None:
    with raises(ConfigError):
        report(tmp_path, notify=ignore_message)


def test_the_same_run_gives_the_same_page(go: Go) -> None:
    data = bright_dataset()
    folder = go(dataset=data).dir
    copy = folder.with_name("copies") / folder.name
    shutil.copytree(folder, copy)
    assert _page(folder, dataset=data) == _page(copy, dataset=data)
