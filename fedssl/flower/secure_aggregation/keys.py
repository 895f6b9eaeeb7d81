"""Keys of one round: agreement of pairs by X25519 and HKDF-SHA256, encryption of shares.

Every derived key depends on the round, on the roster with all public keys, on its purpose and on
the pair. Two clients that were sent different rosters therefore cannot read each other's shares.
"""

from __future__ import annotations

from typing import NamedTuple

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from fedssl.core.errors import ClientError
from fedssl.flower.secure_aggregation.shamir import SHARE_BYTES

KEY_BYTES = 32
FIELD = 2**255 - 19  # X25519 computes modulo this prime
MASK = b"pairwise mask"
# Each key encrypts one message, so that the nonce need not differ.
_NONCE = bytes(12)


class PublicKeys(NamedTuple):
    """The two public keys that a client advertises in a round."""

    encryption: bytes  # the paper's c^PK, for shares
    masking: bytes  # the paper's s^PK, for pairwise masks


class PrivateKeys(NamedTuple):
    """The private halves of `PublicKeys`; `masking` may become known to the server."""

    encryption: bytes
    masking: bytes

    @classmethod
    def new(cls) -> PrivateKeys:
        """Return new random keys."""
        encryption = X25519PrivateKey.generate().private_bytes_raw()
        return cls(encryption, X25519PrivateKey.generate().private_bytes_raw())

    @property
    def public(self) -> PublicKeys:
        """The public halves."""
        return PublicKeys(public_key(self.encryption), public_key(self.masking))


class Shares(NamedTuple):
    """One client's shares of the two secrets of another client."""

    key: int  # of the private masking key
    seed: int  # of the seed of the self mask, the paper's b


def public_key(private: bytes) -> bytes:
    """Return the public half of a private key."""
    key: bytes = X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()
    return key


def is_canonical(public: bytes) -> bool:
    """Return whether these are the bytes that X25519 implementations write for a public key.

    It ignores the highest bit and reduces the rest, so that other bytes can mean the same key.
    """
    return int.from_bytes(public, "little") < FIELD


def agree(private: bytes, public: bytes, purpose: bytes, binding: bytes) -> bytes:
    """Return the key that two clients share for a purpose; `binding` is the roster's digest.

    Raises ClientError if the other public key is not valid.
    """
    try:
        other = X25519PublicKey.from_public_bytes(public)
        secret = X25519PrivateKey.from_private_bytes(private).exchange(other)
    except ValueError:  # a wrong length, or a point of small order
        raise ClientError("a public key in the roster of the secure sum is not valid") from None
    info = b"fedssl secure aggregation 1 " + purpose
    key: bytes = HKDF(SHA256(), KEY_BYTES, salt=binding, info=info).derive(secret)
    return key


def direction(sender: int, receiver: int) -> bytes:
    """Return the purpose of the key that encrypts shares from one client to another."""
    return f"shares from {sender} to {receiver}".encode()


def encrypt_shares(key: bytes, shares: Shares) -> bytes:
    """Return encrypted and authenticated shares. The key must not be used again."""
    text = shares.key.to_bytes(SHARE_BYTES, "big") + shares.seed.to_bytes(SHARE_BYTES, "big")
    ciphertext: bytes = ChaCha20Poly1305(key).encrypt(_NONCE, text, None)
    return ciphertext


def decrypt_shares(key: bytes, ciphertext: bytes) -> Shares:
    """Return the shares; raises ClientError if the key or any byte is another one."""
    try:
        text = ChaCha20Poly1305(key).decrypt(_NONCE, ciphertext, None)
    except InvalidTag:
        raise ClientError(
            "shares of another client cannot be decrypted: they are damaged, of another round, or "
            "the server has sent different rosters to the clients"
        ) from None
    if len(text) != 2 * SHARE_BYTES:
        raise ClientError(f"shares of another client have {len(text)} bytes")
    key_share = int.from_bytes(text[:SHARE_BYTES], "big")
    return Shares(key_share, int.from_bytes(text[SHARE_BYTES:], "big"))
