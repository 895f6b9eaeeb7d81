"""--import: a user's algorithm in every command that loads an experiment or a run."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import fedssl
from fedssl.algorithm import ALGORITHMS
from fedssl.core import provenance, user_modules
from fedssl.experiment.experiment import load
from fedssl.flower.app_experiment import read_experiment
from fedssl.paper_tables.plan import Training

Cli = Callable[..., tuple[int, str, str]]

# FedAvg under another name, so that every figure is known.
OWN = """
from fedssl.algorithm import ALGORITHMS
from fedssl.algorithms import FedAvg

@ALGORITHMS.register("own-mean")
class OwnMean(FedAvg):
    pass
"""
OWN_MEAN = ("--set", "algorithm.name=own-mean")
IMPORT = ("--import", "own_code.py")
QUIET = ("--device", "cpu", "--quiet")


@pytest.fixture
def own_code(own_modules: Path, here: Path) -> Path:
    """Write own_code.py next to mine.toml; both fixtures use the same folder."""
    file = own_modules / "own_code.py"
    file.write_text(OWN)
    return file


def start_new_process() -> None:
    """Remove all traces of own_code.py, as in a process that has not imported it."""
    ALGORITHMS._classes.pop("own-mean", None)
    user_modules._imported.clear()
    sys.modules.pop("own_code", None)


def test_every_command_opens_a_run_of_own_code(own_code: Path, cli: Cli) -> None:
    sha256 = hashlib.sha256(OWN.encode()).hexdigest()
    assert cli("run", "mine.toml", *OWN_MEAN, *IMPORT, "--dir", "own", *QUIET)[0] == 0
    assert cli("run", "mine.toml", "--dir", "plain", *QUIET, *IMPORT)[0] == 0
    own = fedssl.Run("own")
    plain = fedssl.Run("plain")
    assert torch.equal(own.models()["global"].floats, plain.models()["global"].floats)
    assert json.loads(Path("own/imports.json").read_text()) == {"own_code.py": sha256}
    assert own.results["imports"] == {"own_code.py": sha256}
    assert own.results["environment"]["code"] == provenance.code()
    for command in (
        ("evaluate", "own", "--probe", "knn", "--device", "cpu"),
        ("runs", "own"),
        ("compare", "own", "plain", "--out", "c.png"),
        ("partition", "mine.toml", *OWN_MEAN),
        ("views", "mine.toml", *OWN_MEAN),
    ):
        start_new_process()
        code, _, err = cli(*command)
        assert (code, "own-mean" in err) == (2, True), command
        assert cli(*command, *IMPORT)[0] == 0, command


def test_a_run_of_own_code_names_the_file_to_import(own_code: Path, cli: Cli) -> None:
    """The file is next to the run, and is not imported all the same."""
    done = cli("run", "mine.toml", *OWN_MEAN, *IMPORT, "--dir", "own", "--set", "rounds=1", *QUIET)
    assert done[0] == 0, done[2]
    start_new_process()
    code, _, err = cli("evaluate", "own", "--device", "cpu")
    assert code == 2
    assert err == (
        'fedssl: own/experiment.toml: unknown algorithm "own-mean"; the run was started with a '
        "module of its user: add --import own_code.py, or in Python import that module before you "
        "open the run\n"
    )
    assert "own_code" not in sys.modules


def test_a_resumed_run_notices_changed_code(own_code: Path, cli: Cli) -> None:
    command = ("run", "mine.toml", *OWN_MEAN, *IMPORT, "--dir", "own", "--device", "cpu")
    cli(*command, "--set", "rounds=1", "--quiet", "--no-baselines")
    first = provenance.code()
    start_new_process()
    own_code.write_text(f"{OWN}    extra = 1\n".replace("pass", "extra: int = 2"))
    code, _, err = cli(*command, "--no-baselines")
    assert code == 0
    notice = "own_code.py has changed since the run was started; training uses it as it is now"
    assert err.splitlines().count(notice) == 1
    both = f"{first}, {provenance.code()}"
    assert fedssl.Run("own").results["environment"]["code"] == both
    assert first != provenance.code()


def test_a_finished_run_is_that_of_the_earlier_code(own_code: Path, cli: Cli) -> None:
    """The line is printed every time, and the record stays that of the training."""
    command = ("run", "mine.toml", *OWN_MEAN, *IMPORT, "--dir", "own", "--device", "cpu")
    command += ("--set", "rounds=1", "--no-baselines")
    cli(*command)
    recorded = Path("own/imports.json").read_bytes()
    start_new_process()
    own_code.write_text(f"{OWN}\n# changed\n")
    notice = (
        "own_code.py has changed since the run was trained, so the model is that of the earlier "
        "file; to train with the changed one, choose another --dir"
    )
    for _ in range(2):
        code, _, err = cli(*command)
        assert (code, err.splitlines().count(notice)) == (0, 1)
        assert Path("own/imports.json").read_bytes() == recorded


def test_an_error_in_own_code_is_one_line(own_code: Path, cli: Cli) -> None:
    own_code.write_text("import torch\n\ntorch.nosuch\n")
    code, out, err = cli("run", "mine.toml", *IMPORT)
    assert (code, out) == (2, "")
    assert err == (
        "fedssl: cannot import own_code.py: line 3: AttributeError: module 'torch' has no "
        "attribute 'nosuch'\n"
    )


def test_processes_of_a_sweep_import_own_code(own_code: Path, cli: Cli) -> None:
    sweep = ("sweep", "mine.toml", "--set", "algorithm=fedavg,own-mean", "--probe", "knn")
    options = ("--seeds", "1", "--set", "rounds=1", "--device", "cpu", "--json")
    code, out, err = cli(*sweep, *options, *IMPORT)
    assert code == 0, err
    plain, own = json.loads(out)["cells"]
    assert own["mean"] == plain["mean"] is not None


def test_commands_of_a_training_import_own_code(own_code: Path, tmp_path: Path) -> None:
    user_modules.import_modules(["own_code.py"])
    training = Training("mine.toml", (), load("mine.toml"), tmp_path / "own")
    command = training.run_command("cpu", Path("data"))
    assert command[-2:] == ["--import", "own_code.py"]


def test_a_flower_app_contains_own_code(own_code: Path, cli: Cli) -> None:
    """Both halves of the app import the copy in the folder of the app."""
    assert cli("flower", "init", "app", "mine.toml", *OWN_MEAN, *IMPORT)[0] == 0
    assert Path("app/own_code.py").read_text() == OWN
    for half in ("server_app.py", "client_app.py"):
        text = Path("app", half).read_text()
        assert 'with_name("experiment.toml"), imports=["own_code.py"])' in text
    start_new_process()
    own_code.unlink()
    experiment = read_experiment("app/experiment.toml", ["own_code.py"])
    assert experiment.to_dict()["algorithm"]["name"] == "own-mean"
