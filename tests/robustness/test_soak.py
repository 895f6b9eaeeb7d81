"""P10: with a thousand clients and a hundred rounds, the memory of the process does not grow."""

from __future__ import annotations

import json
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]

# Runs in a subprocess. 25 of the 1,000 clients take part in a round, so that it takes a minute;
# each keeps a target network on disk, and every round is saved. The resident memory is mostly
# torch's and varies by megabytes, so the bytes in use on the heap are counted too: they include
# tensors and Python's larger objects. With `leak`, every round keeps a copy of the model.
SOAK = """
import ctypes, gc, json, os, sys
from pathlib import Path
import torch
import fedssl, fedssl.runs.session
from benchmarks.scale import IMAGES, SIDE, experiment

folder, rounds, leaking = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "leak"
fields = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"

class Mallinfo(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in fields.split()]

libc = ctypes.CDLL(None)
libc.mallinfo2.restype = Mallinfo
resident, heap, leaked, append = {}, {}, [], fedssl.runs.session.RoundsLog.append

def noted(log, line):
    append(log, line)
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    resident[line["round"]] = pages * os.sysconf("SC_PAGE_SIZE")
    found = libc.mallinfo2()
    heap[line["round"]] = found.uordblks + found.hblkhd

def leak(loop, round, *rest, real=fedssl.runs.session.Session.log_line):
    (site,) = round.sites.values()
    leaked.append(site["model"].clone())
    return real(loop, round, *rest)

fedssl.runs.session.RoundsLog.append = noted
if leaking:
    fedssl.runs.session.Session.log_line = leak
changes = {"topology.participation": 0.025, "train.checkpoint_every": 0}
images = torch.randint(256, (1000 * IMAGES, 3, SIDE, SIDE), dtype=torch.uint8)
run = fedssl.run(experiment(1000, rounds), folder, "cpu", dataset=images, quiet=True, set=changes)
model = run.models()["global"].nbytes
print(json.dumps({"resident": resident, "heap": heap, "model": model, "leaked": len(leaked)}))
"""
LEAK = 0.1  # of a model in each round, on the heap, is one

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs Linux' /proc"),
    pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs glibc's mallinfo2"),
    pytest.mark.rows("P10"),
]


def _soak(folder: Path, rounds: int, leak: bool = False) -> dict[str, Any]:
    command = [sys.executable, "-c", SOAK, str(folder), str(rounds), "leak" if leak else "-"]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    return dict(json.loads(done.stdout))


def _models_per_round(found: dict[str, Any], first: int, last: int) -> float:
    """Return the growth of the heap per round, in models."""
    grown = found["heap"][str(last)] - found["heap"][str(first)]
    return float(grown / found["model"] / (last - first))


def test_memory_does_not_grow_with_the_rounds(tmp_path: Path) -> None:
    found = _soak(tmp_path / "run", 100)
    assert _models_per_round(found, 20, 100) < LEAK
    early, late = found["resident"]["20"], found["resident"]["100"]
    assert late < 1.05 * early, (
        f"{early / 2**20:.0f} MiB after round 20, {late / 2**20:.0f} MiB after round 100"
    )
    rounds = (tmp_path / "run/rounds.jsonl").read_text().splitlines()
    assert [len(json.loads(line)["clients"]) for line in rounds] == [25] * 100
    rows = (tmp_path / "run/memory/rows").stat().st_size
    assert (
        rows < 1.2 * 1000 * 80_000
    )  # one version per client, and more of those that took part recently


def test_a_model_leaked_in_each_round_is_detected(tmp_path: Path) -> None:
    """The check above can fail: with such a leak the heap grows by a model for each round."""
    found = _soak(tmp_path / "run", 30, leak=True)
    assert found["leaked"] == 30
    assert _models_per_round(found, 10, 30) == pytest.approx(1, abs=LEAK)
