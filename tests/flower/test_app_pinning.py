"""A SuperLink and a SuperNode run one app and no other."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from fedssl.flower import app_pinning

Cli = Callable[..., tuple[int, str, str]]


class Unpacker(SimpleNamespace):
    """The patched functions of Flower's modules: one reads an app, one unpacks it."""

    def __init__(self) -> None:
        super().__init__(unpacked=[], fab_from_proto=lambda fab: fab)
        self.install_from_fab = lambda content, skip_prompt=False: self.unpacked.append(content)


@pytest.mark.rows("C11")
def test_another_app_is_not_even_unpacked() -> None:
    """Even if it comes with the hash of the pinned app."""
    pinned = hashlib.sha256(b"ours").hexdigest()
    module = Unpacker()
    app_pinning.pin_module(module, pinned)
    module.install_from_fab(b"ours", skip_prompt=True)
    with pytest.raises(PermissionError, match=f"only the app with SHA-256 {pinned} is run here"):
        module.install_from_fab(b"theirs", skip_prompt=True)
    assert module.unpacked == [b"ours"]
    disguised = SimpleNamespace(content=b"theirs", hash_str=pinned)
    assert module.fab_from_proto(disguised).hash_str == hashlib.sha256(b"theirs").hexdigest()


def test_a_flower_without_the_patched_functions_runs_nothing() -> None:
    with pytest.raises(AttributeError):
        app_pinning.pin_module(SimpleNamespace(), "0" * 64)


def test_flowers_modules_have_the_patched_functions(monkeypatch: pytest.MonkeyPatch) -> None:
    from importlib import import_module

    for work, package, entry in app_pinning.CHECKED.values():
        module = import_module(work)
        for name in ("install_from_fab", "fab_from_proto"):
            monkeypatch.setattr(module, name, getattr(module, name))  # restores them afterwards
        before = module.install_from_fab
        app_pinning.pin_module(module, "0" * 64)
        assert module.install_from_fab is not before
        assert callable(getattr(import_module(package), entry))


def test_an_apps_hash_depends_on_its_content_only(cli: Cli, tmp_path: Path) -> None:
    """A copy in another folder has the same hash; with one more byte it is another."""
    for name in ("a", "b"):
        cli("flower", "init", str(tmp_path / name / "app"), "demo")
    app = tmp_path / "a/app"
    sha256 = app_pinning.app_sha256(app)
    assert sha256 == app_pinning.app_sha256(tmp_path / "b/app")
    (app / "client_app.py").write_text((app / "client_app.py").read_text() + "\n")
    assert app_pinning.app_sha256(app) != sha256


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # raised by Flower
def test_wrappers_come_before_flowers_programs_on_the_path(tmp_path: Path) -> None:
    from flwr.supercore.constant import TASK_TYPE_TO_COMMAND

    wrappers = app_pinning.write_wrappers(tmp_path / "bin", "0" * 64)
    path = app_pinning.flower_environment(wrappers, {"PATH": "/usr/bin"})["PATH"].split(os.pathsep)
    assert path == [str(wrappers), str(Path(sys.executable).parent), "/usr/bin"]
    assert {file.name for file in wrappers.iterdir()} == set(TASK_TYPE_TO_COMMAND.values())
    refused = subprocess.run([wrappers / "flwr-agentapp"], capture_output=True, text=True)
    assert refused.returncode == 1
    assert "flwr-agentapp is not run here" in refused.stderr


@pytest.mark.parametrize(
    ("app", "command", "reason"),
    [
        ("app", "sh", "must be flower-superlink or flower-supernode"),
        ("none", "flower-supernode", "no pyproject.toml"),
    ],
)
def test_only_flowers_programs_can_be_pinned(
    cli: Cli, tmp_path: Path, app: str, command: str, reason: str
) -> None:
    cli("flower", "init", str(tmp_path / "app"), "demo")
    code, _, error = cli("flower", "only", str(tmp_path / app), command, "--insecure")
    assert code == 2
    assert reason in error


@pytest.mark.rows("C11")
def test_the_started_program_is_pinned_to_the_app(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cli("flower", "init", str(tmp_path / "app"), "demo")
    calls = []
    monkeypatch.setenv("FLWR_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(os, "execvpe", lambda *words: calls.append(words))
    command = ["flower-supernode", "--superlink", "here:1"]
    assert cli("flower", "only", str(tmp_path / "app"), *command)[0] == 0
    [(program, arguments, environment)] = calls
    assert program == "flower-supernode"
    assert arguments == command
    first = Path(environment["PATH"].split(os.pathsep)[0])
    assert app_pinning.app_sha256(tmp_path / "app") in (first / "flwr-clientapp").read_text()
    assert environment["FLWR_TELEMETRY_ENABLED"] == "0"
