"""All parties of a secure sum in one process, without messages."""

from __future__ import annotations

import secrets
from collections.abc import Collection, Sequence

import numpy as np

from fedssl.flower.secure_aggregation import client as protocol
from fedssl.flower.secure_aggregation.client import Advertised, Masked, Shared
from fedssl.flower.secure_aggregation.masks import Words, apply_masks
from fedssl.flower.secure_aggregation.roster import Member, SecureRoster, SessionId
from fedssl.flower.secure_aggregation.server import SecureSum

SESSION = SessionId("0" * 32, 0, 3)


class Parties:
    """A server and clients "0", "1", … in the phases of one round."""

    def __init__(
        self, images: Sequence[int], words: int, *, fraction: float = 0.5, uniform: bool = False
    ) -> None:
        self.images = images
        self.clients = [str(i) for i in range(len(images))]
        self.server = SecureSum(SESSION, words=words, fraction=fraction, uniform=uniform)
        self.advertised: dict[str, Advertised] = {}
        self.shared: dict[str, Shared] = {}
        self.masked: dict[str, Masked] = {}
        self.vectors: dict[str, Words] = {}  # with their masks

    def advertise(self) -> SecureRoster:
        """Round 0."""
        for client, count in zip(self.clients, self.images, strict=True):
            self.advertised[client], keys = protocol.advertise_keys(SESSION)
            member = Member(keys.encryption, keys.masking, secrets.token_bytes(16))
            self.server.add_member(client, member, count)
        return self.server.make_roster()

    def share(self, without: Collection[str] = ()) -> None:
        """Round 1."""
        for client, state in self.advertised.items():
            if client not in without:
                self.shared[client], shares = protocol.share_keys(state, self.server.roster)
                self.server.add_ciphertexts(client, shares)

    def mask(self, vectors: dict[str, Words], without: Collection[str] = ()) -> None:
        """Round 2. Clients that drop out have made their vectors but do not send them."""
        for client, state in self.shared.items():
            ciphertexts = self.server.ciphertexts_for(client)
            self.masked[client], masks = protocol.receive_shares(state, ciphertexts)
            self.vectors[client] = vectors[client].copy()
            apply_masks(self.vectors[client], masks)
            if client not in without:
                self.server.add_vector(client, self.vectors[client])

    def unmask(self, without: Collection[str] = ()) -> Words:
        """Round 4: return the sum."""
        survivors = self.server.survivors
        for client in self.server.clients_in_sum:
            if client not in without:
                revealed = protocol.unmask(self.masked[client], survivors)
                self.server.add_revealed(client, revealed)
        return self.server.result()[0]


def random_vectors(parties: Parties, words: int, seed: int = 0) -> dict[str, Words]:
    """Return a random vector for each client, with the share of its weight as the first word."""
    from fedssl.flower.secure_aggregation.vector import share_word

    random = np.random.default_rng(seed)
    vectors = {}
    for client, images in zip(parties.clients, parties.images, strict=True):
        vector = random.integers(0, 2**64, words, dtype=np.uint64)
        vector[0] = share_word(parties.server.roster.share(images, uniform=False))
        vectors[client] = vector
    return vectors


def plain_sum(vectors: dict[str, Words], clients: Collection[str]) -> Words:
    """Return the sum of vectors modulo 2⁶⁴."""
    total = np.zeros_like(next(iter(vectors.values())))
    for client in clients:
        total += vectors[client]
    return total
