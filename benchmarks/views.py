"""Measure the milliseconds to make two views of 128 images, and the ratio to torchvision's loop.

    python -m benchmarks.views [--device cuda] [--threads 1]

Prints one JSON object. Medians of 50 runs after 10 warm-up runs.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fedssl.views import Augment, ViewGroup, draw, make_views

CASES = {"grey 28x28": (1, 28, 0.0), "rgb 32x32": (3, 32, 0.0), "rgb 32x32, blur": (3, 32, 0.5)}
BATCH, VIEWS = 128, 2


def milliseconds(make: Callable[[], object], device: str, runs: int = 50, warm: int = 10) -> float:
    times = []
    for _ in range(warm + runs):
        start = time.perf_counter()
        make()
        if device == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return round(1e3 * statistics.median(times[warm:]), 3)


def torchvision_loop(augment: Augment, size: int) -> Callable[[Tensor], Tensor] | None:
    """Return the same views of one float image, or None if torchvision cannot be imported."""
    try:
        import torchvision.transforms as t
    except (ImportError, RuntimeError):
        return None
    blur = [t.RandomApply([t.GaussianBlur(augment.kernel(size), augment.blur_sigma)], augment.blur)]
    steps: list[Any] = [
        t.RandomResizedCrop(size, augment.crop, augment.ratio, antialias=True),
        t.RandomHorizontalFlip(augment.flip),
        t.RandomApply([t.ColorJitter(*augment.jitter)], augment.jitter_p),
        t.RandomGrayscale(augment.gray),
        *(blur if augment.blur else []),
    ]
    composed: Callable[[Tensor], Tensor] = t.Compose(steps)
    return composed


def measure(channels: int, size: int, blur: float, device: str) -> dict[str, float]:
    group = ViewGroup(VIEWS, size, Augment(blur=blur))
    images = torch.randint(0, 256, (BATCH, channels, size, size), dtype=torch.uint8, device=device)
    uniforms = draw(VIEWS * BATCH, torch.Generator().manual_seed(0), device)
    mean, std = torch.full((2, channels), 0.5, device=device)
    figures = {"ms": milliseconds(lambda: make_views(group, images, uniforms, mean, std), device)}
    if device == "cuda":
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            make_views(group, images, uniforms, mean, std)
        return figures | {"captured ms": milliseconds(graph.replay, device)}
    loop = torchvision_loop(group.augment, size)
    if loop is not None:
        one_by_one = milliseconds(
            lambda: [loop(x / 255) for x in images.repeat(VIEWS, 1, 1, 1)], device, 3, 1
        )
        figures["torchvision loop / this"] = round(one_by_one / figures["ms"], 1)
    return figures


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    # Free a large block first, as training does: before that, malloc returns pages after each call.
    torch.ones(7_000_000)
    cases = {name: measure(*case, arguments.device) for name, case in CASES.items()}
    print(json.dumps(vars(arguments) | {"torch": torch.__version__, "cases": cases}, indent=2))


if __name__ == "__main__":
    main()
