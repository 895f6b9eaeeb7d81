"""Report the files of a folder that cannot be read as images."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from fedssl.core.console import hidden_names_note, shortened
from fedssl.core.errors import DataError
from fedssl.data.folder_listing import printable

LIST_NAME = "unreadable.txt"
LISTED_FILES = 20  # in the detail of an error
LISTED_OWNERS = 5  # in its sentence


def check_bad_share(
    folder: Path,
    names: Sequence[str],
    owners: Sequence[str],
    bad: Mapping[int, str],
    *,
    limit: float,
    list_dir: Path | None,
) -> None:
    """Raise if more than the share `limit` of an owner's files are unreadable.

    `owners` holds the client, or the whole folder, that each file counts for; `bad` the reason for
    each unreadable file, by its position. The error names some of them, and a file in `list_dir`
    names all.
    """
    files = Counter(owners)
    bad_files = Counter(owners[position] for position in bad)
    clauses = []
    needed = limit
    for owner, count in bad_files.items():
        share = count / files[owner]
        if share <= limit + 1e-9:  # 29 / 100 may be a little more than 0.29
            continue
        clauses.append(f"{owner}: {count} of {files[owner]} files")
        needed = max(needed, share)
    if not clauses:
        return
    lines = []
    for position, reason in bad.items():
        lines.append(f"{reason}: {printable(names[position])}")
    path = write_list(str(folder.resolve()), lines, list_dir)
    names_note = hidden_names_note()
    if path is not None:
        names_note = f"; all are listed in {path}"
    raise DataError(
        f"{', '.join(shortened(clauses, LISTED_OWNERS))} cannot be read as images ("
        f"{_count_reasons(bad)}), more than data.bad_share = {limit:g} allows: repair or remove "
        f"these files, or set data.bad_share = {_rounded_up(needed):g} to skip them{names_note}",
        "\n".join(shortened(lines, LISTED_FILES)),
    )


def _rounded_up(share: float) -> float:
    """Return a share rounded up to hundredths; 0.29 stays 0.29 despite floating point."""
    return math.ceil(100 * share - 1e-9) / 100


def _count_reasons(bad: Mapping[int, str]) -> str:
    counts = []
    for reason, count in sorted(Counter(bad.values()).items()):
        counts.append(f"{reason}: {count}")
    return ", ".join(counts)


def write_list(folder: str, lines: Sequence[str], list_dir: Path | None) -> Path | None:
    """Write all lines to a file that only this user can read; return None if that fails."""
    if list_dir is None:
        return None
    path = list_dir / LIST_NAME
    text = "\n".join([f"in {printable(folder)}", *lines])
    try:
        list_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.touch(mode=0o600)
        path.chmod(0o600)  # an existing file keeps its mode otherwise
        path.write_text(f"{text}\n", "utf-8")
    except OSError:
        return None
    return path
