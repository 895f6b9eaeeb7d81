"""Keep the results of a run that is measured again with other settings, images or labels.

earlier/1/, earlier/2/, …   results.json, classes.json, outcomes.safetensors and picture.png of
                            the first measurement, the second, …
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedssl.core.console import Notify
from fedssl.core.files import integrity

FOLDER = "earlier"
# Keys of results.json that describe a measurement.
DESCRIPTION = ("experiment", "rounds", "test_images", "labels", "knn_settings")


def set_aside(folder: Path, new: Mapping[str, Any], notify: Notify) -> None:
    """Move the results in a run directory to `earlier/`, unless the new ones repeat them.

    `new` describes the measurement that follows. Results that it repeats, because a baseline or a
    picture is missing, are replaced.
    """
    old = _read_results(folder)
    if old is None:
        (folder / "picture.png").unlink(missing_ok=True)
        return
    if old.get("table") and not _same_measurement(old, new) and not _is_kept(folder, old):
        place = _next_place(folder)
        place.mkdir(parents=True)
        for name in integrity.OUTPUTS:
            if (folder / name).is_file():
                (folder / name).replace(place / name)
        notify(f"measuring the run again, without training; earlier results: {place}")
        return
    (folder / "picture.png").unlink(missing_ok=True)  # it shows what is measured again
    notify("measuring the run again, without training")


def _read_results(folder: Path) -> dict[str, Any] | None:
    """Return the content of results.json; None if it is missing or damaged."""
    try:
        results: dict[str, Any] = json.loads((folder / "results.json").read_bytes())
    except (OSError, ValueError):
        return None
    return results


def _same_measurement(old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    return all(old.get(key) == new.get(key) for key in DESCRIPTION)


def _is_kept(folder: Path, results: Mapping[str, Any]) -> bool:
    """True if equal results were kept before: the settings change back and forth."""
    kept = map(_read_results, (folder / FOLDER).glob("*"))
    return results in list(kept)


def _next_place(folder: Path) -> Path:
    numbers = [0]
    for path in (folder / FOLDER).glob("*"):
        if path.name.isdigit():
            numbers.append(int(path.name))
    return folder / FOLDER / str(max(numbers) + 1)
