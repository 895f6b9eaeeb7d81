"""CCL's two losses against Eq. 3 and 7–11 of the paper written out as loops."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fedssl.algorithms._ccl_losses import candidates_among, fused_contrast, neighbourhood_matching


def unit(*shape: int, seed: int = 0) -> Tensor:
    return F.normalize(
        torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64),
        dim=-1,
    )


def marked(n: int, chosen: str) -> Tensor:
    place = torch.arange(n)
    return {"all": place >= 0, "some": place % 3 != 1, "last": place >= n - 3, "none": place < 0}[
        chosen
    ]


def looped_contrast(
    queries: Tensor, keys: Tensor, features: Tensor, negative: Tensor, tau: float
) -> Tensor:
    total = torch.zeros((), dtype=torch.float64)
    for v in range(len(queries)):
        for q, k in zip(queries[v], keys[v], strict=True):
            own = torch.exp(q @ k / tau)
            others = sum(
                torch.exp(q @ n / tau)
                for n, counts in zip(features, negative, strict=True)
                if counts
            )
            total = total - torch.log(own / (own + others)) / queries.shape[1]
    return total


def looped_matching(
    queries: Tensor, candidates: Tensor, known: Tensor, neighbours: int, tau: float
) -> Tensor:
    Q = [n for n, exists in zip(candidates, known, strict=True) if exists]
    total = torch.zeros((), dtype=torch.float64)
    for q in queries.flatten(0, 1):
        order = sorted(range(len(Q)), key=lambda m: -(q @ Q[m]).item())
        P = order[:neighbours]  # Eq. 8
        for j in P:
            L = [Q[j], *(Q[m] for m in order if m not in P)]  # Eq. 9
            assert len(L) == len(Q) - neighbours + 1
            exps = [torch.exp(q @ n / tau) for n in L]
            for e in exps:
                p = e / sum(exps)  # Eq. 10
                total = total - p * torch.log(p) / neighbours / queries.shape[1]  # Eq. 11
    return total


def same_with_gradient(ours: Tensor, looped: Tensor, queries: Tensor) -> None:
    torch.testing.assert_close(ours, looped)
    mine, theirs = (torch.autograd.grad(loss, queries)[0] for loss in (ours, looped))
    torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("chosen", ["all", "some", "last", "none"])
@pytest.mark.parametrize(
    ("views", "images", "n", "dim", "tau"), [(2, 3, 7, 4, 0.1), (1, 1, 3, 2, 0.5), (2, 5, 12, 3, 1)]
)
def test_the_fused_loss_is_equation_3(
    views: int, images: int, n: int, dim: int, tau: float, chosen: str
) -> None:
    queries = unit(views, images, dim).requires_grad_()
    others = unit(views, images, dim, seed=1), unit(n, dim, seed=2), marked(n, chosen), tau
    same_with_gradient(fused_contrast(queries, *others), looped_contrast(queries, *others), queries)


def test_the_fused_loss_by_hand() -> None:
    """The query is its key; of two negatives one is opposite, one at right angles and not counted.
    At temperature 1: −log e/(e + 1/e).
    """
    query = torch.tensor([[[1.0, 0.0]]])
    features = torch.tensor([[-1.0, 0.0], [0.0, 1.0]])
    loss = fused_contrast(query, query, features, torch.tensor([True, False]), 1.0)
    assert loss.item() == pytest.approx(-math.log(math.e / (math.e + 1 / math.e)))


@pytest.mark.parametrize("chosen", ["all", "some"])
@pytest.mark.parametrize(
    ("views", "images", "n", "dim", "neighbours", "tau"),
    [(2, 3, 9, 4, 3, 0.05), (1, 1, 4, 2, 1, 0.5), (2, 4, 15, 3, 9, 0.2), (1, 2, 6, 3, 2, 1.0)],
)
def test_matching_is_equations_8_to_11(
    views: int, images: int, n: int, dim: int, neighbours: int, tau: float, chosen: str
) -> None:
    queries = unit(views, images, dim).requires_grad_()
    others = unit(n, dim, seed=1), marked(n, chosen), neighbours, tau
    same_with_gradient(
        neighbourhood_matching(queries, *others), looped_matching(queries, *others), queries
    )


def test_matching_by_hand() -> None:
    """The neighbour and the three other candidates are equally similar: four equal chances have the
    entropy log 4, and two views count twice. With two neighbours of five candidates, each
    neighbour is again compared with three others, and the loss is the mean over both.
    """
    query = torch.tensor([[[1.0, 0.0]], [[1.0, 0.0]]])
    flat = torch.tensor([[0.0, 1.0]] * 4)
    assert neighbourhood_matching(query, flat, flat[:, 0] == 0, 1, 0.05).item() == pytest.approx(
        2 * math.log(4)
    )
    more = torch.tensor([[0.0, 1.0]] * 5)
    assert neighbourhood_matching(query, more, more[:, 0] == 0, 2, 0.05).item() == pytest.approx(
        2 * math.log(4)
    )


def test_matching_moves_a_query_towards_its_nearest() -> None:
    """Against the gradient, a query moves towards its neighbour and away from the rest."""
    query = F.normalize(torch.tensor([[[1.0, 0.3]]]), dim=-1).requires_grad_()
    candidates = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]])
    loss = neighbourhood_matching(query, candidates, torch.ones(3, dtype=torch.bool), 1, 0.5)
    step = -torch.autograd.grad(loss, query)[0].flatten()
    assert step @ candidates[0] > 0
    assert step @ candidates[1] < 0


def test_sharp_matches_stay_finite() -> None:
    """Similarities differ widely and the temperature is low: entropy 0 and a finite gradient."""
    query = torch.tensor([[[1.0, 0.0]]], requires_grad=True)
    candidates = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 0.0], [-1.0, 0.0]])
    loss = neighbourhood_matching(
        query, candidates, torch.tensor([True, True, False, True]), 1, 0.005
    )
    assert loss.item() == pytest.approx(0, abs=1e-6)
    assert torch.autograd.grad(loss, query)[0].isfinite().all()


@pytest.mark.parametrize(
    ("known", "n", "most"), [(5, 8, 4), (5, 5, 9), (5, 8, 8), (5, 8, 6), (5, 8, 5)]
)
def test_candidates_are_drawn_without_replacement_from_valid_rows(
    known: int, n: int, most: int
) -> None:
    draw = candidates_among(torch.arange(n) < known, most)
    stream = torch.Generator().manual_seed(0)
    seen = [draw(3, stream)["candidates"] for _ in range(200)]
    assert {len(drawn) for drawn in seen} == {
        min(n, most)
    }  # one shape for any number of valid rows
    real = [drawn[drawn < known].tolist() for drawn in seen]
    assert all(len(set(one)) == len(one) == min(known, most) for one in real)
    assert all(
        (drawn[drawn >= known] == known).all() for drawn in seen
    )  # not valid, so that it never counts
    often = torch.bincount(torch.tensor([i for one in real for i in one]), minlength=known)
    assert often.min() > 0.7 * often.max()  # no candidate is preferred
    assert len({tuple(one) for one in real}) > 1
