"""The server: exact sums, dropouts at every point, and messages that do not follow the protocol."""

from __future__ import annotations

import numpy as np
import pytest
from error_messages import raises
from hypothesis import given, settings
from hypothesis import strategies as st
from secure_parties import SESSION, Parties, plain_sum, random_vectors

from fedssl.flower.secure_aggregation import client as protocol
from fedssl.flower.secure_aggregation.keys import PrivateKeys
from fedssl.flower.secure_aggregation.roster import Member
from fedssl.flower.secure_aggregation.server import SecureSum, SecureSumError

pytestmark = pytest.mark.rows("C8")

WORDS = 100
IMAGES = [7, 11, 30, 2, 50]


def _sum(
    images: list[int] = IMAGES,
    *,
    fraction: float = 0.5,
    unshared: str = "",
    unsent: str = "",
    silent: str = "",
) -> tuple[Parties, np.ndarray, np.ndarray]:
    """Return the sum and the expected one, where clients drop out at three points."""
    parties = Parties(images, WORDS, fraction=fraction)
    parties.advertise()
    parties.share(without=unshared)
    vectors = random_vectors(parties, WORDS)
    parties.mask(vectors, without=unsent)
    expected = plain_sum(vectors, parties.server.clients_in_sum)
    return parties, parties.unmask(without=silent), expected


def test_the_sum_is_exact() -> None:
    parties, total, expected = _sum()
    assert np.array_equal(total, expected)
    assert parties.server.clients_in_sum == list("01234")


@pytest.mark.parametrize(
    "dropout",
    [
        {"unshared": "2"},  # before it has shared its keys: its masks are in no vector
        {"unsent": "2"},  # before its vector: its masks are removed with its restored key
        {"silent": "2"},  # after its vector: it is in the sum
        {"unsent": "24"},
        {"unshared": "2", "unsent": "4"},
        {"unsent": "0", "silent": "4"},
    ],
)
def test_dropouts_are_survived(dropout: dict[str, str]) -> None:
    parties, total, expected = _sum(**dropout)
    assert np.array_equal(total, expected)
    missing = set(dropout.get("unshared", "")) | set(dropout.get("unsent", ""))
    assert set(parties.server.clients_in_sum) == set("01234") - missing


@settings(max_examples=25)
@given(st.integers(3, 8), st.sets(st.integers(0, 7)), st.sets(st.integers(0, 7)))
def test_any_set_of_dropouts_that_leaves_enough(
    count: int, unsent: set[int], silent: set[int]
) -> None:
    required = max(count // 2 + 1, 3)
    sent = set(range(count)) - unsent
    texts = {"unsent": "".join(map(str, unsent)), "silent": "".join(map(str, silent))}
    if len(sent) < required or len(sent - silent) < required:
        with pytest.raises(SecureSumError):
            _sum([5] * count, **texts)
    else:
        _, total, expected = _sum([5] * count, **texts)
        assert np.array_equal(total, expected)


def test_one_vector_and_the_sum_reveal_nothing_without_the_seeds() -> None:
    """A sum from which the masks of one survivor are not removed is not accepted."""
    parties = Parties(IMAGES, WORDS)
    parties.advertise()
    parties.share()
    parties.mask(random_vectors(parties, WORDS))
    for client in parties.clients[:3]:
        revealed = protocol.unmask(parties.masked[client], parties.server.survivors)
        wrong = {number: share ^ 1 for number, share in revealed.seeds.items()}
        parties.server.add_revealed(client, revealed._replace(seeds=wrong))
    with raises(SecureSumError):
        parties.server.result()


@pytest.mark.parametrize("phase", ["advertise", "share", "mask", "unmask"])
def test_too_few_clients_in_a_phase(phase: str) -> None:
    """Five clients, of which more than 0.67 · 5, that is 4, are needed; three are left."""
    without = "34"
    with raises(SecureSumError):
        if phase == "advertise":
            Parties([1, 1], WORDS).advertise()
        else:
            places = {"share": "unshared", "mask": "unsent", "unmask": "silent"}
            _sum(fraction=0.67, **{places[phase]: without})


def test_a_wrong_number_of_images_is_detected() -> None:
    """A client with another weight than it declared: the first word of the sum differs."""
    parties = Parties(IMAGES, WORDS)
    parties.advertise()
    parties.share()
    vectors = random_vectors(parties, WORDS)
    vectors["1"][0] += np.uint64(1)
    parties.mask(vectors)
    with raises(SecureSumError):
        parties.unmask()


def test_shares_that_do_not_restore_the_key_of_a_dropout() -> None:
    parties = Parties(IMAGES, WORDS)
    parties.advertise()
    parties.share()
    parties.mask(random_vectors(parties, WORDS), without="4")
    for client in parties.clients[:4]:
        revealed = protocol.unmask(parties.masked[client], parties.server.survivors)
        parties.server.add_revealed(client, revealed._replace(keys={5: 12}))
    with raises(SecureSumError):
        parties.server.result()


# -- untrusted messages --


def test_keys_of_another_client_are_rejected() -> None:
    server = SecureSum(SESSION, words=WORDS, fraction=0.5, uniform=False)
    keys = PrivateKeys.new().public
    other = PrivateKeys.new().public
    server.add_member("0", Member(keys.encryption, keys.masking, b"0" * 16), 1)
    with pytest.raises(ValueError, match="another client"):
        server.add_member("1", Member(keys.masking, other.masking, b"1" * 16), 1)
    with pytest.raises(ValueError, match="another client"):
        server.add_member("1", Member(other.encryption, other.masking, b"0" * 16), 1)
    with pytest.raises(ValueError, match="are equal"):
        server.add_member("2", Member(other.masking, other.masking, b"2" * 16), 1)
    same = keys.masking[:-1] + bytes([keys.masking[-1] | 0x80])  # X25519 ignores this bit
    with pytest.raises(ValueError, match="not canonical"):
        server.add_member("1", Member(other.encryption, same, b"1" * 16), 1)


def test_invalid_vectors_are_rejected() -> None:
    parties = Parties(IMAGES, WORDS)
    parties.advertise()
    parties.share(without="4")
    parties.mask(random_vectors(parties, WORDS), without="3")
    server = parties.server
    vector = parties.vectors["3"]
    for client, wrong in (("3", vector[1:]), ("3", vector.view(np.int64)), ("0", vector)):
        with pytest.raises(ValueError, match=r"words, expected|sent a vector already"):
            server.add_vector(client, wrong)
    with pytest.raises(ValueError, match="not shared its keys"):
        server.add_vector("4", vector)
    assert server.clients_in_sum == list("012")


def test_shares_for_other_receivers_are_rejected() -> None:
    parties = Parties(IMAGES, WORDS)
    roster = parties.advertise()
    _, shares = protocol.share_keys(parties.advertised["0"], roster)
    with pytest.raises(ValueError, match="not for the other clients"):
        parties.server.add_ciphertexts("0", {2: shares[2]})
    with pytest.raises(ValueError, match="not for the other clients"):
        parties.server.add_ciphertexts("1", shares)


def test_revealed_shares_must_be_those_that_were_requested() -> None:
    parties = Parties(IMAGES, WORDS)
    parties.advertise()
    parties.share()
    parties.mask(random_vectors(parties, WORDS), without="4")
    revealed = protocol.unmask(parties.masked["0"], parties.server.survivors)
    server = parties.server
    for wrong in (
        revealed._replace(seeds={}),
        revealed._replace(keys={}),
        revealed._replace(seeds={**revealed.seeds, 5: 1}),
        revealed._replace(keys={5: 2**521}),
    ):
        with pytest.raises(ValueError, match=r"requested for|of the field"):
            server.add_revealed("0", wrong)
    server.add_revealed("0", revealed)
    with pytest.raises(ValueError, match="revealed shares already"):
        server.add_revealed("0", revealed)


def test_the_server_keeps_one_sum_and_no_vector() -> None:
    parties = Parties(IMAGES, WORDS)
    parties.advertise()
    parties.share()
    parties.mask(random_vectors(parties, WORDS))
    arrays = [value for value in vars(parties.server).values() if isinstance(value, np.ndarray)]
    assert len(arrays) == 1
    for vector in parties.vectors.values():
        assert not np.array_equal(arrays[0], vector)
