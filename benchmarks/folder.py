"""Measure a folder of JPEGs: decoding into the cache, a kill, and training from the cache.

    python -m benchmarks.folder [--count 20000] [--size 64] [--device cuda] [--out FILE]

The photos have 500 x 375 pixels. A few hundred are drawn; the others are copies of these with
changed quantisation tables, so that no two are equal. Photos and cache are in a temporary folder
(`--folder` keeps the photos). The result is one JSON object:

- decode: images/s by threads into memory and by worker processes into the cache
- again: seconds to start with everything decoded, and with some files touched
- kill: images kept when the build is killed with SIGKILL half-way
- read: images/s gathered in batches of random rows, from the mapped cache and from memory
- train: images/s of local training from the cache, and from a tensor in memory
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
from fedssl.core.devices.select import cores
from fedssl.data import Folder, decode_parallel
from fedssl.data.image_pool import PixelRows, Pixels, place
from fedssl.method import METHODS, Batch, Constants, Method, Output
from fedssl.training.trainer import Trainer, TrainingTask, TrainSettings

DRAWN = 400  # photos that are not copies
TOUCHED = 100  # files whose modification time is updated
SAMPLE = 4000  # photos decoded by threads
BUILD = """
from pathlib import Path
from fedssl.data import Folder
Folder(**{}).load(Path("."), print)
"""


def make_photos(folder: Path, count: int) -> None:
    """Write photos of about 85 KB each, unless the folder has them already."""
    folder.mkdir(parents=True, exist_ok=True)
    if len(list(folder.iterdir())) == count:
        return
    random = np.random.default_rng(0)
    drawn = []
    for k in range(min(count, DRAWN)):
        path = folder / f"{k:06}.jpg"
        draw_photo(random).save(path, quality=90)
        drawn.append(path.read_bytes())
    for k in range(len(drawn), count):
        copy_number, original = divmod(k, len(drawn))
        data = bytearray(drawn[original])
        # Marker, length and number; then 64 quantisation steps, of which one is widened.
        table = data.index(b"\xff\xdb") + 5
        data[table + copy_number % 64] += 1 + copy_number // 64
        (folder / f"{k:06}.jpg").write_bytes(data)


def draw_photo(random: np.random.Generator) -> Image.Image:
    """Draw smooth colours under grain, which JPEG compresses like a photo."""
    coarse = Image.fromarray(random.integers(0, 256, (12, 16, 3), np.uint8))
    smooth = np.asarray(coarse.resize((500, 375), Image.Resampling.BICUBIC), np.int16)
    grain = random.normal(0, 12, (375, 500, 1)).astype(np.int16)
    return Image.fromarray((smooth + grain).clip(0, 255).astype(np.uint8))


def seconds(work: Callable[[], object]) -> float:
    """Return the duration of a call."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def measure_decoding(photos: Path, source: Folder) -> dict[str, Any]:
    """Decode a sample by threads, then everything by processes into an empty cache."""
    names = sorted(path.name for path in photos.iterdir())
    sample = names[:SAMPLE]
    figures = {}
    usual = decode_parallel._MAX_THREADS
    for threads in sorted({min(usual, cores()), cores()}):
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
        f"{cores()} processes, images/s": round(len(names) / taken),
        "build_s": round(taken, 1),
    }


def measure_starting_again(photos: Path, source: Folder) -> dict[str, Any]:
    """Load an unchanged folder, then one with some files touched."""
    messages: list[str] = []
    unchanged = seconds(lambda: source.load(Path("."), messages.append))
    assert decoding_message(messages) is None
    touched = sorted(photos.iterdir())[::97][:TOUCHED]
    for path in touched:
        path.touch()
    again = seconds(lambda: source.load(Path("."), messages.append))
    return {
        "unchanged_s": round(unchanged, 2),
        "touched": len(touched),
        "touched_s": round(again, 2),
        "said": decoding_message(messages),
    }


def decoding_message(messages: list[str]) -> str | None:
    """Return the message about files that are decoded."""
    for message in messages:
        if message.startswith("decoding"):
            return message
    return None


def measure_a_kill(source: Folder, count: int) -> dict[str, Any]:
    """Kill a build once the index has half of the images, then resume it."""
    options = source.model_dump(mode="json", exclude_none=True)
    builder = subprocess.Popen(  # nosec B603 # this Python
        [sys.executable, "-c", BUILD.format(options)], stdout=subprocess.DEVNULL
    )
    while builder.poll() is None and count_cached(Path(source.cache)) < count // 2:
        time.sleep(0.01)
    builder.send_signal(signal.SIGKILL)
    builder.wait()
    messages: list[str] = []
    kept = count_cached(Path(source.cache))
    rest = seconds(lambda: source.load(Path("."), messages.append))
    message = decoding_message(messages) or "the build had ended before the kill"
    return {"kept": kept, "of": count, "rest_s": round(rest, 1), "said": message}


def count_cached(cache: Path) -> int:
    """Return the number of images in the index."""
    return sum(path.read_bytes().count(b".jpg") for path in cache.glob("*/index"))


def measure_reading(held: PixelRows, memory: PixelRows, batch: int = 256) -> dict[str, Any]:
    """Gather all images in batches of random rows; medians of five passes."""

    def read_all(images: PixelRows) -> None:
        order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
        for _ in images.batches(order, batch):
            pass

    def rate(images: PixelRows) -> int:
        durations = [seconds(lambda: read_all(images)) for _ in range(5)]
        return round(len(images) / statistics.median(durations))

    return {"cache, images/s": rate(held), "memory, images/s": rate(memory)}


def measure_training(
    held: PixelRows, memory: PixelRows, arguments: argparse.Namespace
) -> dict[str, Any]:
    """Train SimCLR for epochs from each place in turn; medians, without the first epoch of each."""
    device = torch.device(arguments.device)
    order = torch.randperm(len(held), generator=torch.Generator().manual_seed(1))
    some = order[: arguments.train or None]
    places = training_places(held.select(some), memory.select(some), device)
    trainer = make_trainer(arguments, device)
    rates: dict[str, list[float]] = {name: [] for name in places}
    for run in range(arguments.runs + 1):
        for name, images in places.items():
            stream = torch.Generator(device).manual_seed(run)
            metrics = trainer.fit(
                TrainingTask(images, None, stream, 0.01, 0.0, threading.Event()), objective, {}
            )
            rates[name].append(metrics.images / metrics.seconds)
    first = next(iter(rates.values()))

    def relative(rate: list[float]) -> float:
        # Epoch by epoch, because the load of the machine changes.
        ratios = [a / b for a, b in zip(rate[1:], first[1:], strict=True)]
        return round(statistics.median(ratios), 3)

    return {
        "backbone": arguments.backbone,
        "batch": arguments.batch,
        "images": len(some),
        "images/s": {name: round(statistics.median(rate[1:]), 1) for name, rate in rates.items()},
        "relative": {name: relative(rate) for name, rate in rates.items()},
    }


def training_places(held: PixelRows, memory: PixelRows, device: torch.device) -> dict[str, Pixels]:
    """Return the same images in all places that training on this device can read from."""
    if device.type != "cuda":
        return {"memory": memory, "cache": held}

    def no_free_memory(device: torch.device) -> int:
        return 0

    return {
        "gpu": place(memory, device),
        "memory, streamed": place(memory, device, no_free_memory),
        "cache, streamed": place(held, device, no_free_memory),
    }


def make_trainer(arguments: argparse.Namespace, device: torch.device) -> Trainer:
    """Return a trainer of SimCLR."""
    torch.manual_seed(0)
    settings = METHODS["simclr"].Settings(backbone=arguments.backbone, stem=arguments.stem)
    backbone = nets.build(arguments.backbone, 3, arguments.stem)
    return Trainer(
        settings.build(backbone, arguments.size, device), TrainSettings(batch=arguments.batch)
    )


def objective(method: Method, batch: Batch, out: Output, constants: Constants) -> Tensor:
    """Return the method's loss."""
    return method.loss(out, constants)


def _quiet(line: str) -> None: ...


def measure(folder: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """Make the photos and run all measurements."""
    photos = (arguments.folder or folder / "photos").resolve()
    count = arguments.count
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
    held = source.load(Path("."), _quiet).train.pixel_rows
    same = torch.equal(killed.load(Path("."), _quiet).train.pixel_rows.tensor(), held.tensor())
    figures["kill"]["equal to the build that was not killed"] = same
    memory = PixelRows(held.tensor().clone())
    figures["read"] = measure_reading(held, memory)
    figures["train"] = measure_training(held, memory, arguments)
    return figures


def main() -> None:
    """Measure and write the result."""
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
    arguments = parser.parse_args()
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as temporary:
        figures = measure(Path(temporary).resolve(), arguments)
    result = {
        "photos": arguments.count,
        "size": arguments.size,
        **figures,
        "machine": machine() | {"pillow": PIL.__version__, "load before": round(load, 1)},
    }
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
