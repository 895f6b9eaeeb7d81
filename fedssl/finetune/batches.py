"""Which images make up which batch, and getting them ready while the device is at work.

A batch is a function of the seed and the iteration's number alone, so that a fine-tuning which was killed goes on with
the very batches it would have had. Within an epoch images of one orientation come together, as in Detectron: a wide and
a tall image in one batch would both be padded to a square.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache
from itertools import islice
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from fedssl.data.decode import Unreadable, decode_whole
from fedssl.errors import DataError
from fedssl.finetune.coco import Picture
from fedssl.finetune.masks import rasterise
from fedssl.seeds import generator

AHEAD = 3  # batches that are made while one is trained on
THREADS = 8

T = TypeVar("T")
R = TypeVar("R")


class Sample(NamedTuple):
    """An image (C, H, W) between 0 and 1 and, under torchvision's names, what is on it."""

    image: Tensor
    target: dict[str, Tensor]

    def to(self, device: torch.device) -> Sample:
        return Sample(self.image.to(device), {key: value.to(device) for key, value in self.target.items()})


class Batches:
    """The batches of a fine-tuning; with fewer images than a batch, every batch is all of them."""

    def __init__(self, pictures: Sequence[Picture], batch: int, channels: int, flip: bool, seed: int) -> None:
        self.pictures, self.channels, self.flip, self.seed = pictures, channels, flip, seed
        self.batch = min(batch, len(pictures))
        self.wide = torch.tensor([picture.width >= picture.height for picture in pictures])
        self.epoch = lru_cache(maxsize=2)(self._epoch)

    def at(self, iteration: int) -> list[int]:
        """The images of an iteration, by their places."""
        epoch, place = divmod(iteration, len(self.pictures) // self.batch)
        return self.epoch(epoch)[place]

    def _epoch(self, number: int) -> list[list[int]]:
        """Every image once, but for those that do not fill a batch: their turn comes in other epochs."""
        stream = generator(self.seed, "detection order", number)
        order = torch.randperm(len(self.pictures), generator=stream)
        groups = [order[self.wide[order]].tolist(), order[~self.wide[order]].tolist()]
        whole = [len(group) // self.batch * self.batch for group in groups]
        alike = [chunk for group, most in zip(groups, whole, strict=True) for chunk in _cut(group[:most], self.batch)]
        rest = [place for group, most in zip(groups, whole, strict=True) for place in group[most:]]
        batches = alike + [chunk for chunk in _cut(rest, self.batch) if len(chunk) == self.batch]
        return [batches[i] for i in torch.randperm(len(batches), generator=stream).tolist()]

    def samples(self, first: int, last: int) -> Iterator[list[Sample]]:
        """Those of iterations `first` to `last`, the latter not included, made ahead by threads."""
        jobs = (job for iteration in range(first, last) for job in self._jobs(iteration))
        ready = ahead(lambda job: make(self.pictures[job[0]], self.channels, job[1]), jobs, AHEAD * self.batch)
        for _ in range(first, last):
            yield list(islice(ready, self.batch))

    def _jobs(self, iteration: int) -> list[tuple[int, bool]]:
        """Images, and whether each is mirrored."""
        chance = torch.rand(self.batch, generator=generator(self.seed, "detection flip", iteration))
        mirrored = ((chance < 0.5) & self.flip).tolist()
        return list(zip(self.at(iteration), mirrored, strict=True))


def _cut(places: list[int], size: int) -> list[list[int]]:
    return [places[i : i + size] for i in range(0, len(places), size)]


def ahead(work: Callable[[T], R], jobs: Iterable[T], most: int) -> Iterator[R]:
    """The results of jobs in their order, `most` of them begun before they are asked for."""
    pool, waiting, jobs = ThreadPoolExecutor(THREADS, "images"), deque[Future[R]](), iter(jobs)
    try:
        waiting.extend(pool.submit(work, job) for job in islice(jobs, most))
        while waiting:
            result = waiting.popleft().result()
            waiting.extend(pool.submit(work, job) for job in islice(jobs, 1))
            yield result
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def make(picture: Picture, channels: int, mirrored: bool = False) -> Sample:
    """An image with the boxes, labels and masks of its single objects."""
    image, found = read_image(picture, channels), picture.singles
    masks = np.zeros((len(found), picture.height, picture.width), np.uint8)
    for i, one in enumerate(found):
        masks[i] = rasterise(one.segmentation, picture.height, picture.width)
    target = {
        "boxes": torch.tensor([one.box for one in found], dtype=torch.float32).reshape(-1, 4),
        "labels": torch.tensor([one.label for one in found], dtype=torch.int64),
        "masks": torch.from_numpy(masks),
    }
    return mirror(Sample(image, target)) if mirrored else Sample(image, target)


def read_image(picture: Picture, channels: int) -> Tensor:
    """(channels, height, width) between 0 and 1."""
    try:
        pixels = decode_whole(picture.path, (picture.width, picture.height), channels)
    except Unreadable as problem:
        raise DataError(f"an image cannot be used: {problem}", f"it is {picture.path}") from None
    return torch.from_numpy(pixels).float() / 255


def mirror(sample: Sample) -> Sample:
    """Left and right exchanged."""
    width, target = sample.image.shape[-1], sample.target
    left, top, right, bottom = target["boxes"].unbind(1)
    boxes = torch.stack((width - right, top, width - left, bottom), 1)
    return Sample(sample.image.flip(-1), target | {"boxes": boxes, "masks": target["masks"].flip(-1)})
