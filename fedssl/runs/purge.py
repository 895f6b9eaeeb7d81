"""Remove the files of clients from run directories, caches and memories of nodes."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

from fedssl.core.errors import ConfigError, RunError
from fedssl.core.files import integrity, purge_note
from fedssl.core.files.lock import NAME as LOCK
from fedssl.core.files.lock import is_locked, locked
from fedssl.core.files.removal import remove_empty_folder, remove_file
from fedssl.runs.client_files import (
    ClientFile,
    Group,
    Place,
    client_files,
    find_places,
    is_run,
    loose_files,
    unfollowed_links,
    unrecognised_files,
)
from fedssl.runs.node_files import CLAIM, read_claim


class PlacePlan(NamedTuple):
    """The files to remove in one place."""

    place: Place
    files: list[ClientFile]

    @property
    def ends_run(self) -> bool:
        """True if the run, or the client's part in it, cannot continue afterwards."""
        if self.place.kind == "node":
            names = {file.path.name for file in self.files}
            return CLAIM in names or any(name.endswith(".remembered") for name in names)
        folders = {file.path.parts[0] for file in self.files}
        return self.place.kind == "run" and not folders.isdisjoint({"memory", "checkpoints"})


class Target(NamedTuple):
    """A folder that the user named, and the files to remove in it."""

    folder: Path
    plans: list[PlacePlan]
    loose: list[ClientFile]  # in the folder itself, next to the caches
    links: list[Path]  # not followed, so what they point to is not removed
    unrecognised: list[Path]  # in memories of nodes, but not of fedssl, so not removed
    unclassified: list[Path]  # of clients or of the server, and not removed

    @property
    def files(self) -> list[ClientFile]:
        """All files to remove."""
        files = list(self.loose)
        for plan in self.plans:
            files += plan.files
        return files


def find_targets(folders: Iterable[Path], groups: Collection[Group]) -> list[Target]:
    """Return the files to remove; raise ConfigError if a folder is of no known kind."""
    targets: dict[Path, Target] = {}
    for named in folders:
        folder = named.expanduser().resolve()
        places = find_places(folder)
        if not places:
            raise ConfigError(_unknown(named, folder))
        plans = []
        unclassified: list[Path] = []
        for place in places:
            found = list(client_files(place))
            plans.append(PlacePlan(place, [f for f in found if f.group in groups]))
            if "unclassified" not in groups:
                inner = place.folder.relative_to(folder)
                unclassified += [inner / f.path for f in found if f.group == "unclassified"]
        loose: list[ClientFile] = []
        if "cache" in groups and folder not in [place.folder for place in places]:
            loose = loose_files(folder)
        unrecognised = unrecognised_files(folder, places)
        links = unfollowed_links(folder)
        targets[folder] = Target(folder, plans, loose, links, unrecognised, unclassified)
    return list(targets.values())


def _unknown(named: Path, folder: Path) -> str:
    if not folder.is_dir():
        return f"there is no folder {named}"
    runs = sum(1 for path in folder.iterdir() if path.is_dir() and is_run(path))
    if runs:
        return f"{named} is not a run directory, but contains {runs}: name those, as in {named}/*"
    return (
        f"{named} is not a run directory, a cache of decoded images, or the memory of a Flower "
        "node; nothing was changed"
    )


@contextmanager
def held(targets: Iterable[Target]) -> Iterator[None]:
    """Hold the locks of all places; raise RunError if a process uses one of them."""
    with ExitStack() as stack:
        for target in targets:
            for plan in target.plans:
                _raise_if_training(plan.place)
                stack.enter_context(locked(plan.place.folder))
        yield


def raise_if_used(targets: Iterable[Target]) -> None:
    """Raise RunError if a process uses one of the places; change nothing."""
    for target in targets:
        for plan in target.plans:
            _raise_if_training(plan.place)
            if is_locked(plan.place.folder):
                raise RunError(f"{plan.place.folder} is in use by another process")


def _raise_if_training(place: Place) -> None:
    """Raise RunError if the process that claimed a client's memory last is still running.

    A node holds no lock while it trains. A claim that cannot be read belongs to no process.
    """
    if place.kind != "node":
        return
    claim = read_claim(place.folder)
    if claim is None:
        return
    pid = claim.get("pid")
    if isinstance(pid, int) and pid > 0 and pid != os.getpid() and _is_alive(pid):
        raise RunError(
            f"{place.folder} is in use by process {pid}; nothing was changed. Stop the SuperNode "
            "first"
        )


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)  # sends nothing
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def remove(targets: Iterable[Target]) -> None:
    """Remove the files of all targets. The caller holds their locks."""
    for target in targets:
        for file in target.loose:
            remove_file(target.folder, file.path)
        for plan in target.plans:
            _remove_in(plan)


def _remove_in(plan: PlacePlan) -> None:
    folder = plan.place.folder
    if plan.ends_run:
        # Before the files: after a kill in between, the run is not resumed with a part of them.
        purge_note.write_note(folder, plan.place.kind, {file.group for file in plan.files})
    for file in plan.files:
        remove_file(folder, file.path)
    for parent in sorted({file.path.parent for file in plan.files}, reverse=True):
        if parent != Path():
            remove_empty_folder(folder, parent)
    if plan.place.kind == "run":
        _forget_hashes(folder, plan.files)
    if plan.place.kind == "cache" and plan.files:
        (folder / LOCK).unlink(missing_ok=True)
        remove_empty_folder(folder.parent, Path(folder.name))


def _forget_hashes(folder: Path, files: Iterable[ClientFile]) -> None:
    """Drop the hashes of removed models from the record of the directory."""
    names = [file.path.name for file in files if file.path.parent == Path()]
    if names and integrity.read(folder) is not None:
        integrity.forget_hashes(folder, names)
