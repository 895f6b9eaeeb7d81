"""Install torch into the environment of this Python: a CPU build if there is no NVIDIA GPU.

    python scripts/install_torch.py torch==2.13.0 [--lock FILE] [options of pip install]

On Linux, the default build of torch includes CUDA, several gigabytes. Without an NVIDIA GPU, and
unless pip's configuration already offers a CPU build, PyTorch's CPU index is tried once; if it does
not answer, pip installs the build that its configuration offers. The last line reports which build
is installed. With --lock, the build must have the hash in that file, if it is for this platform.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import shutil
import subprocess
import sys
import tempfile
import threading
import urllib.request
from http.client import HTTPException
from pathlib import Path

from install_locked import HASHED, install, reason_against

CPU_INDEX = "https://download.pytorch.org/whl/cpu"
SECONDS = 5  # timeout of the index
PIP = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
DRIVER = Path("/proc/driver/nvidia")
CUDA_PACKAGES = ("nvidia-", "cuda-")

REPORT = """
import torch
cuda = torch.version.cuda
print(f"torch {torch.__version__},", f"built for CUDA {cuda}" if cuda else "a CPU build")
"""


def has_nvidia_gpu() -> bool:
    if DRIVER.exists():
        return True
    if shutil.which("nvidia-smi") is None:
        return False
    # The program of the driver, found on the PATH.
    listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True)  # nosec B603 B607
    return listed.returncode == 0 and bool(listed.stdout.strip())


def would_install_cuda(requirement: str, options: list[str]) -> bool:
    """True if pip, as configured, would install CUDA's packages with torch, or if unknown."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = [*PIP, *options, "--dry-run", "--report", str(report), requirement]
        done = subprocess.run(command, capture_output=True)  # nosec B603 # pip of this Python
        if done.returncode != 0:
            return True
        planned = json.loads(report.read_text("utf-8"))["install"]
    names = [package["metadata"]["name"].lower() for package in planned]
    return any(name.startswith(CUDA_PACKAGES) for name in names)


def answers(index: str) -> bool:
    """True if an index lists torch within SECONDS.

    Runs in a thread, because looking up a host name has no timeout.
    """
    answered = threading.Event()

    def ask() -> None:
        with (
            contextlib.suppress(OSError, HTTPException),
            # An https address from the maintainer or the command line.
            urllib.request.urlopen(f"{index}/torch/", timeout=SECONDS),  # nosec B310
        ):
            answered.set()

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(SECONDS)
    return answered.is_set()


def install_from(index: str, wanted: list[str], options: list[str]) -> bool:
    """Install torch from an index, without retries and dependencies, which pip installs later."""
    limits = ["--timeout", str(SECONDS), "--retries", "0"]
    command = [*PIP, *options, "--no-deps", "--index-url", index, *limits, *wanted]
    return subprocess.run(command).returncode == 0  # nosec B603 # pip of this Python


def main() -> int:
    parser = argparse.ArgumentParser(
        description="Install torch; other options are passed on to pip."
    )
    parser.add_argument("requirement")
    parser.add_argument("--cpu-index", default=CPU_INDEX)
    parser.add_argument("--lock", type=Path, help="file with the hash of the build for CPUs")
    given, options = parser.parse_known_args()
    wanted = [given.requirement]
    if given.lock is not None and reason_against() is None and not has_nvidia_gpu():
        wanted = [*HASHED, str(given.lock)]
    note = ""
    if has_nvidia_gpu():
        note = " (an NVIDIA GPU was found)"
    elif sys.platform == "linux" and would_install_cuda(given.requirement, options):
        if not answers(given.cpu_index):
            note = f" ({given.cpu_index} did not answer within {SECONDS} s)"
        elif install_from(given.cpu_index, wanted, options):
            note = f" (from {given.cpu_index})"
        else:
            note = f" ({given.cpu_index} has no build that fits)"
    if wanted != [given.requirement]:
        failed = install([*PIP, *options], given.lock)
        if failed:
            return failed
    # All dependencies of torch, and torch itself if it is not installed yet.
    done = subprocess.run([*PIP, *options, given.requirement])  # nosec B603 # pip of this Python
    if done.returncode != 0:
        return done.returncode
    found = subprocess.run(  # nosec B603 # this Python
        [sys.executable, "-W", "ignore", "-c", REPORT], capture_output=True, text=True
    )
    print(
        f"installed {found.stdout.strip() or 'torch, which cannot be imported'}{note}", flush=True
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
