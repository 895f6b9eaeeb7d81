"""Show what `fedssl purge` removes, ask, and remove it."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

from fedssl.core.console import shortened
from fedssl.core.errors import ConfigError, RunError
from fedssl.runs.client_files import GROUPS, ClientFile, Group, Kind, Place
from fedssl.runs.purge import PlacePlan, Target, find_targets, held, raise_if_used, remove

NAMES: dict[Kind, str] = {
    "run": "run directory",
    "cache": "cache of decoded images",
    "node": "memory of a client on a node",
}
MAX_LISTED = 10  # links, and runs that end
NOT_ERASED = (
    "Deleting is not secure erasure: solid-state disks, journaling file systems, snapshots and "
    "backups may keep copies. Only encryption of the whole disk, with a key that is destroyed, "
    "protects against someone who reads the disk itself."
)


def purge_folders(
    folders: Sequence[Path], groups: Collection[Group], *, dry_run: bool, yes: bool
) -> None:
    """Remove the files of clients in these groups from the folders, after a confirmation."""
    targets = find_targets(folders, groups)
    if dry_run:
        raise_if_used(targets)
        _print_plan(targets)
        print("nothing was removed (--dry-run)")
        return
    if not yes and not sys.stdin.isatty():
        raise ConfigError(
            "purge asks for a confirmation on a terminal: add --yes to remove the files without "
            "one, or --dry-run to list them"
        )
    with held(targets):
        # Now that no other process changes them. Places that are new are not locked.
        targets = _same_places(find_targets(folders, groups), targets)
        _print_plan(targets)
        files = _all_files(targets)
        if files and (yes or _confirmed(files)):
            remove(targets)
            print(f"removed {_amount(files)}")
            print(NOT_ERASED)
        elif files:
            print("nothing was removed")
    _raise_for_links(targets)


def _same_places(targets: Iterable[Target], before: Iterable[Target]) -> list[Target]:
    """Return the targets without places that were not there before."""
    known: set[Place] = set()
    for target in before:
        known.update(plan.place for plan in target.plans)
    kept = []
    for target in targets:
        plans = [plan for plan in target.plans if plan.place in known]
        kept.append(target._replace(plans=plans))
    return kept


def _all_files(targets: Iterable[Target]) -> list[ClientFile]:
    files = []
    for target in targets:
        files += target.files
    return files


def _confirmed(files: Sequence[ClientFile]) -> bool:
    answer = input(f"Remove {_amount(files)} permanently? [y/N] ")
    return answer.strip().lower() in ("y", "yes")


def _print_plan(targets: Sequence[Target]) -> None:
    for target in targets:
        for plan in target.plans:
            _print_files(plan.place.folder, NAMES[plan.place.kind], plan.files)
        if target.loose:
            _print_files(target.folder, "list of unreadable images", target.loose)
        _print_kept(target)
    if not _all_files(targets):
        print("there are no files of clients to remove")
    for line in shortened(_consequences(targets), MAX_LISTED):
        print(line)


def _print_files(folder: Path, kind: str, files: Sequence[ClientFile]) -> None:
    if not files:
        return
    print(f"{folder} ({kind})")
    for group, meaning in GROUPS.items():
        members = [file for file in files if file.group == group]
        if members:
            print(f"  {_amount(members)}: {meaning}")
            for line in shortened([str(file.path) for file in members], 3):
                print(f"    {line}")


def _print_kept(target: Target) -> None:
    """List the files that are kept because they may not be files of clients."""
    unclear = {
        "not recognised as files of fedssl, and not removed": target.unrecognised,
        "files of clients or of the server, and not removed: the files that would identify them "
        "are damaged. --all removes these too": target.unclassified,
    }
    for reason, paths in unclear.items():
        if paths:
            print(f"{target.folder}: {reason}")
            for line in shortened([str(path) for path in paths], MAX_LISTED):
                print(f"    {line}")


def _consequences(targets: Iterable[Target]) -> list[str]:
    """Return what no longer works afterwards, one line for each run."""
    lines = []
    for target in targets:
        for plan in target.plans:
            if plan.ends_run:
                lines.append(_end_of(plan))
    return lines


def _end_of(plan: PlacePlan) -> str:
    folder = plan.place.folder
    if plan.place.kind == "node":
        return f"afterwards the client cannot take part in this run any more: {folder}"
    return f"afterwards this run cannot be resumed or extended: {folder}"


def _raise_for_links(targets: Iterable[Target]) -> None:
    links = []
    for target in targets:
        links += [str(target.folder / link) for link in target.links]
    if links:
        raise RunError(
            "symbolic links are not followed, and what they point to was not removed: "
            f"{', '.join(shortened(links, MAX_LISTED))}. Remove it yourself if it is private"
        )


def _amount(files: Sequence[ClientFile]) -> str:
    """Return the number and size of files: "3 files, 1.2 MB"."""
    size = sum(file.size for file in files)
    noun = "file" if len(files) == 1 else "files"
    if size < 1000:
        return f"{len(files):,} {noun}, {size} bytes"
    amount = float(size)
    unit = "bytes"
    for larger in ("kB", "MB", "GB", "TB"):
        if amount < 1000:
            break
        amount /= 1000
        unit = larger
    return f"{len(files):,} {noun}, {amount:.1f} {unit}"
