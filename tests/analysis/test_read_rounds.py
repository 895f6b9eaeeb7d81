"""Analyses of the rounds log: series by client, and the cost of reaching an accuracy."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from error_messages import raises
from tiny_runs import Go, MakeImages

from fedssl.analysis import analyse
from fedssl.analysis.communication import default_targets, reached, spent
from fedssl.analysis.divergence import Divergence, quartiles, series
from fedssl.core.errors import ConfigError
from fedssl.core.state.state import State
from fedssl.data import from_python


def _line(round: int, knn: float | None, *clients: dict[str, Any]) -> dict[str, Any]:
    return {"round": round, "knn": knn, "knn_common": None, "clients": list(clients)}


def test_every_axis_has_numbers_where_another_run_lacks_the_metric() -> None:
    metric = {"client": ((1.0, 2.0), (2.0, 1.0))}
    results = {"keys": ["drift"], "runs": {"without": {}, "with": {"drift": metric}}}
    figure = Divergence().draw(results)
    figure.canvas.draw()
    empty, drawn = figure.axes
    assert not empty.axison
    assert any(label.get_text() for label in drawn.get_yticklabels() if label.get_visible())


def test_series_leave_out_clients_without_a_value() -> None:
    """Client b is dropped in round 1 only; a's note `divergence` is kept apart from the log's."""
    rounds = [
        _line(
            1,
            None,
            {"client": "a", "dropped": None, "loss": 2.0, "divergence": 5.0},
            {"client": "b", "dropped": "x"},
        ),
        _line(
            2,
            None,
            {
                "client": "a",
                "loss": 1.0,
                "divergence": None,
                "notes": {"divergence": 0.5, "mu": 0.7},
            },
            {"client": "b", "loss": 3.0},
        ),
    ]
    assert series(rounds) == {
        "loss": {"a": [[1, 2.0], [2, 1.0]], "b": [[2, 3.0]]},
        "divergence": {"a": [[1, 5.0]]},
        "noted divergence": {"a": [[2, 0.5]]},
        "mu": {"a": [[2, 0.7]]},
    }


def test_quartiles_over_clients() -> None:
    """Of 1, 2, 3, 4, 10 the quartiles are 2, 3 and 4; of one value, all three are that value."""
    clients = {str(v): [[1, v]] for v in (10.0, 1.0, 3.0, 2.0, 4.0)} | {"late": [[2, 7.0]]}
    assert quartiles(clients) == [(1, 2.0, 3.0, 4.0), (2, 7.0, 7.0, 7.0)]


def test_fedemas_mu_is_drawn(go: Go) -> None:
    run = go(**{"algorithm.name": "fedema", "rounds": 3})
    results = analyse("divergence", [run]).results
    mu = results["runs"]["run"]["mu"]
    for number, points in enumerate(mu.values()):
        logged = [line["clients"][number]["notes"]["mu"] for line in run.rounds[1:]]
        assert [value for _, value in points] == logged
    assert {"drift", "noted divergence", "lam", "loss", "effective_rank"} <= set(results["keys"])
    assert {"alignment", "uniformity"} <= set(results["keys"])
    first = run.rounds[0]["clients"][0]
    assert results["runs"]["run"]["uniformity"][first["client"]][0] == [1, first["uniformity"]]


def test_with_several_models_sent_the_divergence_is_from_the_one_that_was_trained(go: Go) -> None:
    run = go(**{"algorithm.name": "featarc"})
    assert list(analyse("divergence", run).results["runs"]["run"]["divergence"]) == ["0", "1", "2"]


def test_a_run_without_a_note_has_an_empty_panel(go: Go) -> None:
    run = go("fedema", **{"algorithm.name": "fedema"})
    results = analyse("divergence", [go("fedavg"), run], keys=["mu", "loss"]).results
    assert results["keys"] == ["mu", "loss"]
    assert "mu" not in results["runs"]["fedavg"]


def test_many_clients_are_drawn_as_a_band(go: Go) -> None:
    run = go(clients=12)
    assert len(analyse("divergence", [run]).results["runs"]["run"]["loss"]) == 12


def test_uploads_of_a_private_run_have_unknown_sizes(go: Go) -> None:
    pytest.importorskip("dp_accounting")
    private = {"privacy.clip": 1.0, "privacy.noise": 10.0, "privacy.delta": 0.1}
    run = go(**private, **{"method.norm": "group"})
    assert [line["up"] for line in spent(run)] == [None, None]
    found = analyse("communication", [run])
    (row, *_) = found.summary.rows
    assert row[5] == "–"


def test_bytes_add_up_over_rounds_and_clients(go: Go) -> None:
    """Three clients send and receive a model in each of two rounds of two epochs."""
    run = go(**{"train.epochs": 2})
    size = run.rounds[0]["clients"][0]["bytes_up"]
    assert size > 1000
    lines = spent(run)
    assert [line["up"] for line in lines] == [3 * size, 6 * size]
    assert [line["down"] for line in lines] == [3 * size, 6 * size]
    assert [line["epochs"] for line in lines] == [2, 4]
    assert lines[1]["images"] == sum(c["images"] for line in run.rounds for c in line["clients"])


def test_a_dropped_client_has_cost_its_message(go: Go) -> None:
    run = go()
    lines = run.rounds
    client = lines[0]["clients"][1]
    lines[0]["clients"][1] = {
        "client": "1",
        "dropped": "too late",
        "bytes_down": client["bytes_down"],
    }
    (run.dir / "rounds.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (run.dir / "rounds.jsonl.copy").unlink()
    first = spent(run)[0]
    assert first["down"] == 3 * client["bytes_down"]
    assert first["up"] == 2 * client["bytes_up"]


@pytest.mark.parametrize(
    ("topology", "copies"), [("isolated", 0), ("cycle", 8), ("tree", 6), ("complete", 12)]
)
def test_peers_pay_for_every_neighbour(go: Go, topology: str, copies: int) -> None:
    """Four peers: a cycle has 4 edges, a tree 3, a complete graph 6; each carries two models."""
    run = go(clients=4, **{"topology.name": topology, "rounds": 1})
    size = run.rounds[0]["clients"][0]["bytes_up"]
    assert [(line["up"], line["down"]) for line in spent(run)] == [(copies * size, 0)]


def test_peers_that_do_not_take_part_neither_send_nor_receive(go: Go) -> None:
    """Two of four peers in a complete graph: one edge between them in each round."""
    run = go(clients=4, **{"topology.name": "complete", "topology.participation": 0.5})
    size = run.rounds[0]["clients"][0]["bytes_up"]
    assert [line["up"] for line in spent(run)] == [2 * size, 4 * size]


def test_the_first_round_that_reaches_an_accuracy() -> None:
    lines = [_line(1, None), _line(2, 40.0), _line(3, 55.0), _line(4, 50.0)]
    assert reached(lines, 40, "knn") == lines[1]
    assert reached(lines, 50, "knn") == lines[2]
    assert reached(lines, 55.1, "knn") is None


def test_default_targets() -> None:
    assert default_targets(highest=82.3, lowest=68.0) == [70.0, 75.0, 80.0]
    assert default_targets(highest=82.3, lowest=10.0) == [55.0, 60.0, 65.0, 70.0, 75.0, 80.0]
    assert default_targets(highest=53.9, lowest=51.0) == [53.0]


def test_a_target_that_is_not_reached_is_reported(go: Go, images: MakeImages) -> None:
    """100% is out of reach where half of the test images have the label of another class."""
    pixels, labels = images(24, 1)
    half = from_python(images(48, 0), (pixels, (labels + (torch.arange(24) < 12)) % 3))
    output = analyse("communication", [go("run", half)], accuracies=[100, 1])
    assert output.results["targets"] == [1, 100]
    assert output.results["reached"]["run"][0]["round"] == 1
    assert output.results["reached"]["run"][1] is None
    assert output.summary.rows[0][2:4] == ["1", "1"]
    assert output.summary.rows[1][2:6] == ["–"] * 4
    assert output.summary.rows[1][6].startswith("not reached (best ")


def test_a_run_that_measured_nothing_is_refused(go: Go, images: MakeImages) -> None:
    """The error gives advice that helps: without labels, measuring more often does not help."""
    with raises(ConfigError):
        analyse("communication", [go(**{"probe.every": 0})])
    unlabelled = from_python(images(48, 0)[0])
    for folder, every in (("often", 1), ("never", 0)):
        run = go(folder, unlabelled, **{"probe.every": every})
        with raises(ConfigError):
            analyse("communication", [run])
    with raises(ConfigError):
        analyse("communication", [go("one")], of="knn_common")


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"probe.k": 3}, r"probe\.k is 5 in one, 3 in other"),
        ({"probe.temperature": 0.5}, r"probe\.temperature is 0\.1 in one, 0\.5 in other"),
        (
            {"probe.k": 3, "probe.temperature": 0.5},
            r"probe\.k is 5 .*; probe\.temperature is 0\.1 ",
        ),
    ],
)
def test_accuracies_measured_otherwise_are_refused(
    go: Go, changes: dict[str, Any], named: str
) -> None:
    runs = [go("one"), go("other", **changes)]
    with pytest.raises(ConfigError, match=f"kNN accuracies cannot be compared: {named}"):
        analyse("communication", runs)
    assert not (runs[0].dir / "analysis").exists()


def test_settings_that_do_not_change_a_knn_accuracy_may_differ(go: Go) -> None:
    runs = [go("one"), go("other", **{"probe.epochs": 7, "probe.labels": 9, "train.lr": 0.01})]
    assert analyse("communication", runs, accuracies=[1]).summary.notes[1:] == []


def test_a_run_that_changed_its_probe_on_the_way_is_refused(go: Go) -> None:
    """Rounds 1 and 2 were measured with k = 5, the third with k = 3."""
    go("run")
    run = go("run", rounds=3, **{"probe.k": 3})
    with raises(ConfigError):
        analyse("communication", [run])


def test_accuracies_on_other_images_or_labels_are_refused(go: Go, images: MakeImages) -> None:
    pixels, labels = images(24, 1)
    others = {
        "images": from_python(images(48, 0), images(24, 2)),
        "labels": from_python(images(48, 0), (pixels, (labels + 1) % 3)),
    }
    one = go("one")
    for name, data in others.items():
        with pytest.raises(ConfigError, match=f"{name}: other test images or labels than one"):
            analyse("communication", [one, go(name, data)])


def test_unfinished_runs_are_compared_by_the_settings_of_their_images(go: Go) -> None:
    runs = [go("one"), go("other", **{"data.holdout": 12})]
    for run in runs:
        (run.dir / "results.json").unlink()
    with raises(ConfigError):
        analyse("communication", runs)
    assert analyse("communication", runs[:1], accuracies=[1]).results["targets"] == [1]


def test_how_often_each_run_was_measured_is_noted(go: Go) -> None:
    output = analyse(
        "communication", [go("often"), go("seldom", **{"probe.every": 2})], accuracies=[1]
    )
    assert "(often every 1, seldom every 2)" in output.summary.notes[1]


def test_sizes_are_those_of_the_tensors(go: Go) -> None:
    """A FedAvg upload is the online model: its bytes in the log are those of its tensors."""
    run = go()
    state: State = run.models()["global"]
    assert run.rounds[0]["clients"][0]["bytes_up"] == state.nbytes
