"""A client's images where training needs them: rows of one pool that all clients share.

The pool is a tensor in host memory, a mapped file, or a tensor on the GPU. On a GPU it lies there as a whole if there
is room. If not, batches are streamed: while the device trains on one, threads gather the next ones into pinned memory
and send them on a stream of their own.
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

from fedssl.room import free_on_device

LANES = 3  # batches under way at a time: one is trained on, one is sent, one is gathered
SHARE = 0.5  # of a device's free memory that images may take; the rest is for models and activations
_READERS = 4  # threads that gather; as many trainers may be side by side before they wait for each other
_BLOCK = 1024  # images copied to a device at a time


class Pixels(ABC):
    """uint8 images (n, C, H, W) of one owner, handed out in batches on the trainer's device.

    What is handed out may be overwritten as soon as the next is asked for.
    """

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def select(self, index: Tensor) -> Pixels:
        """Those at `index` (m,); no pixel is copied."""

    @abstractmethod
    def batches(self, order: Tensor, size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """`size` entries of `order` (n,) at a time with their images; a last incomplete batch is left out."""

    @abstractmethod
    def chunks(self, size: int) -> Iterator[Tensor]:
        """All images in order, at most `size` at a time."""


@final
class Rows(Pixels):
    """Rows of a pool, taken where it lies; all of it where no rows are given."""

    def __init__(self, pool: Tensor, rows: Tensor | None = None) -> None:
        self.pool, self.rows = pool, rows

    def __len__(self) -> int:
        return len(self.pool if self.rows is None else self.rows)

    def __getitem__(self, index: Tensor) -> Tensor:
        """The images at `index` (m,) as a new tensor."""
        # On a CPU ten times as fast as pool[index], and the same bytes.
        return self.pool.index_select(0, self.places(index))

    @property
    def image(self) -> tuple[int, int, int]:
        """(C, H, W) of each."""
        channels, height, width = self.pool.shape[1:]
        return channels, height, width

    def places(self, index: Tensor) -> Tensor:
        """Row numbers in the pool."""
        return index if self.rows is None else self.rows[index]

    def select(self, index: Tensor) -> Rows:
        return Rows(self.pool, self.places(index.to(self.pool.device)))

    def tensor(self) -> Tensor:
        """All of them as one tensor: the pool itself, or a copy of some of its rows."""
        return self.pool if self.rows is None else self.pool.index_select(0, self.rows)

    def batches(self, order: Tensor, size: int) -> Iterator[tuple[Tensor, Tensor]]:
        for index, rows in zip(_full(order, size), _full(self.places(order), size), strict=True):
            yield index, self.pool.index_select(0, rows)

    def chunks(self, size: int) -> Iterator[Tensor]:
        if self.rows is None:
            yield from self.pool.split(size)
        else:
            yield from (self.pool.index_select(0, rows) for rows in self.rows.split(size))

    def to(self, device: torch.device) -> Rows:
        """A pool of these images alone on the device, copied block by block: a mapped file may exceed memory."""
        pool = torch.empty((len(self), *self.image), dtype=torch.uint8, device=device)
        for part, block in zip(pool.split(_BLOCK), self.chunks(_BLOCK), strict=True):
            part.copy_(block)
        return Rows(pool)


class Lane(ABC):
    """Where one batch after another passes on its way to the device."""

    @abstractmethod
    def fill(self, pool: Tensor, rows: Tensor) -> None:
        """In a reading thread: gather these rows, then send them, each as soon as nobody needs what was there."""

    @abstractmethod
    def take(self) -> Tensor:
        """In the training thread: the images, for work that is submitted from now on."""

    @abstractmethod
    def release(self) -> None:
        """In the training thread: all work with these images has been submitted."""


@final
class CudaLane(Lane):
    """A pinned buffer and one on the device. The host never waits for the device, except to reuse the first."""

    def __init__(self, size: int, image: tuple[int, int, int], side: torch.cuda.Stream) -> None:
        self._side, self._count = side, 0
        self._pinned = torch.empty((size, *image), dtype=torch.uint8, pin_memory=True)
        self._images = torch.empty((size, *image), dtype=torch.uint8, device=side.device)
        self._images.record_stream(side)
        self._sent, self._used = torch.cuda.Event(), torch.cuda.Event()
        self.release()  # what used this memory before may still be under way

    def fill(self, pool: Tensor, rows: Tensor) -> None:
        self._count = len(rows)
        self._sent.synchronize()
        pinned = torch.index_select(pool, 0, rows, out=self._pinned[: self._count])
        with torch.cuda.stream(self._side):
            self._side.wait_event(self._used)
            self._images[: self._count].copy_(pinned, non_blocking=True)
            self._sent.record(self._side)

    def take(self) -> Tensor:
        torch.cuda.current_stream(self._side.device).wait_event(self._sent)
        return self._images[: self._count]

    def release(self) -> None:
        self._used.record(torch.cuda.current_stream(self._side.device))


@final
class Streamed(Pixels):
    """Rows in host memory for a trainer on a device; `lanes(count, size)` makes ways there, for batches of `size`."""

    def __init__(
        self, held: Rows, lanes: Callable[[int, int], Sequence[Lane]], readers: ThreadPoolExecutor | None = None
    ) -> None:
        self._held, self._lanes = held, lanes
        self._readers = readers or ThreadPoolExecutor(_READERS, "pixels")

    def __len__(self) -> int:
        return len(self._held)

    def select(self, index: Tensor) -> Streamed:
        return Streamed(self._held.select(index), self._lanes, self._readers)

    def batches(self, order: Tensor, size: int) -> Iterator[tuple[Tensor, Tensor]]:
        rows = _full(self._held.places(order.cpu()), size)  # at once: later it would wait for steps under way
        yield from zip(_full(order, size), self._stream(rows, size), strict=True)

    def chunks(self, size: int) -> Iterator[Tensor]:
        return self._stream(self._held.places(torch.arange(len(self))).split(size), size)

    def _stream(self, parts: Sequence[Tensor], size: int) -> Iterator[Tensor]:
        lanes = self._lanes(min(LANES, len(parts)), size)
        turns = zip(parts, cycle(lanes), strict=False)
        waiting: deque[tuple[Lane, Future[None]]] = deque()

        def read_on() -> None:
            for rows, lane in turns:
                waiting.append((lane, self._readers.submit(lane.fill, self._held.pool, rows)))
                break

        for _ in lanes[1:]:  # one lane fewer than there are: the last is that of the batch in use
            read_on()
        try:
            for _ in parts:
                read_on()
                lane, filled = waiting.popleft()
                filled.result()
                yield lane.take()
                lane.release()
        finally:
            for _, filled in waiting:
                filled.cancel()


def _full(order: Tensor, size: int) -> Sequence[Tensor]:
    return order[: len(order) // size * size].split(size) if len(order) >= size else ()


def as_pixels(given: Tensor | Pixels, device: torch.device) -> Pixels:
    """A plain tensor of images (n, C, H, W) will do wherever Pixels are expected."""
    return Rows(given.to(device)) if isinstance(given, Tensor) else given


def place(held: Rows, device: torch.device, free: Callable[[torch.device], int] | None = None) -> Pixels:
    """These images for training on the device: where they are, or on the GPU, or streamed to it."""
    if device.type != "cuda":
        return held
    if held.pool[:1].numel() * len(held) <= SHARE * (free or free_on_device)(device):
        return held.to(device)

    sides: dict[int, torch.cuda.Stream] = {}  # one beside each trainer's: they do not wait for each other

    def lanes(count: int, size: int) -> list[Lane]:
        beside = torch.cuda.current_stream(device).cuda_stream
        if beside not in sides:
            sides[beside] = torch.cuda.Stream(device)
        return [CudaLane(size, held.image, sides[beside]) for _ in range(count)]

    return Streamed(held, lanes)
