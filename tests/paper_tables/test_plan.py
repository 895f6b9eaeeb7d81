"""The training and measurement of a cell, their folder, and the command that gives the same."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from error_messages import raises

import fedssl
from fedssl.core.errors import ConfigError
from fedssl.evaluation.probe_settings import with_probe_settings
from fedssl.experiment.experiment import load
from fedssl.experiment.lookup import find_recipe
from fedssl.experiment.plain_values import parse_assignment
from fedssl.paper_tables.plan import SeedPlan, image_passes, plan_seeds
from fedssl.paper_tables.published import Cell, tables
from fedssl.paper_tables.sweep import sweep_table

CPU = torch.device("cpu")
ROOT = Path("runs/reproduce")
LINEAR = Cell("r", "c", "fedbyol-cifar10-noniid", "linear", ("protocol=fedema",))


def one(cell: Cell, suffix: str = "", seed: int = 0) -> SeedPlan:
    """Return the plan of one seed of a cell that can be trained."""
    (plan,) = plan_seeds([cell], suffix, [seed], ROOT, CPU)
    assert plan.problem is None
    return plan


def test_cells_that_train_the_same_share_a_folder() -> None:
    """Different probes and settings; the mini variants of CIFAR-10 and -100, which are the same."""
    first = one(LINEAR)
    for other in (
        Cell("r", "c", "fedbyol-cifar10-noniid", "knn"),
        Cell("r", "c", "fedbyol-cifar10-noniid", "linear", ("labels=100", "protocol=ccl")),
        Cell(
            "r",
            "c",
            "fedbyol-cifar10-noniid",
            "linear",
            (),
            ("probe.protocol=ccl", "probe.picture=true"),
        ),
    ):
        assert one(other).training == first.training
        assert one(other).training.folder == first.training.folder
        assert one(other).measure.file != first.measure.file
    mini, other = (
        one(Cell("r", "c", f"fedbyol-cifar{n}-noniid", "linear"), "-mini") for n in (10, 100)
    )
    assert mini.training == other.training


def test_probe_settings_of_a_sweep_reach_the_probe() -> None:
    """Also a probe that ignores a recipe's labels, because those are for its linear probe."""
    for probe in ("linear", "semi", "collaborative"):
        for change in ("probe.labels=0.1", "probe.epochs=5", "probe.lr=0.5", "probe.batch=7"):
            key, value = parse_assignment(change)
            plan = one(Cell("r", "c", "demo", probe, (), (change,)))
            measured = with_probe_settings(
                plan.training.experiment, probe, dict(plan.measure.settings)
            ).probe
            assert getattr(measured, key.removeprefix("probe.")) == value
    # The linear probe of the demo has 100 labels.
    assert one(Cell("r", "c", "demo", "semi")).measure.settings == ()


def test_cells_that_train_differently_share_no_folder() -> None:
    folders = {
        plan.training.folder
        for plan in (
            one(LINEAR),
            one(LINEAR, seed=1),
            one(LINEAR, "-short"),
            one(LINEAR, "-mini"),
            one(Cell("r", "c", LINEAR.recipe, "semi", (), ("data.leave_out=0.01",))),
            one(Cell("r", "c", LINEAR.recipe, "rounds-to", ("target=70",), ("probe.every=1",))),
            *plan_seeds([LINEAR], "", [0], ROOT, torch.device("cuda")),  # another precision
        )
    }
    assert len(folders) == 7
    assert all(folder.name.startswith("byol-fedavg-") for folder in folders)


def test_the_command_gives_the_same_experiment_and_the_same_probe() -> None:
    cells = [
        cell
        for name in ("fedema-3", "fedema-4", "fedu-3", "ccl-3", "decssl-4")
        for cell in tables()[name].cells
    ]
    for cell in [*cells, Cell("r", "c", "demo", "linear"), Cell("r", "c", "demo", "semi")]:
        plan = one(cell, "-mini" if cell.recipe != "demo" else "")
        run, _, evaluate = plan.training.command(plan.measure, "cpu", Path("data")).partition(
            " && "
        )
        words = shlex.split(run)
        experiment = load(
            words[2], [words[i + 1] for i, word in enumerate(words) if word == "--set"]
        )
        assert experiment.with_changes({"train.precision": "fp32"}).hash() == plan.training.key
        assert words[words.index("--dir") + 1] == str(plan.training.folder)
        words = shlex.split(evaluate)
        given = dict(
            parse_assignment(words[i + 1]) for i, word in enumerate(words) if word == "--set"
        )
        assert given == dict(plan.measure.settings)
        assert words[words.index("--probe") + 1] == cell.probe


def test_a_probe_has_the_settings_of_its_recipe_but_not_the_labels_for_fine_tuning() -> None:
    """demo's linear probe has 100 labels, and CCL's recipes their own protocol."""
    assert one(Cell("r", "c", "demo", "linear")).measure.settings == (("labels", 100),)
    assert one(Cell("r", "c", "demo", "semi")).measure.settings == ()
    assert one(Cell("r", "c", "ccl-cifar10-iid", "linear")).measure.settings == (
        ("protocol", "ccl"),
    )
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
        plan = one(Cell("r", "c", "ccl-supervised-cifar10-iid", probe, (), ("probe.penalty=0.1",)))
        assert {*dict(plan.measure.settings)} == keys, probe
        with_probe_settings(plan.training.experiment, probe, dict(plan.measure.settings))
    assert one(Cell("r", "c", "demo", "knn", ("k=3",))).measure.settings == (("k", 3),)


def test_a_cell_that_cannot_be_trained_has_its_reason() -> None:
    (plan,) = plan_seeds([Cell("r", "c", "demo", "linear", (), ("rounds=0",))], "", [0], ROOT, CPU)
    assert plan.training is None
    assert "rounds" in (plan.problem or "")
    (plan,) = plan_seeds([Cell("r", "c", "nosuch", "linear")], "", [0], ROOT, CPU)
    assert 'no recipe or file "nosuch"' in (plan.problem or "")


def test_image_passes() -> None:
    """50,000 images × 5 epochs × 100 rounds; 5 of 20 clients; 90% of the images; unknown."""
    assert image_passes(find_recipe("fedbyol-cifar10-iid")) == 25e6
    assert image_passes(find_recipe("fedema-cifar10-iid-5of20")) == 25e6  # of 400 rounds
    left_out = {"data": {"name": "cifar10", "leave_out": 0.1}}
    assert image_passes(find_recipe("fedbyol-cifar10-iid") | left_out) == 22.5e6
    assert image_passes(find_recipe("decssl-simclr-amazon-natural")) is None


def refusal(cell: Cell) -> str | None:
    """Return why a cell cannot be trained; None if it can."""
    (plan,) = plan_seeds([cell], "", [0], ROOT, CPU)
    assert (plan.training is None) == (plan.problem is not None)
    return plan.problem


def test_a_classifier_that_is_not_trained_is_refused(tmp_path: Path) -> None:
    simclr = Cell("r", "c", "demo", "classifier")
    assert (
        refusal(simclr)
        == 'probe "classifier" measures the classifier that a run has trained, but method "simclr" '
        'trains none: choose another probe, such as "linear"'
    )
    assert refusal(replace(simclr, set=("method=supervised", "method.classes=10"))) is None
    with raises(ConfigError):
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
def test_the_collaborative_probe_needs_a_global_model(
    changes: list[str], chosen: str | None
) -> None:
    """A single client has but one model."""
    problem = (
        chosen
        and f'probe "collaborative" fine-tunes one model; with {chosen} each client has its own: '
        "choose another probe"
    )
    assert refusal(Cell("r", "c", "demo", "collaborative", (), tuple(changes))) == problem
    assert refusal(Cell("r", "c", "demo", "per-client", (), tuple(changes))) is None


def test_the_protocols_of_fine_tuning_together() -> None:
    """FedCA's Table 2 has FedCA's, CCL's Table 3 the default; a recipe's protocol is for others."""
    (fedca,) = {plan_settings(cell) for cell in collaborative_cells("fedca-2", 0.1)}
    assert fedca == (("labels", 0.1), ("protocol", "fedca"))
    for name in ("fedu-2", "fedema-7"):
        (copied,) = {plan_settings(cell) for cell in collaborative_cells(name, 0.1)}
        assert copied == fedca
    (ccl,) = {plan_settings(cell) for cell in collaborative_cells("ccl-3", 0.1)}
    assert ccl == (("labels", 0.1),)

    def swept(*changes: str) -> tuple[tuple[str, Any], ...]:
        return plan_settings(Cell("r", "c", "ccl-cifar10-iid", "collaborative", (), changes))

    assert swept() == swept("probe.protocol=ccl") == ()
    assert swept("probe.protocol=fedca") == (("protocol", "fedca"),)
    assert swept("probe.head=mlp") == (("head", "mlp"),)
    same = Cell("r", "c", "demo", "collaborative", (), ("probe.head=mlp",))
    assert one(same).training == one(Cell("r", "c", "demo", "collaborative")).training
    # Before anything is trained, not after it.
    unknown = Cell("r", "c", "demo", "collaborative", (), ("probe.protocol=easyfl",))
    assert refusal(unknown) == (
        'probe "collaborative" has no protocol "easyfl"; its protocols: ccl, fedca'
    )


def collaborative_cells(table: str, labels: float) -> list[Cell]:
    """Return the cells of a table that clients fine-tune together with a share of labels."""
    found = []
    for cell in tables()[table].cells:
        if cell.probe == "collaborative" and f"labels={labels}" in cell.settings:
            found.append(cell)
    return found


def plan_settings(cell: Cell) -> tuple[tuple[str, Any], ...]:
    return one(cell).measure.settings


def test_one_training_is_fine_tuned_both_ways_and_its_probe_solved_both_ways(
    tmp_path: Path,
) -> None:
    """The exact solver ignores the protocol of a recipe."""
    for probe, axis in (
        ("semi", "probe.frozen=false,true"),
        ("linear", "probe.solver=protocol,lbfgs"),
    ):
        table = sweep_table("fedu-cifar10-noniid-mini", [axis], [probe])
        one, other = plan_seeds(table.cells, "", [0], tmp_path, torch.device("cpu"))
        assert one.problem is other.problem is None
        assert one.training == other.training is not None
        assert one.measure != other.measure is not None
        for plan in (one, other):
            assert plan.measure is not None
            with_probe_settings(plan.training.experiment, probe, dict(plan.measure.settings))
