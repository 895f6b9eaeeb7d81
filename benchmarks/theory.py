"""Test Dec-SSL's linear theory on finite data: representability of local and global solutions.

    python -m benchmarks.theory [--out results/theory] [--d 100 200 500 1000 2000] [--sources 3]
                                [--seeds 3] [--no-nuisance] [--slack 10]

Measured on a CPU, three samples of the data for each d: the part of the other sources' directions
that is missing from the span of local SSL features decreases as d^−0.78, the correlation of local
supervised features with them as d^−0.44 (results/theory.json). Without the nuisance term, local SSL
features contain no more of these directions than random ones
(results/theory-without-nuisance.json). docs/explanation/linear-theory.md compares the results with
the paper.

Wang et al., Theorem 3.2 and Proposition 4.1, for dimensions d that can be sampled. Both of the
paper's measures are computed for both learners: `span` (Definition 3.1), which does not depend on
the size of features, and `correlation` (the sum of Proposition 4.1), which does. The paper uses the
first for SSL and the second for SL, which are not comparable.

Our choices, where the paper gives only orders of magnitude: K = 3 sources, because its Θ(d^(1/20))
is 1.5 at d = 2,000; m = 2K features, the fewest it allows; d images of each frequent class, the
fewest that its bound on the fraction of rare ones allows; d^(3/20) images of each rare class,
rounded, as in its Lemma E.2. The global supervised problem, which the paper does not treat, has no
solution on such data; it is solved with slack instead, so its numbers depend on the slack.
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from pydantic import Field

from benchmarks import theory_data, theory_plots
from benchmarks.theory_data import LabelledRows, Separator
from fedssl.analysis import Analysis, Results, Summary, run_analysis
from fedssl.analysis.analysis import round_digits
from fedssl.cli.analysis_summary import print_summary
from fedssl.core.console import Notify, meter
from fedssl.core.errors import FedsslError
from fedssl.core.settings import validate
from fedssl.plots.style import need_matplotlib
from fedssl.runs.run import Run

MEASURES = {"span": theory_data.span, "correlation": theory_data.correlation}
LEARNERS = ("ssl", "sl")
# Index into the triple that `_averages` returns.
OWN = 0
OTHERS = 1
GLOBAL = 2
# The exponents that the paper bounds: learner, measure and index.
EXPONENTS = {
    "SSL: 1 − span of other directions (paper: at most −0.8)": ("ssl", "span", OTHERS),
    "SSL: 1 − span of the own direction (paper: no claim)": ("ssl", "span", OWN),
    "SSL: 1 − global span (paper: at most −0.8)": ("ssl", "span", GLOBAL),
    "SL: correlation with other directions (paper: at most −0.1)": ("sl", "correlation", OTHERS),
}


class Theory(Analysis):
    """Draw the theory's data, solve both learning problems, and take both measures of both."""

    min_runs: ClassVar[int] = 0
    max_runs: ClassVar[int | None] = 0

    d: tuple[int, ...] = (100, 200, 500, 1000, 2000)  # dimensions of the data
    sources: int = Field(3, gt=1)  # K
    seeds: int = Field(3, gt=0)  # draws of the data
    nuisance: bool = True  # with the paper's q·τ·e_i in frequent classes
    # Of the global supervised problem: a margin missed by e costs e²/(2·slack).
    slack: float = Field(10.0, gt=0)

    def measure(self, runs: Sequence[Run], notify: Notify) -> Results:
        """Return the measures of every draw, their means by d, and the fitted exponents."""
        draws = []
        with meter("solving", len(self.d) * self.seeds, notify) as advance:
            for d in self.d:
                for seed in range(self.seeds):
                    draws.append(self.measure_draw(d, seed))
                    advance(1)
        return {
            "draws": draws,
            "by_d": list(self._means_by_d(draws)),
            "slopes": _slopes(draws),
        }

    def measure_draw(self, d: int, seed: int) -> dict[str, Any]:
        """Return the measures of one draw of all sources' data.

        For each learner and measure: `local`, a table of sources × directions, and `global`.
        """
        K = self.sources
        rare = max(1, round(d**0.15))
        generator = np.random.default_rng([d, seed])
        sources = [
            theory_data.draw_source(
                d, k, K, frequent=d, rare=rare, generator=generator, nuisance=self.nuisance
            )
            for k in range(K)
        ]
        pooled = LabelledRows(
            np.concatenate([source.x for source in sources]),
            np.concatenate([source.y for source in sources]),
        )
        separable = not theory_data.largest_margin(pooled, 2 * K).refuted
        relaxed = theory_data.largest_margin(pooled, 2 * K, self.slack)
        local = [theory_data.largest_margin(source, 2 * K) for source in sources]
        first = sources[0].x
        moments = first.T[:K] @ first[:, :K] / len(first)  # of the first source, along e_1 … e_K
        return {
            "d": d,
            "seed": seed,
            "frequent": d,
            "rare": rare,
            "moments": [round_digits(row) for row in moments.tolist()],
            "ssl": self._ssl_measures(sources, pooled),
            "sl": self._sl_measures(local, relaxed),
            **_solutions(local, relaxed, separable),
        }

    def _ssl_measures(
        self, sources: Sequence[LabelledRows], pooled: LabelledRows
    ) -> dict[str, Any]:
        local = [theory_data.ssl_features(source.x, 2 * self.sources) for source in sources]
        return self._measures(local, theory_data.ssl_features(pooled.x, 2 * self.sources))

    def _sl_measures(self, local: Sequence[Separator], relaxed: Separator) -> dict[str, Any]:
        features = [theory_data.sl_features(separator.w) for separator in local]
        return self._measures(features, theory_data.sl_features(relaxed.w))

    def _measures(
        self, local: Sequence[theory_data.Rows], pooled: theory_data.Rows
    ) -> dict[str, Any]:
        """Take both measures of the features of each source and of the pooled data."""
        K = self.sources
        measures = {}
        for name, measure in MEASURES.items():
            measures[name] = {
                "local": [round_digits(measure(features, K).tolist()) for features in local],
                "global": round_digits(measure(pooled, K).tolist()),
            }
        return measures

    def _means_by_d(self, draws: Sequence[Any]) -> Iterator[dict[str, Any]]:
        for d in self.d:
            for learner in LEARNERS:
                for measure in MEASURES:
                    tables = [draw[learner][measure] for draw in draws if draw["d"] == d]
                    columns = zip(*map(_averages, tables), strict=True)
                    for where, values in zip(theory_plots.WHERE, columns, strict=True):
                        yield {
                            "d": d,
                            "learner": learner,
                            "measure": measure,
                            "where": where,
                            "mean": statistics.fmean(values),
                            "least": min(values),
                            "most": max(values),
                        }

    def draw(self, results: Results) -> Any:
        """Return a figure of both measures over d, and by direction for the largest d."""
        return theory_plots.draw(results, largest_d=max(self.d))

    def summary(self, results: Results) -> Summary:
        """Return means and ranges over the draws for each d, learner and measure."""
        rows = []
        for learner in LEARNERS:
            for measure in MEASURES:
                for d in self.d:
                    cells = [
                        _cell(results["by_d"], d, learner, measure=measure, where=where)
                        for where in theory_plots.WHERE
                    ]
                    rows.append([f"{d:,}", learner.upper(), measure, *cells])
        return Summary(
            "representability of e_1 … e_K",
            ["d", "learner", "measure", *theory_plots.WHERE],
            rows,
            self._notes(results),
        )

    def _notes(self, results: Results) -> list[str]:
        draws = results["draws"]
        unsolved = sum(not draw["separable"]["global"] for draw in draws)
        notes = [
            f"mean over {self.seeds} draws of the data, ± half the range",
            f"the global supervised problem had no solution in {unsolved} of {len(draws)} draws; "
            "its numbers are those with slack",
        ]
        for quantity, slope in results["slopes"].items():
            if slope is not None:
                notes.append(f"{quantity} falls as d^{slope:.2f}")
        return notes


def _solutions(local: Sequence[Separator], relaxed: Separator, separable: bool) -> dict[str, Any]:
    """Return which supervised problems have a solution, Σ‖w̃‖² of each source's, and the gaps."""
    norms = [float(np.square(separator.w).sum()) for separator in local]
    gaps = [separator.gap for separator in local]
    return {
        "separable": {
            "local": not any(separator.refuted for separator in local),
            "global": separable,
        },
        "norms": round_digits(norms),
        "gaps": {"local": round_digits(gaps, 3), "global": round_digits([relaxed.gap], 3)[0]},
    }


def _averages(measures: Any) -> tuple[float, float, float]:
    """Return the mean of the sources' own direction, of their other directions, and globally."""
    local = np.array(measures["local"])
    others = ~np.eye(len(local), dtype=bool)
    return (
        float(local.diagonal().mean()),
        float(local[others].mean()),
        float(np.mean(measures["global"])),
    )


def _slopes(draws: Sequence[Any]) -> dict[str, float | None]:
    """Return the exponents p of d^p that the paper bounds, by least squares over all draws.

    An exponent is None where a draw has the value 0, as where m features span all of a small d.
    """
    if len({draw["d"] for draw in draws}) < 2:
        return {}
    x = [math.log(draw["d"]) for draw in draws]
    slopes: dict[str, float | None] = {}
    for quantity, (learner, measure, index) in EXPONENTS.items():
        values = [_averages(draw[learner][measure])[index] for draw in draws]
        if measure == "span":
            values = [1 - value for value in values]
        if min(values) > 0:
            fit = statistics.linear_regression(x, [math.log(value) for value in values])
            slopes[quantity] = float(f"{fit.slope:.3g}")
        else:
            slopes[quantity] = None
    return slopes


def _cell(by_d: Sequence[Any], d: int, learner: str, *, measure: str, where: str) -> str:
    wanted = {"d": d, "learner": learner, "measure": measure, "where": where}
    row = next(row for row in by_d if wanted.items() <= row.items())
    return f"{row['mean']:.3f} ± {(row['most'] - row['least']) / 2:.3f}"


def main() -> None:
    """Run the study and write OUT.json and OUT.png."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("results/theory"))
    parser.add_argument("--d", type=int, nargs="+", default=[100, 200, 500, 1000, 2000])
    parser.add_argument("--sources", type=int, default=3)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--no-nuisance", action="store_true")
    parser.add_argument("--slack", type=float, default=10.0)
    args = parser.parse_args()
    settings = {
        "d": args.d,
        "sources": args.sources,
        "seeds": args.seeds,
        "nuisance": not args.no_nuisance,
        "slack": args.slack,
    }
    try:
        need_matplotlib()
        theory = validate(Theory, settings, "theory")
        output = run_analysis("theory", theory, [], out=args.out)
    except FedsslError as error:
        parser.error(str(error))
    print_summary(output.summary, output.json, output.png)


if __name__ == "__main__":
    main()
