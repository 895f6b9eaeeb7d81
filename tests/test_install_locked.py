"""The lock files of CI cover what fedssl requires, and a file with another hash is refused."""

from __future__ import annotations

import importlib.util
import re
import sys
import tomllib
import zipfile
from pathlib import Path
from types import ModuleType

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).parent.parent
LINE = re.compile(r"([a-z0-9.-]+)==(\S+) --hash=sha256:([0-9a-f]{64})")


@pytest.fixture
def script() -> ModuleType:
    path = ROOT / "scripts/install_locked.py"
    spec = importlib.util.spec_from_file_location("install_locked", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _locked() -> dict[str, str]:
    """Return the locked versions by name, torch included."""
    versions = {}
    for name in ("requirements-ci.txt", "requirements-torch.txt"):
        for line in (ROOT / name).read_text("utf-8").splitlines():
            if not line.startswith("#"):
                match = LINE.fullmatch(line)
                assert match, line
                versions[match[1]] = match[2]
    return versions


def test_every_requirement_is_locked_with_a_version_that_fits() -> None:
    """After a change of a requirement, `python scripts/install_locked.py --update`."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    extras = project["optional-dependencies"]
    required = [*project["dependencies"], *extras["dev"], "hatchling"]
    locked = _locked()
    for text in required:  # grows by the extras that `dev` names
        requirement = Requirement(text)
        if requirement.name == "fedssl":
            for extra in requirement.extras:
                required += extras[extra]
            continue
        assert requirement.name in locked, text
        assert Version(locked[requirement.name]) in requirement.specifier, text


def test_torch_has_its_own_file_and_the_version_of_make_setup() -> None:
    assert "torch==" not in (ROOT / "requirements-ci.txt").read_text("utf-8")
    constraint = f"torch=={_locked()['torch']}"
    assert constraint in (ROOT / "constraints.txt").read_text("utf-8").splitlines()


def _wheel(folder: Path, content: str) -> Path:
    path = folder / "locked_example-1.0-py3-none-any.whl"
    about = "locked_example-1.0.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("locked_example.py", content)
        archive.writestr(
            f"{about}/METADATA", "Metadata-Version: 2.1\nName: locked-example\nVersion: 1.0\n"
        )
        archive.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\n")
        archive.writestr(f"{about}/RECORD", "")
    return path


def test_hashes_are_verified(
    tmp_path: Path, script: ModuleType, capfd: pytest.CaptureFixture[str]
) -> None:
    script.PLATFORM = script.this_platform()
    pip = [sys.executable, "-m", "pip", "--isolated", "install", "--no-index", "--find-links"]
    pip += [str(tmp_path), "--target", str(tmp_path / "site"), "--disable-pip-version-check"]
    lock = tmp_path / "lock.txt"
    lock.write_text(f"locked-example==1.0 --hash=sha256:{64 * '0'}\n")
    _wheel(tmp_path, "x = 1")
    assert script.install(pip, lock) != 0
    assert "DO NOT MATCH" in capfd.readouterr().err
    lock.write_text(f"locked-example==2.0 --hash=sha256:{64 * '0'}\n")
    assert script.install(pip, lock) == 0  # not offered: reported, and not an error
    assert "NOT used: pip does not offer all of its versions" in capfd.readouterr().out
    assert not (tmp_path / "site").exists()
    wheel = _wheel(tmp_path, "x = 2")
    package = {
        "metadata": {"name": "locked_example", "version": "1.0+local"},
        "download_info": {"archive_info": {"hashes": {"sha256": _digest(wheel)}}},
    }
    lock.write_text(script.line(package) + "\n")
    assert script.install(pip, lock) == 0
    assert "with verified hashes" in capfd.readouterr().out
    assert (tmp_path / "site/locked_example.py").read_text() == "x = 2"


def _digest(path: Path) -> str:
    import hashlib

    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_another_platform_is_reported(
    tmp_path: Path, script: ModuleType, capfd: pytest.CaptureFixture[str]
) -> None:
    script.PLATFORM = "CPython 2.7, Amiga, m68k"
    assert script.install(["false"], tmp_path / "lock.txt") == 0
    out = capfd.readouterr().out
    assert "lock.txt is NOT used: the lock files are for CPython 2.7, Amiga, m68k" in out
