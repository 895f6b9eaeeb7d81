"""Audits of tiny runs: what they write, what they refuse, and that over-training is caught."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from error_messages import raises
from factories import bright_dataset, make_experiment
from matplotlib.image import imread
from tiny_runs import Go
from torch import Tensor
from typer.testing import CliRunner

import fedssl
from fedssl.analysis.audit import audit
from fedssl.analysis.audit.audit import ATTACKS, WARNING
from fedssl.cli.main import app
from fedssl.core.console import ignore_message
from fedssl.core.errors import ConfigError
from fedssl.data import Dataset, from_python

pytestmark = pytest.mark.rows("C9")

QUICK: dict[str, Any] = {"images": 2, "iterations": 2, "members": 20, "notify": ignore_message}
FEDCA = {"method.name": "simclr", "algorithm.name": "fedca", "algorithm.beta": 0.0}


def _files(folder: Path) -> dict[Path, bytes]:
    """Return the contents of a run directory, without those of the audit."""
    contents = {}
    for path in folder.rglob("*"):
        if path.is_file() and path.parent.name != "audit":
            contents[path] = path.read_bytes()
    return contents


@pytest.fixture
def open_umask() -> Iterator[None]:
    """Let everyone read new files, as far as the program does not prevent it."""
    before = os.umask(0)
    yield
    os.umask(before)


def _attacks(results: Any) -> dict[str, Any]:
    return {f"{attack['attack']}/{attack['case']}": attack for attack in results["attacks"]}


@pytest.mark.usefixtures("open_umask")
def test_an_audit_writes_private_files_and_changes_nothing_else(go: Go, labelled: Dataset) -> None:
    run = go(**FEDCA)
    before = _files(run.dir)
    results = run.results
    output = audit(run, **QUICK)
    assert _files(run.dir) == before
    assert fedssl.Run(run.dir, dataset=labelled).results == results
    assert output.json == run.dir / "audit" / "audit.json"
    assert sorted(path.name for path in output.json.parent.iterdir()) == ["audit.json", "audit.png"]
    assert output.json.parent.stat().st_mode & 0o777 == 0o700
    assert output.json.stat().st_mode & 0o777 == 0o600
    assert output.png.stat().st_mode & 0o777 == 0o600
    assert json.loads(output.json.read_text("utf-8")) == json.loads(json.dumps(output.results))
    assert imread(output.png).ndim == 3
    assert WARNING in output.summary.notes


def test_every_attack_is_reported_next_to_guessing(go: Go) -> None:
    """Clients have 16 images: batches of 2, 4 and 16; FedCA shares rows of all of them."""
    attacks = _attacks(audit(go(**FEDCA), **QUICK).results)
    assert list(attacks) == [
        "update inversion/one step on 2 images",
        "update inversion/one step on 4 images",
        "update inversion/one step on 16 images",
        "update inversion/a whole round",
        "inputs of the first layer/",
        "membership by view similarity/model global",
        "shared features/which image a row was made of",
        "shared features/how an image looks",
    ]
    for size in (2, 4, 16):
        assert attacks[f"update inversion/one step on {size} images"]["images"] == size
    linked = attacks["shared features/which image a row was made of"]
    assert linked["top_1_of_guessing"] == 1 / 16
    member = attacks["membership by view similarity/model global"]
    assert member["members"] == 20
    assert member["auc_interval"][0] <= member["auc"] <= member["auc_interval"][1]
    # A convolution without bias, and too few images for a decoder.
    assert "not measured" in attacks["inputs of the first layer/"]["meaning"]
    assert "not measured" in attacks["shared features/how an image looks"]["meaning"]


def test_an_audit_is_reproducible(go: Go) -> None:
    run = go()
    settings = {**QUICK, "batches": [2], "whole_round": False}
    first = audit(run, seed=3, **settings).results
    assert audit(run, seed=3, **settings).results == first
    assert audit(run, seed=4, **settings).results["attacks"] != first["attacks"]


def test_algorithms_without_shared_features_have_a_line_for_it(go: Go) -> None:
    (attack,) = audit(go(), attacks=["features"], **QUICK).results["attacks"]
    assert attack["reason"] == "this algorithm shares no features with these settings"


@pytest.mark.parametrize(
    "changes",
    [
        {"algorithm.name": "fedbn"},
        {"algorithm.name": "fedema"},
        {
            "algorithm.name": "ccl",
            "method.name": "mocov2",
            "method.queue": 16,
            "algorithm.neighbours": 3,
        },
        {"algorithm.name": "featarc"},
        {"algorithm.name": "perssfl"},
        {"topology.name": "cycle"},
        {"topology.name": "isolated"},
        {"method.name": "mae", "method.backbone": "vit_mini"},
        {"method.name": "deepcluster"},
        {"method.name": "supervised", "method.classes": 3},
    ],
    ids=lambda changes: "-".join(map(str, changes.values())),
)
@pytest.mark.slow
def test_any_run_can_be_audited(go: Go, changes: dict[str, Any]) -> None:
    """Images of 12 pixels a side are nine patches of a vision transformer."""
    run = go(dataset=bright_dataset(size=12), **changes)
    results = audit(run, **QUICK).results
    assert {attack["attack"] for attack in results["attacks"]} == {
        "update inversion",
        "inputs of the first layer",
        "membership by view similarity",
        "shared features",
    }


def test_the_directory_of_a_flower_server_is_refused(go: Go) -> None:
    run = go()
    (run.dir / "flower.json").write_text("{}")
    with raises(ConfigError):
        audit(run, **QUICK)
    assert not (run.dir / "audit").exists()


def test_unknown_names_are_refused(go: Go) -> None:
    run = go()
    with raises(ConfigError):
        audit(run, attacks=["membershp"], **QUICK)
    with raises(ConfigError):
        audit(run, attacks=[], **QUICK)
    with raises(ConfigError):
        audit(run, client="nosuch", **QUICK)
    with raises(ConfigError):
        audit(run, iterationz=3, **QUICK)


def test_other_images_are_refused(go: Go, images: Any) -> None:
    """The run was not trained on these images, so none of them would be a member."""
    folder = go().dir
    other = from_python(images(48, 7), images(24, 1))
    with raises(ConfigError):
        audit(fedssl.Run(folder, device="cpu", dataset=other), **QUICK)


def test_the_command_prints_a_table_and_its_warning(tmp_path: Path) -> None:
    run = fedssl.run(
        "demo", tmp_path / "run", "cpu", quiet=True, rounds=1,
        set={"data.holdout": 4000, "probe.linear": False, "probe.baselines": [], "probe.picture": False},
    )  # fmt: skip
    line = ["audit", str(run.dir), "--attacks", "membership", "--set", "members=50", "--quiet"]
    printed = CliRunner().invoke(app, line)
    assert printed.exit_code == 0
    assert "membership by view similarity" in printed.output
    assert WARNING in printed.output
    as_json = CliRunner().invoke(app, [*line, "--json"])
    results = json.loads(as_json.output)
    assert [attack["members"] for attack in results["attacks"]] == [50]


def _textures(count: int, seed: int) -> Tensor:
    """Return smooth random grey images (n, 1, 16, 16), all from one distribution."""
    stream = torch.Generator().manual_seed(seed)
    coarse = torch.rand(count, 1, 5, 5, generator=stream)
    smooth = torch.nn.functional.interpolate(coarse, 16, mode="bicubic").clamp(0, 1)
    return (255 * smooth).to(torch.uint8)


@pytest.mark.slow
def test_an_over_trained_backbone_is_caught(tmp_path: Path) -> None:
    """300 epochs on few images make members recognisable; an untrained backbone reveals none."""
    labels = torch.zeros(60, dtype=torch.int64)
    data = from_python((_textures(60, 0), labels), (_textures(60, 1), labels))
    experiment = make_experiment(
        rounds=10,
        clients=2,
        method={
            "name": "simclr",
            "hidden": 64,
            "dim": 32,
            "temperature": 0.2,
            "augment": {"crop": [0.6, 1.0], "jitter_p": 0.0, "gray": 0.0, "flip": 0.0},
        },
        train={"epochs": 30, "batch": 30, "optimizer": "adam", "lr": 0.003, "schedule": "constant"},
    )
    run = fedssl.run(experiment, tmp_path / "run", "cpu", dataset=data, quiet=True)
    (attack,) = audit(run, attacks=["membership"], notify=ignore_message).results["attacks"]
    assert attack["members"] == 60
    assert attack["auc"] > 0.65
    assert attack["auc_interval"][0] > 0.5
    low, high = attack["untrained"]["auc_interval"]
    assert low < 0.5 < high


def test_the_attacks_of_the_command_are_those_of_python() -> None:
    assert list(ATTACKS) == ["inversion", "membership", "features"]
