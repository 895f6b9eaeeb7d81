"""Remove each protection once, in a copy of the code, and run the tests of its row.

    python -m benchmarks.mutations [--only TEXT] [--part I N] [--unchecked]
                                   [--out results/mutations.json]

The protections are in mutations.toml. One is "killed" if a test of its row fails without it. A
protection that "survived" lacks a test, and the exit code is then 1. It is "not run" if all of its
tests are skipped, such as those of Flower where it is not installed. Before that, these tests must
pass on the unchanged copy. --only and --part (every N-th from the I-th on) replace some verdicts of
the output file; --unchecked skips the test of the unchanged copy.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import re
import shutil
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy  # noqa: F401 - see _child
import pytest
import torch  # noqa: F401

ROOT = Path(__file__).parent.parent
TABLE = Path(__file__).with_suffix(".toml")
RESULTS = ROOT / "results/mutations.json"
COPIED = ("fedssl", "tests", "benchmarks", "examples", "pyproject.toml")
SECONDS = 600  # time limit for the tests of one mutation; a timeout counts as killed
FORK = multiprocessing.get_context("fork")
VERDICTS = ("killed", "survived", "not run")
PASSED = re.compile(r"(\d+) passed")
FAILED = re.compile(r"(\d+) (?:failed|error)")


class Mutation(NamedTuple):
    """A protection, and the change of one file that removes it."""

    removes: str
    row: str
    file: str
    old: str
    new: str
    tests: Sequence[str]


class Outcome(NamedTuple):
    """The result of one run of pytest."""

    passed: int
    failed: int
    output: str


def read_mutations() -> list[Mutation]:
    """Return the mutations of the table."""
    tables = tomllib.loads(TABLE.read_text("utf-8"))["mutation"]
    return [Mutation(**table) for table in tables]


def mutated(mutation: Mutation, root: Path = ROOT) -> str:
    """Return the text of the file without the protection; ValueError if it cannot be found."""
    text = (root / mutation.file).read_text("utf-8")
    if text.count(mutation.old) != 1:
        raise ValueError(f"{mutation.file} has {text.count(mutation.old)} × {mutation.old!r}")
    return text.replace(mutation.old, mutation.new)


def copy_code(folder: Path) -> None:
    """Copy what the tests need to a folder."""
    ignored = shutil.ignore_patterns("__pycache__")
    for name in COPIED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, ignore=ignored)
        else:
            shutil.copy(ROOT / name, folder / name)


def run_tests(
    folder: Path,
    rows: Iterable[str],
    tests: Iterable[str],
    *options: str,
    seconds: float | None = SECONDS,
) -> Outcome:
    """Run tests of some rows in a copy of the code, in a child process."""
    arguments = ["-q", "-p", "no:cacheprovider", "-o", "addopts=--strict-markers", *options]
    arguments += ["--rootdir", str(folder), "--rows", ",".join(rows)]
    arguments += [str(folder / test) for test in tests]
    output = folder / "output.txt"
    child = FORK.Process(target=_child, args=(folder, arguments, output))
    child.start()
    child.join(seconds)
    if child.is_alive():
        child.kill()
        child.join()
        return Outcome(0, 1, f"no result within {seconds} s")
    text = output.read_text("utf-8", "replace")
    last = text.strip().rpartition("\n")[2]
    passed = sum(map(int, PASSED.findall(last)))
    failed = sum(map(int, FAILED.findall(last)))
    if child.exitcode not in (0, 5) and not failed:
        failed = 1  # the tests could not be collected
    return Outcome(passed, failed, text)


def _child(folder: Path, arguments: list[str], output: Path) -> None:
    """Run pytest with the modules of the copy; torch and numpy are imported already."""
    with output.open("w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    os.chdir(folder)
    os.environ["PYTHONPATH"] = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
    sys.path.insert(0, str(folder))
    for name in [name for name in sys.modules if name.partition(".")[0] == "benchmarks"]:
        del sys.modules[name]
    code = int(pytest.main(arguments))
    sys.stdout.flush()
    os._exit(code)  # without the cleanup of this process, which the child has inherited


def judge(mutation: Mutation, folder: Path) -> str:
    """Return "killed", "survived" or "not run" for one protection."""
    path = folder / mutation.file
    intact = path.read_text("utf-8")
    path.write_text(mutated(mutation, folder), "utf-8")
    try:
        outcome = run_tests(folder, [mutation.row], mutation.tests, "--exitfirst")
    finally:
        path.write_text(intact, "utf-8")
    if outcome.failed:
        return "killed"
    return "survived" if outcome.passed else "not run"


def check_intact(folder: Path, mutations: Sequence[Mutation]) -> None:
    """Exit with an error if a test fails on the unchanged copy."""
    rows = sorted({mutation.row for mutation in mutations})
    tests = sorted({test for mutation in mutations for test in mutation.tests})
    outcome = run_tests(folder, rows, tests, seconds=None)
    if outcome.failed:
        raise SystemExit(f"{outcome.output}\nthe tests fail without any mutation")
    print(f"{outcome.passed} tests pass on the unchanged code", flush=True)


def write_results(path: Path, verdicts: Mapping[str, str], mutations: Sequence[Mutation]) -> None:
    """Write verdicts by name of the protection; keep those in the file that were not made now."""
    known: dict[str, str] = {}
    if path.is_file():
        for entry in json.loads(path.read_text("utf-8"))["mutations"]:
            known[entry["removes"]] = entry["verdict"]
    known.update(verdicts)
    entries = []
    for mutation in mutations:
        if mutation.removes in known:
            verdict = known[mutation.removes]
            entries.append({"row": mutation.row, "removes": mutation.removes, "verdict": verdict})
    counts = {}
    for verdict in VERDICTS:
        counts[verdict] = sum(entry["verdict"] == verdict for entry in entries)
    result = {**counts, "mutations": entries}
    path.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n", "utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", metavar="TEXT", default="", help="rows, files or protections")
    parser.add_argument("--part", type=int, nargs=2, default=(0, 1), metavar=("I", "N"))
    parser.add_argument("--unchecked", action="store_true", help="do not test the unchanged copy")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    part, parts = options.part
    chosen = []
    for mutation in read_mutations()[part::parts]:
        if options.only in f"{mutation.row} {mutation.file} {mutation.removes}":
            chosen.append(mutation)
    if not chosen:
        parser.error(f"no protection contains {options.only!r}")
    os.environ["OMP_NUM_THREADS"] = "1"
    sys.dont_write_bytecode = True  # two versions of a file may have the same size and time
    verdicts = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        copy_code(folder)
        if not options.unchecked:
            check_intact(folder, chosen)
        for mutation in chosen:
            verdict = judge(mutation, folder)
            print(f"{verdict:8} {mutation.row:4} {mutation.removes}", flush=True)
            verdicts[mutation.removes] = verdict
            write_results(options.out, {mutation.removes: verdict}, read_mutations())
    return int("survived" in verdicts.values())


if __name__ == "__main__":
    sys.exit(main())
