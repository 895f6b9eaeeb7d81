"""Kill runs at random moments, fill disks and change bytes; count what is lost.

    python -m benchmarks.chaos [--only kills|disk|flips] [--kills 50] [--limits 8] [--flips 1]
                               [--out results/chaos.json]

    kills   a run whose clients keep a memory gets SIGKILL at a random moment, again and again. The
            same command resumes it, until it ends; then another one starts. Every run must end with
            the weights and the checkpoint of an uninterrupted one.
    disk    a started run cannot write files above a size (RLIMIT_FSIZE), and, where this process
            may mount one, has a file system of a few hundred kilobytes. It must end with exit code
            4 and without a traceback, its last checkpoint must load, and resumed with enough space
            it must end like an uninterrupted one.
    flips   single bytes are changed in each file of a finished run, of an unfinished one, of their
            baselines and of the cache of decoded images (see byte_flips.py).

--only replaces one part of the results. The exit code is 1 if anything is lost.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any
from unittest import mock

from benchmarks.byte_flips import classify, expected_outcomes, flips, restore, train
from benchmarks.full_disks import fill_disks
from benchmarks.laboratory import (
    Laboratory,
    final_of,
    kill,
    logged_rounds,
    saved_rounds,
    uninterrupted,
)
from benchmarks.machine import machine
from fedssl.cli.main import main as fedssl_main

RESULTS = Path(__file__).parent.parent / "results/chaos.json"
GOOD = ("repaired", "reported", "refused")  # outcomes of a flip
ROUNDS = 4
PARTS = ("kills", "disk", "flips")


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
        kill(process)
        return process.returncode == -signal.SIGKILL
    return False


def _phase(folder: Path) -> str:
    if not (folder / "checkpoints").exists():
        return "before the first checkpoint"
    if logged_rounds(folder) < ROUNDS:
        return "during the rounds"
    return "after the last round"


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
