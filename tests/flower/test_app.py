"""What `fedssl flower init` writes, and what `fedssl flower up` refuses."""

from __future__ import annotations

import re
import runpy
import stat
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
from flwr.cli.build import build_fab_from_disk
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

import fedssl
from fedssl.experiment import Experiment, load
from fedssl.runtimes.flower.keys import make_certificates, make_node_key
from fedssl.runtimes.flower.node import Place
from fedssl.runtimes.flower.serve import ServerSettings

Cli = Callable[..., tuple[int, str, str]]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Flower's own
def test_an_app_is_what_flower_takes(cli: Cli, tmp_path: Path) -> None:
    folder = tmp_path / "My app"
    assert cli("flower", "init", str(folder), "demo", "--set", "rounds=7")[0] == 0
    assert Experiment.from_file(folder / "experiment.toml") == load("demo", {"rounds": 7})
    assert len(build_fab_from_disk(folder)) > 1000
    assert isinstance(runpy.run_path(str(folder / "server_app.py"))["app"], ServerApp)
    assert isinstance(runpy.run_path(str(folder / "client_app.py"))["app"], ClientApp)


def test_its_config_has_every_setting_with_its_default(cli: Cli, tmp_path: Path) -> None:
    cli("flower", "init", str(tmp_path / "app"), "demo")
    project = tomllib.loads((tmp_path / "app/pyproject.toml").read_text())
    config = project["tool"]["flwr"]["app"]["config"]
    usual = {key.replace("_", "-"): value for key, value in ServerSettings().model_dump().items()}
    assert config == {**usual, "run-dir": "~/fedssl-runs/demo"}
    assert project["project"]["dependencies"] == [f"fedssl[flower]=={fedssl.__version__}"]


def test_nothing_is_overwritten(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    code, _, said = cli("flower", "init", str(tmp_path), "demo")
    assert (code, len(said.splitlines())) == (2, 1)
    assert "not empty" in said
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_without_flower_it_is_said_how_to_get_it(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedssl.cli_flower.find_spec", lambda name: None)
    code, _, said = cli("flower", "up", "demo")
    assert (code, said) == (2, 'fedssl: Flower is not installed: pip install "fedssl[flower]"\n')


def test_a_run_of_another_experiment_is_refused_before_anything_starts(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "experiment.toml").write_text(load("demo").to_toml())
    code, _, said = cli("flower", "up", "demo", "--set", "seed=5", "--dir", str(tmp_path))
    assert code == 2
    assert "holds a run of another experiment (seed: 0 there, 5 asked for" in said
    assert [path.name for path in tmp_path.iterdir()] == ["experiment.toml"]


def test_keys_are_for_their_owner_alone(tmp_path: Path) -> None:
    make_certificates(tmp_path)
    public = make_node_key(tmp_path / "node")
    for name in ("server.key", "node"):
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600
    assert re.match(r"ecdsa-sha2-nistp384 \S+\n$", public.read_text())
    assert {path.name for path in tmp_path.iterdir()} == {"ca.crt", "server.pem", "server.key", "node", "node.pub"}


@pytest.mark.parametrize(
    ("node", "run", "expected"),
    [
        ({"client-id": "a", "data-dir": "/d", "memory-dir": "/m"}, {"data-dir": "/r"}, ("a", "/d", "/m", "own")),
        ({"client-id": 7, "memory-dir": "/m"}, {"data-dir": ""}, ("7", "data", "/m", "own")),
        ({"partition-id": 1, "num-partitions": 2}, {"data-dir": "/r", "memory-dir": "/k"}, (None, "/r", "/k", "dealt")),
    ],
)
def test_where_a_node_finds_things(node: dict[str, object], run: dict[str, object], expected: tuple[object]) -> None:
    place = Place.read(node, run)
    assert (place.client, str(place.data), str(place.memory), place.images) == expected


@pytest.mark.parametrize("node", [{}, {"client-id": "a", "images": "all"}])
def test_a_node_that_is_told_too_little_or_nonsense_says_so(node: dict[str, object]) -> None:
    with pytest.raises(fedssl.errors.ConfigError, match=r"client-id and data-dir|'own' or 'dealt'"):
        Place.read(node, {})
