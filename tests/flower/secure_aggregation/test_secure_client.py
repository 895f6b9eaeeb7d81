"""The shares that a client reveals, and the requests that it refuses."""

from __future__ import annotations

from typing import Any

import pytest
from error_messages import raises
from secure_parties import SESSION, Parties, random_vectors

from fedssl.core.errors import ClientError
from fedssl.flower.secure_aggregation import client as protocol
from fedssl.flower.secure_aggregation.client import Masked, Shared
from fedssl.flower.secure_aggregation.roster import Member

pytestmark = pytest.mark.rows("C8")

WORDS = 20


def _shared(clients: int = 5) -> Parties:
    parties = Parties([10] * clients, WORDS)
    parties.advertise()
    parties.share()
    return parties


def _masked(without: Any = ()) -> Parties:
    parties = _shared()
    parties.mask(random_vectors(parties, WORDS), without)
    return parties


def test_of_each_client_one_kind_of_share_is_revealed() -> None:
    """Client 3 (number 4) dropped out: a share of its key is revealed, of all others the seeds."""
    parties = _masked(without="3")
    revealed = protocol.unmask(parties.masked["0"], parties.server.survivors)
    assert revealed.keys.keys() == {4}
    assert revealed.seeds.keys() == {1, 2, 3, 5}


def test_what_is_revealed_is_what_the_others_have_sent() -> None:
    parties = _masked()
    revealed = protocol.unmask(parties.masked["0"], [1, 2, 3, 4, 5])
    assert revealed.seeds[1] == parties.shared["0"].own.seed
    assert revealed.seeds == {n: shares.seed for n, shares in parties.masked["0"].shares.items()}


@pytest.mark.parametrize(
    "survivors",
    [
        [2, 3, 4],  # without this client
        [1, 2],  # below the threshold of 3
        [1, 2, 9],  # not in the roster
        [1, 1, 2],
        [],
    ],
)
def test_wrong_survivors_are_refused(survivors: list[int]) -> None:
    with raises(ClientError):
        protocol.unmask(_masked().masked["0"], survivors)


def test_a_survivor_that_has_not_shared_keys_is_refused() -> None:
    """Client 4 (number 5) dropped out before it shared its keys: there is nothing to reveal."""
    parties = Parties([10] * 5, WORDS)
    parties.advertise()
    parties.share(without="4")
    parties.mask(random_vectors(parties, WORDS))
    assert parties.server.survivors == [1, 2, 3, 4]
    with raises(ClientError):
        protocol.unmask(parties.masked["0"], [1, 2, 3, 5])


def test_two_vectors_of_one_input_have_nothing_in_common() -> None:
    """Keys are new in each round: a second round with the same input gives other words."""
    first = _masked()
    second = _masked()
    assert not set(first.vectors["0"].tolist()) & set(second.vectors["0"].tolist())


# -- shares of others --


def _refused(parties: Parties, state: Shared, ciphertexts: dict[int, bytes]) -> None:
    with raises(ClientError):
        protocol.receive_shares(state, ciphertexts)


def test_too_few_or_unknown_senders_are_refused() -> None:
    parties = _shared()
    state = parties.shared["0"]
    shares = parties.server.ciphertexts_for("0")
    _refused(parties, state, {2: shares[2]})
    _refused(parties, state, {**shares, 9: shares[2]})
    _refused(parties, state, {**shares, 1: shares[2]})


def test_shares_of_another_sender_are_refused() -> None:
    parties = _shared()
    shares = parties.server.ciphertexts_for("0")
    _refused(parties, parties.shared["0"], {**shares, 2: shares[3]})


def test_shares_of_another_round_are_refused() -> None:
    """The same keys and the same roster, but the shares were made for round 4."""
    parties = Parties([10] * 3, WORDS)
    roster = parties.advertise()
    later = SESSION._replace(round=4)
    mine, _ = protocol.share_keys(parties.advertised["0"], roster)
    shares = {}
    for number, client in ((2, "1"), (3, "2")):
        state = parties.advertised[client]._replace(session=later)
        shares[number] = protocol.share_keys(state, roster)[1][1]
    _refused(parties, mine, shares)


def test_clients_with_different_rosters_cannot_read_each_others_shares() -> None:
    """The server has replaced the keys of client 2 in the roster that it sends to client 0."""
    parties = Parties([10] * 3, WORDS)
    roster = parties.advertise()
    _, other = protocol.advertise_keys(SESSION)
    replaced = Member(other.encryption, other.masking, b"2" * 16)
    forged = roster._replace(members=(*roster.members[:2], replaced))
    mine, _ = protocol.share_keys(parties.advertised["0"], forged)
    _, theirs = protocol.share_keys(parties.advertised["1"], roster)
    _, third = protocol.share_keys(parties.advertised["2"], roster)
    _refused(parties, mine, {2: theirs[1], 3: third[1]})


def test_a_masked_state_has_no_secret_of_its_own_client() -> None:
    parties = _masked()
    state = parties.masked["0"]
    assert isinstance(state, Masked)
    keys = parties.advertised["0"].keys
    text = repr(state)
    for secret in (keys.encryption, keys.masking, parties.shared["0"].seed):
        assert repr(secret) not in text
