"""The data and the two learners of Dec-SSL's linear theory.

Wang et al., Sections 3.2 and 4.2, Appendix E. Classes are counted from 0 here: the frequent classes
of source k are 2k and 2k + 1, which the paper calls 2k − 1 and 2k.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.float64]

TOLERANCE = 1e-3  # relative gap between a solution's objective and the best possible one
# If half the squared norm of every separator is shown to exceed this, there is no separator: a
# source's separator has about 1.
REFUTED = 1e4


class LabelledRows(NamedTuple):
    """Images as rows x (n, d), with labels y (n,)."""

    x: Rows
    y: NDArray[np.int64]


def draw_source(
    d: int,
    k: int,
    sources: int,
    *,
    frequent: int,
    rare: int,
    generator: np.random.Generator,
    nuisance: bool = True,
) -> LabelledRows:
    """Return the data of source k (E.1).

    Frequent classes: ±e_k − Σ_{i≠k} q_i·τ·e_i + μ·ξ, q_i 0 or 1, ξ ~ N(0, I), τ = d^(1/5),
    μ = d^(−1/5), `frequent` images of each. Rare classes, one for each other source i: e_i + μ·ξ,
    `rare` images of each. Without `nuisance` all q are 0.
    """
    tau = d**0.2 if nuisance else 0.0
    mu = d**-0.2
    others = [i for i in range(sources) if i != k]
    classes = [2 * k, 2 * k + 1, *(2 * i for i in others)]
    counts = [frequent, frequent] + [rare] * len(others)
    labels = np.repeat(classes, counts)
    x = mu * generator.standard_normal((len(labels), d))
    x[: 2 * frequent, others] -= tau * generator.integers(0, 2, (2 * frequent, len(others)))
    x[:frequent, k] += 1
    x[frequent : 2 * frequent, k] -= 1
    for place, i in enumerate(others):
        start = 2 * frequent + place * rare
        x[start : start + rare, i] += 1
    return LabelledRows(x, labels)


def ssl_features(x: Rows, m: int) -> Rows:
    """Return w (m, d) that minimises E.1, which is ‖X − wᵀw‖²/2 up to a constant.

    X are the second moments of x; w are the m eigenvectors of X with the largest eigenvalues λ,
    each times √λ (E.5).
    """
    values, vectors = np.linalg.eigh(x.T @ x / len(x))
    return np.asarray((vectors[:, -m:] * np.sqrt(values[-m:].clip(0))).T)


class Separator(NamedTuple):
    """The solution w̃ (classes, d) of the supervised learner.

    `gap` is its relative distance from the best possible objective. If `refuted`, it was shown that
    no separator exists, and w̃ does not separate the classes.
    """

    w: Rows
    gap: float
    refuted: bool


def largest_margin(data: LabelledRows, classes: int, slack: float = 0.0) -> Separator:
    """Return the separator with the largest margin (E.19), found by its dual.

    It has the smallest Σ‖w̃_y‖² with ⟨w̃_y − w̃_y', x⟩ ≥ 1 for every image (x, y) and every other
    class y'. The dual has a ≥ 0 for each constraint, and max Σa − ‖w̃(a)‖²/2, which is a lower
    bound for every a. With slack s, a constraint may be missed by e at a cost of e²/(2s) in half
    the norm; the dual then loses s·a²/2.
    """
    a = np.zeros((len(data.x), classes))
    # Single precision is twice as fast; double precision refines its result.
    for dtype in (np.float32, np.float64):
        a = _maximise(a, Dual(data, slack, dtype))
    dual = Dual(data, slack, np.float64)
    dual(average_absent_classes(a, data.y).ravel())
    return Separator(dual.w, dual.gap, dual.refuted)


def average_absent_classes(a: Rows, y: NDArray[np.int64]) -> Rows:
    """Return dual variables (n, classes) with those of classes without images set to their mean.

    Such classes are interchangeable, so their weights are equal at the optimum; rounding must not
    make them differ.
    """
    absent = np.setdiff1d(np.arange(a.shape[1]), y)
    averaged = a.copy()
    if len(absent):
        averaged[:, absent] = a[:, absent].mean(1, keepdims=True)
    return averaged


def _maximise(a: Rows, dual: Dual) -> Rows:
    """Return dual variables (n, classes) within TOLERANCE, if the precision allows it."""
    from scipy.optimize import minimize

    def stop(intermediate_result: Any) -> None:
        if dual.solved:
            raise StopIteration

    dual(a.ravel())
    if dual.solved:
        return a
    solution = minimize(
        dual,
        a.ravel(),
        jac=True,
        method="L-BFGS-B",
        bounds=[(0, None)] * a.size,
        callback=stop,
        options={"maxiter": 20_000, "maxfun": 40_000, "ftol": 0, "gtol": 1e-9, "maxcor": 20},
    )
    return np.asarray(solution.x).reshape(a.shape)


class Dual:
    """The negative of the dual and its gradient.

    The last evaluation is kept: w̃, the lower bound, and the best known objective.
    """

    def __init__(self, data: LabelledRows, slack: float, dtype: type[np.floating[Any]]) -> None:
        self.x = data.x.astype(dtype)
        self.y = data.y
        self.slack = slack
        self.dtype = dtype
        self.w = np.zeros((0, 0))
        self.bound = 0.0
        self.best = np.inf

    def __call__(self, flat: Rows) -> tuple[float, Rows]:
        """Return the negative dual and its gradient at the variables `flat` (n · classes,)."""
        rows = np.arange(len(self.x))
        slack = self.slack
        a = flat.reshape(len(self.x), -1).copy()
        a[rows, self.y] = 0
        coefficients = -a
        coefficients[rows, self.y] = a.sum(1)
        self.w = np.asarray(coefficients.astype(self.dtype).T @ self.x, np.float64)
        scores = np.asarray(self.x @ self.w.astype(self.dtype).T, np.float64)
        missing = 1 - (scores[rows, self.y][:, None] - scores)
        missing[rows, self.y] = 0
        norm = float(np.square(self.w).sum()) / 2
        self.bound = float(a.sum()) - norm - slack * float(np.square(a).sum()) / 2
        self.best = _primal(norm, missing, slack)
        return -self.bound, (slack * a - missing).ravel()

    @property
    def gap(self) -> float:
        """Return the gap between the best known objective and the bound, relative to the bound."""
        if self.bound > 0:
            return (self.best - self.bound) / self.bound
        return np.inf

    @property
    def refuted(self) -> bool:
        """True if the bound shows that there is no separator."""
        return not self.slack and self.bound > REFUTED

    @property
    def solved(self) -> bool:
        """True if the gap is within TOLERANCE, or there is no separator."""
        return self.refuted or self.gap < TOLERANCE


def _primal(norm: float, missing: Rows, slack: float) -> float:
    """Return the objective of a solution made from w̃: with slack as it is, else at margin 1."""
    if slack:
        return norm + float(np.square(missing.clip(0)).sum()) / (2 * slack)
    margin = 1 - float(missing.max())
    return norm / margin**2 if margin > 0 else np.inf


def sl_features(w: Rows) -> Rows:
    """Return u of the two-layer network with v·u = w̃ whose ‖uᵀu‖² + ‖vᵀv‖² is smallest.

    u is √S·Vᵀ of w̃ = U·S·Vᵀ. Both norms are sums of fourth powers of singular values, and their
    sum is least where u and v share them evenly.
    """
    _, s, vt = np.linalg.svd(w, full_matrices=False)
    return np.asarray(np.sqrt(s)[:, None] * vt)


def span(features: Rows, directions: int) -> Rows:
    """Return r_j = ‖Π_S(e_j)‖² of the first directions, S the span of the rows (Definition 3.1)."""
    _, s, vt = np.linalg.svd(features, full_matrices=False)
    return np.asarray(np.square(vt[s > 1e-6 * s[0], :directions]).sum(0))


def correlation(features: Rows, directions: int) -> Rows:
    """Return Σ_i ⟨u_i, e_j⟩² for the first directions (Proposition 4.1)."""
    return np.asarray(np.square(features[:, :directions]).sum(0))
