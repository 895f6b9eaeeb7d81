"""Angles between features, distances between weights, local models and maps."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import fedssl
from fedssl.analysis import analyse
from fedssl.analysis.angles import angles, pairwise
from fedssl.analysis.local import local_models
from fedssl.analysis.look import titled
from fedssl.analysis.maps import Map, principal, same_class_nearby
from fedssl.analysis.weights import common, distances
from fedssl.data import Dataset, from_python
from fedssl.errors import ConfigError
from fedssl.layout import Entry, Layout
from fedssl.runtimes import local as runtime
from fedssl.runtimes.attend import attend
from fedssl.store import Store
from fedssl.tree import State, model

Go = Callable[..., fedssl.Run]
Make = Callable[[int, int], tuple[torch.Tensor, torch.Tensor]]


def quiet(line: str) -> None: ...


def _state(**tensors: list[float]) -> State:
    """`backbone_w=[…]` is the weight backbone.w; a name that ends in `mean` is a running statistic."""
    named = {name.replace("_", "."): torch.tensor(values) for name, values in tensors.items()}
    entries = [
        Entry(name, tuple(t.shape), "statistic" if name.endswith("mean") else "weight") for name, t in named.items()
    ]
    state = State.empty(Layout.of(entries))
    for name, view in state.tensors().items():
        view.copy_(named[name])
    return state


def test_angles_by_hand() -> None:
    """Equal, 60 degrees apart, perpendicular and opposite vectors, and two that are 1e-9 of a degree apart."""
    tiny = math.radians(1e-9)
    one = torch.tensor([[1.0, 0.0]] * 5, dtype=torch.float64)
    other = torch.tensor(
        [[1, 0], [0.5, math.sqrt(0.75)], [0, 1], [-1, 0], [math.cos(tiny), math.sin(tiny)]], dtype=torch.float64
    )
    expected = torch.tensor([0, 60, 90, 180, 1e-9], dtype=torch.float64)
    torch.testing.assert_close(angles(one, other), expected, rtol=1e-6, atol=1e-15)


def test_angles_of_pairs_against_a_loop() -> None:
    stream = torch.Generator().manual_seed(0)
    rows = {name: F.normalize(torch.randn(7, 4, generator=stream, dtype=torch.float64)) for name in "abc"}
    found = pairwise(rows)
    for pair in found["pairs"]:
        one, other = (rows[name].tolist() for name in pair["pair"])
        slow = sorted(
            math.degrees(math.acos(sum(x * y for x, y in zip(a, b, strict=True))))
            for a, b in zip(one, other, strict=True)
        )
        assert pair["mean"] == pytest.approx(sum(slow) / 7)
        assert pair["quantiles"][2] == pytest.approx(slow[3], rel=1e-5)
        i, j = (found["models"].index(name) for name in pair["pair"])
        assert found["mean"][i][j] == found["mean"][j][i] == pytest.approx(sum(slow) / 7, rel=1e-5)
    assert [found["mean"][i][i] for i in range(3)] == [0, 0, 0]
    assert len(found["pairs"]) == 3


def test_features_of_another_width_have_no_angle() -> None:
    with pytest.raises(ConfigError, match=r"\[4, 5\]"):
        pairwise({"a": torch.ones(2, 4), "b": torch.ones(2, 5)})


def test_angles_of_isolated_clients_are_those_of_their_backbones(go: Go, images: Make) -> None:
    """Against backbones loaded from the files that the run exported."""
    run = go(**{"topology.name": "isolated"})
    found = analyse("angles", [run], say=quiet, images=10).found
    assert found["models"] == ["0", "1", "2"]
    pixels = images(24, 1)[0][:10].float() / 255
    with torch.no_grad():
        a, b = (F.normalize(run.backbone(name)(pixels)) for name in ("0", "2"))
    slow = torch.rad2deg(torch.acos((a * b).sum(1).clamp(-1, 1)))
    pair = next(each for each in found["pairs"] if each["pair"] == ["0", "2"])
    assert pair["mean"] == pytest.approx(float(slow.mean()), abs=0.02)
    assert pair["mean"] > 1


def test_projections_are_compared_on_demand(go: Go) -> None:
    run = go(**{"topology.name": "isolated"})
    h, z = (analyse("angles", [run], say=quiet, what=what).found["pairs"][0]["mean"] for what in ("h", "z"))
    assert h != pytest.approx(z, abs=0.1)


def test_runs_with_other_test_images_are_not_compared(go: Go, images: Make) -> None:
    other = from_python(images(48, 0), images(24, 2))
    with pytest.raises(ConfigError, match="other test images"):
        analyse("angles", [go("one"), go("other", other)], say=quiet)


def test_models_of_several_runs_are_compared(go: Go) -> None:
    same = analyse("angles", [go("one"), go("two"), go("three", seed=1)], say=quiet).found
    assert same["models"] == ["one/global", "two/global", "three/global"]
    assert same["mean"][0][1] == pytest.approx(0, abs=1e-4)
    assert same["mean"][0][2] > 1


def test_distances_by_hand() -> None:
    """backbone.a differs by (3, 4), norm 5; backbone.b by 2; projector.w by 6. d_w is 5 + 2 + 6 = 13 and the L2
    distance √(25 + 4 + 36) = √65. A running mean is no weight."""
    one = _state(backbone_a=[0.0, 0.0], backbone_b=[1.0], backbone_mean=[0.0], projector_w=[1.0])
    other = _state(backbone_a=[3.0, 4.0], backbone_b=[3.0], backbone_mean=[9.0], projector_w=[7.0])
    found = distances(one, other)
    assert found["total"] == 13
    assert found["l2"] == pytest.approx(math.sqrt(65))
    assert found["parts"] == {"backbone": 7, "projector": 6}
    assert found["layers"] == {"backbone.a": 5, "backbone.b": 2, "projector.w": 6}


def test_parts_that_only_one_model_has_do_not_count() -> None:
    one, other = _state(backbone_a=[0.0], target_a=[5.0], predictor_w=[1.0]), _state(backbone_a=[2.0], target_a=[9.0])
    assert distances(one, other)["layers"] == {"backbone.a": 2}
    with pytest.raises(ConfigError, match=r"backbone\.a has shape"):
        common([one, _state(backbone_a=[1.0, 2.0])])


def test_the_l2_distance_is_that_of_the_log(go: Go) -> None:
    """`divergence` in the rounds log is between the model that was sent and the one that came back. From the first
    round on, isolated clients receive what they returned: so theirs in round 2 is the way from round 1 to round 2."""
    before = go("before", rounds=1, **{"topology.name": "isolated"})
    after = go("after", rounds=2, **{"topology.name": "isolated"})
    found = analyse("weights", [before, after], say=quiet).found
    pair = next(each for each in found["pairs"] if set(each["pair"]) == {"before/1", "after/1"})
    assert pair["l2"] == pytest.approx(after.rounds[1]["clients"][1]["divergence"], rel=1e-5)


@pytest.mark.parametrize("algorithm", ["fedavg", "fedema", "ccl", "fedca"])
def test_local_models_are_those_of_the_next_round(go: Go, algorithm: str) -> None:
    """How far each is from what the checkpoint sends is how far clients go, as the log has it, when the run goes on;
    and nothing in the directory changes by looking."""
    method = {"ccl": "mocov2", "fedca": "simclr"}.get(algorithm, "byol")
    extra: dict[str, Any] = {"ccl": {"method.queue": 16, "algorithm.neighbours": 3}}.get(algorithm, {})
    changes = {"algorithm.name": algorithm, "method.name": method, **extra}
    run = go(**changes)
    files = {path: path.read_bytes() for path in run.dir.rglob("*") if path.is_file()}
    found = local_models(run, fedssl.Run.data, quiet)
    assert {path: path.read_bytes() for path in run.dir.rglob("*") if path.is_file()} == files
    snapshot = Store(run.dir).load(quiet)
    assert snapshot is not None
    sent = [value for value in snapshot.sites["server"].values() if isinstance(value, State)]
    clients = go(**changes, rounds=3).rounds[2]["clients"]
    assert list(found) == [client["client"] for client in clients] == ["0", "1", "2"]
    for client in clients:
        state = found[client["client"]]
        way = math.hypot(*(float(state.restricted(each.layout).distance(each)) for each in sent))
        assert way == pytest.approx(client["divergence"], rel=1e-4)


@pytest.fixture
def uploads(monkeypatch: pytest.MonkeyPatch) -> dict[tuple[int, str], State]:
    """The models that clients of runs send from here on, by round and client."""
    sent: dict[tuple[int, str], State] = {}

    def attended(work: Any, client: str, round: int, *rest: Any) -> Any:
        reply = attend(work, client, round, *rest)
        if reply.upload is not None:
            sent[round, client] = model(reply.upload, "model").clone()
        return reply

    monkeypatch.setattr(runtime, "attend", attended)
    return sent


@pytest.fixture
def two_threads() -> Iterator[None]:
    """What a caller may have, beside runs whose clients have one."""
    found = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(found)


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("algorithm", ["fedavg", "fedbn", "perssfl", "featarc"])
def test_local_models_are_the_next_rounds_uploads(
    go: Go, algorithm: str, uploads: dict[tuple[int, str], State]
) -> None:
    """Bit by bit, whoever trains another model of his own beside it, and however many threads the caller has."""
    changes = {"algorithm.name": algorithm}
    run = go(rounds=1, **changes)
    torch.set_num_threads(2)
    found = local_models(run, fedssl.Run.data, quiet)
    assert torch.get_num_threads() == 2
    go(rounds=2, **changes)
    assert list(found) == ["0", "1", "2"]
    for client, state in found.items():
        sent = uploads[1, client]
        assert torch.equal(state.restricted(sent.layout).floats, sent.floats)
        assert state.floats.isfinite().all()
        assert {"backbone", "projector"} <= {*state.layout.parts}


@pytest.mark.parametrize("kind", ["angles", "map"])
def test_images_are_read_once(kind: str, go: Go, monkeypatch: pytest.MonkeyPatch) -> None:
    run, read, times = go(), fedssl.Run.data, list[fedssl.Run]()
    monkeypatch.setattr(fedssl.Run, "data", lambda self, say: (times.append(self), read(self, say))[1])
    analyse(kind, run, local=True, say=quiet)
    assert times == [run]


def test_norm_layers_that_stay_are_those_that_were_trained(go: Go) -> None:
    """FedBN's are no part of the upload: they are what the client remembers after the next round."""
    changes = {"algorithm.name": "fedbn"}
    found = local_models(go(rounds=1, **changes), fedssl.Run.data, quiet)
    later = Store(go(rounds=2, **changes).dir).load(quiet)
    assert later is not None
    for client, state in found.items():
        norms = model(later.memory[client].tree, "norms")
        assert torch.equal(state.restricted(norms.layout).floats, norms.floats)


def test_a_client_that_cannot_train_has_no_local_model(go: Go, labelled: Dataset) -> None:
    """One image is no batch: the others' models are compared."""
    owners = {"a": torch.arange(24), "b": torch.arange(24, 47), "c": torch.tensor([47])}
    run = go("run", labelled._replace(owners=owners), clients=0, **{"partition.name": "natural"})
    told: list[str] = []
    assert list(local_models(run, fedssl.Run.data, told.append)) == ["a", "b"]
    assert [line for line in told if line.startswith("client c has no local model: ")]


def test_the_mean_of_local_models_is_the_next_global_model(go: Go) -> None:
    """FedAvg: three clients with 16 images each, so the plain mean."""
    found = local_models(go("run"), fedssl.Run.data, quiet)
    merged = go("longer", rounds=3).models()["global"]
    mean = torch.stack([state.restricted(merged.layout).floats for state in found.values()]).mean(0)
    torch.testing.assert_close(mean, merged.floats, rtol=1e-4, atol=1e-6)


def test_local_models_can_be_compared(go: Go) -> None:
    run = go()
    found = analyse("weights", [run], say=quiet, local=True).found
    assert found["models"] == ["0", "1", "2"]
    near = analyse("weights", [run], say=quiet, local=True, rate=1e-6).found
    assert 0 < 100 * near["pairs"][0]["total"] < found["pairs"][0]["total"]


def test_principal_components() -> None:
    """Points on a line through the origin have one component: their places on it, but for the sign."""
    line = np.array([[-2.0, -2.0], [0.0, 0.0], [2.0, 2.0]])
    found = principal(line, 2)
    np.testing.assert_allclose(np.abs(found[:, 0]), [2 * math.sqrt(2), 0, 2 * math.sqrt(2)], atol=1e-12)
    np.testing.assert_allclose(found[:, 1], 0, atol=1e-12)


def test_neighbours_of_the_same_class() -> None:
    """On a line at 0, 1, 2 and 10 with classes a, a, b, b: the nearest to 0 is 1 (a: yes), to 1 is 0, the first of two
    as near (yes), to 2 is 1 (no), to 10 is 2 (yes)."""
    xy = np.array([[0.0, 0], [1, 0], [2, 0], [10, 0]])
    assert same_class_nearby(xy, np.array([0, 0, 1, 1]), nearest=1) == 0.75
    assert same_class_nearby(xy, np.array([0, 0, 1, 1]), nearest=9) == pytest.approx(1 / 3)


def test_maps_of_several_models(go: Go) -> None:
    run = go(**{"topology.name": "isolated"})
    apart = analyse("map", [run], say=quiet).found
    assert {name: len(xy) for name, xy in apart["maps"].items()} == {"0": 24, "1": 24, "2": 24}
    assert [axes.get_title() for axes in Map().draw(apart).axes[:3]] == ["client 0", "client 1", "client 2"]
    assert apart["labels"] == [i % 3 for i in range(24)]
    one = analyse("map", [run], say=quiet, together=True, models=["0", "2"])
    assert {name: len(xy) for name, xy in one.found["maps"].items()} == {"0": 24, "2": 24}
    (legend,) = Map(together=True).draw(one.found).legends
    assert [text.get_text() for text in legend.get_texts()] == ["client 0", "client 2"]


def test_titles_of_models() -> None:
    """A run may be called by a number, too: what is said of a client is said of the model."""
    names = ("global", "0", "hospital", "runs/7", "7/global", "mean")
    assert [titled(name) for name in names] == ["global", "client 0", "hospital", "runs/client 7", "7/global", "mean"]


def test_umap_is_asked_for_and_missed(go: Go, monkeypatch: pytest.MonkeyPatch) -> None:
    run = go()
    monkeypatch.setitem(sys.modules, "umap", None)
    with pytest.raises(ConfigError, match=r"\[maps\]"):
        analyse("map", [run], say=quiet, how="umap")
    asked: dict[str, Any] = {}

    def fake(**settings: Any) -> Any:
        asked.update(settings)
        return SimpleNamespace(fit_transform=lambda rows: rows[:, :2])

    monkeypatch.setitem(sys.modules, "umap", SimpleNamespace(UMAP=fake))
    found = analyse("map", [run], say=quiet, how="umap", seed=3).found
    assert asked == {"n_neighbors": 15, "random_state": 3, "n_jobs": 1}
    assert len(found["maps"]["global"]) == 24
