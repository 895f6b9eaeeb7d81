"""The images of a client for training: rows of one pool that all clients share.

The pool is a tensor in host memory, a mapped file, or a tensor on the GPU. A trainer on a GPU gets
the whole pool on the device if there is room. Otherwise batches are streamed: while the device
trains on one, threads gather the next ones into pinned memory and copy them on a separate stream.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import cycle
from typing import final

import torch
from torch import Tensor

from fedssl.core.devices.free_memory import free_on_device

LANES = 3  # batches in flight: one is trained on, one is copied, one is gathered
# Of a device's free memory that images may take; the rest is for models and activations.
SHARE = 0.5
_READERS = 4  # threads that gather; this many trainers can run without waiting for each other
_BLOCK = 1024  # images copied to a device at a time


class Pixels(ABC):
    """uint8 images (n, C, H, W) of one owner, in batches on the trainer's device.

    A batch may be overwritten as soon as the next one is requested.
    """

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def select(self, index: Tensor) -> Pixels:
        """Return the images at `index` (m,) without copying pixels."""

    @abstractmethod
    def batches(self, order: Tensor, size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield `size` entries of `order` (n,) at a time, with their images.

        A last incomplete batch is dropped.
        """

    @abstractmethod
    def chunks(self, size: int) -> Iterator[Tensor]:
        """Yield all images in order, at most `size` at a time."""


@final
class PixelRows(Pixels):
    """Rows of a pool, on the pool's device; all rows if none are given."""

    def __init__(self, pool: Tensor, rows: Tensor | None = None) -> None:
        self.pool = pool
        self.rows = rows

    def __len__(self) -> int:
        return len(self.pool if self.rows is None else self.rows)

    def __getitem__(self, index: Tensor) -> Tensor:
        """Return the images at `index` (m,) as a new tensor."""
        # On a CPU ten times as fast as pool[index], with the same bytes.
        return self.pool.index_select(0, self.places(index))

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """(C, H, W) of each image."""
        channels, height, width = self.pool.shape[1:]
        return channels, height, width

    def places(self, index: Tensor) -> Tensor:
        """Return row numbers in the pool."""
        return index if self.rows is None else self.rows[index]

    def select(self, index: Tensor) -> PixelRows:
        return PixelRows(self.pool, self.places(index.to(self.pool.device)))

    def tensor(self) -> Tensor:
        """Return all images as one tensor: the pool itself, or a copy of the selected rows."""
        return self.pool if self.rows is None else self.pool.index_select(0, self.rows)

    def batches(self, order: Tensor, size: int) -> Iterator[tuple[Tensor, Tensor]]:
        index_batches = _full_batches(order, size)
        row_batches = _full_batches(self.places(order), size)
        for index, rows in zip(index_batches, row_batches, strict=True):
            yield index, self.pool.index_select(0, rows)

    def chunks(self, size: int) -> Iterator[Tensor]:
        if self.rows is None:
            yield from self.pool.split(size)
        else:
            for rows in self.rows.split(size):
                yield self.pool.index_select(0, rows)

    def to(self, device: torch.device) -> PixelRows:
        """Copy these images to a new pool on the device.

        They are copied block by block: a mapped file may exceed the memory.
        """
        pool = torch.empty((len(self), *self.image_shape), dtype=torch.uint8, device=device)
        for part, block in zip(pool.split(_BLOCK), self.chunks(_BLOCK), strict=True):
            part.copy_(block)
        return PixelRows(pool)


class Lane(ABC):
    """Buffers through which one batch after another is copied to the device."""

    @abstractmethod
    def fill(self, pool: Tensor, rows: Tensor) -> None:
        """Gather these rows, then copy them, once the buffers are free; runs in a reader thread."""

    @abstractmethod
    def take(self) -> Tensor:
        """Return the images for work that is submitted from now on; runs in the training thread."""

    @abstractmethod
    def release(self) -> None:
        """Mark all work with these images as submitted; runs in the training thread."""


@final
class CudaLane(Lane):
    """A pinned buffer and one on the device; the host waits only to reuse the pinned buffer."""

    def __init__(
        self, size: int, image: tuple[int, int, int], copy_stream: torch.cuda.Stream
    ) -> None:
        self._copy_stream = copy_stream
        self._count = 0
        self._pinned = torch.empty((size, *image), dtype=torch.uint8, pin_memory=True)
        self._images = torch.empty((size, *image), dtype=torch.uint8, device=copy_stream.device)
        self._images.record_stream(copy_stream)
        self._copied = torch.cuda.Event()
        self._used = torch.cuda.Event()
        self.release()  # earlier work on this memory may still be in progress

    def fill(self, pool: Tensor, rows: Tensor) -> None:
        self._count = len(rows)
        self._copied.synchronize()
        pinned = torch.index_select(pool, 0, rows, out=self._pinned[: self._count])
        with torch.cuda.stream(self._copy_stream):
            self._copy_stream.wait_event(self._used)
            self._images[: self._count].copy_(pinned, non_blocking=True)
            self._copied.record(self._copy_stream)

    def take(self) -> Tensor:
        torch.cuda.current_stream(self._copy_stream.device).wait_event(self._copied)
        return self._images[: self._count]

    def release(self) -> None:
        self._used.record(torch.cuda.current_stream(self._copy_stream.device))


@final
class Streamed(Pixels):
    """PixelRows in host memory, streamed to a trainer's device.

    `lanes(count, size)` creates `count` lanes for batches of `size`.
    """

    def __init__(
        self,
        held: PixelRows,
        lanes: Callable[[int, int], Sequence[Lane]],
        readers: ThreadPoolExecutor | None = None,
    ) -> None:
        self._held = held
        self._lanes = lanes
        self._readers = readers or ThreadPoolExecutor(_READERS, "pixels")

    def __len__(self) -> int:
        return len(self._held)

    def select(self, index: Tensor) -> Streamed:
        return Streamed(self._held.select(index), self._lanes, self._readers)

    def batches(self, order: Tensor, size: int) -> Iterator[tuple[Tensor, Tensor]]:
        # Copied to the host at once: later, the copy would wait for training steps in progress.
        row_batches = _full_batches(self._held.places(order.cpu()), size)
        yield from zip(_full_batches(order, size), self._stream(row_batches, size), strict=True)

    def chunks(self, size: int) -> Iterator[Tensor]:
        return self._stream(self._held.places(torch.arange(len(self))).split(size), size)

    def _stream(self, row_batches: Sequence[Tensor], size: int) -> Iterator[Tensor]:
        lanes = self._lanes(min(LANES, len(row_batches)), size)
        to_read = zip(row_batches, cycle(lanes), strict=False)
        pending: deque[tuple[Lane, Future[None]]] = deque()

        def submit_next() -> None:
            for rows, lane in to_read:
                pending.append((lane, self._readers.submit(lane.fill, self._held.pool, rows)))
                break

        for _ in lanes[1:]:  # one fewer than there are: the last lane is for the batch in use
            submit_next()
        try:
            for _ in row_batches:
                submit_next()
                lane, filled = pending.popleft()
                filled.result()
                yield lane.take()
                lane.release()
        finally:
            for _, filled in pending:
                filled.cancel()


def _full_batches(order: Tensor, size: int) -> Sequence[Tensor]:
    """Split `order` into batches of `size`, without a last incomplete one."""
    if len(order) < size:
        return ()
    full: Sequence[Tensor] = order[: len(order) // size * size].split(size)
    return full


def as_pixels(images: Tensor | Pixels, device: torch.device) -> Pixels:
    """Wrap a plain tensor of images (n, C, H, W); return Pixels unchanged."""
    return PixelRows(images.to(device)) if isinstance(images, Tensor) else images


def place(
    held: PixelRows,
    device: torch.device,
    free_memory: Callable[[torch.device], int] = free_on_device,
) -> Pixels:
    """Return the images for training on the device: unchanged, copied to the GPU, or streamed."""
    if device.type != "cuda":
        return held
    image_bytes = held.pool[:1].numel()
    if image_bytes * len(held) <= SHARE * free_memory(device):
        return held.to(device)

    # One copy stream for each trainer's stream, so that trainers do not wait for each other.
    copy_streams: dict[int, torch.cuda.Stream] = {}

    def lanes(count: int, size: int) -> list[Lane]:
        trainer_stream = torch.cuda.current_stream(device).cuda_stream
        if trainer_stream not in copy_streams:
            copy_streams[trainer_stream] = torch.cuda.Stream(device)
        copy_stream = copy_streams[trainer_stream]
        return [CudaLane(size, held.image_shape, copy_stream) for _ in range(count)]

    return Streamed(held, lanes)
