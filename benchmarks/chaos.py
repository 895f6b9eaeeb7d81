"""Kill runs at random moments, fill disks and change bytes; count what is lost.

    python -m benchmarks.chaos [--only kills|disk|flips] [--kills 50] [--limits 8] [--flips 1]
                               [--out results/chaos.json]

    kills   a run whose clients keep a memory gets SIGKILL at a random moment, again and again. The
            same command resumes it, until it ends; then another one starts. Every run must end with
            the weights and the checkpoint of an uninterrupted one.
    disk    a started run cannot write files above a size (RLIMIT_FSIZE), and, where this process
            may mount one, has a file system of a few hundred kilobytes. It must end with exit code
            4 and without a traceback, its last checkpoint must load, and with space it must end
            like an uninterrupted one.
    flips   single bytes are changed in each file of a finished run, of an unfinished one, of their
            baselines and of the cache of decoded images (see byte_flips.py).

--only replaces one part of the results. The exit code is 1 if anything is lost.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import io
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import numpy as np

from benchmarks.byte_flips import classify, expected_outcomes, flips, restore, train
from benchmarks.machine import machine
from fedssl.cli.main import main as fedssl_main
from fedssl.core.errors import FedsslError
from fedssl.engine.checkpoints.store import Store

RESULTS = Path(__file__).parent.parent / "results/chaos.json"
GOOD = ("repaired", "reported", "refused")  # outcomes of a flip
ROUNDS = 4
PARTS = ("kills", "disk", "flips")

EXPERIMENT = """
rounds = 4
clients = 3
[data]
name = "npz"
path = "tiny.npz"
[method]
name = "mocov2"
backbone = "cnn"
hidden = 32
dim = 16
queue = 32
[method.augment]
jitter = [0.4, 0.4, 0.4, 0.1]
[train]
batch = 8
epochs = 4
checkpoint_every = 0
client_memory = "disk"
[probe]
every = 0
linear = false
baselines = []
"""


class Final(NamedTuple):
    """The result of a run: hashes of its backbone's file and of its last checkpoint."""

    backbone: str
    checkpoint: str | None


class Laboratory:
    """A folder with images, an experiment and any number of its runs."""

    def __init__(self, root: Path) -> None:
        self.root = root
        generator = np.random.default_rng(0)
        labels = np.arange(48) % 3
        noise = generator.integers(0, 80, (48, 12, 12, 3))
        images = (noise + labels[:, None, None, None] * 60).astype(np.uint8)
        (root / "data").mkdir()
        np.savez(
            root / "data/tiny.npz",
            x_train=images,
            y_train=labels,
            x_test=images[:24],
            y_test=labels[:24],
        )
        (root / "experiment.toml").write_text(EXPERIMENT)

    def start(self, folder: Path, **how: Any) -> subprocess.Popen[str]:
        """Start a run in a process group of its own."""
        command = [sys.executable, "-m", "fedssl", "run", str(self.root / "experiment.toml")]
        command += ["--dir", str(folder), "--data-dir", str(self.root / "data"), "--device", "cpu"]
        return subprocess.Popen(  # nosec B603 # this Python
            command,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            **how,
        )

    def finish(self, folder: Path, **how: Any) -> tuple[int, str]:
        """Run to the end; return the exit code and standard error."""
        process = self.start(folder, **how)
        _, errors = process.communicate()
        return process.returncode, errors


def final_of(folder: Path) -> Final:
    """Return the result of a finished run."""
    backbone = hashlib.sha256((folder / "backbone.safetensors").read_bytes()).hexdigest()
    return Final(backbone, Store(folder).digest())


def logged_rounds(folder: Path) -> int:
    """Return the number of whole lines in the rounds log."""
    log = folder / "rounds.jsonl"
    return log.read_bytes().count(b"\n") if log.exists() else 0


def saved_rounds(folder: Path) -> int:
    """Return the round of the newest checkpoint; 0 if there is none."""
    numbers = [int(path.stem) for path in (folder / "checkpoints").glob("*.json")]
    return max(numbers, default=0)


def uninterrupted(laboratory: Laboratory) -> tuple[Final, float]:
    """Return the result of a run without faults, and its duration in seconds."""
    started = time.monotonic()
    folder = laboratory.root / "uninterrupted"
    code, errors = laboratory.finish(folder)
    if code:
        raise SystemExit(f"the uninterrupted run failed: {errors}")
    return final_of(folder), time.monotonic() - started


def kill_runs(laboratory: Laboratory, kills: int, seed: int) -> dict[str, Any]:
    """Kill runs at random moments, and compare those that end with an uninterrupted one."""
    draw = random.Random(seed)  # nosec B311 # moments of kills, no secret
    expected, duration = uninterrupted(laboratory)
    phases: Counter[str] = Counter()
    runs: Counter[str] = Counter()
    lost = 0
    number = 0
    while sum(phases.values()) < kills or runs.total() < number:
        folder = laboratory.root / f"killed{number}"
        process = laboratory.start(folder)
        killing = sum(phases.values()) < kills
        if killing and _killed_after(process, draw.uniform(0.3, 1.0) * duration):
            phases[_phase(folder)] += 1
            lost = max(lost, logged_rounds(folder) - saved_rounds(folder))
            continue
        _, errors = process.communicate()
        equal = process.returncode == 0 and final_of(folder) == expected
        runs["equal" if equal else "different"] += 1
        if not equal:
            print(f"{folder}: exit code {process.returncode}\n{errors}", file=sys.stderr)
        number += 1
    return {
        "kills": sum(phases.values()),
        "killed": dict(sorted(phases.items())),
        "runs_equal_to_the_uninterrupted": runs["equal"],
        "runs_different": runs["different"],
        "rounds_lost_at_most": lost,
    }


def _killed_after(process: subprocess.Popen[str], seconds: float) -> bool:
    """Kill a process group after some time; False if it had ended before."""
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        _kill(process)
        return process.returncode == -signal.SIGKILL
    return False


def _kill(process: subprocess.Popen[str]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


def _phase(folder: Path) -> str:
    if not (folder / "checkpoints").exists():
        return "before the first checkpoint"
    if logged_rounds(folder) < ROUNDS:
        return "during the rounds"
    return "after the last round"


def fill_disks(laboratory: Laboratory, limits: int) -> dict[str, Any]:
    """Continue runs that may not write files above a size, or on a tiny file system."""
    expected, _ = uninterrupted(laboratory)
    begun = laboratory.root / "begun"
    process = laboratory.start(begun)
    while saved_rounds(begun) < 2 and process.poll() is None:
        time.sleep(0.01)
    _kill(process)
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
    """Continue a run without space for all files, then elsewhere with it; return the outcome."""
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


def change_bytes(root: Path, each: int, seed: int) -> dict[str, Any]:
    """Change bytes in every file of two runs and a cache, one at a time."""
    federation = train(root)
    federation.cli = run_here
    expected = expected_outcomes(federation)
    files = len({path for path, _, _ in flips(root, 10_000, seed)})
    outcomes: Counter[str] = Counter()
    for change in flips(root, each * files, seed):
        try:
            outcome, what = classify(federation, change, expected)
        except AssertionError as problem:
            outcome, what = "traceback or unknown exit code", str(problem)
        if outcome not in GOOD:
            print(f"{outcome}: {what}", file=sys.stderr)
        outcomes[outcome] += 1
        restore(root)
    return {"files": files, "flips": outcomes.total(), "outcomes": dict(sorted(outcomes.items()))}


def run_here(*arguments: str) -> tuple[int, str, str]:
    """Run the program in this process; return exit code, standard output and standard error."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    out = io.StringIO()
    err = io.StringIO()
    code: Any = 0
    try:
        with (
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
            mock.patch.object(sys, "argv", ["fedssl", *arguments]),
        ):
            fedssl_main()
    except SystemExit as end:
        code = end.code
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    return code or 0, out.getvalue(), err.getvalue()


def failures(result: dict[str, Any]) -> int:
    """Return the number of runs, disks and flips with a wrong outcome."""
    wrong = result.get("kills", {}).get("runs_different", 0)
    for counts in result.get("disk", {}).get("outcomes", {}).values():
        for outcome, count in counts.items():
            if not outcome.startswith(("stopped", "ended", "not run")):
                wrong += count
    for outcome, count in result.get("flips", {}).get("outcomes", {}).items():
        if outcome not in GOOD:
            wrong += count
    return int(wrong)


def run_part(part: str, options: argparse.Namespace) -> dict[str, Any]:
    """Run one part in a temporary folder; return its figures."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / part
        folder.mkdir()
        if part == "kills":
            figures = kill_runs(Laboratory(folder), options.kills, options.seed)
        elif part == "disk":
            figures = {"outcomes": fill_disks(Laboratory(folder), options.limits)}
        else:
            figures = change_bytes(folder, options.flips, options.seed)
    return {**figures, "seconds": round(time.monotonic() - started)}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", choices=PARTS)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--limits", type=int, default=8, help="sizes of files that are tried")
    parser.add_argument("--flips", type=int, default=1, help="changed bytes in each file")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    result: dict[str, Any] = {}
    if options.only and options.out.is_file():
        result = json.loads(options.out.read_text("utf-8"))
    result["machine"] = machine()
    for part in PARTS:
        if options.only in (None, part):
            result[part] = run_part(part, options)
            print(part, result[part], flush=True)
            result["failures"] = failures(result)
            options.out.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n", "utf-8")
    return int(result["failures"] > 0)


if __name__ == "__main__":
    sys.exit(main())
