"""Routing of uploads to sites: order, timing and lifetime."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedssl.algorithm import Upload
from fedssl.engine.uploads.records import Candidate, Reply
from fedssl.engine.uploads.routing import Routing
from fedssl.engine.uploads.upload_weights import UploadWeights
from fedssl.topologies.topology import Plan


class Tracked(dict[str, int]):
    """An upload that supports weak references."""


def received(
    clients: str,
    dropped: str = "",
    on_make: Callable[[str, Tracked], None] = lambda client, tree: None,
) -> Iterator[Candidate]:
    for i, client in enumerate(clients):
        yield _made(i, client, dropped, on_make)


def _made(i: int, client: str, dropped: str, on_make: Callable[[str, Tracked], None]) -> Candidate:
    tree = Tracked(n=i)
    on_make(client, tree)
    upload = None if client in dropped else tree
    return Candidate(Reply(client, i + 1, upload, None), error=None)


def plan(clients: str, mixing: Mapping[str, str]) -> Plan:
    return Plan(
        dict.fromkeys(clients, "home"),
        {site: dict.fromkeys(takes) for site, takes in mixing.items()},
    )


def deliver(p: Plan, stream: Iterator[Candidate], scheme: str = "size") -> Routing:
    return Routing(p, stream, UploadWeights(p, scheme))


def delivered(
    p: Plan, stream: Iterator[Candidate], weights: str = "size"
) -> dict[str, list[Upload]]:
    return {site: list(uploads) for site, uploads in deliver(p, stream, weights)}


def test_weights_are_the_plans() -> None:
    p = Plan({"a": "x", "b": "y"}, {"x": {"a": None, "b": None}, "y": {"b": 0.5}})
    assert delivered(p, received("ab")) == {
        "x": [Upload("a", 1.0, {"n": 0}), Upload("b", 2.0, {"n": 1})],
        "y": [Upload("b", 0.5, {"n": 1})],
    }
    assert [u.weight for u in delivered(p, received("ab"), "uniform")["x"]] == [1.0, 1.0]


def test_a_site_without_uploads_is_not_listed() -> None:
    p = plan("abc", {"x": "ab", "y": "c", "z": "", "w": "strn"})
    assert {
        site: [u.client for u in us] for site, us in delivered(p, received("abc", "c")).items()
    } == {"x": ["a", "b"]}


@given(
    st.dictionaries(st.sampled_from("uvwxyz"), st.sets(st.sampled_from("abcdef"))),
    st.sets(st.sampled_from("abcdef")),
)
def test_every_site_gets_its_own_in_the_clients_order(
    mixing: dict[str, set[str]], dropped: set[str]
) -> None:
    got = delivered(plan("abcdef", mixing), received("abcdef", dropped))  # type: ignore[arg-type]
    expected = {
        site: [c for c in "abcdef" if c in takes - dropped] for site, takes in mixing.items()
    }
    assert {site: [u.client for u in us] for site, us in got.items()} == {
        s: c for s, c in expected.items() if c
    }


def test_one_site_streams() -> None:
    """The next reply is not requested before the merge asks for it."""
    made: list[str] = []
    ((_, uploads),) = [
        next(iter(deliver(plan("abc", {"x": "abc"}), received("abc", on_make=_noting(made)))))
    ]
    assert made == ["a"]
    for expected in ("a", "ab", "abc"):
        next(uploads)
        assert "".join(made) == expected


def _noting(made: list[str]) -> Callable[[str, Tracked], None]:
    return lambda client, tree: made.append(client)


@pytest.mark.parametrize("dropped", ["", "b", "c", "abc"])
def test_a_site_merges_as_soon_as_its_uploads_are_complete(dropped: str) -> None:
    """x waits for a and b, y for c, z for b and d; those dropped are not waited for either."""
    made: list[str] = []
    stream = received("abcd", dropped, _noting(made))
    done = {}
    for site, uploads in deliver(plan("abcd", {"z": "bd", "y": "c", "x": "ab"}), stream):
        list(uploads)
        done[site] = "".join(made)
    expected = {"x": "ab", "y": "abc", "z": "abcd"}
    takes = {"x": "ab", "y": "c", "z": "bd"}
    assert done == {site: at for site, at in expected.items() if set(takes[site]) - set(dropped)}
    assert list(done) == [site for site in "xyz" if site in done]


@pytest.mark.parametrize(
    ("mixing", "most"),
    [
        ({"server": "abcdefgh"}, 1),
        ({c: c for c in "abcdefgh"}, 1),
        (
            {c: "abcdefgh"[max(0, i - 1) : i + 2] for i, c in enumerate("abcdefgh")},
            2,
        ),  # a chain: left, itself, right
        ({"x": "abcd", "y": "efgh"}, 1),
        ({"x": "ah", "y": "bcdefg"}, 2),  # a waits for h, the others pass
        ({"x": "abcdefgh", "y": "abcdefgh"}, 8),  # all are kept for y
    ],
)
def test_no_upload_outlives_its_last_site(mixing: dict[str, str], most: int) -> None:
    alive: set[int] = set()
    peak = []

    def watch(client: str, tree: Tracked) -> None:
        alive.add(id(tree))
        weakref.finalize(tree, alive.discard, id(tree))
        peak.append(len(alive))

    for _, uploads in deliver(plan("abcdefgh", mixing), received("abcdefgh", on_make=watch)):
        while next(uploads, None) is not None:  # like a merge that stores only its sum
            pass
    assert max(peak) == most
    assert not alive


def test_a_merge_that_stops_early_does_not_delay_other_sites() -> None:
    made: list[str] = []
    got = {}
    for site, uploads in deliver(
        plan("abcd", {"x": "abcd", "y": "bd"}), received("abcd", on_make=_noting(made))
    ):
        got[site] = next(uploads).client
    assert got == {"x": "a", "y": "b"}
    assert made == list("abcd")


def test_missing_replies_do_not_delay_other_sites() -> None:
    assert [u.client for u in delivered(plan("abc", {"x": "abc"}), received("a"))["x"]] == ["a"]
