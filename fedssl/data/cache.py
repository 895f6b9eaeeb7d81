"""Cache decoded images on disk: files are decoded once, and may exceed the memory.

A cache is a directory with two files. `pixels-N.u8` holds uint8 (rows, C, size, size) and is mapped
into memory. `ledger` maps each image file to its row (see cache_index.py). Rows in the ledger are
never overwritten, so a process that has mapped them is not affected by later changes: new files get
unused rows. Once a file has been changed or deleted, the remaining rows are copied to the next
`pixels-N.u8`, so that no pixels of deleted images are left on disk.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
import zlib
from collections.abc import Mapping, Sequence
from itertools import chain, count, islice
from math import prod
from pathlib import Path

import PIL
import torch
from torch import Tensor

from fedssl.core.console import Notify, meter
from fedssl.core.errors import ConfigError, DataError
from fedssl.core.files.lock import locked
from fedssl.data import cache_index
from fedssl.data.cache_index import BadFile, DecodedFile, Entry, Stamp
from fedssl.data.decode import RULES
from fedssl.data.decode_parallel import chunked, decode_into_file
from fedssl.data.decode_worker import Outcome, encode_path
from fedssl.data.image_pool import Rows
from fedssl.data.mapped_file import extended_file, map_images

SAVE_INTERVAL = 1.0  # seconds; the work that a kill may lose
_COPY_ROWS = 1024  # rows copied at a time


def default_cache_dir() -> Path:
    """Return the directory for caches on this system, for this user."""
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if not base.is_absolute():
        base = Path.home() / ".cache"
    return base / "fedssl"


def decode_cached(
    folder: Path, names: Sequence[str], size: int, channels: int, *, cache_dir: Path, notify: Notify
) -> tuple[Rows, dict[int, str]]:
    """Return the pixels of the readable files, in order, decoding those that are not cached yet.

    Also return the reason for each unreadable file, by its position in `names`.
    """
    source = folder.resolve()
    cache_dir = cache_dir.expanduser().resolve()
    if _contains_visibly(source, cache_dir):
        raise ConfigError(
            f"data.cache: {cache_dir} is inside the image folder {folder}; choose a folder outside"
        )
    home = cache_dir / _cache_key(source, size, channels)
    try:
        cache_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        home.mkdir(mode=0o700, exist_ok=True)
        return _Cache(source, home, (channels, size, size), notify).read(names)
    except OSError as error:
        raise DataError(
            f"decoded images cannot be kept in {home} ({error.strerror}); free some space, "
            'set data.cache to another folder, or to "off" to decode into memory at every start'
        ) from error


def _contains_visibly(folder: Path, path: Path) -> bool:
    """True if `path` is in `folder`, unless it is hidden there: hidden files are not images."""
    if not path.is_relative_to(folder):
        return False
    return not any(part.startswith(".") for part in path.relative_to(folder).parts)


def _cache_key(source: Path, size: int, channels: int) -> str:
    text = json.dumps([str(source), size, channels, RULES])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


class _Cache:
    """The cached images of one folder, at one size and number of channels."""

    def __init__(
        self, source: Path, home: Path, image_shape: tuple[int, int, int], notify: Notify
    ) -> None:
        self._source = source
        self._home = home
        self._image_shape = image_shape
        self._say = notify
        self._ledger_path = home / "ledger"
        self._pixels_path = home / "none"  # set by `_read_ledger` or `_rewrite`

    def read(self, names: Sequence[str]) -> tuple[Rows, dict[int, str]]:
        """Return the pixels of the readable files, and the reasons for the others by position."""
        stamps = {name: _stamp(self._source / name) for name in names}
        with locked(self._home, self._say) as lock:
            entries = self._read_ledger(stamps)
            missing = {name: stamp for name, stamp in stamps.items() if name not in entries}
            if missing:
                entries |= self._decode_missing(missing, entries, lock)
            row_list: list[int] = []
            bad: dict[int, str] = {}
            for position, name in enumerate(names):
                entry = entries[name]
                if isinstance(entry, DecodedFile):
                    row_list.append(entry.row)
                else:
                    bad[position] = entry.reason
            pool_size = max(row_list, default=-1) + 1
            pool = self._map_rows(pool_size)
        if row_list == list(range(pool_size)):
            return Rows(pool), bad
        return Rows(pool, torch.tensor(row_list, dtype=torch.int64)), bad

    def _read_ledger(self, stamps: Mapping[str, Stamp]) -> dict[str, Entry]:
        """Return the entries of unchanged files; remove all others, from the disk too."""
        ledger = cache_index.read(self._ledger_path)
        if ledger is None:
            if self._ledger_path.is_file():
                self._say(f"{self._ledger_path} is damaged: all images are decoded again")
            return self._rewrite({}, self._map_rows(0))
        self._pixels_path = self._home / ledger.pixels_file
        stored_rows = self._stored_rows()
        pool = self._map_rows(stored_rows)
        current = {
            name: entry
            for name, entry in ledger.entries.items()
            if entry.stamp == stamps.get(name) and _is_usable(entry, stored_rows)
        }
        current = self._drop_damaged(current, pool)
        if ledger.damaged:
            self._say(
                f"{self._ledger_path} is damaged or was cut short: "
                "the images it lacks are decoded again"
            )
        if ledger.damaged or _decoded(ledger.entries).keys() - current.keys():
            return self._rewrite(current, pool)
        self._remove_other_pixels()
        if ledger.unconfirmed:
            cache_index.append(self._ledger_path, {}, complete=True)
        return current

    def _stored_rows(self) -> int:
        if not self._pixels_path.is_file():
            return 0
        return self._pixels_path.stat().st_size // prod(self._image_shape)

    def _drop_damaged(self, entries: Mapping[str, Entry], pool: Tensor) -> dict[str, Entry]:
        decoded = _decoded(entries)
        damaged = _damaged_names(pool, decoded)
        if damaged:
            self._say(
                f"{self._home}: {len(damaged):,} of {len(decoded):,} decoded images are damaged "
                "and decoded again"
            )
        return {name: entry for name, entry in entries.items() if name not in damaged}

    def _rewrite(self, entries: Mapping[str, Entry], pool: Tensor) -> dict[str, Entry]:
        """Copy the rows of these entries to a new pixels file, and replace the ledger."""
        numbers = [int(path.stem.partition("-")[2]) for path in self._home.glob("pixels-*.u8")]
        self._pixels_path = self._home / f"pixels-{1 + max(numbers, default=-1)}.u8"
        decoded = _decoded(entries)
        rows = sorted(entry.row for entry in decoded.values())
        new_rows = {row: position for position, row in enumerate(rows)}
        new_entries = dict(entries)
        for name, entry in decoded.items():
            new_entries[name] = entry._replace(row=new_rows[entry.row])
        try:
            with cache_index.create_private(self._pixels_path) as file:
                kept = Rows(pool, torch.tensor(rows, dtype=torch.int64))
                for block in kept.chunks(_COPY_ROWS):
                    file.write(block.numpy().data)
                file.flush()
                os.fsync(file.fileno())
            cache_index.replace(
                self._ledger_path, self._pixels_path.name, self._source, entries=new_entries
            )
        except OSError:
            self._pixels_path.unlink(missing_ok=True)
            raise
        self._remove_other_pixels()
        return new_entries

    def _remove_other_pixels(self) -> None:
        """Remove pixels files that the ledger does not name: old ones, or those of a kill."""
        for path in self._home.glob("pixels-*.u8"):
            if path != self._pixels_path:
                path.unlink()

    def _decode_missing(
        self, missing: Mapping[str, Stamp], known: Mapping[str, Entry], lock: int
    ) -> dict[str, Entry]:
        """Decode files into unused rows; save their entries once per SAVE_INTERVAL."""
        rows = _unused_rows(known, len(missing))
        paths = [encode_path(str(self._source / name)) for name in missing]
        jobs = chunked(list(zip(rows, paths, strict=True)))
        description = f"decoding {len(missing):,} images"
        if known:
            description += f", {len(known):,} are decoded already"
        channels, size, _ = self._image_shape
        saved: dict[str, Entry] = {}
        unsaved: dict[str, Entry] = {}
        with (
            extended_file(self._pixels_path, prod(self._image_shape) * (rows[-1] + 1)) as target,
            meter(description, len(missing), self._say) as advance,
            decode_into_file(target, size, channels, jobs, lock=lock) as chunk_outcomes,
        ):
            outcomes = chain.from_iterable(chunk_outcomes)
            saved_at = time.monotonic()
            for (name, stamp), row, outcome in zip(missing.items(), rows, outcomes, strict=True):
                unsaved[name] = _entry(stamp, row, outcome)
                advance(1)
                if time.monotonic() - saved_at >= SAVE_INTERVAL:
                    self._save(target, unsaved)
                    saved |= unsaved
                    unsaved = {}
                    saved_at = time.monotonic()
            self._save(target, unsaved, complete=True)
        return saved | unsaved

    def _save(self, target: int, entries: Mapping[str, Entry], complete: bool = False) -> None:
        os.fsync(target)  # the pixels reach the disk before the lines that refer to them
        cache_index.append(self._ledger_path, entries, complete=complete)

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


def _is_usable(entry: Entry, stored_rows: int) -> bool:
    """True if the pixels exist, or, for an unreadable file, if Pillow is the same version."""
    if isinstance(entry, DecodedFile):
        return entry.row < stored_rows
    return entry.pillow == PIL.__version__


def _unused_rows(known: Mapping[str, Entry], number: int) -> list[int]:
    """Return the lowest row numbers that no entry uses."""
    used = {entry.row for entry in _decoded(known).values()}
    unused = (row for row in count() if row not in used)
    return list(islice(unused, number))


def _damaged_names(pool: Tensor, decoded: Mapping[str, DecodedFile]) -> set[str]:
    """Return the names of images whose pixels do not match their checksum.

    Every image is read, at 1 to 2 GiB/s. The start of a run also computes SHA-256 of them all, at
    half that speed. CRC-32 detects any change of up to 32 adjacent bits.
    """
    pixels = pool.numpy()
    disk_order = sorted(decoded.items(), key=lambda item: item[1].row)
    return {name for name, entry in disk_order if zlib.crc32(pixels[entry.row]) != entry.checksum}


def _entry(stamp: Stamp, row: int, outcome: Outcome) -> Entry:
    if isinstance(outcome, int):
        return DecodedFile(stamp, row, outcome)
    reason, lasting = outcome
    # An empty version matches no Pillow, so the file is tried again at the next start.
    return BadFile(stamp, reason, PIL.__version__ if lasting else "")
