"""The lines of a drafted experiment on how images become squares, and over which colour."""

from __future__ import annotations

from fedssl.data.inspect_folder import FolderSummary


def choose_background(summary: FolderSummary) -> tuple[str, str] | None:
    """Return the background colour and the reason for it; None if the images show none."""
    if summary.mostly_transparent:
        count = f"{summary.transparent:,} of {summary.readable:,}"
        return "white", f"{count} sampled images can have transparent pixels"
    if summary.fit == "crop":
        return None
    if summary.light_edges:
        return "white", "most images have light edges"
    return "black", "most images have dark edges"


def side_text(summary: FolderSummary) -> str:
    """Return the median of the sides that are scaled to `data.size`, as a clause."""
    if summary.fit == "pad":
        return f"half of the images are at least {summary.side} long"
    return f"half of the images have at least {summary.side}"


def fit_lines(summary: FolderSummary) -> list[str]:
    """Return the settings on padding and the background, if any, and the reasons for them."""
    lines = []
    if summary.fit == "pad":
        lines += [
            f"# Half of the images would lose {summary.lost:.0%} of their area or more if they",
            '# were cropped to squares, which is the default, "crop".',
            'fit = "pad"  # all of each image, on a square of the background colour',
        ]
    background = choose_background(summary)
    if background is None:
        return lines
    colour, reason = background
    if summary.mostly_transparent:
        lines += [
            f"# {reason}. Dark",
            '# drawings would vanish over "black", the default; light ones vanish over "white".',
        ]
    else:
        lines.append(f"# {reason.capitalize()}, next to which the border is.")
    return [*lines, f'background = "{colour}"']
