"""Continue runs that cannot write all of their files: a part of benchmarks.chaos."""

from __future__ import annotations

import contextlib
import resource
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.laboratory import Final, Laboratory, final_of, kill, saved_rounds, uninterrupted
from fedssl.core.errors import FedsslError
from fedssl.engine.checkpoints.store import Store


def fill_disks(laboratory: Laboratory, limits: int) -> dict[str, Any]:
    """Continue runs that may not write files above a size, or on a tiny file system."""
    expected, _ = uninterrupted(laboratory)
    begun = laboratory.root / "begun"
    process = laboratory.start(begun)
    while saved_rounds(begun) < 2 and process.poll() is None:
        time.sleep(0.01)
    kill(process)
    largest = max(path.stat().st_size for path in begun.rglob("*") if path.is_file())
    outcomes: dict[str, Counter[str]] = {}
    outcomes["file size limit"] = Counter()
    for step in range(limits):
        folder = laboratory.root / f"limited{step}"
        shutil.copytree(begun, folder)
        limit = largest * step // limits
        outcome = _without_space(laboratory, folder, expected, preexec_fn=_size_limit(limit))
        outcomes["file size limit"][outcome] += 1
    outcomes["small file system"] = Counter()
    used = sum(path.stat().st_size for path in begun.rglob("*") if path.is_file())
    for share in (1.1, 1.4, 1.8):
        with _small_disk(laboratory.root / "disk", int(share * used)) as mounted:
            if mounted is None:
                outcomes["small file system"]["not run (it cannot be mounted)"] += 1
                continue
            shutil.copytree(begun, mounted / "run")
            outcome = _without_space(laboratory, mounted / "run", expected)
            outcomes["small file system"][outcome] += 1
    return {kind: dict(sorted(counts.items())) for kind, counts in outcomes.items()}


def _size_limit(size: int) -> Callable[[], None]:
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))

    return limit


@contextlib.contextmanager
def _small_disk(folder: Path, size: int) -> Iterator[Path | None]:
    """Mount a file system in memory; yield None if this process may not."""
    folder.mkdir(exist_ok=True)
    options = ["-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    program = shutil.which("mount") or "false"
    mounted = subprocess.run([program, *options], capture_output=True)  # nosec B603 # no shell
    if mounted.returncode:
        yield None
        return
    try:
        yield folder
    finally:
        subprocess.run([shutil.which("umount") or "umount", str(folder)])  # nosec B603 # no shell


def _without_space(laboratory: Laboratory, folder: Path, expected: Final, **how: Any) -> str:
    """Continue a run without enough space, then a copy of it with enough; return the outcome."""
    code, errors = laboratory.finish(folder, **how)
    if "Traceback" in errors:
        print(errors, file=sys.stderr)
        return "traceback"
    if code == 0:
        return "ended, there was enough space" if final_of(folder) == expected else "different"
    if code != 4:
        print(errors, file=sys.stderr)
        return f"exit code {code}"
    try:
        Store(folder).load(print)
    except FedsslError:
        return "no checkpoint loads"
    copy = laboratory.root / "with-space"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(folder, copy)
    code, errors = laboratory.finish(copy)
    if code or final_of(copy) != expected:
        print(errors, file=sys.stderr)
        return "different"
    return "stopped with exit code 4, then resumed to equal weights"
