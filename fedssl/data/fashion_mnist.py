"""Fashion-MNIST (Xiao, Rasul & Vollgraf 2017) in the IDX format, compressed or not."""

from __future__ import annotations

import gzip
import struct
from functools import partial
from math import prod
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedssl.core.console import Notify
from fedssl.core.errors import DataError
from fedssl.data.archive import damage_as_data_error
from fedssl.data.download import OfficialFile, find, find_or_download
from fedssl.data.images import SOURCES, Dataset, Images, Source

FASHION_CLASSES = (
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)
_URL = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"
_MD5 = {
    "train-images-idx3-ubyte.gz": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
    "train-labels-idx1-ubyte.gz": "25c81989df183df01b3e8a0aad5dffbe",
    "t10k-images-idx3-ubyte.gz": "bef4ecab320f06d8554ea6380940ec79",
    "t10k-labels-idx1-ubyte.gz": "bb300cfdad3c16e7a12a480ee83cd310",
}
_MAX_BYTES = 1_000_000_000  # of one file; the largest official one has 47 million
_DEBIAN = Path("/usr/share/datasets/fashion-mnist")  # of Debian's package dataset-fashion-mnist


@SOURCES.register("fashion-mnist")
class FashionMnist(Source):
    """Fashion-MNIST (Xiao, Rasul & Vollgraf 2017) in the IDX format, compressed or not."""

    def read(self, root: Path, notify: Notify) -> Dataset:
        return Dataset(_read_half(root, "train", notify), _read_half(root, "t10k", notify))


def _read_half(root: Path, half: str, notify: Notify) -> Images:
    pixels = _find_file(root, f"{half}-images-idx3-ubyte.gz", notify)
    labels = _find_file(root, f"{half}-labels-idx1-ubyte.gz", notify)
    return Images(read_idx(pixels, 3)[:, None], partial(read_idx, labels, 1), FASHION_CLASSES)


def _find_file(root: Path, name: str, notify: Notify) -> Path:
    uncompressed = find(root, "fashion-mnist", [name.removesuffix(".gz")], [_DEBIAN])
    if uncompressed is not None:
        return uncompressed
    official = OfficialFile(name, _URL + name, "md5:" + _MD5[name])
    return find_or_download(root, "fashion-mnist", official, notify=notify, also=[_DEBIAN])


def read_idx(path: Path, dimensions: int) -> Tensor:
    """Return the uint8 tensor in an IDX file.

    The file holds the bytes 0, 0, 8 and the number of dimensions; each dimension in 4 bytes; the
    values.
    """
    data = _read_bytes(path)
    start = 4 + 4 * dimensions
    if len(data) < start or data[:4] != bytes((0, 0, 8, dimensions)):
        raise DataError(f"{path} is not an IDX file of bytes with {dimensions} dimensions")
    shape = struct.unpack_from(f">{dimensions}I", data, 4)
    if len(data) - start != prod(shape):
        raise DataError(
            f"{path} does not hold the {' × '.join(map(str, shape))} bytes its header announces"
        )
    return torch.from_numpy(np.frombuffer(data, np.uint8, offset=start).reshape(shape).copy())


def _read_bytes(path: Path) -> bytes:
    open_file = gzip.open if path.suffix == ".gz" else open
    with damage_as_data_error(path), open_file(path, "rb") as stream:
        data = stream.read(_MAX_BYTES + 1)
    if len(data) > _MAX_BYTES:
        raise DataError(
            f"{path} has more than {_MAX_BYTES:,} bytes, too many for a file of this data set"
        )
    return data
