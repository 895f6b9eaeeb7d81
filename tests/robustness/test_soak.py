"""P10: a thousand clients, a hundred rounds, and the memory of the process stays what it is."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# In a process of its own. 25 of the 1,000 clients take part in a round, so that it is over in a minute; each keeps a
# target network, all of them written to disk, and every round is saved.
SOAK = """
import json, os, sys
from pathlib import Path
import torch
import fedssl, fedssl.loop
from benchmarks.scale import IMAGES, SIDE, experiment

resident, append = {}, fedssl.loop.RoundsLog.append
def noted(log, line):
    append(log, line)
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    resident[line["round"]] = pages * os.sysconf("SC_PAGE_SIZE")

fedssl.loop.RoundsLog.append = noted
changes = {"topology.participation": 0.025, "train.checkpoint_every": 0}
images = torch.randint(256, (1000 * IMAGES, 3, SIDE, SIDE), dtype=torch.uint8)
fedssl.run(experiment(1000, 100), sys.argv[1], "cpu", dataset=images, quiet=True, set=changes)
print(json.dumps([resident[20], resident[100]]))
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs Linux' /proc")
def test_resident_memory_does_not_grow_with_the_rounds(tmp_path: Path) -> None:
    command = [sys.executable, "-c", SOAK, str(tmp_path / "run")]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    early, late = json.loads(done.stdout)
    assert late < 1.05 * early, f"{early / 2**20:.0f} MiB after round 20, {late / 2**20:.0f} MiB after round 100"
    rounds = (tmp_path / "run/rounds.jsonl").read_text().splitlines()
    assert [len(json.loads(line)["clients"]) for line in rounds] == [25] * 100
    rows = (tmp_path / "run/memory/rows").stat().st_size
    assert rows < 1.2 * 1000 * 80_000  # a version of each, and of the few that took part lately some more
