"""Collaborative fine-tuning: the labels, the first weights, and the measured model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from error_messages import raises
from factories import make_experiment
from safetensors.torch import load_file

import fedssl
from fedssl import nets, views
from fedssl.core.errors import ConfigError
from fedssl.data import Dataset, Images
from fedssl.evaluation.probe_settings import with_probe_settings
from fedssl.experiment import federation_setup
from fedssl.experiment.client_data import partition_data
from fedssl.experiment.experiment import Experiment
from fedssl.methods import Supervised
from fedssl.runs.collaborative_probe import CLEAN, labelled_part, supervised
from fedssl.runs.session import Interrupted

CPU = torch.device("cpu")


def experiment(**changes: Any) -> Experiment:
    usual = {
        "clients": 2,
        "rounds": 1,
        "data": {"mean": [0.5] * 3, "std": [0.2] * 3},
        "partition": {"name": "classes", "per_client": 2},
        "probe": {"epochs": 99, "labels": 7},
    }
    return make_experiment(usual, **changes)


def images(n: int, seed: int) -> Images:
    """Return images of four classes: bright or dark in one of two channels."""
    labels = torch.arange(n) % 4
    pixels = torch.randint(100, (n, 3, 8, 8), generator=torch.Generator().manual_seed(seed))
    pixels[torch.arange(n), labels // 2] += 70 + 80 * (labels[:, None, None] % 2)
    return Images(pixels.to(torch.uint8), labels)


DATA = Dataset(images(160, 0), images(40, 1))


def test_a_share_of_each_clients_own() -> None:
    """A tenth of 60 images of two classes: 3 of each, none left out, none of another client."""
    chosen = with_probe_settings(experiment(data__leave_out=0.25), "collaborative", {"labels": 0.1})
    seen, owners = partition_data(chosen, DATA, print)
    part = labelled_part(chosen, seen, owners)
    assert part.owners is not None
    assert part.owners.keys() == owners.keys()
    for client, index in part.owners.items():
        assert set(index.tolist()) < set(owners[client].tolist())
        assert sorted(DATA.train.labels[index].bincount().tolist())[-2:] == [3, 3]
        assert len(index) == 6
    again = labelled_part(chosen.with_changes({"seed": 0}), seen, owners).owners
    other = labelled_part(chosen.with_changes({"seed": 1}), seen, owners).owners
    assert again is not None
    assert other is not None
    assert torch.equal(again["0"], part.owners["0"])
    assert not torch.equal(other["0"], part.owners["0"])
    with raises(ConfigError):
        labelled_part(
            with_probe_settings(experiment(), "collaborative", {"labels": 20}), seen, owners
        )


def test_the_experiment_of_fine_tuning(tmp_path: Path) -> None:
    """It starts from the backbone in the file; each epoch is a round.

    The protocol of an experiment is for its other probes.
    """
    torch.manual_seed(3)
    weights = nets.CNN().state_dict()
    nets.save_backbone(weights, tmp_path / "b.safetensors", {})
    chosen = supervised(
        with_probe_settings(experiment(), "collaborative", {}), tmp_path / "b.safetensors", 4
    )
    chosen.check()
    assert chosen.rounds == 100
    train = chosen.train
    assert (train.optimizer, train.lr, train.batch, train.epochs, train.schedule) == (
        "adam",
        1e-3,
        128,
        1,
        "constant",
    )
    assert chosen.data.mean == (0.5, 0.5, 0.5)
    begun = (
        federation_setup.build_method(chosen, (3, 8, 8), CPU)
        .state.pick(("backbone",))
        .without_prefix("backbone")
    )
    assert all(
        torch.equal(tensor, load_file(tmp_path / "b.safetensors")[k])
        for k, tensor in begun.tensors().items()
    )
    ours = supervised(
        with_probe_settings(
            experiment(probe__protocol="ccl"), "collaborative", {"labels": 0.1, "epochs": 3}
        ),
        tmp_path / "b.safetensors",
        4,
    )
    assert (ours.rounds, ours.train.optimizer, ours.train.lr, ours.train.batch) == (
        3,
        "adam",
        1e-3,
        128,
    )


def test_clean_views_are_the_images() -> None:
    """For any random numbers, a view is the whole image at its own ratio, without a flip."""
    group = views.ViewGroup(1, 8, CLEAN)
    uniforms = views.draw(40, torch.Generator().manual_seed(1), "cpu")
    assert DATA.test is not None
    pixels = DATA.test.pixels
    torch.testing.assert_close(
        views.make_views(group, pixels, uniforms)[0], pixels / 255, rtol=0, atol=1e-6
    )


def test_the_protocols(tmp_path: Path) -> None:
    """ccl: 100 rounds of an epoch, a linear head. fedca: 20 rounds of 5 epochs, clean images."""
    file = tmp_path / "b.safetensors"
    nets.save_backbone(nets.CNN().state_dict(), file, {})

    def plain(**settings: Any) -> tuple[Any, ...]:
        chosen = with_probe_settings(
            experiment(probe__protocol="easyfl"), "collaborative", settings
        )
        tuned = supervised(chosen, file, 4)
        assert isinstance(tuned.method, Supervised.Settings)
        train = tuned.train
        clean = tuned.method.augment == CLEAN
        return tuned.rounds, train.epochs, train.lr, train.batch, tuned.method.head, clean

    assert plain() == (100, 1, 1e-3, 128, "linear", False)
    assert plain(protocol="ccl") == plain()
    assert plain(protocol="fedca") == (20, 5, 1e-3, 128, "mlp", True)
    assert plain(protocol="fedca", epochs=15, lr=0.1, batch=9) == (3, 5, 0.1, 9, "mlp", True)
    assert plain(head="mlp") == (100, 1, 1e-3, 128, "mlp", False)
    assert plain(protocol="fedca", head="linear") == (20, 5, 1e-3, 128, "linear", True)
    with raises(ConfigError):
        plain(protocol="fedca", epochs=12)
    with raises(ConfigError):
        plain(protocol="fedema")


def test_clients_learn_together(tmp_path: Path) -> None:
    """They learn an easy task with all labels; a tenth of them and one round give less."""
    run = fedssl.run(
        experiment(partition__name="iid"), tmp_path / "run", "cpu", dataset=DATA, quiet=True
    )
    before = sorted(path.name for path in run.dir.rglob("*"))
    score = run.evaluate("collaborative", labels=1, epochs=25, batch=16)
    assert sorted(path.name for path in run.dir.rglob("*")) == before
    assert list(score) == ["global"]
    assert [sum(row) for row in score.confusion["global"]] == [10] * 4
    assert score.mean > 90
    assert run.evaluate("collaborative", labels=0.1, epochs=1).mean < score.mean


def test_a_stop_does_not_mention_resuming(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fine-tuning is a run in a temporary folder, which is removed after a stop."""
    run = fedssl.run(experiment(), tmp_path / "run", "cpu", dataset=DATA, quiet=True)

    def stopped(*_: Any, **__: Any) -> None:
        raise Interrupted("stopped after round 1 of 2; the same command resumes the run")

    monkeypatch.setattr("fedssl.runs.collaborative_probe.train_locally", stopped)
    with raises(Interrupted):
        run.evaluate("collaborative", labels=0.5)


def test_a_note_if_a_client_with_one_labelled_image_does_not_train(tmp_path: Path) -> None:
    """A tenth of 150 and 10 images is 15 and 1; of 5 and 5 images one each, too few to train."""
    some = {"a": torch.arange(150), "b": torch.arange(150, 160)}
    few = {"a": torch.arange(5), "b": torch.arange(5, 10)}
    for owners, note in ((some, "1 of 2 clients have a single labelled image"), (few, None)):
        data = Dataset(DATA.train, DATA.test, owners)
        folder = tmp_path / str(len(owners["b"]))
        chosen = experiment(partition__name="natural", clients=0)
        run = fedssl.run(chosen, folder, "cpu", dataset=data, quiet=True)
        if note:
            assert note in (run.evaluate("collaborative", labels=0.1, epochs=1).note or "")
            continue
        with raises(ConfigError):
            run.evaluate("collaborative", labels=0.1, epochs=1)


def test_refusals(tmp_path: Path) -> None:
    alone = fedssl.run(
        experiment(topology__name="isolated"), tmp_path / "a", "cpu", dataset=DATA, quiet=True
    )
    with raises(ConfigError):
        alone.evaluate("collaborative")
    unlabelled = Dataset(Images(DATA.train.pixels), DATA.test)
    chosen = experiment(partition__name="iid")
    run = fedssl.run(chosen, tmp_path / "b", "cpu", dataset=unlabelled, quiet=True)
    with raises(ConfigError):
        run.evaluate("collaborative")
