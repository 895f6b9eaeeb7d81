"""A client's part of a secure sum: a state per phase, and functions from one to the next.

    advertise_keys → Advertised → share_keys → Shared → receive_shares → Masked → unmask

A state contains secrets and stays on the node. Each function is called once per round, and the next
state is stored before anything is sent: see storage.py.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Mapping
from typing import NamedTuple

from fedssl.core.errors import ClientError
from fedssl.flower.secure_aggregation.keys import (
    KEY_BYTES,
    MASK,
    PrivateKeys,
    PublicKeys,
    Shares,
    agree,
    decrypt_shares,
    direction,
    encrypt_shares,
)
from fedssl.flower.secure_aggregation.masks import Mask
from fedssl.flower.secure_aggregation.roster import SecureRoster, SessionId
from fedssl.flower.secure_aggregation.shamir import share_secret

Ciphertexts = Mapping[int, bytes]


class Advertised(NamedTuple):
    """After round 0 of Figure 4."""

    session: SessionId
    keys: PrivateKeys


class Shared(NamedTuple):
    """After round 1: the server has the encrypted shares."""

    session: SessionId
    keys: PrivateKeys
    roster: SecureRoster
    number: int  # of this client in the roster
    seed: bytes  # of the self mask
    own: Shares  # the shares of its secrets that this client keeps


class Masked(NamedTuple):
    """In round 2: the masks were computed. The client's own secrets are not needed any more."""

    session: SessionId
    roster: SecureRoster
    number: int
    shares: dict[int, Shares]  # of each client that has shared its keys, this one included


class Finished(NamedTuple):
    """Nothing is left; the session cannot begin again."""

    session: SessionId


ClientState = Advertised | Shared | Masked | Finished


class Revealed(NamedTuple):
    """The shares that a client sends to unmask the sum: one kind per client."""

    keys: dict[int, int]  # of clients without an upload
    seeds: dict[int, int]  # of clients whose upload is in the sum


def advertise_keys(session: SessionId) -> tuple[Advertised, PublicKeys]:
    """Round 0: return new keys, and their public halves to send."""
    keys = PrivateKeys.new()
    return Advertised(session, keys), keys.public


def share_keys(state: Advertised, roster: SecureRoster) -> tuple[Shared, dict[int, bytes]]:
    """Round 1: return the encrypted shares for each other client."""
    roster.check()
    index = roster.index_of(state.keys.public)
    binding = roster.digest(state.session)
    seed = secrets.token_bytes(KEY_BYTES)
    key_shares = share_secret(state.keys.masking, roster.threshold, roster.indices)
    seed_shares = share_secret(seed, roster.threshold, roster.indices)
    ciphertexts = {}
    for other in roster.indices:
        if other == index:
            continue
        public = roster.member(other).encryption
        key = agree(state.keys.encryption, public, direction(index, other), binding)
        shares = Shares(key_shares[other], seed_shares[other])
        ciphertexts[other] = encrypt_shares(key, shares)
    own = Shares(key_shares[index], seed_shares[index])
    return Shared(state.session, state.keys, roster, index, seed, own), ciphertexts


def receive_shares(state: Shared, ciphertexts: Ciphertexts) -> tuple[Masked, list[Mask]]:
    """Round 2: return the masks of this client's vector, given the shares of the other clients.

    Shares are decrypted now and not in the last round, so that a client that was sent another
    roster notices it before it sends a vector.
    """
    roster = state.roster
    index = state.number
    others = sorted(ciphertexts)
    if index in ciphertexts or not set(others) <= set(roster.indices):
        raise ClientError("the secure sum has shares of a client that is not in its roster")
    if len(others) + 1 < roster.required:
        raise ClientError(
            f"{len(others) + 1} clients have shared their keys; the secure sum needs "
            f"{roster.required}"
        )
    binding = roster.digest(state.session)
    shares = {index: state.own}
    masks = [Mask(state.seed)]
    for other in others:
        public = roster.member(other)
        key = agree(state.keys.encryption, public.encryption, direction(other, index), binding)
        shares[other] = decrypt_shares(key, ciphertexts[other])
        masks.append(pair_mask(state.keys.masking, public.masking, index, other, binding=binding))
    return Masked(state.session, roster, index, shares), masks


def pair_mask(private: bytes, public: bytes, index: int, other: int, *, binding: bytes) -> Mask:
    """Return the mask that the client `index` adds for the pair with `other`."""
    key = agree(private, public, MASK, binding)
    return Mask(key, subtract=index < other)


def unmask(state: Masked, survivors: Collection[int]) -> Revealed:
    """Round 4: return a share of the seed of each survivor, and of the key of each other client.

    The server never gets both of one client, because this is called once.
    """
    chosen = set(survivors)
    if len(chosen) != len(survivors) or not chosen <= state.shares.keys():
        raise ClientError("the survivors of the secure sum are not clients that shared their keys")
    if state.number not in chosen:
        raise ClientError("the survivors of the secure sum do not include this client")
    if len(chosen) < state.roster.required:
        raise ClientError(
            f"the secure sum has {len(chosen)} uploads and needs {state.roster.required}"
        )
    keys = {}
    seeds = {}
    for client, shares in state.shares.items():
        if client in chosen:
            seeds[client] = shares.seed
        else:
            keys[client] = shares.key
    return Revealed(keys, seeds)
