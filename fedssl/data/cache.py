"""Decoded images kept on disk, so that a folder's files are decoded once and need not fit into memory.

A cache is a directory: `pixels-N.u8`, uint8 (rows, C, size, size) that are mapped into memory, and `ledger`, which says
which file each row is of. Rows that the ledger names are never written to again: whoever has mapped them goes on
unharmed. New files get rows that it does not name. Once a file has changed or gone, the rows that stay are copied to
the next `pixels-N.u8`, so that nothing is left of images their owner deleted.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
import zlib
from collections.abc import Mapping, Sequence
from itertools import count, islice
from pathlib import Path

import PIL
import torch
from torch import Tensor

from fedssl.data import ledger
from fedssl.data.decode import RULES, Outcome, wire_path
from fedssl.data.decoders import chunked, filling
from fedssl.data.ledger import Bad, Entry, Kept, Stamp
from fedssl.data.mapped import lengthened, mapped
from fedssl.data.progress import Say, meter
from fedssl.errors import ConfigError, DataError
from fedssl.lock import locked
from fedssl.pixels import Rows

SECONDS = 1.0  # of work that a kill may cost
_BLOCK = 1024  # rows copied at a time


def default_place() -> Path:
    """Where caches belong to on this system, for this user."""
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (base if base.is_absolute() else Path.home() / ".cache") / "fedssl"


def cached(
    folder: Path, names: Sequence[str], size: int, channels: int, place: Path, say: Say
) -> tuple[Rows, dict[int, str]]:
    """Pixels of the files that can be read, in order, and the places in `names` of the others with their reasons."""
    source, place = folder.resolve(), place.expanduser().resolve()
    if place.is_relative_to(source) and not any(p.startswith(".") for p in place.relative_to(source).parts):
        raise ConfigError(f"data.cache: {place} lies among the images in {folder}; choose a folder outside")
    key = hashlib.sha256(json.dumps([str(source), size, channels, RULES]).encode()).hexdigest()[:16]
    try:
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        (place / key).mkdir(mode=0o700, exist_ok=True)
        return _Cache(source, place / key, (channels, size, size), say).read(names)
    except OSError as failure:
        raise DataError(
            f"decoded images cannot be kept in {place / key} ({failure.strerror}); make room, set data.cache to "
            'another folder, or to "off" to decode into memory at every start'
        ) from failure


class _Cache:
    def __init__(self, source: Path, home: Path, image: tuple[int, int, int], say: Say) -> None:
        self._source, self._home, self._image, self._say = source, home, image, say
        self._bytes = image[0] * image[1] * image[2]
        self._ledger = home / "ledger"
        self._pixels = home / "none"

    def read(self, names: Sequence[str]) -> tuple[Rows, dict[int, str]]:
        wanted = {name: _stamp(self._source / name) for name in names}
        with locked(self._home, self._say) as lock:
            entries = self._still_true(wanted)
            missing = {name: stamp for name, stamp in wanted.items() if name not in entries}
            if missing:
                entries |= self._add(missing, entries, lock)
            found = [entries[name] for name in names]
            rows = torch.tensor([entry.row for entry in found if isinstance(entry, Kept)], dtype=torch.int64)
            count = int(rows.max()) + 1 if len(rows) else 0
            pool = self._mapped(count)
        bad = {place: entry.reason for place, entry in enumerate(found) if isinstance(entry, Bad)}
        everything = torch.equal(rows, torch.arange(count))
        return Rows(pool, None if everything else rows), bad

    def _still_true(self, wanted: Mapping[str, Stamp]) -> dict[str, Entry]:
        """What is known of these files as they are now; all else is forgotten, on the disk too."""
        book = ledger.read(self._ledger)
        if book is None:
            if self._ledger.is_file():
                self._say(f"{self._ledger} is damaged: all images are decoded again")
            return self._start_anew({}, self._mapped(0))
        self._pixels = self._home / book.pixels
        rows = self._pixels.stat().st_size // self._bytes if self._pixels.is_file() else 0
        pool = self._mapped(rows)

        def current(name: str, entry: Entry) -> bool:
            if wanted.get(name) != entry.stamp:
                return False
            # A newer Pillow may read the file.
            return entry.row < rows if isinstance(entry, Kept) else entry.pillow == PIL.__version__

        true = {name: entry for name, entry in book.entries.items() if current(name, entry)}
        kept = {name: entry for name, entry in true.items() if isinstance(entry, Kept)}
        damaged = _damaged(pool, kept)
        if damaged:
            self._say(f"{self._home}: {len(damaged):,} of {len(kept):,} decoded images are damaged and decoded again")
            true = {name: entry for name, entry in true.items() if name not in damaged}
        lost = any(isinstance(entry, Kept) and name not in true for name, entry in book.entries.items())
        if book.torn:
            self._say(f"{self._ledger} is damaged or was cut short: what it lacks is decoded again")
        if lost or book.torn:
            return self._start_anew(true, pool)
        self._sweep()
        if book.unsure:
            ledger.append(self._ledger, {}, whole=True)
        return true

    def _start_anew(self, entries: Mapping[str, Entry], pool: Tensor) -> dict[str, Entry]:
        """Copy the rows of these entries, and nothing else, to a new file, and let the ledger speak of that one."""
        numbers = [int(path.stem.partition("-")[2]) for path in self._home.glob("pixels-*.u8")]
        self._pixels = self._home / f"pixels-{1 + max(numbers, default=-1)}.u8"
        kept = {name: entry for name, entry in entries.items() if isinstance(entry, Kept)}
        rows = torch.tensor(sorted(entry.row for entry in kept.values()), dtype=torch.int64)
        try:
            with os.fdopen(os.open(self._pixels, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                for block in Rows(pool, rows).chunks(_BLOCK):
                    file.write(block.numpy().data)
                file.flush()
                os.fsync(file.fileno())
            place = {row: k for k, row in enumerate(rows.tolist())}
            moved = {name: entry._replace(row=place[entry.row]) for name, entry in kept.items()}
            true: dict[str, Entry] = {**entries, **moved}
            ledger.replace(self._ledger, self._pixels.name, self._source, true)
        except OSError:
            self._pixels.unlink(missing_ok=True)
            raise
        self._sweep()
        return true

    def _sweep(self) -> None:
        """Remove all pixels but those the ledger speaks of: an old file, or what a kill left of a new one."""
        for path in self._home.glob("pixels-*.u8"):
            if path != self._pixels:
                path.unlink()

    def _add(self, new: Mapping[str, Stamp], known: Mapping[str, Entry], lock: int) -> dict[str, Entry]:
        """Decode files into rows that no entry names; about once a second the ledger learns of what is done."""
        used = {entry.row for entry in known.values() if isinstance(entry, Kept)}
        rows = list(islice((row for row in count() if row not in used), len(new)))
        jobs = [(row, wire_path(str(self._source / name))) for row, name in zip(rows, new, strict=True)]
        what = f"decoding {len(new):,} images" + (f", {len(known):,} are decoded already" if known else "")
        added: dict[str, Entry] = {}
        fresh: dict[str, Entry] = {}
        with (
            lengthened(self._pixels, self._bytes * (rows[-1] + 1)) as target,
            meter(what, len(new), self._say) as advance,
            filling(target, self._image[1], self._image[0], chunked(jobs), lock) as answers,
        ):
            outcomes, saved = (outcome for answer in answers for outcome in answer), time.monotonic()
            for (name, stamp), row, outcome in zip(new.items(), rows, outcomes, strict=True):
                fresh[name] = _entry(stamp, row, outcome)
                advance(1)
                if time.monotonic() - saved >= SECONDS:
                    self._save(target, fresh)
                    added |= fresh
                    fresh, saved = {}, time.monotonic()
            self._save(target, fresh, whole=True)
        return added | fresh

    def _save(self, target: int, entries: Mapping[str, Entry], whole: bool = False) -> None:
        os.fsync(target)  # first the pixels, then the lines that speak of them
        ledger.append(self._ledger, entries, whole=whole)

    def _mapped(self, rows: int) -> Tensor:
        return mapped(self._pixels, rows, self._image)


def _stamp(path: Path) -> Stamp:
    try:
        found = path.stat()
    except OSError:
        return Stamp(-1, 0)  # it has just gone: decoding will say so
    return Stamp(found.st_size, found.st_mtime_ns)


def _damaged(pool: Tensor, kept: Mapping[str, Kept]) -> set[str]:
    """Return the names of images whose pixels do not match their checksum.

    Every image is read, at 1 to 2 GiB/s. The start of a run also computes SHA-256 of them all, at half that speed.
    CRC-32 detects any change of up to 32 adjacent bits.
    """
    pixels = pool.numpy()
    in_order = sorted(kept.items(), key=lambda item: item[1].row)  # as they are on the disk
    return {name for name, entry in in_order if zlib.crc32(pixels[entry.row]) != entry.checksum}


def _entry(stamp: Stamp, row: int, outcome: Outcome) -> Entry:
    if isinstance(outcome, int):
        return Kept(stamp, row, outcome)
    reason, lasting = outcome
    return Bad(stamp, reason, PIL.__version__ if lasting else "")  # no Pillow is called that: tried again next time
