"""Train a small run of ten clients with names, in a separate process.

    python live_run.py DIR ROUNDS

One client has a single image, so it is dropped in every round.
"""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

import torch

import fedssl
from fedssl.core.console import ignore_message
from fedssl.data.fashion_mini import FashionMini
from fedssl.runs.session import Interrupted

CITIES = ("Aarhus", "Bologna", "Coimbra", "Dresden", "Espoo")
OTHER_CITIES = ("Ghent", "Kraków", "Leeds", "Nantes", "Utrecht")
SMALL = "Ghent"
IMAGES = 320


def train(folder: str, rounds: int) -> None:
    """Train, or resume training."""
    data = FashionMini().read(Path(), ignore_message)
    assert data.test is not None
    clients = {}
    for position, name in enumerate(CITIES + OTHER_CITIES):
        first = position * IMAGES
        last = first + 1 if name == SMALL else first + IMAGES - 16 * position
        clients[name] = data.train.select(torch.arange(first, last))
    test = data.test.select(torch.arange(200))
    settings = {
        "rounds": rounds,
        "train.workers": 1,
        "train.epochs": 2,
        "probe.every": 2,
        "probe.linear": False,
        "probe.picture": False,
        "probe.baselines": [],
    }
    fedssl.run("demo", folder, "cpu", dataset=clients, test=test, set=settings)


if __name__ == "__main__":
    with contextlib.suppress(Interrupted):
        train(sys.argv[1], int(sys.argv[2]))
