"""The data and the two learners of Dec-SSL's linear theory (Wang et al., Sections 3.2 and 4.2, Appendix E).

Classes are counted from 0 here: source k's frequent classes are 2k and 2k + 1, which the paper calls 2k − 1 and 2k.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.float64]
ENOUGH = 1e-3  # of the objective: how far a solution may be from the best
REFUTED = 1e4  # half the squared norm that any separator is shown to exceed before it is given up: a source's is near 1


class Labelled(NamedTuple):
    x: Rows  # (n, d)
    y: NDArray[np.int64]  # (n,)


def source(
    d: int, k: int, sources: int, frequent: int, rare: int, draw: np.random.Generator, nuisance: bool = True
) -> Labelled:
    """Source k's data (E.1). Frequent classes: ±e_k − Σ_{i≠k} q_i·τ·e_i + μ·ξ, q_i 0 or 1, ξ ~ N(0, I), τ = d^(1/5),
    μ = d^(−1/5), `frequent` of each. Rare classes, one for each other source i: e_i + μ·ξ, `rare` of each.
    Without `nuisance` all q are 0."""
    tau, mu = d**0.2 if nuisance else 0.0, d**-0.2
    others = [i for i in range(sources) if i != k]
    labels = np.repeat([2 * k, 2 * k + 1, *(2 * i for i in others)], [frequent, frequent, *(rare for _ in others)])
    x = mu * draw.standard_normal((len(labels), d))
    x[: 2 * frequent, others] -= tau * draw.integers(0, 2, (2 * frequent, len(others)))
    x[:frequent, k] += 1
    x[frequent : 2 * frequent, k] -= 1
    for place, i in enumerate(others):
        start = 2 * frequent + place * rare
        x[start : start + rare, i] += 1
    return Labelled(x, labels)


def ssl_features(x: Rows, m: int) -> Rows:
    """w (m, d) that minimises E.1, which is ‖X − wᵀw‖²/2 up to a constant, X the second moments of x: the m
    eigenvectors of X with the largest eigenvalues λ, each times √λ (E.5)."""
    values, vectors = np.linalg.eigh(x.T @ x / len(x))
    return np.asarray((vectors[:, -m:] * np.sqrt(values[-m:].clip(0))).T)


class Separator(NamedTuple):
    """What the supervised learner ends with: w̃ (classes, d); the relative gap to the best that is possible; and
    whether it was shown that no separator exists, in which case w̃ is none."""

    w: Rows
    gap: float
    refuted: bool


def largest_margin(data: Labelled, classes: int, slack: float = 0.0) -> Separator:
    """The smallest Σ‖w̃_y‖² with ⟨w̃_y − w̃_y', x⟩ ≥ 1 for every image (x, y) and every other class y' (E.19), by its
    dual: a ≥ 0 for each constraint, max Σa − ‖w̃(a)‖²/2, which is a lower bound whatever a is.

    With slack s, a constraint may be missed by e at a cost of e²/(2s) in half the norm; the dual then loses s·a²/2.
    Single precision is twice as fast and goes most of the way.
    """
    a = np.zeros((len(data.x), classes))
    for dtype in (np.float32, np.float64):
        a = _climb(a, Dual(data, slack, dtype))
    end = Dual(data, slack, np.float64)
    end(alike(a, data.y).ravel())
    return Separator(end.w, end.gap, end.refuted)


def alike(a: Rows, y: NDArray[np.int64]) -> Rows:
    """Dual variables (n, classes) with those of classes without images replaced by their mean: nothing tells such
    classes apart, so their weights are equal at the optimum, and rounding must not make them differ."""
    nobodys = np.setdiff1d(np.arange(a.shape[1]), y)
    even = a.copy()
    if len(nobodys):
        even[:, nobodys] = a[:, nobodys].mean(1, keepdims=True)
    return even


def _climb(a: Rows, dual: Dual) -> Rows:
    """Dual variables (n, classes) from which the rest of the way is ENOUGH or less, if the precision allows it."""
    from scipy.optimize import minimize

    def stop(intermediate_result: Any) -> None:
        if dual.refuted or dual.gap < ENOUGH:
            raise StopIteration

    options = {"maxiter": 20_000, "maxfun": 40_000, "ftol": 0, "gtol": 1e-9, "maxcor": 20}
    dual(a.ravel())
    if dual.refuted or dual.gap < ENOUGH:
        return a
    bounds = [(0, None)] * a.size
    end = minimize(dual, a.ravel(), jac=True, method="L-BFGS-B", bounds=bounds, callback=stop, options=options)
    return np.asarray(end.x).reshape(a.shape)


class Dual:
    """The negative of the dual and its gradient; remembers where it was last asked: w̃, the bound, the best known."""

    def __init__(self, data: Labelled, slack: float, dtype: type[np.floating[Any]]) -> None:
        self.x, self.y, self.slack, self.dtype = data.x.astype(dtype), data.y, slack, dtype
        self.w, self.bound, self.best = np.zeros((0, 0)), 0.0, np.inf

    def __call__(self, flat: Rows) -> tuple[float, Rows]:
        rows, slack = np.arange(len(self.x)), self.slack
        a = flat.reshape(len(self.x), -1).copy()
        a[rows, self.y] = 0
        each = -a
        each[rows, self.y] = a.sum(1)
        self.w = np.asarray(each.astype(self.dtype).T @ self.x, np.float64)
        scores = np.asarray(self.x @ self.w.astype(self.dtype).T, np.float64)
        missing = 1 - (scores[rows, self.y][:, None] - scores)
        missing[rows, self.y] = 0
        norm = float(np.square(self.w).sum()) / 2
        self.bound = float(a.sum()) - norm - slack * float(np.square(a).sum()) / 2
        self.best = _primal(norm, missing, slack)
        return -self.bound, (slack * a - missing).ravel()

    @property
    def gap(self) -> float:
        """Between the best solution known and the bound, relative to the bound."""
        return (self.best - self.bound) / self.bound if self.bound > 0 else np.inf

    @property
    def refuted(self) -> bool:
        return not self.slack and self.bound > REFUTED


def _primal(norm: float, missing: Rows, slack: float) -> float:
    """Half the squared norm of a solution made from w̃: with slack its cost as it is, else scaled to margin 1."""
    if slack:
        return norm + float(np.square(missing.clip(0)).sum()) / (2 * slack)
    margin = 1 - float(missing.max())
    return norm / margin**2 if margin > 0 else np.inf


def sl_features(w: Rows) -> Rows:
    """u of the two-layer network with v·u = w̃ whose ‖uᵀu‖² + ‖vᵀv‖² is smallest: √S·Vᵀ of w̃ = U·S·Vᵀ. Both norms are
    sums of fourth powers of singular values, and their sum is least where u and v share them evenly."""
    _, s, vt = np.linalg.svd(w, full_matrices=False)
    return np.asarray(np.sqrt(s)[:, None] * vt)


def span(features: Rows, directions: int) -> Rows:
    """Definition 3.1: r_j = ‖Π_S(e_j)‖² for the first directions, S the span of the rows."""
    _, s, vt = np.linalg.svd(features, full_matrices=False)
    return np.asarray(np.square(vt[s > 1e-6 * s[0], :directions]).sum(0))


def correlation(features: Rows, directions: int) -> Rows:
    """Proposition 4.1: Σ_i ⟨u_i, e_j⟩² for the first directions."""
    return np.asarray(np.square(features[:, :directions]).sum(0))
