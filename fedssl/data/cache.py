"""Cache decoded images on disk: files are decoded once, and may exceed the memory.

A cache is a directory with three files. `pixels` holds uint8 (rows, C, size, size) and is mapped
into memory. `index` maps each image file to its row (see cache_index.py). `folder` holds the path
of the image files, for a user who looks for their cache.

Every start compares all pixels with the checksums in the index, and decodes damaged images again.
The row of an entry is never overwritten, so a process that has mapped it is not affected by later
changes: new files get unused rows. If an image file was changed or deleted, pixels and index are
replaced by copies without it, so that no pixels of deleted images are left on disk. The other rows
keep their numbers: if a kill prevents the second replacement, the old index fits the new pixels.
"""

from __future__ import annotations

import hashlib
import json
import os
import zlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import chain, count, islice
from math import prod
from pathlib import Path

import PIL
import torch
from torch import Tensor

from fedssl.core.console import Notify, meter
from fedssl.core.errors import ConfigError, DataError
from fedssl.core.files.atomic import replaced_file
from fedssl.core.files.lock import NAME as LOCK_NAME
from fedssl.core.files.lock import locked
from fedssl.data.cache_index import BadFile, DecodedFile, Entry, Stamp, format_line, read_index
from fedssl.data.decode import RULES, Array
from fedssl.data.decode_parallel import chunked, decode_into_file
from fedssl.data.decode_worker import Outcome, encode_path
from fedssl.data.image_pool import PixelRows
from fedssl.data.mapped_file import extended_file, map_images

PRIVATE = 0o600  # the mode of all files


def default_cache_dir() -> Path:
    """Return the directory for caches on this system, for this user."""
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if not base.is_absolute():
        base = Path.home() / ".cache"
    return base / "fedssl"


def decode_cached(
    folder: Path,
    names: Sequence[str],
    size: int,
    channels: int,
    *,
    background: int = 0,
    pad: bool = False,
    cache_dir: Path,
    notify: Notify,
) -> tuple[PixelRows, dict[int, str]]:
    """Return the pixels of the readable files, in order, decoding those that are not cached yet.

    Also return the reason for each unreadable file, by its position in `names`.
    """
    source = folder.resolve()
    cache_dir = cache_dir.expanduser().resolve()
    if _contains_visibly(source, cache_dir):
        raise ConfigError(
            f"data.cache: {cache_dir} is inside the image folder {folder}; choose a folder outside"
        )
    home = cache_dir / _cache_key(source, size, channels, background, pad)
    try:
        cache_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        home.mkdir(mode=0o700, exist_ok=True)
        with suppress(PermissionError):  # an earlier version, or a copy, may have another mode
            home.chmod(0o700)
        shape = (channels, size, size)
        cache = _Cache(source, home, shape, notify, background=background, pad=pad)
        return cache.read(names)
    except OSError as error:
        raise DataError(
            f"decoded images cannot be cached in {home} ({error.strerror}); free some space, "
            'set data.cache to another folder, or to "off" to decode into memory at every start'
        ) from error


def _contains_visibly(folder: Path, path: Path) -> bool:
    """True if `path` is in `folder`, unless it is hidden there: hidden files are not images."""
    if not path.is_relative_to(folder):
        return False
    return not any(part.startswith(".") for part in path.relative_to(folder).parts)


def _cache_key(source: Path, size: int, channels: int, background: int, pad: bool) -> str:
    identity = [str(source), size, channels, RULES]
    # Black and cropping were the only ones once, and their caches are still found.
    if background:
        identity.append(background)
    if pad:
        identity.append("pad")
    return hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:16]


class _Cache:
    """The cached images of one folder: of one size, number of channels, background and fit."""

    def __init__(
        self,
        source: Path,
        home: Path,
        image_shape: tuple[int, int, int],
        notify: Notify,
        *,
        background: int,
        pad: bool,
    ) -> None:
        self._source = source
        self._home = home
        self._image_shape = image_shape
        self._notify = notify
        self._background = background
        self._pad = pad
        self._pixels_path = home / "pixels"
        self._index_path = home / "index"
        self._folder_path = home / "folder"
        self._paths = {self._pixels_path, self._index_path, self._folder_path}

    def read(self, names: Sequence[str]) -> tuple[PixelRows, dict[int, str]]:
        """Return the pixels of the readable files, and the reasons for the others by position."""
        stamps = {name: _stamp(self._source / name) for name in names}
        with locked(self._home, self._notify) as lock:
            self._remove_other_files()
            self._write_folder()
            entries = self._usable_entries(stamps)
            missing = {name: stamp for name, stamp in stamps.items() if name not in entries}
            if missing:
                entries |= self._decode_missing(missing, entries, lock)
            return self._select(names, entries)

    def _remove_other_files(self) -> None:
        """Remove the files of a replacement that was killed, and those of earlier versions."""
        for path in [*self._home.glob("[!.]*"), *self._home.glob(".*.tmp")]:
            if path not in self._paths and path.name != LOCK_NAME:
                path.unlink()

    def _write_folder(self) -> None:
        """Write the path of the image files, unless the cache has it already."""
        path = os.fsencode(self._source)
        if not self._folder_path.is_file() or self._folder_path.read_bytes() != path:
            with replaced_file(self._folder_path, PRIVATE) as file:
                file.write(path)

    def _usable_entries(self, stamps: Mapping[str, Stamp]) -> dict[str, Entry]:
        """Return the entries of unchanged files; remove all others, from the disk too."""
        if not (self._index_path.is_file() and self._pixels_path.is_file()):
            self._replace({}, self._map_rows(0).numpy())
        entries, damaged = read_index(self._index_path)
        stored_rows = self._pixels_path.stat().st_size // prod(self._image_shape)
        pixels = self._map_rows(stored_rows).numpy()
        usable: dict[str, Entry] = {}
        for name, entry in entries.items():
            if entry.stamp != stamps.get(name):
                continue
            if _is_usable(entry, pixels):
                usable[name] = entry
            elif isinstance(entry, DecodedFile):
                damaged += 1
        if damaged:
            self._notify(f"{self._home}: {damaged:,} cached images are damaged and decoded again")
        if damaged or _decoded(entries).keys() - usable.keys():
            self._replace(usable, pixels)
        return usable

    def _replace(self, entries: Mapping[str, Entry], pixels: Array) -> None:
        """Replace both files by copies that hold only these entries."""
        with replaced_file(self._pixels_path, PRIVATE) as file:
            for decoded in _decoded(entries).values():
                file.seek(decoded.row * prod(self._image_shape))
                file.write(pixels[decoded.row].data)
        with replaced_file(self._index_path, PRIVATE) as file:
            for name, entry in entries.items():
                file.write(format_line(name, entry))

    def _decode_missing(
        self, missing: Mapping[str, Stamp], known: Mapping[str, Entry], lock: int
    ) -> dict[str, Entry]:
        """Decode files into unused rows, and append their entries to the index."""
        rows = _unused_rows(known, len(missing))
        paths = [encode_path(str(self._source / name)) for name in missing]
        jobs = chunked(list(zip(rows, paths, strict=True)))
        description = f"decoding {len(missing):,} images"
        if known:
            description += f", {len(known):,} are decoded already"
        channels, size, _ = self._image_shape
        entries: dict[str, Entry] = {}
        with (
            extended_file(self._pixels_path, prod(self._image_shape) * (rows[-1] + 1)) as target,
            self._index_path.open("ab", buffering=0) as index,  # a kill loses no line
            meter(description, len(missing), self._notify) as advance,
            decode_into_file(
                target,
                size,
                channels,
                jobs,
                lock=lock,
                background=self._background,
                pad=self._pad,
            ) as chunk_outcomes,
        ):
            outcomes = chain.from_iterable(chunk_outcomes)
            for (name, stamp), row, outcome in zip(missing.items(), rows, outcomes, strict=True):
                entry = _entry(stamp, row, outcome)
                index.write(format_line(name, entry))
                entries[name] = entry
                advance(1)
            os.fsync(target)  # some file systems report a full disk only now
        return entries

    def _select(
        self, names: Sequence[str], entries: Mapping[str, Entry]
    ) -> tuple[PixelRows, dict[int, str]]:
        """Return the rows of the decoded files, and the reasons for the others by position."""
        rows: list[int] = []
        bad: dict[int, str] = {}
        for position, name in enumerate(names):
            entry = entries[name]
            if isinstance(entry, DecodedFile):
                rows.append(entry.row)
            else:
                bad[position] = entry.reason
        pool = self._map_rows(max(rows, default=-1) + 1)
        if rows == list(range(len(pool))):
            return PixelRows(pool), bad
        return PixelRows(pool, torch.tensor(rows, dtype=torch.int64)), bad

    def _map_rows(self, rows: int) -> Tensor:
        return map_images(self._pixels_path, rows, self._image_shape)


def _stamp(path: Path) -> Stamp:
    try:
        status = path.stat()
    except OSError:
        return Stamp(-1, 0)  # just deleted: decoding will report it
    return Stamp(status.st_size, status.st_mtime_ns)


def _decoded(entries: Mapping[str, Entry]) -> dict[str, DecodedFile]:
    return {name: entry for name, entry in entries.items() if isinstance(entry, DecodedFile)}


def _is_usable(entry: Entry, pixels: Array) -> bool:
    """True if the pixels are intact, or, for an unreadable file, if Pillow is the same version.

    The pixels are read at 1 to 2 GiB/s. The start of a run also computes SHA-256 of them all, at
    half that speed. CRC-32 detects any change of up to 32 adjacent bits.
    """
    if isinstance(entry, BadFile):
        return entry.pillow == PIL.__version__
    return entry.row < len(pixels) and zlib.crc32(pixels[entry.row].data) == entry.checksum


def _unused_rows(known: Mapping[str, Entry], number: int) -> list[int]:
    """Return the lowest row numbers that no entry uses."""
    used = {entry.row for entry in _decoded(known).values()}
    unused = (row for row in count() if row not in used)
    return list(islice(unused, number))


def _entry(stamp: Stamp, row: int, outcome: Outcome) -> Entry:
    if isinstance(outcome, int):
        return DecodedFile(stamp, row, outcome)
    reason, lasting = outcome
    # An empty version matches no Pillow, so the file is tried again at the next start.
    return BadFile(stamp, reason, PIL.__version__ if lasting else "")
