"""Training gives the same bits, recipes the same hashes, and old run directories resume.

`bits.json` has the hash of every case of record.py, by torch version and CPU capability, as the
code at the starting commit computed it; on any other machine that code is checked out and run
first. `recipes.json` has the hash of every recipe's experiment. `run` is an unfinished run
directory written by the code at the starting commit. An entry of these files changes only in a
commit that names it and gives the reason.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import record

from fedssl.experiment.experiment import Experiment
from fedssl.experiment.recipes import recipes

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
BITS = json.loads((HERE / "bits.json").read_text())
START = BITS["start"]

# One process of several that run the tests: the code at the starting commit runs once.
pytestmark = pytest.mark.xdist_group("golden")


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return the recorded hashes for this machine, or those of the starting commit's code."""
    recorded: dict[str, str] | None = BITS["platforms"].get(record.platform())
    if recorded is not None:
        return recorded
    tree = tmp_path_factory.mktemp("start") / "tree"
    add = ["git", "-C", str(ROOT), "worktree", "add", "--detach", str(tree), START]
    if subprocess.run(add, capture_output=True).returncode != 0:
        pytest.skip(
            f"no record for {record.platform()}, and this clone does not have commit {START[:12]}"
        )
    try:
        command = [sys.executable, str(HERE / "record.py")]
        # With more threads, the last bits of distances between models depended on their number.
        environment = {**os.environ, "PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1"}
        output = subprocess.run(command, capture_output=True, check=True, env=environment).stdout
    finally:
        subprocess.run(
            ["git", "-C", str(ROOT), "worktree", "remove", "--force", str(tree)], check=True
        )
    hashes: dict[str, str] = json.loads(output)[record.platform()]
    return hashes


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("case", record.CASES)
def test_training_gives_the_recorded_bits(
    case: str, expected: dict[str, str], tmp_path: Path
) -> None:
    assert record.train(case, tmp_path / "run") == expected[case]


@pytest.mark.slow
def test_an_old_run_directory_resumes(tmp_path: Path) -> None:
    """The hash is compared only where the directory was written: its first rounds depend on the
    machine.
    """
    folder = tmp_path / "run"
    shutil.copytree(HERE / "run", folder)
    run = record.resume(folder)
    assert len(run.rounds) == 4
    resumed = BITS["resumed"].get(record.platform())
    if resumed is not None:
        assert record.backbone_hash(folder) == resumed


def test_every_recipe_has_its_recorded_hash() -> None:
    recorded = json.loads((HERE / "recipes.json").read_text())
    hashes = {
        name: Experiment.from_dict(recipe.values).hash()[:16] for name, recipe in recipes().items()
    }
    assert {name: hashes.get(name) for name in recorded} == recorded
    assert hashes.keys() == recorded.keys(), "a new recipe needs an entry in recipes.json"
