"""Measure images per second of a round with five clients: fedssl, and public code's approach.

    python -m benchmarks.peer [--device cuda] [--images N] [--out results/speed/peer.json]

BYOL, batches of 128, two views, SGD, as FedEMA trains it. On CUDA, ResNet-18 with heads of 4096 and
2048; on a CPU, to finish in a minute, a small network with small heads, so that the ratio is not
comparable with CUDA's.
`peer`: benchmarks/peer_training.py, with views made one PIL image at a time by a DataLoader without
workers (`--peer-workers` adds some, which then persist between rounds).
`fedssl`: rounds of its engine as in `fedssl.run` (LocalRuntime, federate, FedAvg) with default
training settings, without checkpoints, logs and probes.
Both start from the same weights, train on the same random images in this process, and alternate. A
repeat is a whole round, including the exchange of models, between two synchronisations. cuDNN may
benchmark its kernels for both, and the peer's float32 uses torch's defaults: convolutions in TF32
if the device supports it. Imports, building and the first round are excluded for both. `startup_s`
is the additional time of fedssl's building and first round over a usual round, including the start
of CUDA.
`fedema_default_run_minutes`: training time of FedEMA's default run at this rate (100 rounds of five
clients with 10,000 images each, five epochs per round).
The peer may process fewer images of each client (`--peer-images`). Its rate is then scaled to a
round as long as fedssl's: the exchange once, as measured, and the epoch in proportion.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from benchmarks.clock import digits, seconds, spread, timed
from benchmarks.machine import machine
from benchmarks.peer_nets import NETS
from benchmarks.peer_training import PeerBYOL, PeerClient, peer_round
from benchmarks.peer_views import Pairs, View, make_view
from fedssl.core.devices.precision import numerics
from fedssl.engine.checkpoints.client_memory import ClientMemory
from fedssl.engine.federate import Round, federate
from fedssl.engine.runtimes.client_round import RoundPosition, RunContext, Shard
from fedssl.engine.runtimes.local import LocalRuntime
from fedssl.experiment import federation_setup
from fedssl.experiment.experiment import Experiment
from fedssl.training.trainer import resolve_mode
from fedssl.views import Augment

FEDEMA_IMAGES = (
    100 * 5 * 5 * (10_000 // 128) * 128
)  # default run: rounds, clients, epochs, images per client


@dataclass(frozen=True)
class Case:
    """The training of both sides. `images` and `peer_images` are per client."""

    backbone: str
    hidden: int
    dim: int
    images: int
    peer_images: int
    peer_workers: int = 0  # processes that make views for the peer
    epochs: int = 1  # of fedssl's rounds; the peer trains for one, as all take equally long
    batch: int = 128
    clients: int = 5
    size: int = 32
    lr: float = 0.032
    mode: str = "auto"
    precision: str = "auto"

    def trained(self, images: int, epochs: int = 1) -> int:
        """Return the number of images in a round: whole batches of each client."""
        return epochs * self.clients * (images // self.batch) * self.batch

    def pixels(self) -> list[Tensor]:
        """Return each client's images (n, 3, size, size), uint8 noise on the host."""
        shape, stream = (self.images, 3, self.size, self.size), torch.Generator().manual_seed(0)
        return [
            torch.randint(256, shape, dtype=torch.uint8, generator=stream)
            for _ in range(self.clients)
        ]

    def experiment(self) -> Experiment:
        method = {"name": "byol", "backbone": self.backbone, "hidden": self.hidden, "dim": self.dim}
        train = {
            "batch": self.batch,
            "epochs": self.epochs,
            "lr": self.lr,
            "schedule": "constant",
            "mode": self.mode,
            "precision": self.precision,
        }
        return Experiment(data="given", clients=self.clients, method=method, train=train)


class Ours:
    """fedssl's side: its engine over `rounds` rounds, one at a time."""

    def __init__(self, case: Case, pixels: list[Tensor], rounds: int, device: torch.device) -> None:
        experiment = case.experiment()
        self.trained = case.epochs * sum(
            len(images) // case.batch * case.batch for images in pixels
        )
        shards = {f"{i}": Shard(images.to(device)) for i, images in enumerate(pixels)}
        self.trainers = federation_setup.build_trainers(
            experiment, (3, case.size, case.size), device, len(shards)
        )
        self.sites = federation_setup.first_sites(experiment, self.trainers[0], list(shards))
        self.memory = ClientMemory()
        self._runtime = LocalRuntime(
            RunContext(
                experiment.algorithm, experiment.seed, lambda round: RoundPosition(case.lr, 0.0)
            ),
            shards,
            self.trainers,
            self.memory,
        )
        schema = experiment.algorithm.upload_schema(self.trainers[0].method)
        self._rounds: Iterator[Round] = federate(
            experiment.algorithm,
            experiment.topology,
            self._runtime,
            self.sites,
            schema=schema,
            rounds=rounds,
            seed=experiment.seed,
        )
        self.loss = 0.0  # of the last round, mean over the clients

    def round(self) -> None:
        done = next(self._rounds)
        metrics = [report.metrics for report in done.reports if report.metrics is not None]
        assert sum(m.images for m in metrics) == self.trained, done.reports
        self.sites = done.sites
        self.loss = statistics.fmean(m.loss for m in metrics)

    def close(self) -> None:
        self._runtime.close()


class Peer:
    """The peer's side: the same weights and the first `peer_images` images of each client."""

    def __init__(
        self, case: Case, pixels: list[Tensor], weights: dict[str, Tensor], view: View
    ) -> None:
        self.case, self.device = case, next(iter(weights.values())).device
        self.model = PeerBYOL(case.backbone, case.hidden, case.dim).to(self.device)
        self.model.load_state_dict(weights)
        self.clients = []
        for images in pixels:
            pairs = Pairs(images[: case.peer_images], view)
            workers: Any = {
                "num_workers": case.peer_workers,
                "persistent_workers": case.peer_workers > 0,
            }
            loader = DataLoader(pairs, case.batch, shuffle=True, drop_last=True, **workers)
            self.clients.append(PeerClient(loader, len(pairs), self.device, case.lr))

    def round(self) -> None:
        self.model = peer_round(self.model, self.clients)

    @property
    def loss(self) -> float:
        return statistics.fmean(client.loss for client in self.clients)

    def full_round(self, took: float) -> float:
        """Return the seconds of a round with all images, given `took` seconds of the peer's."""
        training = sum(client.seconds for client in self.clients)
        case = self.case
        return took + training * (
            case.trained(case.images, case.epochs) / case.trained(case.peer_images) - 1
        )


def compare(case: Case, device: torch.device, repeats: int, view: View) -> dict[str, Any]:
    pixels = case.pixels()
    ours, building = timed(lambda: Ours(case, pixels, 1 + repeats, device), device)
    weights = {
        name: tensor.clone() for name, tensor in ours.trainers[0].method.state_dict().items()
    }
    peer = Peer(case, pixels, weights, view)
    try:
        first = building + seconds(ours.round, device)
        seconds(peer.round, device)
        took, peer_took, peer_full = [], [], []
        for _ in range(repeats):
            peer_took.append(seconds(peer.round, device))
            peer_full.append(peer.full_round(peer_took[-1]))
            took.append(seconds(ours.round, device))
    finally:
        ours.close()
    rates, peer_rates = (
        [case.trained(case.images, case.epochs) / s for s in side] for side in (took, peer_full)
    )
    return {
        "ratio": digits(statistics.median(rates) / statistics.median(peer_rates), 3),
        "ratio_each": [digits(a / b, 3) for a, b in zip(rates, peer_rates, strict=True)],
        "fedssl": {
            "mode": resolve_mode(case.mode, device),
            "precision": ours.trainers[0].method.precision,
            "images_per_s": digits(statistics.median(rates)),
            "images_per_s_spread": spread(rates),
            "round_s": spread(took),
            "startup_s": digits(first - statistics.median(took), 3),
            "fedema_default_run_minutes": digits(FEDEMA_IMAGES / statistics.median(rates) / 60, 3),
            "loss": digits(ours.loss),
        },
        "peer": {
            # torch's default unless it was changed
            "float32_matmul_precision": torch.get_float32_matmul_precision(),
            "images_per_s": digits(statistics.median(peer_rates)),
            "images_per_s_spread": spread(peer_rates),
            "round_s": spread(peer_took),
            "measured_images_per_s": spread(
                [case.trained(case.peer_images) / s for s in peer_took]
            ),
            "loss": digits(peer.loss),
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument(
        "--backbone", choices=list(NETS), help="default: resnet18 on CUDA, cnn on a CPU"
    )
    parser.add_argument(
        "--images", type=int, help="images per client; default: 10000 on CUDA, 512 on a CPU"
    )
    parser.add_argument(
        "--peer-images", type=int, help="images per client of the peer; default: at most 1280"
    )
    parser.add_argument("--epochs", type=int, default=1, help="epochs of fedssl's rounds")
    parser.add_argument("--peer-workers", type=int, default=0, help="num_workers of the peer")
    parser.add_argument("--mode", default="auto", help="fedssl's train.mode")
    parser.add_argument(
        "--precision", default="auto", help="fedssl's train.precision; the peer's is float32"
    )
    parser.add_argument(
        "--views",
        default="auto",
        choices=["auto", "torchvision", "pillow"],
        help="views of the peer",
    )
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, help="also write the JSON to this file")
    args = parser.parse_args()
    device, cuda = torch.device(args.device), args.device == "cuda"
    images = args.images or (10_000 if cuda else 512)
    hidden, dim = (4096, 2048) if cuda else (512, 256)
    case = Case(
        args.backbone or ("resnet18" if cuda else "cnn"),
        hidden,
        dim,
        images,
        min(args.peer_images or 1280, images),
        args.peer_workers,
        args.epochs,
        mode=args.mode,
        precision=args.precision,
    )
    if case.peer_images < case.batch:
        parser.error(f"a client needs a batch of images or more: {case.batch}")
    view, made_by = make_view(Augment(), case.size, args.views)
    with numerics(device):
        figures = compare(case, device, args.repeats, view)
    report = {
        "machine": machine(),
        "device": args.device,
        "case": asdict(case),
        "peer_views": made_by,
        **figures,
    }
    text = json.dumps(report, indent=2) + "\n"
    if args.out is not None:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(text)
    print(text, end="")
    ours, peer = figures["fedssl"]["images_per_s"], figures["peer"]["images_per_s"]
    print(f"fedssl {ours:,.0f} images/s, peer {peer:,.0f} images/s: {figures['ratio']} times")


if __name__ == "__main__":
    main()
