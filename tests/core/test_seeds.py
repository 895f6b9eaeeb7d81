"""Seeds are a hash of their purpose."""

from __future__ import annotations

import hashlib
import itertools

import torch
from hypothesis import given
from hypothesis import strategies as st

from fedssl.core.seeds import derive, generator

purposes = st.lists(st.one_of(st.integers(), st.text()), max_size=4).map(tuple)


def test_derived_by_hand() -> None:
    """The first eight bytes of SHA-256 of the JSON list, without the lowest bit."""
    digest = hashlib.sha256(b'[7, 0, "client 1", "train"]').hexdigest()
    assert derive(7, 0, "client 1", "train") == int(digest[:16], 16) // 2


def test_the_same_on_every_machine() -> None:
    assert derive(0, "weights") == 174433883055019982
    assert derive(0, 3, "ü") == 4040290290320303692


@given(purposes)
def test_torch_accepts_every_seed(purpose: tuple[str | int, ...]) -> None:
    assert 0 <= derive(*purpose) < 2**63
    assert torch.equal(
        torch.rand(3, generator=generator(*purpose)), torch.rand(3, generator=generator(*purpose))
    )


@given(purposes, purposes)
def test_seeds_differ_by_purpose(a: tuple[str | int, ...], b: tuple[str | int, ...]) -> None:
    assert (derive(*a) == derive(*b)) == (a == b)


def test_order_grouping_and_type_of_parts_matter() -> None:
    alike = [(1, 2), (2, 1), (12,), ("1", 2), (1, "2"), ("1, 2",), ("12",), (1, 2, ""), (0, 1, 2)]
    assert len({derive(*purpose) for purpose in alike}) == len(alike)


def test_streams_are_independent() -> None:
    streams = [
        torch.rand(1000, generator=generator(0, round, c)) for round in range(3) for c in "ab"
    ]
    for a, b in itertools.combinations(streams, 2):
        assert abs(torch.corrcoef(torch.stack([a, b]))[0, 1]) < 0.1


def test_the_global_stream_is_not_touched() -> None:
    before = torch.get_rng_state()
    torch.rand(5, generator=generator(1, "x"))
    assert torch.equal(torch.get_rng_state(), before)
