"""The messages of a run about stopping, finished runs, slow work and missing data."""

from __future__ import annotations

import io
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from error_messages import raises
from factories import make_experiment, random_pixels
from torch import Tensor

import fedssl
from fedssl.core.errors import ConfigError
from fedssl.core.state.tree import Tree
from fedssl.engine.runtimes.local import LocalRuntime
from fedssl.engine.uploads.records import Reply
from fedssl.method import METHODS
from fedssl.methods import SimCLR
from fedssl.runs.local import STOPPING, Interrupted
from fedssl.training.trainer import Metrics, Trainer


@pytest.fixture
def images() -> Tensor:
    return random_pixels(40, size=10)


@pytest.fixture
def go(images: Tensor, tmp_path: Path) -> Callable[..., fedssl.Run]:
    """go({"rounds": 1}): a tiny run in the folder `run`, with labelled test images."""

    def run(changes: dict[str, Any] | None = None, quiet: bool = False) -> fedssl.Run:
        test = (images[:12], torch.arange(12) % 3)
        experiment = make_experiment(clients=2, method__name="simclr")
        return fedssl.run(
            experiment, tmp_path / "run", "cpu", dataset=images, test=test, quiet=quiet, set=changes
        )

    return run


Go = Callable[..., fedssl.Run]


class Screen(io.StringIO):
    """Standard error that calls a function when a run reports that it stops."""

    def __init__(self, on_stop: Callable[[], None]) -> None:
        super().__init__()
        self._on_stop = on_stop

    def write(self, text: str) -> int:
        written = super().write(text)
        if STOPPING in text:
            self._on_stop()
        return written


def _interrupt_during_step(monkeypatch: pytest.MonkeyPatch, training: threading.Event) -> None:
    """Let the main thread raise SIGINT during the step of the first client.

    It does so when it makes the message of the second client: a signal of another thread may hit
    any line of the main thread, also a finalizer, in which Python ignores exceptions, and the
    locks of a thread pool, which then raise another error.
    """
    exchange = LocalRuntime.exchange

    def interrupted(
        self: LocalRuntime, round: int, clients: Sequence[str], message: Callable[[str], Tree]
    ) -> Iterator[Reply]:
        asked: list[str] = []

        def message_or_signal(client: str) -> Tree:
            asked.append(client)
            if len(asked) == 2:
                assert training.wait(60)
                signal.raise_signal(signal.SIGINT)
            return message(client)

        return exchange(self, round, clients, message_or_signal)

    monkeypatch.setattr(LocalRuntime, "exchange", interrupted)


def test_a_stop_is_reported_at_once(go: Go, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message comes during the step under way: here a step that waits for it."""
    training = threading.Event()
    notified = threading.Event()
    in_time = []
    fit = Trainer.fit

    def slow(self: Trainer, *args: Any) -> Metrics:
        if not threading.current_thread().name.startswith("trial"):  # before the first round
            training.set()
            in_time.append(notified.wait(60))
        return fit(self, *args)

    screen = Screen(notified.set)
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setattr(Trainer, "fit", slow)
    _interrupt_during_step(monkeypatch, training)
    with raises(Interrupted):
        go({"train.workers": 1})
    assert in_time == [True]
    assert screen.getvalue().count(STOPPING) == 1


def test_a_second_ctrl_c_does_not_disturb_the_stop(
    go: Go, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """In a script or notebook, with Python's own handler, which is restored afterwards."""
    training = threading.Event()
    training.set()
    screen = Screen(lambda: signal.raise_signal(signal.SIGINT))
    monkeypatch.setattr(sys, "stderr", screen)
    _interrupt_during_step(monkeypatch, training)
    with raises(Interrupted):
        go({"train.workers": 1})
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    monkeypatch.undo()
    go(quiet=True)
    assert (tmp_path / "run" / "results.json").is_file()


def test_a_message_if_a_run_was_finished_already(
    go: Go, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    go()
    assert "finished already" not in capsys.readouterr().err
    go()
    assert [line for line in capsys.readouterr().err.splitlines() if "finished" in line] == [
        f"{tmp_path / 'run'} was finished already, after 2 rounds, so nothing was trained or "
        "measured. To train more rounds, add --set rounds=4 --dir "
        f"{tmp_path / 'run'}; to start again, choose another --dir"
    ]
    go({"rounds": 4, "probe.k": 3})
    assert "finished already" not in capsys.readouterr().err
    go({"rounds": 4, "probe.k": 3}, quiet=True)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("name", ["isolated", "centralized"])
def test_a_run_is_not_trained_again_to_be_compared_with_itself(
    name: str, go: Go, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained = []
    fit = Trainer.fit

    def counted(self: Trainer, *args: Any) -> Metrics:
        trained.append(self)
        return fit(self, *args)

    monkeypatch.setattr(Trainer, "fit", counted)
    run = go({"topology.name": name, "probe.baselines": ["random", name]}, quiet=True)
    assert len(trained) == 2 * (2 if name == "isolated" else 1)  # rounds, clients
    table = run.results["table"]
    assert list(table) == ["this run", "random", name]
    assert table[name] == table["this run"]
    assert not (run.dir / name).exists()


def test_a_queue_longer_than_clients_can_fill(go: Go, capsys: pytest.CaptureFixture[str]) -> None:
    """40 images are 20 for each client, of which it trains two batches of 8.

    That is 32 keys in a round, so the queue is full after 128 rounds.
    """
    note = (
        "the median client has 20 images: it makes 32 keys a round and needs 128 rounds to fill "
        "method.queue = 4096. "
    )
    go({"method.name": "mocov2", "method.queue": 4096})
    assert note in capsys.readouterr().err
    go({"method.name": "mocov2", "method.queue": 4096, "rounds": 3})  # resumed: no second warning
    assert note not in capsys.readouterr().err


def test_training_before_the_first_round_can_be_followed(
    go: Go, capsys: pytest.CaptureFixture[str]
) -> None:
    go({"algorithm.name": "fedca", "public.images": 10})
    assert (
        "training the alignment model, before the first round and the first checkpoint\n"
        in capsys.readouterr().err
    )


def test_a_refused_directory_is_left_alone(go: Go, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "flower.json").touch()
    (tmp_path / "run" / "rounds.jsonl").write_text("{}\n")
    with raises(ConfigError):
        go(quiet=True)
    assert {file.name for file in (tmp_path / "run").iterdir()} == {"flower.json", "rounds.jsonl"}


def test_a_start_on_flower_that_failed_does_not_block_one_here(go: Go, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "flower.json").touch()
    run = go(quiet=True)
    assert not (run.dir / "flower.json").exists()


def test_images_that_are_refused_leave_no_directory(go: Go, tmp_path: Path) -> None:
    with raises(ConfigError):
        go({"topology.name": "edges", "topology.edges": [[0, 1]], "clients": 3}, quiet=True)
    assert not (tmp_path / "run").exists()


def test_a_run_of_a_method_that_is_not_known_here(
    go: Go,
    cli: Callable[..., tuple[int, str, str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As in another process, which has not imported the method: the error explains what to do."""
    monkeypatch.setattr(METHODS, "_classes", dict(METHODS._classes))
    METHODS.register("simclr2")(type("SimCLR2", (SimCLR,), {}))
    go({"method.name": "simclr2"}, quiet=True)
    del METHODS._classes["simclr2"]
    code, out, err = cli("evaluate", str(tmp_path / "run"))
    assert (code, out) == (2, "")
    assert err == (
        f'fedssl: {tmp_path / "run" / "experiment.toml"}: unknown method "simclr2", did you mean '
        '"simclr"? (if it is your own: add --import FILE with the module that registers it, or in '
        "Python import that module before you open the run)\n"
    )
