"""C5: the merge clips, divides by the clients asked, and charges before it releases."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from error_messages import raises
from factories import ONE_WEIGHT, one_weight

from fedssl.algorithm import Upload
from fedssl.algorithms.fedavg import FedAvg
from fedssl.algorithms.fedavgm import FedAvgM
from fedssl.core.errors import RunError
from fedssl.core.state.tree import Tree, model
from fedssl.engine.privacy.accountant import gaussian_epsilon
from fedssl.engine.privacy.clipped_sum import ClippedSum
from fedssl.engine.privacy.ledger import Ledger, read_charges
from fedssl.engine.privacy.merge import WITHHELD, PrivateMerge
from fedssl.engine.privacy.settings import PrivacySettings
from fedssl.engine.uploads.records import Report
from fedssl.topologies.topology import SERVER, Plan
from fedssl.training.trainer import Metrics

pytestmark = pytest.mark.rows("C5")

CLIENTS = ["a", "b", "c", "d"]
PLAN = Plan(dict.fromkeys(CLIENTS, SERVER), {SERVER: dict.fromkeys(CLIENTS)})
SITE: Tree = {"model": one_weight(10.0)}


def make_merge(folder: Path, clip: float = 2.0, noise: float = 0.0, **options: Any) -> PrivateMerge:
    budget = options.pop("epsilon", None)
    options.setdefault("schema", {"model": ONE_WEIGHT})
    return PrivateMerge(
        options.pop("algorithm", FedAvg()),
        settings=PrivacySettings(clip=clip, noise=noise or None, epsilon=budget or 1e6),
        noise=noise,
        ledger=Ledger(folder, 0, print),
        plans=lambda round: CLIENTS,
        **options,
    )


def uploads(*values: float) -> list[Upload]:
    """Return uploads of one weight; the weights of the clients are as unequal as can be."""
    weighted = zip(CLIENTS, (1.0, 1e6, 3.0, 9.0), values, strict=False)
    return [Upload(client, weight, {"model": one_weight(x)}) for client, weight, x in weighted]


def weight_of(site: Tree) -> float:
    return model(site, "model").floats.item()


def test_a_round_by_hand(tmp_path: Path) -> None:
    """Updates 1, −0.5, 90 → 2 (clipped), none: 10 + (1 − 0.5 + 2 + 0) / 4 = 10.625."""
    merged = make_merge(tmp_path)(0, PLAN, SITE, uploads(11.0, 9.5, 100.0))
    assert weight_of(merged) == pytest.approx(10.625, rel=1e-6)


def test_removing_a_client_moves_the_result_by_at_most_clip_over_clients(tmp_path: Path) -> None:
    """Neighbours: d's upload is 1e30, or it has none; the result differs by 2 / 4."""
    merge = make_merge(tmp_path)
    without = weight_of(merge(0, PLAN, SITE, uploads(11.0, 9.5, 10.1)))
    with_it = weight_of(merge(0, PLAN, SITE, uploads(11.0, 9.5, 10.1, 1e30)))
    assert with_it - without == pytest.approx(0.5, rel=1e-5)
    assert with_it - without <= 0.5


def test_the_algorithm_sees_one_upload(tmp_path: Path) -> None:
    """FedAvgM: Δ = (1 + 1)/4 = 0.5, v = 0.5, w = 10.5; then v = 0.9·0.5 + 0.5 = 0.95, w = 11.45."""
    algorithm = FedAvgM(momentum=0.9)
    site: Tree = {**SITE, "velocity": torch.zeros(1)}
    merge = make_merge(tmp_path, algorithm=algorithm)
    site = merge(0, PLAN, site, uploads(11.0, 11.0))
    assert weight_of(site) == pytest.approx(10.5, rel=1e-6)
    site = merge(1, PLAN, site, uploads(11.5, 11.5))
    assert weight_of(site) == pytest.approx(11.45, rel=1e-6)


def test_the_noise_of_a_release(tmp_path: Path) -> None:
    """std = 3 · 2 / 4 = 1.5 over 2,000 releases, ±6 standard errors; no release repeats another."""
    merge = make_merge(tmp_path, noise=3.0)
    merge._charge = lambda round, asked: None  # type: ignore[method-assign]  # 2,000 syncs
    values = torch.tensor([weight_of(merge(0, PLAN, SITE, [])) for _ in range(2000)])
    assert values.std().item() == pytest.approx(1.5, rel=6 / math.sqrt(4000))
    assert values.mean().item() == pytest.approx(10, abs=6 * 1.5 / math.sqrt(2000))
    assert len(values.unique()) > 1990


def test_a_release_is_charged_before_it_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the moment when noise is drawn, the line is on the disk."""
    seen = []
    noised_mean = ClippedSum.noised_mean

    def look(total: ClippedSum, clients: int) -> Any:
        seen.append([charge.round for charge in read_charges(tmp_path, print)])
        return noised_mean(total, clients)

    monkeypatch.setattr(ClippedSum, "noised_mean", look)
    merge = make_merge(tmp_path, noise=5.0)
    merge(0, PLAN, SITE, uploads(11.0))
    merge(1, PLAN, SITE, uploads(11.0))
    assert seen == [[1], [1, 2]]
    assert merge.spent.releases == 2


def test_a_repeated_round_counts_twice_after_another_start(tmp_path: Path) -> None:
    """Lines 1, 2, 2 of the ledger are three releases: σ/√3."""
    merge = make_merge(tmp_path, noise=5.0)
    for round in (0, 1, 1):
        merge(round, PLAN, SITE, uploads(11.0))
    resumed = make_merge(tmp_path, noise=5.0)
    assert resumed.spent == merge.spent
    assert resumed.spent.epsilon == pytest.approx(gaussian_epsilon(5 / math.sqrt(3), 1e-5))


def test_too_few_uploads_release_and_cost_nothing(tmp_path: Path) -> None:
    merge = make_merge(tmp_path, noise=5.0, enough=lambda valid, asked: valid >= 2)
    assert merge(0, PLAN, SITE, uploads(11.0)) is SITE
    assert merge.spent.releases == 0
    assert merge.spent.epsilon == 0


def test_the_budget(tmp_path: Path) -> None:
    """σ = 5, δ = 10⁻⁵: ε = 0.7255 after one release, 1.0608 after two (σ/√2), over 1.2 after three."""
    merge = make_merge(tmp_path, noise=5.0, epsilon=1.2)
    rounds = 0
    while merge.within_budget(rounds) and rounds < 9:
        merge(rounds, PLAN, SITE, uploads(11.0))
        rounds += 1
    assert rounds == 2
    assert merge.spent.epsilon == pytest.approx(1.0608, abs=1e-3)


def test_reports_have_only_whether_an_upload_was_valid(tmp_path: Path) -> None:
    metrics = Metrics(
        loss=1.5, steps=3, images=77, seconds=1.0,
        embedding_std=0.1, effective_rank=2.0, alignment=0.3, uniformity=-1.0,
    )  # fmt: skip
    reports = [
        Report("a", None, metrics, 10, 20, divergence=3.5, notes={"lam": 2.0}, clipped=0.5),
        Report("b", "its update has the norm 123", bytes_down=10, memory_advanced=True),
    ]
    make_merge(tmp_path).withhold(reports)
    assert reports == [Report("a", None, bytes_down=10), Report("b", WITHHELD, bytes_down=10)]


def test_a_model_that_clients_do_not_receive_is_an_error(tmp_path: Path) -> None:
    merge = make_merge(tmp_path, schema={"other": ONE_WEIGHT})
    with raises(RunError):
        merge(0, PLAN, SITE, [])


def test_an_upload_with_more_than_models_is_an_error(tmp_path: Path) -> None:
    with raises(RunError):
        make_merge(tmp_path, schema={"model": ONE_WEIGHT, "loss": float})
