"""The lines and the bar that show the progress of rounds, and the estimated time."""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from factories import make_experiment, random_pixels

import fedssl
from fedssl.engine.uploads.records import Reply
from fedssl.runs import progress
from fedssl.runs.progress import Lines, round_progress
from fedssl.runs.time_left import TRAINING_ONLY, FollowingWork, Pace

REPLY = Reply("a", 10, None, None)
Clock = Callable[[float], None]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def set_clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """set_clock(5): the clock of the progress display is at 5 seconds."""
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])

    def set_to(seconds: float) -> None:
        now[0] = 100.0 + seconds

    return set_to


def line(number: int, **changes: Any) -> dict[str, Any]:
    """Return the record of a round without dropped uploads."""
    client = {"client": "a", "dropped": None}
    values = {"round": number, "loss": 1.0, "images_per_s": 50.0, "knn": None, "failed": False}
    return {**values, "clients": [client], **changes}


def test_the_time_left_is_in_proportion_to_the_client_rounds(set_clock: Clock) -> None:
    """3 of 40 client-rounds take 6 seconds: 37 take 74."""
    pace = Pace(10, 0, per_round=4, workers=1)
    for seconds in (2, 4, 6):
        set_clock(seconds)
        pace.finish_client()
    assert pace.left == pytest.approx(74)
    assert pace.summary() == "6 s elapsed, 1:14 left"


def test_there_is_no_estimate_before_two_clients_per_worker(set_clock: Clock) -> None:
    """Two workers finish their first clients at the same time: one client is half the work."""
    pace = Pace(10, 0, per_round=8, workers=2)
    set_clock(4)
    for _ in range(3):
        pace.finish_client()
    assert pace.left is None
    pace.finish_client()
    assert pace.left == pytest.approx(4 * 76 / 4)


def test_rounds_before_a_resume_do_not_count(set_clock: Clock) -> None:
    """After round 90 of 100, one round takes 5 seconds: nine more take 45."""
    pace = Pace(100, 90, per_round=3)
    set_clock(5)
    pace.finish_round(91)
    assert (pace.elapsed, pace.left) == (5, 45)


def test_the_estimate_is_made_once_and_from_measured_rounds(set_clock: Clock) -> None:
    """Two rounds of 20 in 5 seconds: all take 50."""
    pace = Pace(20, 0, per_round=1, later=TRAINING_ONLY)
    set_clock(1.5)
    assert pace.finish_round(1) is None  # too early
    set_clock(5)
    assert pace.finish_round(2) == "estimated time of training: about 50 s"
    set_clock(6)
    assert pace.finish_round(3) is None


def test_long_rounds_are_estimated_from_their_first_clients(set_clock: Clock) -> None:
    """Two of 100 clients in 60 seconds: two rounds of them take 100 minutes."""
    pace = Pace(2, 0, per_round=100, workers=1)
    set_clock(30)
    assert pace.finish_client() is None
    set_clock(60)
    assert pace.finish_client() == "estimated time: about 1.7 h"


def test_short_training_has_no_estimate(set_clock: Clock) -> None:
    pace = Pace(2, 0, per_round=1)
    set_clock(1)
    assert pace.finish_round(1) is None
    set_clock(3)
    assert pace.finish_round(2) is None  # nothing is left


def test_the_time_left_includes_baselines_and_measuring(set_clock: Clock) -> None:
    """One round of 10 takes 6 s: 54 s are left, then 120 s of baselines and 30 s of measuring."""
    pace = Pace(10, later=FollowingWork(baselines=2.0, measuring=30.0, picture=True))
    set_clock(6)
    assert pace.finish_round(1) == (
        "estimated time: about 4 min: training 60 s, baselines 2 min, measuring and picture 30 s"
    )
    assert pace.left == pytest.approx(54 + 120 + 30)
    assert pace.summary() == "6 s elapsed, 3:24 left"
    set_clock(60)
    pace.finish_round(10)
    assert pace.summary() == "1:00 elapsed, 2:30 left"


def test_a_resumed_run_has_baselines_of_all_its_rounds(set_clock: Clock) -> None:
    """Rounds of 5 s: one of the last two is left, and a baseline of ten rounds."""
    pace = Pace(10, 8, later=FollowingWork(baselines=1.0))
    set_clock(5)
    pace.finish_round(9)
    assert pace.left == pytest.approx(5 + 50)


@pytest.mark.parametrize(("announced", "printed"), [(40.0, False), (39.0, True), (90.0, True)])
def test_an_estimate_that_was_far_off_is_corrected(
    announced: float, printed: bool, set_clock: Clock
) -> None:
    """Ten rounds of 6 s and no baselines are one minute, 1.5 times 40 s, or 2/3 of 90 s."""
    pace = Pace(10, later=FollowingWork(announced=announced + 0.1 * (not printed)))
    set_clock(6)
    text = "estimated time: about 60 s"
    assert pace.finish_round(1) == (text if printed else None)


def test_a_baseline_has_no_estimate_and_its_time_left_is_marked(set_clock: Clock) -> None:
    pace = Pace(10, later=FollowingWork(part="this baseline", estimated=False))
    set_clock(6)
    assert pace.finish_round(1) is None
    assert pace.summary() == "6 s elapsed, 54 s left of this baseline"


def test_every_line_has_the_time_elapsed_and_left(
    set_clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = Lines("demo", Pace(4))
    for number, seconds in ((1, 1), (2, 8), (3, 9), (4, 80)):
        set_clock(seconds)
        lines.client(REPLY)
        lines.round(line(number))
    assert capsys.readouterr().err.splitlines() == [
        "demo: round 1/4  1/1 clients  loss 1.0000  50 images/s  1 s elapsed, 3 s left",
        "demo: round 2/4  1/1 clients  loss 1.0000  50 images/s  8 s elapsed, 8 s left",
        "demo: estimated time: about 16 s",
        "demo: round 4/4  1/1 clients  loss 1.0000  50 images/s  1:20 elapsed",
    ]


def test_the_bar_of_a_resumed_run(set_clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bar starts at round 90; two clients in 5 seconds leave 18 clients, or 45 seconds."""
    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setenv("COLUMNS", "200")
    pace = Pace(100, 90, per_round=2, workers=1, later=TRAINING_ONLY)
    with round_progress("demo", pace, quiet=False) as shown:
        set_clock(5)
        shown.client(REPLY)
        shown.client(REPLY)
        shown.round(line(91, knn=50.0))
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", sys.stderr.getvalue())
    assert "demo: estimated time of training: about 50 s" in text
    last = text.splitlines()[-1]
    assert last.startswith("demo  round 91/100")
    assert last.rstrip().endswith("45 s left of training")


def test_a_run_prints_what_it_trains(capfd: pytest.CaptureFixture[str], tmp_path: Any) -> None:
    """The convolutions of `cnn` have 32·27, 64·288 and 128·576 weights, its norms 2·(32+64+128)."""
    experiment = make_experiment(clients=2, method__name="simclr")
    images = random_pixels(40, size=10)
    test = (images[:12], torch.arange(12) % 3)
    fedssl.run(experiment, tmp_path / "run", "cpu", dataset=images, test=test)
    weights = 32 * 27 + 64 * 288 + 128 * 576 + 2 * (32 + 64 + 128)
    about = f"fedavg-simclr-images: training cnn ({weights:,} weights) on cpu, 2 clients, 40 images"
    assert f"{about}, 2 rounds\n" in capfd.readouterr().err
    fedssl.run(experiment, tmp_path / "run", "cpu", dataset=images, test=test, rounds=5)
    assert f"{about}, 3 of 5 rounds\n" in capfd.readouterr().err
    fedssl.run(experiment, tmp_path / "run", "cpu", dataset=images, test=test, rounds=6, quiet=True)
    assert capfd.readouterr().err == ""
