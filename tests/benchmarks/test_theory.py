"""Dec-SSL's linear theory: data, learners and measures, against closed forms and other solvers."""

from __future__ import annotations

import itertools
import json
import math
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks import theory
from benchmarks.theory import Theory
from benchmarks.theory_data import (
    LabelledRows,
    average_absent_classes,
    correlation,
    draw_source,
    largest_margin,
    sl_features,
    span,
    ssl_features,
)
from fedssl.analysis import run_analysis


def _rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def test_a_sources_data() -> None:
    """d = 32: τ = 2 and μ = 1/2.

    Source 1 of three: 4,000 images of class 2 and of class 3, 2 of class 0 and of 4, around (0, ±1,
    0) minus 0 or 2 along the other two, e_0 and e_2. All other coordinates are noise.
    """
    x, y = draw_source(32, 1, 3, frequent=4000, rare=2, generator=_rng())
    assert x.shape == (8004, 32)
    assert y.tolist() == [2] * 4000 + [3] * 4000 + [0, 0, 4, 4]
    assert x[:4000, 1].mean() == pytest.approx(1, abs=0.03)
    assert x[4000:8000, 1].mean() == pytest.approx(-1, abs=0.03)
    for other in (0, 2):
        assert x[:8000, other].mean() == pytest.approx(
            -1, abs=0.05
        )  # half of them at 0, half at −2
        assert x[:8000, other].var() == pytest.approx(1 + 0.25, abs=0.05)
    assert x[:8000, 3:].std() == pytest.approx(0.5, abs=0.005)
    rare = np.mean(
        [
            draw_source(32, 1, 3, frequent=1, rare=2, generator=_rng(seed)).x[2:]
            for seed in range(2000)
        ],
        axis=0,
    )
    np.testing.assert_allclose(rare[:, :4], [[1, 0, 0, 0]] * 2 + [[0, 0, 1, 0]] * 2, atol=0.06)


def test_without_the_nuisance_other_directions_are_noise() -> None:
    x, _ = draw_source(32, 0, 3, frequent=4000, rare=2, generator=_rng(), nuisance=False)
    assert x[:8000, 1:3].mean() == pytest.approx(0, abs=0.02)
    assert x[:8000, 1:3].std() == pytest.approx(0.5, abs=0.02)
    assert Theory(nuisance=False).measure_draw(60, 0)["ssl"]["span"]["local"][0][1] < 0.5


def test_second_moments_are_not_diagonal() -> None:
    """E.2 has diag(τ², …); of q in {0, 1} it is τ²/2 on the diagonal and, between two of them,
    τ²/4.
    """
    x, _ = draw_source(32, 0, 3, frequent=20000, rare=1, generator=_rng())
    moments = x.T[:3] @ x[:, :3] / len(x)
    np.testing.assert_allclose(moments, [[1.25, 0, 0], [0, 2.25, 1], [0, 1, 2.25]], atol=0.06)


def test_ssl_features_minimise_the_objective() -> None:
    """Against gradient descent on −Ê[(w(x + ξ))ᵀ(w(x + ξ'))] + ‖wᵀw‖²/2, whose noise has mean 0 and
    drops out.
    """
    x = _rng().standard_normal((40, 5)) * np.array([3, 2, 1, 0.5, 0.2])
    moments = torch.tensor(x.T @ x / len(x))
    w = torch.randn(
        2, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0)
    ).requires_grad_()
    optimizer = torch.optim.LBFGS(
        [w], max_iter=500, tolerance_grad=1e-12, line_search_fn="strong_wolfe"
    )

    def loss() -> torch.Tensor:
        optimizer.zero_grad()
        value = -torch.trace(w @ moments @ w.T) + (w.T @ w).square().sum() / 2
        value.backward()
        return value

    optimizer.step(loss)
    found = ssl_features(x, 2)
    np.testing.assert_allclose(found.T @ found, (w.T @ w).detach().numpy(), atol=1e-4)


def test_the_largest_margin_of_two_points() -> None:
    """x = ±1 in one dimension and two classes.

    w_0 − w_1 ≥ 1 with the least w_0² + w_1², so ±1/2.
    """
    found = largest_margin(LabelledRows(np.array([[1.0], [-1.0]]), np.array([0, 1])), 2)
    np.testing.assert_allclose(found.w, [[0.5], [-0.5]], atol=1e-3)
    assert not found.refuted


def test_a_class_without_images_is_pushed_away_too() -> None:
    """One image x = 1 of class 0 and three classes.

    w = (2/3, −1/3, −1/3), since w_0 − w_1 ≥ 1 and w_0 − w_2 ≥ 1.
    """
    found = largest_margin(LabelledRows(np.array([[1.0]]), np.array([0])), 3)
    np.testing.assert_allclose(found.w[:, 0], [2 / 3, -1 / 3, -1 / 3], atol=1e-3)


def test_the_largest_margin_against_another_solver() -> None:
    """scikit-learn's Crammer-Singer with a cost so high that no margin is missed."""
    from sklearn.svm import LinearSVC

    x, y = draw_source(30, 0, 2, frequent=12, rare=2, generator=_rng(3))
    found = largest_margin(LabelledRows(x, y), 4)
    assert found.gap < 1e-3
    other = LinearSVC(
        multi_class="crammer_singer", C=1e4, fit_intercept=False, tol=1e-8, max_iter=1_000_000
    )
    other.fit(x, y)  # has three classes: the fourth has no images
    scores = x @ found.w.T
    margins = [scores[i, y[i]] - scores[i, j] for i in range(len(x)) for j in range(4) if j != y[i]]
    assert min(margins) > 0.99
    three = largest_margin(LabelledRows(x, np.searchsorted(other.classes_, y)), 3)
    assert np.square(three.w).sum() == pytest.approx(np.square(other.coef_).sum(), rel=2e-3)
    np.testing.assert_allclose(three.w, other.coef_, atol=0.03)


def test_weights_have_the_rank_that_symmetry_leaves_them() -> None:
    """Six classes whose weights add up to 0, two of them without images and so with equal weights:
    rank 4. The span of features counts directions however small, so rounding must not add any.
    """
    found = largest_margin(draw_source(60, 0, 3, frequent=60, rare=2, generator=_rng()), 6)
    assert found.gap < 1e-3
    values = np.linalg.svd(found.w, compute_uv=False)
    assert values[3] > 0.01 * values[0]
    assert values[4] < 1e-13 * values[0]
    assert len(span(sl_features(found.w), 60)) == 60
    assert span(sl_features(found.w), 60).sum() == pytest.approx(
        4
    )  # the squared norm of a projection is its rank


def test_classes_without_images_are_alike() -> None:
    """Of four classes, 0 and 2 have images: columns 1 and 3 become their mean."""
    a = np.array([[0.0, 1.0, 5.0, 3.0], [7.0, 2.0, 0.0, 2.5]])
    assert average_absent_classes(a, np.array([0, 2])).tolist() == [
        [0, 2, 5, 2],
        [7, 2.25, 0, 2.25],
    ]
    assert average_absent_classes(a[:, :2], np.array([0, 1])).tolist() == a[:, :2].tolist()


def test_slack_is_the_minimum_of_its_objective() -> None:
    """‖w‖²/2 + Σ missed²/(2·slack), against L-BFGS in w itself, on data that cannot be
    separated.
    """
    x, y = _rng(1).standard_normal((30, 3)), _rng(2).integers(0, 3, 30)
    found = largest_margin(LabelledRows(x, y), 3, slack=2.0)
    assert not found.refuted
    w = torch.zeros(3, 3, dtype=torch.float64, requires_grad=True)
    inputs, labels = torch.tensor(x), torch.tensor(y)
    optimizer = torch.optim.LBFGS(
        [w], max_iter=1000, tolerance_grad=1e-12, line_search_fn="strong_wolfe"
    )

    def cost() -> torch.Tensor:
        scores = inputs @ w.T
        missed = (1 - scores.gather(1, labels[:, None]) + scores).clamp(min=0)
        missed = missed.scatter(1, labels[:, None], 0.0)
        return w.square().sum() / 2 + missed.square().sum() / 4

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        value = cost()
        value.backward()
        return value

    optimizer.step(closure)
    np.testing.assert_allclose(found.w, w.detach().numpy(), atol=0.02)


def test_inseparable_data_is_detected() -> None:
    """One vector in two classes."""
    assert largest_margin(LabelledRows(np.array([[1.0], [1.0]]), np.array([0, 1])), 2).refuted


def test_the_global_problem_contradicts_itself() -> None:
    """Without noise, τ = 2, K = 2.

    Classes −e_1 − q·τ·e_2 (1) and −e_2 − q·τ·e_1 (3). With b = w_1 − w_3 the four kinds of images
    ask for b_1 < 0 and |b_1| > 2·b_2 of class 1, b_2 > 0 … and b_2 > 2·|b_1| of class 3:
    impossible.
    """
    x = np.array([[-1.0, 0.0], [-1.0, -2.0], [0.0, -1.0], [-2.0, -1.0]])
    assert largest_margin(LabelledRows(x, np.array([0, 0, 1, 1])), 2).refuted
    assert not largest_margin(LabelledRows(x[[0, 2]], np.array([0, 1])), 2).refuted


def test_the_two_layer_network_of_least_norm() -> None:
    """w̃ = diag(4, 9): u has singular values 2 and 3.

    No other split of w̃ into v·u costs less; tried are scalings of u's rows, for which ‖uᵀu‖² +
    ‖vᵀv‖² has its least at equal ones.
    """
    w = np.diag([4.0, 9.0])
    u = sl_features(w)
    np.testing.assert_allclose(u.T @ u, np.diag([4.0, 9.0]), atol=1e-12)

    def cost(a: float, b: float) -> float:
        scaled = np.diag([a, b]) @ np.diag([2.0, 3.0])
        v = w @ np.linalg.inv(scaled)
        return float(np.square(scaled.T @ scaled).sum() + np.square(v.T @ v).sum())

    best = cost(1, 1)
    assert best == pytest.approx(2 * (16 + 81))
    assert all(cost(a, b) >= best for a, b in itertools.product((0.8, 0.9, 1, 1.1, 1.3), repeat=2))


def test_measures_by_hand() -> None:
    """Rows (2, 0, 0) and (0, 3, 4).

    The span contains all of e_1, (3/5)² of e_2 and (4/5)² of e_3. The sums are 4, 9 and 16. A third
    row within the span changes the sums but not the span.
    """
    rows = np.array([[2.0, 0, 0], [0, 3, 4]])
    np.testing.assert_allclose(span(rows, 3), [1, 0.36, 0.64], atol=1e-12)
    np.testing.assert_allclose(correlation(rows, 3), [4, 9, 16])
    more = np.vstack([rows, [1.0, 0, 0]])
    np.testing.assert_allclose(span(more, 2), [1, 0.36], atol=1e-12)
    np.testing.assert_allclose(correlation(more, 2), [5, 9])


def test_one_draw_has_sources_by_directions() -> None:
    found = Theory(sources=2).measure_draw(40, 0)
    assert (found["frequent"], found["rare"]) == (40, round(40**0.15))
    for learner in ("ssl", "sl"):
        for measure in ("span", "correlation"):
            assert np.array(found[learner][measure]["local"]).shape == (2, 2)
            assert len(found[learner][measure]["global"]) == 2
    local = np.array(found["sl"]["correlation"]["local"])
    assert min(local.diagonal()) > 4 * max(
        local[0, 1], local[1, 0]
    )  # a source's own direction is what SL learns
    assert min(np.array(found["ssl"]["span"]["local"]).ravel()) > 0.8  # and SSL learns all
    assert Theory(sources=2).measure_draw(40, 0) == found
    assert Theory(sources=2).measure_draw(40, 1) != found


def test_exponents_are_fitted_over_all_draws(tmp_path: object) -> None:
    """Two dimensions, two draws.

    The slope in logarithms goes through the means of the logarithms.
    """
    found = run_analysis(
        "theory",
        Theory(d=(30, 60), seeds=2),
        [],
        out=f"{tmp_path}/theory",
        notify=lambda line: None,
    ).results
    logs = []
    for d in (30, 60):
        draws = [np.array(e["sl"]["correlation"]["local"]) for e in found["draws"] if e["d"] == d]
        logs.append(np.mean([math.log(each[~np.eye(3, dtype=bool)].mean()) for each in draws]))
    slope = next(
        value for what, value in found["slopes"].items() if what.startswith("SL: correlation")
    )
    assert slope == pytest.approx((logs[1] - logs[0]) / math.log(2), rel=0.01)
    row = next(
        r
        for r in found["by_d"]
        if (r["d"], r["learner"], r["measure"], r["where"]) == (30, "ssl", "span", "global")
    )
    values = [np.mean(e["ssl"]["span"]["global"]) for e in found["draws"] if e["d"] == 30]
    assert (row["mean"], row["least"], row["most"]) == pytest.approx(
        (np.mean(values), min(values), max(values))
    )


def test_there_is_no_slope_if_the_error_is_zero() -> None:
    """Six features span all four dimensions: 1 − span is 0 there and has no logarithm."""
    theory = Theory(d=(4, 8), seeds=1)
    found = theory.measure([], lambda line: None)
    slopes = {what.partition(" (")[0]: slope for what, slope in found["slopes"].items()}
    assert slopes["SSL: 1 − global span"] is None
    assert slopes["SL: correlation with other directions"] is not None
    assert len([note for note in theory.summary(found).notes if "falls as" in note]) == sum(
        slope is not None for slope in slopes.values()
    )


RESULTS = Path(__file__).parents[2] / "results"


@pytest.mark.parametrize("name", ["theory", "theory-without-nuisance"])
def test_the_stored_results_can_be_reproduced(name: str) -> None:
    """The smallest d of each file, one draw: solvers and BLAS differ in the last digits."""
    kept = json.loads((RESULTS / f"{name}.json").read_text("utf-8"))
    theory = Theory(**kept["settings"])
    expected = kept["draws"][0]
    draw = theory.measure_draw(expected["d"], expected["seed"])
    assert list(draw) == list(expected)
    assert draw["separable"] == expected["separable"]
    for learner in ("ssl", "sl"):
        for measure in ("span", "correlation"):
            for part in ("local", "global"):
                np.testing.assert_allclose(
                    draw[learner][measure][part], expected[learner][measure][part], rtol=0.01
                )


def test_the_command_writes_numbers_and_a_picture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "theory"
    arguments = ["theory", "--out", str(out), "--d", "20", "30", "--seeds", "1", "--no-nuisance"]
    monkeypatch.setattr(sys, "argv", arguments)
    theory.main()
    results = json.loads(out.with_suffix(".json").read_text())
    assert results["analysis"] == "theory"
    assert results["settings"] == {
        "d": [20, 30],
        "sources": 3,
        "seeds": 1,
        "nuisance": False,
        "slack": 10.0,
    }
    assert [(draw["d"], draw["seed"]) for draw in results["draws"]] == [(20, 0), (30, 0)]
    assert out.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
    printed = capsys.readouterr().out
    assert "representability of e_1 … e_K" in printed
    assert f"wrote {out}.json" in printed
