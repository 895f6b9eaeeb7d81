"""Experiments as values and as TOML, and the error messages for invalid ones."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from error_messages import raises
from factories import REQUIRED_SETTINGS, default_experiment
from hypothesis import given
from hypothesis import strategies as st

from fedssl.algorithm import ALGORITHMS
from fedssl.core.errors import ConfigError
from fedssl.data import SOURCES
from fedssl.experiment.experiment import Experiment, load
from fedssl.experiment.hashed_settings import hashed_settings
from fedssl.experiment.plain_values import differences
from fedssl.method import METHODS
from fedssl.topologies.topology import Isolated

# -- TOML and back --

share = st.floats(0, 1)
positive = st.floats(1e-12, 1e6)
size = st.integers(1, 10_000)


def _table(name: str, **keys: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({"name": st.just(name)}, optional=keys)


def _normalised(name: str) -> st.SearchStrategy[dict[str, Any]]:
    numbers = st.lists(st.floats(0.01, 1), min_size=3, max_size=3)
    return st.one_of(
        _table(name, holdout=st.integers(0, 99)),
        st.fixed_dictionaries({"name": st.just(name), "mean": numbers, "std": numbers}),
    )


augment = st.fixed_dictionaries(
    {},
    optional={
        "crop": st.tuples(st.floats(0.01, 0.5), st.floats(0.5, 1)),
        "jitter": st.tuples(positive, positive, positive, st.floats(0, 0.5)),
        "flip": share,
        "blur": share,
        "blur_kernel": st.sampled_from([1, 3, 23]),
    },
)
common = {
    "backbone": st.sampled_from(["cnn", "cnn5", "resnet18"]),
    "stem": st.sampled_from(["cifar", "imagenet"]),
    "augment": augment,
    "view_size": st.integers(1, 300),
    "init": st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1),
}
tables = {
    "seed": st.integers(0, 2**40),
    "rounds": size,
    "partition": st.one_of(
        _table("iid"),
        st.fixed_dictionaries(
            {"name": st.just("dirichlet"), "alpha": positive, "balanced": st.booleans()}
        ),
        st.fixed_dictionaries({"name": st.just("classes"), "per_client": size}),
        st.fixed_dictionaries({"name": st.just("quantity"), "shares": st.just([0.5, 0.1])}),
    ),
    "algorithm": _table(
        "fedavg",
        aggregate=st.sampled_from(["online", "target", "both"]),
        predictor=st.sampled_from(["global", "local"]),
        weights=st.sampled_from(["size", "uniform"]),
    ),
    "topology": st.one_of(
        _table("star", participation=st.floats(0.001, 1)), _table("isolated"), _table("centralized")
    ),
    "train": st.fixed_dictionaries(
        {},
        optional={
            "lr": positive,
            "momentum": st.floats(0, 0.999),
            "weight_decay": st.floats(0, 1),
            "optimizer": st.sampled_from(["sgd", "adam", "adamw"]),
            "schedule": st.sampled_from(["cosine", "constant", "step"]),
            "decay_norms": st.booleans(),
            "batch": st.integers(2, 4096),
        },
    ),
    "probe": st.fixed_dictionaries(
        {},
        optional={
            "temperature": positive,
            "k": size,
            "baselines": st.lists(st.sampled_from(["random", "isolated"])),
        },
    ),
}
experiments = st.fixed_dictionaries(
    {
        "clients": size,
        "data": st.one_of(_normalised("fashion-mini"), _normalised("cifar10"), _table("stl10")),
        "method": st.one_of(
            _table("simclr", dim=size, temperature=positive, **common),
            _table("byol", momentum=share, predictor=st.booleans(), **common),
            _table(
                "mocov2", hidden=size, queue=size, key=st.sampled_from(["local", "reset"]), **common
            ),
        ),
    },
    optional=tables,
).map(Experiment.from_dict)


@given(experiments)
def test_toml_and_back(experiment: Experiment) -> None:
    again = Experiment.from_toml(experiment.to_toml())
    assert again == experiment
    assert hash(again) == hash(experiment)
    assert again.hash() == experiment.hash()
    assert again.to_toml() == experiment.to_toml()
    assert Experiment.from_dict(json.loads(json.dumps(experiment.to_dict()))) == experiment
    assert differences(experiment.to_dict(), again.to_dict()) == {}


def test_the_hash_is_of_the_meaning() -> None:
    """A default written out changes nothing; a value does."""
    assert default_experiment(train__batch=128).hash() == default_experiment().hash()
    assert default_experiment(train__batch=64).hash() != default_experiment().hash()


@pytest.mark.parametrize(
    ("key", "default", "other"),
    [
        ("partition.capped", False, True),
        ("partition.share", 1.0, 0.8),
        ("method.batch_norm", "shared", "per-view"),
        ("train.schedule_rounds", 0, 500),
        ("train.step_factor", 0.3, 0.09),
    ],
)
def test_a_setting_that_was_added_later_is_hashed_if_it_is_not_the_default(
    key: str, default: Any, other: Any
) -> None:
    """The hash is that of an experiment of the version before, which did not have the key."""
    base = default_experiment(
        partition={"name": "dirichlet", "alpha": 1.0}, method={"name": "simclr"}
    )
    table, name = key.split(".")
    assert getattr(getattr(base, table), name) == default
    assert base.with_changes({key: other}).hash() != base.hash()
    hashed = hashed_settings(table, getattr(base, table), base.to_dict()[table])
    assert name not in hashed


def test_the_share_of_an_iid_partition_was_never_left_out_of_the_hash() -> None:
    """The first version had it: only classes that got a share later leave it out."""
    iid = default_experiment(partition={"name": "iid"})
    hashed = hashed_settings("partition", iid.partition, iid.to_dict()["partition"])
    assert hashed == {"name": "iid", "share": 1.0}


def test_a_file_is_loaded_as_a_recipe_is(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(default_experiment(rounds=7).to_toml())
    assert load(path) == default_experiment(rounds=7)
    assert load(str(path), ["rounds=8", "algorithm.update=both"]) == default_experiment(
        rounds=8, algorithm__update="both"
    )
    assert load(path, {"rounds": 8}) == default_experiment(rounds=8)


def test_invalid_files_are_refused(tmp_path: Path) -> None:
    for name, content, sentence in [
        ("torn.toml", b"rounds = ", "is not valid TOML"),
        ("binary.toml", b"\xff\xfe\x00", "cannot be read"),
        ("date.toml", b"rounds = 2020-01-01", "rounds: input should be a valid integer"),
    ]:
        (tmp_path / name).write_bytes(
            content + b"\ndata = 'given'\nmethod = 'byol'\n" * (name == "date.toml")
        )
        with pytest.raises(ConfigError, match=sentence):
            load(tmp_path / name)
    with raises(ConfigError):
        load(tmp_path / "gone.toml")
    with raises(ConfigError):
        load("demmo")


def test_variants_are_loaded_by_name_and_changed_as_recipes_are(tmp_path: Path) -> None:
    brief = load("fedema-cifar10-noniid-tau0.5-short", ["algorithm.tau=0.9"])
    assert (brief.train.epochs, brief.to_dict()["algorithm"]["tau"]) == (1, 0.9)
    small = load("fedema-cifar10-noniid-mini", {"method": "simsiam"})
    assert (small.rounds, small.to_dict()["method"]["hidden"]) == (10, 256)


# -- refusals --


@pytest.mark.parametrize(
    ("key", "nearest"),
    [
        ("rouns", "rounds"),
        ("train.learning_rate", "train.lr"),
        ("train.bach", "train.batch"),
        ("probe.lables", "probe.labels"),
        ("data.hold_out", "data.holdout"),
        ("partition.alpah", ""),
        ("method.momentm", "method.momentum"),
        ("method.augment.crp", "method.augment.crop"),
        ("algorithm.agregate", "algorithm.aggregate"),
        ("topology.participations", "topology.participation"),
    ],
)
def test_unknown_keys_are_refused_at_every_level(key: str, nearest: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        default_experiment().with_changes({key: 1})
    assert str(refusal.value).startswith(f'unknown key "{key}"')
    assert (f'did you mean "{nearest}"?' in str(refusal.value)) == bool(nearest)


@pytest.mark.parametrize(
    ("key", "suggested"),
    [
        ("lr", '"train.lr" or "probe.lr"'),
        ("method.lr", '"train.lr" or "probe.lr"'),
        ("epochs", '"train.epochs" or "probe.epochs"'),
        ("train.rounds", '"rounds" above the first table'),
        ("train.stem", '"method.stem"'),
        ("flip", '"method.augment.flip"'),
        ("optimiser", '"train.optimizer"'),
        ("dat.name", "[data]"),
        ("augment.flip", "[method.augment]"),
        ("method.augmnt.flip", "[method.augment]"),
    ],
)
def test_keys_of_other_tables_are_suggested_with_their_full_names(key: str, suggested: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        default_experiment().with_changes({key: 1})
    assert str(refusal.value).endswith(f", did you mean {suggested}?")


def test_a_misspelt_table_is_not_reported_as_missing_too() -> None:
    with raises(ConfigError):
        Experiment.from_dict({"dat": {"name": "fashion-mini"}, "method": "byol", "clients": 2})


def test_all_unknown_and_missing_keys_are_reported_at_once() -> None:
    """A wrong value, here of rounds, is reported only once all keys are right."""
    with raises(ConfigError):
        Experiment.from_dict(
            {
                "rounds": "ten",
                "roundss": 3,
                "partition": {"name": "dirichlet"},
                "method": {"name": "byol", "lr": 0.1, "augment": {"flp": 1}},
                "train": {"bach": 8},
                "xyzzy": {"deep": 1},
            }
        )


@pytest.mark.parametrize(
    ("table", "name", "nearest"),
    [
        ("data", "fashion_mini", "fashion-mini"),
        ("partition", "dirichlett", "dirichlet"),
        ("method", "byoll", "byol"),
        ("algorithm", "fedavgg", "fedavg"),
        ("topology", "centralised", "centralized"),
    ],
)
def test_unknown_names_are_refused_with_the_nearest(table: str, name: str, nearest: str) -> None:
    for refused in (
        lambda: default_experiment().with_changes({f"{table}.name": name}),
        lambda: default_experiment(**{table: name}),
    ):
        with pytest.raises(ConfigError, match=f'"{name}", did you mean "{nearest}"'):
            refused()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("rounds", "ten"),
        ("rounds", 0),
        ("rounds", 1.5),
        ("seed", -1),
        ("clients", []),
        ("train", 3),
        ("train.lr", "fast"),
        ("train.lr", float("inf")),
        ("train.batch", 1),
        ("train.optimizer", "sdg"),
        ("train.deterministic", "perhaps"),
        ("probe.every", -1),
        ("probe.baselines", 3),
        ("data", 3),
        ("method.name", 3),
        ("method.name", ["byol"]),
        ("method.dim", 0),
        ("method.view_size", 0),
        ("method.augment", "none"),
        ("method.augment.crop", [0.5]),
        ("algorithm.update", "neither"),
        ("algorithm.predictor", True),
        ("topology.participation", 0),
    ],
)
def test_wrong_types_and_values_name_their_key(key: str, value: Any) -> None:
    with pytest.raises(ConfigError) as refusal:
        default_experiment().with_changes({key: value})
    assert str(refusal.value).startswith(key)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"method.name": "simclr", "algorithm.update": "target"},
            'algorithm "fedavg" needs a method with a target, but method "simclr" has none .*',
        ),
        (
            {"method.predictor": False, "algorithm.predictor": "local"},
            'algorithm "fedavg" needs a method with a predictor, but method "byol" has none .*',
        ),
        ({"method.backbone": "resnt18"}, 'unknown backbone "resnt18", did you mean "resnet18"[?]'),
        ({"method.stem": "cifr"}, 'unknown stem "cifr", did you mean "cifar"[?]'),
        ({"method.init": "gone.safetensors"}, "method.init: there is no file gone.safetensors"),
        ({"data.mean": [0.5]}, "data: mean and std must be given together"),
        (
            {"probe.baselines": ["randm"]},
            'probe.baselines: unknown baseline "randm", did you mean "random"[?]',
        ),
        (
            {"method.view_size": 4, "method.augment.blur": 1.0, "method.augment.blur_kernel": 9},
            "a blur kernel of 9 pixels .*",
        ),
        ({"partition.name": "quantity"}, "partition: give either shares or alpha"),
        (
            {"clients": 0},
            "clients must be above 0, since this partition does not define the clients: add --set clients=8, for example",
        ),
        ({"clients": -1}, r"clients: input should be greater than or equal to 0 \(got -1\)"),
        ({"algorithm.name": "scaffold"}, 'unknown algorithm "scaffold"; known: .*fedavg.*'),
        ({"train.lr.x": 3}, '"train.lr.x" cannot be set: "lr" is a value, not a table'),
    ],
)
def test_impossible_combinations_are_refused_in_one_sentence(
    changes: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ConfigError, match=f"^{sentence}$"):
        default_experiment().with_changes(changes).check()


def test_a_table_without_a_name_that_it_needs() -> None:
    with raises(ConfigError):
        Experiment.from_dict(REQUIRED_SETTINGS | {"data": {"holdout": 3}})


@pytest.mark.parametrize("partition", [{"name": "natural"}, {"name": "listed", "path": "x.json"}])
def test_partitions_that_define_their_clients(partition: dict[str, str]) -> None:
    values = {key: value for key, value in REQUIRED_SETTINGS.items() if key != "clients"} | {
        "partition": partition
    }
    assert Experiment.from_dict(values).clients == 0
    assert Experiment.from_dict(values | {"clients": 3}).clients == 3


@pytest.mark.parametrize(
    "wrong",
    [
        {"rouns": 3},
        {"rounds": 0},
        {"clients": 0},
        {"method": {"name": "byol", "momentm": 1}},
        {"data": {}},
        {"method": 3},
    ],
)
def test_python_is_refused_in_the_same_sentence(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as by_dict:
        Experiment.from_dict(REQUIRED_SETTINGS | wrong)
    with pytest.raises(ConfigError) as by_name:
        Experiment(**REQUIRED_SETTINGS | wrong)
    assert str(by_name.value) == str(by_dict.value)
    assert "\n" not in str(by_name.value)
    assert Experiment(**REQUIRED_SETTINGS) == default_experiment()


def test_an_algorithm_that_needs_a_server(monkeypatch: pytest.MonkeyPatch) -> None:
    lonely = default_experiment(topology="isolated")
    assert isinstance(lonely.topology, Isolated)
    lonely.check()
    monkeypatch.setattr(type(lonely.algorithm), "needs_server", True)
    with raises(ConfigError):
        lonely.check()
    default_experiment().check()
    # Here "random" is an untrained backbone, not the graph of that name.
    default_experiment(probe__baselines=["random", "centralized"]).check()
    with raises(ConfigError):
        default_experiment(probe__baselines=["isolated"]).check()


def test_checking_is_quick_reads_no_data_and_draws_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def read(*_: Any, **__: Any) -> None:
        raise AssertionError("data was read")

    for name in SOURCES.names():
        monkeypatch.setattr(SOURCES[name], "read", read)
    random = torch.get_rng_state()
    begun = time.process_time()
    for name in METHODS.names():
        cls = METHODS[name]
        usual = cls.Settings.model_fields["backbone"].default
        classes = {"method__classes": 2} if cls.learns_from_labels else {}
        backbone = usual if usual.startswith("vit") else "resnet50"
        default_experiment(method__name=name, method__backbone=backbone, **classes).check()
    load("demo")
    assert time.process_time() - begun < 2
    assert torch.equal(torch.get_rng_state(), random)


def test_every_algorithm_has_a_name_in_its_toml() -> None:
    assert {
        default_experiment(algorithm=name).to_dict()["algorithm"]["name"]
        for name in ALGORITHMS.names()
    } == set(ALGORITHMS.names())
