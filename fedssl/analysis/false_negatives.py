"""How many negatives are of the same class as the image they are to be told from (Wu et al., CCL, Eq. 4 and 5).

The paper counts with m equally frequent classes on every client, so that a share 1/m of a client's queue is of the
query's class. Here the shares are those that clients' images really have, from their labels: for an image of class y on
client c, with p_i(y) the share of y among client i's images, l negatives in its own queue and r from each other client,

    local         p_c(y)
    with remote   (l·p_c(y) + Σ_{i≠c} r·p_i(y)) / (l + Σ_{i≠c} r)      Eq. 4
    remote only   Σ_{i≠c} r·p_i(y) / Σ_{i≠c} r                          Eq. 5

averaged over the client's images. With m equal classes on clients this is the paper's formula. A queue is taken to hold
a client's images in the mix they come in; r is `remote`, or as many as l if that is not given, as in the paper's Eq. 4.
A remote feature of CCL is that of several mixed images of one client, and counts as an image of that client drawn at
random. Labels are looked at here and nowhere in training. Says nothing of whether a false negative does harm.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import Field
from torch import Tensor

from fedssl.analysis.analysis import ANALYSES, Analysis, Found, Summary, listed, run_names
from fedssl.analysis.look import COLOURS, figure
from fedssl.data import histogram
from fedssl.data.progress import Say
from fedssl.errors import ConfigError
from fedssl.run import Run


def ratios(counts: Tensor, local: int, remote: int) -> dict[str, Tensor]:
    """Each client's mean ratio (clients,), for each way of choosing negatives.

    `counts` (clients, classes) are images; `local` negatives are from a client's own, `remote` from each other one.
    """
    shares = counts.double() / counts.sum(1, keepdim=True)
    others = shares.sum(0) - shares  # Σ_{i≠c} p_i(y)
    n = len(counts) - 1
    ways = {
        "local": shares,
        "with remote": (local * shares + remote * others) / (local + n * remote),
        "remote only": others / n if n else others,
    }
    return {way: (shares * ratio).sum(1) for way, ratio in ways.items()}


@ANALYSES.register("false-negatives")
class FalseNegatives(Analysis):
    local: int = Field(0, ge=0)  # negatives in a client's own queue; 0: the method's queue, or 1 if it has none
    remote: int = Field(0, ge=0)  # negatives from each other client; 0: as many as local ones

    def measure(self, runs: Sequence[Run], say: Say) -> Found:
        return {"runs": {name: self._one(run, say) for name, run in zip(run_names(runs), runs, strict=True)}}

    def _one(self, run: Run, say: Say) -> dict[str, Any]:
        data = run.data(say)
        if not data.train.labelled:
            raise ConfigError(
                f"{run.dir}: the training images have no labels, so nobody knows which negatives are false"
            )
        _, owners = run.deal(data, say)
        owners = {client: index for client, index in owners.items() if len(index)}
        labels = data.train.labels
        counts = histogram(owners, labels, max(len(data.train.classes), int(labels.max()) + 1))
        local = self.local or int(getattr(run.experiment.method, "queue", 0)) or 1
        remote = self.remote or local
        found = ratios(counts, local, remote)
        if len(owners) == 1:
            found = {"local": found["local"]}
        return {
            "local": local,
            "remote": remote,
            "clients": list(owners),
            "ratios": {way: listed(each.tolist()) for way, each in found.items()},
            "mean": {way: float(each.mean()) for way, each in found.items()},
        }

    def draw(self, found: Found) -> Any:
        """Bars by way, a point for each client."""
        drawn, axes = figure(1, len(found["runs"]), width=4.8 if len(found["runs"]) > 1 else 6, sharey=True)
        for each, (name, one) in zip(axes[0], found["runs"].items(), strict=True):
            for place, (way, values) in enumerate(one["ratios"].items()):
                each.bar(place, 100 * one["mean"][way], color=COLOURS[place], alpha=0.6, width=0.6)
                steps = [place + 0.4 * (i / max(1, len(values) - 1) - 0.5) for i in range(len(values))]
                each.plot(steps, [100 * v for v in values], ".", color="black", markersize=5, clip_on=False, zorder=3)
            each.set_xticks(range(len(one["ratios"])), list(one["ratios"]))
            each.set(
                title=f"{name}\nnegatives: {one['local']} own, {one['remote']} of each other client", ylim=(0, None)
            )
            each.grid(alpha=0.3, axis="y")
        axes[0, 0].set_ylabel("false negatives (%)\nbar: mean of clients, dots: clients")
        return drawn

    def summary(self, found: Found) -> Summary:
        rows = []
        for name, one in found["runs"].items():
            for way, values in one["ratios"].items():
                mean = one["mean"][way]
                rows.append([name, way, f"{100 * mean:.2f}%", f"{100 * min(values):.2f} to {100 * max(values):.2f}%"])
        columns = ["run", "negatives", "mean over clients", "clients"]
        return Summary("negatives of the same class as the image", columns, rows)
