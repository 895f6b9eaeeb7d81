"""The app that `fedssl flower init` writes."""

from __future__ import annotations

import runpy
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
from flwr.cli.build import build_fab_from_disk
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

from fedssl.core import user_modules
from fedssl.experiment.experiment import Experiment, load
from fedssl.flower.server_settings import ServerSettings
from fedssl.flower.telemetry import TELEMETRY_OFF

Cli = Callable[..., tuple[int, str, str]]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # raised by Flower
def test_an_app_can_be_built_and_imported_by_flower(cli: Cli, tmp_path: Path) -> None:
    folder = tmp_path / "My app"
    assert cli("flower", "init", str(folder), "demo", "--set", "rounds=7")[0] == 0
    assert Experiment.from_file(folder / "experiment.toml") == load("demo", {"rounds": 7})
    assert len(build_fab_from_disk(folder)) > 1000
    assert isinstance(runpy.run_path(str(folder / "server_app.py"))["app"], ServerApp)
    assert isinstance(runpy.run_path(str(folder / "client_app.py"))["app"], ClientApp)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # raised by Flower
def test_an_app_with_a_file_of_its_user(cli: Cli, own_modules: Path) -> None:
    """The file is in the app that Flower builds, and both halves import it."""
    (own_modules / "own_code.py").write_text("x = 1\n")
    assert cli("flower", "init", "plain", "demo")[0] == 0
    assert cli("flower", "init", "app", "demo", "--import", "own_code.py")[0] == 0
    assert len(build_fab_from_disk(Path("app"))) > len(build_fab_from_disk(Path("plain")))
    (own_modules / "own_code.py").unlink()
    for half in ("server_app.py", "client_app.py"):
        user_modules._imported.clear()
        sys.modules.pop("own_code", None)
        runpy.run_path(f"app/{half}")
        assert list(user_modules.imported_hashes()) == ["own_code.py"]


def test_its_config_has_every_setting_with_its_default(cli: Cli, tmp_path: Path) -> None:
    cli("flower", "init", str(tmp_path / "app"), "demo")
    project = tomllib.loads((tmp_path / "app/pyproject.toml").read_text())
    config = project["tool"]["flwr"]["app"]["config"]
    defaults = {
        key.replace("_", "-"): value for key, value in ServerSettings().model_dump().items()
    }
    assert config == {**defaults, "run-dir": "~/fedssl-runs/demo"}
    assert not [name for name in project["project"]["dependencies"] if name.startswith("fedssl")]


def test_its_readme_explains_how_to_pin_it_and_what_to_stop(cli: Cli, tmp_path: Path) -> None:
    cli("flower", "init", str(tmp_path / "app"), "demo")
    text = (tmp_path / "app/README.md").read_text()
    assert "fedssl flower pinned app flower-supernode" in text
    assert 'pkill -u "$USER" -f "flower-superlink --insecure --simulation"' in text
    assert all(f"{key}={value}" in text for key, value in TELEMETRY_OFF.items())


def test_nothing_is_overwritten(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    code, _, error = cli("flower", "init", str(tmp_path), "demo")
    assert (code, len(error.splitlines())) == (2, 1)
    assert "not empty" in error
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]
