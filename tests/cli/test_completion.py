"""The completion of arguments in a shell."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fedssl.experiment.recipes import recipes

HEAVY = ("torch", "numpy", "PIL")
# Completes a command line as the shell does, then prints the modules that are heavy.
SCRIPT = f"""
import sys
from fedssl.cli.main import app
try:
    app(prog_name="fedssl")
except SystemExit:
    pass
print("heavy", *[name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("runs/demo-1", "runs/demo-2", "alone"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "experiment.toml").touch()
    (tmp_path / "configs").mkdir()
    for name in ("mine.toml", "mine.txt", "configs/clothes.toml"):
        (tmp_path / name).touch()
    return tmp_path


def complete(folder: Path, *words: str) -> tuple[list[str], list[str]]:
    """Return the completions of the last word, and the heavy modules that were imported."""
    asked = {
        "COMP_WORDS": " ".join(["fedssl", *words]),
        "COMP_CWORD": str(len(words)),
        "_FEDSSL_COMPLETE": "complete_bash",
    }
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        cwd=folder,
        env=os.environ | asked,
        capture_output=True,
        text=True,
    )
    heavy, *modules = done.stderr.split()
    assert heavy == "heavy"
    return done.stdout.split(), modules


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["run", "mi"], ["mine.toml"]),
        (["run", "configs/"], ["configs/clothes.toml"]),
        (["run", "dem"], ["demo"]),
        (["run", "demo"], ["demo", "demo-short", "demo-mini"]),
        (["run", "demo-m"], ["demo-mini"]),
        (["run", "nosuch"], []),
        (["recipes", "mi"], []),
        (["evaluate", "''"], ["alone", "runs/demo-1", "runs/demo-2"]),
        (["evaluate", "./ru"], ["./runs/demo-1", "./runs/demo-2"]),
        (["evaluate", "runs/demo-2"], ["runs/demo-2"]),
        (["analyse", "angles", "alone", "runs/"], ["runs/demo-1", "runs/demo-2"]),
        (["run", "demo", "--dir", "al"], ["alone"]),
        (["run", "demo", "--data-dir", "al"], []),
    ],
    ids=" ".join,
)
def test_completions(folder: Path, words: list[str], expected: list[str]) -> None:
    assert complete(folder, *words) == (expected, [])


def test_an_empty_word_lists_recipes_and_files(folder: Path) -> None:
    assert complete(folder, "run", "''") == ([*recipes(), "mine.toml"], [])


def test_absolute_paths(folder: Path) -> None:
    assert complete(folder, "run", f"{folder}/m") == ([f"{folder}/mine.toml"], [])


def test_the_script_for_a_shell() -> None:
    env = os.environ | {"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    program = "from fedssl.cli.main import app; app(prog_name='fedssl')"
    done = subprocess.run(
        [sys.executable, "-c", program, "--show-completion", "bash"],
        env=env,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0
    assert done.stdout.splitlines()[-1] == "complete -o default -F _fedssl_completion fedssl"
