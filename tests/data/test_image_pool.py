"""Batches do not depend on where the pixels are stored; no batch is overwritten while in use."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from factories import make_trainer, random_pixels
from torch import Tensor

from fedssl.data import image_pool as module
from fedssl.data.image_pool import LANES, Lane, PixelRows, Pixels, Streamed, as_pixels, place
from fedssl.training.trainer import TrainingTask

CPU = torch.device("cpu")
CUDA = torch.device("cuda")


def numbered(count: int) -> Tensor:
    """Images (count, 1, 1, 1) whose only pixel is their number."""
    return torch.arange(count, dtype=torch.uint8).view(-1, 1, 1, 1)


class SlowDevice:
    """Run submitted work later, in order, in a thread, as a CUDA stream does."""

    def __init__(self, delay: float = 0.002) -> None:
        self._delay = delay
        self._queue = ThreadPoolExecutor(1)

    def submit(self, work: Callable[[], None]) -> None:
        self._queue.submit(lambda: (time.sleep(self._delay), work()))

    def event(self) -> threading.Event:
        """Set once everything submitted so far is done."""
        reached = threading.Event()
        self._queue.submit(reached.set)
        return reached

    def wait(self) -> None:
        self.event().wait()


class SlowLane(Lane):
    """A CudaLane for a SlowDevice."""

    def __init__(self, device: SlowDevice, size: int, log: list[str]) -> None:
        self._device = device
        self._log = log
        self._images = torch.empty(size, 1, 1, 1, dtype=torch.uint8)
        self._count = 0
        self._used = device.event()

    def fill(self, pool: Tensor, rows: Tensor) -> None:
        gathered = pool.index_select(0, rows)
        self._log.append(f"gathered {threading.current_thread().name.partition('_')[0]}")
        assert self._used.wait(10)
        self._count = len(rows)
        self._images[: self._count] = gathered

    def take(self) -> Tensor:
        return self._images[: self._count]

    def release(self) -> None:
        self._used = self._device.event()


def streamed(
    held: PixelRows, device: SlowDevice | None = None, log: list[str] | None = None
) -> Streamed:
    chosen = device or SlowDevice(0)
    lines = [] if log is None else log

    def lanes(count: int, size: int) -> list[Lane]:
        return [SlowLane(chosen, size, lines) for _ in range(count)]

    return Streamed(held, lanes)


def test_rows_of_a_pool() -> None:
    pool = numbered(9)
    everything = PixelRows(pool)
    some = PixelRows(pool, torch.tensor([8, 2, 5]))
    assert (len(everything), len(some)) == (9, 3)
    assert everything.image_shape == some.image_shape == (1, 1, 1)
    assert some[torch.tensor([2, 0])].flatten().tolist() == [5, 8]
    again = some.select(torch.tensor([1, 2]))
    assert again.pool is pool
    assert again.tensor().flatten().tolist() == [2, 5]
    assert everything.tensor() is pool
    assert some.to(CPU).pool.flatten().tolist() == [8, 2, 5]


@pytest.mark.parametrize("kind", ["rows", "streamed"])
@pytest.mark.parametrize("size", [1, 2, 3, 5, 7, 8, 20])
@pytest.mark.parametrize("chosen", [None, [8, 2, 5, 0, 1, 7, 3]])
def test_batches_and_chunks(kind: str, size: int, chosen: list[int] | None) -> None:
    held = PixelRows(numbered(9), None if chosen is None else torch.tensor(chosen))
    images: Pixels = held if kind == "rows" else streamed(held)
    names = torch.tensor(chosen or list(range(9)), dtype=torch.uint8)
    order = torch.randperm(len(held), generator=torch.Generator().manual_seed(size))
    full = len(held) // size
    batches = images.batches(order, size)
    for number, (index, batch) in zip(range(full), batches, strict=True):
        expected = order[number * size : (number + 1) * size]
        assert torch.equal(index, expected)
        assert torch.equal(batch.flatten(), names[expected])
    for chunk, expected in zip(images.chunks(size), names.split(size), strict=True):
        assert torch.equal(chunk.flatten(), expected)


def test_streamed_images_are_not_overwritten_while_the_device_uses_them() -> None:
    device = SlowDevice()
    batches = []
    for _, batch in streamed(PixelRows(numbered(60)), device).batches(torch.arange(60), 2):
        # Read long after the loop has continued.
        device.submit(lambda batch=batch: batches.append(batch.flatten().clone()))
    device.wait()
    assert torch.cat(batches).tolist() == list(range(60))


def test_batches_are_read_ahead_in_another_thread() -> None:
    log: list[str] = []
    batches = streamed(PixelRows(numbered(40)), log=log).batches(torch.arange(40), 4)
    next(batches)
    deadline = time.monotonic() + 10
    while len(log) < LANES and time.monotonic() < deadline:
        time.sleep(0.001)
    time.sleep(0.05)
    assert log == ["gathered pixels"] * LANES  # the one in use and those ahead, and no more
    assert len(list(batches)) == 9


def test_a_failure_of_the_reader_is_that_of_the_batch() -> None:
    class Broken(SlowLane):
        def fill(self, pool: Tensor, rows: Tensor) -> None:
            if 6 in rows:
                raise OSError(5, "Input/output error")
            super().fill(pool, rows)

    device = SlowDevice(0)
    images = Streamed(
        PixelRows(numbered(12)),
        lambda count, size: [Broken(device, size, []) for _ in range(count)],
    )
    batches = images.batches(torch.arange(12), 2)
    for expected in ([0, 1], [2, 3], [4, 5]):
        assert next(batches)[0].tolist() == expected
    with pytest.raises(OSError, match="Input/output error"):
        next(batches)
    assert len(list(images.batches(torch.arange(6), 2))) == 3  # and it can be used again


def test_stopping_early_leaves_nothing_behind() -> None:
    log: list[str] = []
    images = streamed(PixelRows(numbered(40)), log=log)
    for index, _ in images.batches(torch.arange(40), 4):
        if index[0] == 8:
            break
    count = len(log)
    assert count <= 2 + LANES
    assert [batch.flatten().tolist() for batch in images.chunks(20)] == [
        list(range(20)),
        list(range(20, 40)),
    ]


def test_all_clients_share_a_pool_and_its_readers() -> None:
    images = streamed(PixelRows(numbered(10)))
    first = images.select(torch.tensor([9, 1]))
    second = images.select(torch.tensor([2, 3, 4]))
    assert (len(first), len(second)) == (2, 3)
    assert next(first.chunks(5)).flatten().tolist() == [9, 1]
    assert first._readers is second._readers is images._readers
    assert first._held.pool is second._held.pool


def test_a_plain_tensor_is_accepted() -> None:
    images = as_pixels(numbered(4), CPU)
    assert isinstance(images, PixelRows)
    assert as_pixels(images, CPU) is images


def test_images_are_placed_by_the_free_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    held = PixelRows(torch.zeros(10, 3, 4, 4, dtype=torch.uint8), torch.arange(8))  # 384 bytes
    assert place(held, CPU) is held
    monkeypatch.setattr(PixelRows, "to", lambda self, device: PixelRows(self.tensor()))
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: device)
    assert isinstance(place(held, CUDA, lambda device: 768), PixelRows)
    assert isinstance(place(held, CUDA, lambda device: 767), Streamed)
    assert module.SHARE == 0.5


@pytest.fixture
def fit() -> Callable[[Tensor | Pixels], tuple[Tensor, Tensor]]:
    def train(images: Tensor | Pixels) -> tuple[Tensor, Tensor]:
        trainer = make_trainer("byol", train={"batch": 4, "epochs": 2})
        task = TrainingTask(
            images, None, torch.Generator().manual_seed(1), 0.1, 0.0, threading.Event()
        )
        trainer.fit(task, lambda method, batch, out, given: method.loss(out, given), {})
        return trainer.method.state.floats, trainer.embed(images)

    return train


def test_training_does_not_depend_on_where_the_pixels_are_stored(
    fit: Callable[[Tensor | Pixels], tuple[Tensor, Tensor]],
) -> None:
    pool = random_pixels(40)
    rows = torch.randperm(40, generator=torch.Generator().manual_seed(2))[:22]
    device = SlowDevice(0)

    class Way(SlowLane):
        def __init__(self, size: int) -> None:
            super().__init__(device, size, [])
            self._images = torch.empty(size, 3, 8, 8, dtype=torch.uint8)

    def lanes(count: int, size: int) -> list[Lane]:
        return [Way(size) for _ in range(count)]

    expected = fit(pool[rows])
    for images in (
        PixelRows(pool, rows),
        PixelRows(pool).select(rows),
        Streamed(PixelRows(pool), lanes).select(rows),
    ):
        for found, wanted in zip(fit(images), expected, strict=True):
            assert torch.equal(found, wanted)
