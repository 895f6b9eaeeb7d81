"""Experiments as values and as TOML, and the error messages for invalid ones."""

from __future__ import annotations

import datetime
import json
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedssl.algorithm import ALGORITHMS
from fedssl.core.errors import ConfigError
from fedssl.data import SOURCES
from fedssl.experiment.experiment import Experiment, load
from fedssl.experiment.overrides import may_change, merge_changes
from fedssl.experiment.plain_values import differences, parse_assignment
from fedssl.method import METHODS
from fedssl.runs.resume_checks import check_resumable
from fedssl.topologies.topology import Isolated

BASE: dict[str, Any] = {
    "clients": 5,
    "data": {"name": "fashion-mini"},
    "method": {"name": "byol", "backbone": "cnn"},
}


def base(**changes: Any) -> Experiment:
    return Experiment.from_dict(
        merge_changes(BASE, {key.replace("__", "."): v for key, v in changes.items()})
    )


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
            "beside": st.lists(st.sampled_from(["random", "isolated"])),
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
    assert base(train__batch=128).hash() == base().hash()
    assert base(train__batch=64).hash() != base().hash()


def test_a_file_is_loaded_as_a_recipe_is(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(base(rounds=7).to_toml())
    assert load(path) == base(rounds=7)
    assert load(str(path), ["rounds=8", "algorithm.update=both"]) == base(
        rounds=8, algorithm__update="both"
    )
    assert load(path, {"rounds": 8}) == base(rounds=8)


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
    with pytest.raises(ConfigError, match=r"there is no file .*gone\.toml"):
        load(tmp_path / "gone.toml")
    with pytest.raises(ConfigError, match='no recipe or file "demmo", did you mean "demo"'):
        load("demmo")


def test_variants_are_loaded_by_name_and_changed_as_recipes_are(tmp_path: Path) -> None:
    brief = load("fedema-cifar10-noniid-tau0.5-short", ["algorithm.tau=0.9"])
    assert (brief.train.epochs, brief.to_dict()["algorithm"]["tau"]) == (1, 0.9)
    small = load("fedema-cifar10-noniid-mini", {"method": "simsiam"})
    assert (small.rounds, small.to_dict()["method"]["hidden"]) == (10, 256)


# -- changes --


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("rounds=3", ("rounds", 3)),
        (" train.lr = 1e-3 ", ("train.lr", 1e-3)),
        ("algorithm.update=both", ("algorithm.update", "both")),
        ('method.name="byol"', ("method.name", "byol")),
        ("probe.linear=false", ("probe.linear", False)),
        ("method.augment.crop=[0.5, 1.0]", ("method.augment.crop", [0.5, 1.0])),
        ("data.path=/some/where=else", ("data.path", "/some/where=else")),
        ("data.path=", ("data.path", "")),
    ],
)
def test_assignments(text: str, expected: tuple[str, Any]) -> None:
    assert parse_assignment(text) == expected


@pytest.mark.parametrize("text", ["rounds", "=3", "", "  =x"])
def test_invalid_assignments_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="is not key=value"):
        parse_assignment(text)


def test_another_name_keeps_the_keys_of_both_choices() -> None:
    values = merge_changes(BASE, {"method.dim": 64, "method.momentum": 0.5, "method.hidden": 32})
    changed = merge_changes(values, {"method.name": "simclr"})
    assert changed["method"] == {"name": "simclr", "backbone": "cnn", "dim": 64, "hidden": 32}
    assert values["method"]["momentum"] == 0.5  # the argument is not changed


def test_another_name_has_its_own_defaults() -> None:
    """SimCLR's temperature is 0.07 by default and MoCo v2's 0.2; chosen values stay."""
    simclr = base(method__name="simclr", method__dim=64)
    assert simclr.to_dict()["method"]["temperature"] == 0.07
    moco = simclr.with_changes({"method.name": "mocov2"}).to_dict()["method"]
    assert (moco["temperature"], moco["dim"], moco["backbone"]) == (0.2, 64, "cnn")
    warm = (
        simclr.with_changes({"method.temperature": 0.5})
        .with_changes({"method": "mocov2"})
        .to_dict()["method"]
    )
    assert (warm["temperature"], warm["dim"]) == (0.5, 64)
    weak = base(method__name="mocov1").with_changes({"method.name": "mocov2"})
    assert weak == base(method__name="mocov2")  # tables of defaults, such as the jitter, go too
    back = simclr.with_changes({"method.name": "mocov2"}).with_changes({"method.name": "simclr"})
    assert back == simclr


def test_a_name_is_changed_before_its_keys() -> None:
    changed = base().with_changes({"method.temperature": 0.5, "method.name": "simclr"})
    assert METHODS.name_of(changed.method.method) == "simclr"
    assert changed.method.temperature == 0.5  # type: ignore[attr-defined]


def test_any_topology_can_be_compared_with_a_sampled_star() -> None:
    star = base(topology__name="star", topology__participation=0.2)
    for name in ("isolated", "centralized"):
        assert star.with_changes({"topology.name": name}).to_dict()["topology"] == {"name": name}


TABLE = {"dim": 64, "augment": {"flip": 0.25}}


def test_a_table_is_merged_however_it_is_given(tmp_path: Path) -> None:
    """All spellings of a change give the same experiment; other keys keep their values."""
    start = base(method__hidden=32, method__augment__blur=0.5)
    expected = start.with_changes({"method.dim": 64, "method.augment.flip": 0.25})
    method = expected.to_dict()["method"]
    assert (method["name"], method["hidden"], method["dim"]) == ("byol", 32, 64)
    assert (method["augment"]["blur"], method["augment"]["flip"]) == (0.5, 0.25)
    assert start.with_changes({"method": TABLE}) == expected
    assert start.with_changes({"method.dim": 64, "method.augment": {"flip": 0.25}}) == expected
    file = tmp_path / "start.toml"
    file.write_text(start.to_toml())
    assert load(file, ["method={dim=64, augment={flip=0.25}}"]) == expected
    assert load(file, ["method={dim=64}", "method={augment={flip=0.25}}"]) == expected
    assert load(file, ["method.dim=1", "method={dim=64}", "method.augment.flip=0.25"]) == expected


def test_a_table_with_a_name_chooses_as_the_name_alone_does() -> None:
    start = base(method__hidden=32, method__momentum=0.5)
    expected = start.with_changes({"method.name": "simclr", "method.dim": 64})
    assert start.with_changes({"method": {"dim": 64, "name": "simclr"}}) == expected
    assert expected.to_dict()["method"]["hidden"] == 32


def test_changes_keep_python_values(tmp_path: Path) -> None:
    assert base().with_changes({"method.init": tmp_path / "x"}).method.init == tmp_path / "x"
    with pytest.raises(ConfigError, match="rounds: input should be a valid integer"):
        base().with_changes({"rounds": datetime.date(2020, 1, 1)})


# -- refusals --


@pytest.mark.parametrize(
    ("key", "nearest"),
    [
        ("rouns", "rounds"),
        ("train.learning_rate", ""),
        ("train.bach", "batch"),
        ("probe.lables", "labels"),
        ("data.hold_out", "holdout"),
        ("partition.alpah", ""),
        ("method.momentm", "momentum"),
        ("method.augment.crp", "crop"),
        ("algorithm.agregate", "aggregate"),
        ("topology.participations", "participation"),
    ],
)
def test_unknown_keys_are_refused_at_every_level(key: str, nearest: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        base().with_changes({key: 1})
    assert str(refusal.value).startswith(f'unknown key "{key}"')
    assert (f'did you mean "{nearest}"?' in str(refusal.value)) == bool(nearest)


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
        lambda: base().with_changes({f"{table}.name": name}),
        lambda: base(**{table: name}),
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
        ("probe.beside", 3),
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
        base().with_changes({key: value})
    assert str(refusal.value).startswith(key)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"method.name": "simclr", "algorithm.update": "target"},
            'algorithm "fedavg" as set needs a method with a target; "simclr" as set has none',
        ),
        (
            {"method.predictor": False, "algorithm.predictor": "local"},
            'algorithm "fedavg" as set needs a method with a predictor; "byol" as set has none',
        ),
        ({"method.backbone": "resnt18"}, 'unknown backbone "resnt18", did you mean "resnet18"[?]'),
        ({"method.stem": "cifr"}, 'unknown stem "cifr", did you mean "cifar"[?]'),
        ({"method.init": "gone.safetensors"}, "method.init: there is no file gone.safetensors"),
        ({"data.mean": [0.5]}, "data: mean and std must be given together"),
        (
            {"probe.beside": ["randm"]},
            'experiment: unknown comparison "randm", did you mean "random"[?]',
        ),
        (
            {"method.view_size": 4, "method.augment.blur": 1.0, "method.augment.blur_kernel": 9},
            "a blur of 9 taps .*",
        ),
        ({"partition.name": "quantity"}, "partition: give either shares or alpha"),
        (
            {"clients": 0},
            "experiment: clients must be a number above 0: this partition does not bring its own",
        ),
        ({"clients": -1}, r"clients: input should be greater than or equal to 0 \(got -1\)"),
        ({"algorithm.name": "scaffold"}, 'unknown algorithm "scaffold"; known: .*fedavg.*'),
        ({"train.lr.x": 3}, '"train.lr.x": "lr" is not a table'),
    ],
)
def test_impossible_combinations_are_refused_in_one_sentence(
    changes: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ConfigError, match=f"^{sentence}$"):
        base().with_changes(changes).check()


def test_a_table_without_a_name_that_it_needs() -> None:
    with pytest.raises(ConfigError, match=r"^\[data\] needs a name; known: .*$"):
        Experiment.from_dict(BASE | {"data": {"holdout": 3}})


@pytest.mark.parametrize("partition", [{"name": "natural"}, {"name": "listed", "path": "x.json"}])
def test_partitions_that_define_their_clients(partition: dict[str, str]) -> None:
    values = {key: value for key, value in BASE.items() if key != "clients"} | {
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
        Experiment.from_dict(BASE | wrong)
    with pytest.raises(ConfigError) as by_name:
        Experiment(**BASE | wrong)
    assert str(by_name.value) == str(by_dict.value)
    assert "\n" not in str(by_name.value)
    assert Experiment(**BASE) == base()


def test_an_algorithm_that_needs_a_server(monkeypatch: pytest.MonkeyPatch) -> None:
    lonely = base(topology="isolated")
    assert isinstance(lonely.topology, Isolated)
    lonely.check()
    monkeypatch.setattr(type(lonely.algorithm), "needs_server", True)
    with pytest.raises(
        ConfigError, match=r'^algorithm "fedavg" needs a server; topology "isolated" has none$'
    ):
        lonely.check()
    base().check()
    # Here "random" is an untrained backbone, not the graph of that name.
    base(probe__beside=["random", "centralized"]).check()
    with pytest.raises(
        ConfigError, match=r'^probe.beside compares with "isolated", .*: set probe.beside = \[\]$'
    ):
        base(probe__beside=["isolated"]).check()


def test_checking_is_quick_reads_no_data_and_draws_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def read(*_: Any, **__: Any) -> None:
        raise AssertionError("data was read")

    for name in SOURCES.names():
        monkeypatch.setattr(SOURCES[name], "read", read)
    random = torch.get_rng_state()
    begun = time.perf_counter()
    for name in METHODS.names():
        cls = METHODS[name]
        usual = cls.Settings.model_fields["backbone"].default
        classes = {"method__classes": 2} if cls.learns_from_labels else {}
        backbone = usual if usual.startswith("vit") else "resnet50"
        base(method__name=name, method__backbone=backbone, **classes).check()
    load("demo")
    assert time.perf_counter() - begun < 2
    assert torch.equal(torch.get_rng_state(), random)


# -- settings that may change when a run is resumed --


@pytest.mark.parametrize(
    ("key", "value", "allowed"),
    [
        ("rounds", 101, True),
        ("rounds", 99, False),
        ("probe.every", 3, True),
        ("probe.k", 20, True),
        ("probe.temperature", 0.5, True),
        ("probe.linear", False, True),
        ("probe.labels", 100, True),
        ("probe.epochs", 3, True),
        ("probe.picture", True, True),
        ("probe.beside", ["random"], True),
        ("train.workers", 2, True),
        ("train.checkpoint_every", 0, True),
        ("train.memory", "disk", True),
        ("seed", 1, False),
        ("clients", 6, False),
        ("data.name", "cifar10", False),
        ("data.holdout", 10, False),
        ("data.leave_out", 0.1, False),
        ("partition.name", "natural", False),
        ("method.name", "simsiam", False),
        ("method.momentum", 0.5, False),
        ("method.backbone", "cnn5", False),
        ("method.augment.flip", 0.1, False),
        ("method.view_size", 16, False),
        ("algorithm.update", "both", False),
        ("algorithm.weights", "uniform", False),
        ("topology.name", "isolated", False),
        ("topology.participation", 0.5, False),
        ("train.epochs", 2, False),
        ("train.batch", 64, False),
        ("train.lr", 0.1, False),
        ("train.optimizer", "adam", False),
        ("train.schedule", "constant", False),
        ("train.decay_norms", False, False),
        ("train.precision", "bf16", False),
        ("train.threads", 2, False),
        ("train.deterministic", True, False),
        ("train.mode", "eager", False),
    ],
)
def test_settings_that_may_change_on_resume(
    key: str, value: Any, allowed: bool, tmp_path: Path
) -> None:
    begun = base()
    messages: list[str] = []
    cpu = torch.device("cpu")
    first = check_resumable(begun, tmp_path, cpu, messages.append)
    _start(tmp_path, first)
    assert check_resumable(begun, tmp_path, cpu, messages.append) == first
    wanted = begun.with_changes({key: value})
    assert key in differences(begun.to_dict(), wanted.to_dict())
    if allowed:
        assert may_change(key)
        assert check_resumable(wanted, tmp_path, cpu, messages.append).to_dict() != first.to_dict()
        assert len(messages) == (key == "rounds")  # a longer schedule is reported
    else:
        kept = (tmp_path / "experiment.toml").read_bytes()
        with pytest.raises(ConfigError, match=f"{key}: .* there, .* asked for"):
            check_resumable(wanted, tmp_path, cpu, messages.append)
        assert (tmp_path / "experiment.toml").read_bytes() == kept


def _start(folder: Path, experiment: Experiment) -> None:
    (folder / "experiment.toml").write_text(experiment.to_toml())
    (folder / "checkpoints").mkdir()
    (folder / "checkpoints/00000.json").touch()


def test_leftovers_of_a_failed_start_do_not_block_another(tmp_path: Path) -> None:
    """Without a checkpoint there is nothing to lose, but a file of the user is not overwritten."""
    other = base().with_changes({"seed": 1})
    path = tmp_path / "experiment.toml"
    path.write_text(base().to_toml())
    assert check_resumable(other, tmp_path, torch.device("cpu"), print).seed == 1
    path.write_text("# my own\n" + base().to_toml())
    with pytest.raises(ConfigError, match=r"seed: 0 there, 1 asked for"):
        check_resumable(other, tmp_path, torch.device("cpu"), print)


@pytest.mark.parametrize(
    ("changed", "more"), [(3, None), (4, "; and 1 more)"), (6, "; and 3 more)")]
)
def test_a_refusal_shows_three_differences_at_most(
    changed: int, more: str | None, tmp_path: Path
) -> None:
    _start(tmp_path, check_resumable(base(), tmp_path, torch.device("cpu"), print))
    keys = {
        "seed": 1,
        "clients": 6,
        "train.epochs": 2,
        "train.batch": 64,
        "train.lr": 0.1,
        "train.threads": 2,
    }
    wanted = base().with_changes(dict(list(keys.items())[:changed]))
    with pytest.raises(ConfigError) as refusal:
        check_resumable(wanted, tmp_path, torch.device("cpu"), print)
    sentence = str(refusal.value)
    assert sentence.count(" asked for") == 3
    assert (more in sentence) if more else (" more" not in sentence)


def test_precision_is_resolved_when_a_run_starts(tmp_path: Path) -> None:
    agreed = check_resumable(base(), tmp_path, torch.device("cpu"), print)
    assert agreed == base(train__precision="fp32")
    assert check_resumable(base(), tmp_path, torch.device("cuda"), print) == base(
        train__precision="bf16"
    )


def test_every_algorithm_has_a_name_in_its_toml() -> None:
    assert {
        base(algorithm=name).to_dict()["algorithm"]["name"] for name in ALGORITHMS.names()
    } == set(ALGORITHMS.names())
