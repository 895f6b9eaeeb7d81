"""Which build of torch `make setup` installs: the script runs with real pip and wheels without
content, on loopback.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import os
import platform
import re
import socket
import subprocess
import sys
import sysconfig
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
SCRIPT = ROOT / "scripts/install_torch.py"
GPU = pytest.mark.skipif(
    Path("/proc/driver/nvidia").exists(), reason="this machine has an NVIDIA GPU"
)


def locked_platform() -> bool:
    """True on the platform of the lock files."""
    return sys.version_info[:2] == (3, 11) and (sys.platform, platform.machine()) == (
        "linux",
        "x86_64",
    )


def _wheel(
    folder: Path, name: str, version: str, files: dict[str, str], requires: tuple[str, ...] = ()
) -> None:
    """Write a wheel and list it on the page of its project (PEP 503)."""
    folder = folder / name
    folder.mkdir(parents=True)
    about = f"{name.replace('-', '_')}-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    metadata += "".join(f"Requires-Dist: {each}\n" for each in requires)
    files = files | {
        f"{about}/METADATA": metadata,
        f"{about}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = ""
    for path, text in files.items():
        digest = (
            base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
        )
        record += f"{path},sha256={digest},{len(text)}\n"
    files[f"{about}/RECORD"] = f"{record}{about}/RECORD,,\n"
    file = f"{name.replace('-', '_')}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(folder / file, "w") as archive:
        for path, text in files.items():
            archive.writestr(path, text)
    (folder / "index.html").write_text(f'<a href="{file}">{file}</a>')


def _torch(folder: Path, version: str, cuda: str | None, requires: tuple[str, ...] = ()) -> None:
    files = {
        "torch/__init__.py": f"from torch import version\n__version__ = {version!r}\n",
        "torch/version.py": f"cuda = {cuda!r}\n",
    }
    _wheel(folder, "torch", version, files, requires)


class Indexes:
    """Pip's default index with a CUDA build, an index with a CPU build, and their requests."""

    def __init__(self, root: Path) -> None:
        _torch(root / "default", "2.13.0", "13.0", ("nvidia-runtime",))
        _wheel(root / "default", "nvidia-runtime", "1.0", {"nvidia_runtime.py": ""})
        _torch(root / "cpu", "2.13.0+cpu", None)
        _torch(root / "offered", "2.13.0", None)
        self.asked: list[str] = []
        asked = self.asked

        class Handler(SimpleHTTPRequestHandler):
            def log_message(self, format: str, *args: Any) -> None:
                asked.append(self.path)

        self.server = ThreadingHTTPServer(
            ("127.0.0.1", 0), functools.partial(Handler, directory=str(root))
        )
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.root = root
        self.url = f"http://127.0.0.1:{self.server.server_port}"


@pytest.fixture
def indexes(tmp_path: Path) -> Iterator[Indexes]:
    indexes = Indexes(tmp_path / "indexes")
    yield indexes
    indexes.server.shutdown()
    indexes.server.server_close()


Install = Callable[..., str]


@pytest.fixture
def install(tmp_path: Path, indexes: Indexes) -> Install:
    """Run the script in an empty environment with this one's pip; return the last line it
    prints.
    """
    environment = tmp_path / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(environment)], check=True)
    packages = next((environment / "lib").glob("python*")) / "site-packages"
    (packages / "pip").symlink_to(Path(sysconfig.get_path("purelib")) / "pip")
    (tmp_path / "bin").mkdir()

    def run(*options: str, **variables: str) -> str:
        kept = {
            key: value
            for key, value in os.environ.items()
            if not key.upper().startswith(("PIP_", "HTTP", "ALL_"))
        }
        pip = {
            "PIP_CONFIG_FILE": os.devnull,
            "PIP_INDEX_URL": f"{indexes.url}/default",
            "PIP_NO_CACHE_DIR": "1",
        }
        env = {**kept, "PATH": str(tmp_path / "bin"), **pip, **variables}
        command = [str(environment / "bin/python"), str(SCRIPT), "torch==2.13.0", *options]
        done = subprocess.run(command, capture_output=True, text=True, env=env)
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()[-1]

    return run


@GPU
def test_without_a_gpu_the_cpu_index_is_used(install: Install, indexes: Indexes) -> None:
    line = install("--cpu-index", f"{indexes.url}/cpu")
    assert line == f"installed torch 2.13.0+cpu, a CPU build (from {indexes.url}/cpu)"
    assert any(path.startswith("/cpu/torch/torch-2.13.0") for path in indexes.asked)


@GPU
def test_a_cpu_index_that_does_not_answer_costs_five_seconds_and_is_reported(
    install: Install,
) -> None:
    """A server that accepts connections and never answers: the worst case of a network that drops
    packets.
    """
    with socket.create_server(("127.0.0.1", 0)) as silent:
        index = f"http://127.0.0.1:{silent.getsockname()[1]}/cpu"
        started = time.monotonic()
        line = install("--cpu-index", index)
        seconds = time.monotonic() - started
    assert (
        line == f"installed torch 2.13.0, built for CUDA 13.0 ({index} did not answer within 5 s)"
    )
    assert 5 <= seconds < 25  # pip itself starts three times


@GPU
@pytest.mark.slow
def test_a_cpu_index_without_that_version_is_reported(install: Install, indexes: Indexes) -> None:
    (indexes.root / "cpu/torch/index.html").write_text("")
    line = install("--cpu-index", f"{indexes.url}/cpu")
    assert (
        line
        == f"installed torch 2.13.0, built for CUDA 13.0 ({indexes.url}/cpu has no build that fits)"
    )


@GPU
def test_a_cpu_build_that_pip_already_offers_is_taken(install: Install, indexes: Indexes) -> None:
    line = install("--cpu-index", f"{indexes.url}/cpu", PIP_INDEX_URL=f"{indexes.url}/offered")
    assert line == "installed torch 2.13.0, a CPU build"
    assert not any(path.startswith("/cpu") for path in indexes.asked)


def test_with_an_nvidia_gpu_pip_chooses(install: Install, indexes: Indexes, tmp_path: Path) -> None:
    smi = tmp_path / "bin/nvidia-smi"
    smi.write_text("#!/bin/sh\necho GPU 0: NVIDIA H200\n")
    smi.chmod(0o755)
    line = install("--cpu-index", f"{indexes.url}/cpu")
    assert line == "installed torch 2.13.0, built for CUDA 13.0 (an NVIDIA GPU was found)"
    assert not any(path.startswith("/cpu") for path in indexes.asked)


@GPU
def test_a_driver_that_lists_no_gpu_counts_as_none(
    install: Install, indexes: Indexes, tmp_path: Path
) -> None:
    smi = tmp_path / "bin/nvidia-smi"
    smi.write_text("#!/bin/sh\nexit 0\n")
    smi.chmod(0o755)
    line = install("--cpu-index", f"{indexes.url}/cpu")
    assert line == f"installed torch 2.13.0+cpu, a CPU build (from {indexes.url}/cpu)"


@GPU
@pytest.mark.slow
def test_a_second_call_leaves_the_cpu_build_alone(install: Install, indexes: Indexes) -> None:
    install("--cpu-index", f"{indexes.url}/cpu")
    indexes.asked.clear()
    assert install("--cpu-index", f"{indexes.url}/cpu") == "installed torch 2.13.0+cpu, a CPU build"
    assert not any(path.startswith("/cpu") for path in indexes.asked)


def _installs(locked: str) -> list[str]:
    """Return the commands of `make setup` that install something."""
    command = ["make", "--dry-run", "--always-make", "setup", "PYTHON=python3", f"LOCKED={locked}"]
    lines = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    joined = re.sub(r"\\\n\s*", "", lines).splitlines()
    return [" ".join(line.split()) for line in joined if "install" in line]


TORCH = ".venv/bin/python scripts/install_torch.py torch==2.13.0 --constraint constraints.txt"


def test_make_setup_installs_torch_by_the_script_and_first() -> None:
    installs = _installs("")
    assert installs[0] == TORCH
    assert all("torch==" not in line for line in installs[1:])


def test_in_ci_make_setup_installs_the_locked_packages_first() -> None:
    """They are installed without their dependencies, so none of them brings another torch."""
    first, second, *others = _installs("true")
    assert first == ".venv/bin/python scripts/install_locked.py"
    assert second == f"{TORCH} --lock requirements-torch.txt"
    assert all("torch==" not in line for line in others)


@GPU
def test_a_build_with_another_hash_is_refused(
    install: Install, indexes: Indexes, tmp_path: Path
) -> None:
    """On other platforms than that of the file, hashes are not compared."""
    wheel = indexes.root / "cpu/torch/torch-2.13.0+cpu-py3-none-any.whl"
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    lock = tmp_path / "lock.txt"
    options = ("--cpu-index", f"{indexes.url}/cpu", "--lock", str(lock))
    lock.write_text(f"torch==2.13.0 --hash=sha256:{64 * '0'}\n")
    if locked_platform():
        with pytest.raises(AssertionError, match="DO NOT MATCH"):
            install(*options)
    lock.write_text(f"torch==2.13.0 --hash=sha256:{digest}\n")
    assert "torch 2.13.0+cpu, a CPU build" in install(*options)


def test_the_readme_shows_how_to_install_either_build() -> None:
    text = (ROOT / "README.md").read_text("utf-8")
    assert "pip install torch --index-url https://download.pytorch.org/whl/cpu" in text
    assert "pip install torch  # CUDA" in text
