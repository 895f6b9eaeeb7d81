"""Pairs agree on keys that depend on the round, the roster, the purpose and the direction."""

from __future__ import annotations

import hashlib
import hmac

import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from error_messages import raises

from fedssl.core.errors import ClientError
from fedssl.flower.secure_aggregation.keys import (
    MASK,
    PrivateKeys,
    Shares,
    agree,
    decrypt_shares,
    direction,
    encrypt_shares,
    is_canonical,
)

BINDING = bytes(32)
SHARES = Shares(2**520, 17)


def test_both_sides_derive_the_same_key() -> None:
    one = PrivateKeys.new()
    other = PrivateKeys.new()
    mine = agree(one.masking, other.public.masking, MASK, BINDING)
    assert mine == agree(other.masking, one.public.masking, MASK, BINDING)
    assert len(mine) == 32


def test_every_part_of_the_binding_changes_the_key() -> None:
    one = PrivateKeys.new()
    other = PrivateKeys.new()
    third = PrivateKeys.new()
    derived = {
        agree(one.masking, other.public.masking, MASK, BINDING),
        agree(one.masking, third.public.masking, MASK, BINDING),
        agree(one.masking, other.public.encryption, MASK, BINDING),
        agree(one.masking, other.public.masking, direction(1, 2), BINDING),
        agree(one.masking, other.public.masking, direction(2, 1), BINDING),
        agree(one.masking, other.public.masking, MASK, b"1" * 32),
    }
    assert len(derived) == 6


def test_the_key_is_hkdf_of_the_x25519_secret() -> None:
    """RFC 5869 written out: extract with the salt, then one block of expand."""
    one = PrivateKeys.new()
    other = PrivateKeys.new()
    public = X25519PublicKey.from_public_bytes(other.public.masking)
    secret = X25519PrivateKey.from_private_bytes(one.masking).exchange(public)
    extracted = hmac.new(BINDING, secret, hashlib.sha256).digest()
    info = b"fedssl secure aggregation 1 " + MASK
    expected = hmac.new(extracted, info + b"\x01", hashlib.sha256).digest()
    assert agree(one.masking, other.public.masking, MASK, BINDING) == expected


@pytest.mark.parametrize("public", [bytes(32), b"short"])
def test_invalid_public_keys_are_rejected(public: bytes) -> None:
    """Zero is a point of small order: the shared secret would be known to all."""
    with raises(ClientError):
        agree(PrivateKeys.new().masking, public, MASK, BINDING)


@pytest.mark.parametrize("addend", [2**255, 2**255 - 19])
def test_other_bytes_of_the_same_key_are_not_canonical(addend: int) -> None:
    """X25519 ignores the highest bit, and reduces modulo 2²⁵⁵ − 19: 9, the base point, has two more
    encodings. All agree on one secret."""
    private = PrivateKeys.new().masking
    base = (9).to_bytes(32, "little")
    other = (9 + addend).to_bytes(32, "little")
    assert agree(private, base, MASK, BINDING) == agree(private, other, MASK, BINDING)
    assert is_canonical(base)
    assert not is_canonical(other)


def test_shares_are_encrypted_and_authenticated() -> None:
    key = bytes(range(32))
    ciphertext = encrypt_shares(key, SHARES)
    assert decrypt_shares(key, ciphertext) == SHARES
    for position in (0, 70, len(ciphertext) - 1):
        changed = bytearray(ciphertext)
        changed[position] ^= 1
        with raises(ClientError):
            decrypt_shares(key, bytes(changed))
    with raises(ClientError):
        decrypt_shares(bytes(32), ciphertext)
