"""Pseudo-random words derived from a text: the same on every machine and in every version of numpy.

Philox, keyed by a hash. Its raw words are fixed for good; what numpy makes of words, permutations among them, is not.
"""

from __future__ import annotations

import hashlib
from math import prod

import numpy as np
import numpy.typing as npt


def keyed_random_words(text: str, shape: tuple[int, ...]) -> npt.NDArray[np.uint64]:
    """Words of 64 bits. Another text gives others; nothing about them is secret."""
    key = int.from_bytes(hashlib.sha256(f"consilium/lots/v1\n{text}".encode()).digest()[:16], "big")
    words: npt.NDArray[np.uint64] = np.random.Philox(key=key).random_raw(prod(shape))
    return words.reshape(shape)
