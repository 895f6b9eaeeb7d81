"""fedssl.run and the run directory it leaves."""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w
import torch
from error_messages import raises
from factories import SMALL_EXPERIMENT, bright_dataset, bright_pixels, make_experiment
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor

import fedssl
from fedssl import nets
from fedssl.core.errors import ConfigError, DataError
from fedssl.core.provenance import code
from fedssl.data import Dataset, Images, from_python
from fedssl.downstream.exported_files import find_backbone
from fedssl.engine.checkpoints.store import Store
from fedssl.evaluation.evaluate import Evaluation
from fedssl.experiment import federation_setup
from fedssl.experiment.client_data import partition_data
from fedssl.experiment.experiment import Experiment
from fedssl.runs.baselines import untrained_models
from fedssl.runs.finalize import finish


@pytest.fixture
def small() -> Experiment:
    return make_experiment(method={"hidden": 32, "dim": 16}, probe={"every": 1, "linear": True})


@pytest.fixture
def labelled() -> Dataset:
    return bright_dataset()


def _tensors(run: fedssl.Run) -> dict[str, str]:
    return {
        f"{file.name}/{name}": hashlib.sha256(tensor.numpy().tobytes()).hexdigest()
        for file in sorted(run.dir.glob("backbone*.safetensors"))
        for name, tensor in load_file(file).items()
    }


def test_the_files_of_a_run(small: Experiment, labelled: Dataset, tmp_path: Path) -> None:
    run = fedssl.run(small, tmp_path / "run", dataset=labelled, quiet=True)
    assert repr(run) == f"Run({str(tmp_path / 'run')!r}, 2/2 rounds)"
    names = {path.name for path in run.dir.iterdir()}
    assert {
        "experiment.toml",
        "rounds.jsonl",
        "results.json",
        "backbone.safetensors",
        "checkpoints",
    } <= names
    assert run.results["rounds"] == 2
    assert run.results["experiment"] == run.experiment.hash()
    assert run.results["environment"].keys() == {"fedssl", "code", "torch", "python", "device"}
    assert run.results["table"].keys() == {"this run"}
    assert 0 <= run.results["table"]["this run"]["linear"]["mean"] <= 100
    assert not list(run.dir.rglob("*.tmp"))


def test_the_rounds_log_has_all_documented_fields(
    small: Experiment, labelled: Dataset, tmp_path: Path
) -> None:
    run = fedssl.run(small, tmp_path / "run", dataset=labelled, quiet=True, set={"probe.every": 2})
    assert [line["round"] for line in run.rounds] == [1, 2]
    assert [line["knn"] is None for line in run.rounds] == [True, False]
    model = load_file(run.dir / "backbone.safetensors")
    for line in run.rounds:
        measured = {"knn_settings", "knn_images"} if line["knn"] is not None else set()
        assert line.keys() == measured | {
            "round",
            "of",
            "lr",
            "failed",
            "loss",
            "knn",
            "knn_common",
            "seconds",
            "images_per_s",
            "code",
            "clients",
        }
        assert line["failed"] is False
        assert line["images_per_s"] == pytest.approx(48 / line["seconds"])
        shares = [c["images"] * c["loss"] for c in line["clients"]]
        assert line["loss"] == pytest.approx(sum(shares) / 48)
        for client in line["clients"]:
            assert client["dropped"] is None
            assert (client["steps"], client["images"]) == (2, 16)
            assert (
                client["bytes_up"] == client["bytes_down"] > sum(t.nbytes for t in model.values())
            )
            assert client["divergence"] > 0
            assert 0 < client["embedding_std"] < 2
            assert 1 <= client["effective_rank"] <= 16  # two views of eight images
            assert client["images_per_s"] > 0
    assert run.rounds[-1]["knn"] == run.results["table"]["this run"]["knn"]["mean"]
    assert run.rounds[-1]["knn_settings"] == {"k": 5, "temperature": 0.1}
    for text in (run.dir / "rounds.jsonl").read_text().splitlines():
        json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))


def test_experiment_toml_is_complete_and_loads(
    small: Experiment, labelled: Dataset, tmp_path: Path
) -> None:
    run = fedssl.run(small, tmp_path / "run", dataset=labelled, quiet=True)
    again = Experiment.from_toml((run.dir / "experiment.toml").read_text())
    assert again == run.experiment
    assert again == small.with_changes({"train.precision": "fp32"})  # the resolved value of `auto`
    text = (run.dir / "experiment.toml").read_text()
    for key in (
        "momentum",
        "weight_decay",
        "jitter",
        "temperature",
        "participation",
        "update",
        "seed",
    ):
        assert f"{key} = " in text
    other = fedssl.run(
        run.dir / "experiment.toml", tmp_path / "again", dataset=labelled, quiet=True
    )
    assert _tensors(other) == _tensors(run)


def test_backbone_and_evaluate(small: Experiment, labelled: Dataset, tmp_path: Path) -> None:
    run = fedssl.run(small, tmp_path / "run", dataset=labelled, quiet=True)
    backbone = run.backbone()
    assert not backbone.training
    features = backbone(labelled.train.pixels[:4].float() / 255)
    assert features.shape == (4, 512)
    saved = load_file(run.dir / "backbone.safetensors")
    assert saved.keys() == backbone.state_dict().keys()
    assert all(torch.equal(saved[name], tensor) for name, tensor in backbone.state_dict().items())
    assert run.evaluate("knn").mean == run.results["table"]["this run"]["knn"]["mean"]
    assert run.evaluate("linear").mean == run.results["table"]["this run"]["linear"]["mean"]
    assert run.evaluate("linear", labels=3, epochs=1) != {}
    with raises(ConfigError):
        run.evaluate("lineer")
    with raises(ConfigError):
        run.evaluate("linear", label=3)


def test_the_header_describes_the_use_of_the_backbone(small: Experiment, tmp_path: Path) -> None:
    changes = {"data.mean": (0.5,), "data.std": (0.25,)}
    run = fedssl.run(
        small, tmp_path / "run", dataset=bright_pixels(24, channels=1)[0], quiet=True, set=changes
    )
    with safe_open(run.dir / "backbone.safetensors", "pt") as file:
        header = file.metadata()
    assert (header["method"], header["backbone"], header["model"]) == ("byol", "cnn", "global")
    assert json.loads(header["image"]) == [1, 10, 10]
    assert (json.loads(header["mean"]), json.loads(header["std"])) == ([0.5], [0.25])
    assert header["experiment"] == run.experiment.hash()


@pytest.mark.parametrize("channels", [1, 3, 5])
def test_channels(channels: int, small: Experiment, tmp_path: Path) -> None:
    train, test = (Images(*bright_pixels(n, channels=channels)) for n in (30, 12))
    run = fedssl.run(small, tmp_path / "run", dataset=Dataset(train, test), quiet=True)
    assert run.backbone()(torch.zeros(2, channels, 10, 10)).shape == (2, 512)
    assert math.isfinite(run.evaluate("knn").mean)


class MeanColour(nets.Backbone):
    """Features of the mean colour of an image: a backbone without any convolution."""

    dim = 8

    def __init__(self, channels: int = 3, stem: str = "cifar") -> None:
        super().__init__()
        self.linear = torch.nn.Linear(channels, self.dim)

    def forward(self, images: Tensor) -> Tensor:
        features: Tensor = self.linear(images.mean((2, 3)))
        return features


@pytest.mark.parametrize("exported", [True, False])
def test_channels_of_a_backbone_without_convolutions(
    exported: bool, small: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are in the header of the exported file; without that file, they are the images'."""
    monkeypatch.setattr(nets.BACKBONES, "_classes", {"mean-colour": MeanColour})
    experiment = small.with_changes({"method.backbone": "mean-colour"})
    data = Dataset(Images(*bright_pixels(30, channels=5)), Images(*bright_pixels(12, channels=5)))
    run = fedssl.run(experiment, tmp_path / "run", dataset=data, quiet=True)
    if not exported:
        (run.dir / "backbone.safetensors").unlink()
    backbone = run.backbone()
    assert backbone(torch.zeros(2, 5, 10, 10)).shape == (2, 8)
    saved = next(iter(run.models().values())).pick(("backbone",)).tensors()
    assert torch.equal(backbone.linear.weight, saved["backbone.linear.weight"])
    with pytest.raises(TypeError, match=r"MeanColour .* override its property `channels`"):
        assert backbone.channels


class Plain(torch.utils.data.Dataset[tuple[Tensor, int]]):
    def __init__(self, pixels: Tensor, labels: Tensor) -> None:
        self.pixels = pixels
        self.labels = labels

    def __len__(self) -> int:
        return len(self.pixels)

    def __getitem__(self, k: int) -> tuple[Tensor, int]:
        return self.pixels[k], int(self.labels[k])


@pytest.mark.parametrize(
    "wrap",
    [
        lambda x, y: x,
        lambda x, y: (x, y),
        lambda x, y: x.float() / 255,
        lambda x, y: x.permute(0, 2, 3, 1).numpy(),
        lambda x, y: (x.permute(0, 2, 3, 1).numpy(), y.numpy()),
        lambda x, y: (x, y.tolist()),
        Plain,
        lambda x, y: list(x),
    ],
    ids=[
        "tensor",
        "tensors",
        "floats",
        "array",
        "arrays",
        "labels as a list",
        "torch data set",
        "list",
    ],
)
def test_images_from_python_in_many_forms(
    wrap: Callable[[Tensor, Tensor], Any], small: Experiment, tmp_path: Path
) -> None:
    """The same images give the same model, whatever they come in."""
    pixels, labels = bright_pixels(30)
    hashes = []
    for name, given in (("a", pixels), ("b", wrap(pixels, labels))):
        hashes.append(
            _tensors(fedssl.run(small, tmp_path / name, dataset=given, quiet=True, rounds=1))
        )
    assert hashes[0] == hashes[1]


def test_holdout_gives_test_images(small: Experiment, tmp_path: Path) -> None:
    run = fedssl.run(
        small, tmp_path / "run", dataset=bright_pixels(60), quiet=True, set={"data.holdout": 12}
    )
    assert run.rounds[-1]["knn"] is not None
    assert sum(c["images"] for c in run.rounds[0]["clients"]) == 48


def test_starts_from_an_earlier_backbone(
    small: Experiment, labelled: Dataset, tmp_path: Path
) -> None:
    first = fedssl.run(small, tmp_path / "first", dataset=labelled, quiet=True)
    path = first.dir / "backbone.safetensors"
    second = fedssl.run(
        small,
        tmp_path / "second",
        dataset=labelled,
        quiet=True,
        method={"init": path},
        train={"lr": 1e-12},
    )
    before = load_file(path)
    after = load_file(second.dir / "backbone.safetensors")
    name = "layers.0.0.weight"
    assert torch.allclose(before[name], after[name], atol=1e-6)
    assert _tensors(second) != _tensors(first)
    grey = fedssl.run(
        small,
        tmp_path / "grey",
        dataset=bright_pixels(24, channels=1)[0],
        quiet=True,
        method={"init": path},
    )
    assert load_file(grey.dir / "backbone.safetensors")[name].shape[1] == 1


def test_init_that_does_not_fit(small: Experiment, labelled: Dataset, tmp_path: Path) -> None:
    first = fedssl.run(small, tmp_path / "first", dataset=labelled, quiet=True)
    changes = {"method.init": first.dir / "backbone.safetensors", "method.backbone": "resnet18"}
    with raises(ConfigError):
        fedssl.run(small, tmp_path / "second", dataset=labelled, quiet=True, set=changes)


def test_a_finished_run_is_not_run_again(
    small: Experiment, labelled: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    set = {"probe.baselines": ["random", "isolated"]}
    first = fedssl.run(small, tmp_path / "run", dataset=labelled, quiet=True, set=set)
    before = (first.dir / "rounds.jsonl").read_text()
    results = first.results
    monkeypatch.setattr(
        "fedssl.training.trainer.Trainer.fit", lambda *args: pytest.fail("it trained")
    )
    again = fedssl.run(small, tmp_path / "run", dataset=labelled, quiet=True, set=set)
    assert (again.dir / "rounds.jsonl").read_text() == before
    assert again.results == results
    # Another measurement of the same run needs no training either.
    fewer = fedssl.run(
        small, tmp_path / "run", dataset=labelled, quiet=True, set=set | {"probe.labels": 3}
    )
    assert fewer.results["table"].keys() == results["table"].keys()
    assert fewer.results["experiment"] != results["experiment"]


def test_unlabelled_images_are_trained_on_but_not_measured(
    small: Experiment, tmp_path: Path
) -> None:
    run = fedssl.run(small, tmp_path / "run", dataset=bright_pixels(30)[0], quiet=True)
    assert run.results["table"] == {}
    assert [line["knn"] for line in run.rounds] == [None, None]
    with raises(ConfigError):
        run.evaluate("knn")


def test_labelled_test_images_from_python(small: Experiment, tmp_path: Path) -> None:
    """With labelled training images all test images are measured on; without, one half of them."""
    for name, train, measured in (
        ("labels", bright_pixels(30), 24),
        ("none", bright_pixels(30)[0], 12),
    ):
        run = fedssl.run(
            small, tmp_path / name, dataset=train, test=bright_pixels(24, seed=1), quiet=True
        )
        assert (run.results["notes"] == []) == (name == "labels")
        knn = run.results["table"]["this run"]["knn"]["mean"]
        assert knn * measured / 100 == pytest.approx(round(knn * measured / 100))
        assert run.evaluate("knn").mean == knn == run.rounds[-1]["knn"]
    assert len(run.data().test or ()) == 24


def test_test_images_without_training_images_are_refused(
    small: Experiment, labelled: Dataset, tmp_path: Path
) -> None:
    for dataset in (None, labelled):
        with raises(ConfigError):
            fedssl.run(small, tmp_path / "run", dataset=dataset, test=bright_pixels(6), quiet=True)
    assert not (tmp_path / "run").exists()


def test_a_dict_defines_the_clients(small: Experiment, tmp_path: Path) -> None:
    """The run equals one with the same images in one array and their owners."""
    images, labels = bright_pixels(24)
    test = bright_pixels(12, seed=1)
    by_client = {"north": (images[:10], labels[:10]), "south": (images[10:], labels[10:])}
    run = fedssl.run(small, tmp_path / "dict", dataset=by_client, test=test, quiet=True)
    owners = {"north": torch.arange(10), "south": torch.arange(10, 24)}
    data = from_python((images, labels), test, owners)
    changes = {"partition": "natural", "clients": 2}
    same = fedssl.run(small, tmp_path / "same", dataset=data, quiet=True, set=changes)
    assert [c["client"] for c in run.rounds[0]["clients"]] == ["north", "south"]
    assert (run.experiment, _tensors(run)) == (same.experiment, _tensors(same))
    again = fedssl.Run(run.dir, dataset=by_client)
    assert again.partition_data(again.data())[1].keys() == by_client.keys()


def test_a_file_without_clients_is_complete_with_a_dict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    values = {key: SMALL_EXPERIMENT[key] for key in ("method", "train", "probe")}
    Path("mine.toml").write_text(tomli_w.dumps({"rounds": 1, **values}))
    images = bright_pixels(24)[0]
    run = fedssl.run("mine.toml", dataset={"north": images[:10], "south": images[10:]}, quiet=True)
    assert run.dir == Path("runs/mine")
    assert run.experiment.to_dict()["partition"] == {"name": "natural"}
    assert run.experiment.clients == 2


def test_a_dict_can_be_dealt_to_other_clients(small: Experiment, tmp_path: Path) -> None:
    images = bright_pixels(24)[0]
    by_client = {"north": images[:10], "south": images[10:]}
    run = fedssl.run(
        small, tmp_path / "run", dataset=by_client, quiet=True, partition="iid", rounds=1
    )
    assert [c["client"] for c in run.rounds[0]["clients"]] == ["0", "1", "2"]


def test_natural_clients_need_no_number(tmp_path: Path) -> None:
    owners = {"north": torch.arange(10), "south": torch.arange(10, 24)}
    values = {**SMALL_EXPERIMENT, "partition": "natural", "rounds": 1}
    del values["clients"]
    data = from_python(bright_pixels(24)[0], owners=owners)
    run = fedssl.run(Experiment.from_dict(values), tmp_path / "run", dataset=data, quiet=True)
    assert [c["client"] for c in run.rounds[0]["clients"]] == ["north", "south"]
    assert run.experiment.clients == 0


def test_topologies(small: Experiment, labelled: Dataset, tmp_path: Path) -> None:
    runs = {
        name: fedssl.run(
            small, tmp_path / name, dataset=labelled, quiet=True, topology={"name": name}
        )
        for name in ("isolated", "centralized")
    }
    alone = runs["isolated"]
    pooled = runs["centralized"]
    assert sorted(alone.models()) == ["0", "1", "2"]
    assert sorted(path.name for path in alone.dir.glob("backbone*")) == [
        f"backbone-{k}.safetensors" for k in range(3)
    ]
    score = alone.results["table"]["this run"]["knn"]
    assert score["mean"] == pytest.approx(np.mean(list(score["models"].values())))
    with raises(ConfigError):
        alone.backbone()
    assert alone.backbone("1")(torch.zeros(2, 3, 10, 10)).shape == (2, 512)
    with raises(ConfigError):
        alone.backbone("7")
    assert [(c["client"], c["images"]) for c in pooled.rounds[0]["clients"]] == [("all", 48)]


def test_peers_without_a_server(small: Experiment, labelled: Dataset, tmp_path: Path) -> None:
    """Each peer's model and their mean are measured and exported; a resumed run has equal bits."""
    changes = {"topology.name": "cycle", "clients": 4, "train.schedule": "constant"}
    whole = fedssl.run(small, tmp_path / "whole", dataset=labelled, quiet=True, set=changes)
    fedssl.run(small, tmp_path / "parts", dataset=labelled, quiet=True, set=changes | {"rounds": 1})
    parts = fedssl.run(small, tmp_path / "parts", dataset=labelled, quiet=True, set=changes)
    assert _tensors(parts) == _tensors(whole)
    assert list(whole.models()) == ["0", "1", "2", "3", "mean"]
    assert sorted(path.name for path in whole.dir.glob("backbone*")) == [
        f"backbone-{name}.safetensors" for name in ("0", "1", "2", "3", "mean")
    ]
    peers = [
        load_file(whole.dir / f"backbone-{k}.safetensors")["layers.0.0.weight"] for k in range(4)
    ]
    mean = load_file(whole.dir / "backbone-mean.safetensors")["layers.0.0.weight"]
    assert torch.allclose(torch.stack(peers).mean(0), mean, atol=1e-7)
    assert not torch.equal(peers[0], peers[1])
    score = whole.results["table"]["this run"]["knn"]
    each = [score["models"][str(k)] for k in range(4)]
    assert (score["mean"], score["std"]) == (
        pytest.approx(np.mean(each)),
        pytest.approx(np.std(each, ddof=1)),
    )
    assert whole.rounds[-1]["knn"] == score["mean"]
    assert whole.rounds[-1]["knn_common"] == score["models"]["mean"]


def test_a_disconnected_graph_is_refused_before_anything_is_written(
    small: Experiment, labelled: Dataset, tmp_path: Path
) -> None:
    changes = {"topology.name": "edges", "topology.edges": [[0, 1]]}
    with raises(ConfigError):
        fedssl.run(small, tmp_path / "run", dataset=labelled, quiet=True, set=changes)
    run = fedssl.run(
        small,
        tmp_path / "run",
        dataset=labelled,
        quiet=True,
        set=changes | {"topology.edges": [[0, 1], ["1", 2]]},
    )
    assert len(run.rounds) == 2


def test_clients_with_shifted_images(small: Experiment, labelled: Dataset, tmp_path: Path) -> None:
    """They train on shifted images only; a run is measured with the original images."""
    run, plain = (
        fedssl.run(small, tmp_path / name, dataset=labelled, quiet=True, rounds=1, partition=name)
        for name in ("rotation", "iid")
    )
    assert _tensors(run) != _tensors(plain)
    assert [c["images"] for c in run.rounds[0]["clients"]] == [
        c["images"] for c in plain.rounds[0]["clients"]
    ]
    assert (
        run.evaluate("knn").mean
        == run.rounds[-1]["knn"]
        == run.results["table"]["this run"]["knn"]["mean"]
    )
    shifted, owners = partition_data(run.experiment, labelled, print)
    data = Dataset(shifted.train, labelled.test, owners)
    given = fedssl.run(
        small, tmp_path / "given", dataset=data, quiet=True, rounds=1, partition="natural"
    )
    assert _tensors(given) == _tensors(run)


def test_one_isolated_client_is_centralized_training(small: Experiment, tmp_path: Path) -> None:
    """One client without merging and one client with all images differ only by name."""
    one = {"clients": 1, "guard.min_uploads": 1}
    federated = fedssl.run(
        small, tmp_path / "one", dataset=bright_pixels(24)[0], quiet=True, set=one
    )
    alone = fedssl.run(
        small,
        tmp_path / "alone",
        dataset=bright_pixels(24)[0],
        quiet=True,
        clients=1,
        topology={"name": "isolated"},
    )
    assert list(_tensors(federated).values()) == list(_tensors(alone).values())


def test_participation(small: Experiment, tmp_path: Path) -> None:
    changes = {
        "clients": 4,
        "topology.participation": 0.5,
        "rounds": 4,
        "probe.baselines": ["centralized", "isolated"],
    }
    data = from_python(bright_pixels(40), bright_pixels(12))
    run = fedssl.run(small, tmp_path / "run", dataset=data, quiet=True, set=changes)
    asked = [tuple(c["client"] for c in line["clients"]) for line in run.rounds]
    assert {len(clients) for clients in asked} == {2}
    assert len(set(asked)) > 1
    assert list(run.results["table"]) == ["this run", "centralized", "isolated"]


def test_the_number_of_workers_does_not_change_the_bits(
    small: Experiment, labelled: Dataset, tmp_path: Path
) -> None:
    hashes = [
        _tensors(
            fedssl.run(
                small, tmp_path / f"{n}", dataset=labelled, quiet=True, set={"train.workers": n}
            )
        )
        for n in (1, 2, 3)
    ]
    assert hashes[0] == hashes[1] == hashes[2]


def test_a_table_in_set_is_merged_as_a_keyword_is(
    small: Experiment, labelled: Dataset, tmp_path: Path
) -> None:
    """Both change what the table names and keep the rest; where both name a key, `set` decides."""
    table = {"dim": 8, "augment": {"flip": 0.25}}
    file = tmp_path / "small.toml"
    file.write_text(small.to_toml())
    runs = {
        "keyword": fedssl.run(
            small, tmp_path / "keyword", "cpu", dataset=labelled, rounds=1, method=table
        ),
        "set": fedssl.run(
            small, tmp_path / "set", "cpu", dataset=labelled, set={"rounds": 1, "method": table}
        ),
        "file": fedssl.run(
            file, tmp_path / "file", "cpu", dataset=labelled, set={"rounds": 1, "method": table}
        ),
        "both": fedssl.run(
            small,
            tmp_path / "both",
            "cpu",
            dataset=labelled,
            rounds=1,
            method={"dim": 4, "augment": {"flip": 0.25}},
            set={"method": {"dim": 8}},
        ),
    }
    expected = small.with_changes({"rounds": 1, "method.dim": 8, "method.augment.flip": 0.25})
    assert expected.to_dict()["method"]["hidden"] == 32
    hashes = {name: run.results["experiment"] for name, run in runs.items()}
    assert hashes == dict.fromkeys(runs, runs["keyword"].results["experiment"])
    for run in runs.values():
        assert run.experiment.method == expected.method


def test_default_directories(
    small: Experiment, labelled: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my own.toml").write_text(small.to_toml())
    plain = fedssl.run(small, dataset=labelled, quiet=True)
    other = fedssl.run(small, dataset=labelled, quiet=True, seed=1)
    assert plain.dir == Path("runs/fedavg-byol-images")
    assert other.dir == Path("runs/fedavg-byol-images-seed1")
    changed = fedssl.run("my own.toml", dataset=labelled, quiet=True, seed=1)
    assert changed.dir == Path("runs/my own-seed1")
    assert _tensors(changed) == _tensors(other)


def test_odd_directory_names(small: Experiment, labelled: Dataset, tmp_path: Path) -> None:
    for name in ("with space", "[bold]", "ünï", "-x", "a/b/c"):
        run = fedssl.run(small, tmp_path / name, dataset=labelled, quiet=True, rounds=1)
        assert len(run.rounds) == 1


@pytest.mark.parametrize("every", [0, 1])
@pytest.mark.parametrize("tests", [1, 4, 12])
def test_picture(tests: int, every: int, small: Experiment, tmp_path: Path) -> None:
    data = from_python(bright_pixels(24), bright_pixels(tests))
    set = {"probe.picture": True, "probe.every": every, "rounds": 1}
    run = fedssl.run(small, tmp_path / "run", dataset=data, quiet=True, set=set)
    assert (run.dir / "picture.png").read_bytes().startswith(b"\x89PNG")


def test_without_matplotlib_only_the_picture_is_missing(
    small: Experiment,
    labelled: Dataset,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "matplotlib", None)
    run = fedssl.run(
        small, tmp_path / "run", dataset=labelled, quiet=True, set={"probe.picture": True}
    )
    assert run.results["table"]
    assert not (run.dir / "picture.png").exists()
    printed = capsys.readouterr().err
    missing = "matplotlib and scikit-learn are not installed"
    assert printed == f'no picture: {missing}: in a clone of fedssl, run pip install ".[viz]"\n'


def test_quiet_prints_nothing(
    small: Experiment, labelled: Dataset, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    fedssl.run(small, tmp_path / "run", dataset=labelled, quiet=True)
    assert capfd.readouterr() == ("", "")


def test_a_folder_that_is_not_a_run_directory(tmp_path: Path) -> None:
    with raises(ConfigError):
        fedssl.Run(tmp_path)
    (tmp_path / "experiment.toml").write_text(make_experiment().to_toml())
    run = fedssl.Run(tmp_path)
    assert (run.rounds, run.results) == ([], {})
    with raises(ConfigError):
        run.backbone()


def test_given_needs_a_dataset(small: Experiment, tmp_path: Path) -> None:
    with raises(ConfigError):
        fedssl.run(small, tmp_path / "run", quiet=True)
    assert not (tmp_path / "run").exists()


@pytest.mark.oracle
def test_resnet_backbone_loads_into_torchvision(small: Experiment, tmp_path: Path) -> None:
    torchvision = pytest.importorskip("torchvision")
    changes = {"method.backbone": "resnet18", "method.stem": "imagenet", "rounds": 1}
    run = fedssl.run(small, tmp_path / "run", dataset=bright_pixels(24)[0], quiet=True, set=changes)
    theirs = torchvision.models.resnet18()
    theirs.fc = torch.nn.Identity()
    theirs.load_state_dict(load_file(run.dir / "backbone.safetensors"), strict=True)
    x = torch.rand(2, 3, 64, 64)
    with torch.no_grad():
        assert torch.allclose(theirs.eval()(x), run.backbone()(x), atol=1e-5)


def test_a_note_if_the_code_changed_during_a_run(
    small: Experiment, labelled: Dataset, tmp_path: Path
) -> None:
    run = fedssl.run(small, tmp_path / "run", dataset=labelled, quiet=True)
    assert run.results["environment"]["code"] == code()
    log = run.dir / "rounds.jsonl"
    first, second = log.read_text().splitlines()
    log.write_text(f"{first.replace(code(), '0ld0c0de')}\n{second}\n")
    (run.dir / "rounds.jsonl.copy").unlink()
    (run.dir / "results.json").unlink()
    again = fedssl.run(small, tmp_path / "run", dataset=labelled, quiet=True)
    assert again.results["environment"]["code"] == f"0ld0c0de, {code()}"
    (note,) = again.results["notes"]
    assert f"several versions of fedssl's code (0ld0c0de, {code()})" in note


def test_predictions_by_class_are_stored(
    small: Experiment, labelled: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Equal to evaluate(), for each row and probe; a row of too many models is empty."""
    alone = {"probe.baselines": ["isolated"]}
    run = fedssl.run(small, tmp_path / "run", dataset=labelled, quiet=True, set=alone)
    found = json.loads((run.dir / "classes.json").read_text())
    assert found["table"].keys() == run.results["table"].keys() == {"this run", "isolated"}
    for probe in ("knn", "linear"):
        score = run.evaluate(probe)
        assert found["table"]["this run"][probe] == {
            "per_class": score.per_class,
            "confusion": score.confusion,
        }
    assert labelled.test is not None
    assert found["classes"] == list(labelled.test.classes)
    assert len(found["table"]["isolated"]["knn"]["confusion"]) == small.clients
    monkeypatch.setattr("fedssl.runs.predictions_by_class.MAX_LISTED_MODELS", 1)
    few = fedssl.run(small, tmp_path / "few", dataset=labelled, quiet=True, set=alone)
    table = json.loads((few.dir / "classes.json").read_text())["table"]
    assert (table["isolated"], table["this run"]) == ({}, found["table"]["this run"])


def test_a_note_if_a_run_was_extended(small: Experiment, labelled: Dataset, tmp_path: Path) -> None:
    """Its learning rate follows the short schedule, then the long one, unlike one run of four."""
    fedssl.run(small, tmp_path / "run", dataset=labelled, quiet=True)
    longer = fedssl.run(small, tmp_path / "run", dataset=labelled, quiet=True, rounds=4)
    assert [(line["of"], line["lr"]) for line in longer.rounds] == [
        (of, pytest.approx(small.train.lr_at(number, of)))
        for number, of in ((0, 2), (1, 2), (2, 4), (3, 4))
    ]
    note = "started as a run of 2 rounds and extended to 4"
    assert longer.results["notes"] == [note]
    with safe_open(longer.dir / "backbone.safetensors", "pt") as file:
        assert (file.metadata()["notes"], file.metadata()["rounds"]) == (note, "4")


# -- inputs that determine a run --


def test_test_images_of_another_kind_are_refused_before_training(
    small: Experiment, tmp_path: Path
) -> None:
    x = torch.randint(256, (24, 3, 12, 12), dtype=torch.uint8)
    y = torch.arange(24) % 3
    with raises(DataError):
        fedssl.run(
            small, tmp_path / "run", "cpu", dataset=from_python((x, y), (x[:, :1], y)), quiet=True
        )
    assert not (tmp_path / "run" / "rounds.jsonl").exists()


def test_without_test_images_nothing_is_measured(small: Experiment, tmp_path: Path) -> None:
    x = torch.randint(256, (24, 3, 12, 12), dtype=torch.uint8)
    y = torch.arange(24) % 3
    run = fedssl.run(
        small, tmp_path / "run", "cpu", dataset=from_python((x, y), (x[:0], y[:0])), quiet=True
    )
    assert [line["knn"] for line in run.rounds] == [None, None]
    assert run.results["table"] == {}
    assert (run.dir / "backbone.safetensors").is_file()


def test_a_failing_probe_does_not_lose_a_round(
    small: Experiment, labelled: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any) -> None:
        raise RuntimeError("the probe failed")

    with monkeypatch.context() as patch:
        patch.setattr(Evaluation, "measure", fails)
        with pytest.raises(RuntimeError, match="the probe failed"):
            fedssl.run(small, tmp_path, "cpu", dataset=labelled, quiet=True)
    kept = Store(tmp_path).load(print)
    assert kept is not None
    assert kept.rounds == 1
    run = fedssl.run(small, tmp_path, "cpu", dataset=labelled, quiet=True)
    assert [line["round"] for line in run.rounds] == [1, 2]
    assert run.rounds[0]["knn"] is None
    assert run.rounds[1]["knn"] is not None


def test_the_duration_of_a_round_excludes_measuring(
    small: Experiment, labelled: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measure = Evaluation.measure

    def slowly(*args: Any) -> Any:
        time.sleep(1.5)
        return measure(*args)

    monkeypatch.setattr(Evaluation, "measure", slowly)
    small = small.with_changes({"rounds": 1, "probe.baselines": []})
    assert (
        fedssl.run(small, tmp_path, "cpu", dataset=labelled, quiet=True).rounds[0]["seconds"] < 1.5
    )


def test_changed_labels_are_measured_again(
    small: Experiment, labelled: Dataset, tmp_path: Path
) -> None:
    first = fedssl.run(small, tmp_path, "cpu", dataset=labelled, quiet=True).results
    assert labelled.test is not None
    others = Images(labelled.test.pixel_rows, (labelled.test.labels + 1) % 3, labelled.test.classes)
    again = fedssl.run(
        small, tmp_path, "cpu", dataset=Dataset(labelled.train, others), quiet=True
    ).results
    assert first["labels"] != again["labels"]
    assert first["table"] != again["table"]


def test_a_method_that_learns_from_labels_is_resumed_with_the_same_ones(
    small: Experiment, labelled: Dataset, tmp_path: Path
) -> None:
    others = Dataset(
        Images(labelled.train.pixel_rows, (labelled.train.labels + 1) % 3, labelled.train.classes),
        None,
    )
    experiment = small.with_changes(
        {"method": {"name": "supervised", "backbone": "cnn", "classes": 3}}
    )
    fedssl.run(experiment, tmp_path / "supervised", "cpu", dataset=labelled, quiet=True)
    with raises(ConfigError):
        fedssl.run(experiment, tmp_path / "supervised", "cpu", dataset=others, quiet=True)
    fedssl.run(small, tmp_path / "byol", "cpu", dataset=labelled, quiet=True)
    # BYOL does not learn from labels.
    fedssl.run(small, tmp_path / "byol", "cpu", dataset=others, quiet=True)


def test_the_baselines_before_training_are_random_weights_and_those_of_method_init(
    small: Experiment, labelled: Dataset, tmp_path: Path
) -> None:
    trained = fedssl.run(small, tmp_path / "first", "cpu", dataset=labelled, quiet=True)
    file = tmp_path / "init.safetensors"
    file.write_bytes((trained.dir / "backbone.safetensors").read_bytes())
    again = small.with_changes({"method.init": str(file)})
    fedssl.run(again, tmp_path / "second", "cpu", dataset=labelled, quiet=True)
    untrained, started = (
        federation_setup.build_method(e, labelled.train.image_shape, torch.device("cpu"))
        .state.pick(("backbone",))
        .floats
        for e in (small, again)
    )
    random, start = (
        untrained_models(again, labelled.train.image_shape, torch.device("cpu"), name)[name]
        .pick(("backbone",))
        .floats
        for name in ("random", "start")
    )
    assert torch.equal(random, untrained)
    assert torch.equal(start, started)
    assert not torch.equal(random, started)
    nets.save_backbone({n: t + 1 for n, t in load_file(file).items()}, file, {})
    with raises(ConfigError):
        fedssl.run(again, tmp_path / "second", "cpu", dataset=labelled, quiet=True)


@pytest.mark.parametrize(
    ("name", "topology"), [("server", "star"), ("home", "star"), ("mean", "cycle")]
)
def test_files_of_clients_have_distinct_names(
    name: str, topology: str, small: Experiment, labelled: Dataset, tmp_path: Path
) -> None:
    listed = small.with_changes(
        {"partition": {"name": "natural"}, "clients": 0, "topology": topology}
    )
    owned = Dataset(
        labelled.train, labelled.test, {"a": torch.arange(6), name: torch.arange(6, 12)}
    )
    with pytest.raises(ConfigError, match=f'reserved name "{name}"'):
        fedssl.run(listed, tmp_path, "cpu", dataset=owned, quiet=True)


def test_a_model_with_a_long_name_is_exported(
    small: Experiment, labelled: Dataset, tmp_path: Path
) -> None:
    """41 Cyrillic letters: 82 bytes, and 246 characters of percent-encoding."""
    long = "ж" * 41
    listed = small.with_changes(
        {"partition": {"name": "natural"}, "clients": 0, "topology": "isolated"}
    )
    owned = Dataset(
        labelled.train, labelled.test, {"a": torch.arange(9), long: torch.arange(9, 18)}
    )
    run = fedssl.run(listed, tmp_path, "cpu", dataset=owned, quiet=True)
    (file,) = (f for f in run.dir.glob("backbone-%D0*.safetensors"))
    with safe_open(file, "pt") as weights:
        assert weights.metadata()["model"] == long
    assert find_backbone(run.dir, long) == file


def test_building_a_model_does_not_change_the_callers_random_state(
    small: Experiment, labelled: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        torch.cuda, "manual_seed_all", lambda seed: pytest.fail("every GPU was seeded")
    )
    run = fedssl.run(small, tmp_path, "cpu", dataset=labelled, quiet=True)
    before = torch.get_rng_state()
    run.backbone()
    assert torch.equal(torch.get_rng_state(), before)


def test_a_run_without_its_log_does_not_count_as_failed(
    small: Experiment, labelled: Dataset, tmp_path: Path
) -> None:
    fedssl.run(small, tmp_path, "cpu", dataset=labelled, quiet=True)
    (tmp_path / "rounds.jsonl").unlink()
    assert fedssl.run(small, tmp_path, "cpu", dataset=labelled, quiet=True).results["rounds"] == 2


def test_a_run_without_any_model_is_finished(
    small: Experiment, labelled: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a server with FedBN: each client has its own model, which the server does not have."""
    experiment = small.with_changes({"algorithm": {"name": "fedbn"}})
    fedssl.run(experiment, tmp_path, "cpu", dataset=labelled, quiet=True)
    for file in (*tmp_path.glob("backbone*"), tmp_path / "results.json"):
        file.unlink()
    snapshot = Store(tmp_path).load(print)
    assert snapshot is not None
    store = Store(tmp_path)
    store.save(snapshot._replace(memory={}))
    store.wait()
    device = torch.device("cpu")
    finish(tmp_path, labelled, None, device, quiet=True, train_baselines=False)
    results = json.loads((tmp_path / "results.json").read_text())
    assert (results["table"], results["models"]) == ({}, 0)
    assert "each client has its own model" in results["notes"][0]
    monkeypatch.setattr("fedssl.runs.finalize.export", lambda *_: pytest.fail("not finished"))
    finish(tmp_path, labelled, None, device, quiet=True, train_baselines=False)


def test_every_round_is_saved_if_set(
    small: Experiment, labelled: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even with a slow disk."""
    saved = []
    replace = Path.replace

    def slowly(temporary: Path, path: Path) -> Path:
        if path.match("checkpoints/*.json"):
            time.sleep(0.3)
            saved.append(int(path.stem))
        return replace(temporary, path)

    monkeypatch.setattr(Path, "replace", slowly)
    fedssl.run(
        small.with_changes({"rounds": 4, "probe.every": 0}),
        tmp_path,
        "cpu",
        dataset=labelled,
        quiet=True,
    )
    assert saved == [0, 1, 2, 3, 4]
