"""Masks: words modulo 2⁶⁴ from a stream cipher, added to a vector in blocks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES256
from cryptography.hazmat.primitives.ciphers.modes import CTR
from numpy.typing import NDArray

Words = NDArray[np.uint64]
WORD = np.dtype("<u8")
BLOCK = 2**16  # words that are masked at a time: they stay in the processor's cache


class Mask(NamedTuple):
    """A mask, and whether it is subtracted."""

    key: bytes
    subtract: bool = False


def apply_masks(words: Words, masks: Iterable[Mask]) -> None:
    """Add masks to a vector in place, or subtract them.

    A key gives one mask only, so that the counter of AES-256 in counter mode begins at 0.
    """
    zeros = memoryview(bytes(BLOCK * WORD.itemsize))
    # The cipher may write up to one block of AES more than it reads.
    stream = bytearray(BLOCK * WORD.itemsize + 15)
    for mask in masks:
        cipher = Cipher(AES256(mask.key), CTR(bytes(16))).encryptor()
        for start in range(0, len(words), BLOCK):
            block = words[start : start + BLOCK]
            cipher.update_into(zeros[: block.nbytes], stream)
            values = np.frombuffer(stream, WORD, count=len(block))
            if mask.subtract:
                np.subtract(block, values, out=block)
            else:
                np.add(block, values, out=block)
