"""Measure a Flower server's peak memory: 860 MiB at 2 sites, 895 at 20, 896 at 100 (45 MB each).

    python -m benchmarks.server_memory [--sites 2 20 100] [--mb 45]
                                       [--out results/speed/server-memory.json]

Measured once on two cores of a busy AMD EPYC, CPU build of torch 2.13
(`results/speed/server-memory.json`).

Two rounds of FedAvg with a quorum of 1.0 (every site must reply) run through
`fedssl.flower.serve` on an in-process grid: no socket and no training. When the server pulls a
reply, the site returns the model it received plus a constant, serialized and deserialized as in
Flower, so that only the server holds uploads. For each number of sites, in a separate process: the
peak resident memory (VmHWM), before the first round and in total; Linux only. The first round
compares its first five uploads with each other, so it holds five.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, cast

from flwr.app import Message
from flwr.proto.node_pb2 import NodeInfo
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.task_identity import TaskIdentity

import fedssl
from benchmarks.flower import experiment
from benchmarks.machine import machine
from fedssl.core.devices.select import resolve_device
from fedssl.core.state.state import State
from fedssl.engine.uploads.records import Reply
from fedssl.experiment.federation_setup import build_method
from fedssl.flower.codec import decode, encode
from fedssl.flower.messages import TRAIN, Hello, pack_hello, pack_reply, unpack_task
from fedssl.flower.serve import serve
from fedssl.flower.server_settings import ServerSettings
from fedssl.runs.rounds_log import read_rounds
from fedssl.training.trainer import Metrics

IMAGE = (3, 12, 12)
IMAGES = 24  # image count that each site reports
ROUNDS = 2


class Sites:
    """A grid whose sites reply when the server pulls their reply."""

    def __init__(self, asked: fedssl.Experiment, count: int) -> None:
        self._layout = build_method(asked, IMAGE, resolve_device("cpu")).state.layout
        self._count = count
        self._waiting: dict[str, Message] = {}
        self.before = 0.0  # peak memory in MiB when the first model was sent

    def get_nodes(self) -> list[NodeInfo]:
        return [NodeInfo(node_id=1 + site) for site in range(self._count)]

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        ids = []
        for message in messages:
            if message.metadata.message_type == TRAIN and not self.before:
                self.before = peak_mib()
            message.metadata.__dict__["_message_id"] = message.object_id
            self._waiting[message.object_id] = message
            ids.append(message.object_id)
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        return [
            _carried(self._answer(self._waiting.pop(id)))
            for id in message_ids
            if id in self._waiting
        ]

    def _answer(self, message: Message) -> Message:
        site = f"{message.metadata.dst_node_id:04}"
        if message.metadata.message_type != TRAIN:
            hello = Hello({site: IMAGES}, IMAGE, self._layout.entries, fedssl.__version__)
            return Message(pack_hello(hello), reply_to=message)
        task = unpack_task(message.content)
        shift = 1e-4 * (
            1 + message.metadata.dst_node_id / 1000
        )  # uploads differ, but their norms hardly do
        upload = {
            key: State(value.layout, value.floats + shift, value.counts)
            for key, value in decode(message.content).items()
            if isinstance(value, State)
        }
        metrics = Metrics(
            1.0, steps=3, images=IMAGES, seconds=1.0, embedding_std=1.0, effective_rank=2.0
        )
        reply = Reply(task.client, IMAGES, upload, metrics)
        return Message(pack_reply(encode(upload), task, reply), reply_to=message)


def _carried(message: Message) -> Message:
    """Serialize and deserialize a message."""
    contents = {key: value.deflate() for key, value in get_all_nested_objects(message).items()}
    arrived = cast(Message, inflate_object_from_contents(message.object_id, contents))
    arrived.metadata.__dict__["_message_id"] = message.metadata.message_id
    return arrived


def peak_mib() -> float:
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


def measure(sites: int, mb: float) -> dict[str, Any]:
    """Run in this process, so that its peak memory is that of one server."""
    for name in ("run_id", "node_id", "task_id"):
        setattr(TaskIdentity, f"_{name}", 1)
    asked = experiment(mb, ROUNDS).with_changes({"clients": sites})
    grid = Sites(asked, sites)
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        settings = ServerSettings(run_dir=str(run), device="cpu", quorum=1.0)
        began = time.monotonic()
        serve(asked, grid, settings, lambda line: None)  # type: ignore[arg-type, unused-ignore]
        seconds = time.monotonic() - began
        clients = [
            client for line in read_rounds(run / "rounds.jsonl") for client in line["clients"]
        ]
    assert len(clients) == ROUNDS * sites
    assert not [client["dropped"] for client in clients if client["dropped"]]
    return {
        "sites": sites,
        "upload_mb": round(clients[0]["bytes_up"] / 1e6, 1),
        "before_mib": round(grid.before),
        "peak_mib": round(peak_mib()),
        "seconds": round(seconds, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sites", type=int, nargs="+", default=[2, 20, 100])
    parser.add_argument("--mb", type=float, default=45)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    if len(args.sites) == 1:
        print(json.dumps(measure(args.sites[0], args.mb)))
        return
    command = [sys.executable, "-m", "benchmarks.server_memory", "--mb", str(args.mb), "--sites"]
    runs = [
        json.loads(
            subprocess.run(  # nosec B603 # this Python
                [*command, str(sites)], check=True, stdout=subprocess.PIPE
            ).stdout.splitlines()[-1]
        )
        for sites in args.sites
    ]
    text = json.dumps(
        {"machine": machine(), "rounds": ROUNDS, "quorum": 1.0, "runs": runs}, indent=2
    )
    print(text)
    if args.out:
        args.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
