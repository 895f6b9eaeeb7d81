"""Weights by hand, and the largest share of a mean."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedssl.engine.uploads.upload_weights import ImageCounts, UploadWeights, largest_count
from fedssl.topologies.topology import Plan


def star(
    counts: dict[str, int], max_share: float = 1.0, verified: bool = True, scheme: str = "size"
) -> UploadWeights:
    plan = Plan(dict.fromkeys(counts, "server"), {"server": dict.fromkeys(counts)})
    return UploadWeights(
        plan, scheme, max_share=max_share, counts=ImageCounts(lambda: counts, verified)
    )


@pytest.mark.rows("U11")
def test_one_client_gets_at_most_its_share() -> None:
    """Of 1,000,000, 30 and 10 images, half: the first counts as 30 + 10 = 40."""
    weights = star({"a": 10**6, "b": 30, "c": 10}, 0.5)
    assert [
        weights.weight("server", client, n) for client, n in (("a", 10**6), ("b", 30), ("c", 10))
    ] == [40, 30, 10]
    assert weights.share("a") == 0.5


@pytest.mark.rows("U11")
def test_several_are_cut_to_the_same_count() -> None:
    """At most 0.3 each of 500, 400, 10 and 10: t = 0.3·(2t + 20), so t = 15, and 15/50 = 0.3."""
    assert largest_count([500, 10, 400, 10], 0.3) == pytest.approx(15)


def test_with_too_few_clients_for_the_share_all_weights_are_equal() -> None:
    assert largest_count([900, 100], 0.5) == 100
    assert largest_count([900, 100], 0.4) == 100
    assert largest_count([7], 0.5) == 7


def test_without_a_limit_weights_are_the_counts() -> None:
    for weights in (star({"a": 900, "b": 100}), star({"a": 40, "b": 30, "c": 30}, 0.5)):
        assert weights.weight("server", "a", 900) == 900.0
    assert star({"a": 900, "b": 100}, 0.1, scheme="uniform").weight("server", "a", 900) == 1.0


@pytest.mark.rows("U11")
@given(st.lists(st.integers(1, 10**7), min_size=1, max_size=30), st.floats(0.01, 1))
def test_no_share_exceeds_the_limit_and_the_smallest_client_keeps_its_count(
    counts: list[int], max_share: float
) -> None:
    limit = largest_count(counts, max_share)
    cut = [min(count, limit) for count in counts]
    assert max(cut) / math.fsum(cut) <= max(max_share, 1 / len(counts)) * (1 + 1e-9)
    assert min(cut) == min(counts)


def test_shares_of_peers_and_of_unknown_clients_are_one() -> None:
    assert star({}).share("a") == 1.0
    plan = Plan({"a": "a", "b": "b"}, {"a": {"a": 0.5, "b": 0.5}, "b": {"a": 0.5, "b": 0.5}})
    peers = UploadWeights(
        plan, "size", max_share=0.1, counts=ImageCounts(lambda: {"a": 900, "b": 1}, True)
    )
    assert peers.share("a") == 1.0
    assert peers.weight("a", "b", 1) == 0.5


def test_a_large_declared_count_does_not_reduce_other_shares() -> None:
    """Of 10⁷, 10 and 10 images the second has 10⁻⁶ of the mean, but its share counts as a third."""
    assert star({"a": 10**7, "b": 10, "c": 10}).share("b") == pytest.approx(1 / 3)


def test_with_several_clusters_shares_are_unknown() -> None:
    plan = Plan(dict.fromkeys("abc", "server"), {"server": dict.fromkeys("abc")})
    counts = ImageCounts(lambda: dict.fromkeys("abc", 5))
    assert (
        UploadWeights(plan, "uniform", max_share=1.0, counts=counts, averages_all=False).share("a")
        == 1.0
    )


def test_a_client_without_images_does_not_limit_the_others() -> None:
    assert star({"a": 1000, "b": 900, "c": 0}, 0.6).weight("server", "a", 1000) == 1000


def test_only_counts_made_here_are_verified() -> None:
    assert star({"a": 9}).verified_images("a") == 9
    assert star({"a": 9}, verified=False).verified_images("a") == 0
    assert (ImageCounts(verified=True).max_share, ImageCounts().max_share) == (1.0, 0.5)
