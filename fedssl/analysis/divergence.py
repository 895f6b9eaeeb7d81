"""How clients fare round by round: what the rounds log says of each, drawn over rounds, several runs side by side.

`divergence` is the L2 distance between the model a client received and the one it returned, over parameters; where it
received several (FeatARC), from the one it trained. What an algorithm notes besides comes under its own name: FedEMA's
μ, λ and `drift`, FedU's `own_predictor`. A note that is called like a key of the log has `noted` before it: FedEMA's
own divergence is `noted divergence`.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from fedssl.analysis.analysis import ANALYSES, Analysis, Found, Summary, run_names
from fedssl.analysis.look import SEVERAL, figure, legend, look, over_rounds
from fedssl.data.progress import Say
from fedssl.errors import ConfigError
from fedssl.run import Run

ACROSS = 2  # panels of one run side by side
KEYS = ("loss", "divergence", "embedding_std", "effective_rank", "alignment", "uniformity")
WORDS = {
    "divergence": "divergence (L2)",
    "noted divergence": "divergence, noted",
    "embedding_std": "embedding std",
    "effective_rank": "effective rank",
    "mu": "μ",
    "lam": "λ",
}

Series = dict[str, dict[str, list[list[float]]]]  # key -> client -> [[round, value], …]


def series(rounds: Sequence[Mapping[str, Any]]) -> Series:
    """For each key and each client the rounds in which it has a value, and the values. Clients that were dropped, or
    were not asked, have none for that round."""
    found: Series = {}
    for line in rounds:
        for client in line["clients"]:
            notes = {f"noted {k}" if k in KEYS else k: v for k, v in client.get("notes", {}).items()}
            for key, value in {**{key: client.get(key) for key in KEYS}, **notes}.items():
                if value is not None:
                    found.setdefault(key, {}).setdefault(client["client"], []).append([line["round"], value])
    return found


def middle(clients: Mapping[str, Sequence[Sequence[float]]]) -> list[tuple[float, float, float, float]]:
    """For each round: its number, and the lower quartile, median and upper quartile over clients."""
    by_round: dict[float, list[float]] = {}
    for points in clients.values():
        for round, value in points:
            by_round.setdefault(round, []).append(value)
    rows = []
    for round, values in sorted(by_round.items()):
        cuts = statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else values * 3
        rows.append((round, cuts[0], cuts[1], cuts[2]))
    return rows


@ANALYSES.register("divergence")
class Divergence(Analysis):
    keys: tuple[str, ...] = ()  # which to draw; none: those of KEYS that the log has, and all notes

    def measure(self, runs: Sequence[Run], say: Say) -> Found:
        found = {name: series(run.rounds) for name, run in zip(run_names(runs), runs, strict=True)}
        known = list(dict.fromkeys(key for each in found.values() for key in each))
        if not known:
            raise ConfigError("no client has finished a round yet: there is nothing to draw")
        if missing := [key for key in self.keys if key not in known]:
            raise ConfigError(f'the rounds log has no "{missing[0]}"; it has: {", ".join(known)}')
        return {"keys": list(self.keys) or known, "runs": found}

    def draw(self, found: Found) -> Any:
        """One run: a panel for each key. Several: a row for each key, a column for each run, and the columns of a row
        share their axis, so that runs can be compared."""
        keys, runs = found["keys"], found["runs"]
        alone = len(runs) == 1
        across = min(ACROSS, len(keys)) if alone else len(runs)
        share = {} if alone else {"sharey": "row"}
        drawn, axes = figure(-(-len(keys) // across) if alone else len(keys), across, width=4.2, height=2.6, **share)
        panels = [(key, name) for key in keys for name in runs]
        clients = sorted({client for each in runs.values() for some in each.values() for client in some})
        for each, (key, name) in zip(axes.flat, panels, strict=False):
            if key in runs[name]:
                _lines(each, runs[name][key], clients)
                over_rounds(each, WORDS.get(key, key))
            else:
                each.text(0.5, 0.5, f"{key}: not in this log", ha="center", transform=each.transAxes, color="0.4")
                each.set_axis_off()
        for each in axes.flat[len(panels) :]:
            each.set_axis_off()
        if alone:
            drawn.suptitle(*runs)
        for each, name in zip(axes[0], [] if alone else runs, strict=False):
            each.set_title(name)
        legend(drawn, axes.flat, title="client")
        return drawn

    def summary(self, found: Found) -> Summary:
        rows = []
        for name, each in found["runs"].items():
            for key in found["keys"]:
                rounds = middle(each.get(key, {}))
                if rounds:
                    values = [round[2] for round in rounds]
                    ends = (values[0], values[-1], min(values), max(values))
                    rows.append([name, key, *(f"{value:.4g}" for value in ends)])
        return Summary("median over clients", ["run", "what", "first round", "last round", "least", "most"], rows)


def _lines(axes: Any, clients: Mapping[str, Sequence[Sequence[float]]], names: Sequence[str]) -> None:
    """A client looks the same in every panel: `names` are those of all."""
    if len(clients) <= SEVERAL:
        for client, points in sorted(clients.items()):
            how = {**look(names.index(client)), "markersize": 3}
            axes.plot(*zip(*points, strict=True), label=client, **how)
        return
    rounds, low, mid, high = zip(*middle(clients), strict=True)
    axes.plot(rounds, mid, label=f"median of {len(clients)}", **look(0))
    axes.fill_between(rounds, low, high, alpha=0.25, color=look(0)["color"], label="middle half")
