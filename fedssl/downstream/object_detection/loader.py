"""Choose the images of each batch, and load them while the device computes.

A batch is a function of only the seed and the iteration, so that a fine-tuning that was killed
resumes with the same batches. Within an epoch images of one orientation are batched together, as in
Detectron: a wide and a tall image in one batch would both be padded to a square.

Images are loaded by threads. A DataLoader would load them in processes, which turn the one-line
error of a damaged file into a traceback, and which Ctrl-C ends while a step still needs them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache
from itertools import chain, islice
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import BatchSampler

from fedssl.core.errors import DataError
from fedssl.core.seeds import generator
from fedssl.data.decode import Unreadable
from fedssl.data.decode_whole import decode_whole
from fedssl.downstream.object_detection.coco import AnnotatedImage
from fedssl.downstream.object_detection.masks import rasterise

PREFETCHED_BATCHES = 3
THREADS = 8

Job = TypeVar("Job")
Result = TypeVar("Result")


class Sample(NamedTuple):
    """An image (C, H, W) between 0 and 1 and its targets, under torchvision's names."""

    image: Tensor
    target: dict[str, Tensor]

    def to(self, device: torch.device) -> Sample:
        """Return the sample on a device."""
        target = {key: value.to(device) for key, value in self.target.items()}
        return Sample(self.image.to(device), target)


class Batches:
    """The batches of a fine-tuning; with fewer images than a batch, every batch has all of them."""

    def __init__(
        self,
        images: Sequence[AnnotatedImage],
        batch: int,
        channels: int,
        *,
        flip: bool,
        seed: int,
    ) -> None:
        self.images = images
        self.batch = min(batch, len(images))
        self.channels = channels
        self.flip = flip
        self.seed = seed
        self.wide = torch.tensor([image.width >= image.height for image in images])
        self._cached_epoch = lru_cache(maxsize=2)(self._epoch)

    def indices(self, iteration: int) -> list[int]:
        """Return the indices of the images of an iteration."""
        epoch, index = divmod(iteration, len(self.images) // self.batch)
        return self._cached_epoch(epoch)[index]

    def _epoch(self, number: int) -> list[list[int]]:
        """Return the batches of an epoch: every image once, except those that fill no batch."""
        stream = generator(self.seed, "detection order", number)
        order = torch.randperm(len(self.images), generator=stream)
        is_wide = self.wide[order]
        batches: list[list[int]] = []
        remaining: list[int] = []
        for group in (order[is_wide].tolist(), order[~is_wide].tolist()):
            full = list(BatchSampler(group, self.batch, drop_last=True))
            batches += full
            remaining += group[len(full) * self.batch :]
        batches += BatchSampler(remaining, self.batch, drop_last=True)
        shuffled = torch.randperm(len(batches), generator=stream)
        return [batches[i] for i in shuffled.tolist()]

    def samples(self, first: int, last: int) -> Iterator[list[Sample]]:
        """Yield the samples of iterations `first` to `last`, the latter excluded.

        They are loaded ahead by threads.
        """
        jobs = chain.from_iterable(map(self._jobs, range(first, last)))
        samples = prefetch(self._load, jobs, PREFETCHED_BATCHES * self.batch)
        for _ in range(first, last):
            yield list(islice(samples, self.batch))

    def _jobs(self, iteration: int) -> list[tuple[int, bool]]:
        """Return the index of each image of an iteration, and True if it is mirrored."""
        stream = generator(self.seed, "detection flip", iteration)
        uniforms = torch.rand(self.batch, generator=stream)
        mirrored = ((uniforms < 0.5) & self.flip).tolist()
        return list(zip(self.indices(iteration), mirrored, strict=True))

    def _load(self, job: tuple[int, bool]) -> Sample:
        index, mirrored = job
        return load_sample(self.images[index], self.channels, mirrored)


def prefetch(work: Callable[[Job], Result], jobs: Iterable[Job], limit: int) -> Iterator[Result]:
    """Yield the results of jobs in their order; threads start up to `limit` jobs ahead."""
    pool = ThreadPoolExecutor(THREADS, "images")
    pending = deque[Future[Result]]()
    jobs = iter(jobs)
    try:
        for job in islice(jobs, limit):
            pending.append(pool.submit(work, job))
        while pending:
            result = pending.popleft().result()
            for job in islice(jobs, 1):
                pending.append(pool.submit(work, job))
            yield result
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def load_sample(image: AnnotatedImage, channels: int, mirrored: bool = False) -> Sample:
    """Return an image with the boxes, labels and masks of its objects, without crowds."""
    pixels = read_image(image, channels)
    objects = image.single_objects
    masks = np.zeros((len(objects), image.height, image.width), np.uint8)
    for i, annotation in enumerate(objects):
        masks[i] = rasterise(annotation.segmentation, image.height, image.width)
    boxes = torch.tensor([annotation.box for annotation in objects], dtype=torch.float32)
    labels = torch.tensor([annotation.label for annotation in objects], dtype=torch.int64)
    target = {
        "boxes": boxes.reshape(-1, 4),
        "labels": labels,
        "masks": torch.from_numpy(masks),
    }
    sample = Sample(pixels, target)
    if mirrored:
        return mirror(sample)
    return sample


def read_image(image: AnnotatedImage, channels: int) -> Tensor:
    """Return the pixels (channels, height, width) between 0 and 1."""
    try:
        pixels = decode_whole(image.path, (image.width, image.height), channels)
    except Unreadable as error:
        raise DataError(f"an image cannot be used: {error}", f"it is {image.path}") from None
    return torch.from_numpy(pixels).float() / 255


def mirror(sample: Sample) -> Sample:
    """Return a sample flipped horizontally."""
    width = sample.image.shape[-1]
    left, top, right, bottom = sample.target["boxes"].unbind(1)
    boxes = torch.stack((width - right, top, width - left, bottom), 1)
    masks = sample.target["masks"].flip(-1)
    return Sample(sample.image.flip(-1), sample.target | {"boxes": boxes, "masks": masks})
