"""Write the embedded data set: 500 training and 100 test images of each class of Fashion-MNIST.

    python scripts/make_fashion_mini.py [ROOT]

These are the first images of each class. ROOT is the data directory with Fashion-MNIST (Debian's
package dataset-fashion-mnist is found without it). Writes two lossless PNG sheets, class by class,
into the package; fedssl/data/fashion_mini.py reads them.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from PIL import Image

from fedssl.data import FashionMnist, Images
from fedssl.data.fashion_mini import COLUMNS, SIDE, TEST_SHEET, TRAIN_SHEET


def write_sheet(images: Images, per_class: int, path: Path) -> None:
    labels = images.labels
    first = [(labels == c).nonzero()[:per_class, 0] for c in range(len(images.classes))]
    tiles = images.pixels[torch.cat(first)].view(-1, COLUMNS, SIDE, SIDE)
    sheet = tiles.transpose(1, 2).reshape(-1, COLUMNS * SIDE)
    Image.fromarray(sheet.numpy()).save(path, optimize=True)
    print(f"{path}: {path.stat().st_size:,} bytes")


def main() -> None:
    data = FashionMnist().load(Path(sys.argv[1] if len(sys.argv) > 1 else "data"))
    assert data.test is not None
    write_sheet(data.train, 500, TRAIN_SHEET)
    write_sheet(data.test, 100, TEST_SHEET)


if __name__ == "__main__":
    main()
