"""The warning about a collapsed representation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import fedssl
from fedssl.runs.collapse_warning import Collapse
from fedssl.runs.rounds_log import read_rounds

HEALTHY = (0.9, 80.0)


def line(
    number: int, *clients: tuple[float, float], alignment: float | None = 0.3
) -> dict[str, Any]:
    """Return the record of a round with (embedding_std, effective_rank) of each client."""
    signs = [
        {"client": f"{i}", "embedding_std": s, "effective_rank": r, "alignment": alignment}
        for i, (s, r) in enumerate(clients)
    ]
    return {"round": number, "clients": [*signs, {"client": "x", "dropped": "late"}]}


def warned(*rounds: tuple[float, float], alignment: float | None = 0.3) -> list[int]:
    """Return the rounds that caused a warning."""
    collapse = Collapse()
    lines = [
        line(i + 1, (0.9, 80.0), one, one, alignment=alignment) for i, one in enumerate(rounds)
    ]
    return [each["round"] for each in lines if collapse.update(each) is not None]


@pytest.mark.rows("C2")
@pytest.mark.parametrize("bad", [(0.09, 80.0), (0.9, 19.9), (0.05, 3.0)])
def test_two_bad_rounds_in_a_row_make_one_warning(bad: tuple[float, float]) -> None:
    """A quarter of 80 is 20."""
    assert warned(HEALTHY, bad, bad, bad, bad) == [3]
    assert warned(HEALTHY, bad, HEALTHY, bad, HEALTHY) == []
    assert warned(HEALTHY, bad, bad, HEALTHY, bad, bad) == [3, 6]


@pytest.mark.parametrize("fair", [(0.11, 80.0), (0.9, 20.1)])
def test_good_rounds_cause_no_warning(fair: tuple[float, float]) -> None:
    assert warned(HEALTHY, *[fair] * 5) == []


def test_a_rank_is_compared_with_earlier_ones_only() -> None:
    assert warned((0.9, 5.0), (0.9, 6.0), (0.9, 80.0)) == []


def test_a_client_with_few_images_is_compared_with_itself() -> None:
    """Four images have eight views, and no rank above eight."""
    rounds = [*[[("large", 40.0)]] * 3, *[[("small", 7.0)]] * 3]
    collapse = Collapse()
    for number, clients in enumerate(rounds):
        signs = [
            {"client": c, "embedding_std": 0.9, "effective_rank": r, "alignment": 0.3}
            for c, r in clients
        ]
        assert collapse.update({"round": number, "clients": signs}) is None


def test_of_the_runs_in_results_one_has_collapsed() -> None:
    """FedCA's; older logs have no alignment, but all are of methods with two views."""
    warnings = {}
    for log in sorted((Path(__file__).parents[2] / "results").glob("*/*/rounds.jsonl")):
        collapse = Collapse()
        for each in read_rounds(log):
            clients = [
                {**client, "alignment": client.get("alignment", 0.0)} for client in each["clients"]
            ]
            if collapse.update({**each, "clients": clients}) is not None:
                warnings[log.parent.name] = each["round"]
    assert warnings == {"fedca-seed0": 80}


def test_a_method_with_one_view_cannot_collapse() -> None:
    assert warned(*[(0.0, 1.0)] * 4, alignment=None) == []


def test_a_round_without_training_is_skipped() -> None:
    collapse = Collapse([line(1, HEALTHY), line(2, (0.0, 1.0))])
    assert collapse.update(line(3)) is None
    assert collapse.update(line(4, (0.0, 1.0))) is not None


def test_a_resumed_run_counts_earlier_rounds() -> None:
    earlier = [line(1, HEALTHY), line(2, (0.9, 19.0))]
    warning = Collapse(earlier).update(line(3, (0.09, 10.0)))
    assert warning is not None
    assert "2 rounds in a row: the spread of embeddings is 0.09" in warning
    assert "fallen to 12% of its maximum" in warning
    warned_before = Collapse([*earlier, line(3, (0.9, 19.0))])
    assert warned_before.update(line(4, (0.9, 19.0))) is None


def test_the_last_rounds_count() -> None:
    bad = line(3, (0.09, 80.0))
    assert Collapse([line(1, HEALTHY), bad, bad]).likely is not None
    assert Collapse([bad, bad, line(1, HEALTHY)]).likely is None


def run(
    folder: Path, capfd: pytest.CaptureFixture[str], seed: int, stop_gradient: bool
) -> tuple[bool, list[str]]:
    """Train SimSiam on a part of the demo's images; return if it warned, and the run's notes."""
    changes = {
        "seed": seed,
        "rounds": 8,
        "partition.share": 0.3,
        "method.name": "simsiam",
        "method.stop_gradient": stop_gradient,
        "probe": {"every": 0, "linear": False, "baselines": [], "picture": False},
    }
    done = fedssl.run("demo", folder, set=changes)
    return "become alike" in capfd.readouterr().err, done.results["notes"]


@pytest.mark.rows("C2")
@pytest.mark.slow
def test_simsiam_without_stop_gradient(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    warning, notes = run(tmp_path / "run", capfd, 0, stop_gradient=False)
    assert warning
    assert any("become alike" in note for note in notes)


@pytest.mark.rows("C2")
@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_a_healthy_simsiam(tmp_path: Path, capfd: pytest.CaptureFixture[str], seed: int) -> None:
    assert run(tmp_path / "run", capfd, seed, stop_gradient=True) == (False, [])
