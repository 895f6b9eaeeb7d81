"""Measure the engine's cost per client and round, relative to the minimum of any federation.

    python -m benchmarks.round [--clients 10] [--repeats 12] [--processes 7]
                               [--out results/speed/round.json]

A whole round runs through `federate`, the local runtime, the guard, FedAvg and the exact mean; only
the training of clients is omitted. One worker, one thread, one core. The reference copies a float32
row of as many numbers as are sent, and multiply-adds another to a float32 sum. A plain loop is
measured too: deep-copy the model and add its tensors in float32, without checks. All three
alternate, so that a busy machine slows all of them. Times are CPU times, so that waiting for other
processes does not count and a second core cannot help. The location of a process's memory changes a
ratio by a tenth, so the measurement is repeated in several processes, and figures are medians over
them.

    stateless   SimCLR: the whole model is sent, a client keeps nothing
    stateful    BYOL: the online network is sent; the client keeps its target network, which is
                almost as large, loaded before training and stored after it. The reference counts
                only what is sent
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from benchmarks.machine import machine
from fedssl import nets
from fedssl.algorithms import FedAvg
from fedssl.core.state.layout import PARAMETERS
from fedssl.core.state.tree import model
from fedssl.engine.checkpoints.client_memory import ClientMemory
from fedssl.engine.federate import federate
from fedssl.engine.round_rules import RoundRules
from fedssl.engine.runtimes.client_round import RoundPosition, RunContext, Shard
from fedssl.engine.runtimes.local import LocalRuntime
from fedssl.engine.uploads.norm_bound import TypicalUpdate
from fedssl.engine.uploads.settings import GuardSettings
from fedssl.method import METHODS, Constants
from fedssl.topologies.topology import SERVER, Star
from fedssl.training.client import Client
from fedssl.training.step import Objective
from fedssl.training.trainer import Metrics, Trainer, TrainingTask, TrainSettings


class Size(NamedTuple):
    backbone: str
    hidden: int
    dim: int


SIZES = {"11M": Size("resnet18", 64, 32), "0.5M": Size("cnn", 640, 128)}
METHOD = {"stateless": "simclr", "stateful": "byol"}
ENDLESS = 1_000_000  # rounds
WARM = 3  # of these, warm-up rounds that are not counted


class Idle(Trainer):
    """A client that does not train, so that only the engine is measured."""

    def fit(self, task: TrainingTask, objective: Objective, constants: Constants) -> Metrics:
        return Metrics(0.0, 1, 1, 1.0, 1.0, 1.0)


class Federation:
    """Clients of one image each; every call of `round` runs one round of the engine over them."""

    def __init__(self, size: Size, method: str, clients: int) -> None:
        settings = METHODS[method].Settings(**size._asdict())
        trainer = Idle(settings.build(nets.build(size.backbone), 32), TrainSettings())
        algorithm, image = FedAvg(), torch.zeros(1, 3, 32, 32, dtype=torch.uint8)
        self.memory, self.first = ClientMemory(), "00"
        shards = {f"{i:02}": Shard(image) for i in range(clients)}
        self.runtime = LocalRuntime(
            RunContext(algorithm, 0, lambda round: RoundPosition(0.1, 0.0)),
            shards,
            [trainer],
            self.memory,
        )
        site = algorithm.init(Client("home", image, None, {}, trainer, 0, 0))
        self.travels = model(site, "model").layout
        schema = algorithm.upload_schema(trainer.method)
        typical_update = TypicalUpdate(1.0, 1, 1.0)  # as in every round after the first
        self.rounds = federate(
            algorithm,
            Star(),
            self.runtime,
            {SERVER: site},
            schema=schema,
            rounds=ENDLESS,
            typical_update=typical_update,
            rules=RoundRules(GuardSettings()),
        )

    def round(self) -> None:
        assert not any(report.dropped for report in next(self.rounds).reports)

    def kept(self) -> int:
        """Return the number of values in one client's memory."""
        memory = self.memory.latest(self.first)
        return model(memory, "kept").layout.floats if memory else 0


def reference(n: int) -> Callable[[], None]:
    """Copy one row (n,) of float32 and multiply-add another."""
    sent, upload, resident, total = (torch.ones(n) for _ in range(4))

    def once() -> None:
        resident.copy_(sent)
        total.add_(upload, alpha=0.1)

    return once


def plain_loop(size: Size) -> Callable[[], None]:
    """Run a client's round without an engine; the model is the stateless one."""
    backbone = nets.build(size.backbone)
    net = nn.Sequential(backbone, nets.mlp(backbone.dim, size.hidden, size.dim))
    total = {name: tensor * 0.1 for name, tensor in net.state_dict().items()}

    def once() -> None:
        local = copy.deepcopy(net)
        for name, tensor in local.state_dict().items():
            total[name].add_(tensor, alpha=0.1)

    return once


def microseconds(work: Callable[[], None], times: int = 1) -> float:
    started = time.process_time()
    for _ in range(times):
        work()
    return 1e6 * (time.process_time() - started) / times


def measure(size: Size, method: str, clients: int, repeats: int) -> dict[str, Any]:
    federation, loop = Federation(size, method, clients), plain_loop(size)
    n = federation.travels.floats
    for _ in range(WARM):
        federation.round()
        loop()
    engine, least, plain = [], [], []
    for _ in range(repeats):
        once = reference(
            n
        )  # in new memory each time: the location of its pages changes its time by a fifth
        once()
        least.append(microseconds(once, clients))
        engine.append(microseconds(federation.round) / clients)
        plain.append(microseconds(loop))
    federation.runtime.close()
    return {
        "parameters that travel": federation.travels.pick(None, PARAMETERS).floats,
        "numbers that travel": n,
        "numbers kept": federation.kept(),
        "entries": len(federation.travels.entries),
        "microseconds": _spread(engine),
        "ratio": _spread([a / b for a, b in zip(engine, least, strict=True)], 2),
        "reference": {"microseconds": _spread(least)},
        "deepcopy loop": {
            "microseconds": _spread(plain),
            "ratio": _spread([a / b for a, b in zip(plain, least, strict=True)], 2),
        },
    }


def _spread(values: list[float], digits: int | None = None) -> dict[str, float]:
    low, median, high = statistics.quantiles(values, n=4)
    return {
        name: round(v, digits)
        for name, v in (("median", median), ("lower quartile", low), ("upper quartile", high))
    }


def in_this_process(clients: int, repeats: int) -> dict[str, Any]:
    torch.set_num_threads(1)
    if hasattr(
        os, "sched_setaffinity"
    ):  # otherwise merging would run concurrently with the next client, on another core
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    return {
        f"{name} {kind}": measure(size, method, clients, repeats)
        for name, size in SIZES.items()
        for kind, method in METHOD.items()
    }


def in_processes(count: int, clients: int, repeats: int) -> dict[str, Any]:
    command = [
        sys.executable,
        "-m",
        "benchmarks.round",
        "--clients",
        f"{clients}",
        "--repeats",
        f"{repeats}",
    ]
    each = []
    for _ in range(count):
        done = subprocess.run(  # nosec B603 # this Python
            [*command, "--processes", "0"], capture_output=True, text=True, check=True
        )
        each.append(json.loads(done.stdout))
    found: dict[str, Any] = {}
    for name, case in each[0].items():
        same = [other[name] for other in each]
        found[name] = {key: value for key, value in case.items() if isinstance(value, int)} | {
            "microseconds": statistics.median(c["microseconds"]["median"] for c in same),
            "ratio": statistics.median(c["ratio"]["median"] for c in same),
            "ratio each": sorted(c["ratio"]["median"] for c in same),
            "ratio of a deepcopy loop": statistics.median(
                c["deepcopy loop"]["ratio"]["median"] for c in same
            ),
        }
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--clients", type=int, default=10)
    parser.add_argument("--repeats", type=int, default=12)
    parser.add_argument("--processes", type=int, default=7, help="0: measure in this process")
    parser.add_argument("--out", type=Path, default=Path("results/speed/round.json"))
    arguments = parser.parse_args()
    if not arguments.processes:
        print(json.dumps(in_this_process(arguments.clients, arguments.repeats)))
        return
    cases = in_processes(arguments.processes, arguments.clients, arguments.repeats)
    for name, case in cases.items():
        print(
            f"{name:15} {case['microseconds']:>7,.0f} µs per client and round, "
            f"{case['ratio']:5.2f} × the reference"
            f" ({case['ratio each'][0]} to {case['ratio each'][-1]}; a deepcopy loop: "
            f"{case['ratio of a deepcopy loop']:.2f} ×)"
        )
    setting = {key: vars(arguments)[key] for key in ("clients", "repeats", "processes")}
    found = {**setting, "load average": os.getloadavg()[0], "machine": machine(), "cases": cases}
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(found, indent=2) + "\n", "utf-8")


if __name__ == "__main__":
    main()
