"""Install the packages that CI uses: fixed versions, whose files must have recorded hashes.

    python scripts/install_locked.py             install requirements-ci.txt
    python scripts/install_locked.py --update    write it and requirements-torch.txt again

The files are for one platform, that of CI. On another one, or where pip offers other versions only,
a line reports that nothing was installed from them, and the exit code is 0: the newest versions are
then installed without hashes. A file with another hash is an error.

torch has a file of its own: its builds have the same version but other hashes, and install_torch.py
chooses the build. The hash is that of the build for CPUs.

--update installs nothing: it records what pip would install now, as pip is configured on this
machine, for the extra `dev` of fedssl.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
PACKAGES = ROOT / "requirements-ci.txt"
TORCH = ROOT / "requirements-torch.txt"
PLATFORM = "CPython 3.11, Linux, x86_64"
PIP = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
HASHED = ["--require-hashes", "--no-deps", "--requirement"]
MISSING = ("No matching distribution found", "Could not find a version")
HEADER = """\
# The packages of CI ({platform}), with the SHA-256 of their files.
# Written by `python scripts/install_locked.py --update`.
"""


def this_platform() -> str:
    """Return the platform in the words of PLATFORM."""
    version = ".".join(platform.python_version_tuple()[:2])
    implementation = platform.python_implementation()
    return f"{implementation} {version}, {platform.system()}, {platform.machine()}"


def reason_against() -> str | None:
    """Return why the recorded hashes cannot be used on this machine; None if they can."""
    if this_platform() != PLATFORM:
        return f"the lock files are for {PLATFORM}, and this is {this_platform()}"
    return None


def install(pip: list[str], file: Path) -> int:
    """Install a lock file; return pip's exit code, or 0 after a message if versions are missing."""
    reason = reason_against()
    if reason is None:
        done = subprocess.run(  # nosec B603 # pip of this Python
            [*pip, *HASHED, str(file)], stderr=subprocess.PIPE, text=True
        )
        sys.stderr.write(done.stderr)
        if done.returncode == 0:
            print(f"installed {file.name}, with verified hashes", flush=True)
            return 0
        if not any(text in done.stderr for text in MISSING):
            return done.returncode
        reason = "pip does not offer all of its versions"
    print(f"WARNING: {file.name} is NOT used: {reason}. Hashes are not verified", flush=True)
    return 0


def update() -> None:
    """Write both lock files from pip's plan for a new environment."""
    wanted = ["--constraint", "constraints.txt", f"{ROOT}[dev]", "hatchling", "editables"]
    packages = planned(wanted)
    torch = [line for line in packages if line.startswith("torch==")]
    others = [line for line in packages if line not in torch]
    for path, lines in ((PACKAGES, others), (TORCH, torch)):
        text = HEADER.format(platform=PLATFORM) + "\n".join(lines) + "\n"
        path.write_text(text, "utf-8")


def planned(arguments: Iterable[str]) -> list[str]:
    """Return the lines of a lock file for what pip would install into an empty environment."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = [*PIP, "--dry-run", "--ignore-installed", "--report", str(report), *arguments]
        subprocess.run(command, cwd=ROOT, check=True)  # nosec B603 # pip of this Python
        packages = json.loads(report.read_text("utf-8"))["install"]
    return sorted(line(package) for package in packages if "archive_info" in source(package))


def source(package: dict[str, Any]) -> dict[str, Any]:
    """Return where a package comes from; fedssl itself is a folder, without an archive."""
    return dict(package["download_info"])


def line(package: dict[str, Any]) -> str:
    """Return one line of a lock file."""
    name = package["metadata"]["name"].lower().replace("_", "-")
    version = package["metadata"]["version"].partition("+")[0]  # torch's builds have a suffix
    digest = source(package)["archive_info"]["hashes"]["sha256"]
    return f"{name}=={version} --hash=sha256:{digest}"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--update", action="store_true")
    options = parser.parse_args()
    if options.update:
        update()
        return 0
    return install(PIP, PACKAGES)


if __name__ == "__main__":
    sys.exit(main())
