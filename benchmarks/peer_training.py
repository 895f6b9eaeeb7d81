"""A federated round of BYOL in the style of public research code, measured by `benchmarks.peer`.

Eager float32. One deep copy of the model for each client and another for its upload; states
averaged key by key in a Python loop; one forward pass per view; the target updated parameter by
parameter. Where such code varies in cost, this is the cheaper variant: everything stays on the
device, and losses are read once per epoch. Nothing here uses fedssl, but the network, the loss and
the order of updates are equal, so that both do the same work: tests/benchmarks/test_peer.py gives
both the same weights and views and compares the results.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.clock import seconds
from benchmarks.peer_nets import NETS

Batches = Iterable[tuple[Tensor, Tensor]]  # two views (B, C, h, w) of the same images


class PeerBYOL(nn.Module):
    """BYOL with fedssl's names of children and keys: a state_dict of one loads into the other."""

    def __init__(self, backbone: str, hidden: int, dim: int) -> None:
        super().__init__()
        self.backbone = NETS[backbone]()
        self.projector = head(self.backbone.dim, hidden, dim)
        self.predictor = head(dim, hidden, dim)
        copies = {
            "backbone": copy.deepcopy(self.backbone),
            "projector": copy.deepcopy(self.projector),
        }
        self.target = nn.ModuleDict(copies).requires_grad_(False)

    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        p1 = self.predictor(self.projector(self.backbone(first)))
        p2 = self.predictor(self.projector(self.backbone(second)))
        with torch.no_grad():
            t1 = self.target["projector"](self.target["backbone"](first))
            t2 = self.target["projector"](self.target["backbone"](second))
        return (distance(p1, t2) + distance(p2, t1)).mean()

    @torch.no_grad()
    def move_target(self, momentum: float) -> None:
        for part in ("backbone", "projector"):
            pairs = zip(
                self.target[part].parameters(), getattr(self, part).parameters(), strict=True
            )
            for target, online in pairs:
                target.mul_(momentum).add_(online, alpha=1 - momentum)


def head(inputs: int, hidden: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(inputs, hidden),
        nn.BatchNorm1d(hidden),
        nn.ReLU(inplace=True),
        nn.Linear(hidden, outputs),
    )


def distance(prediction: Tensor, target: Tensor) -> Tensor:
    """Return 2 − 2 cos row by row: (B, k), (B, k) to (B,)."""
    prediction, target = F.normalize(prediction, dim=-1), F.normalize(target, dim=-1)
    return 2 - 2 * (prediction * target).sum(-1)


class PeerClient:
    """One client: `count` images, and the batches of views of one epoch."""

    def __init__(
        self, batches: Batches, count: int, device: torch.device, lr: float = 0.032
    ) -> None:
        self.batches, self.count, self.device, self.lr = batches, count, device, lr
        self.model: PeerBYOL | None = None
        self.loss = self.seconds = 0.0  # mean loss of the last epoch

    def download(self, model: PeerBYOL) -> None:
        """Load the global online network; after the first round, the target is the client's own."""
        found, self.model = self.model, copy.deepcopy(model)
        if found is None:
            for part in ("backbone", "projector"):
                self.model.target[part].load_state_dict(getattr(self.model, part).state_dict())
        else:
            self.model.target = found.target

    def train(self) -> None:
        self.seconds = seconds(self._epoch, self.device)

    def _epoch(self) -> None:
        model = self.model
        assert model is not None
        model.train()
        trained = [p for p in model.parameters() if p.requires_grad]
        optimizer = torch.optim.SGD(trained, self.lr, momentum=0.9, weight_decay=5e-4)
        losses = []
        for first, second in self.batches:
            loss = model(first.to(self.device), second.to(self.device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            model.move_target(0.99)
            losses.append(loss.detach())
        self.loss = torch.stack(losses).mean().item()

    def upload(self) -> PeerBYOL:
        assert self.model is not None
        return copy.deepcopy(self.model)


def peer_round(model: PeerBYOL, clients: Sequence[PeerClient]) -> PeerBYOL:
    """Return the next global model."""
    uploads = []
    for client in clients:
        client.download(model)
        client.train()
        uploads.append(client.upload())
    total = sum(client.count for client in clients)
    merged = copy.deepcopy(model)
    merged.load_state_dict(
        average(uploads, [client.count / total for client in clients]), strict=False
    )
    return merged


@torch.no_grad()
def average(models: Sequence[PeerBYOL], shares: Sequence[float]) -> dict[str, Tensor]:
    """Return the weighted mean of the online networks, key by key; counters take the maximum."""
    states = [model.state_dict() for model in models]
    mean = {}
    for key, first in states[0].items():
        if key.startswith("target."):
            continue
        if first.is_floating_point():
            mean[key] = torch.zeros_like(first)
            for state, share in zip(states, shares, strict=True):
                mean[key] += share * state[key]
        else:
            mean[key] = torch.stack([state[key] for state in states]).amax(0)
    return mean
