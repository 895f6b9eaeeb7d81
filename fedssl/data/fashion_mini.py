"""A small data set within the package: 5,000 + 1,000 images of Fashion-MNIST, balanced by class.

Created by scripts/make_fashion_mini.py; licence in FASHION_MNIST_LICENSE. The images are stored in
two lossless PNG sheets, class after class, which compresses best; WebP would be 3% smaller, but not
every Pillow can decode it.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from PIL import Image

from fedssl.core.console import Notify
from fedssl.data.fashion_mnist import FASHION_CLASSES
from fedssl.data.images import SOURCES, Dataset, Images, Source

SIDE = 28
COLUMNS = 50  # images in a row of a sheet
TRAIN_SHEET = Path(__file__).parent / "fashion_mini_train.png"
TEST_SHEET = Path(__file__).parent / "fashion_mini_test.png"


@SOURCES.register("fashion-mini")
class FashionMini(Source):
    """5,000 + 1,000 images of Fashion-MNIST, which come with the package.

    Image i has class i modulo 10, so any prefix of the set is balanced.
    """

    def read(self, root: Path, notify: Notify) -> Dataset:
        return Dataset(_read_sheet(TRAIN_SHEET), _read_sheet(TEST_SHEET))


def _read_sheet(sheet: Path) -> Images:
    with Image.open(sheet) as image:
        pixels = torch.from_numpy(np.array(image))
    tiles = pixels.view(-1, SIDE, COLUMNS, SIDE).transpose(1, 2)  # rows, columns, height, width
    classes = len(FASHION_CLASSES)
    by_class = tiles.reshape(classes, -1, 1, SIDE, SIDE)
    count = by_class.shape[0] * by_class.shape[1]
    images = by_class.transpose(0, 1).reshape(count, 1, SIDE, SIDE)
    return Images(images, lambda: torch.arange(count) % classes, FASHION_CLASSES)
