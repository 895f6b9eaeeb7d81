"""A folder of JPEGs: how fast it is decoded into the cache, what a kill costs, and whether training feels the cache.

    python -m benchmarks.folder [--count 20000] [--size 64] [--device cuda] [--out results/speed/folder.json]

The photos are 500 x 375, a few hundred drawn and the others made of these by changed quantisation tables, so that no
two are equal. They and the cache lie in a temporary folder (`--folder` keeps the photos). Writes one JSON object:

- decode: images/s by threads into memory and by worker processes into the cache
- again: seconds to start with everything decoded, and after some files were touched, and how many were decoded
- kill: the builder is killed with SIGKILL half-way; how many images the next start found, and did not
- read: images/s gathered in batches of random rows, from the mapped cache and from memory
- train: images/s of local training from the cache, beside the same images as a tensor in memory
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import PIL
import torch
from PIL import Image
from torch import Tensor

from benchmarks.machine import machine
from fedssl import nets
from fedssl.data import Folder, decode_parallel
from fedssl.data.image_pool import Pixels, Rows, place
from fedssl.method import METHODS, Batch, Constants, Method, Output
from fedssl.training.trainer import Task, Trainer, TrainSettings

DRAWN, TOUCHED, SAMPLE = 400, 100, 4000
BUILD = "import sys; from pathlib import Path; from fedssl.data import Folder\nFolder(**{}).load(Path('.'), print)"


def make_photos(folder: Path, count: int) -> None:
    """Smooth colours under grain, which JPEG packs like a photo: about 85 KB each."""
    folder.mkdir(parents=True, exist_ok=True)
    if sum(1 for _ in folder.iterdir()) == count:
        return
    random, drawn = np.random.default_rng(0), []
    for k in range(min(count, DRAWN)):
        coarse = Image.fromarray(random.integers(0, 256, (12, 16, 3), np.uint8))
        smooth = np.asarray(coarse.resize((500, 375), Image.Resampling.BICUBIC), np.int16)
        grain = random.normal(0, 12, (375, 500, 1)).astype(np.int16)
        path = folder / f"{k:06}.jpg"
        Image.fromarray((smooth + grain).clip(0, 255).astype(np.uint8)).save(path, quality=90)
        drawn.append(path.read_bytes())
    for k in range(len(drawn), count):
        data = bytearray(drawn[k % len(drawn)])
        table = (
            data.index(b"\xff\xdb") + 5
        )  # marker, length, number; then 64 steps, of which one is widened
        data[table + k // len(drawn) % 64] += 1 + k // len(drawn) // 64
        (folder / f"{k:06}.jpg").write_bytes(data)


def seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def measure_decoding(photos: Path, source: Folder) -> dict[str, Any]:
    """The same sample by threads, then everything by processes into an empty cache."""
    names = sorted(path.name for path in photos.iterdir())
    sample, figures, usual = names[:SAMPLE], {}, decode_parallel._MAX_THREADS
    for threads in sorted({min(usual, decode_parallel.cores()), decode_parallel.cores()}):
        decode_parallel._MAX_THREADS = threads
        taken = seconds(
            lambda: decode_parallel.decode_all(
                sample, lambda name: photos / name, source.size, 3, _quiet
            )
        )
        figures[f"{threads} threads, images/s"] = round(len(sample) / taken)
    decode_parallel._MAX_THREADS = usual
    taken = seconds(lambda: source.load(Path("."), _quiet))
    return {
        **figures,
        f"{decode_parallel.cores()} processes, images/s": round(len(names) / taken),
        "build_s": round(taken, 1),
    }


def measure_starting_again(photos: Path, source: Folder) -> dict[str, Any]:
    said: list[str] = []
    unchanged = seconds(lambda: source.load(Path("."), said.append))
    assert not any("decoding" in line for line in said)
    touched = sorted(photos.iterdir())[::97][:TOUCHED]
    for path in touched:
        path.touch()
    again = seconds(lambda: source.load(Path("."), said.append))
    line = next(line for line in said if line.startswith("decoding"))
    return {
        "unchanged_s": round(unchanged, 2),
        "touched": len(touched),
        "touched_s": round(again, 2),
        "said": line,
    }


def measure_a_kill(source: Folder, count: int) -> dict[str, Any]:
    """SIGKILL once the index has half of the images."""
    options = source.model_dump(mode="json", exclude_none=True)
    builder = subprocess.Popen(
        [sys.executable, "-c", BUILD.format(options)], stdout=subprocess.DEVNULL
    )
    while builder.poll() is None and _decoded(Path(source.cache)) < count // 2:
        time.sleep(0.01)
    builder.send_signal(signal.SIGKILL)
    builder.wait()
    said: list[str] = []
    kept = _decoded(Path(source.cache))
    rest = seconds(lambda: source.load(Path("."), said.append))
    line = next(
        (line for line in said if line.startswith("decoding")), "it had ended before the kill"
    )
    return {"kept": kept, "of": count, "rest_s": round(rest, 1), "said": line}


def _decoded(cache: Path) -> int:
    return sum(path.read_bytes().count(b".jpg") for path in cache.glob("*/index"))


def measure_reading(held: Rows, memory: Rows, batch: int = 256) -> dict[str, Any]:
    def rate(images: Rows) -> int:
        order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
        return round(len(images) / seconds(lambda: [None for _ in images.batches(order, batch)]))

    mapped, plain = (statistics.median(rate(images) for _ in range(5)) for images in (held, memory))
    return {"cache, images/s": mapped, "memory, images/s": plain}


def measure_training(held: Rows, memory: Rows, arguments: argparse.Namespace) -> dict[str, Any]:
    """Medians of epochs of SimCLR, one from each place in turn, after one each to warm up."""
    device = torch.device(arguments.device)
    some = torch.randperm(len(held), generator=torch.Generator().manual_seed(1))[
        : arguments.train or None
    ]
    rows = {"memory": memory.select(some), "cache": held.select(some)}
    places: dict[str, Pixels] = dict(rows)
    if device.type == "cuda":
        nothing_free = {
            f"{name}, streamed": place(images, device, lambda _: 0) for name, images in rows.items()
        }
        places = {"gpu": place(rows["memory"], device), **nothing_free}
    trainer = make_trainer(arguments, device)
    rates: dict[str, list[float]] = {name: [] for name in places}
    for run in range(arguments.runs + 1):
        for name, images in places.items():
            stream = torch.Generator(device).manual_seed(run)
            metrics = trainer.fit(
                Task(images, None, stream, 0.01, 0.0, threading.Event()), objective, {}
            )
            rates[name].append(metrics.images / metrics.seconds)
    first = next(iter(rates.values()))

    def relative(
        rate: list[float],
    ) -> float:  # epoch by epoch: other work on the machine comes and goes
        return round(statistics.median(a / b for a, b in zip(rate[1:], first[1:], strict=True)), 3)

    return {
        "backbone": arguments.backbone,
        "batch": arguments.batch,
        "images": len(some),
        "images/s": {name: round(statistics.median(rate[1:]), 1) for name, rate in rates.items()},
        "relative": {name: relative(rate) for name, rate in rates.items()},
    }


def make_trainer(arguments: argparse.Namespace, device: torch.device) -> Trainer:
    torch.manual_seed(0)
    settings = METHODS["simclr"].Settings(backbone=arguments.backbone, stem=arguments.stem)
    backbone = nets.build(arguments.backbone, 3, arguments.stem)
    return Trainer(
        settings.build(backbone, arguments.size, device), TrainSettings(batch=arguments.batch)
    )


def objective(method: Method, batch: Batch, out: Output, constants: Constants) -> Tensor:
    return method.loss(out, constants)


def _quiet(line: str) -> None: ...


def measure(folder: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    photos, count = (arguments.folder or folder / "photos").resolve(), arguments.count
    drawing = seconds(lambda: make_photos(photos, count))
    print(f"{count:,} photos in {photos}, made in {drawing:.0f} s", file=sys.stderr)
    source = Folder(
        path=str(photos), size=arguments.size, layout="flat", cache=str(folder / "cache")
    )
    figures = {
        "decode": measure_decoding(photos, source),
        "again": measure_starting_again(photos, source),
    }
    killed = source.model_copy(update={"cache": str(folder / "killed")})
    figures["kill"] = measure_a_kill(killed, count)
    held = source.load(Path("."), _quiet).train.held
    same = torch.equal(killed.load(Path("."), _quiet).train.held.tensor(), held.tensor())
    figures["kill"]["equal to the build that was not killed"] = same
    memory = Rows(held.tensor().clone())
    figures["read"] = measure_reading(held, memory)
    figures["train"] = measure_training(held, memory, arguments)
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--backbone", default="cnn")
    parser.add_argument("--stem", default="cifar")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--train", type=int, default=0, help="images of an epoch; 0: all")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--folder", type=Path, help="keep the photos there")
    parser.add_argument("--out", type=Path, default=Path("results/speed/folder.json"))
    arguments, load = parser.parse_args(), os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as temporary:
        figures = measure(Path(temporary).resolve(), arguments)
    found = {
        "photos": arguments.count,
        "size": arguments.size,
        **figures,
        "machine": machine() | {"pillow": PIL.__version__, "load before": round(load, 1)},
    }
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(found, indent=2) + "\n")
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
