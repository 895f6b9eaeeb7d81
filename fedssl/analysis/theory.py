"""What Dec-SSL's linear theory says of finite data: representability of local and global solutions, SSL and SL.

Wang et al., Theorem 3.2 and Proposition 4.1, for dimensions d of data that can be drawn. Both of the paper's measures
are taken of both learners: `span` (Definition 3.1), which is blind to how large features are, and `correlation`
(Proposition 4.1's sum), which is not. The paper takes the first of SSL and the second of SL, which are not comparable.

Ours, where the paper gives orders only: K = 3 sources, since its Θ(d^(1/20)) is 1.5 at d = 2,000; m = 2K features, the
fewest it allows; d images of each frequent class, the fewest that its bound on the rare ones' share goes with; d^(3/20)
images of each rare class, rounded, as in its Lemma E.2. The global supervised problem, which the paper does not treat,
has no solution on such data; it is solved with slack instead, which makes its numbers depend on how much.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import numpy as np
from pydantic import Field

from fedssl.analysis import theory_data as data
from fedssl.analysis.analysis import ANALYSES, Analysis, Found, Summary, listed
from fedssl.analysis.look import COLOURS, figure, look
from fedssl.data.progress import Say, meter
from fedssl.run import Run

MEASURES = {"span": data.span, "correlation": data.correlation}
WORDS = {"span": r"$\|\Pi_S(e_j)\|^2$ (Definition 3.1)", "correlation": r"$\sum_i\langle u_i,e_j\rangle^2$ (Prop. 4.1)"}
WHERE = ("local, own direction", "local, other directions", "global")


@ANALYSES.register("theory")
class Theory(Analysis):
    fewest: ClassVar[int] = 0
    most: ClassVar[int | None] = 0

    d: tuple[int, ...] = (100, 200, 500, 1000, 2000)  # dimensions of the data
    sources: int = Field(3, gt=1)  # K
    seeds: int = Field(3, gt=0)  # draws of the data
    nuisance: bool = True  # the paper's q·τ·e_i in frequent classes; false: without it, to see what it does
    slack: float = Field(10.0, gt=0)  # of the global supervised problem: a margin missed by e costs e²/(2·slack)

    def measure(self, runs: Sequence[Run], say: Say) -> Found:
        with meter("solving", len(self.d) * self.seeds, say) as advance:
            draws = []
            for d in self.d:
                for seed in range(self.seeds):
                    draws.append(self.one(d, seed))
                    advance(1)
        return {"draws": draws, "by_d": [dict(row) for row in self._by_d(draws)], "slopes": _slopes(draws)}

    def one(self, d: int, seed: int) -> dict[str, Any]:
        """One draw of all sources' data: for each learner and measure, sources × directions, and the global one's."""
        K, rare, draw = self.sources, max(1, round(d**0.15)), np.random.default_rng([d, seed])
        sources = [data.source(d, k, K, d, rare, draw, self.nuisance) for k in range(K)]
        every = data.Labelled(*(np.concatenate(parts) for parts in zip(*sources, strict=True)))
        refuted = data.largest_margin(every, 2 * K).refuted
        relaxed = data.largest_margin(every, 2 * K, self.slack)
        local = [data.largest_margin(each, 2 * K) for each in sources]
        learners = {
            "ssl": ([data.ssl_features(each.x, 2 * K) for each in sources], data.ssl_features(every.x, 2 * K)),
            "sl": ([data.sl_features(each.w) for each in local], data.sl_features(relaxed.w)),
        }
        moments = sources[0].x.T[:K] @ sources[0].x[:, :K] / len(sources[0].x)  # of the first source, along e_1 … e_K
        found: dict[str, Any] = {"d": d, "seed": seed, "frequent": d, "rare": rare}
        found["moments"] = [listed(row) for row in moments.tolist()]
        for learner, (of_sources, of_all) in learners.items():
            found[learner] = {
                name: {
                    "local": [listed(measure(f, K).tolist()) for f in of_sources],
                    "global": listed(measure(of_all, K).tolist()),
                }
                for name, measure in MEASURES.items()
            }
        found["separable"] = {"local": not any(each.refuted for each in local), "global": not refuted}
        found["norms"] = listed([float(np.square(each.w).sum()) for each in local])  # Σ‖w̃‖² of each source's solution
        found["gaps"] = {"local": listed([each.gap for each in local], 3), "global": listed([relaxed.gap], 3)[0]}
        return found

    def _by_d(self, draws: Sequence[Any]) -> Iterator[dict[str, Any]]:
        for d in self.d:
            for learner in ("ssl", "sl"):
                for measure in MEASURES:
                    some = [each[learner][measure] for each in draws if each["d"] == d]
                    for where, values in zip(WHERE, zip(*map(_split, some), strict=True), strict=True):
                        middle = {"mean": statistics.fmean(values), "least": min(values), "most": max(values)}
                        yield {"d": d, "learner": learner, "measure": measure, "where": where, **middle}

    def draw(self, found: Found) -> Any:
        drawn, axes = figure(2, 3, width=5, height=4)
        for column, learner in enumerate(("ssl", "sl")):
            for row, measure in enumerate(MEASURES):
                _over_d(axes[row, column], found["by_d"], learner, measure)
        last = [each for each in found["draws"] if each["d"] == max(self.d)]
        for row, (learner, measure) in enumerate((("ssl", "span"), ("sl", "correlation"))):
            _directions(axes[row, 2], last, learner, measure)
        handles, names = axes[0, 0].get_legend_handles_labels()
        drawn.legend(handles, names, loc="outside lower center", ncols=3, frameon=False)
        return drawn

    def summary(self, found: Found) -> Summary:
        rows = [
            [f"{d:,}", learner.upper(), measure, *(_cell(found["by_d"], d, learner, measure, w) for w in WHERE)]
            for learner in ("ssl", "sl")
            for measure in MEASURES
            for d in self.d
        ]
        columns = ["d", "learner", "measure", *WHERE]
        no = sum(not each["separable"]["global"] for each in found["draws"])
        notes = [
            f"mean over {self.seeds} draws of the data, ± half the range",
            f"the global supervised problem had no solution in {no} of {len(found['draws'])} draws; "
            "what is given for it is with slack",
            *(f"{what} falls as d^{slope:.2f}" for what, slope in found["slopes"].items() if slope is not None),
        ]
        return Summary("representability of e_1 … e_K", columns, rows, notes)


def _split(one: Any) -> tuple[float, float, float]:
    """Of one draw: the mean over sources of their own direction, of the other directions, and the global mean."""
    local = np.array(one["local"])
    others = ~np.eye(len(local), dtype=bool)
    return float(local.diagonal().mean()), float(local[others].mean()), float(np.mean(one["global"]))


def _slopes(draws: Sequence[Any]) -> dict[str, float | None]:
    """Exponents p of d^p, by least squares over all draws: what the paper bounds. None where a draw has 0, as where m
    features span all of a small d."""
    wanted = {
        "SSL: 1 − span of other directions (paper: at most −0.8)": ("ssl", "span", 1),
        "SSL: 1 − span of the own direction (paper: no claim)": ("ssl", "span", 0),
        "SSL: 1 − global span (paper: at most −0.8)": ("ssl", "span", 2),
        "SL: correlation with other directions (paper: at most −0.1)": ("sl", "correlation", 1),
    }
    if len({each["d"] for each in draws}) < 2:
        return {}
    x = [math.log(each["d"]) for each in draws]
    found: dict[str, float | None] = {}
    for what, (learner, measure, place) in wanted.items():
        values = [_split(each[learner][measure])[place] for each in draws]
        values = [1 - value if measure == "span" else value for value in values]
        known = min(values) > 0
        slope = statistics.linear_regression(x, [math.log(v) for v in values]).slope if known else None
        found[what] = None if slope is None else float(f"{slope:.3g}")
    return found


def _cell(by_d: Sequence[Any], d: int, learner: str, measure: str, where: str) -> str:
    wanted = {"d": d, "learner": learner, "measure": measure, "where": where}
    row = next(row for row in by_d if wanted.items() <= row.items())
    return f"{row['mean']:.3f} ± {(row['most'] - row['least']) / 2:.3f}"


def _over_d(axes: Any, by_d: Sequence[Any], learner: str, measure: str) -> None:
    for number, where in enumerate(WHERE):
        rows = [r for r in by_d if (r["learner"], r["measure"], r["where"]) == (learner, measure, where)]
        mean = [r["mean"] for r in rows]
        spread = [[r["mean"] - r["least"] for r in rows], [r["most"] - r["mean"] for r in rows]]
        axes.errorbar([r["d"] for r in rows], mean, spread, label=where, capsize=3, **look(number))
    slack = " (global: with slack)" if learner == "sl" else ""
    axes.set(xlabel="d", ylabel=WORDS[measure], xscale="log", title=f"{learner.upper()}{slack}")
    axes.set_ylim(0, 1.05 if measure == "span" else None)
    ticks = sorted({r["d"] for r in by_d})
    axes.set_xticks(ticks, [f"{d:,}" for d in ticks])
    axes.minorticks_off()
    axes.grid(alpha=0.3)


def _directions(axes: Any, draws: Sequence[Any], learner: str, measure: str) -> None:
    """The paper's Figure 3 in numbers: how well each learned space has each direction."""
    tables = np.array([[*each[learner][measure]["local"], each[learner][measure]["global"]] for each in draws])
    mean, K = tables.mean(0), tables.shape[2]
    spread = np.stack([mean - tables.min(0), tables.max(0) - mean])
    for j in range(K):
        places = np.arange(K + 1) + 0.8 * ((j + 0.5) / K - 0.5)
        axes.bar(
            places, mean[:, j], 0.8 / K, yerr=spread[:, :, j], capsize=2, color=COLOURS[j % 7], label=f"$e_{j + 1}$"
        )
    axes.set_xticks(range(K + 1), [*(f"source {k + 1}" for k in range(K)), "global"])
    axes.set(ylabel=WORDS[measure], title=f"{learner.upper()}, d = {draws[0]['d']:,}")
    axes.set_ylim(0, 1.2 * tables.max())
    axes.legend(frameon=False, ncols=K, fontsize=8, loc="upper center")
    axes.grid(alpha=0.3, axis="y")
