"""What a cell trains and measures, where it lies, and the command that gives the same."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import fedssl
from fedssl.changes import parse_assignment
from fedssl.errors import ConfigError
from fedssl.evaluate import for_probe
from fedssl.experiment import load
from fedssl.reproduce.plan import Want, passes, wants
from fedssl.reproduce.swept import split, swept
from fedssl.tables import Cell, tables
from fedssl.variants import find

CPU, ROOT = torch.device("cpu"), Path("runs/reproduce")
LINEAR = Cell("r", "c", "fedbyol-cifar10-noniid", "linear", ("protocol=fedema",))


def one(cell: Cell, suffix: str = "", seed: int = 0) -> Want:
    (want,) = wants([cell], suffix, [seed], ROOT, CPU)
    assert want.problem is None
    return want


def test_cells_that_train_the_same_share_a_folder() -> None:
    """A linear and a kNN measurement, with any settings; the mini variants of CIFAR-10 and -100, which are the same."""
    first = one(LINEAR)
    for other in (
        Cell("r", "c", "fedbyol-cifar10-noniid", "knn"),
        Cell("r", "c", "fedbyol-cifar10-noniid", "linear", ("labels=100", "protocol=ccl")),
        Cell("r", "c", "fedbyol-cifar10-noniid", "linear", (), ("probe.protocol=ccl", "probe.picture=true")),
    ):
        assert one(other).training == first.training
        assert one(other).training.folder == first.training.folder
        assert one(other).measure.file != first.measure.file
    mini, other = (one(Cell("r", "c", f"fedbyol-cifar{n}-noniid", "linear"), "-mini") for n in (10, 100))
    assert mini.training == other.training


def test_what_a_sweep_asks_of_a_probe_reaches_it() -> None:
    """Also one that begins anew: labels of an experiment are its linear probe's, but these were asked for."""
    for probe in ("linear", "semi", "collaborative"):
        for change in ("probe.labels=0.1", "probe.epochs=5", "probe.lr=0.5", "probe.batch=7"):
            (key, value), cell = parse_assignment(change), Cell("r", "c", "demo", probe, (), (change,))
            want = one(cell)
            measured = for_probe(want.training.experiment, probe, dict(want.measure.settings)).probe
            assert getattr(measured, key.removeprefix("probe.")) == value
    assert one(Cell("r", "c", "demo", "semi")).measure.settings == ()  # the demo's linear probe has 100 labels


def test_what_differs_in_training_does_not() -> None:
    folders = {
        want.training.folder
        for want in (
            one(LINEAR),
            one(LINEAR, seed=1),
            one(LINEAR, "-short"),
            one(LINEAR, "-mini"),
            one(Cell("r", "c", LINEAR.recipe, "semi", (), ("data.leave_out=0.01",))),
            one(Cell("r", "c", LINEAR.recipe, "rounds-to", ("target=70",), ("probe.every=1",))),
            *wants([LINEAR], "", [0], ROOT, torch.device("cuda")),  # another precision
        )
    }
    assert len(folders) == 7
    assert all(folder.name.startswith("byol-fedavg-") for folder in folders)


def test_the_command_gives_the_same_experiment_and_the_same_probe() -> None:
    cells = [cell for name in ("fedema-3", "fedema-4", "fedu-3", "ccl-3", "decssl-4") for cell in tables()[name].cells]
    for cell in [*cells, Cell("r", "c", "demo", "linear"), Cell("r", "c", "demo", "semi")]:
        want = one(cell, "-mini" if cell.recipe != "demo" else "")
        run, _, evaluate = want.training.command(want.measure, "cpu", Path("data")).partition(" && ")
        words = shlex.split(run)
        experiment = load(words[2], [words[i + 1] for i, word in enumerate(words) if word == "--set"])
        assert experiment.with_changes({"train.precision": "fp32"}).hash() == want.training.key
        assert words[words.index("--dir") + 1] == str(want.training.folder)
        words = shlex.split(evaluate)
        given = dict(parse_assignment(words[i + 1]) for i, word in enumerate(words) if word == "--set")
        assert given == dict(want.measure.settings)
        assert words[words.index("--probe") + 1] == cell.probe


def test_a_probe_has_the_settings_of_its_recipe_but_not_the_labels_where_a_model_is_fine_tuned() -> None:
    """demo's linear probe has 100 labels, and CCL's recipes their own protocol."""
    assert one(Cell("r", "c", "demo", "linear")).measure.settings == (("labels", 100),)
    assert one(Cell("r", "c", "demo", "semi")).measure.settings == ()
    assert one(Cell("r", "c", "ccl-cifar10-iid", "linear")).measure.settings == (("protocol", "ccl"),)
    assert one(Cell("r", "c", "demo", "linear", ("labels=7",))).measure.settings == (("labels", 7),)


def test_a_probe_gets_none_of_a_recipes_settings_that_it_does_not_use() -> None:
    """CCL's recipes have a protocol and these changes a penalty: only `linear` uses both."""
    used = {
        "linear": {"protocol", "penalty"},
        "per-client": {"protocol", "penalty"},
        "semi": {"protocol"},
        "collaborative": set(),
        "classifier": set(),
        "knn": set(),
    }
    for probe, keys in used.items():
        want = one(Cell("r", "c", "ccl-supervised-cifar10-iid", probe, (), ("probe.penalty=0.1",)))
        assert {*dict(want.measure.settings)} == keys, probe
        for_probe(want.training.experiment, probe, dict(want.measure.settings))
    assert one(Cell("r", "c", "demo", "knn", ("k=3",))).measure.settings == (("k", 3),)


def test_what_cannot_be_trained_has_its_reason() -> None:
    (want,) = wants([Cell("r", "c", "demo", "linear", (), ("rounds=0",))], "", [0], ROOT, CPU)
    assert want.training is None
    assert "rounds" in (want.problem or "")
    (want,) = wants([Cell("r", "c", "nosuch", "linear")], "", [0], ROOT, CPU)
    assert 'no recipe or file "nosuch"' in (want.problem or "")


def test_passes() -> None:
    """50,000 images × 5 epochs × 100 rounds; a quarter of the clients; 90% of the images; nobody knows how many."""
    assert passes(find("fedbyol-cifar10-iid")) == 25e6
    assert passes(find("fedema-cifar10-iid-5of20")) == 25e6  # of 400 rounds
    assert passes(find("fedbyol-cifar10-iid") | {"data": {"name": "cifar10", "leave_out": 0.1}}) == 22.5e6
    assert passes(find("decssl-simclr-amazon-natural")) is None


# -- sweeps --


def test_values_are_separated_by_commas_outside_of_brackets_and_quotes() -> None:
    assert split("0.1,0.2") == ["0.1", "0.2"]
    assert split("[0.2,1],[0.5,1.0]") == ["[0.2,1]", "[0.5,1.0]"]
    assert split('"a,b",c') == ['"a,b"', "c"]
    assert split("""{x="[,", y=1},2""") == ["""{x="[,", y=1}""", "2"]
    assert split("5") == ["5"]


def test_a_sweep_has_all_combinations() -> None:
    table = swept("demo", ["algorithm.mu=0.1,1", "method=byol,simclr", "rounds=2"], ["knn", "linear"])
    assert len(table.cells) == 8
    assert table.title == "demo with rounds=2"
    assert table.rows[1] == "algorithm.mu=0.1, method=simclr"
    assert table.cells[2].set == ("algorithm.mu=0.1", "method=simclr", "rounds=2")
    assert swept("demo", [], ["knn"]).rows == ["as it is"]


@pytest.mark.parametrize(
    "wrong", ["rounds", "rounds=1,,2", "rounds=1,1", "rounds=[1", "seed=1,2", "train.lr=0.004,4e-3", "topology=a,'a'"]
)
def test_a_sweep_that_makes_no_sense_is_refused(wrong: str) -> None:
    with pytest.raises(ConfigError):
        swept("demo", [wrong], ["knn"])


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("rounds=1,2", "rounds=2"),
        ("topology=star,isolated", "topology.name=star"),
        ("train.lr=0.1,0.2", "train={lr=0.3}"),
    ],
)
def test_a_key_that_two_set_is_refused(one: str, other: str) -> None:
    """Or both rows would be trained with the last, and say otherwise."""
    for both in ([one, other], [other, one]):
        with pytest.raises(ConfigError, match="set the same key: name it once"):
            swept("demo", both, ["knn"])
    swept("demo", ["method=byol,simclr", "method.dim=8,16", "train.lr=0.1", "train.batch=8"], ["knn"])
    swept("demo", ["method=byol,simclr", "method={dim=8},{dim=16}", "train={lr=0.1}"], ["knn"])


def test_a_table_in_a_sweep_changes_only_the_keys_it_names(tmp_path: Path) -> None:
    """So that it trains and measures what dotted keys do."""
    tabled, dotted = (
        next(wants(swept("demo", [*changes], ["semi"]).cells, "", [0], tmp_path, torch.device("cpu")))
        for changes in (["train={lr=0.1}", "probe={labels=50}"], ["train.lr=0.1", "probe.labels=50"])
    )
    assert tabled.problem is None
    assert tabled.training == dotted.training
    assert tabled.measure == dotted.measure
    assert tabled.measure is not None
    assert dict(tabled.measure.settings)["labels"] == 50


def test_a_probe_asked_for_twice_is_refused() -> None:
    """Or its one figure would count as that of two seeds."""
    with pytest.raises(ConfigError, match="asked for twice: knn, linear, knn"):
        swept("demo", [], ["knn", "linear", "knn"])


def test_unknown_names_are_refused_with_what_is_near(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="fedema-fig7a, fedema-fig7b"):
        fedssl.reproduce("fedema-fig7", dir=tmp_path)
    with pytest.raises(ConfigError, match="fedema-3"):
        fedssl.reproduce("fedmea-3", dir=tmp_path)
    with pytest.raises(ConfigError, match="no cell"):
        fedssl.reproduce("fedema-3", cells=["nosuch"], dir=tmp_path)
    with pytest.raises(ConfigError, match="scale"):
        fedssl.reproduce("fedema-3", scale="tiny", dir=tmp_path)
    with pytest.raises(ConfigError, match="probe"):
        fedssl.sweep("demo", probes=["nosuch"], dir=tmp_path)
    with pytest.raises(ConfigError, match="rouns"):
        fedssl.sweep("demo", ["rouns=1,2"], dir=tmp_path)
    assert list(tmp_path.iterdir()) == []


def refusal(cell: Cell) -> str | None:
    """Why nothing is trained for a cell; None: something is."""
    (want,) = wants([cell], "", [0], ROOT, CPU)
    assert (want.training is None) == (want.problem is not None)
    return want.problem


def test_a_classifier_that_nobody_trains_is_refused_before_training(tmp_path: Path) -> None:
    simclr = Cell("r", "c", "demo", "classifier")
    assert refusal(simclr) == 'probe "classifier" measures one that the run itself trained; simclr trains none'
    assert refusal(replace(simclr, set=("method=supervised", "method.classes=10"))) is None
    with pytest.raises(ConfigError, match="simclr trains none"):
        fedssl.sweep("demo", probes=["classifier"], dir=tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("changes", "chosen"),
    [
        (["topology=isolated"], "topology = isolated"),
        (["topology=cycle"], "topology = cycle"),
        (["algorithm=fedbn"], "algorithm = fedbn"),
        (["topology=isolated", "clients=1"], None),
        (["algorithm=fedbn", "topology=centralized"], None),
        ([], None),
    ],
)
def test_clients_that_end_with_models_of_their_own_have_none_to_fine_tune(
    changes: list[str], chosen: str | None
) -> None:
    """A single client has but one model."""
    problem = chosen and f'probe "collaborative" fine-tunes one model; with {chosen} each client has its own'
    assert refusal(Cell("r", "c", "demo", "collaborative", (), tuple(changes))) == problem
    assert refusal(Cell("r", "c", "demo", "per-client", (), tuple(changes))) is None


def test_one_training_is_fine_tuned_both_ways_and_its_probe_solved_both_ways(tmp_path: Path) -> None:
    """What a recipe says of training the probe, and its protocol, is nothing to the exact solver."""
    for probe, axis in (("semi", "probe.frozen=false,true"), ("linear", "probe.solver=protocol,lbfgs")):
        table = swept("fedu-cifar10-noniid-mini", [axis], [probe])
        one, other = wants(table.cells, "", [0], tmp_path, torch.device("cpu"))
        assert one.problem is other.problem is None
        assert one.training == other.training is not None
        assert one.measure != other.measure is not None
        for want in (one, other):
            assert want.measure is not None
            for_probe(want.training.experiment, probe, dict(want.measure.settings))
