"""Runs of algorithms with a model per client: measured, exported, the same after a stop."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from error_messages import raises
from factories import bright_dataset, make_experiment
from safetensors import safe_open
from safetensors.torch import load_file

import fedssl
from fedssl.cli.results import print_results
from fedssl.core.errors import ConfigError, RunError
from fedssl.data import Dataset
from fedssl.runs.local import Interrupted

CLIENTS = ["0", "1", "2"]
SHARED: dict[str, list[str]] = {
    "fedbn": [],
    "perssfl": ["global"],
    "featarc": ["cluster 0", "cluster 1"],
}
Go = Callable[..., fedssl.Run]


@pytest.fixture
def labelled() -> Dataset:
    return bright_dataset()


@pytest.fixture
def go(labelled: Dataset, tmp_path: Path) -> Go:
    """go("fedbn", "folder", rounds=1): a tiny run with this algorithm."""

    def run(algorithm: str, folder: str = "run", **changes: Any) -> fedssl.Run:
        experiment = make_experiment(
            algorithm__name=algorithm,
            method={"hidden": 32, "dim": 16},
            train__schedule="constant",
            probe={"every": 1, "linear": True},
        )
        return fedssl.run(experiment, tmp_path / folder, dataset=labelled, quiet=True, set=changes)

    return run


def _hashes(run: fedssl.Run) -> dict[str, str]:
    return {
        f"{file.name}/{name}": hashlib.sha256(tensor.numpy().tobytes()).hexdigest()
        for file in sorted(run.dir.glob("backbone*.safetensors"))
        for name, tensor in load_file(file).items()
    }


@pytest.mark.parametrize("tier", ["host", "disk"])
@pytest.mark.parametrize("name", SHARED)
def test_a_resumed_run_equals_an_uninterrupted_one(name: str, tier: str, go: Go) -> None:
    whole = go(name, "whole")
    go(name, "parts", rounds=1, **{"train.client_memory": tier})
    parts = go(name, "parts", **{"train.client_memory": tier, "train.workers": 2})
    assert _hashes(parts) == _hashes(whole)
    assert {file.rpartition("/")[0] for file in _hashes(whole)} == {
        f"backbone-{model.replace(' ', '%20')}.safetensors" for model in CLIENTS + SHARED[name]
    }
    clock = ("seconds", "images_per_s", "clients")
    assert [
        {k: v for k, v in line.items() if k not in (*clock, "of")} for line in parts.rounds
    ] == [{k: v for k, v in line.items() if k not in (*clock, "of")} for line in whole.rounds]


@pytest.mark.parametrize("name", SHARED)
def test_measured_and_exported_models(name: str, go: Go) -> None:
    run = go(name)
    shared = SHARED[name]
    assert list(run.models()) == CLIENTS + shared
    score = run.results["table"]["this run"]["knn"]
    assert list(score["models"]) == CLIENTS + shared
    assert score.get("excluded", []) == shared
    each = [score["models"][client] for client in CLIENTS]
    assert (score["mean"], score["std"]) == (
        pytest.approx(np.mean(each)),
        pytest.approx(np.std(each, ddof=1)),
    )
    assert run.rounds[-1]["knn"] == score["mean"]
    common = [score["models"][model] for model in shared]
    assert run.rounds[-1]["knn_common"] == (pytest.approx(np.mean(common)) if shared else None)
    assert run.evaluate("knn") == score["models"]
    assert run.evaluate("linear").mean == run.results["table"]["this run"]["linear"]["mean"]
    for client in CLIENTS:
        with safe_open(run.dir / f"backbone-{client}.safetensors", "pt") as file:
            assert file.metadata()["model"] == client
        saved = load_file(run.dir / f"backbone-{client}.safetensors")
        backbone = run.backbone(client)
        assert all(torch.equal(saved[key], tensor) for key, tensor in backbone.state_dict().items())
    with raises(ConfigError):
        run.backbone()


def test_personal_models_of_each_algorithm(go: Go) -> None:
    """FedBN: equal weights, other norm layers. Per-SSFL: all weights differ. FeatARC: the cluster's
    model.
    """

    def equal(run: fedssl.Run, kind: str, one: str, other: str) -> bool:
        tensors = [
            load_file(run.dir / f"backbone-{m.replace(' ', '%20')}.safetensors")
            for m in (one, other)
        ]
        # A block is a convolution, 0, and a norm, 1.
        chosen = [key for key in tensors[0] if (".1." in key) == (kind == "norm")]
        assert chosen
        return all(torch.equal(tensors[0][key], tensors[1][key]) for key in chosen)

    runs = {name: go(name, name) for name in SHARED}
    assert equal(runs["fedbn"], "weight", "0", "1")
    assert not equal(runs["fedbn"], "norm", "0", "1")
    for other in ("1", "global"):
        assert not equal(runs["perssfl"], "weight", "0", other)
        assert not equal(runs["perssfl"], "norm", "0", other)
    notes = {c["client"]: c["notes"] for c in runs["featarc"].rounds[-1]["clients"]}
    for client in CLIENTS:
        for kind in ("weight", "norm"):
            assert equal(runs["featarc"], kind, client, f"cluster {notes[client]['cluster']:.0f}")


def test_the_log_has_the_copys_loss_and_notes(go: Go) -> None:
    """Per-SSFL trains twice; the log has the training of the copy, whose loss is FedAvg's."""
    ours = go("perssfl")
    theirs = go("fedavg", "other")
    for mine, other in zip(ours.rounds, theirs.rounds, strict=True):
        assert mine["loss"] == other["loss"]
        for a, b in zip(mine["clients"], other["clients"], strict=True):
            assert (a["loss"], a["steps"], a["images"]) == (b["loss"], b["steps"], b["images"])
            assert a["notes"].keys() == {"own_loss"}
            assert a["notes"]["own_loss"] != a["loss"]
    clusters = [
        [c["notes"]["cluster"] for c in line["clients"]] for line in go("featarc", "third").rounds
    ]
    assert clusters[0] == [0, 1, 0]


@pytest.mark.parametrize("topology", ["isolated", "cycle", "centralized"])
@pytest.mark.parametrize("name", SHARED)
def test_other_topologies(name: str, topology: str, go: Go) -> None:
    run = go(name, **{"topology.name": topology})
    clients = ["all"] if topology == "centralized" else CLIENTS
    shared = SHARED[name]
    if topology == "isolated":
        shared = [f"{client}/{model}" for client in clients for model in shared]
    if topology == "cycle":
        shared = ["mean"] if len(shared) == 1 else [f"mean/{model}" for model in shared]
    score = run.results["table"]["this run"]["knn"]
    assert list(run.models()) == clients + shared
    assert score.get("excluded", []) == shared
    assert not any(c["dropped"] for line in run.rounds for c in line["clients"])
    assert (run.rounds[-1]["knn_common"] is None) == (not shared)


def test_a_client_that_never_trained_has_no_model(go: Go) -> None:
    run = go("fedbn", **{"topology.participation": 0.34, "rounds": 1, "guard.min_uploads": 1})
    (asked,) = (c["client"] for c in run.rounds[0]["clients"])
    assert list(run.models()) == [asked]
    assert run.backbone()(torch.zeros(2, 3, 10, 10)).shape == (2, 512)
    assert [path.name for path in run.dir.glob("backbone*")] == ["backbone.safetensors"]


def test_before_any_client_has_trained(
    go: Go, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run stopped in its first round: Per-SSFL has the first global model, FedBN none."""

    def stop(*args: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("fedssl.runs.session.federate", stop)
    for name in ("fedbn", "perssfl"):
        with pytest.raises(Interrupted):
            go(name, name)
    assert list(fedssl.Run(tmp_path / "perssfl").models()) == ["global"]
    run = fedssl.Run(tmp_path / "fedbn")
    assert len(run.models()) == 0
    for ask in (run.backbone, run.evaluate):
        with raises(ConfigError):
            ask()


def test_rounds_in_which_no_client_can_train(labelled: Dataset, tmp_path: Path) -> None:
    """All losses become infinite: there is no model and no measurement, and the run ends."""
    experiment = make_experiment(
        algorithm__name="fedbn", method__name="simclr", probe__every=1, train__lr=1e9
    )
    with raises(RunError):
        fedssl.run(experiment, tmp_path / "run", dataset=labelled, quiet=True)
    assert [line["knn"] for line in fedssl.Run(tmp_path / "run").rounds] == [None, None]


def test_missing_memories(go: Go) -> None:
    run = go("perssfl")
    (run.dir / "memory" / "rows").unlink()
    with raises(RunError):
        run.models()


@pytest.mark.parametrize("name", SHARED)
def test_the_table(name: str, go: Go, capsys: pytest.CaptureFixture[str]) -> None:
    """A mean ± spread over clients, a row for each excluded model, and the comparisons."""
    run = go(name, **{"probe.baselines": ["random", "isolated"], "probe.picture": name == "fedbn"})
    print_results(run)
    rows = [line.split("│")[1:-1] for line in capsys.readouterr().out.splitlines() if "│" in line]
    names = [row[0].strip() for row in rows]
    words = {"global": "global model"}
    expected = [
        "this run",
        *(words.get(m, m) for m in SHARED[name]),
        "random backbone",
        "each client alone",
        "gain over clients alone",
        "gain over random",
    ]
    assert names == expected
    for row in rows:
        several = row[0].strip() in ("this run", "each client alone")
        assert all(("±" in cell) == several for cell in row[1:])
    assert (run.dir / "picture.png").is_file() == (name == "fedbn")


def test_norm_layers_that_are_sent_for_evaluation(go: Go) -> None:
    """Clients' own models are the same as without; there is also a global one, and a note."""
    plain = go("fedbn", "plain")
    travelling = go("fedbn", "travelling", **{"algorithm.eval_norm": "mean"})
    assert list(travelling.models()) == [*CLIENTS, "global"]
    for client in CLIENTS:
        ours, theirs = (
            load_file(r.dir / f"backbone-{client}.safetensors") for r in (plain, travelling)
        )
        assert all(torch.equal(ours[key], theirs[key]) for key in ours)
    sizes = [[c["bytes_up"] for c in run.rounds[0]["clients"]] for run in (plain, travelling)]
    assert all(a < b for a, b in zip(*sizes, strict=True))
    assert [c["notes"] for c in travelling.rounds[0]["clients"]] == [{"norms_sent": 1.0}] * 3
    assert "notes" not in plain.rounds[0]["clients"][0]
    json.loads((travelling.dir / "results.json").read_text())


def test_the_mean_of_norm_layers_is_measured_alone(go: Go) -> None:
    """The one model is the global one of `mean`, bit for bit, and clients' models are not made."""
    both = go("fedbn", "both", **{"algorithm.eval_norm": "mean"})
    alone = go("fedbn", "alone", **{"algorithm.eval_norm": "mean-only"})
    assert list(alone.models()) == ["global"]
    assert [file.name for file in alone.dir.glob("backbone*")] == ["backbone.safetensors"]
    ours = load_file(alone.dir / "backbone.safetensors")
    theirs = load_file(both.dir / "backbone-global.safetensors")
    assert all(torch.equal(ours[key], theirs[key]) for key in ours)
    measured = alone.results["table"]["this run"]["knn"]
    assert measured == {"mean": both.results["table"]["this run"]["knn"]["models"]["global"]}
