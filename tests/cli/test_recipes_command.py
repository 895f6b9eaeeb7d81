"""fedssl recipes: lists, patterns and single recipes."""

from __future__ import annotations

import json
import shlex
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from fedssl.cli.recipes import COMMAND_LINES
from fedssl.experiment.experiment import Experiment
from fedssl.experiment.recipes import families, recipes

Cli = Callable[..., tuple[int, str, str]]


def test_recipes(cli: Cli) -> None:
    """Without a terminal, one line for each recipe, with its description and source."""
    code, out, _ = cli("recipes", "--all")
    lines = {
        line.split()[0]: " ".join(line.split()[1:]) for line in out.splitlines() if line.strip()
    }
    assert code == 0
    for name, recipe in recipes().items():
        assert lines[name] == f"{recipe.about} {recipe.source}".strip()
    places = [out.index(paper) for paper in families().values()]
    assert places == sorted(places)
    listed = json.loads(cli("recipes", "--json")[1])
    assert listed.keys() == recipes().keys()
    assert listed["fedu-ablation"]["source"] == "FedU, Figures 5 and 6"


def test_the_overview_fits_one_screen_and_counts_every_recipe(cli: Cli) -> None:
    code, out, _ = cli("recipes")
    assert code == 0
    assert len(out.splitlines()) <= 24
    counts = []
    for line in out.splitlines():
        words = line.split()
        if len(words) > 2 and words[1].isdigit():
            counts.append(int(words[1]))
    assert len(counts) == len(families())
    assert sum(counts) == len(recipes())


@pytest.mark.parametrize(("name", "about"), COMMAND_LINES)
def test_every_command_in_the_overview_works(name: str, about: str, cli: Cli) -> None:
    _, command, *args = shlex.split(name)
    if command == "recipes":
        assert cli(command, *args)[0] == 0


@pytest.mark.parametrize(
    ("pattern", "first", "count"),
    [
        ("FedEMA, Table 11", "fedema-cifar10-noniid", 4),
        # Not Tables 10 to 12; one recipe has two names.
        ("FedEMA, Table 1", "fedsimclr-cifar10-noniid", 5 * 2 + 1),
        ("Table 11", "fedema-cifar10-noniid", 4),
        # Of FedEMA (one recipe has two names), FedU and Dec-SSL.
        ("table 4", "fedbyol-cifar10-noniid", 13 + 12 + 5),
        ("mocov1", "fedmocov1-cifar10-iid", 8),
        ("fedema-cifar10-noniid-{tau,batch}#", "fedema-cifar10-noniid-tau0.1", 14),
        ("demo*", "demo", 1),
    ],
)
def test_some_recipes(pattern: str, first: str, count: int, cli: Cli) -> None:
    code, out, _ = cli("recipes", pattern)
    names = [
        line.split()[0]
        for line in out.splitlines()
        if line.strip() and line.split()[0] in recipes()
    ]
    assert (code, names[0], len(names)) == (0, first, count)
    assert list(json.loads(cli("recipes", pattern, "--json")[1])) == names


def test_no_recipe(cli: Cli) -> None:
    for args in (
        ("recipes", "nonsense"),
        ("recipes", "*-nonsense"),
        ("recipes", "--toml", "demos"),
    ):
        code, out, err = cli(*args)
        assert (code, out, err.count("\n")) == (2, "", 1)
    assert 'did you mean "demo"?' in err


@pytest.mark.parametrize(
    "name",
    ["demo", "fedbyol-cifar10", "fedema-cifar10-noniid-tau0.5-short", "fedu-cifar10-iid-mini"],
)
def test_a_recipe_is_printed_whole_and_can_be_run_from_a_file(
    name: str, cli: Cli, tmp_path: Path
) -> None:
    code, out, _ = cli("recipes", name)
    assert code == 0
    values = tomllib.loads(out)
    assert Experiment.from_dict(values).to_dict() == values
    assert cli("recipes", "--toml", name)[1] == out
    assert json.loads(cli("recipes", name, "--json")[1]) == values
    (tmp_path / "copy.toml").write_text(out)
    assert tomllib.loads(cli("recipes", str(tmp_path / "copy.toml"))[1]) == values
