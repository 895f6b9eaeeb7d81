"""The roster: what a client refuses, the weights, and the digest that binds messages to it."""

from __future__ import annotations

import pytest
from error_messages import raises
from secure_parties import SESSION, Parties

from fedssl.core.errors import ClientError
from fedssl.flower.secure_aggregation.keys import PrivateKeys
from fedssl.flower.secure_aggregation.roster import SecureRoster, SessionId, threshold_of

pytestmark = pytest.mark.rows("C8")


def _roster(clients: int = 5) -> SecureRoster:
    return Parties([10] * clients, words=4).advertise()


@pytest.mark.parametrize(
    ("count", "fraction", "expected"),
    [(3, 0.5, 2), (4, 0.5, 3), (5, 0.5, 3), (3, 0.67, 3), (5, 0.67, 4), (20, 0.67, 14)],
)
def test_the_threshold_is_more_than_the_fraction(
    count: int, fraction: float, expected: int
) -> None:
    assert threshold_of(count, fraction) == expected


def test_every_phase_needs_three_clients() -> None:
    """Of three, two restore a secret, but a sum of two models would reveal each to the other."""
    roster = Parties([10] * 3, words=4, fraction=0.5).advertise()
    assert (roster.threshold, roster.required) == (2, 3)


def test_weights_are_images_up_to_a_limit_or_equal() -> None:
    """Counts 10, 20 and 70 cut at 30 have a total of 60: shares 1/6, 1/3, 1/2."""
    parties = Parties([10, 20, 70], words=4)
    parties.advertise()
    roster = parties.server.make_roster(30.0)
    assert roster.total_weight == 60
    assert [roster.share(images, False) for images in (10, 20, 70)] == [10 / 60, 20 / 60, 0.5]
    uniform = Parties([10, 20, 70], words=4, uniform=True).advertise()
    assert [uniform.share(images, True) for images in (10, 20, 70)] == [1 / 3] * 3


def test_a_weight_above_the_total_is_refused() -> None:
    with raises(ClientError):
        _roster()._replace(total_weight=5.0).share(10, False)


@pytest.mark.parametrize("threshold", [0, 1, 2, 6])
def test_a_threshold_of_half_the_clients_or_more_than_all_is_refused(threshold: int) -> None:
    with raises(ClientError):
        _roster()._replace(threshold=threshold).check()


def test_two_clients_are_refused() -> None:
    roster = _roster()
    with raises(ClientError):
        roster._replace(members=roster.members[:2], threshold=2).check()


def test_a_repeated_key_is_refused() -> None:
    roster = _roster()
    repeated = (*roster.members[:4], roster.members[0])
    with raises(ClientError):
        roster._replace(members=repeated).check()


@pytest.mark.parametrize("key", ["encryption", "masking"])
def test_a_key_that_is_repeated_with_other_bytes_is_refused(key: str) -> None:
    """The second client has the key of the first: X25519 ignores the highest bit."""
    roster = _roster()
    first = getattr(roster.members[0], key)
    same = first[:-1] + bytes([first[-1] | 0x80])
    forged = roster.members[1]._replace(**{key: same})
    with raises(ClientError):
        roster._replace(members=(roster.members[0], forged, *roster.members[2:])).check()


def test_a_client_that_is_not_in_the_roster_refuses_it() -> None:
    with raises(ClientError):
        _roster().index_of(PrivateKeys.new().public)


def test_the_digest_depends_on_everything() -> None:
    roster = _roster()
    digests = {
        roster.digest(SESSION),
        roster.digest(SESSION._replace(round=4)),
        roster.digest(SESSION._replace(attempt=1)),
        roster.digest(SessionId("1" * 32, 0, 3)),
        roster._replace(threshold=4).digest(SESSION),
        roster._replace(words=5).digest(SESSION),
        roster._replace(total_weight=51.0).digest(SESSION),
        roster._replace(max_weight=9.0).digest(SESSION),
        roster._replace(members=roster.members[::-1]).digest(SESSION),
    }
    assert len(digests) == 9
