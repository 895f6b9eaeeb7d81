"""Which files lie in a folder, without ever reaching, through a link, what is not its own."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from fedssl.data.progress import Say, meter
from fedssl.errors import DataError


def subfolders(folder: Path) -> list[str]:
    """Sorted names of the folders directly in this one, without hidden ones and links."""
    return sorted(entry.name for entry in _entries(folder) if entry.is_dir(follow_symlinks=False))


def index_files(folder: Path, top: Path, levels: int, apart: bool, say: Say) -> tuple[list[str], list[tuple[str, str]]]:
    """Sorted names of the files at least `levels` folders deep, and (reason, name) of what is left out.

    No link leads out of `folder`, from training to test images, or, with `apart`, from one folder in it to another: an
    image belongs to one client. It may lead into what is hidden in `top`, where nobody looks for images: tools that
    keep versions of large files have them there.
    """
    names: list[str] = []
    skipped: list[tuple[str, str]] = []
    root, whole = os.path.realpath(folder), os.path.join(os.path.realpath(top), "")
    with meter(f"listing files in {folder}", None, say) as advance:
        for name, entry in _walk(folder, ""):
            advance(1)
            first, deeper, _ = name.partition(os.sep)
            reason = _why_not(entry, os.path.join(root, first if apart and deeper else "", ""), whole)
            if reason is None and name.count(os.sep) < levels:
                reason = "outside the layout's folders"
            if reason is None:
                names.append(name)
            else:
                skipped.append((reason, name))
    return sorted(names), sorted(skipped)


def _walk(folder: Path, below: str) -> Iterator[tuple[str, os.DirEntry[str]]]:
    """Everything that is neither hidden nor a folder, each with its name relative to the folder."""
    for entry in _entries(folder, below):
        name = os.path.join(below, entry.name)
        if entry.is_dir(follow_symlinks=False):
            yield from _walk(folder, name)
        else:
            yield name, entry


def _entries(folder: Path, below: str = "") -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder / below) as entries:
            return [entry for entry in entries if not entry.name.startswith(".")]
    except OSError as failure:
        where, detail = ("a folder in ", f"it is {shown(below)}") if below else ("", "")
        raise DataError(f"{where}{shown(str(folder))} cannot be listed ({failure.strerror})", detail) from None


def _why_not(entry: os.DirEntry[str], inside: str, top: str) -> str | None:
    """Why a file must not be read, if so."""
    if entry.is_symlink():
        target = os.path.realpath(entry.path)
        hidden = target.startswith(top) and f"{os.sep}." in target[len(top) - 1 :]
        if not hidden and not os.path.join(target, "").startswith(inside):
            return "symbolic link out of the folder"
        if os.path.isdir(target):  # could lead in circles, and count images twice
            return "symbolic link to a folder"
    # Not entry.is_file(), which raises on links in a circle. Reading a pipe would wait for ever.
    return None if os.path.isfile(entry.path) else "not a regular file"


def shown(name: str) -> str:
    """A file name fit for one line of text: bytes that are no UTF-8 and control characters are escaped."""
    text = os.fsencode(name).decode("utf-8", "backslashreplace")
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
