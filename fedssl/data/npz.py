"""A NumPy archive: x_train and, where there are any, y_train, x_test, y_test, owner_train; never a pickle."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedssl.data.fetch import find_path, missing
from fedssl.data.images import SOURCES, Dataset, Images, Source
from fedssl.data.progress import Say
from fedssl.errors import DataError

Array = npt.NDArray[Any]
_READ_HEADER = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
_MOST_COMPRESSION = 1100  # deflate packs at most 1,032 bytes into one


@SOURCES.register("npz")
class Npz(Source):
    """`path` (see `find_path`) of an archive with uint8 images (N, H, W, C) or (N, H, W)."""

    path: str

    def read(self, root: Path, say: Say) -> Dataset:
        found = find_path(self.path, root)
        if not found.exists():
            raise DataError(f"there is no file {missing(self.path, root)}")
        return read_npz(found)


def read_npz(path: Path, classes: tuple[str, ...] = ()) -> Dataset:
    pixels = _entry(path, "x_train")
    if pixels is None:
        raise DataError(f"{path} has no x_train")
    train = Images(channels_first(pixels, f"x_train of {path}"), _labels(path, "y_train"), classes)
    pixels = _entry(path, "x_test")
    test = None
    if pixels is not None:
        test = Images(channels_first(pixels, f"x_test of {path}"), _labels(path, "y_test"), classes)
    owner = _entry(path, "owner_train")
    if owner is not None and owner.shape != (len(train),):
        raise DataError(f"owner_train of {path} must name one owner for each of {len(train)} images")
    return Dataset(train, test, None if owner is None else group(owner))


def group(owner: Array) -> dict[str, Tensor]:
    """Owner of each image (N,), text or integers, to the indices each one owns."""
    names, which = np.unique(owner, return_inverse=True)
    return {str(name): torch.from_numpy(np.flatnonzero(which == k)) for k, name in enumerate(names)}


def channels_first(array: Array, what: str) -> Tensor:
    """uint8 (N, H, W, C) or (N, H, W) to a contiguous tensor (N, C, H, W)."""
    if array.ndim == 3:
        array = array[..., None]
    if array.dtype != np.uint8 or array.ndim != 4 or array.shape[-1] not in (1, 3):
        raise DataError(
            f"{what} must be uint8 of shape (N, H, W), (N, H, W, 1) or (N, H, W, 3), "
            f"not {array.dtype} of shape {array.shape}"
        )
    return torch.from_numpy(array).permute(0, 3, 1, 2).contiguous()


def _labels(path: Path, key: str) -> Callable[[], Tensor] | None:
    return partial(_load_labels, path, key) if key in _keys(path) else None


def _load_labels(path: Path, key: str) -> Tensor:
    labels = _entry(path, key)
    if labels is None or not np.issubdtype(labels.dtype, np.integer):
        raise DataError(f"{key} of {path} must hold integers")
    return torch.from_numpy(labels.astype(np.int64).reshape(-1))  # (N, 1) is common, too


def _keys(path: Path) -> list[str]:
    with _archive(path) as archive:
        return list(archive.files)


def _entry(path: Path, key: str) -> Array | None:
    with _archive(path) as archive:
        if key not in archive.files:
            return None
        try:
            _check_size(archive.zip, f"{key}.npy")
            entry: Array = archive[key]
        except MemoryError:
            raise
        except Exception as failure:  # damaged archives make zipfile, zlib and NumPy raise errors of many types
            raise DataError(f"{key} of {path} cannot be read ({failure})") from None
        return entry


def _check_size(archive: zipfile.ZipFile | None, name: str) -> None:
    """Raise ValueError unless an entry holds as many bytes as its header announces, before memory is allocated."""
    if archive is None or name not in archive.namelist():
        return
    with archive.open(name) as stream:
        version = np.lib.format.read_magic(stream)
        if version not in _READ_HEADER:
            raise ValueError(f"its format {version} is not supported")
        shape, _, dtype = _READ_HEADER[version](stream)
        start = stream.tell()
    announced = prod(shape) * dtype.itemsize
    entry = archive.getinfo(name)
    if min(shape, default=0) < 0:
        raise ValueError(f"its shape is {shape}")
    if not dtype.hasobject and start + announced != entry.file_size:
        raise ValueError(f"its header announces {announced:,} bytes of data, and it has {entry.file_size - start:,}")
    if entry.file_size > _MOST_COMPRESSION * entry.compress_size:
        raise ValueError(f"it claims {entry.file_size:,} bytes, compressed to {entry.compress_size:,}")


def _archive(path: Path) -> np.lib.npyio.NpzFile:
    try:
        zipfile.ZipFile(path).close()  # NumPy would leave a damaged file open, and read any other into memory
        archive = np.load(path, allow_pickle=False)
    except FileNotFoundError:
        raise DataError(f"there is no file {path}") from None
    except MemoryError:
        raise
    except Exception:  # damaged files make zipfile, zlib and NumPy raise errors of many types
        archive = None
    if not isinstance(archive, np.lib.npyio.NpzFile):
        raise DataError(f"{path} is not a NumPy archive (.npz)")
    return archive
