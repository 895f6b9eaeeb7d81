"""P12: a refused start leaves nothing that blocks the corrected one. C10: permissions of
directories.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from error_messages import raises

from fedssl import nets
from fedssl.core.errors import ConfigError, DataError, FedsslError, RunError
from fedssl.runs.session import Session


def _wrong_weights(root: Path) -> str:
    """Write a weights file that does not fit the backbone, and return the assignment."""
    path = root / "weights.safetensors"
    nets.save_backbone({"other": torch.ones(3)}, path, {})
    return f"method.init={path}"


def _too_many_clients(root: Path) -> str:
    return "clients=1000"


def _missing_lists(root: Path) -> str:
    (root / "lists.json").write_text('{"a": [0, 1, 9999]}')
    return f'partition={{name="listed", path="{root}/lists.json"}}'


REFUSALS = {
    "first weights that do not fit": (_wrong_weights, ConfigError),
    "more clients than images": (_too_many_clients, (ConfigError, DataError)),
    "a partition of unknown images": (_missing_lists, (ConfigError, DataError)),
}


@pytest.mark.rows("P12")
@pytest.mark.parametrize("why", REFUSALS)
@pytest.mark.parametrize("existing", [False, True], ids=["new", "empty"])
def test_a_refused_start_leaves_nothing(why: str, existing: bool, federation: Any) -> None:
    setting, error = REFUSALS[why]
    folder = federation.root / "run"
    if existing:
        folder.mkdir()
    with pytest.raises(error):
        federation.here("run", "simclr", "rounds=1", setting(federation.root))
    assert folder.exists() == existing
    assert not existing or list(folder.iterdir()) == []
    assert len(federation.here("run", "simclr", "rounds=1").rounds) == 1


@pytest.mark.rows("P12")
def test_a_start_that_fails_at_its_first_checkpoint_does_not_block_another(
    federation: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk is full when the first checkpoint is written, or the process is killed."""

    replace = Path.replace

    def full(temporary: Path, path: Path) -> Path:
        if path.parent.name == "checkpoints":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return replace(temporary, path)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", full)
        with raises(RunError):
            federation.here("run", "simclr", "rounds=1", "seed=1")
    assert federation.here("run", "simclr", "rounds=1", "seed=2").experiment.seed == 2
    with raises(ConfigError):
        federation.here("run", "simclr", "rounds=1", "seed=1")


@pytest.mark.rows("P12")
def test_a_refused_resume_leaves_the_run_as_it_was(
    federation: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A resume with 8 rounds was refused; a corrected one may have fewer."""
    federation.here("run", "simclr", "rounds=1")

    def refuse(self: Session, *arguments: Any, **more: Any) -> None:
        raise ConfigError("refused")

    with monkeypatch.context() as patch:
        patch.setattr("fedssl.experiment.federation_setup.build_trainers", refuse)
        with raises(ConfigError):
            federation.here("run", "simclr", "rounds=8")
    assert federation.here("run", "simclr", "rounds=2").experiment.rounds == 2


@pytest.mark.rows("P12")
@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_directory_that_cannot_be_created(federation: Any) -> None:
    federation.root.chmod(0o500)
    try:
        with pytest.raises(FedsslError):
            federation.here("run", "simclr", "rounds=1")
    finally:
        federation.root.chmod(0o700)
    assert len(federation.here("run", "simclr", "rounds=1").rounds) == 1


@pytest.fixture
def usual_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.rows("C10")
@pytest.mark.usefixtures("usual_umask")
def test_a_run_directory_is_for_its_owner_alone(federation: Any) -> None:
    """An existing one keeps its mode: its owner may have opened it to others."""
    federation.here("new/run", "simclr", "rounds=1")
    assert _mode(federation.root / "new/run") == 0o700
    (federation.root / "shared").mkdir(mode=0o755)
    federation.here("shared", "simclr", "rounds=1")
    assert _mode(federation.root / "shared") == 0o755
