"""Keep the results of a run that is measured again with other settings, images or labels.

earlier/1/, earlier/2/, …   results.json, classes.json, outcomes.safetensors and picture.png of
                            earlier measurements, and integrity.jsonl with their hashes

If the run is to be measured as before, the kept results come back: they are exchanged for the
current ones. A folder without hashes, or with a changed byte, is never used.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fedssl.core.console import Notify
from fedssl.core.errors import RunError
from fedssl.core.files import integrity
from fedssl.core.files.atomic import write_atomic
from fedssl.evaluation.outcomes import OUTCOMES

FOLDER = "earlier"
# Keys of results.json that describe a measurement.
DESCRIPTION = ("experiment", "rounds", "test_images", "labels", "knn_settings")
NEEDED = ("results.json", "classes.json", OUTCOMES)  # of kept results, to restore them


def set_aside(folder: Path, new: Mapping[str, Any], notify: Notify) -> None:
    """Move the results in a run directory to `earlier/`, unless the new ones repeat them.

    `new` describes the measurement that follows. Results that it repeats, because a baseline is
    missing, are replaced.
    """
    old = _read_results(folder)
    if old is None:
        (folder / "picture.png").unlink(missing_ok=True)
        return
    if not _same_measurement(old, new):
        place = _keep(folder)
        if place is not None:
            for name in integrity.OUTPUTS:
                (folder / name).unlink(missing_ok=True)
            notify(f"measuring the run again, without training; earlier results: {place}")
            return
    (folder / "picture.png").unlink(missing_ok=True)  # it shows what is measured again
    notify("measuring the run again, without training")


def restore(folder: Path, wanted: Callable[[Mapping[str, Any]], bool], notify: Notify) -> bool:
    """Exchange the results in a run directory for kept ones that are wanted; False if none are.

    After a kill at any point the same call succeeds: results.json is replaced last, and kept
    results are removed when their copies are complete.
    """
    place = _find(folder, wanted)
    if place is None:
        return False
    kept = _keep(folder)
    integrity.forget_hashes(folder, integrity.OUTPUTS)
    for name in reversed(integrity.OUTPUTS):
        if (place / name).is_file():
            write_atomic(folder / name, (place / name).read_bytes())
        else:
            (folder / name).unlink(missing_ok=True)
    integrity.record_hashes(folder, integrity.OUTPUTS)
    shutil.rmtree(place)
    text = f"the run was measured with these settings before: results restored from {place}"
    if kept is not None:
        kept.rename(place)
        text += ", which now has those with the other settings"
    notify(text)
    return True


def _find(folder: Path, wanted: Callable[[Mapping[str, Any]], bool]) -> Path | None:
    """Return the newest folder of complete, verified results that are wanted."""
    for place in reversed(_places(folder)):
        if not _intact(place):
            continue
        results = _read_results(place)
        if results is not None and wanted(results):
            return place
    return None


def _intact(place: Path) -> bool:
    """True if kept results are complete and match their hashes."""
    try:
        record = integrity.read(place)
    except RunError:  # the hashes are damaged
        return False
    if record is None:  # kept by an earlier version, or never complete
        return False
    return all(integrity.verified(place, name) for name in {*NEEDED, *record.hashes})


def _keep(folder: Path) -> Path | None:
    """Copy the results in a run directory to `earlier/`.

    None if there are none, or if they were kept before: the settings change back and forth.
    """
    results = _read_results(folder)
    if results is None or not results.get("table"):
        return None
    places = _places(folder)
    if results in list(map(_read_results, places)):
        return None
    number = 1 + max((int(place.name) for place in places), default=0)
    place = folder / FOLDER / str(number)
    unfinished = place.with_suffix(".tmp")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    names = [name for name in integrity.OUTPUTS if (folder / name).is_file()]
    for name in names:
        write_atomic(unfinished / name, (folder / name).read_bytes())
    # Without hashes if the measurement did not finish, or if its files do not match theirs.
    if all(integrity.verified(folder, name) for name in {*NEEDED, *names}):
        integrity.record_hashes(unfinished, names)
    unfinished.rename(place)
    return place


def _places(folder: Path) -> list[Path]:
    """Return the folders of kept results, the newest last."""
    places = [path for path in (folder / FOLDER).glob("*") if path.name.isdigit()]
    return sorted(places, key=lambda path: int(path.name))


def _read_results(folder: Path) -> dict[str, Any] | None:
    """Return the content of results.json; None if it is missing or damaged."""
    try:
        results: dict[str, Any] = json.loads((folder / "results.json").read_bytes())
    except (OSError, ValueError):
        return None
    return results


def _same_measurement(old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    return all(old.get(key) == new.get(key) for key in DESCRIPTION)
