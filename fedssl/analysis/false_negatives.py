"""The share of negatives that have the class of their image (Wu et al., CCL, Eq. 4 and 5).

The paper assumes m equally frequent classes on every client, so that a share 1/m of a client's
queue has the query's class. Here the shares are those of the clients' images, from their labels:
for an image of class y on client c, with p_i(y) the share of y among client i's images, l negatives
in its own queue and r from each other client,

    local         p_c(y)
    with remote   (l·p_c(y) + Σ_{i≠c} r·p_i(y)) / (l + Σ_{i≠c} r)      Eq. 4
    remote only   Σ_{i≠c} r·p_i(y) / Σ_{i≠c} r                          Eq. 5

averaged over the client's images. With m equal classes on clients this is the paper's formula. A
queue is assumed to hold the classes in the client's proportions; r is `remote`, or equal to l if
that is not given, as in the paper's Eq. 4. A remote feature of CCL is that of several mixed images
of one client, and counts as an image of that client drawn at random. Labels are used here and not
in training. The numbers do not show whether false negatives do harm.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from pydantic import Field
from torch import Tensor

from fedssl.analysis.analysis import ANALYSES, Analysis, Results, Summary, round_digits, run_names
from fedssl.core.console import Notify
from fedssl.core.errors import ConfigError
from fedssl.data import histogram
from fedssl.plots.style import COLOURS, new_figure
from fedssl.runs.run import Run


def ratios(counts: Tensor, local: int, remote: int) -> dict[str, Tensor]:
    """Return the mean ratio of each client (clients,), for each choice of negatives.

    `counts` (clients, classes) are images; `local` negatives are the client's own, `remote` are
    from each other client.
    """
    shares = counts.double() / counts.sum(1, keepdim=True)
    others = shares.sum(0) - shares  # Σ_{i≠c} p_i(y)
    n = len(counts) - 1
    by_choice = {
        "local": shares,
        "with remote": (local * shares + remote * others) / (local + n * remote),
        "remote only": others / n if n else others,
    }
    means = {}
    for choice, ratio in by_choice.items():
        means[choice] = (shares * ratio).sum(1)
    return means


@ANALYSES.register("false-negatives")
class FalseNegatives(Analysis):
    """Compute the share of false negatives on each client."""

    local: int = Field(0, ge=0)  # negatives in a client's own queue; 0: the method's queue, or 1
    remote: int = Field(0, ge=0)  # negatives from each other client; 0: as many as local ones

    def measure(self, runs: Sequence[Run], notify: Notify) -> Results:
        """Return the ratios of every client, and their mean, for each run."""
        results = {}
        for name, run in zip(run_names(runs), runs, strict=True):
            results[name] = self._measure_run(run, notify)
        return {"runs": results}

    def _measure_run(self, run: Run, notify: Notify) -> dict[str, Any]:
        data = run.data(notify)
        if not data.train.labelled:
            raise ConfigError(
                f"the training images of {run.dir} have no labels, which are needed to count false "
                "negatives: choose a run that was trained on labelled images"
            )
        _, owners = run.partition_data(data, notify)
        owners = {client: index for client, index in owners.items() if len(index)}
        labels = data.train.labels
        counts = histogram(owners, labels, max(len(data.train.classes), int(labels.max()) + 1))
        local = self.local or int(getattr(run.experiment.method, "queue", 0)) or 1
        remote = self.remote or local
        by_choice = ratios(counts, local, remote)
        if len(owners) == 1:
            by_choice = {"local": by_choice["local"]}
        rounded = {}
        means = {}
        for choice, ratio in by_choice.items():
            rounded[choice] = round_digits(ratio.tolist())
            means[choice] = float(ratio.mean())
        return {
            "local": local,
            "remote": remote,
            "clients": list(owners),
            "ratios": rounded,
            "mean": means,
        }

    def draw(self, results: Results) -> Any:
        """Return a figure with a panel for each run."""
        runs = results["runs"]
        width = 4.8 if len(runs) > 1 else 6
        figure, axes = new_figure(1, len(runs), width=width, sharey=True)
        for panel, (name, run) in zip(axes[0], runs.items(), strict=True):
            _draw_run(panel, name, run)
        axes[0, 0].set_ylabel("false negatives (%)\nbar: mean of clients, dots: clients")
        return figure

    def summary(self, results: Results) -> Summary:
        """Return a table with the mean and the range over clients."""
        rows = []
        for name, run in results["runs"].items():
            for choice, values in run["ratios"].items():
                mean = f"{100 * run['mean'][choice]:.2f}%"
                spread = f"{100 * min(values):.2f} to {100 * max(values):.2f}%"
                rows.append([name, choice, mean, spread])
        columns = ["run", "negatives", "mean over clients", "clients"]
        return Summary("negatives of the same class as the image", columns, rows)


def _draw_run(axes: Any, name: str, run: Mapping[str, Any]) -> None:
    """Draw a bar for each choice of negatives, and a point for each client."""
    for number, (choice, values) in enumerate(run["ratios"].items()):
        mean = 100 * run["mean"][choice]
        axes.bar(number, mean, color=COLOURS[number], alpha=0.6, width=0.6)
        axes.plot(
            np.linspace(number - 0.2, number + 0.2, len(values)),
            100 * np.array(values),
            ".",
            color="black",
            markersize=5,
            clip_on=False,
            zorder=3,
        )
    axes.set_xticks(range(len(run["ratios"])), list(run["ratios"]))
    axes.set(
        title=f"{name}\nnegatives: {run['local']} own, {run['remote']} of each other client",
        ylim=(0, None),
    )
    axes.grid(alpha=0.3, axis="y")
