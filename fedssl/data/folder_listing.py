"""List the files in a folder, without following a link to files outside of it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from fedssl.core.console import Notify, meter
from fedssl.core.errors import DataError

NOT_AN_IMAGE = "not an image by its name"
# Files that systems and people leave among images. All others are decoded, whatever their suffix:
# data in a format that cannot be read must not be skipped in silence.
_NAMES = {"thumbs.db", "desktop.ini", "readme", "license"}
_SYSTEM = {".db", ".ini", ".cfg", ".log", ".lnk", ".url"}
_TEXT = {".txt", ".md", ".rst", ".csv", ".tsv", ".json", ".jsonl", ".xml", ".yaml", ".yml", ".toml"}
_DOCUMENTS = {".pdf", ".doc", ".docx", ".xls", ".xlsx", ".ppt", ".pptx", ".rtf", ".htm", ".html"}
_CODE = {".py", ".ipynb", ".sh", ".bat"}
_SUFFIXES = _SYSTEM | _TEXT | _DOCUMENTS | _CODE


def subfolders(folder: Path) -> list[str]:
    """Return the sorted names of the folders directly in this one, except hidden ones and links."""
    return sorted(entry.name for entry in _entries(folder) if entry.is_dir(follow_symlinks=False))


def list_image_files(
    folder: Path, top: Path, levels: int, *, separate_subfolders: bool, notify: Notify
) -> tuple[list[str], list[tuple[str, str]]]:
    """Return the sorted names of the files at least `levels` folders deep.

    Also return (reason, name) of each file that is left out. A link must not lead out of `folder`,
    from training to test images, or, with `separate_subfolders`, from one folder in it to another:
    an image belongs to one client. A link may lead to a hidden place in `top`, where no images are
    listed: tools that version large files store them there.
    """
    names: list[str] = []
    skipped: list[tuple[str, str]] = []
    root = os.path.realpath(folder)
    real_top = os.path.join(os.path.realpath(top), "")
    with meter(f"listing files in {folder}", None, notify) as advance:
        for name, entry in _walk(folder, ""):
            advance(1)
            allowed = root
            first, separator, _ = name.partition(os.sep)
            if separate_subfolders and separator:
                allowed = os.path.join(root, first)
            reason = _reason_to_skip(entry, os.path.join(allowed, ""), real_top)
            if reason is None and kind_without_images(entry.name):
                reason = NOT_AN_IMAGE
            if reason is None and name.count(os.sep) < levels:
                reason = "outside the layout's folders"
            if reason is None:
                names.append(name)
            else:
                skipped.append((reason, name))
    return sorted(names), sorted(skipped)


def kind_without_images(name: str) -> str | None:
    """Return the kind of a file that plainly is no image, by its name or suffix; else None."""
    lower = os.path.basename(name).lower()
    if lower in _NAMES:
        return lower
    suffix = os.path.splitext(lower)[1]
    if suffix in _SUFFIXES:
        return suffix
    return None


def _walk(folder: Path, below: str) -> Iterator[tuple[str, os.DirEntry[str]]]:
    """Yield every visible entry that is not a folder, with its name relative to the folder."""
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
    except OSError as error:
        message = f"{printable(str(folder))} cannot be listed ({error.strerror})"
        if not below:
            raise DataError(message) from None
        raise DataError(f"a folder in {message}", f"it is {printable(below)}") from None


def _reason_to_skip(entry: os.DirEntry[str], allowed: str, top: str) -> str | None:
    """Return why a file must not be read, or None; `allowed` and `top` end with a separator."""
    if entry.is_symlink():
        target = os.path.realpath(entry.path)
        is_hidden = target.startswith(top) and f"{os.sep}." in target[len(top) - 1 :]
        if not is_hidden and not os.path.join(target, "").startswith(allowed):
            return "symbolic link out of the folder"
        if os.path.isdir(target):  # may lead in circles, and count images twice
            return "symbolic link to a folder"
    # Not entry.is_file(), which raises on circular links. Reading a pipe would block for ever.
    return None if os.path.isfile(entry.path) else "not a regular file"


def printable(name: str) -> str:
    """Return a file name for one line of text: invalid UTF-8 and control characters are escaped."""
    text = os.fsencode(name).decode("utf-8", "backslashreplace")
    return "".join(map(_escape_unprintable, text))


def _escape_unprintable(character: str) -> str:
    if character.isprintable():
        return character
    return character.encode("unicode_escape").decode()
