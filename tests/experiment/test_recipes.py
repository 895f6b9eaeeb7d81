"""The recipes are the papers' settings; and how a file becomes recipes, by hand."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

import fedssl.experiment.recipes
from fedssl.data import Dataset, Images
from fedssl.experiment.client_data import partition_data
from fedssl.experiment.experiment import Experiment, load
from fedssl.experiment.lookup import find_recipe
from fedssl.experiment.plain_values import differences
from fedssl.experiment.recipes import Recipe, families, matching, recipes
from fedssl.experiment.recipes.grid import expand, merged
from fedssl.probes import LINEAR
from fedssl.topologies.topology import Star

PUBLISHED = {
    "FedEMA": {
        *(f"Table {n}" for n in range(1, 13)),
        *(f"Figure {n}" for n in (2, 3, 5, 6, 7, 9, 10)),
    },
    "FedU": {"Table 1", "Table 2", "Table 3", "Table 4", "Figure 5", "Figure 6"},
    "FedCA": {"Table 1", "Table 2", "Table 3", "Figure 5"},
    "CCL": {"Table 1", "Table 2", "Table 3", "Figure 3", "Figure 4"},
    "Dec-SSL": {
        "Table 1",
        "Table 2",
        "Table 4",
        *(f"Figure {n}" for n in (2, 4, 5, 6, 7, 8, *range(11, 18))),
    },
}


def at(name: str, *keys: str) -> Any:
    """Return the values of a recipe at dotted keys; None for a missing key."""
    values = []
    for key in keys:
        value: Any = recipes()[name].values
        for part in key.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        values.append(value)
    return values[0] if len(values) == 1 else tuple(values)


# -- the papers --


def test_every_recipe_and_both_variants_are_valid_experiments() -> None:
    checked: set[Any] = set()
    for name in recipes():
        for variant in ("", "-short", "-mini"):
            experiment = Experiment.from_dict(find_recipe(name + variant))
            assert Experiment.from_toml(experiment.to_toml()) == experiment
            parts = (experiment.method, experiment.algorithm, experiment.topology, experiment.probe)
            # Checking depends on these parts only. It builds networks, which is slow.
            if parts not in checked:
                checked.add(parts)
                experiment.check()


def test_no_setting_has_two_names_except_an_old_one() -> None:
    names: dict[str, str] = {}
    for name, recipe in recipes().items():
        other = names.setdefault(repr(sorted(recipe.values.items())), name)
        assert other == name or (other, name) == ("fedbyol-cifar10-noniid", "fedbyol-cifar10")
    assert recipes()["fedbyol-cifar10"].source == recipes()["fedbyol-cifar10-noniid"].source


def test_every_table_and_figure_has_its_recipes_and_every_recipe_its_source() -> None:
    files = fedssl.experiment.recipes._files()
    assert {f["paper"]: set(f["tables"]) for f in files.values() if "paper" in f} == PUBLISHED
    assert [name for name, recipe in recipes().items() if not recipe.source] == ["demo"]
    assert recipes()["fedu-cifar10-noniid"].source.split("; ") == [
        "FedU, Tables 1 and 2",
        "FedEMA, Tables 3, 4, 5 and 7",
        "Dec-SSL, Table 2",
    ]
    assert recipes()["fedu-ablation"].source == "FedU, Figures 5 and 6"
    assert recipes()["fedu-ablation"].places == ["FedU, Figure 5", "FedU, Figure 6"]


FEDEMA = (
    "rounds",
    "clients",
    "train.epochs",
    "train.batch",
    "train.lr",
    "train.optimizer",
    "train.schedule",
)


@pytest.mark.parametrize(
    ("name", "changed"),
    [
        ("fedema-cifar10-noniid", {}),
        ("fedbyol-cifar100-iid", {}),
        ("fedmocov1-cifar10-noniid", {"train.schedule": "constant"}),
        ("fedema-cifar10-noniid-5of20", {"rounds": 400, "clients": 20}),
        ("fedema-cifar100-iid-8of80", {"rounds": 800, "clients": 80, "train.epochs": 2}),
        ("fedema-cifar10-noniid-lambda0.5-rounds400", {"rounds": 400}),
        ("fedbyol-cifar10-noniid-batch512", {"train.batch": 512}),
        ("fedema-cifar10-noniid-epochs20", {"train.epochs": 20}),
        ("fedema-cifar10-noniid-clients20", {"clients": 20}),
        ("fedu-resnet50-cifar10-iid", {}),
        ("fedu-ablation", {"rounds": 800, "train.epochs": 1}),
        ("fedu-ablation-epochs10", {"rounds": 50, "train.epochs": 10}),
        ("fedu-ablation-target-to-both", {"rounds": 800, "train.epochs": 1}),
    ],
)
def test_training_of_fedu_and_fedema(name: str, changed: dict[str, Any]) -> None:
    """R = 100, K = 5, E = 5, B = 128, η = 0.032, cosine decay (FedEMA, 3.3), or changed."""
    usual = dict(zip(FEDEMA, (100, 5, 5, 128, 0.032, "sgd", "cosine"), strict=True))
    assert dict(zip(FEDEMA, at(name, *FEDEMA), strict=True)) == usual | changed


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        # l = 2 (20) classes per client; τ = 0.7, constant λ, FedU's μ = 0.4 (0.6), 0.2 found best
        # in its Figure 5b
        (
            "fedema-cifar10-noniid",
            {"partition.per_client": 2, "algorithm.tau": 0.7, "algorithm.lam": None},
        ),
        ("fedema-cifar100-noniid", {"partition.per_client": 20, "method.backbone": "resnet18"}),
        ("fedema-cifar100-noniid-lambda0.8", {"algorithm.lam": 0.8}),
        (
            "fedema-resnet50-cifar10-iid-lambda1",
            {"algorithm.lam": 1, "method.backbone": "resnet50"},
        ),
        (
            "fedema-cifar10-noniid-encoder-only",
            {"algorithm.predictor_mu": 0, "algorithm.encoder_mu": None},
        ),
        (
            "fedema-cifar10-noniid-encoder-mu0.5-predictor-mu0.3",
            {"algorithm.encoder_mu": 0.5, "algorithm.predictor_mu": 0.3},
        ),
        ("fedu-cifar10-noniid", {"algorithm.mu": 0.4, "method.name": "byol"}),
        ("fedu-resnet50-cifar100-iid", {"algorithm.mu": 0.6}),
        ("fedu-ablation-mu0.2", {"algorithm.mu": 0.2, "method.backbone": "resnet50"}),
        (
            "fedu-ablation-target-to-both-local-predictor",
            {
                "algorithm": {
                    "name": "fedavg",
                    "aggregate": "target",
                    "update": "both",
                    "predictor": "local",
                }
            },
        ),
        (
            "fedema-cifar10-iid-5of20",
            {"topology.participation": 5 / 20, "algorithm.name": "fedema"},
        ),
        (
            "fedbyol-cifar100-noniid-8of80-update-both",
            {"topology.participation": 8 / 80, "algorithm.update": "both"},
        ),
        ("fedbyol-cifar100-classes60", {"partition.per_client": 60}),
        ("fedbyol-cifar10-noniid-no-ema", {"method.ema": False, "method.stop_gradient": None}),
        ("fedema-cifar10-noniid-share0.25", {"partition.share": 0.25, "partition.per_client": 2}),
        (
            "byol-standalone-cifar10-noniid",
            {"topology.name": "isolated", "partition.per_client": 2},
        ),
        (
            "byol-centralized-resnet50-cifar100",
            {"topology.name": "centralized", "method.backbone": "resnet50"},
        ),
        # FedCA: Adam 1e-3 and 1e-6, 100 epochs in all, 128 dimensions, K = 1024, α = 0.5,
        # β = 0.01, 3,200 of STL-10
        (
            "fedca-cnn5-cifar10-iid",
            {"train.optimizer": "adam", "train.lr": 1e-3, "train.weight_decay": 1e-6},
        ),
        (
            "fedca-resnet50-cifar100-noniid",
            {"rounds": 20, "train.epochs": 5, "method.dim": 128, "train.batch": 128},
        ),
        (
            "fedca-cnn5-miniimagenet-noniid",
            {
                "algorithm.dictionary": 1024,
                "algorithm.alpha": 0.5,
                "algorithm.beta": 0.01,
                "data.size": 84,
            },
        ),
        (
            "fedca-fedsimclr-cnn5-cifar10-iid",
            {"algorithm": {"name": "fedavg"}, "public": None, "method.dim": 128},
        ),
        ("fedca-resnet50-cifar10-iid", {"public": {"name": "stl10", "images": 3200}}),
        (
            "fedca-resnet50-cifar10-iid-alignment-only",
            {"algorithm.dictionary": 0, "algorithm.beta": 0.01},
        ),
        (
            "fedca-supervised-cnn5-cifar100-noniid-labels0.01",
            {"method.classes": 100, "partition.share": 0.01},
        ),
        # CCL: ResNet-18, "a 2-layer MLP to project the representations to 128-dimensional
        # feature space"
        (
            "ccl-cifar10-iid",
            {"method.name": "mocov2", "method.backbone": "resnet18", "method.dim": 128},
        ),
        (
            "ccl-feddc-fmnist-noniid1",
            {"method.name": "deepcluster", "data.name": "fashion-mnist", "method.dim": 128},
        ),
        ("ccl-cifar10-noniid1-fusion-only", {"algorithm": {"name": "ccl", "lam": 0}}),
        # Dec-SSL: Adam 0.001, batches of 256, temperature 0.5, FedBN; SGD 0.03 for BYOL;
        # ImageNet 0.005
        (
            "decssl-simclr-cifar10-dirichlet0.1",
            {
                "train.lr": 1e-3,
                "train.batch": 256,
                "train.optimizer": "adam",
                "method.temperature": 0.5,
                "algorithm": {"name": "fedbn", "weights": "uniform", "eval_norm": "mean-only"},
                "partition": {"name": "dirichlet", "alpha": 0.1, "capped": True, "share": 0.8},
            },
        ),
        # The authors' code: steps of 0.3 apply twice if E = 1, except with FeatARC and supervised.
        ("decssl-simclr-cifar10-dirichlet0.02-epochs1", {"train.step_factor": 0.09}),
        ("decssl-mae-cifar10-dirichlet0.02-epochs1", {"train.step_factor": 0.09, "probe.lr": 3e-4}),
        ("featarc-cifar10-dirichlet0.02-epochs1", {"train.step_factor": None}),
        ("decssl-supervised-cifar10-dirichlet0.02-epochs1", {"train.step_factor": None}),
        (
            "decssl-simclr-cifar10-dirichlet0.1-clients10-epochs50",
            {"partition.capped": True, "partition.balanced": None},
        ),
        (
            "decssl-simclr-cifar10-dirichlet0.02-clients20",
            {"partition.capped": False, "partition.balanced": True, "partition.share": 0.8},
        ),
        ("decssl-simclr-cifar10-iid-share0.25", {"partition.share": 0.2}),
        (
            "decssl-simclr-cifar10-centralized",
            {"partition.share": None, "train.schedule": "constant"},
        ),
        (
            "decssl-byol-cifar10-dirichlet0.02-epochs50",
            {"train.optimizer": "sgd", "train.lr": 0.03, "rounds": 10},
        ),
        (
            "decssl-simsiam-cifar10-dirichlet0.02",
            {"train.weight_decay": 5e-4, "algorithm.name": "fedbn"},
        ),
        (
            "decssl-mae-cifar10-dirichlet0.02",
            {"train.optimizer": "adamw", "train.batch": 256, "method.backbone": "vit_tiny"},
        ),
        (
            "decssl-mae-cifar10-dirichlet0.02-epochs1",
            {"algorithm": {"name": "fedavg", "weights": "uniform"}},
        ),
        (
            "decssl-simclr-imagenet100-skew0.1",
            {"train.lr": 0.005, "partition.beta": 0.1, "method.augment.blur": 0.5},
        ),
        (
            "decssl-supervised-imagenet100-skew0.1",
            {
                "method.classes": 100,
                "method.augment": {"crop": [0.08, 1.0], "jitter": [0, 0, 0, 0], "gray": 0},
                "rounds": 40,
            },
        ),
        ("featarc-cifar10-iid", {"algorithm.clusters": 2, "algorithm.lam": 1, "train.epochs": 5}),
        (
            "featarc-cifar10-dirichlet0.02-epochs50-align-only",
            {"algorithm.clusters": 1, "algorithm.lam": 1},
        ),
        (
            "decssl-simclr-cifar10-dirichlet0.1-clients20-random-epochs50",
            {"topology.p": 0.7, "clients": 20},
        ),
        (
            "decssl-simclr-cifar10-dirichlet0.02-clients10-cycle-epochs50",
            {"topology.name": "cycle", "clients": 10},
        ),
        ("decssl-simclr-cifar10-skew0-clients10-epochs50", {"partition.beta": 0, "clients": 10}),
        (
            "decssl-simclr-cifar10-clusters5-epochs50",
            {"partition.clusters": 5, "partition.dims": 30},
        ),
        (
            "decssl-simclr-tinyimagenet-skew0.1-epochs1",
            {"data.name": "tiny-imagenet", "rounds": 500},
        ),
        (
            "decssl-simclr-amazon-natural",
            {"partition.name": "natural", "train.epochs": 1, "clients": 5},
        ),
    ],
)
def test_settings_of_the_papers(name: str, expected: dict[str, Any]) -> None:
    assert dict(zip(expected, [at(name, key) for key in expected], strict=True)) == expected


TABLE_2 = (
    "featarc-cifar10-iid",
    "featarc-cifar10-noniid",
    "decssl-simclr-cifar10-iid",
    "decssl-simclr-cifar10-noniid",
    "decssl-perssfl-cifar10-noniid",
)


@pytest.mark.parametrize("name", TABLE_2)
def test_table_2_of_dec_ssl(name: str) -> None:
    """K = 5, ρ = 1, 100 rounds of E = 5, SimCLR on ResNet-18, Adam 0.001, B = 256; from the code:
    80% of the images, BatchNorm per view, steps of the rate, heads of 512 and the probe.
    """
    experiment = load(name)
    assert (experiment.clients, experiment.rounds, experiment.train.epochs) == (5, 100, 5)
    assert experiment.topology == Star()
    train = experiment.train
    assert (train.optimizer, train.lr, train.batch, train.weight_decay) == ("adam", 1e-3, 256, 1e-6)
    rates = [train.lr_at(round, 100) for round in (0, 29, 30, 60, 90, 99)]
    assert rates == pytest.approx([1e-3, 1e-3, 3e-4, 9e-5, 2.7e-5, 2.7e-5])
    method = experiment.to_dict()["method"]
    assert method["backbone"] == "resnet18"
    assert (method["hidden"], method["dim"], method["temperature"]) == (512, 512, 0.5)
    assert method["batch_norm"] == "per-view"
    assert method["augment"]["jitter"] == [0.4, 0.4, 0.4, 0.1]
    assert LINEAR[experiment.probe.protocol][:4] == ("adam", 1e-3, 50, 256)
    assert experiment.probe.protocol == "dec-ssl"
    assert "Dec-SSL, Table 2" in recipes()[name].places
    pixels = torch.zeros(500, 3, 1, 1, dtype=torch.uint8)
    images = Images(pixels, torch.arange(500) % 10, tuple(map(str, range(10))))
    _, owners = partition_data(experiment, Dataset(images), pytest.fail)
    assert [len(index) for index in owners.values()] == [80] * 5
    classes = [len(images.labels[index].unique()) for index in owners.values()]
    assert set(classes) == ({2} if "noniid" in name else {10})


def test_dec_ssl_trains_on_four_fifths_of_the_images_and_probes_by_its_code() -> None:
    """Private images by session, and centralized training, have all images."""
    for name, recipe in recipes().items():
        if recipe.family != "decssl":
            assert at(name, "probe.protocol") != "dec-ssl", name
            assert at(name, "partition.capped") is None, name
            continue
        assert at(name, "probe.protocol") == "dec-ssl", name
        share = at(name, "partition.share")
        if "centralized" in name or "natural" in name:
            assert share is None, name
        elif "-share" not in name:
            assert share == 0.8, name
        if at(name, "method.name") == "simclr":
            assert at(name, "method.batch_norm") == "per-view", name
        if at(name, "partition.name") in ("dirichlet", "clusters"):
            assert bool(at(name, "partition.capped")) != bool(at(name, "partition.balanced")), name


def test_total_epochs() -> None:
    """Dec-SSL: "we fix the number of total epochs for all experiments".

    That is 500, and 1,000 for MAE; for ImageNet, 200/ρ.
    """
    for name, recipe in recipes().items():
        if recipe.family == "decssl" and "amazon" not in name:
            rounds, epochs, share = at(name, "rounds", "train.epochs", "topology.participation")
            wanted: float = 500
            if "imagenet100" in name:
                wanted = 200 / (share or 1)
            elif "mae" in name:
                wanted = 1000
            assert rounds * epochs == wanted, name


def test_defaults_that_recipes_rely_on() -> None:
    """FedU: m = 0.99; FedEMA's probe: 200 epochs, B = 512, Adam at 3e-3; heads of 4096, 2048."""
    values = load("fedema-cifar10-noniid").to_dict()
    assert (
        values["method"].items()
        >= {"momentum": 0.99, "hidden": 4096, "dim": 2048, "stem": "cifar"}.items()
    )
    assert values["probe"].items() >= {"protocol": "fedema", "labels": 0}.items()
    assert not values["probe"].keys() & {"epochs", "batch", "lr"}  # they are the protocol's
    assert LINEAR["fedema"][:4] == ("adam", 3e-3, 200, 512)
    assert values["algorithm"].items() >= {"divergence": "drift", "weights": "size"}.items()
    assert [load(name).probe.protocol for name in ("fedu-cifar10-iid", "ccl-cifar10-iid")] == [
        "fedu",
        "ccl",
    ]


def test_images_that_users_must_provide_are_described() -> None:
    for name, recipe in recipes().items():
        path = at(name, "data.path")
        assert (at(name, "data.name") == "folder") == (path is not None)
        assert path is None or f"data/{path}" in recipe.about
    assert "private" in recipes()["decssl-simclr-amazon-natural"].about


def test_the_summary_of_a_recipe() -> None:
    assert recipes()["fedema-cifar10-noniid-5of20"].about == (
        "byol × fedema × star, resnet18, cifar10, classes 2, 20 clients, 400 rounds of 5 epochs"
    )
    assert recipes()["fedbyol-cifar10"].about.endswith(
        "epochs. Another name of fedbyol-cifar10-noniid"
    )
    assert recipes()["fedu-ablation"].about.endswith("800 rounds of 1 epoch")
    assert "two kinds of clothing" in recipes()["demo"].about


def test_recipes_are_found_without_reading_an_experiment() -> None:
    """Importing the list imports no settings classes and reads no recipe files."""
    code = """
import sys
import fedssl.experiment.recipes as listed
assert listed._files.cache_info().currsize == 0
assert len(listed.recipes()) > 700
assert not {"torch", "pydantic", "fedssl.experiment.experiment"} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], check=True)


# -- how a file becomes recipes --

FILE: dict[str, Any] = {
    "opening": "# x",
    "paper": "A",
    "cite": "B",
    "base": {"rounds": 3, "method": {"name": "byol", "dim": 5}, "train": {"lr": 1.0}},
    "axis": {
        "net": {"": {"method": {"backbone": "small"}}, "wide": {"method": {"backbone": "large"}}},
        "data": {
            "x": {"data": {"name": "x"}, "with": {"few": {"clients": 2}}},
            "y": {"data": {"name": "y"}},
        },
        "split": {"few": {"clients": 9}, "many": {"clients": 99, "with": {"y": {"rounds": 8}}}},
        "lr": {"key": "train.lr", "values": [0.5, 1, 2.25], "set": {"train": {"epochs": 4}}},
    },
}


def expanded(*grids: dict[str, Any], **more: Any) -> dict[str, dict[str, Any]]:
    file = {**FILE, "grid": list(grids), **more}
    return {name: merged(layers) for name, layers in expand("file", {"file": file})}


def test_words_make_names_and_change_values() -> None:
    values_of = expanded({"net": "all", "data": ["y"]})
    assert list(values_of) == ["y", "wide-y"]
    assert values_of["wide-y"] == {
        "rounds": 3,
        "method": {"name": "byol", "dim": 5, "backbone": "large"},
        "train": {"lr": 1.0},
        "data": {"name": "y"},
    }


def test_words_that_change_something_only_together() -> None:
    """In either order; later words override earlier ones."""
    values_of = expanded(
        {"data": "all", "split": "all"},
        {"of": ["x-few"], "clients": {"key": "clients", "values": [7]}},
    )
    assert {name: values["clients"] for name, values in values_of.items()} == {
        "x-few": 2,
        "x-many": 99,
        "y-few": 9,
        "y-many": 99,
        "x-few-clients7": 7,
    }
    assert [name for name, values in values_of.items() if values["rounds"] == 8] == ["y-many"]
    assert expanded({"split": ["few"], "data": ["x"]})["few-x"]["clients"] == 2


def test_numbers_make_words() -> None:
    values_of = expanded(
        {"lr": "all"}, {"lr": ["lr1"], "dim": {"key": "method.dim", "values": [6]}}
    )
    assert {name: values["train"] for name, values in values_of.items()} == {
        "lr0.5": {"lr": 0.5, "epochs": 4},
        "lr1": {"lr": 1, "epochs": 4},
        "lr2.25": {"lr": 2.25, "epochs": 4},
        "lr1-dim6": {"lr": 1, "epochs": 4},
    }
    assert values_of["lr1-dim6"]["method"] == {"name": "byol", "dim": 6}


def test_a_grid_of_recipes_with_another_name() -> None:
    values_of = expanded(
        {"data": "all"},
        {"of": ["{x,y}"], "net": ["wide"]},
        {"of": ["x"], "name": "z", "set": {"rounds": 1}},
        {"name": "w", "own": {"p": {"rounds": 2}, "q": {}}},
        aliases={"other": "z"},
    )
    assert list(values_of) == ["x", "y", "x-wide", "y-wide", "z", "w-p", "w-q", "other"]
    assert values_of["z"] == values_of["other"] == {**values_of["x"], "rounds": 1}
    assert [values_of[name]["rounds"] for name in ("w-p", "w-q")] == [2, 3]


def test_another_choice_replaces_its_table() -> None:
    """SimCLR does not get BYOL's dim; a table with the same name, or without one, is merged."""
    choices = {
        "another": {"method": {"name": "simclr"}},
        "same": {"method": {"name": "byol", "momentum": 0.5}},
        "none": {"method": {"momentum": 0.5}},
    }
    values_of = expanded({"who": choices})
    assert values_of["another"]["method"] == {"name": "simclr"}
    assert (
        values_of["same"]["method"]
        == values_of["none"]["method"]
        == {"name": "byol", "dim": 5, "momentum": 0.5}
    )


def test_a_file_like_another() -> None:
    own = {
        "opening": "",
        "like": "file",
        "base": {"train": {"lr": 9.0}},
        "axis": {"net": {"mine": {}}},
    }
    file = {**own, "grid": [{"net": "all", "data": ["x"]}]}
    ((name, layers),) = expand("own", {"own": file, "file": FILE})
    assert (name, merged(layers)) == (
        "mine-x",
        {**FILE["base"], "train": {"lr": 9.0}, "data": {"name": "x"}},
    )


def test_expanding_changes_no_file() -> None:
    before = repr(FILE)
    expanded({"net": "all", "data": "all", "split": "all", "lr": "all"})
    assert repr(FILE) == before


@pytest.mark.parametrize(
    ("grids", "more", "sentence"),
    [
        ([{"data": "all"}, {"data": ["x"]}], {}, 'two recipes are called "x", both in file.toml'),
        (
            [{"data": "all"}, {"of": ["z"]}],
            {},
            'a grid starts from "z", but no recipe above it has that name',
        ),
        (
            [{"data": "all"}],
            {"aliases": {"y": "x"}},
            'two recipes are called "y"; file.toml has the second',
        ),
        (
            [{"name": "a-mini"}],
            {},
            'recipe "a-mini" is named like a variant: choose another ending',
        ),
    ],
)
def test_files_that_are_refused(
    grids: list[dict[str, Any]],
    more: dict[str, Any],
    sentence: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        fedssl.experiment.recipes, "_files", lambda: {"file": {**FILE, "grid": grids, **more}}
    )
    with pytest.raises(ValueError, match=f"^{sentence}$"):
        recipes.__wrapped__()  # type: ignore[attr-defined]


def test_a_table_of_missing_recipes_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    files = {"file": {**FILE, "grid": [{"data": "all"}], "tables": {"Table 1": ["x", "z#"]}}}
    monkeypatch.setattr(fedssl.experiment.recipes, "_files", lambda: files)
    monkeypatch.setattr(
        fedssl.experiment.recipes,
        "recipes",
        lambda: {name: Recipe(name, "file", ()) for name in ("x", "y")},
    )
    with pytest.raises(ValueError, match=r'^file\.toml, Table 1: there is no recipe "z#"$'):
        fedssl.experiment.recipes._cited.__wrapped__()


def test_patterns() -> None:
    names = [
        "a-cifar10-iid",
        "a-cifar100-iid",
        "a-cifar10-noniid",
        "a-cifar10-noniid-tau0.5",
        "b-cifar10-iid",
    ]
    assert matching(names, "a-cifar#-iid") == names[:2]
    assert matching(names, "{a,b}-cifar10-{iid,noniid}") == [names[0], names[2], names[4]]
    assert matching(names, "a-cifar10-noniid{,-tau#}") == names[2:4]
    assert matching(names, "*tau*", "b*") == names[3:]
    assert matching(["a.b", "axb"], "a.b") == ["a.b"]


def test_the_page_lists_the_papers_tables() -> None:
    page = (Path(__file__).parents[2] / "docs" / "recipes.md").read_text("utf-8")
    rows = re.findall(r"^\| (\S+) \| ([\d, ]+) \| ([\d, ]+) \| (.*) \|$", page, re.MULTILINE)
    listed = {
        paper: {
            *(f"Table {n}" for n in tables.split(", ")),
            *(f"Figure {n}" for n in figures.split(", ")),
        }
        for paper, tables, figures, _ in rows
    }
    assert listed == PUBLISHED
    for paper, _, _, names in rows:
        for name in re.findall(r"`([^`]+)`", names):
            assert families()[recipes()[name].family].startswith(f"{paper}: ")


def test_families_are_the_papers() -> None:
    assert list(families()) == ["demo", "fedema", "fedu", "fedca", "ccl", "decssl"]
    assert families()["ccl"].startswith("CCL: Wu et al.")
    assert all(recipe.family in families() for recipe in recipes().values())


def test_variants_of_a_recipe_differ_from_it() -> None:
    full = load("fedbyol-cifar10").to_dict()
    assert set(differences(full, load("fedbyol-cifar10-short").to_dict())) == {"train.epochs"}
    assert "data.name" in differences(full, load("fedbyol-cifar10-mini").to_dict())
