"""Measure the effect of one malicious client of five on the demo, with the default guard.

    python -m benchmarks.attacks [--seeds 3] [--rounds 12] [--only NAME …]
                                 [--out results/demo/attacks.json]

Each attack changes the uploads of client 0 in every round; all other clients are honest. The
output contains the kNN accuracy after the last round and how often each client was dropped. Two
rows per claim of 10⁷ images are for clients whose counts the server cannot verify, as on Flower:
with the default limit of one client's share (0.5) and without it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import torch

import fedssl
from fedssl.core.provenance import environment
from fedssl.core.state.state import State
from fedssl.core.state.tree import Tree, model
from fedssl.engine.runtimes.local import LocalRuntime
from fedssl.engine.uploads.records import Reply
from fedssl.engine.uploads.upload_weights import ImageCounts
from fedssl.runs import local

BAD = "0"
Change = Callable[
    [State, State], State
]  # the model that was sent, the honestly trained model -> the upload


class Attack(NamedTuple):
    """The behaviour of the malicious client."""

    change: Change | None = None
    claims: int | None = None  # image count in its reply
    declares: int | None = None  # image count declared before the first round
    settings: Mapping[str, Any] = {}


def statistic(name: str, value: float) -> Change:
    """Overwrite the running statistics of every layer."""

    def change(sent: State, trained: State) -> State:
        bad = trained.clone()
        for entry in bad.layout.entries:
            if entry.name.endswith(name):
                bad.view(entry).fill_(value)
        return bad

    return change


def shift_means(deviations: float) -> Change:
    """Move every running mean by this many standard deviations."""

    def change(sent: State, trained: State) -> State:
        bad = trained.clone()
        tensors = sent.tensors()
        for name, tensor in bad.tensors().items():
            if name.endswith("running_mean"):
                tensor.copy_(
                    tensors[name]
                    + deviations * tensors[name.replace("running_mean", "running_var")].sqrt()
                )
        return bad

    return change


def scale_update(factor: float) -> Change:
    """Return sent + factor · (trained − sent), with running statistics and positive variances."""

    def change(sent: State, trained: State) -> State:
        bad = State(
            trained.layout, sent.floats + factor * (trained.floats - sent.floats), trained.counts
        )
        for entry in bad.layout.entries:
            if entry.name.endswith("running_var"):
                bad.view(entry).copy_(trained.view(entry))
        return bad

    return change


ATTACKS: dict[str, Attack] = {
    "honest": Attack(),
    "running_var = -1000": Attack(statistic("running_var", -1000.0)),
    "running_var = 1e30": Attack(statistic("running_var", 1e30)),
    "running_mean = 1e30": Attack(statistic("running_mean", 1e30)),
    "running means moved by 1.4 deviations": Attack(shift_means(1.4)),
    "running means moved by 2 deviations": Attack(shift_means(2.0)),
    "claims 1e8 images": Attack(claims=10**8),
    "declares 1e7 images": Attack(claims=10**7, declares=10**7),
    "declares 1e7 images, max_share = 1": Attack(
        claims=10**7, declares=10**7, settings={"guard.max_share": 1.0}
    ),
    "declares 1e7 images, sign flip x 8": Attack(scale_update(-8.0), claims=10**7, declares=10**7),
    "sign flip x 1": Attack(scale_update(-1.0)),
    "sign flip x 8": Attack(scale_update(-8.0)),
    "sign flip x 100": Attack(scale_update(-100.0)),
}


@contextlib.contextmanager
def malicious(attack: Attack) -> Iterator[None]:
    """Replace client 0 of every local run by an attacker."""
    exchange = LocalRuntime.exchange

    def attacked(
        self: LocalRuntime, round: int, clients: Sequence[str], message: Callable[[str], Tree]
    ) -> Iterator[Reply]:
        for reply in exchange(self, round, clients, message):
            yield corrupt(reply, message) if reply.client == BAD else reply

    def corrupt(reply: Reply, message: Callable[[str], Tree]) -> Reply:
        if attack.change is not None and reply.upload is not None:
            sent = model(message(BAD), "model")
            reply = reply._replace(
                upload={"model": attack.change(sent, model(reply.upload, "model"))}
            )
        return reply if attack.claims is None else reply._replace(images=attack.claims)

    def declared(counts: Callable[[], Mapping[str, int]], verified: bool) -> ImageCounts:
        if attack.declares is None:
            return ImageCounts(counts, verified)
        return ImageCounts(
            lambda: {**counts(), BAD: attack.declares or counts()[BAD]}, verified=False
        )

    with (
        mock.patch.object(LocalRuntime, "exchange", attacked),
        mock.patch.object(local, "ImageCounts", declared),
    ):
        yield


def measure(attack: Attack, seed: int, rounds: int) -> dict[str, Any]:
    settings = {
        "rounds": rounds,
        "seed": seed,
        "probe.every": rounds,
        "probe.baselines": [],
        "probe.picture": False,
    }
    settings |= {"probe.linear": False, **attack.settings}
    with tempfile.TemporaryDirectory() as folder, malicious(attack):
        run = fedssl.run("demo", dir=Path(folder) / "run", quiet=True, set=settings)
        clients = [client for line in run.rounds for client in line["clients"] if client["dropped"]]
        return {
            "knn": run.results["table"]["this run"]["knn"]["mean"],
            "dropped": sum(client["client"] == BAD for client in clients),
            "honest_dropped": sum(client["client"] != BAD for client in clients),
            "reason": clients[0]["dropped"] if clients else None,
        }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--only", nargs="*", choices=list(ATTACKS), default=list(ATTACKS))
    parser.add_argument("--out", type=Path, default=Path("results/demo/attacks.json"))
    args = parser.parse_args()
    rows = {}
    for name in args.only:
        seeds = [measure(ATTACKS[name], seed, args.rounds) for seed in range(args.seeds)]
        knn = [seed["knn"] for seed in seeds]
        rows[name] = {"knn_mean": round(statistics.fmean(knn), 2), "seeds": seeds}
        dropped, honest = (
            sum(seed[key] for seed in seeds) for key in ("dropped", "honest_dropped")
        )
        asked = args.rounds * args.seeds
        each = ", ".join(f"{one:.1f}" for one in knn)
        print(
            f"{name:38} kNN {statistics.fmean(knn):5.1f} ({each}); "
            f"dropped {dropped} of {asked}, honest {honest}"
        )
    found = {
        "rounds": args.rounds,
        "environment": environment(torch.device("cpu")),
        "attacks": rows,
    }
    args.out.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
