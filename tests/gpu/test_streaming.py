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


def _streamed(held: PixelRows) -> Pixels:
    images = place(held, CUDA, lambda device: 0)
    assert isinstance(images, Streamed)
    return images


def test_images_are_stored_on_the_gpu_if_there_is_room() -> None:
    pool, rows = _pool(3000), torch.randperm(3000)[:2500]
    images = place(PixelRows(pool, rows), CUDA)
    assert isinstance(images, PixelRows)
    assert images.pool.is_cuda
    assert torch.equal(images.pool.cpu(), pool[rows])
    part = images.select(torch.tensor([7, 3]))
    assert part.pool is images.pool
    assert torch.equal(part.tensor().cpu(), pool[rows[[7, 3]]])


@pytest.mark.parametrize("cycles", [0, 2_000_000])
def test_streamed_batches_are_whole_when_the_gpu_reads_them_late(cycles: int) -> None:
    """The GPU is kept busy, so that the host runs far ahead: buffers must not be overwritten before
    they are read.
    """
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
    pool, rows = _pool(400), torch.randperm(400, generator=torch.Generator().manual_seed(3))[:300]

    def fit(make: Callable[[PixelRows], Pixels]) -> tuple[Tensor, Tensor]:
        torch.manual_seed(5)
        method = METHODS[name].Settings(hidden=32, dim=16).build(CNN(), 16, CUDA)
        settings = TrainSettings(
            batch=32, lr=0.05, epochs=3, mode=mode, precision="fp32", deterministic=True
        )
        trainer, images = Trainer(method, settings), make(PixelRows(pool)).select(rows)
        stream = torch.Generator(CUDA).manual_seed(1)
        task = TrainingTask(images, None, stream, 0.05, 0.0, threading.Event())
        trainer.fit(task, OBJECTIVE, {})
        return trainer.method.state.floats, trainer.embed(images)

    with numerics(CUDA, deterministic=True, exact=True):
        there, streamed = fit(lambda held: place(held, CUDA)), fit(_streamed)
    for a, b in zip(there, streamed, strict=True):
        assert torch.equal(a, b)
