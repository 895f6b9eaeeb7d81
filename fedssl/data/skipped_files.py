"""Report the files of a folder that are skipped."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from fedssl.core.console import Notify, hidden_names_note, names_are_shown, shortened
from fedssl.data.folder_listing import NOT_AN_IMAGE, kind_without_images

MAX_LISTED = 20  # skipped files that are listed by name


def report_skipped(
    skipped: Sequence[str], notify: Notify, list_all: Callable[[Sequence[str]], Path | None]
) -> None:
    """Report the files left out, each of them a line "reason: name".

    The first of these files are named; in logs of fedssl, they are only counted. `list_all` writes
    all lines to a private file and returns its path, or None.
    """
    left_out = []
    not_images = []
    for line in skipped:
        reason, _, name = line.partition(": ")
        if reason == NOT_AN_IMAGE:
            not_images.append(name)
        else:
            left_out.append(line)
    if not_images:
        notify(_not_images(not_images))
    if left_out:
        files = "1 file" if len(left_out) == 1 else f"{len(left_out)} files"
        lines = _summary(left_out, list_all(left_out))
        notify(f"left out {files}{hidden_names_note()}:\n  " + "\n  ".join(lines))


def _not_images(names: Sequence[str]) -> str:
    """Return a line about files that are no images: some names or, in logs, kinds of files."""
    shown = list(names)
    if not names_are_shown():
        shown = sorted({kind_without_images(name) or "" for name in names})
    text = ", ".join(shown[:3])
    if len(shown) > 3:
        text += ", …"
    if len(names) == 1:
        return f"skipped 1 file that is not an image ({text})"
    return f"skipped {len(names):,} files that are not images ({text})"


def _summary(skipped: Sequence[str], listed_in: Path | None) -> list[str]:
    """Return up to MAX_LISTED files by name or, in logs, the count for each reason."""
    if not names_are_shown():
        reasons = Counter(line.partition(": ")[0] for line in skipped)
        return [f"{reason}: {count}" for reason, count in sorted(reasons.items())]
    lines = shortened(skipped, MAX_LISTED)
    if len(lines) < len(skipped) and listed_in is not None:
        lines[-1] += f"; all are listed in {listed_in}"
    return lines
