"""Find files of clients on a disk: in run directories, caches and memories of nodes.

Three kinds of folders have them. All are recognised by their files, without reading images or
models:

    run     a run directory: memory/rows, checkpoints, models of single clients
    cache   decoded images of one folder of images (see data/cache.py)
    node    the memory of one client in one run, on a Flower node (see flower/node_memory.py)
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal, NamedTuple

from fedssl.core.files import purge_note
from fedssl.core.files.lock import NAME as LOCK
from fedssl.core.files.removal import list_files
from fedssl.runs.node_files import EXPERIMENT, is_client_run, node_files, unknown_files
from fedssl.runs.run_files import LOGS, run_files
from fedssl.runs.run_files import Group as Group

Kind = Literal["run", "cache", "node"]
GROUPS: dict[Group, str] = {
    "memory": "the memory of clients, and the features they shared with the server",
    "models": "models of single clients",
    "cache": "decoded images",
    "audit": "private images that an audit recovered, and its figures",
    "report": "a page with the number of images of each client and class",
    "checkpoints": "models of the server, from which a run is resumed",
    "unclassified": "of the server or of clients: the files that would identify them are damaged",
}
DEFAULT: frozenset[Group] = frozenset({"memory", "models", "cache", "audit", "report"})

UNREADABLE = "unreadable.txt"  # names of image files, next to the caches
LINKED = {
    "memory",
    "audit",
    "checkpoints",
    "nodes",
    "isolated",
    "centralized",
}  # in a run directory
CACHE_NAME = re.compile(r"[0-9a-f]{16}")


def default_node_memory() -> Path:
    """Return the memory folder of Flower nodes that have no `memory-dir`."""
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state"
    return Path(state) / "fedssl/nodes"


class Place(NamedTuple):
    """A folder with files of clients."""

    kind: Kind
    folder: Path


class ClientFile(NamedTuple):
    """A file of clients, by its path relative to its place."""

    group: Group
    path: Path
    size: int


def find_places(folder: Path) -> list[Place]:
    """Return the places at and below a folder; empty if it is of no known kind.

    A folder of caches is known too, and so is the memory folder of a node or of one of its clients.
    Other folders are not searched, and links are not followed.
    """
    if is_run(folder):
        return _in_run(folder)
    if _is_cache(folder):
        return [Place("cache", folder)]
    if is_client_run(folder):
        return [Place("node", folder)]
    caches = [Place("cache", path) for path in _folders(folder) if _is_cache(path)]
    return caches or _in_node(folder)


def is_run(folder: Path) -> bool:
    """True if training was started in a folder."""
    if not (folder / EXPERIMENT).is_file():
        return False
    return any((folder / name).exists() for name in (*LOGS, "checkpoints", purge_note.NAME))


def _in_run(folder: Path) -> list[Place]:
    """Return a run directory, its baselines, and the nodes of `fedssl flower up` in it."""
    places = [Place("run", folder)]
    for inner in _folders(folder):
        if is_run(inner):
            places += _in_run(inner)
        elif inner.name == "nodes":
            places += _in_node(inner)
    return places


def _is_cache(folder: Path) -> bool:
    if not CACHE_NAME.fullmatch(folder.name) or not (folder / LOCK).is_file():
        return False
    return (folder / "index").is_file() or (folder / "pixels").is_file()


def _in_node(folder: Path) -> list[Place]:
    """Return the runs in a node's memory folder, or in that of one client; empty for others."""
    runs: list[Place] = []
    for client in _folders(folder):
        if is_client_run(client):  # the folder is that of one client
            runs.append(Place("node", client))
        else:
            runs += [Place("node", run) for run in _folders(client) if is_client_run(run)]
    return runs


def _folders(folder: Path) -> list[Path]:
    """Return the folders in a folder, without links."""
    if not folder.is_dir():
        return []
    return sorted(path for path in folder.iterdir() if path.is_dir() and not path.is_symlink())


def client_files(place: Place) -> Iterator[ClientFile]:
    """Yield all files of clients in a place."""
    grouped = {"run": run_files, "cache": _cache_files, "node": node_files}[place.kind]
    for group, path in grouped(place.folder):
        yield ClientFile(group, path, (place.folder / path).lstat().st_size)


def unfollowed_links(folder: Path) -> list[Path]:
    """Return links below a folder that may lead to files of clients, relative to it."""
    links = list_files(folder).links
    if not is_run(folder):
        return links
    return [path for path in links if LINKED & {*path.parts} or path.match("backbone-*")]


def unrecognised_files(folder: Path, places: Iterable[Place]) -> list[Path]:
    """Return the files in memories of nodes that are not of fedssl, relative to the folder.

    Among them are files of clients whose claim is damaged.
    """
    kinds = {place.kind for place in places}
    if "run" not in kinds:
        return unknown_files(folder) if "node" in kinds else []
    files = []
    for place in places:
        nodes = place.folder / "nodes"
        if place.kind == "run" and nodes.is_dir() and not nodes.is_symlink():
            inner = nodes.relative_to(folder)
            files += [inner / path for path in unknown_files(nodes)]
    return files


def loose_files(folder: Path) -> list[ClientFile]:
    """Return the files of clients in a folder of caches itself: the list of unreadable images."""
    path = folder / UNREADABLE
    if path.is_file() and not path.is_symlink():
        return [ClientFile("cache", Path(UNREADABLE), path.stat().st_size)]
    return []


def _cache_files(folder: Path) -> Iterator[tuple[Group, Path]]:
    for path in list_files(folder).files:
        if path.name != LOCK:
            yield "cache", path


def open_to_others(folder: Path) -> list[Path]:
    """Return the places in a folder that other users of this machine may read.

    A folder that only its owner may enter protects everything in it.
    """
    if not _others_may_read(folder):
        return []
    reachable = []
    for place in find_places(folder):
        between = [path for path in place.folder.parents if path.is_relative_to(folder)]
        if all(map(_others_may_read, [place.folder, *between])):
            reachable.append(place.folder)
    return reachable


def _others_may_read(folder: Path) -> bool:
    return bool(folder.stat().st_mode & 0o077)
