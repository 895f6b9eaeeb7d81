"""Images streamed to a GPU give the same batches and the same training as resident images."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import fedssl.methods  # noqa: F401 - registers them
from fedssl.algorithms import FedAvg
from fedssl.core.devices.precision import numerics
from fedssl.data.image_pool import PixelRows, Pixels, Streamed, place
from fedssl.method import METHODS
from fedssl.nets import CNN
from fedssl.training.trainer import Trainer, TrainingTask, TrainSettings

CUDA = torch.device("cuda")
OBJECTIVE = FedAvg().objective


def _pool(n: int, side: int = 16) -> Tensor:
    return torch.randint(
        256, (n, 3, side, side), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)
    )


def _streamed(images_on_host: PixelRows) -> Pixels:
    images = place(images_on_host, CUDA, lambda device: 0)
    assert isinstance(images, Streamed)
    return images


def test_images_are_stored_on_the_gpu_if_there_is_room() -> None:
    pool = _pool(3000)
    rows = torch.randperm(3000)[:2500]
    images = place(PixelRows(pool, rows), CUDA)
    assert isinstance(images, PixelRows)
    assert images.pool.is_cuda
    assert torch.equal(images.pool.cpu(), pool[rows])
    part = images.select(torch.tensor([7, 3]))
    assert part.pool is images.pool
    assert torch.equal(part.tensor().cpu(), pool[rows[[7, 3]]])


@pytest.mark.parametrize("cycles", [0, 2_000_000])
def test_streamed_batches_are_whole_when_the_gpu_reads_them_late(cycles: int) -> None:
    """Buffers are not overwritten before they are read, even if the host is far ahead of the GPU."""
    pool = _pool(4096, 32)
    order = torch.randperm(4096, device=CUDA, generator=torch.Generator(CUDA).manual_seed(1))
    copies = []
    for index, images in _streamed(PixelRows(pool)).batches(order, 128):
        if cycles:
            torch.cuda._sleep(cycles)
        copies.append((index, images.clone()))
    assert len(copies) == 32
    for index, images in copies:
        assert torch.equal(images.cpu(), pool[index.cpu()])


def test_streamed_chunks_and_an_early_end() -> None:
    pool = _pool(1000)
    images = _streamed(PixelRows(pool))
    for _ in images.batches(torch.randperm(1000, device=CUDA), 64):
        break
    assert torch.equal(torch.cat([chunk.clone() for chunk in images.chunks(300)]).cpu(), pool)


@pytest.mark.parametrize("mode", ["eager", "compiled", "captured"])
@pytest.mark.parametrize("name", ["simclr", "byol"])
def test_training_is_the_same_streamed_or_not(name: str, mode: str) -> None:
    pool = _pool(400)
    rows = torch.randperm(400, generator=torch.Generator().manual_seed(3))[:300]

    def fit(make: Callable[[PixelRows], Pixels]) -> tuple[Tensor, Tensor]:
        torch.manual_seed(5)
        method = METHODS[name].Settings(hidden=32, dim=16).build(CNN(), 16, CUDA)
        settings = TrainSettings(
            batch=32, lr=0.05, epochs=3, mode=mode, precision="fp32", deterministic=True
        )
        trainer = Trainer(method, settings)
        images = make(PixelRows(pool)).select(rows)
        stream = torch.Generator(CUDA).manual_seed(1)
        task = TrainingTask(images, None, stream, 0.05, 0.0, threading.Event())
        trainer.fit(task, OBJECTIVE, {})
        return trainer.method.state.floats, trainer.embed(images)

    with numerics(CUDA, deterministic=True, exact=True):
        resident = fit(lambda images: place(images, CUDA))
        streamed = fit(_streamed)
    for one, other in zip(resident, streamed, strict=True):
        assert torch.equal(one, other)
