"""Distances between models' weights: d_w, Dec-SSL's measure of drift (Wang et al., Appendix B.3).

d_w(a, b) = Σ_l ‖a_l − b_l‖₂, the sum over layers of the L2 norm of the difference, not squared.

What the paper leaves open is what a layer is, and which parts of the model count. Here every parameter tensor is a
layer by itself: a convolution's weights, a bias, a norm layer's scale, its shift. Running statistics and counters are
not weights and do not count. Each part (backbone, projector, predictor) is given by itself; `total` is over the parts
that all models have. The sum over layers grows with their number: compare models of one architecture only.

Beside it, `l2` is the plain L2 distance over the same parameters, as `divergence` in the rounds log.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from fedssl.analysis.analysis import ANALYSES, Found, Summary, listed
from fedssl.analysis.features import OfModels, reader
from fedssl.analysis.look import COLOURS, figure, matrix
from fedssl.data.progress import Say, meter
from fedssl.errors import ConfigError
from fedssl.layout import PARAMETERS, Entry
from fedssl.run import Run
from fedssl.tree import State

NAMED = 40  # layers that have room for a name


def layer_distances(one: State, other: State) -> dict[str, float]:
    """‖a_l − b_l‖₂ of each parameter tensor that both models have, by its name."""
    return {e.name: float((one.view(e) - other.view(e)).double().norm()) for e in common([one, other])}


def common(states: Sequence[State]) -> list[Entry]:
    """The parameters of the parts that all models have; those parts must be alike."""
    first = states[0].layout
    parts = [part for part in first.parts if all(part in state.layout.parts for state in states)]
    layouts = [state.layout.pick(parts, PARAMETERS) for state in states]
    for layout in layouts:
        if layout != layouts[0]:
            raise ConfigError(f"the models are not alike: {layouts[0].first_difference(layout)}")
    return [entry for entry in layouts[0].entries if entry.part != "target"]


def distances(one: State, other: State) -> dict[str, Any]:
    """d_w in all and by part, the L2 distance, and each layer's share of it."""
    layers = layer_distances(one, other)
    parts: dict[str, float] = {}
    for name, value in layers.items():
        parts[name.partition(".")[0]] = parts.get(name.partition(".")[0], 0.0) + value
    squares = sum(value * value for value in layers.values())
    return {"total": sum(layers.values()), "l2": squares**0.5, "parts": parts, "layers": layers}


@ANALYSES.register("weights")
class Weights(OfModels):
    def measure(self, runs: Sequence[Run], say: Say) -> Found:
        models = self.chosen(runs, reader(say), say, fewest=2)
        names = list(models)
        total = torch.zeros(len(names), len(names), dtype=torch.float64)
        pairs = []
        with meter("comparing weights", len(names) * (len(names) - 1) // 2, say) as advance:
            for i in range(len(names)):
                one = models[names[i]].state()
                for j in range(i):  # a client's own model is made anew each time: there may be many
                    found = distances(models[names[j]].state(), one)
                    total[i, j] = total[j, i] = found["total"]
                    pairs.append({"pair": [names[j], names[i]], **found})
                    advance(1)
        return {"models": names, "total": [listed(row) for row in total.tolist()], "pairs": pairs}

    def draw(self, found: Found) -> Any:
        drawn, axes = figure(1, 2, width=6.2, height=5)
        matrix(drawn, axes[0, 0], found["total"], found["models"], r"$d_w$: sum over layers of the L2 norm")
        axes[0, 0].set_title("between models")
        _layers(axes[0, 1], found["pairs"])
        return drawn

    def summary(self, found: Found) -> Summary:
        parts = list(found["pairs"][0]["parts"])
        rows = [
            [" – ".join(p["pair"]), *(f"{v:.4g}" for v in (p["total"], *(p["parts"][k] for k in parts), p["l2"]))]
            for p in sorted(found["pairs"], key=lambda pair: pair["total"])
        ]
        return Summary("distance between weights", ["models", "d_w", *(f"d_w, {part}" for part in parts), "L2"], rows)


def _layers(axes: Any, pairs: Sequence[Mapping[str, Any]]) -> None:
    """Each layer's distance: the mean over pairs, and from the nearest pair to the farthest."""
    names = list(pairs[0]["layers"])
    table = torch.tensor([list(pair["layers"].values()) for pair in pairs], dtype=torch.float64)
    places, mean = list(range(len(names))), table.mean(0)
    spread = torch.stack([mean - table.min(0).values, table.max(0).values - mean])
    axes.errorbar(mean, places, xerr=spread, fmt="o", color=COLOURS[0], ecolor=COLOURS[1], capsize=2, markersize=4)
    every = -(-len(names) // NAMED)
    axes.set_yticks(places[::every], names[::every], fontsize=7)
    axes.invert_yaxis()
    title = "by layer" if len(pairs) == 1 else f"by layer: mean and range of {len(pairs)} pairs"
    axes.set(xlabel="L2 norm of the difference", xlim=(0, None), title=title)
    axes.grid(alpha=0.3)
