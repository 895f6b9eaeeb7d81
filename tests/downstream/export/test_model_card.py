"""The model card states what a run measured, and nothing that is private."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from factories import make_experiment
from PIL import Image

import fedssl
from fedssl.algorithm import ALGORITHMS
from fedssl.downstream.backbone import load_backbone
from fedssl.downstream.export import export
from fedssl.downstream.export.model_card import RunFacts, model_card
from fedssl.downstream.export.papers import citations
from fedssl.downstream.export.public_settings import public_settings
from fedssl.method import METHODS

VERDICT = {
    "sentence": "better than clients that train alone",
    "test_images": 1000,
    "accuracies": {
        "this run": {"linear": {"estimate": 71.1, "low": 68.214, "high": 73.8246}},
        "isolated": {"linear": {"estimate": 60.0, "low": 57.0, "high": 63.0}},
    },
    "gains": {"isolated": {}},
}


@pytest.fixture
def backbone(write_backbone):
    return load_backbone(write_backbone(name="cnn", image=(1, 12, 12), method="byol", rounds="7"))


def _card(backbone, experiment=None, clients=("north", "0"), **results) -> str:
    facts = RunFacts(experiment or make_experiment(), results, frozenset(clients))
    return model_card(backbone, facts)


def test_accuracies_have_their_intervals(backbone) -> None:
    card = _card(backbone, verdict=VERDICT, labelled={"linear": 100})
    assert "| backbone | linear probe, 100 labels |" in card
    assert "| this backbone | 71.1 (68.2 … 73.8) |" in card
    assert "| clients that train alone | 60.0 (57.0 … 63.0) |" in card
    assert "Verdict: better than clients that train alone." in card
    assert "| rounds | 7 |" in card
    assert "| clients | 2 |" in card


def test_a_run_without_labels_has_no_accuracy(backbone) -> None:
    assert "No accuracy was measured" in _card(backbone, notes=[])
    assert "The run is not finished" in _card(backbone)


def test_remarks_that_name_a_client_or_a_path_are_left_out(backbone) -> None:
    """Names of one character are looked for as words: "0" is part of every date."""
    notes = ["north was slow", "see /home/a/b", "client 0 was dropped", "in 2020 all was well"]
    card = _card(backbone, notes=notes)
    assert "In 2020 all was well." in card
    for text in ("north", "/home", "dropped"):
        assert text not in card


def test_privacy_is_stated(backbone) -> None:
    summary = {"epsilon": 3.5, "delta": 1e-5, "budget_spent": False}
    privacy = {"kind": "client", "noise": 1.0, "clip": 1.0, "delta": 1e-5}
    experiment = make_experiment(clients=4, topology={"participation": 0.5}, privacy=privacy)
    card = _card(backbone, experiment, privacy=summary)
    assert "ε = 3.5 at δ = 1e-05" in card
    assert "without differential privacy" not in card
    assert "seed" not in public_settings(experiment)
    assert "It was trained without differential privacy" in _card(backbone)


def test_paths_and_names_are_no_public_settings(tmp_path: Path) -> None:
    """Text is public only if it is one of the words of a setting, or the name of a class."""
    data = {"name": "folder", "path": str(tmp_path), "layout": "clients", "size": 8}
    edges = [["north", "south"], ["south", "west"]]
    experiment = make_experiment(
        clients=3, data=data, topology={"name": "edges", "edges": edges},
        method={"init": "secret.safetensors"}, partition="natural",
    )  # fmt: skip
    public = public_settings(experiment)
    assert public["data"] == "the user's own images"
    assert public["topology"] == {"name": "edges", "participation": 1.0}
    assert public["method"]["backbone"] == "cnn"
    assert public["train"]["schedule"] == experiment.train.schedule
    for text in ("north", "secret", str(tmp_path)):
        assert text not in repr(public)


def test_every_method_and_algorithm_of_the_package_has_a_paper() -> None:
    for registry in (METHODS, ALGORITHMS):
        for name in registry.names():
            module = registry[name].__module__
            if module.startswith("fedssl."):
                assert citations(sys.modules[module].__doc__ or ""), name


def test_citations_by_hand() -> None:
    docstring = (
        'Words first.\n\nAs in Chen and He, "A title\nin two lines" (Short), CVPR 2021, with more.\n'
        'Departures: not "quoted", 1999, and Li et al., "Other", 2020.'
    )
    assert citations(docstring) == ['Chen and He, "A title in two lines" (Short), CVPR 2021']


def test_a_hub_folder_of_a_run_names_no_client_and_no_path(tmp_path: Path) -> None:
    """Clients, and folders with an unusual name, of a run whose model is a client's own."""
    for client in ("zanzibar", "timbuktu"):
        (tmp_path / "private-photos" / client).mkdir(parents=True)
        for number in range(4):
            image = Image.effect_noise((12, 12), 50 + number)
            image.save(tmp_path / "private-photos" / client / f"{number}.png")
    data = {"name": "folder", "path": str(tmp_path / "private-photos"), "layout": "clients"}
    experiment = make_experiment(
        rounds=1, clients=0, partition="natural", topology="isolated",
        data=data | {"size": 12, "channels": 1, "cache": "off"}, train__batch=4,
    )  # fmt: skip
    run = fedssl.run(experiment, tmp_path / "run", "cpu", quiet=True)
    export(run.dir, "hub", tmp_path / "hub", model="zanzibar")
    for file in (tmp_path / "hub").iterdir():
        content = file.read_bytes()
        for secret in (b"zanzibar", b"timbuktu", b"private-photos", str(tmp_path).encode()):
            assert secret not in content, file.name
    assert "| clients | 2 |" in (tmp_path / "hub/README.md").read_text()
