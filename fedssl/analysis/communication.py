"""What it takes to reach an accuracy: rounds, epochs, images and bytes (FedEMA, Table 11, which has rounds and epochs).

The accuracy is the kNN's that a run measures on its way (`probe.every`), not the papers' linear probe, which would have
to be trained at every round. It is measured every few rounds only, so a target is reached at the latest by the round
given. Bytes are those of tensors, as the rounds log has them: no compression, no protocol.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import Field

from fedssl.analysis.analysis import ANALYSES, Analysis, Found, Summary, run_names
from fedssl.analysis.comparable import check_comparable
from fedssl.analysis.look import figure, legend, look, whole_rounds
from fedssl.data.progress import Say, say_on_stderr
from fedssl.errors import ConfigError
from fedssl.run import Run
from fedssl.store import Store

Percent = Annotated[float, Field(ge=0, le=100)]

STEP = 5  # points between targets where none are given
TARGETS = 6  # the highest of them that are shown


def spent(run: Run) -> list[dict[str, Any]]:
    """For each round, all that was spent up to its end, and the accuracies measured then.

    At a server a client's message and upload cross the network once each, those of dropped clients' messages too.
    Between peers a message is a peer's own model, which goes nowhere, and an upload goes to each neighbour that takes
    part; `up` has those, `down` is 0. Isolated clients send nothing.
    """
    down = up = images = 0
    lines, peers = [], _peers(run)
    for line in run.rounds:
        hears = _neighbours(run, peers, line)
        for client in line["clients"]:
            down += client["bytes_down"] if run.experiment.topology.has_server else 0
            up += client.get("bytes_up", 0) * hears[client["client"]]
            images += client.get("images", 0)
        epochs = line["round"] * run.experiment.train.epochs
        known = {key: line.get(key) for key in ("knn", "knn_common")}
        lines.append({"round": line["round"], "epochs": epochs, "images": images, "down": down, "up": up, **known})
    return lines


def _neighbours(run: Run, clients: Sequence[str], line: Mapping[str, Any]) -> dict[str, int]:
    """To how many others each client's upload goes; `clients` are all that have images."""
    asked = [client["client"] for client in line["clients"]]
    if run.experiment.topology.has_server:
        return dict.fromkeys(asked, 1)
    mixing = run.experiment.topology.plan(clients, line["round"] - 1, run.experiment.seed).mixing
    return {client: sum(client in heard for site, heard in mixing.items() if site != client) for client in asked}


def _peers(run: Run) -> list[str]:
    """All clients, in their order, of a run without a server: its sites are called after them."""
    snapshot = None if run.experiment.topology.has_server else Store(run.dir).load(say_on_stderr, check_rows=False)
    return [] if snapshot is None else list(snapshot.sites)


def reached(lines: Sequence[Mapping[str, Any]], accuracy: float, of: str) -> Mapping[str, Any] | None:
    """The first round at whose end the accuracy was measured to be at least so high; None: at none."""
    return next((line for line in lines if line[of] is not None and line[of] >= accuracy), None)


def usual_targets(highest: float, lowest: float) -> list[float]:
    """Round numbers between the lowest accuracy measured and the highest, at most TARGETS of them."""
    targets = [float(n) for n in range(STEP * math.ceil(lowest / STEP), math.floor(highest) + 1, STEP)]
    return targets[-TARGETS:] or [float(math.floor(highest))]


@ANALYSES.register("communication")
class Communication(Analysis):
    accuracies: tuple[Percent, ...] = ()  # none: round numbers among those that were measured
    of: Literal["knn", "knn_common"] = "knn"  # of the run's models on average, or of what they have in common

    def measure(self, runs: Sequence[Run], say: Say) -> Found:
        named = dict(zip(run_names(runs), runs, strict=True))
        lines = {name: spent(run) for name, run in named.items()}
        measured = {name: [line[self.of] for line in each if line[self.of] is not None] for name, each in lines.items()}
        for name, values in measured.items():
            if not values:
                raise ConfigError(f"{name} measured no {self.of} on its way: {self._why(named[name])}")
        check_comparable(named)
        every = [value for values in measured.values() for value in values]
        targets = sorted(self.accuracies) or usual_targets(max(every), min(every))
        return {
            "of": self.of,
            "targets": targets,
            "best": {name: max(values) for name, values in measured.items()},
            "reached": {name: [reached(each, t, self.of) for t in targets] for name, each in lines.items()},
            "rounds": lines,
            "every": {name: run.experiment.probe.every for name, run in named.items()},
        }

    def _why(self, run: Run) -> str:
        """What to do about a run whose log lacks the accuracy asked for; that it had no labels its results say."""
        if any(line.get("knn") is not None for line in run.rounds):  # of each model, but of nothing that they share
            return "its models have nothing in common that was measured; --set of=knn is their mean"
        if run.results and run.results.get("labels") is None:
            return "it had no labelled test images; fedssl analyse divergence needs none"
        return "run it with --set probe.every=1, and with labelled test images"

    def draw(self, found: Found) -> Any:
        drawn, axes = figure(1, 2, width=5.5)
        for number, (name, lines) in enumerate(found["rounds"].items()):
            points = [line for line in lines if line[found["of"]] is not None]
            accuracy = [line[found["of"]] for line in points]
            axes[0, 0].plot([line["round"] for line in points], accuracy, label=name, **look(number))
            sent = [(line["down"] + line["up"]) / 1e6 for line in points]
            axes[0, 1].plot(sent, accuracy, label=name, **look(number))
        for each, label in zip(axes[0], ("round", "sent up and down so far (MB)"), strict=True):
            for target in found["targets"]:
                each.axhline(target, color="0.6", linewidth=0.8, linestyle=":")
            each.set(xlabel=label, ylabel="kNN accuracy on test images (%)")
            each.grid(alpha=0.3)
        whole_rounds(axes[0, 0])
        legend(drawn, axes[0, :1])
        return drawn

    def summary(self, found: Found) -> Summary:
        rows = []
        for name, hits in found["reached"].items():
            for target, hit in zip(found["targets"], hits, strict=True):
                best = f"not reached (best {found['best'][name]:.1f}%)"
                cells = ["–"] * 4 if hit is None else [f"{hit['round']}", f"{hit['epochs']}", *_sizes(hit)]
                rows.append([name, f"{target:g}%", *cells, best if hit is None else ""])
        columns = ["run", "accuracy", "round", "local epochs", "MB down", "MB up", ""]
        notes = ["kNN accuracy, measured every few rounds: a target is reached by that round at the latest"]
        every = found["every"]
        if len(set(every.values())) > 1:
            said = ", ".join(f"{name} every {rounds}" for name, rounds in every.items())
            notes.append(f"probe.every differs ({said}): a run measured more often can reach a target earlier")
        return Summary("what it takes to reach an accuracy", columns, rows, notes)


def _sizes(hit: Mapping[str, Any]) -> list[str]:
    return [f"{hit[way] / 1e6:,.1f}" for way in ("down", "up")]
