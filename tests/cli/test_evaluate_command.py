"""fedssl evaluate, on runs with one or several models."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors import safe_open

from fedssl.core.files import integrity

Cli = Callable[..., tuple[int, str, str]]


@pytest.fixture
def finished(here: Path, cli: Cli) -> str:
    """Return the standard output of a run in runs/mine."""
    code, out, _ = cli("run", "mine.toml", "--quiet", "--set", "probe.k=200")
    assert code == 0
    return out


def test_notes_of_a_run_are_printed_and_exported(finished: str) -> None:
    assert "k = 200 is more than the 36 labelled images: all of them vote\n" in finished
    results = json.loads(Path("runs/mine/results.json").read_text())
    with safe_open("runs/mine/backbone.safetensors", "pt") as file:
        assert file.metadata()["notes"] == "; ".join(results["notes"])


def test_evaluate(finished: str, cli: Cli) -> None:
    code, out, _ = cli("evaluate", "runs/mine", "--probe", "knn", "--set", "k=3")
    assert code == 0
    heading = (
        "knn (k = 3) on mine.npz: accuracy on 12 test images, learned from 36 labelled images\n"
    )
    assert re.fullmatch(re.escape(heading) + r"global: [\d.]+%\n", out)
    code, out, _ = cli(
        "evaluate", "runs/mine", "--set", "labels=6", "--set", "probe.epochs=2", "--json"
    )
    assert code == 0
    assert json.loads(out).keys() == {
        "probe",
        "code",
        "note",
        "labelled",
        "tested",
        "mean",
        "models",
        "per_class",
        "confusion",
    }


def test_evaluate_an_unfinished_run(finished: str, cli: Cli) -> None:
    """Its number of rounds was raised, and it was killed before the next round."""
    path = Path("runs/mine/experiment.toml")
    longer = path.read_text().replace("rounds = 2", "rounds = 3")
    integrity.write_copied(path.parent, path.name, longer)
    _, out, _ = cli("evaluate", "runs/mine", "--probe", "knn", "--set", "k=3")
    assert out.splitlines()[-1] == "the run is not finished: this is its newest checkpoint"


def test_evaluate_a_model_for_each_client(here: Path, cli: Cli) -> None:
    isolated = ["--set", "topology.name=isolated", "--dir", "alone"]
    assert cli("run", "mine.toml", "--quiet", *isolated)[0] == 0
    _, out, _ = cli("evaluate", "alone", "--probe", "knn", "--set", "k=37")
    models = [line.partition(":")[0] for line in out.splitlines()[1:-1]]
    assert models == ["0", "1", "2", "on average"]
    note = "k = 37 is more than the 36 labelled images: all of them vote"
    assert out.splitlines()[-1] == note
    _, out, _ = cli("evaluate", "alone", "--probe", "per-client", "--set", "epochs=2")
    assert re.fullmatch(
        r"per.*\n(\d: [\d.]+%  \(in its own mix of classes: [\d.]+%\)\n){3}on average: .*\n", out
    )


def test_evaluate_peers(here: Path, cli: Cli) -> None:
    """The mean of the peers' models is measured, but is not part of the average."""
    cycle = ["--set", "topology=cycle", "--dir", "peers"]
    assert cli("run", "mine.toml", "--quiet", *cycle)[0] == 0
    _, out, _ = cli("evaluate", "peers", "--probe", "knn", "--set", "k=3")
    lines = out.splitlines()[1:]
    assert [line.partition(":")[0] for line in lines] == ["0", "1", "2", "mean", "on average"]
    apart = [line.endswith("(not in the average)") for line in lines]
    assert apart == [False, False, False, True, False]
    assert "mean of the peers" in cli("run", "mine.toml", *cycle)[1]


def test_wrong_arguments_of_evaluate(finished: str, cli: Cli) -> None:
    for args, sentence in (
        (["nowhere"], "there is no run directory nowhere"),
        (["runs/mine", "--probe", "knnn"], 'unknown probe "knnn", did you mean "knn"?'),
        (["runs/mine", "--probe", "transfer"], "another data set, with --on NAME"),
        (["runs/mine", "--on", "cifar1"], 'unknown data set "cifar1", did you mean "cifar10"?'),
        (["runs/mine", "--on", "cifar10", "--set", "data.hold=3"], 'unknown key "data.hold"'),
        (["runs/mine", "--set", "data.size=3"], "add --on NAME"),
        (["runs/mine", "--set", "data={size=3}"], "add --on NAME"),
        (
            ["runs/mine", "--set", "probe={label=3}"],
            'unknown key "probe.label", did you mean "probe.labels"?',
        ),
        (
            ["runs/mine", "--on", "data"],
            "data is a folder: use --on folder --set data.path=data --set data.layout=classes",
        ),
        (
            ["runs/mine", "--probe", "knn", "--set", "labels=100"],
            'probe "knn" has no setting "labels"; its settings: k, temp',
        ),
        (
            ["runs/mine", "--set", "label=3"],
            'unknown key "probe.label", did you mean "probe.labels"?',
        ),
    ):
        code, _, err = cli("evaluate", *args)
        assert (code, err.count("\n")) == (2, 1)
        assert sentence in err
