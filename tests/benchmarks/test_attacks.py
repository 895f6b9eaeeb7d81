"""The attacks by hand, and the tables of the page that states their results."""

from __future__ import annotations

import json
from pathlib import Path

import torch

from benchmarks.attackers import random_update, scale_update, shift_means
from benchmarks.attacks import COMPARED, DEFENCES, with_tables
from fedssl.core.state.layout import Entry, Layout
from fedssl.core.state.state import State
from fedssl.experiment.experiment import load

ROOT = Path(__file__).parent.parent.parent
LAYOUT = Layout.of(
    [
        Entry("backbone.w", (100,), "weight"),
        Entry("backbone.running_mean", (2,), "statistic"),
        Entry("backbone.running_var", (2,), "statistic"),
    ]
)


def model(weight: float, mean: float, variance: float) -> State:
    floats = torch.tensor([weight] * 100 + [mean] * 2 + [variance] * 2)
    return State(LAYOUT, floats, torch.zeros(0, dtype=torch.int64))


def test_a_sign_flip() -> None:
    """2 − 8 · (3 − 2) = −6; running means too: 1 − 8 · 0.5 = −3; variances as trained."""
    bad = scale_update(-8.0)(model(2.0, 1.0, 4.0), model(3.0, 1.5, 9.0))
    assert torch.equal(bad.floats, model(-6.0, -3.0, 9.0).floats)


def test_means_that_moved() -> None:
    """1 + 1.5 · √4 = 4; weights and variances are honest."""
    bad = shift_means(1.5)(model(2.0, 1.0, 4.0), model(3.0, 1.5, 9.0))
    assert torch.equal(bad.floats, model(3.0, 4.0, 9.0).floats)


def test_a_random_update_has_eight_times_the_honest_norm() -> None:
    """100 weights that moved by 1: the honest norm is 10."""
    sent = model(2.0, 1.0, 4.0)
    bad = random_update(8.0)(sent, model(3.0, 1.5, 9.0))
    torch.testing.assert_close(bad.distance(sent), torch.tensor(80.0))
    assert torch.equal(bad.floats[100:], model(3.0, 1.5, 9.0).floats[100:])


def test_every_defence_is_a_valid_experiment() -> None:
    for defence in DEFENCES.values():
        load("demo", defence)


def test_the_page_has_the_tables_of_the_results() -> None:
    page = (ROOT / "docs/explanation/guarantees.md").read_text("utf-8")
    results = json.loads((ROOT / "results/demo/attacks.json").read_text("utf-8"))["runs"]
    assert with_tables(page, results) == page
    assert all(f"| {attack} |" in page for attack in COMPARED)
