"""Masks are the key stream of AES-256 in counter mode, and cancel exactly."""

from __future__ import annotations

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES256
from cryptography.hazmat.primitives.ciphers.modes import CTR

from fedssl.flower.secure_aggregation.masks import BLOCK, Mask, apply_masks

pytestmark = pytest.mark.rows("C8")

KEY = bytes(range(32))
# One block, a part of one, several, and several with a part.
LENGTHS = [1, 2, 7, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK, 2 * BLOCK + 5]


@pytest.mark.parametrize("words", LENGTHS)
def test_a_mask_is_the_stream_of_the_cipher_without_gaps(words: int) -> None:
    stream = Cipher(AES256(KEY), CTR(bytes(16))).encryptor().update(bytes(8 * words))
    vector = np.zeros(words, np.uint64)
    apply_masks(vector, [Mask(KEY)])
    assert vector.tobytes() == stream


@pytest.mark.parametrize("words", LENGTHS)
def test_added_and_subtracted_masks_cancel(words: int) -> None:
    vector = np.arange(words, dtype=np.uint64) - np.uint64(3)  # wraps around
    masked = vector.copy()
    apply_masks(masked, [Mask(KEY), Mask(KEY[::-1], subtract=True)])
    assert not np.array_equal(masked, vector)
    apply_masks(masked, [Mask(KEY[::-1]), Mask(KEY, subtract=True)])
    assert np.array_equal(masked, vector)


def test_masks_have_the_distribution_of_random_bytes() -> None:
    """χ² of the counts of 256 byte values in 2²⁰ bytes: 255 ± √510 = 255 ± 22.6."""
    vector = np.zeros(2**17, np.uint64)
    apply_masks(vector, [Mask(KEY)])
    counts = np.bincount(vector.view(np.uint8), minlength=256)
    expected = 2**20 / 256
    chi_squared = float(((counts - expected) ** 2 / expected).sum())
    assert 255 - 5 * 22.6 < chi_squared < 255 + 5 * 22.6
