"""P1, P4 and P7 for decoded images: kills, two processes, scripts of all kinds."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from error_messages import raises
from PIL import Image

from fedssl.core.errors import DataError, RunError
from fedssl.core.files.lock import locked
from fedssl.data import Folder, decode_parallel, decode_worker

COUNT = 700  # enough for worker processes

# Without `if __name__ == "__main__"`: processes that import the script again would never end.
SCRIPT = """
import sys
from pathlib import Path
from fedssl.data import Folder
data = Folder(path="photos", size=8, layout="flat", cache="cache").load(Path("."), print)
print(len(data.train), int(data.train.pixels.sum()))
"""


@pytest.fixture
def photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "photos").mkdir()
    for k in range(COUNT):
        Image.effect_noise((40, 30), k / 5).save(tmp_path / f"photos/{k:03}.png")
    (tmp_path / "script.py").write_text(SCRIPT)
    return tmp_path


def _start() -> subprocess.Popen[str]:
    # At a low priority, so that tests which wait for a part of the images do not miss it.
    return subprocess.Popen(
        ["nice", "-n", "19", sys.executable, "script.py"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _entries() -> int:
    return sum(path.read_bytes().count(b".png") for path in Path("cache").glob("*/index"))


def _direct() -> torch.Tensor:
    return (
        Folder(path="photos", size=8, layout="flat", cache="off")
        .load(Path("."), lambda _: None)
        .train.pixels
    )


@pytest.mark.rows("P1")
def test_kills_lose_little_and_never_damage_an_image(photos: Path) -> None:
    kept = 0
    for _ in range(3):
        builder = _start()
        while builder.poll() is None and _entries() <= kept + COUNT // 20:
            time.sleep(0.001)
        builder.kill()
        builder.communicate()
        assert kept < _entries() < COUNT, "it was to be killed in the middle"
        kept = _entries()
    messages: list[str] = []
    data = Folder(path="photos", size=8, layout="flat", cache="cache").load(photos, messages.append)
    assert torch.equal(data.train.pixels, _direct())
    assert f"decoding {COUNT - kept} images, {kept} are decoded already" in messages


def test_a_script_without_a_guard_runs_once(photos: Path) -> None:
    out, err = _start().communicate(timeout=120)
    assert out.splitlines()[-1] == f"{COUNT} {int(_direct().sum())}", err
    assert out.count("decoding") == 1


@pytest.mark.rows("P7")
def test_two_processes_decode_once(photos: Path) -> None:
    both = [_start(), _start()]
    outs = [process.communicate(timeout=120)[0] for process in both]
    assert {out.splitlines()[-1] for out in outs} == {f"{COUNT} {int(_direct().sum())}"}
    assert sum(out.count("decoding") for out in outs) == 1


SLOW = """
import sys, time
sys.stdin.read()
time.sleep(3)
"""

HOLD = f"""
import os, sys
from pathlib import Path
from fedssl.data import decode_parallel, decode_worker
from fedssl.core.files.lock import locked
decode_worker.__file__ = sys.argv[1]
with locked(Path(".")) as lock:
    jobs = [[(row, "none") for row in range({decode_parallel.MIN_FILES_FOR_PROCESSES})]]
    target = os.open("target", os.O_RDWR | os.O_CREAT)
    with decode_parallel.decode_into_file(target, 8, 3, jobs, lock=lock) as answers:
        print("held", flush=True)
        next(answers)
"""


@pytest.mark.rows("P7")
def test_workers_of_a_dead_process_hold_the_lock_until_they_stop_writing(
    photos: Path,
) -> None:
    (photos / "slow.py").write_text(SLOW)
    builder = subprocess.Popen(
        [sys.executable, "-c", HOLD, "slow.py"], stdout=subprocess.PIPE, text=True
    )
    assert builder.stdout is not None
    assert builder.stdout.readline() == "held\n"
    builder.kill()
    builder.communicate()
    with raises(RunError), locked(photos):
        pass
    messages: list[str] = []
    with locked(photos, messages.append):
        assert messages == [f"waiting for process {builder.pid}, which is at work in {photos}"]


@pytest.mark.parametrize(
    "program", ["import sys; sys.exit(1)", "import sys; sys.stdin.readline(); sys.exit(1)"]
)
def test_a_worker_that_dies_is_an_error(
    program: str, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (photos / "dies.py").write_text(program)
    folder = Folder(path="photos", size=8, layout="flat", cache="cache")
    with monkeypatch.context() as patch:
        patch.setattr(decode_worker, "__file__", str(photos / "dies.py"))
        with raises(DataError):
            folder.load(photos, print)
    assert torch.equal(folder.load(photos, print).train.pixels, _direct())


@pytest.mark.rows("P4")
def test_a_disk_that_fills_up_under_a_worker_is_an_error(photos: Path) -> None:
    job = (0, decode_worker.encode_path(str(photos / "photos/000.png")))
    jobs = [[job] * decode_parallel.MIN_FILES_FOR_PROCESSES]
    with (
        open("/dev/full", "wb") as target,
        pytest.raises(OSError, match="No space left on device"),
        decode_parallel.decode_into_file(
            target.fileno(), 8, 3, jobs, lock=target.fileno()
        ) as answers,
    ):
        next(answers)
