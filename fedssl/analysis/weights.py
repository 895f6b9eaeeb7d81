"""Distances between the weights of models: d_w, Dec-SSL's measure of drift.

Wang et al., Appendix B.3: d_w(a, b) = Σ_l ‖a_l − b_l‖₂, the sum over layers of the L2 norm of the
difference, not squared.

The paper does not define a layer, nor which parts of the model count. Here every parameter tensor
is a layer: a convolution's weights, a bias, a norm layer's scale, its shift. Running statistics and
counters are not weights and do not count. Each part (backbone, projector, predictor) has its own
distance; `total` is over the parts that all models have. The sum over layers grows with their
number: compare models of one architecture only.

`l2` is the plain L2 distance over the same parameters, as `divergence` in the rounds log.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from fedssl.analysis.analysis import ANALYSES, Results, Summary, format_numbers, round_rows
from fedssl.analysis.features import ModelAnalysis, data_reader
from fedssl.core.console import Notify, meter
from fedssl.core.errors import ConfigError
from fedssl.core.state.layout import PARAMETERS, Entry
from fedssl.core.state.state import State
from fedssl.plots.style import COLOURS, SMALL, draw_matrix, new_figure
from fedssl.runs.run import Run

MAX_LAYER_NAMES = 40  # of more layers only some are named in the figure


def layer_distances(one: State, other: State) -> dict[str, float]:
    """Return ‖a_l − b_l‖₂ of each parameter tensor that both models have, by its name."""
    layers = {}
    for entry in common_parameters([one, other]):
        difference = one.view(entry) - other.view(entry)
        layers[entry.name] = float(difference.double().norm())
    return layers


def common_parameters(states: Sequence[State]) -> list[Entry]:
    """Return the parameters of the parts that all models have; raise if these parts differ."""
    parts = set(states[0].layout.parts)
    for state in states:
        parts &= set(state.layout.parts)
    first = states[0].layout.pick(parts, PARAMETERS)
    for state in states[1:]:
        layout = state.layout.pick(parts, PARAMETERS)
        if layout != first:
            raise ConfigError(
                f"the models have different architectures: {first.first_difference(layout)}; "
                "compare models of one architecture"
            )
    return [entry for entry in first.entries if entry.part != "target"]


def distances(one: State, other: State) -> dict[str, Any]:
    """Return d_w in total, by part and by layer, and the L2 distance."""
    layers = layer_distances(one, other)
    parts: dict[str, float] = {}
    for name, value in layers.items():
        part = name.partition(".")[0]
        parts[part] = parts.get(part, 0.0) + value
    squares = sum(value * value for value in layers.values())
    return {"total": sum(layers.values()), "l2": squares**0.5, "parts": parts, "layers": layers}


@ANALYSES.register("weights")
class Weights(ModelAnalysis):
    """Measure the distances between the weights of pairs of models."""

    def measure(self, runs: Sequence[Run], notify: Notify) -> Results:
        """Return the distances of every pair of models."""
        models = self.select_models(runs, data_reader(notify), notify, min_models=2)
        names = list(models)
        total = torch.zeros(len(names), len(names), dtype=torch.float64)
        pairs = []
        with meter("comparing weights", len(names) * (len(names) - 1) // 2, notify) as advance:
            for i in range(len(names)):
                state = models[names[i]].state()
                # Other states are made anew each time: there may be too many to keep.
                for j in range(i):
                    pair = distances(models[names[j]].state(), state)
                    total[i, j] = total[j, i] = pair["total"]
                    pairs.append({"pair": [names[j], names[i]], **pair})
                    advance(1)
        return {
            "models": names,
            "total": round_rows(total.tolist()),
            "pairs": pairs,
        }

    def draw(self, results: Results) -> Any:
        """Return a figure with the matrix of distances and the distances by layer."""
        figure, axes = new_figure(1, 2, width=6.2, height=5)
        draw_matrix(
            figure,
            axes[0, 0],
            results["total"],
            names=results["models"],
            label=r"$d_w$: sum over layers of the L2 norm",
        )
        _draw_layers(axes[0, 1], results["pairs"])
        return figure

    def summary(self, results: Results) -> Summary:
        """Return a table of the pairs, ordered by their distance."""
        parts = list(results["pairs"][0]["parts"])
        rows = []
        for pair in sorted(results["pairs"], key=lambda pair: pair["total"]):
            by_part = map(pair["parts"].get, parts)
            cells = format_numbers([pair["total"], *by_part, pair["l2"]], ".4g")
            rows.append([" – ".join(pair["pair"]), *cells])
        part_columns = [f"d_w, {part}" for part in parts]
        columns = ["models", "d_w", *part_columns, "L2"]
        return Summary("distance between weights", columns, rows)


def _draw_layers(axes: Any, pairs: Sequence[Mapping[str, Any]]) -> None:
    """Draw the distance of each layer: mean, minimum and maximum over the pairs."""
    names = list(pairs[0]["layers"])
    table = torch.tensor([list(pair["layers"].values()) for pair in pairs], dtype=torch.float64)
    mean = table.mean(0)
    spread = torch.stack([mean - table.min(0).values, table.max(0).values - mean])
    positions = list(range(len(names)))
    axes.errorbar(
        mean,
        positions,
        xerr=spread,
        fmt="o",
        color=COLOURS[0],
        ecolor=COLOURS[1],
        capsize=2,
        markersize=4,
    )
    step = -(-len(names) // MAX_LAYER_NAMES)
    axes.set_yticks(positions[::step], names[::step], fontsize=SMALL)
    axes.invert_yaxis()
    title = "by layer" if len(pairs) == 1 else f"by layer: mean and range of {len(pairs)} pairs"
    axes.set(xlabel="L2 norm of the difference", xlim=(0, None), title=title)
    axes.grid(alpha=0.3)
