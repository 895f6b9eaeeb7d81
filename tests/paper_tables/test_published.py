"""Published tables: every cell can be run, none is missing, and repeated figures agree."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest

from fedssl.evaluation.probe_settings import check_probe, with_probe_settings
from fedssl.experiment.experiment import Experiment
from fedssl.experiment.lookup import find_recipe
from fedssl.experiment.overrides import merge_changes
from fedssl.experiment.plain_values import parse_assignment
from fedssl.experiment.recipes import recipes
from fedssl.paper_tables.log_figures import divergence, rounds_to
from fedssl.paper_tables.published import LOGGED, Cell, read, tables

CELLS = [(table, cell) for table in tables().values() for cell in table.cells]


def test_every_cell_trains_an_experiment_and_measures_with_settings_that_its_probe_has() -> None:
    for table, cell in CELLS:
        assert cell.recipe in recipes(), (table.name, cell.row)
        changes = dict(map(parse_assignment, cell.set))
        # Other keys belong into recipes, which test_recipes checks.
        assert {key.split(".")[0] for key in changes} <= {"data", "probe"}
        for variant in ("", "-short", "-mini"):
            experiment = Experiment.from_dict(
                merge_changes(find_recipe(cell.recipe + variant), changes)
            )
        settings = dict(map(parse_assignment, cell.settings))
        if cell.probe in LOGGED:
            assert settings.keys() == {{"rounds-to": "target", "divergence": "at"}[cell.probe]}
        else:
            check_probe(cell.probe)
            with_probe_settings(experiment, cell.probe, settings)  # refuses what it does not know


def test_a_cell_with_labels_left_out_is_measured_with_those() -> None:
    """`semi` learns from the images that were left out, unless `labels` is set."""
    left_out = [cell for _, cell in CELLS if any("leave_out" in each for each in cell.set)]
    assert {cell.set for cell in left_out} == {("data.leave_out=0.01",), ("data.leave_out=0.1",)}
    for cell in left_out:
        assert cell.probe == "semi"
        assert not any(each.startswith("labels") for each in cell.settings)


def test_no_note_takes_frozen_for_the_authors_protocol() -> None:
    """The authors' code trains another head, in training mode, and prints the best test epoch."""
    notes = [table.note for table in tables().values() if "frozen" in table.note]
    assert len(notes) == 3
    for note in notes:
        authors, _, frozen = note.partition("frozen=true")
        assert "--set protocol=easyfl`" in authors
        for difference in ("Linear-4096-BatchNorm-ReLU-Linear", "training mode", "best test epoch"):
            assert difference in authors
        for ours in ("evaluation mode", "without BatchNorm", "the last epoch"):
            assert ours in frozen


def test_tables_have_the_recipes_that_cite_them_and_no_others() -> None:
    in_tables = defaultdict(set)
    for table, cell in CELLS:
        in_tables[f"{table.paper}, {cell.place}"].add(cell.recipe)
    cited = defaultdict(set)
    for name, recipe in recipes().items():
        if name == "fedbyol-cifar10":  # another name of fedbyol-cifar10-noniid
            continue
        for place in recipe.places:
            cited[place].add(name)
    assert in_tables == cited


def test_names_have_paper_and_place() -> None:
    for name, table in tables().items():
        noun, number = table.place.split()
        paper = table.paper.lower().replace("-", "")
        assert name.startswith(f"{paper}-{'fig' if noun == 'Figure' else ''}{number}"), name


def test_a_figure_printed_twice_is_the_same() -> None:
    """Finds typing errors, because many settings are in several tables.

    The exceptions are in the papers: FedEMA's Tables 2 and 12 and Figure 9 differ from its Tables 3
    and 5.
    """
    known = {
        ("FedEMA", "fedbyol-cifar10-iid"): {84.29, 84.20},
        ("FedEMA", "fedsimsiam-cifar10-iid"): {81.46, 80.50},
        ("FedEMA", "fedbyol-cifar10-noniid"): {79.44, 78.25, 79.08},
        ("FedEMA", "fedema-cifar10-noniid"): {83.34, 82.54},
    }
    printed = defaultdict(set)
    for table, cell in CELLS:
        if cell.value is not None and cell.cannot is None:
            how = (cell.probe, cell.settings, cell.set, cell.on)
            printed[table.paper, cell.recipe, how].add(cell.value)
    for (paper, recipe, how), values in printed.items():
        assert len(values) == 1 or values == known.get((paper, recipe)), (
            paper,
            recipe,
            how,
            values,
        )


def test_figures_that_papers_copy_from_each_other_are_the_same() -> None:
    """FedU's Tables 1 to 3 and FedEMA's 5 and 7 have rows of FedCA's.

    FedU's row of supervised FedAvg on CIFAR-100 is in another order.
    """
    fedca = {(cell.recipe, _labels(cell), cell.on): cell.value for cell in _of("FedCA")}
    copied = 0
    for cell in [*_of("FedU"), *_of("FedEMA"), *_of("Dec-SSL")]:
        at = (cell.recipe, _labels(cell), cell.on)
        if at in fedca and "supervised-resnet50-cifar100" not in cell.recipe:
            copied += 1
            assert cell.value == fedca[at], cell
    # FedU 1, 2 (with supervised CIFAR-10), 3; FedEMA 5, 7; Dec-SSL 2
    assert copied == 8 + 16 + 4 + 8 + 4 + 4 + 2


def _of(paper: str) -> list[Cell]:
    return [cell for table, cell in CELLS if table.paper == paper]


def _labels(cell: Cell) -> str:
    return next((each for each in cell.settings if each.startswith("labels=")), "")


@pytest.mark.parametrize(
    ("table", "row", "column", "published"),
    [
        ("fedema-1", "FedSimSiam", "CIFAR-100", "48.94±0.22"),
        ("fedema-3", "FedEMA (autoscaler, τ = 0.7)", "CIFAR-10, non-IID", "83.34±0.39"),
        ("fedema-5", "FedCA, ResNet-50", "CIFAR-100, IID", "43.30"),
        ("fedema-6", "FedEMA", "8/80, CIFAR-10, non-IID", "64.19"),
        ("fedema-7", "FedSimSiam, ResNet-50", "CIFAR-10, 10% of labels", "15.25"),
        ("fedema-11", "80%", "E = 10", "50"),
        ("fedu-2", "FedU, ResNet-50", "CIFAR-10, non-IID, 1% of labels", "71.19"),
        ("fedu-4", "target → both", "local predictor", "29.03"),
        ("fedca-1", "FedCA, non-IID", "CIFAR-10, 5-layer CNN", "63.02"),
        ("fedca-3", "FedSimCLR, IID", "Mini-ImageNet → CIFAR-10, ResNet-50", "94.87"),
        ("ccl-1", "CCL", "Fashion-MNIST, non-IID 2", "90.08"),
        ("ccl-2", "FedCA", "non-IID 1, CIFAR-100, 1% of labels", "8.07"),
        ("decssl-2", "FeatARC", "non-IID", "84.63"),
        ("decssl-4", "Dec-SSL, non-IID", "1% of labels", "36"),
        ("decssl-fig17a", "distance", "alpha 0.01", "1.57"),
        ("decssl-fig17b", "distance", "beta 0", "1.62"),
    ],
)
def test_figures_of_the_papers(table: str, row: str, column: str, published: str) -> None:
    cells = {(cell.row, cell.column): cell for cell in tables()[table].cells}
    assert cells[row, column].published == published


def test_a_picture_of_splits_has_those_of_the_paper_alone() -> None:
    """Figure 17 prints ten distances, five of either kind: only these are cells."""
    published = [cell.published for table, cell in CELLS if table.place == "Figure 17"]
    assert len(published) == 10
    assert None not in published


def test_a_figure_of_curves_and_a_table_is_measured_by_both() -> None:
    """FedEMA's Figure 2: kNN of all variants; linear evaluation with and without stop-gradient."""
    found = {(cell.recipe, cell.probe) for cell in tables()["fedema-fig2"].cells}
    names = ("fedbyol-cifar10-noniid", "fedsimsiam-cifar10-noniid")
    variants = {
        "": ("knn", "linear"),
        "-no-predictor": ("knn",),
        "-no-stop-gradient": ("knn", "linear"),
    }
    assert found == {
        (name + word, probe)
        for name in names
        for word, probes in variants.items()
        for probe in probes
    }


def test_private_images_are_the_reason() -> None:
    assert all("private" in (cell.cannot or "") for _, cell in CELLS if "amazon" in cell.recipe)


# -- the format, by hand --

FILE: dict[str, Any] = {
    "paper": "P",
    "p-1": {
        "place": "Table 1",
        "title": "t",
        "probe": "semi",
        "with": ["labels={labels}"],
        "set": ["data.leave_out={labels}"],
        "columns": {"data": ["cifar10", "other"], "labels": [0.01, 1]},
        "rows": [
            ["A", "a-{data}", "1.50±0.2 - ? 4"],
            ["B", "b", {"probe": "linear", "with": [], "on": "{data}", "cannot": "no"}],
        ],
    },
}


def test_rows_times_columns() -> None:
    table = read(FILE)["p-1"]
    columns = [
        "CIFAR-10, 1% of labels",
        "other, 1% of labels",
        "other, 100% of labels",
        "CIFAR-10, 100% of labels",
    ]
    found = list(dict.fromkeys(cell.column for cell in table.cells))
    assert found == columns  # in order of appearance: row A has no cell in CIFAR-10, 100%
    assert [(c.recipe, c.published, c.value) for c in table.cells if c.row == "A"] == [
        ("a-cifar10", "1.50±0.2", 1.5),
        ("a-other", None, None),
        ("a-other", "4", 4.0),
    ]
    first, second = table.cells[0], table.cells[3]
    assert (first.probe, first.settings, first.set) == (
        "semi",
        ("labels=0.01",),
        ("data.leave_out=0.01",),
    )
    assert (second.probe, second.settings, second.on, second.cannot) == (
        "linear",
        (),
        "cifar10",
        "no",
    )


@pytest.mark.parametrize(
    "wrong",
    [
        {"rows": [["A", "a", "1 2 3"]]},
        {"rows": [["A", "a"], ["A", "b"]]},
        {"rows": [["A", "a", {"prob": "knn"}]]},
        {"colums": {}},
    ],
)
def test_an_inconsistent_table_is_rejected(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="p-1"):
        read({"paper": "P", "p-1": FILE["p-1"] | wrong})


def test_the_note_of_a_whole_file() -> None:
    """It is added to the notes of tables that can be reproduced, such as those of Dec-SSL."""
    own = FILE["p-1"] | {"note": "Own."}
    found = read({"paper": "P", "note": "All.", "p-1": own, "p-2": own | {"cannot": "private"}})
    assert list(found) == ["p-1", "p-2"]
    assert (found["p-1"].note, found["p-2"].note) == ("Own. All.", "Own.")
    linear = [
        t
        for t in tables().values()
        if t.paper == "Dec-SSL" and any(c.cannot is None for c in t.cells)
    ]
    assert len(linear) > 20
    for table in linear:
        assert {cell.probe for cell in table.cells} == {"linear"}
        assert "as in the authors' code (`protocol=dec-ssl`)" in table.note
        protocols = {cell.settings[0] for cell in table.cells}
        assert "protocol=dec-ssl" in protocols
        # Rows for other papers have these papers' protocols.
        assert len(protocols) == (3 if table.name == "decssl-2" else 1)
        assert 'the paper trains it "until' in table.note


# -- figures from the rounds log --


def test_rounds_to_a_target_and_divergence_on_the_way() -> None:
    """kNN 60, none, 70, 80 after rounds 1 to 4; two of three clients measure a divergence."""
    knn = [60.0, None, 70.0, 80.0]
    log = [
        {
            "round": i + 1,
            "knn": knn[i],
            "clients": [{"divergence": i + 1.0}, {"divergence": i + 3.0}, {}],
        }
        for i in range(4)
    ]
    assert [rounds_to(log, target) for target in (60, 61, 80, 81)] == [1, 3, 4, None]
    assert [divergence(log, at) for at in (0.1, 0.5, 1)] == [2.0, 3.0, 5.0]
