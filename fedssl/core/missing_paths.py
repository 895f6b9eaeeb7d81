"""Messages for paths at which there is no file or folder, or one of the wrong kind."""

from __future__ import annotations

from pathlib import Path

from fedssl.core.similar_paths import Accept, suggest_path


def no_folder(path: str | Path, hint: str = "") -> str:
    """Return why a path is not a folder, with the hint if no similar folder exists."""
    if Path(path).exists():
        return f"{path} is a file, not a folder"
    return f"there is no folder {path}{suggest_path(path, Path.is_dir) or hint}"


def no_file(path: str | Path, accept: Accept = Path.is_file) -> str:
    """Return why a path is not a file, with similar files that `accept` is true for."""
    if Path(path).is_dir():
        return f"{path} is a folder, not a file"
    return f"there is no file {path}{suggest_path(path, accept)}"
