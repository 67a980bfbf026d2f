"""Bits that repeat themselves, for tests only."""

from __future__ import annotations

import numpy as np

from wire.privacy.randomness import Words


class SeededBits:
    """The same words for the same seed."""

    def __init__(self, seed: int) -> None:
        self._generator = np.random.default_rng(seed)

    def words(self, count: int) -> Words:
        """`count` uniform 64-bit words."""
        return self._generator.integers(0, 2**64, size=count, dtype=np.uint64)
