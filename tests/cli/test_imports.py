"""Commands that need no training import nothing heavy.

Modules are counted instead of seconds, because machines are noisy.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from typer.main import get_command

from fedssl.cli.main import app

HEAVY = (
    "torch",
    "numpy",
    "PIL",
    "safetensors",
    "matplotlib",
    "scipy",
    "flwr",
    "fedssl.experiment.experiment",
)
# Not needed to validate an experiment.
TRAINING = (
    "fedssl.runs.run",
    "fedssl.cli.results",
    "fedssl.experiment.federation_setup",
    "fedssl.evaluation.evaluate",
    "matplotlib",
    "scipy",
    "flwr",
)
MAX_MODULES = 600  # torch alone imports a thousand

# Runs the command line, then prints the number of imported modules and those that are heavy.
SCRIPT = f"""
import sys
from fedssl.cli.main import main
try:
    main()
except SystemExit as end:
    code = end.code
heavy = [name for name in {(*HEAVY, *TRAINING)!r} if name in sys.modules]
print("imported", len(sys.modules), *heavy, file=sys.stderr)
sys.exit(code)
"""


def _commands() -> list[tuple[str, ...]]:
    """Return every command and subcommand of the program."""
    commands: list[tuple[str, ...]] = [()]
    for name, command in get_command(app).commands.items():  # type: ignore[attr-defined]
        commands.append((name,))
        commands += [(name, subcommand) for subcommand in getattr(command, "commands", {})]
    return commands


def _run(*arguments: str, cwd: Path) -> tuple[int, int, list[str]]:
    """Return the exit code, the number of imported modules and the heavy ones."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *arguments], cwd=cwd, capture_output=True, text=True
    )
    _, count, *heavy = done.stderr.splitlines()[-1].split()
    return done.returncode, int(count), heavy


@pytest.mark.parametrize("command", _commands(), ids=" ".join)
def test_help_imports_nothing_heavy(command: tuple[str, ...], tmp_path: Path) -> None:
    code, count, heavy = _run(*command, "--help", cwd=tmp_path)
    assert (code, heavy) == (0, [])
    assert count < MAX_MODULES


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--version"], 0),
        (["recipes"], 0),
        (["recipes", "Table 6"], 0),
        (["recipes", "--json"], 0),
        (["recipes", "nosuch"], 2),
        (["run", "nosuch"], 2),
        (["run", "nosuch.toml"], 2),
        (["run", "broken.toml"], 2),
        (["run", "demo", "--set", "rounds"], 2),
        (["run", "demo", "--track", "nosuch"], 2),
        (["sweep", "nosuch"], 2),
        (["reproduce", "nosuch"], 2),
        (["reproduce", "fedema-3", "--scale", "nosuch"], 2),
        (["flower", "init", "app", "nosuch"], 2),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else str(value),
)
def test_quick_answers_import_nothing_heavy(
    arguments: list[str], expected: int, tmp_path: Path
) -> None:
    (tmp_path / "broken.toml").write_text("rounds = = 3\n")
    code, count, heavy = _run(*arguments, cwd=tmp_path)
    assert (code, heavy) == (expected, [])
    assert count < MAX_MODULES


@pytest.mark.parametrize(
    "arguments",
    [["misspelt.toml"], ["demo", "--set", "ronds=3"], ["demo", "--set", "train.lrr=0.1"]],
    ids=" ".join,
)
def test_a_misspelt_key_imports_torch_and_settings_only(
    arguments: list[str], tmp_path: Path
) -> None:
    """Settings are checked by the classes of methods and algorithms, which need torch."""
    (tmp_path / "misspelt.toml").write_text('ronds = 3\n[data]\nname = "fashion-mini"\n')
    code, _, imported = _run("run", *arguments, cwd=tmp_path)
    assert code == 2
    assert "torch" in imported
    assert not set(imported) & set(TRAINING)
