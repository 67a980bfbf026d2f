"""Noise bits from a seed, so that an experiment can be repeated; no service can import this."""

from __future__ import annotations

import numpy as np

from wire.privacy.randomness import Words


class SeededBits:
    """The same words for the same seed. Not private: never used where data are real."""

    def __init__(self, seed: int) -> None:
        self._generator = np.random.default_rng(seed)

    def words(self, count: int) -> Words:
        """`count` uniform 64-bit words."""
        return self._generator.integers(0, 2**64, size=count, dtype=np.uint64)
