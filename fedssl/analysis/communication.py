"""The cost of reaching an accuracy: rounds, epochs, images and bytes.

FedEMA's Table 11 has rounds and epochs. The accuracy here is that of the kNN probe that a run
measures on its way (`probe.every`), not the papers' linear probe, which would have to be trained at
every round. It is measured every few rounds only, so a target is reached at the latest by the round
given. Bytes are those of tensors, as in the rounds log: without compression or protocol overhead.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field

from fedssl.analysis.analysis import ANALYSES, Analysis, Results, Summary, run_names
from fedssl.analysis.comparable import check_same_knn
from fedssl.core.console import Notify, print_to_stderr
from fedssl.core.errors import ConfigError
from fedssl.engine.checkpoints.store import Store
from fedssl.plots.style import (
    legend_below,
    line_style,
    new_figure,
    set_accuracy_axis,
    set_integer_ticks,
)
from fedssl.runs.run import Run

Percent = Annotated[float, Field(ge=0, le=100)]
Line = Mapping[str, Any]  # what was spent up to the end of one round, and the accuracies then

TARGET_STEP = 5  # points between default targets
MAX_TARGETS = 6  # of the default targets the highest are kept


def spent(run: Run) -> list[dict[str, Any]]:
    """Return for each round all that was spent up to its end, and the accuracies measured then.

    With a server each message and each upload crosses the network once, also messages to clients
    that are dropped. Between peers a message is a peer's own model, which is not sent; an upload
    goes to each neighbour that takes part: `up` has those, `down` is 0. Isolated clients send
    nothing. The log of a private run has no sizes of uploads, so its `up` is None.
    """
    private = run.experiment.privacy.enabled
    down = 0
    up = 0
    images = 0
    lines = []
    peers = _peers(run)
    for line in run.rounds:
        receivers = _receivers(run, peers, line)
        for client in line["clients"]:
            if run.experiment.topology.has_server:
                down += client["bytes_down"]
            up += client.get("bytes_up", 0) * receivers[client["client"]]
            images += client.get("images", 0)
        known_up: int | None = up
        if private:
            known_up = None
        lines.append(
            {
                "round": line["round"],
                "epochs": line["round"] * run.experiment.train.epochs,
                "images": images,
                "down": down,
                "up": known_up,
                "knn": line.get("knn"),
                "knn_common": line.get("knn_common"),
            }
        )
    return lines


def _receivers(run: Run, peers: Sequence[str], line: Mapping[str, Any]) -> dict[str, int]:
    """Return the number of receivers of each client's upload; `peers` are all with images."""
    topology = run.experiment.topology
    receivers = {}
    for client in line["clients"]:
        receivers[client["client"]] = int(topology.has_server)
    if topology.has_server:
        return receivers
    plan = topology.plan(peers, line["round"] - 1, run.experiment.seed)
    for site, senders in plan.mixing.items():
        for client in receivers:
            if client in senders and site != client:
                receivers[client] += 1
    return receivers


def _peers(run: Run) -> list[str]:
    """Return all clients of a run without a server, in order: its sites have their names."""
    if run.experiment.topology.has_server:
        return []
    snapshot = Store(run.dir).load(print_to_stderr, check_rows=False)
    if snapshot is None:
        return []
    return list(snapshot.sites)


def reached(lines: Sequence[Line], accuracy: float, of: str) -> Line | None:
    """Return the line of the first round at whose end the accuracy was at least this high."""
    for line in lines:
        if line[of] is not None and line[of] >= accuracy:
            return line
    return None


class Curve(NamedTuple):
    """The rounds of a run in which an accuracy was measured, with the bytes sent by then."""

    rounds: list[int]
    megabytes: list[float]
    accuracies: list[float]


def curve(lines: Sequence[Line], of: str) -> Curve:
    """Return the rounds that have the accuracy `of`."""
    points = Curve([], [], [])
    for line in lines:
        if line[of] is not None:
            points.rounds.append(line["round"])
            points.megabytes.append((line["down"] + (line["up"] or 0)) / 1e6)
            points.accuracies.append(line[of])
    return points


def default_targets(highest: float, lowest: float) -> list[float]:
    """Return the highest multiples of TARGET_STEP between the measured accuracies."""
    start = TARGET_STEP * math.ceil(lowest / TARGET_STEP)
    targets = list(map(float, range(start, math.floor(highest) + 1, TARGET_STEP)))
    return targets[-MAX_TARGETS:] or [float(math.floor(highest))]


@ANALYSES.register("communication")
class Communication(Analysis):
    """Find the round and the cost at which each run reached some accuracies."""

    accuracies: tuple[Percent, ...] = ()  # targets; none: round numbers among those measured
    of: Literal["knn", "knn_common"] = "knn"  # mean over the run's models, or the shared models

    def measure(self, runs: Sequence[Run], notify: Notify) -> Results:
        """Return the cost of every run by round, and when it reached each target."""
        by_name = dict(zip(run_names(runs), runs, strict=True))
        lines = {}
        best = {}
        every = {}
        measured = []
        for name, run in by_name.items():
            lines[name] = spent(run)
            accuracies = curve(lines[name], self.of).accuracies
            if not accuracies:
                raise ConfigError(
                    f'the rounds log of {name} has no accuracy "{self.of}": {self._advice(run)}'
                )
            best[name] = max(accuracies)
            every[name] = run.experiment.probe.every
            measured += accuracies
        check_same_knn(by_name)
        targets = sorted(self.accuracies) or default_targets(max(measured), min(measured))
        hits = {}
        for name in by_name:
            hits[name] = [reached(lines[name], target, self.of) for target in targets]
        return {
            "of": self.of,
            "targets": targets,
            "best": best,
            "reached": hits,
            "rounds": lines,
            "every": every,
        }

    def _advice(self, run: Run) -> str:
        """Return what to do about a run whose log lacks the accuracy."""
        if any(line.get("knn") is not None for line in run.rounds):
            return "it has no shared model; --set of=knn uses the mean over its models"
        if run.results and run.results.get("labels") is None:
            return "it had no labelled test images; fedssl analyse divergence works without labels"
        return "run the experiment again with labelled test images and --set probe.every=1"

    def draw(self, results: Results) -> Any:
        """Return a figure of the accuracy over rounds and over the bytes sent."""
        figure, axes = new_figure(1, 2, width=5.5)
        over_rounds, over_bytes = axes[0]
        extent = list(results["targets"])
        for number, (name, lines) in enumerate(results["rounds"].items()):
            points = curve(lines, results["of"])
            extent += points.accuracies
            style = line_style(number)
            over_rounds.plot(points.rounds, points.accuracies, label=name, **style)
            over_bytes.plot(points.megabytes, points.accuracies, label=name, **style)
        for panel in (over_rounds, over_bytes):
            for target in results["targets"]:
                panel.axhline(target, color="0.6", linewidth=0.8, linestyle=":")
            panel.grid(alpha=0.3)
            set_accuracy_axis(panel, extent, "kNN accuracy (%)")
        over_rounds.set_xlabel("round")
        over_bytes.set_xlabel("sent up and down so far (MB)")
        set_integer_ticks(over_rounds)
        legend_below(figure, [over_rounds])
        return figure

    def summary(self, results: Results) -> Summary:
        """Return a table of the cost of each target."""
        rows = []
        for name, hits in results["reached"].items():
            for target, hit in zip(results["targets"], hits, strict=True):
                cells = _cells(hit, results["best"][name])
                rows.append([name, f"{target:g}%", *cells])
        columns = ["run", "accuracy", "round", "local epochs", "MB down", "MB up", ""]
        return Summary("cost of reaching an accuracy", columns, rows, _notes(results))


def _cells(hit: Line | None, best: float) -> list[str]:
    """Return round, epochs, megabytes down and up, and a remark if the target was not reached."""
    if hit is None:
        return ["–", "–", "–", "–", f"not reached (best {best:.1f}%)"]
    down = f"{hit['down'] / 1e6:,.1f}"
    up = "–"
    if hit["up"] is not None:
        up = f"{hit['up'] / 1e6:,.1f}"
    return [f"{hit['round']}", f"{hit['epochs']}", down, up, ""]


def _notes(results: Results) -> list[str]:
    notes = [
        "kNN accuracy, measured every few rounds: a target is reached by that round at the latest"
    ]
    if any(lines[0]["up"] is None for lines in results["rounds"].values()):
        notes.append("the log of a private run has no sizes of uploads: the picture lacks them too")
    every = results["every"]
    if len(set(every.values())) > 1:
        intervals = ", ".join(f"{name} every {rounds}" for name, rounds in every.items())
        notes.append(
            f"probe.every differs ({intervals}): "
            "a run measured more often can reach a target earlier"
        )
    return notes
