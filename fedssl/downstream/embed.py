"""Features of all images in a folder, in memory or written to a file as they are computed."""

from __future__ import annotations

import csv
import io
import zipfile
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryFile
from typing import BinaryIO, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedssl.core.console import Notify, print_to_stderr
from fedssl.core.errors import ConfigError
from fedssl.core.files.atomic import replaced_file
from fedssl.core.similar_paths import suggest_path
from fedssl.downstream.backbone import TrainedBackbone
from fedssl.downstream.image_folder import ImageFolder

SUFFIXES = (".npz", ".csv")
COPY_BYTES = 1 << 22


class Embeddings(NamedTuple):
    """Features of the images of a folder."""

    names: list[str]  # of the files, below the folder
    features: Tensor  # float32 (n, dim), on the CPU
    fingerprint: str  # of the backbone: equal ones give equal features
    skipped: tuple[str, ...] = ()  # "reason: name" of each file left out


class Written(NamedTuple):
    """A file of features."""

    path: Path
    images: int
    skipped: tuple[str, ...]


def embed(
    backbone: TrainedBackbone, folder: str | Path, *, notify: Notify = print_to_stderr
) -> Embeddings:
    """Return the features of all images in a folder and its subfolders.

    Files that cannot be read are skipped and reported. Raise DataError if no image can be read.
    """
    images = ImageFolder(folder, notify)
    names: list[str] = []
    features: list[Tensor] = []
    for batch in images.batches(backbone.preprocess):
        names += batch.names
        features.append(backbone.features_of_pixels(batch.pixels))
    return Embeddings(names, torch.cat(features), backbone.fingerprint(), tuple(images.skipped))


def write_embeddings(
    backbone: TrainedBackbone,
    folder: str | Path,
    path: str | Path,
    *,
    notify: Notify = print_to_stderr,
) -> Written:
    """Write the features of all images in a folder; memory does not grow with their number.

    `.npz` holds the arrays `features` (n, dim), `names` and `backbone`, the fingerprint; `.csv` has
    a header and a line for each file. Nothing is written if no image can be read.
    """
    path = Path(path)
    check_suffix(path)
    images = ImageFolder(folder, notify)
    count = 0
    with replaced_file(path) as file:
        if path.suffix == ".csv":
            count = _write_csv(backbone, images, file)
        else:
            count = _write_npz(backbone, images, file)
    return Written(path, count, tuple(images.skipped))


def check_suffix(path: Path) -> None:
    """Raise ConfigError unless a path ends in the name of a format."""
    if path.suffix not in SUFFIXES:
        raise ConfigError(f"{path} cannot be written: the name must end in {' or '.join(SUFFIXES)}")


def read_embeddings(path: str | Path) -> Embeddings:
    """Return the features in a .npz file that `fedssl embed` wrote; nothing is unpickled."""
    check_features(path)
    try:
        with np.load(path, allow_pickle=False) as arrays:
            names = list(map(str, arrays["names"]))
            features = torch.from_numpy(arrays["features"])
            fingerprint = str(arrays["backbone"])
    except (OSError, ValueError, KeyError, zipfile.BadZipFile) as problem:
        raise ConfigError(
            f"{path} is not a file of features ({problem}): write it with `fedssl embed`"
        ) from None
    return Embeddings(names, features, fingerprint)


def check_features(path: str | Path) -> None:
    """Raise ConfigError if a path is not a .npz file."""
    if not Path(path).exists():
        raise ConfigError(f"there is no folder or file {path}{suggest_path(path)}")
    if Path(path).suffix != ".npz":
        raise ConfigError(f"{path} is neither a folder of images nor the features.npz of one")


def _features(
    backbone: TrainedBackbone, images: ImageFolder
) -> Iterator[tuple[list[str], np.ndarray]]:
    for batch in images.batches(backbone.preprocess):
        yield batch.names, backbone.features_of_pixels(batch.pixels).numpy()


def _write_csv(backbone: TrainedBackbone, images: ImageFolder, file: BinaryIO) -> int:
    # File names of other encodings keep their bytes.
    text = io.TextIOWrapper(file, "utf-8", errors="surrogateescape", newline="")
    writer = csv.writer(text)
    writer.writerow(["file", *(f"f{number}" for number in range(backbone.dim))])
    count = 0
    for names, features in _features(backbone, images):
        for name, row in zip(names, features, strict=True):
            writer.writerow([name, *(f"{value:.9g}" for value in row.tolist())])
        count += len(names)
    text.detach()  # flushes, and leaves the file open
    return count


def _write_npz(backbone: TrainedBackbone, images: ImageFolder, file: BinaryIO) -> int:
    """Write the arrays; features pass through a temporary file, since their number comes first."""
    all_names: list[str] = []
    with TemporaryFile() as raw:
        for names, features in _features(backbone, images):
            raw.write(np.ascontiguousarray(features, "<f4").tobytes())
            all_names += names
        raw.seek(0)
        header = {
            "descr": "<f4",
            "fortran_order": False,
            "shape": (len(all_names), backbone.dim),
        }
        with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
            with archive.open("features.npy", "w", force_zip64=True) as entry:
                np.lib.format.write_array_header_2_0(entry, header)
                while data := raw.read(COPY_BYTES):
                    entry.write(data)
            _add_array(archive, "names", np.array(all_names, dtype=np.str_))
            _add_array(archive, "backbone", np.array(backbone.fingerprint(), dtype=np.str_))
    return len(all_names)


def _add_array(archive: zipfile.ZipFile, name: str, array: np.ndarray) -> None:
    with archive.open(f"{name}.npy", "w", force_zip64=True) as entry:
        np.lib.format.write_array(entry, array, allow_pickle=False)
