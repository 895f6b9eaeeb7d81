"""NAME-short and NAME-mini of every recipe: what they change, and that the small ones run."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from error_messages import raises

import fedssl
from fedssl.core.errors import ConfigError
from fedssl.data import PARTITIONS, Dataset, FashionMini
from fedssl.experiment.client_data import partition_data
from fedssl.experiment.experiment import Experiment, load
from fedssl.experiment.lookup import find_recipe
from fedssl.experiment.plain_values import differences
from fedssl.experiment.recipes import recipes
from fedssl.experiment.variants import mini, short

KNOWN = list(recipes())
BRIEF = {
    "rounds": 2,
    "probe.every": 0,
    "probe.linear": False,
    "probe.baselines": [],
    "probe.picture": False,
}


def test_unknown_names() -> None:
    for name, near in [
        ("fedema-cifar10-nonid", "fedema-cifar10-noniid"),
        ("fedema-cifar10-nonid-mini", "fedema-cifar10-noniid-mini"),
        ("demo-minni", "demo-mini"),
    ]:
        with pytest.raises(
            ConfigError, match=f'^there is no recipe or file "{name}", did you mean "{near}"[?]$'
        ):
            find_recipe(name)
    with raises(ConfigError):
        find_recipe("xyz")


def test_a_folder_instead_of_an_experiment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("photos").mkdir()
    with raises(ConfigError):
        find_recipe("photos")
    (Path("photos") / "experiment.toml").touch()
    with raises(ConfigError):
        find_recipe("photos")


def test_a_recipe_that_was_returned_is_a_copy() -> None:
    for name in ("demo", "demo-short", "demo-mini"):
        before = copy.deepcopy(recipes()["demo"].values)
        values = find_recipe(name)
        values["method"]["augment"]["crop"] = None
        values["train"]["lr"] = None
        assert recipes()["demo"].values == before


def test_short_changes_nothing_but_epochs() -> None:
    for name in KNOWN:
        full, brief = (
            Experiment.from_dict(find_recipe(each)).to_dict() for each in (name, f"{name}-short")
        )
        epochs = full["train"]["epochs"]
        changed = {} if epochs == 1 else {"train.epochs": (epochs, 1)}
        assert differences(full, brief) == changed, name
    assert short({"rounds": 3}) == {"rounds": 3, "train": {"epochs": 1}}


def test_mini_keeps_the_compared_settings() -> None:
    """Method, algorithm, topology, kind of partition, and all of their settings except sizes."""
    for name in KNOWN:
        full, small = (
            Experiment.from_dict(find_recipe(each)).to_dict() for each in (name, f"{name}-mini")
        )
        for table in ("method", "algorithm", "topology", "partition"):
            expected = full[table]["name"]
            if table == "partition" and PARTITIONS[expected].brings_clients:
                expected = "skew"  # the images of these clients are replaced
            assert small[table]["name"] == expected, name
        sizes = {
            "method.queue",
            "method.prototypes",
            "method.clusters",
            "algorithm.candidates",
            "algorithm.remote",
        }
        sizes |= {"method.hidden", "method.dim", "method.backbone", "method.stem", "method.classes"}
        sizes |= {"algorithm.features", "algorithm.dictionary", "algorithm.aligned"}
        for key in differences(full, small):
            table, *_ = key.split(".")
            kept = table in ("topology", "seed") or (
                table in ("method", "algorithm") and "augment" not in key
            )
            assert not kept or key in sizes, f"{name}: {key}"


def test_mini_is_small() -> None:
    for name in KNOWN:
        small = Experiment.from_dict(find_recipe(f"{name}-mini"))
        train = small.train
        method = small.method
        assert (small.rounds <= 10, 1 <= small.clients <= 10, train.epochs) == (True, True, 1), name
        assert (train.optimizer, train.lr, train.weight_decay) == ("adam", 0.004, 0.0)
        assert small.to_dict()["data"]["name"] == "fashion-mini"
        assert method.backbone in ("cnn", "vit_mini")
        assert (method.augment.crop, method.augment.gray, method.augment.jitter[2:]) == (
            (0.5, 1.0),
            0.0,
            (0, 0),
        )
        assert getattr(method, "hidden", 256) == 256
        assert getattr(method, "dim", 128) == 128
        assert 16 <= train.batch <= 128


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (
            "fedema-cifar10-noniid",
            {"clients": 5, "partition.per_client": 2, "train.batch": 128, "algorithm.tau": 0.7},
        ),
        # A fifth of the classes.
        ("fedema-cifar100-noniid", {"clients": 5, "partition.per_client": 2}),
        ("fedbyol-cifar100-classes60", {"partition.per_client": 6}),
        ("fedbyol-cifar10-noniid-batch16", {"train.batch": 16}),
        ("fedbyol-cifar10-noniid-batch512", {"train.batch": 128}),
        (
            "fedema-cifar10-noniid-5of20",
            {"clients": 10, "topology.participation": 0.25, "train.batch": 64},
        ),
        # 100 images a client.
        ("fedema-cifar10-noniid-share0.1", {"partition.share": 0.1, "train.batch": 16}),
        ("ccl-supervised-cifar100-iid-labels0.01", {"partition.share": 0.1, "method.classes": 10}),
        (
            "decssl-fedprox-cifar10-dirichlet0.01-epochs50",
            {"partition.balanced": True, "partition.alpha": 0.01},
        ),
        (
            "fedmocov2-cifar10-iid",
            {"method.queue": 512, "method.temperature": 0.2, "method.hidden": 256},
        ),
        ("fedbyol-cifar10-noniid-no-predictor", {"method.predictor": False}),
        ("fedu-resnet50-miniimagenet-noniid", {"partition.per_client": 2, "algorithm.mu": 0.6}),
        (
            "demo",
            {
                "rounds": 10,
                "partition.per_client": 2,
                "method.temperature": 0.5,
                "train.batch": 128,
            },
        ),
    ],
)
def test_minis_by_hand(name: str, expected: dict[str, Any]) -> None:
    """Of 5,000 images each of 5 clients has 1,000, each of 10 has 500; a batch is a quarter."""
    flat = {key: new for key, (_, new) in differences({}, load(f"{name}-mini").to_dict()).items()}
    assert {key: flat[key] for key in expected} == expected


def test_minis_of_other_kinds() -> None:
    """A transformer stays one; a partition with its own clients becomes a split by class."""
    base = {"clients": 7, "data": {"name": "folder", "path": "x", "size": 8, "layout": "clients"}}
    vit = mini(
        {
            **base,
            "partition": {"name": "natural"},
            "method": {"name": "mae"},
            "public": {"name": "stl10"},
        }
    )
    assert vit["method"]["backbone"] == "vit_mini"
    assert vit["partition"] == {"name": "skew", "beta": 0.0}
    assert (vit["clients"], "public" in vit) == (7, False)
    none = mini(
        {
            "data": base["data"],
            "partition": {"name": "natural"},
            "method": {"name": "swav", "prototypes": 9},
        }
    )
    assert (none["clients"], none["method"]["prototypes"], none["algorithm"]) == (
        5,
        9,
        {"name": "fedavg"},
    )
    pale = mini(
        {
            **base,
            "method": {"name": "simclr", "augment": {"jitter": [0.1, 0.9, 0.5, 0.1], "blur": 0.5}},
        }
    )
    assert pale["method"]["augment"] == {
        "jitter": [0.1, 0.4, 0.0, 0.0],
        "blur": 0.5,
        "crop": [0.5, 1.0],
        "gray": 0.0,
    }


@pytest.fixture(scope="module")
def images() -> Dataset:
    return FashionMini().load(Path())


def test_every_mini_can_be_partitioned(images: Dataset) -> None:
    """Each kind of split once; every client has images."""
    seen: set[Any] = set()
    messages: list[str] = []
    for name in KNOWN:
        experiment = load(f"{name}-mini")
        split = (experiment.partition, experiment.clients, experiment.topology)
        if split not in seen:
            seen.add(split)
            _, owners = partition_data(experiment, images, messages.append)
            assert min(map(len, owners.values())) >= 16, name
    assert messages == []


# -- two rounds of each --


def kind(name: str) -> tuple[Any, ...]:
    values = find_recipe(name)
    return values["algorithm"]["name"], values["method"]["name"]


def settings(name: str) -> tuple[Any, ...]:
    """Return the settings of a mini; for a number, only whether it is 0."""
    values = find_recipe(f"{name}-mini")
    flat = differences({}, {key: values[key] for key in ("method", "algorithm")})
    chosen = sorted(
        (key, bool(new) if type(new) in (int, float) else str(new))
        for key, (_, new) in flat.items()
    )
    return (*chosen, values.get("topology", {"name": "star"})["name"], values["partition"]["name"])


def _first_of_each(names: Sequence[str], key: Callable[[str], Any]) -> list[str]:
    """Return the first name for each value of `key`, in the order of names."""
    return list({key(name): name for name in reversed(names)}.values())[::-1]


FIRST = _first_of_each(KNOWN, kind)  # one of each algorithm × method
OTHERS = [name for name in _first_of_each([*FIRST, *KNOWN], settings) if name not in FIRST]


def run_mini(name: str, images: Dataset, folder: Path) -> None:
    """Run a mini on a fifth of the training images and measure it with 200 test images."""
    assert images.test is not None
    some = Dataset(images.train.select(torch.arange(1000)), images.test.select(torch.arange(200)))
    run = fedssl.run(f"{name}-mini", folder, "cpu", dataset=some, quiet=True, set=BRIEF)
    assert len(run.rounds) == 2
    for line in run.rounds:
        assert math.isfinite(line["loss"])
        assert [client for client in line["clients"] if client["dropped"]] == []
    assert run.results["table"]["this run"]["knn"]["mean"] > 20  # one of ten classes is 10


@pytest.mark.parametrize("name", FIRST)
def test_two_rounds(name: str, images: Dataset, tmp_path: Path) -> None:
    run_mini(name, images, tmp_path / "run")


def test_a_run_has_the_whole_name_of_its_recipe(
    images: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Names contain dots: the recipes with 0.3 and 0.5 must have different directories."""
    monkeypatch.chdir(tmp_path)
    name = "fedema-cifar10-noniid-tau0.5-mini"
    run = fedssl.run(
        name,
        None,
        "cpu",
        dataset=images,
        quiet=True,
        set=BRIEF | {"rounds": 1, "data.holdout": 4900},
    )
    assert run.dir.name.startswith(f"{name}-")


@pytest.mark.slow
@pytest.mark.parametrize("name", OTHERS)
def test_two_rounds_of_the_others(name: str, images: Dataset, tmp_path: Path) -> None:
    run_mini(name, images, tmp_path / "run")
