"""Client metrics of the rounds log over rounds, for several runs next to each other.

`divergence` is the L2 distance between the model a client received and the one it returned, over
parameters; where it received several (FeatARC), from the one it trained. Notes of an algorithm have
their own names: FedEMA's μ, λ and `drift`, FedU's `own_predictor`. A note with the name of a key of
the log is prefixed by `noted`: FedEMA's own divergence is `noted divergence`.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from itertools import chain, product
from typing import Any

from fedssl.analysis.analysis import (
    ANALYSES,
    Analysis,
    Results,
    Summary,
    format_numbers,
    run_names,
)
from fedssl.core.console import Notify
from fedssl.core.errors import ConfigError
from fedssl.plots.style import MAX_LINES, legend_below, line_style, new_figure, set_round_axes
from fedssl.runs.run import Run

COLUMNS = 2  # of panels, for a single run
KEYS = ("loss", "divergence", "embedding_std", "effective_rank", "alignment", "uniformity")
AXIS_LABELS = {
    "divergence": "divergence (L2)",
    "noted divergence": "divergence, noted",
    "embedding_std": "embedding std",
    "effective_rank": "effective rank",
    "mu": "μ",
    "lam": "λ",
}

Points = Sequence[Sequence[float]]  # [[round, value], …]
Series = dict[str, dict[str, list[list[float]]]]  # key -> client -> points


def series(rounds: Sequence[Mapping[str, Any]]) -> Series:
    """Return the values of each key and client with their rounds.

    Clients that were dropped, or not selected, have no value for that round.
    """
    by_key: Series = {}
    for line in rounds:
        for client in line["clients"]:
            for key, value in _metrics(client).items():
                points = by_key.setdefault(key, {}).setdefault(client["client"], [])
                points.append([line["round"], value])
    return by_key


def _metrics(client: Mapping[str, Any]) -> dict[str, float]:
    """Return the metrics and notes of one client in one round, without those that are not set."""
    metrics = {}
    for key in KEYS:
        if client.get(key) is not None:
            metrics[key] = client[key]
    for key, value in client.get("notes", {}).items():
        if value is not None:
            metrics[f"noted {key}" if key in KEYS else key] = value
    return metrics


def quartiles(clients: Mapping[str, Points]) -> list[tuple[float, float, float, float]]:
    """Return for each round its number, and lower quartile, median, upper quartile over clients."""
    by_round: dict[float, list[float]] = {}
    for points in clients.values():
        for round, value in points:
            by_round.setdefault(round, []).append(value)
    rows = []
    for round, values in sorted(by_round.items()):
        if len(values) > 1:
            low, median, high = statistics.quantiles(values, n=4, method="inclusive")
        else:
            low = median = high = values[0]
        rows.append((round, low, median, high))
    return rows


@ANALYSES.register("divergence")
class Divergence(Analysis):
    """Draw the metrics of each client over rounds."""

    keys: tuple[str, ...] = ()  # keys to draw; none: those of KEYS in the log, and all notes

    def measure(self, runs: Sequence[Run], notify: Notify) -> Results:
        """Return the values of every key and client by run."""
        by_run = {}
        for name, run in zip(run_names(runs), runs, strict=True):
            by_run[name] = series(run.rounds)
        available = list(dict.fromkeys(chain.from_iterable(by_run.values())))
        if not available:
            raise ConfigError("no client has finished a round yet: wait for the first round")
        for key in self.keys:
            if key not in available:
                raise ConfigError(f'the rounds log has no "{key}"; it has: {", ".join(available)}')
        return {"keys": list(self.keys) or available, "runs": by_run}

    def draw(self, results: Results) -> Any:
        """Return a figure with a panel for each key and run.

        With several runs, a key has a row and a run has a column; the panels of a row share their
        axis, so that runs can be compared.
        """
        keys = results["keys"]
        runs = results["runs"]
        if len(runs) == 1:
            columns = min(COLUMNS, len(keys))
            figure, axes = new_figure(-(-len(keys) // columns), columns, width=4.2, height=2.6)
            figure.suptitle(*runs)
        else:
            figure, axes = new_figure(len(keys), len(runs), width=4.2, height=2.6, sharey="row")
            for panel, name in zip(axes[0], runs, strict=True):
                panel.set_title(name)
        clients = _client_names(runs)
        panels = list(axes.flat)
        shown = list(product(keys, runs))
        for panel, (key, name) in zip(panels, shown, strict=False):
            _draw_panel(panel, key, runs[name].get(key), clients)
        for panel in panels[len(shown) :]:
            panel.set_axis_off()
        legend_below(figure, panels, title="client")
        return figure

    def summary(self, results: Results) -> Summary:
        """Return a table of the medians over clients in the first and last round."""
        rows = []
        for name, by_key in results["runs"].items():
            for key in results["keys"]:
                medians = [row[2] for row in quartiles(by_key.get(key, {}))]
                if medians:
                    ends = (medians[0], medians[-1], min(medians), max(medians))
                    rows.append([name, key, *format_numbers(ends, ".4g")])
        columns = ["run", "metric", "first round", "last round", "least", "most"]
        return Summary("median over clients", columns, rows)


def _client_names(runs: Mapping[str, Series]) -> list[str]:
    """Return the sorted names of the clients of all runs."""
    names: set[str] = set()
    for by_key in runs.values():
        for clients in by_key.values():
            names.update(clients)
    return sorted(names)


def _draw_panel(
    axes: Any, key: str, clients: Mapping[str, Points] | None, names: Sequence[str]
) -> None:
    label = AXIS_LABELS.get(key, key)
    if clients is None:
        text = f"{label}: not in this log"
        axes.text(0.5, 0.5, text, ha="center", transform=axes.transAxes, color="0.4")
        axes.set_axis_off()
        return
    _draw_lines(axes, clients, names)
    set_round_axes(axes, label)
    axes.tick_params(labelleft=True)  # the first panel of its row may be empty


def _draw_lines(axes: Any, clients: Mapping[str, Points], names: Sequence[str]) -> None:
    """Draw a line for each client, or the quartiles of many clients.

    `names` are those of all clients, so that a client has the same style in every panel.
    """
    if len(clients) <= MAX_LINES:
        for client, points in sorted(clients.items()):
            style = {**line_style(names.index(client)), "markersize": 3}
            axes.plot(*zip(*points, strict=True), label=client, **style)
        return
    rounds, low, median, high = zip(*quartiles(clients), strict=True)
    style = line_style(0)
    axes.plot(rounds, median, label=f"median of {len(clients)}", **style)
    axes.fill_between(rounds, low, high, alpha=0.25, color=style["color"], label="middle half")
