"""Angles between features and distances between weights."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from error_messages import raises
from tiny_runs import Go, MakeImages

from fedssl.analysis import analyse
from fedssl.analysis.angles import angles, pairwise
from fedssl.analysis.weights import common_parameters, distances
from fedssl.core.console import ignore_message
from fedssl.core.errors import ConfigError
from fedssl.core.state.layout import Entry, Layout, Role
from fedssl.core.state.state import State
from fedssl.data import from_python


def _state(**tensors: list[float]) -> State:
    """Return a state: `backbone_w=[…]` is the weight backbone.w; `…mean` is a running statistic."""
    named = {name.replace("_", "."): torch.tensor(values) for name, values in tensors.items()}
    entries = []
    for name, tensor in named.items():
        role: Role = "statistic" if name.endswith("mean") else "weight"
        entries.append(Entry(name, tuple(tensor.shape), role))
    state = State.empty(Layout.of(entries))
    for name, view in state.tensors().items():
        view.copy_(named[name])
    return state


def test_angles_by_hand() -> None:
    """Vectors that are equal, 60°, 90° and 180° apart, and 1e-9 of a degree apart."""
    tiny = math.radians(1e-9)
    one = torch.tensor([[1.0, 0.0]] * 5, dtype=torch.float64)
    other = torch.tensor(
        [[1, 0], [0.5, math.sqrt(0.75)], [0, 1], [-1, 0], [math.cos(tiny), math.sin(tiny)]],
        dtype=torch.float64,
    )
    expected = torch.tensor([0, 60, 90, 180, 1e-9], dtype=torch.float64)
    torch.testing.assert_close(angles(one, other), expected, rtol=1e-6, atol=1e-15)


def test_angles_of_pairs_against_a_loop() -> None:
    stream = torch.Generator().manual_seed(0)
    rows = {
        name: F.normalize(torch.randn(7, 4, generator=stream, dtype=torch.float64))
        for name in "abc"
    }
    results = pairwise(rows)
    for pair in results["pairs"]:
        one, other = (rows[name].tolist() for name in pair["pair"])
        slow = sorted(
            math.degrees(math.acos(sum(x * y for x, y in zip(a, b, strict=True))))
            for a, b in zip(one, other, strict=True)
        )
        assert pair["mean"] == pytest.approx(sum(slow) / 7)
        assert pair["quantiles"][2] == pytest.approx(slow[3], rel=1e-5)
        i, j = (results["models"].index(name) for name in pair["pair"])
        assert (
            results["mean"][i][j] == results["mean"][j][i] == pytest.approx(sum(slow) / 7, rel=1e-5)
        )
    assert [results["mean"][i][i] for i in range(3)] == [0, 0, 0]
    assert len(results["pairs"]) == 3


def test_features_of_another_width_have_no_angle() -> None:
    with raises(ConfigError):
        pairwise({"a": torch.ones(2, 4), "b": torch.ones(2, 5)})


def test_angles_of_isolated_clients_are_those_of_their_backbones(
    go: Go, images: MakeImages
) -> None:
    """Against backbones loaded from the files that the run exported."""
    run = go(**{"topology.name": "isolated"})
    results = analyse("angles", [run], notify=ignore_message, images=10).results
    assert results["models"] == ["0", "1", "2"]
    pixels = images(24, 1)[0][:10].float() / 255
    with torch.no_grad():
        a, b = (F.normalize(run.backbone(name)(pixels)) for name in ("0", "2"))
    slow = torch.rad2deg(torch.acos((a * b).sum(1).clamp(-1, 1)))
    pair = next(each for each in results["pairs"] if each["pair"] == ["0", "2"])
    assert pair["mean"] == pytest.approx(float(slow.mean()), abs=0.02)
    assert pair["mean"] > 1


def test_projections_are_compared_on_demand(go: Go) -> None:
    run = go(**{"topology.name": "isolated"})
    h, z = (
        analyse("angles", [run], notify=ignore_message, what=what).results["pairs"][0]["mean"]
        for what in ("h", "z")
    )
    assert h != pytest.approx(z, abs=0.1)


def test_runs_with_other_test_images_are_not_compared(go: Go, images: MakeImages) -> None:
    other = from_python(images(48, 0), images(24, 2))
    with raises(ConfigError):
        analyse("angles", [go("one"), go("other", other)], notify=ignore_message)


def test_models_of_several_runs_are_compared(go: Go) -> None:
    same = analyse(
        "angles", [go("one"), go("two"), go("three", seed=1)], notify=ignore_message
    ).results
    assert same["models"] == ["one/global", "two/global", "three/global"]
    assert same["mean"][0][1] == pytest.approx(0, abs=1e-4)
    assert same["mean"][0][2] > 1


def test_distances_by_hand() -> None:
    """backbone.a differs by (3, 4), norm 5; backbone.b by 2; projector.w by 6.

    d_w is 5 + 2 + 6 = 13, the L2 distance √(25 + 4 + 36) = √65. A running mean is not a weight.
    """
    one = _state(backbone_a=[0.0, 0.0], backbone_b=[1.0], backbone_mean=[0.0], projector_w=[1.0])
    other = _state(backbone_a=[3.0, 4.0], backbone_b=[3.0], backbone_mean=[9.0], projector_w=[7.0])
    results = distances(one, other)
    assert results["total"] == 13
    assert results["l2"] == pytest.approx(math.sqrt(65))
    assert results["parts"] == {"backbone": 7, "projector": 6}
    assert results["layers"] == {"backbone.a": 5, "backbone.b": 2, "projector.w": 6}


def test_parts_that_only_one_model_has_do_not_count() -> None:
    one = _state(backbone_a=[0.0], target_a=[5.0], predictor_w=[1.0])
    other = _state(backbone_a=[2.0], target_a=[9.0])
    assert distances(one, other)["layers"] == {"backbone.a": 2}
    with raises(ConfigError):
        common_parameters([one, _state(backbone_a=[1.0, 2.0])])


def test_the_l2_distance_is_that_of_the_log(go: Go) -> None:
    """`divergence` in the rounds log is the distance between the model received and returned.

    Isolated clients receive the model they returned in the round before, so their divergence in
    round 2 is the distance between their models of rounds 1 and 2.
    """
    before = go("before", rounds=1, **{"topology.name": "isolated"})
    after = go("after", rounds=2, **{"topology.name": "isolated"})
    results = analyse("weights", [before, after], notify=ignore_message).results
    pair = next(each for each in results["pairs"] if set(each["pair"]) == {"before/1", "after/1"})
    assert pair["l2"] == pytest.approx(after.rounds[1]["clients"][1]["divergence"], rel=1e-5)
