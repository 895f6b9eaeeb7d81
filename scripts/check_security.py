"""Check the code with bandit, and the installed packages with pip-audit.

    python scripts/check_security.py

The exit code is 1 for a finding of bandit, a known vulnerability or a missing tool. pip-audit needs
a database on the network. If it cannot be reached, or does not list the packages, a line reports
what was not checked, and the exit code is not affected: nothing was found, but nothing was checked
either.
"""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
CODE = ("fedssl", "scripts", "docs", "benchmarks")
SECONDS = 60  # for all packages; without a network, pip-audit tries several times
TIMEOUT = "5"  # seconds of one request


def check_code() -> int:
    """Run bandit; return its exit code."""
    command = [sys.executable, "-m", "bandit", "--configfile", "pyproject.toml", "--quiet"]
    done = subprocess.run(  # nosec B603 # this Python
        [*command, "--recursive", *CODE], cwd=ROOT, capture_output=True, text=True
    )
    if done.returncode == 0:
        print("bandit: no findings")
    else:
        print(done.stdout or done.stderr, file=sys.stderr)
    return done.returncode


def check_packages() -> int:
    """Run pip-audit; return 1 if a package has a known vulnerability, or without pip-audit."""
    if find_spec("pip_audit") is None:
        print('pip-audit: not installed: pip install ".[dev]"', file=sys.stderr)
        return 1
    command = [sys.executable, "-m", "pip_audit", "--local", "--skip-editable", "--format", "json"]
    try:
        done = subprocess.run(  # nosec B603 # this Python
            [*command, "--progress-spinner", "off", "--timeout", TIMEOUT],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=SECONDS,
        )
    except subprocess.TimeoutExpired:
        return report(None)
    try:
        packages = json.loads(done.stdout)["dependencies"]
    except (ValueError, KeyError, TypeError):
        return report(None)
    return report(packages)


def report(packages: list[dict[str, Any]] | None) -> int:
    """Print the result of pip-audit, None if there is none; return the exit code."""
    if packages is None:
        print("pip-audit: not checked (its database cannot be reached)")
        return 0
    checked = [package for package in packages if "skip_reason" not in package]
    skipped = len(packages) - len(checked)
    if not checked:
        print(f"pip-audit: not checked (its database answers for none of {skipped} packages)")
        return 0
    vulnerable = 0
    for package in checked:
        for found in package["vulns"]:
            vulnerable += 1
            fixed = ", ".join(found["fix_versions"]) or "no version"
            name = f"{package['name']} {package['version']}"
            print(f"pip-audit: {name}: {found['id']}, fixed in {fixed}", file=sys.stderr)
    if not vulnerable:
        print(f"pip-audit: no known vulnerability in {len(checked)} packages")
    if skipped:
        print(f"pip-audit: not checked: {skipped} packages that its database does not list")
    return int(vulnerable > 0)


def main() -> int:
    return int(bool(check_code() | check_packages()))


if __name__ == "__main__":
    sys.exit(main())
