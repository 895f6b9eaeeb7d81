"""A NumPy archive: x_train and optionally y_train, x_test, y_test, owner_train; never a pickle."""

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

from fedssl.core.console import Notify
from fedssl.core.errors import DataError
from fedssl.core.similar_paths import suggest_path
from fedssl.data.download import find_path, searched_places
from fedssl.data.images import SOURCES, Dataset, Images, Source

Array = npt.NDArray[Any]
_READ_HEADER = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}
_MAX_COMPRESSION = 1100  # deflate packs at most 1,032 bytes into one


@SOURCES.register("npz")
class Npz(Source):
    """`path` (see `find_path`) of an archive with uint8 images (N, H, W, C) or (N, H, W)."""

    path: str

    def read(self, root: Path, notify: Notify) -> Dataset:
        path = find_path(self.path, root)
        if not path.exists():
            suggestion = suggest_path(self.path, Path.is_file, (root, Path()))
            raise DataError(f"there is no file {searched_places(self.path, root)}{suggestion}")
        return read_npz(path)


def read_npz(path: Path, classes: tuple[str, ...] = ()) -> Dataset:
    """Read the images of an archive; labels load on demand."""
    train = _read_images(path, "train", classes)
    if train is None:
        raise DataError(f"{path} has no x_train")
    test = _read_images(path, "test", classes)
    owner = _read_array(path, "owner_train")
    if owner is None:
        return Dataset(train, test)
    if owner.shape != (len(train),):
        raise DataError(
            f"owner_train of {path} must name one owner for each of {len(train)} images"
        )
    return Dataset(train, test, group_by_owner(owner))


def _read_images(path: Path, half: str, classes: tuple[str, ...]) -> Images | None:
    pixels = _read_array(path, f"x_{half}")
    if pixels is None:
        return None
    labels = _label_loader(path, f"y_{half}")
    return Images(channels_first(pixels, f"x_{half} of {path}"), labels, classes)


def group_by_owner(owner: Array) -> dict[str, Tensor]:
    """Return the indices of each owner's images, given the owner of each image (N,)."""
    names, numbers = np.unique(owner, return_inverse=True)
    groups = {}
    for k, name in enumerate(names):
        groups[str(name)] = torch.from_numpy(np.flatnonzero(numbers == k))
    return groups


def channels_first(array: Array, description: str) -> Tensor:
    """Convert uint8 (N, H, W, C) or (N, H, W) to a contiguous tensor (N, C, H, W)."""
    if array.ndim == 3:
        array = array[..., None]
    if array.dtype != np.uint8 or array.ndim != 4 or array.shape[-1] not in (1, 3):
        raise DataError(
            f"{description} must be uint8 of shape (N, H, W), (N, H, W, 1) or (N, H, W, 3), "
            f"not {array.dtype} of shape {array.shape}"
        )
    return torch.from_numpy(array).permute(0, 3, 1, 2).contiguous()


def _label_loader(path: Path, key: str) -> Callable[[], Tensor] | None:
    with _open_archive(path) as archive:
        if key not in archive.files:
            return None
    return partial(_load_labels, path, key)


def _load_labels(path: Path, key: str) -> Tensor:
    labels = _read_array(path, key)
    if labels is None or not np.issubdtype(labels.dtype, np.integer):
        raise DataError(f"{key} of {path} must hold integers")
    return torch.from_numpy(labels.astype(np.int64).reshape(-1))  # (N, 1) is common, too


def _read_array(path: Path, key: str) -> Array | None:
    with _open_archive(path) as archive:
        if key not in archive.files:
            return None
        try:
            _check_size(archive.zip, f"{key}.npy")
            array: Array = archive[key]
        except MemoryError:
            raise
        except Exception as error:  # zipfile, zlib and NumPy raise errors of many types
            raise DataError(f"{key} of {path} cannot be read ({error})") from None
        return array


def _check_size(archive: zipfile.ZipFile | None, name: str) -> None:
    """Raise ValueError unless an entry has the size that its header announces.

    This must run before NumPy allocates memory for it.
    """
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
        raise ValueError(
            f"its header announces {announced:,} bytes of data, but it has "
            f"{entry.file_size - start:,}"
        )
    if entry.file_size > _MAX_COMPRESSION * entry.compress_size:
        raise ValueError(
            f"it claims {entry.file_size:,} bytes, compressed to {entry.compress_size:,}"
        )


def _open_archive(path: Path) -> np.lib.npyio.NpzFile:
    try:
        # Checked first: NumPy would leave a damaged file open, and read any other into memory.
        zipfile.ZipFile(path).close()
        archive = np.load(path, allow_pickle=False)
    except FileNotFoundError:
        raise DataError(f"there is no file {path}") from None
    except MemoryError:
        raise
    except Exception:  # zipfile, zlib and NumPy raise errors of many types
        archive = None
    if not isinstance(archive, np.lib.npyio.NpzFile):
        raise DataError(f"{path} is not a NumPy archive (.npz)")
    return archive
